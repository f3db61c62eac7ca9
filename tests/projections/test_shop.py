"""The shop's read models as folds: what an order's facts give does not depend on the order in which they come."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import permutations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from onefold.domain.account import Account
from onefold.domain.event import Event, EventMeta
from onefold.domain.money import Money
from onefold.domain.order import Order, OrderItem
from onefold.projections.shop import (
    AccountBalance,
    MonthRevenue,
    OrderSummary,
    account_balance,
    app,
    order_summary,
    revenue_of,
)

START = datetime(2024, 1, 31, 22, 0, tzinfo=UTC)
DAY = START.date()
ITEM = OrderItem(item_id="1", product_id="p", price=Money.of("10", "EUR"), freight=Money.of("1", "EUR"))


def placed(currency: str = "EUR", *, customer: str = "c", day: date = DAY, items: int = 1) -> Order.Placed:
    lines = tuple(ITEM.model_copy(update={"item_id": str(number)}) for number in range(items))
    return Order.Placed(customer_id=customer, currency=currency, placed_on=day, items=lines)


def paid(amount: str, currency: str = "EUR", number: int = 1) -> Order.PaymentReceived:
    return Order.PaymentReceived(payment_id=str(number), amount=Money.of(amount, currency))


def in_stream(facts: Sequence[tuple[Event, datetime]], stream: str = "order/o1") -> list[Event]:
    return [
        fact.bound(EventMeta(stream, version, version, occurred_at=at))
        for version, (fact, at) in enumerate(facts, 1)
    ]


def summary(facts: Sequence[tuple[Event, datetime]]) -> dict[str, Any]:
    (row,) = order_summary.fold(in_stream(facts)).values()
    return row.model_dump(exclude={"version"})


amounts = st.decimals(min_value=-1000, max_value=10**18, places=4, allow_nan=False)
codes = st.sampled_from(["EUR", "USD", "BRL"])
statuses = st.sampled_from(
    [
        Order.Confirmed(),
        Order.ProcessingStarted(),
        Order.Invoiced(),
        Order.Shipped(),
        Order.Delivered(),
        Order.MarkedUnavailable(),
        Order.Cancelled(reason="late"),
    ]
)
order_facts = st.one_of(
    st.builds(placed, codes, customer=st.sampled_from("abc"), items=st.integers(0, 3)),
    st.builds(
        lambda amount, currency: Order.PaymentReceived(payment_id="1", amount=Money.of(amount, currency)),
        amounts,
        codes,
    ),
    statuses,
    statuses,
)


@st.composite
def shuffled_facts(draw: st.DrawFn) -> tuple[list[tuple[Event, datetime]], list[tuple[Event, datetime]]]:
    facts = draw(st.lists(order_facts, min_size=1, max_size=8))
    # No two facts happened at the same microsecond.
    minutes = draw(st.lists(st.integers(0, 10**6), min_size=len(facts), max_size=len(facts), unique=True))
    timed = [(fact, START + timedelta(minutes=minute)) for fact, minute in zip(facts, minutes, strict=True)]
    return timed, draw(st.permutations(timed))


@given(shuffled_facts())
def test_an_order_s_row_is_the_same_in_whatever_order_its_facts_come(
    facts: tuple[list[tuple[Event, datetime]], list[tuple[Event, datetime]]],
) -> None:
    one, other = facts
    assert summary(one) == summary(other)


def test_every_order_of_a_whole_life_gives_the_same_row() -> None:
    """Case H3, as a fold: a status that was reached is never taken back by a fact that comes late."""
    facts: list[tuple[Event, datetime]] = [
        (placed(items=2), START),
        (paid("10.00"), START + timedelta(hours=1)),
        (paid("12.50", number=2), START + timedelta(hours=2)),
        (Order.Shipped(), START + timedelta(days=1)),
        (Order.Delivered(), START + timedelta(days=2)),
        (paid("3.00", "USD", number=3), START + timedelta(days=3)),
    ]
    expected = {
        "order_id": "o1",
        "status": "delivered",
        "customer_id": "c",
        "placed_at": START,
        "delivered_at": START + timedelta(days=2),
        "paid": Decimal("22.50"),
        "currency": "EUR",
        "items": 2,
        "paid_otherwise": {"USD": Decimal("3.00")},
    }
    for order in permutations(facts):
        assert summary(order) == expected
        shown = [row_after(order[: count + 1]).status for count in range(len(order))]
        ranks = [Order.lifecycle.rank(status) for status in shown]
        assert ranks == sorted(ranks)


def row_after(facts: Sequence[tuple[Event, datetime]]) -> OrderSummary:
    (row,) = order_summary.fold(in_stream(facts)).values()
    return row


def test_an_order_that_is_only_known_by_its_payments_shows_their_sum() -> None:
    row = row_after([(paid("5"), START), (paid("2.50", number=2), START)])
    assert (row.status, row.paid, row.currency, row.customer_id) == ("new", Decimal("7.50"), "EUR", None)
    row = row_after([(paid("5", "USD"), START), (paid("2.50", "EUR"), START)])
    assert (row.paid, row.currency, row.paid_otherwise) == (Decimal("2.50"), "EUR", {"USD": Decimal(5)})


def test_the_version_is_that_of_the_last_event() -> None:
    assert row_after([(placed(), START)] * 1 + [(Order.Confirmed(), START)] * 3).version == 4


def test_payments_are_summed_exactly_whatever_their_size() -> None:
    """Case H6: beyond the 28 digits that Python's decimal context keeps by default."""
    sums = ["0.10"] * 10 + ["12345678901234567890.12", "1E-7", "24.90", "99999999999999999999999999999"]
    row = row_after([(placed(), START), *((paid(amount), START) for amount in sums)])
    assert row.paid == Decimal("100000000012345678901234567915.0200001")


def balance(*facts: Event) -> AccountBalance:
    (row,) = account_balance.fold(in_stream([(fact, START) for fact in facts], "account/a1")).values()
    return row


def opened(currency: str = "CZK", day: date = DAY) -> Account.Opened:
    return Account.Opened(currency=currency, opened_on=day)


def deposited(amount: str, currency: str = "CZK") -> Account.Deposited:
    return Account.Deposited(amount=Money.of(amount, currency))


def withdrawn(amount: str, currency: str = "CZK") -> Account.Withdrawn:
    return Account.Withdrawn(amount=Money.of(amount, currency))


def test_a_balance_is_what_came_in_less_what_went_out_and_knows_its_lowest() -> None:
    row = balance(
        opened(),
        deposited("100.00"),
        withdrawn("130.50"),
        deposited("50"),
        Account.HoldPlaced(hold_id="h", amount=Money.of("15", "CZK")),
        Account.HoldCaptured(hold_id="h", amount=Money.of("15", "CZK")),
        withdrawn("0.50"),
    )
    assert row == AccountBalance(
        account_id="a1",
        balance=Decimal("4.00"),
        currency="CZK",
        opened_on=DAY,
        lowest_balance=Decimal("-30.50"),
        version=7,
    )


def test_an_account_that_never_fell_below_zero_has_the_lowest_balance_zero() -> None:
    assert balance(opened(), deposited("5"), withdrawn("5")).lowest_balance == 0


def test_a_balance_is_exact_whatever_its_size() -> None:
    """Case H6."""
    facts = [deposited("0.10")] * 10 + [
        deposited(amount) for amount in ("12345678901234567890.12", "1E-7", "24.90")
    ]
    assert balance(opened(), *facts).balance == Decimal("12345678901234567916.0200001")
    more = deposited("99999999999999999999999999999")
    assert balance(opened(), *facts, more).balance == Decimal("100000000012345678901234567915.0200001")


account_facts = st.one_of(
    st.builds(opened, codes, st.just(DAY)),
    st.builds(lambda amount, code: Account.Deposited(amount=Money.of(amount, code)), amounts, codes),
    st.builds(lambda amount, code: Account.Withdrawn(amount=Money.of(amount, code)), amounts, codes),
)


@given(
    st.lists(account_facts, min_size=1, max_size=8).flatmap(
        lambda facts: st.tuples(st.just(facts), st.permutations(facts))
    )
)
def test_balance_and_currency_are_the_same_in_whatever_order_the_facts_come(
    facts: tuple[list[Event], list[Event]],
) -> None:
    def spread(kept: Sequence[Event]) -> list[Event]:
        # Two openings are of different days.
        days = iter(range(8))
        return [
            fact.model_copy(update={"opened_on": DAY + timedelta(days=next(days))})
            if isinstance(fact, Account.Opened)
            else fact
            for fact in kept
        ]

    one = spread(facts[0])
    places = {id(fact): place for place, fact in enumerate(facts[0])}
    other = [one[places[id(fact)]] for fact in facts[1]]
    left, right = (balance(*kept).model_dump(exclude={"version", "lowest_balance"}) for kept in (one, other))
    assert left == right


def test_the_revenue_of_a_month_is_the_sum_of_payments_for_orders_placed_in_it() -> None:
    january, february, march = date(2024, 1, 31), date(2024, 2, 1), date(2024, 3, 1)
    events = [
        *in_stream([(placed(day=january), START), (paid("10"), START), (paid("2.5"), START)], "order/1"),
        *in_stream([(paid("7"), START), (placed(day=february), START)], "order/2"),
        *in_stream([(placed(day=february), START), (Order.Confirmed(), START)], "order/3"),
        *in_stream([(placed(day=february), START), (placed(day=march), START)], "order/6"),
        *in_stream([(paid("1000"), START)], "order/4"),
        *in_stream([(placed("USD", day=january), START), (paid("1", "EUR"), START)], "order/5"),
    ]
    assert revenue_of(events) == [
        MonthRevenue(date(2024, 1, 1), "EUR", 1, Decimal("13.5")),
        MonthRevenue(date(2024, 1, 1), "USD", 1, Decimal(0)),
        MonthRevenue(date(2024, 2, 1), "EUR", 3, Decimal(7)),
    ]


def test_the_application_has_the_reference_aggregates_and_their_read_models() -> None:
    assert app.aggregates == (Order, Account)
    assert [projection.name for projection in app.projections] == [
        "order_summary",
        "account_balance",
        "revenue_by_month",
    ]

"""Order: commands that refuse, facts that converge."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import permutations
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from onefold.domain.aggregate import SnapshotCodec
from onefold.domain.errors import CommandRefused, IllegalTransition
from onefold.domain.event import Event, EventMeta, encode
from onefold.domain.instant import NaiveInstant
from onefold.domain.money import CurrencyMismatch, Money
from onefold.domain.order import Order, OrderItem
from onefold.domain.registry import registry

AT = datetime(2018, 2, 17, 12, tzinfo=UTC)


def brl(amount: str) -> Money:
    return Money.of(amount, "BRL")


def item(number: str = "1", price: str = "35.90", freight: str = "15.20", currency: str = "BRL") -> OrderItem:
    return OrderItem(
        item_id=number,
        product_id=f"p{number}",
        price=Money.of(price, currency),
        freight=Money.of(freight, currency),
    )


def placed() -> Order:
    return Order.place("4711", "ana", [item("1"), item("2", "10", "0")], at=AT)


WAY: dict[str, Callable[[Order], None]] = {
    "confirm": lambda order: order.confirm(at=AT),
    "start processing": lambda order: order.start_processing(at=AT),
    "invoice": lambda order: order.invoice(at=AT),
    "ship": lambda order: order.ship(at=AT),
    "deliver": lambda order: order.deliver(at=AT),
    "mark unavailable": lambda order: order.mark_unavailable(at=AT),
    "cancel": lambda order: order.cancel("changed my mind", at=AT),
    "receive payment for": lambda order: order.receive_payment("p", brl("1"), at=AT),
}
REACHED_BY = {
    "new": (),
    "placed": (),
    "confirmed": ("confirm",),
    "processing": ("confirm", "start processing"),
    "invoiced": ("confirm", "invoice"),
    "shipped": ("confirm", "ship"),
    "delivered": ("confirm", "ship", "deliver"),
    "unavailable": ("mark unavailable",),
    "cancelled": ("cancel",),
}
POSSIBLE = {
    "new": set(),
    "placed": {"confirm", "mark unavailable", "cancel", "receive payment for"},
    "confirmed": {"start processing", "invoice", "ship", "mark unavailable", "cancel", "receive payment for"},
    "processing": {"invoice", "ship", "mark unavailable", "cancel", "receive payment for"},
    "invoiced": {"ship", "mark unavailable", "cancel", "receive payment for"},
    "shipped": {"deliver", "cancel", "receive payment for"},
    "delivered": {"receive payment for"},
    "unavailable": {"cancel"},
    "cancelled": set(),
}


def in_state(state: str) -> Order:
    order = Order.new("4711") if state == "new" else placed()
    for step in REACHED_BY[state]:
        WAY[step](order)
    assert order.status == state
    return order


@pytest.mark.parametrize("state", POSSIBLE)
@pytest.mark.parametrize("command", WAY)
def test_a_command_is_taken_or_refused_by_the_state(state: str, command: str) -> None:
    order = in_state(state)
    before = order.version
    if command in POSSIBLE[state]:
        WAY[command](order)
        assert order.version == before + 1
    else:
        with pytest.raises(
            IllegalTransition, match=f"cannot {command} order/4711: it is {state}; "
        ) as caught:
            WAY[command](order)
        assert (caught.value.command, caught.value.state) == (command, state)
        assert (order.version, order.status) == (before, state)


def test_an_order_is_placed_with_what_it_holds() -> None:
    order = Order.place("4711", "ana", [item()], at=AT, estimated_delivery=AT + timedelta(days=30))
    assert (order.id, order.key, order.status, order.customer_id) == ("order/4711", "4711", "placed", "ana")
    assert (order.placed_at, order.placed_on, order.currency) == (AT, date(2018, 2, 17), "BRL")
    assert (order.total, order.paid) == (Decimal("51.10"), 0)
    assert order.estimated_delivery == AT + timedelta(days=30)
    assert order.items == (item(),)


def test_an_order_counts_to_the_day_of_the_shop() -> None:
    evening = datetime(2018, 1, 31, 23, tzinfo=ZoneInfo("America/Sao_Paulo"))
    assert Order.place("1", "ana", [item()], at=evening).placed_on == date(2018, 1, 31)


def test_an_order_is_not_placed_twice() -> None:
    with pytest.raises(
        IllegalTransition, match="cannot place order/4711: it is placed; place is possible when new"
    ):
        placed().emit(Order.Placed(customer_id="bob", currency="BRL", placed_on=AT.date()), at=AT)


@pytest.mark.parametrize(
    ("items", "error", "message"),
    [
        ([], CommandRefused, "cannot place order/4711 without items; give at least one"),
        ([item("1"), item("1")], CommandRefused, "an item_id stands twice"),
        ([item(price="0")], CommandRefused, "price of item 1 is 0 BRL, expected more than 0"),
        ([item(price="-1")], CommandRefused, "price of item 1 is -1 BRL, expected more than 0"),
        ([item(freight="-0.01")], CommandRefused, "freight of item 1 is -0.01 BRL, expected more than 0"),
        (
            [item(), item("2", currency="EUR")],
            CurrencyMismatch,
            "price of item 2 is 35.90 EUR, expected an amount in BRL",
        ),
        (
            [OrderItem(item_id="1", product_id="p", price=brl("1"), freight=Money.of(0, "EUR"))],
            CurrencyMismatch,
            "freight of item 1 is 0 EUR, expected an amount in BRL",
        ),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(
    items: Iterable[OrderItem], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Order.place("4711", "ana", items, at=AT)


def test_times_have_a_zone() -> None:
    naive = datetime.fromisoformat("2018-02-17T12:00:00")
    with pytest.raises(NaiveInstant, match="at is 2018-02-17T12:00:00 without a zone"):
        Order.place("4711", "ana", [item()], at=naive)
    with pytest.raises(ValidationError, match="estimated_delivery"):
        Order.place("4711", "ana", [item()], at=AT, estimated_delivery=naive)


def test_payments_add_up() -> None:
    order = placed()
    order.receive_payment("1", brl("50.00"), at=AT, kind="voucher")
    order.receive_payment("2", brl("11.1"), at=AT, kind="credit_card", installments=3)
    assert order.paid == Decimal("61.10")
    assert [(payment.payment_id, payment.kind, payment.installments) for payment in order.payments] == [
        ("1", "voucher", 1),
        ("2", "credit_card", 3),
    ]
    assert order.status == "placed"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"amount": brl("0")},
            CommandRefused,
            "cannot receive payment 2 for order/4711: amount is 0 BRL, expected more",
        ),
        ({"amount": brl("-5")}, CommandRefused, "amount is -5 BRL, expected more than 0"),
        ({"amount": Money.of(5, "EUR")}, CurrencyMismatch, "amount is 5 EUR, expected an amount in BRL"),
        ({"installments": 0}, CommandRefused, "expected 1 installment or more, found 0"),
        (
            {"payment_id": "1"},
            CommandRefused,
            "a payment with this id was received; give each payment an id of its own",
        ),
    ],
)
def test_a_payment_that_makes_no_sense_is_refused(
    arguments: Any, error: type[Exception], message: str
) -> None:
    order = placed()
    order.receive_payment("1", brl("5"), at=AT)
    with pytest.raises(error, match=message):
        order.receive_payment(**{"payment_id": "2", "amount": brl("5"), "at": AT, **arguments})
    assert (order.paid, order.version) == (5, 2)


def test_the_way_to_the_customer_leaves_its_times() -> None:
    order = placed()
    for hours, step in enumerate(
        (order.confirm, order.start_processing, order.invoice, order.ship, order.deliver), 1
    ):
        step(at=AT + timedelta(hours=hours))
    assert order.status == "delivered"
    assert (order.confirmed_at, order.shipped_at, order.delivered_at) == tuple(
        AT + timedelta(hours=hours) for hours in (1, 4, 5)
    )


def test_a_time_that_is_not_told_leaves_none_until_it_is_stored() -> None:
    order = placed()
    order.emit(Order.Confirmed())
    assert order.confirmed_at is None
    order.record(Order.Confirmed(), at=AT)
    assert order.confirmed_at == AT


def facts(*events: tuple[Event, datetime]) -> list[Event]:
    return [event.bound(EventMeta("order/1", 1, occurred_at=at)) for event, at in events]


def fold(events: Iterable[Event]) -> Order:
    order = Order.blank("order/1")
    for version, event in enumerate(events, 1):
        order.follow(event.bound(EventMeta("order/1", version, occurred_at=event.meta.occurred_at)))
    return order


def state_of(order: Order) -> dict[str, Any]:
    return {"status": order.status} | {name: getattr(order, name) for name in Order.__dataclass_fields__}


HISTORY = facts(
    (Order.Placed(customer_id="ana", currency="BRL", placed_on=AT.date(), items=(item(),)), AT),
    (Order.PaymentReceived(payment_id="1", amount=brl("24.9")), AT),
    (Order.PaymentReceived(payment_id="10", amount=brl("0.00")), AT),
    (Order.PaymentReceived(payment_id="2", amount=brl("1E-7"), derived=True), AT),
    (Order.Confirmed(), AT + timedelta(hours=1)),
    (Order.ProcessingStarted(), AT + timedelta(hours=1)),
    (Order.Invoiced(), AT + timedelta(hours=2)),
    (Order.Shipped(), AT + timedelta(hours=3)),
    (Order.Shipped(derived=True), AT + timedelta(hours=4)),
    (Order.Delivered(), AT + timedelta(hours=5)),
    (Order.MarkedUnavailable(derived=True), AT + timedelta(hours=6)),
    (Order.Cancelled(reason="lost"), AT + timedelta(hours=7)),
)


@settings(deadline=None, max_examples=150)
@given(st.permutations(HISTORY), st.integers(min_value=1, max_value=len(HISTORY)))
def test_facts_end_in_the_same_state_whatever_their_order(shuffled: list[Event], count: int) -> None:
    some = shuffled[:count]
    in_order = [event for event in HISTORY if any(event is one for one in some)]
    assert state_of(fold(some)) == state_of(fold(in_order))


def test_delivered_before_shipped_before_placed_is_delivered() -> None:
    """The heart of case H3: newer before older, in all orders of arrival."""
    three = [event for event in HISTORY if isinstance(event, Order.Placed | Order.Delivered)] + HISTORY[7:8]
    for arrival in permutations(three):
        order = fold(arrival)
        assert (order.status, order.customer_id, order.shipped_at) == (
            "delivered",
            "ana",
            AT + timedelta(hours=3),
        )


@pytest.mark.parametrize("lower", ["placed", "confirmed", "processing", "invoiced", "shipped", "delivered"])
def test_cancelled_and_unavailable_outrank_all_others(lower: str) -> None:
    for last in (Order.Cancelled, Order.MarkedUnavailable):
        order = in_state(lower)
        order.record(last(derived=True), at=AT)
        assert order.status == Order.lifecycle.target(last)
        order.record(Order.Delivered(), at=AT)
        assert order.status == Order.lifecycle.target(last)


def test_payments_that_come_before_the_order_wait_for_it() -> None:
    order = Order.new("1")
    assert (order.currency, order.paid) == ("", 0)
    order.record(Order.PaymentReceived(payment_id="1", amount=brl("5")), at=AT)
    assert (order.status, order.currency, order.paid) == ("new", "BRL", 5)
    order.record(Order.PaymentReceived(payment_id="2", amount=Money.of(7, "EUR")), at=AT)
    order.record(Order.Placed(customer_id="ana", currency="EUR", placed_on=AT.date()), at=AT)
    assert (order.status, order.currency, order.paid) == ("placed", "EUR", 7)


def test_of_two_placings_the_earlier_holds() -> None:
    first = Order.Placed(customer_id="ana", currency="BRL", placed_on=date(2018, 1, 1))
    second = Order.Placed(customer_id="bob", currency="BRL", placed_on=date(2018, 1, 2))
    for arrival in ((first, second), (second, first)):
        order = Order.new("1")
        for event in arrival:
            order.record(event, at=AT)
        assert order.customer_id == "ana"


def test_facts_take_what_commands_refuse() -> None:
    order = Order.new("1")
    order.record(Order.Placed(customer_id="ana", currency="BRL", placed_on=AT.date()), at=AT)
    order.record(Order.PaymentReceived(payment_id="1", installments=0, amount=brl("0.00")), at=AT)
    assert (order.items, order.total, order.paid, order.status) == ((), 0, 0, "placed")


def test_every_event_comes_back_from_json_as_it_was() -> None:
    for event in HISTORY:
        back = registry.decode(event.event_name, event.schema_version, encode(event), event.meta)
        assert back == event
        assert type(back) is type(event)


def test_a_payment_can_be_refunded_in_parts_and_in_any_state_but_not_more_than_it_was() -> None:
    order = placed()
    order.receive_payment("p-1", brl("45.90"), at=AT)
    order.receive_payment("p-2", brl("7"), at=AT)
    order.refund_payment("p-1", brl("5.90"), at=AT, reason="one piece came broken")
    order.cancel(at=AT)
    order.refund_payment("p-1", brl("40"), at=AT)
    assert (order.paid, order.refunded, order.status) == (Decimal("52.90"), Decimal("45.90"), "cancelled")
    for payment, amount in (("p-1", "0.01"), ("p-2", "7.01"), ("p-3", "1"), ("p-2", "0"), ("p-2", "-1")):
        with pytest.raises(CommandRefused):
            order.refund_payment(payment, brl(amount), at=AT)
    with pytest.raises(CurrencyMismatch):
        order.refund_payment("p-2", Money.of("1", "EUR"), at=AT)
    assert [refund.payment_id for refund in order.refunds] == ["p-1", "p-1"]


def test_a_refund_of_another_currency_is_kept_and_not_counted() -> None:
    order = placed()
    order.record(Order.PaymentReceived(payment_id="p-1", amount=Money.of("3", "EUR")), at=AT)
    order.refund_payment("p-1", Money.of("3", "EUR"), at=AT)
    assert (order.paid, order.refunded, len(order.refunds)) == (0, 0, 1)


def test_the_names_of_the_events_are_stable() -> None:
    assert {event.event_name for event in Order.events} == {
        "order.placed",
        "order.payment_received",
        "order.payment_refunded",
        "order.confirmed",
        "order.processing_started",
        "order.invoiced",
        "order.shipped",
        "order.delivered",
        "order.cancelled",
        "order.marked_unavailable",
    }


def test_a_snapshot_gives_the_order_back() -> None:
    order = fold(HISTORY)
    codec = SnapshotCodec(Order)
    assert state_of(codec.decode(order.id, order.version, codec.encode(order))) == state_of(order)

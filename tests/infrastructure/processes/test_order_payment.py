"""The order-payment process of the bundled shop, on a real database."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from onefold import Money
from onefold.domain.account import Account
from onefold.domain.order import Order
from onefold.projections.guards import Outcome

from .shopping import CUSTOMER, Shop, money, now


def test_an_order_that_is_paid_in_time_is_confirmed_and_its_money_is_in_its_account(shop: Shop) -> None:
    shop.place("1")
    shop.run()
    assert shop.account().held == 100
    assert shop.timeouts() == ["1"]
    shop.pay("1")
    shop.run()
    shop.check_ended("1")
    assert shop.order("1").status == "confirmed"
    assert shop.balances() == {"anna": 900, "order-1": 100}


def test_an_order_that_is_not_paid_in_time_is_cancelled_and_its_hold_is_released(shop: Shop) -> None:
    shop.place("1")
    shop.run()
    shop.make_due()
    shop.run()
    shop.check_ended("1")
    assert shop.types("order/1") == ["placed", "cancelled"]
    assert shop.types("order_payment/1") == ["reserved", "released"]
    assert shop.balances() == {"anna": 1000}


def test_a_payment_after_the_timeout_is_refunded_once(shop: Shop) -> None:
    shop.place("1")
    shop.run()
    shop.make_due()
    shop.run()
    shop.pay("1")
    shop.run()
    shop.run()
    shop.check_ended("1")
    assert shop.types("order/1") == ["placed", "cancelled", "payment_received", "payment_refunded"]
    assert shop.types("account/order-1") == ["opened", "deposited", "withdrawn"]
    assert shop.balances() == {"anna": 1000, "order-1": 0}


def test_a_payment_that_was_in_time_counts_though_the_worker_comes_after_the_timeout(shop: Shop) -> None:
    shop.place("1")
    shop.run()
    shop.pay("1")
    shop.make_due()
    shop.run()
    shop.check_ended("1")
    assert shop.order("1").status == "confirmed"


@pytest.mark.parametrize("reason", ["no account", "too little", "closed", "another currency"])
def test_an_order_for_which_nothing_can_be_held_is_cancelled(shop: Shop, reason: str) -> None:
    match reason:
        case "no account":
            shop.place("1", customer="bert")
        case "too little":
            shop.place("1", amount=1001)
        case "closed":
            shop.store.save(Account.open("bert", "EUR", at=now()))
            shop.store.change(Account, "bert", lambda account: account.close(at=now()))
            shop.place("1", customer="bert")
        case _:
            shop.store.save(Account.open("bert", "USD", at=now()))
            shop.place("1", customer="bert")
    shop.run()
    shop.check_ended("1")
    assert shop.order("1").status == "cancelled"
    assert shop.balances() == {"anna": 1000}
    shop.pay("1", amount=1001)
    shop.run()
    shop.check_ended("1")
    assert shop.types("order/1")[-1] == "payment_refunded"


def test_an_order_is_paid_in_parts_and_what_is_too_much_is_refunded(shop: Shop) -> None:
    shop.place("1")
    shop.run()
    shop.pay("1", "p-1", 30)
    shop.run()
    assert (shop.account().held, shop.purse("1"), shop.order("1").status) == (70, 30, "placed")
    shop.pay("1", "p-2", 80)
    shop.run()
    shop.check_ended("1")
    assert (shop.order("1").status, shop.order("1").refunded) == ("confirmed", 10)
    shop.pay("1", "p-3", 5)
    shop.run()
    shop.check_ended("1")
    assert shop.order("1").refunded == 15
    assert shop.balances() == {"anna": 900, "order-1": 100}


def test_what_was_paid_in_part_goes_back_when_the_rest_does_not_come(shop: Shop) -> None:
    shop.place("1")
    shop.run()
    shop.pay("1", "p-1", 30)
    shop.pay("1", "p-2", 20)
    shop.run()
    shop.make_due()
    shop.run()
    shop.check_ended("1")
    assert shop.types("order_payment/1") == [
        "reserved", "captured", "captured", "refunded", "refunded", "released",
    ]  # fmt: skip
    assert shop.balances() == {"anna": 1000, "order-1": 0}


def test_an_order_that_is_cancelled_after_it_was_paid_is_refunded_once(shop: Shop) -> None:
    shop.place("1")
    shop.pay("1")
    shop.run()
    shop.cancel("1")
    shop.run()
    shop.run()
    shop.check_ended("1")
    assert shop.types("order_payment/1").count("refunded") == 1
    assert shop.balances() == {"anna": 1000, "order-1": 0}


def test_goods_that_are_unavailable_cancel_the_order(shop: Shop) -> None:
    shop.place("1")
    shop.run()
    shop.store.change(Order, "1", lambda order: order.mark_unavailable(at=now()))
    shop.run()
    shop.check_ended("1")
    assert shop.types("order/1") == ["placed", "marked_unavailable", "cancelled"]


def test_a_payment_in_another_currency_is_refunded_and_the_order_still_waits(shop: Shop) -> None:
    shop.place("1")
    shop.run()
    shop.record("1", Order.PaymentReceived(payment_id="p-1", amount=Money.of(100, "USD")))
    shop.run()
    assert shop.order("1").status == "placed"
    assert shop.order("1").refunds[0].amount == Money.of(100, "USD")
    shop.pay("1", "p-2")
    shop.run()
    shop.check_ended("1")
    assert shop.account().balances == {"EUR": 900, "USD": 0}


def test_a_payment_that_is_recorded_twice_is_taken_once(shop: Shop) -> None:
    shop.place("1")
    shop.run()
    shop.pay("1", "p-1", 40)
    shop.pay("1", "p-1", 40)
    shop.run()
    assert shop.purse("1") == 40


def test_an_order_that_was_placed_before_the_process_began_is_none_of_its_business(
    database_url: str, shop: Shop
) -> None:
    shop.connection.execute("DELETE FROM onefold.log_subscriptions")
    shop.place("1")
    shop.run()
    shop.pay("1")
    shop.place("2")
    shop.run()
    assert shop.order("1").status == "placed"
    assert shop.types("order_payment/1") == []
    assert shop.types("order_payment/2") == ["reserved"]


def test_an_order_without_a_price_is_confirmed_at_once(shop: Shop) -> None:
    order = Order.new("1")
    order.record(Order.Placed(customer_id=CUSTOMER, currency="EUR", placed_on=now().date()), at=now())
    shop.store.save(order)
    shop.run()
    shop.check_ended("1")
    assert shop.order("1").status == "confirmed"


def test_an_order_that_is_confirmed_by_hand_waits_for_its_payment_all_the_same(shop: Shop) -> None:
    shop.place("1")
    shop.run()
    shop.store.change(Order, "1", lambda order: order.confirm(at=now()))
    shop.make_due()
    shop.run()
    shop.check_ended("1")
    assert shop.order("1").status == "cancelled"


STEPS = ("pay", "cancel", "time out", "pay again")


@pytest.mark.parametrize("at_once", [True, False], ids=["worker comes late", "worker keeps up"])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_whatever_the_order_of_payment_timeout_and_cancellation_the_money_is_where_it_belongs(
    shop: Shop, number: int, at_once: bool
) -> None:
    """All interleavings, each an order of its own."""
    cases = {"-".join(steps).replace(" ", "_"): steps for steps in permutations(STEPS, number)}
    shop.open(100_000, "rich")
    for key in cases:
        shop.place(key, customer="rich")
    shop.run()
    assert shop.account("rich").held == 100 * len(cases)
    for step in range(number):
        for key, steps in cases.items():
            _do(shop, key, steps[step])
        if not at_once:
            shop.run()
            assert sum(shop.balances().values()) == 101_000
    result = shop.run()
    assert result.outcomes.get(Outcome.DEAD_LETTERED, 0) == 0
    assert sum(shop.balances().values()) == 101_000
    for key, steps in cases.items():
        shop.check_ended(key)
        if not at_once:
            assert (shop.order(key).status == "confirmed") == (
                steps[0] in ("pay", "pay again") and "cancel" not in steps
            )
    assert shop.account("rich").held == 0


def _do(shop: Shop, key: str, step: str) -> None:
    match step:
        case "pay" | "pay again":
            shop.pay(key, f"p-{step}")
        case "cancel":
            # A fact, so that it comes after anything.
            shop.record(key, Order.Cancelled(reason="changed their mind"))
        case _:
            shop.make_due(key)


def test_each_refund_goes_through_the_outbox_once_where_the_application_publishes_it(
    database_url: str, shop: Shop
) -> None:
    from onefold import App, publish
    from onefold.projections.shop import OrderPayment

    from .shopping import shopping

    publishing: Any = App(
        aggregates=shop.store.app.aggregates[:2],
        processes=(OrderPayment,),
        publications=[publish(OrderPayment.Refunded, to="refunds")],
    )
    with shopping(database_url, publishing) as other:
        other.place("1")
        other.run()
        other.make_due()
        other.pay("1")
        other.pay("1", "p-2", 7)
        other.run()
        other.run()
        found = other.connection.execute("SELECT channel, type FROM onefold.outbox").fetchall()
    assert found == [("refunds", "order_payment.refunded")]
    assert money(7) in [refund.amount for refund in shop.order("1").refunds]

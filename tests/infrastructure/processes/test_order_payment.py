"""The order-payment process of the bundled shop, on a real database."""

from __future__ import annotations

from .shopping import Shop


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

"""`onefold process` answers events and timeouts once, says so, and stops when it is told to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from psycopg import Connection

from onefold import Store, connect
from onefold.domain.account import Account
from onefold.domain.money import Money
from onefold.domain.order import Order, OrderItem
from onefold.projections.shop import app_with_payment

from .conftest import AT, Commands, Onefold, until

SHOP = ("--app", "onefold.projections.shop:app_with_payment")


@pytest.fixture
def shop(onefold: Onefold, database_url: str) -> Iterator[Store]:
    """A shop whose process has begun, with a customer who has 100 euros."""
    assert onefold("process", "--once", *SHOP).code == 0
    with connect(app_with_payment, database_url) as store:
        account = Account.open("ana", "EUR", at=AT)
        account.deposit(Money.of(100, "EUR"), at=AT)
        store.save(account)
        yield store


def place(store: Store, key: str, price: int = 40) -> None:
    item = OrderItem(item_id="1", product_id="p", price=Money.of(price, "EUR"), freight=Money.zero("EUR"))
    store.save(Order.place(key, "ana", [item], at=AT))


def test_it_runs_all_process_managers_or_those_that_are_named(onefold: Onefold, shop: Store) -> None:
    place(shop, "1")
    said = onefold("process", "order_payment", "--once", "--json", *SHOP)
    assert said.code == 0, said.err
    (found,) = said.document["processes"]
    assert (found["process"], found["received"], found["outcomes"]["applied"]) == ("order_payment", 1, 1)
    again = onefold("process", "--all", "--once", *SHOP)
    assert again.code == 0
    assert re.search(r"^order_payment +applied +0$", again.out, re.MULTILINE)


def test_it_runs_until_it_is_told_to_stop(start: Commands, shop: Store) -> None:
    running = start("process", *SHOP)
    place(shop, "1")
    until(lambda: shop.get(Account, "ana").held == 40)
    assert running.end().code == 0


def test_an_event_that_failed_for_good_ends_it_with_1(
    onefold: Onefold, shop: Store, connection: Connection[Any]
) -> None:
    place(shop, "1")
    onefold("process", "--once", *SHOP)
    shop.change(Account, "ana", lambda account: account.release_hold("order/1", at=AT))
    shop.change(Order, "1", lambda order: order.receive_payment("p-1", Money.of(40, "EUR"), at=AT))
    said = onefold("process", "--once", *SHOP)
    assert said.code == 1
    assert "1 dead letter; see `onefold dead-letters list --consumer order_payment`" in said.out
    listed = onefold("dead-letters", "list", "--consumer", "order_payment")
    assert "there is no hold order/1" in " ".join(listed.out.split())


def test_the_status_has_its_instances_and_timeouts(onefold: Onefold, shop: Store) -> None:
    place(shop, "1")
    place(shop, "2")
    onefold("process", "--once", *SHOP)
    said = onefold("status", "--json", *SHOP)
    (found,) = said.document["processes"]
    assert (found["name"], found["instances"], found["timeouts"], found["timeouts_due"]) == (
        "order_payment", 2, 2, 0,
    )  # fmt: skip
    assert re.search(r"^order_payment +2 +2 +0 ", onefold("status", *SHOP).out, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["process", "nobody", *SHOP], "expected one of the process managers order_payment, found 'nobody'"),
        (["process"], "has no process managers to run"),
        (["process", "--all", "order_payment", *SHOP], "expected either --all or names"),
        (
            ["consume", "log:", "--consumer", "order_payment", *SHOP],
            "run it with `onefold process order_payment`",
        ),
    ],
)
def test_wrong_use_is_refused(onefold: Onefold, words: list[str], message: str) -> None:
    said = onefold(*words)
    assert said.code == 2
    assert message in said.err

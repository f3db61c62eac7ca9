"""The store: saving, loading, projecting and querying an application's aggregates."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from onefold.domain.account import Account
from onefold.domain.aggregate import Aggregate
from onefold.domain.errors import CommandRefused, IllegalTransition, OnefoldError
from onefold.domain.money import Money
from onefold.domain.order import Order, OrderItem
from onefold.infrastructure.postgres.errors import AggregateNotFound, VersionConflict
from onefold.infrastructure.store import NotCaughtUp, Store, connect
from onefold.projections.app import UnknownProjection
from onefold.projections.shop import account_balance, app, order_summary

AT = datetime(2024, 2, 29, 12, 0, tzinfo=UTC)
ITEM = OrderItem(item_id="1", product_id="p", price=Money.of("20.00", "EUR"), freight=Money.of("4.90", "EUR"))


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    with connect(app, database_url, snapshot_every={Account: 5}) as connected:
        yield connected


def placed(number: str = "4711") -> Order:
    return Order.place(number, "ana", [ITEM], at=AT)


def test_a_store_saves_decisions_and_gives_back_the_aggregate_that_made_them(store: Store) -> None:
    order = placed()
    order.receive_payment("1", Money.of("24.90", "EUR"), at=AT)
    stored = store.save(order, metadata={"actor": "ana"})
    assert [event.meta.version for event in stored] == [1, 2]
    assert order.pending == ()
    assert store.save(order) == []
    again = store.get(Order, "4711")
    assert (again.status, again.paid, again.version) == ("placed", Decimal("24.90"), 2)
    again.confirm(at=AT)
    store.save(again)
    assert store.get(Order, "4711").status == "confirmed"
    assert store.get(Order, "4711", version=2).status == "placed"


def test_an_order_that_is_not_there_is_not_found(store: Store) -> None:
    with pytest.raises(AggregateNotFound, match="stream order/0 has no events"):
        store.get(Order, "0")
    store.save(placed())
    with pytest.raises(
        AggregateNotFound, match="stream order/4711 has no events at version 2: its last version is 1"
    ):
        store.get(Order, "4711", version=2)


def test_the_second_of_two_who_decided_on_the_same_state_is_refused(store: Store) -> None:
    store.save(placed())
    first, second = store.get(Order, "4711"), store.get(Order, "4711")
    first.confirm(at=AT)
    store.save(first)
    second.cancel("changed my mind", at=AT)
    with pytest.raises(VersionConflict) as caught:
        store.save(second)
    assert (caught.value.stream, caught.value.expected, caught.value.found) == ("order/4711", 1, 2)
    assert len(second.pending) == 1
    assert store.get(Order, "4711").status == "confirmed"


def test_an_illegal_command_changes_nothing(store: Store) -> None:
    order = placed()
    with pytest.raises(IllegalTransition, match="cannot ship order/4711: it is placed"):
        order.ship(at=AT)
    store.save(order)
    assert store.get(Order, "4711").version == 1


def test_an_aggregate_of_another_application_is_refused(store: Store) -> None:
    class Stranger(Aggregate, category="stranger"):
        pass

    with pytest.raises(OnefoldError, match="Stranger is not among the aggregates of the application"):
        store.get(Stranger, "1")


def test_a_save_in_the_caller_s_transaction_stands_or_falls_with_it(store: Store) -> None:
    with psycopg.connect(store.url) as connection:
        store.save(placed("1"), connection=connection)
        connection.rollback()
        store.save(placed("2"), connection=connection)
        connection.commit()
    with pytest.raises(AggregateNotFound):
        store.get(Order, "1")
    assert store.get(Order, "2").version == 1


def test_money_is_exact_and_snapshots_change_nothing_that_is_seen(store: Store) -> None:
    account = Account.open("a1", "BRL", at=AT)
    for amount in [*["0.10"] * 10, "12345678901234567890.12", "0.0000001", "24.90"]:
        account.deposit(Money.of(amount, "BRL"), at=AT)
        store.save(account)
        assert store.get(Account, "a1").balance == account.balance
    assert str(store.get(Account, "a1").balance) == "12345678901234567916.0200001"
    with pytest.raises(CommandRefused):
        store.get(Account, "a1").withdraw(Money.of("12345678901234567916.03", "BRL"), at=AT)
    assert store.get(Account, "a1", version=7).balance == Decimal("0.60")


def test_projections_are_brought_up_and_asked_for_rows(store: Store) -> None:
    store.save(placed("1"))
    order = placed("2")
    order.receive_payment("1", Money.of("10", "EUR"), at=AT)
    store.save(order)
    progress = store.run("order_summary")
    assert list(progress) == ["order_summary"]
    assert progress["order_summary"].applied == 3
    assert [row.order_id for row in store.rows(order_summary)] == ["1", "2"]
    row = store.row(order_summary, "2")
    assert row is not None
    assert (row.paid, row.placed_at, row.currency, row.items) == (Decimal(10), AT, "EUR", 1)
    assert store.row(order_summary, "3") is None
    assert set(store.run()) == {"order_summary", "account_balance", "revenue_by_month"}
    assert store.rows(account_balance) == []


def test_a_projection_that_the_application_does_not_have_is_refused(store: Store) -> None:
    with pytest.raises(UnknownProjection, match="found 'orders'"):
        store.run("orders")


def test_a_reader_can_wait_for_its_own_write(store: Store) -> None:
    with store.running("order_summary"):
        for number in range(5):
            stored = store.save(placed(str(number)))
            store.wait_for("order_summary", stored[-1].meta.position)
            assert store.row(order_summary, str(number)) is not None


def test_a_wait_for_a_projection_that_does_not_run_ends_with_an_error(store: Store) -> None:
    store.save(placed())
    with pytest.raises(
        NotCaughtUp, match=r"projection order_summary has not run yet, expected position 1 in 0\.1 s"
    ):
        store.wait_for("order_summary", 1, timeout=0.1)
    store.run("order_summary")
    store.wait_for("order_summary", 1, timeout=0.1)
    started = time.monotonic()
    with pytest.raises(NotCaughtUp, match=r"projection order_summary is at 1, expected position 2 in 0\.1 s"):
        store.wait_for("order_summary", 2, timeout=0.1)
    assert time.monotonic() - started < 2.0


def test_many_threads_may_use_one_store(store: Store) -> None:
    threads = 8
    start = threading.Barrier(threads)

    def trade(number: int) -> None:
        start.wait()
        for deal in range(10):
            order = placed(f"{number}-{deal}")
            order.receive_payment("1", Money.of("24.90", "EUR"), at=AT)
            store.save(order)
            again = store.get(Order, f"{number}-{deal}")
            again.confirm(at=AT)
            store.save(again)

    with store.running(), ThreadPoolExecutor(threads) as pool:
        list(pool.map(trade, range(threads)))
    store.run()
    rows = store.rows(order_summary)
    assert len(rows) == threads * 10
    assert {(row.status, row.paid, row.version) for row in rows} == {("confirmed", Decimal("24.90"), 3)}
    with store.pool.connection() as connection:
        found: list[Any] = connection.execute("SELECT * FROM read.revenue_by_month").fetchall()
    assert found == [(date(2024, 2, 1), "EUR", 80, Decimal("1992.00"))]


def test_an_empty_database_is_migrated_when_a_store_connects(empty_database_url: str) -> None:
    for _ in range(2):
        with connect(app, empty_database_url) as store:
            store.run()
    with connect(app, empty_database_url) as store:
        store.save(placed())
        assert store.get(Order, "4711").version == 1

"""A shop with an account, whose orders are paid, cancelled and timed out by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import psycopg

from onefold import AggregateNotFound, App, Money, Store, connect
from onefold.domain.account import Account
from onefold.domain.order import Order, OrderItem
from onefold.infrastructure.announcing import announcer
from onefold.infrastructure.consuming.consumption import Consumed
from onefold.infrastructure.processes.running import consumption
from onefold.projections.process import Process, process_of
from onefold.projections.shop import OrderPayment

app = App(aggregates=(Order, Account), processes=(OrderPayment,))
PROCESS = process_of(OrderPayment)
CUSTOMER = "anna"


def money(amount: int | str) -> Money:
    return Money.of(amount, "EUR")


def now() -> datetime:
    return datetime.now(UTC)


class Shop:
    """The store, and what happens in it; the process runs when it is told to."""

    def __init__(self, store: Store, connection: psycopg.Connection[Any]) -> None:
        self.store = store
        self.connection = connection

    def open(self, amount: int = 1000, customer: str = CUSTOMER) -> None:
        account = Account.open(customer, "EUR", at=now())
        account.deposit(money(amount), at=now())
        self.store.save(account)

    def place(self, key: str, amount: int = 100, customer: str = CUSTOMER) -> None:
        item = OrderItem(item_id="1", product_id="p", price=money(amount), freight=money(0))
        self.store.save(Order.place(key, customer, [item], at=now()))

    def pay(self, key: str, payment: str = "p-1", amount: int = 100) -> None:
        """A payment as a fact: it has happened, whatever the order's state is."""
        self.record(key, Order.PaymentReceived(payment_id=payment, amount=money(amount)))

    def record(self, key: str, event: Any) -> None:
        self.store.change(Order, key, lambda order: order.record(event, at=now()))

    def cancel(self, key: str) -> None:
        self.store.change(Order, key, lambda order: order.cancel("changed their mind", at=now()))

    def make_due(self, key: str | None = None) -> int:
        """Have the timeouts of an order (of all) be due now."""
        return self.connection.execute(
            "UPDATE onefold.timeouts SET due_at = clock_timestamp() - interval '1 second' "
            "WHERE %(key)s::text IS NULL OR instance = %(key)s",
            {"key": key},
        ).rowcount

    def run(self, process: Process = PROCESS, *, batch: int = 100) -> Consumed:
        return consumption(
            self.store.url, process, announcer=announcer(self.store.app), once=True, batch=batch
        ).run()

    def has_ended(self, key: str) -> bool:
        """Tell whether an order is paid and confirmed, or cancelled and released, as `check_ended` says in detail."""
        instance = self.store.repository(OrderPayment)
        try:
            return instance.get(key).status in ("paid", "released")
        except AggregateNotFound:
            return False

    def order(self, key: str) -> Order:
        return self.store.get(Order, key)

    def account(self, key: str = CUSTOMER) -> Account:
        return self.store.get(Account, key)

    def purse(self, key: str) -> Decimal:
        return self.balances().get(f"order-{key}", Decimal(0))

    def instance(self, key: str) -> OrderPayment:
        return self.store.get(OrderPayment, key)

    def balances(self) -> dict[str, Decimal]:
        """The balance of every account, by SQL from the log."""
        rows = self.connection.execute(
            """
            SELECT split_part(stream, '/', 2), sum(
                (data -> 'amount' ->> 'amount')::numeric
                * CASE type WHEN 'account.deposited' THEN 1 ELSE -1 END
            )
            FROM onefold.events
            WHERE type IN ('account.deposited', 'account.withdrawn', 'account.hold_captured')
            GROUP BY 1
            """
        ).fetchall()
        return dict(rows)

    def types(self, stream: str) -> list[str]:
        rows = self.connection.execute(
            "SELECT type FROM onefold.events WHERE stream = %s ORDER BY version", (stream,)
        ).fetchall()
        return [name.rpartition(".")[2] for (name,) in rows]

    def timeouts(self) -> list[str]:
        rows = self.connection.execute("SELECT instance FROM onefold.timeouts ORDER BY instance").fetchall()
        return [instance for (instance,) in rows]

    def check_ended(self, key: str) -> None:
        """An order ends paid and confirmed, or cancelled and released; and what was refunded is what was not kept."""
        order, held = self.order(key), self.account().holds
        assert f"order/{key}" not in held
        assert key not in self.timeouts()
        if order.status == "cancelled":
            assert self.instance(key).status == "released"
            assert self.purse(key) == 0
            assert order.paid == order.refunded
        else:
            assert order.status == "confirmed"
            assert self.instance(key).status == "paid"
            assert self.purse(key) == order.total
            assert order.paid - order.refunded == order.total


@contextmanager
def shopping(database_url: str, application: App = app) -> Iterator[Shop]:
    with (
        connect(application, database_url) as store,
        psycopg.connect(database_url, autocommit=True) as connection,
    ):
        yield Shop(store, connection)

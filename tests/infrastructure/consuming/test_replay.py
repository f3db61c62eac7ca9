"""Replays: what is folded again has no side effects again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg

from onefold import Aggregate, Consumer, Event, Message, Projection, Registry, Row, Transaction
from onefold.infrastructure.worker import Worker

from .desk import Desk, envelope

kinds = Registry()


class Order(Aggregate, category="order"):
    class Shipped(Event, name="order.shipped", registry=kinds): ...

    def ship(self) -> None:
        self.emit(self.Shipped())


class Sent(Row, key="order"):
    order: str
    times: int = 0


def ship(message: Message, tx: Transaction) -> None:
    key = message.subject or ""
    tx.execute("INSERT INTO mails VALUES (%s)", (key,))
    order = tx.find(Order, key) or Order.new(key)
    order.ship()
    tx.save(order)


def test_a_rebuild_and_a_redelivery_send_no_mail_again(
    open_desk: Callable[[Consumer], Desk], bank: str, connection: psycopg.Connection[Any]
) -> None:
    """H9, C28: five mails for five orders, whatever is folded or delivered again; the sixth order has the sixth."""
    connection.execute("CREATE TABLE mails (order_id text)")
    projection = Projection("sent", Sent, registry=kinds)

    @projection.on(Order.Shipped)
    def shipped_once(row: Sent | None, event: Order.Shipped) -> Sent:
        known = row or Sent(order=event.meta.key)
        return known.evolve(times=known.times + 1)

    def rows() -> list[Any]:
        return connection.execute("SELECT * FROM read.sent ORDER BY 1").fetchall()

    def mails() -> list[str]:
        return [order for (order,) in connection.execute("SELECT order_id FROM mails ORDER BY 1")]

    desk = open_desk(Consumer("shipping", ordering="delta", version="sequence", effect=ship, registry=kinds))
    shipped = [envelope(f"o{number}") for number in range(5)]
    assert desk.process(*shipped) == ["applied"] * 5
    worker = Worker(bank, projection)
    worker.run_once()
    first = rows()
    assert len(first) == len(mails()) == 5
    for _ in range(2):
        worker.rebuild()
        assert desk.process(*shipped) == ["duplicate"] * 5
        assert rows() == first
    assert desk.process(envelope("o5")) == ["applied"]
    assert mails() == [f"o{number}" for number in range(6)]

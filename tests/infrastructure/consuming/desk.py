"""Deposits that arrive as messages, a consumer that adds them up, and a processor that a test feeds by hand."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import psycopg

from onefold import Aggregate, Consumer, Event, Message, Registry, Retry, Transaction, applies
from onefold.infrastructure.brokers import Delivery, Outgoing
from onefold.infrastructure.consuming.arrivals import Arrival, Reader
from onefold.infrastructure.consuming.session import Session

TABLE = """
    CREATE TABLE accounts (
        account text PRIMARY KEY, balance bigint NOT NULL, count bigint NOT NULL, last bigint NOT NULL,
        in_order boolean NOT NULL
    )
"""
# Not idempotent by itself: it adds to what is there.
DEPOSIT = """
    INSERT INTO accounts AS a VALUES (%(account)s, %(amount)s, 1, %(version)s, true)
    ON CONFLICT (account) DO UPDATE SET balance = a.balance + excluded.balance, count = a.count + 1,
        last = excluded.last, in_order = a.in_order AND excluded.last > a.last
"""
TYPE = "application/cloudevents+json"
EAGER = Retry(attempts=3, first=0.0, longest=0.0)


def envelope(account: str = "a", version: int = 1, amount: Any = 1, **more: Any) -> Outgoing:
    """Return a deposit as a CloudEvent; `more` are its attributes, None leaves one out."""
    attributes = {
        "specversion": "1.0",
        "id": f"{account}-{version}",
        "source": "/bank",
        "type": "bank.deposited",
        "subject": account,
        "sequence": str(version),
        "time": datetime.now(UTC).isoformat(),
        "idempotencykey": f"{account}-{version}",
        "data": {"amount": amount},
        **more,
    }
    body = json.dumps({name: value for name, value in attributes.items() if value is not None}).encode()
    return Outgoing(body, {"content-type": TYPE}, account)


def deposit(message: Message, tx: Transaction) -> None:
    values = {
        "account": message.subject,
        "amount": message.data["amount"],
        "version": int(message.extensions["sequence"]),
    }
    tx.execute(DEPOSIT, values)


def deposits(effect: Callable[[Any, Any], Any] = deposit, **options: Any) -> Consumer:
    """Return a consumer of deposits, each of which must be added once and in its turn."""
    options.setdefault("ordering", "delta")
    if options["ordering"] != "unordered":
        options.setdefault("version", "sequence")
    options.setdefault("retry", EAGER)
    return Consumer(options.pop("name", "deposits"), effect=effect, **options)


def balances(connection: psycopg.Connection[Any]) -> dict[str, int]:
    return dict(connection.execute("SELECT account, balance FROM accounts ORDER BY account").fetchall())


def disordered(connection: psycopg.Connection[Any]) -> list[str]:
    """Return the accounts whose deposits were not applied in order."""
    rows = connection.execute("SELECT account FROM accounts WHERE NOT in_order").fetchall()
    return [account for (account,) in rows]


def outcomes(connection: psycopg.Connection[Any], consumer: str = "deposits") -> dict[str, int]:
    """Return the counts in the database."""
    query = (
        "SELECT o.outcome, sum(o.count)::bigint FROM onefold.outcomes o JOIN onefold.consumers c ON c.id = o.consumer "
        "WHERE c.consumer = %s GROUP BY 1 ORDER BY 1"
    )
    return dict(connection.execute(query, (consumer,)).fetchall())


def dead_letters(connection: psycopg.Connection[Any]) -> list[tuple[str | None, int | None, str, str]]:
    """Return sequence, version, outcome and cause of those that are open."""
    query = "SELECT sequence, version, outcome, cause FROM onefold.dead_letters WHERE resolved_at IS NULL ORDER BY id"
    return connection.execute(query).fetchall()


def parked(connection: psycopg.Connection[Any]) -> list[tuple[str, int]]:
    return connection.execute(
        "SELECT sequence, version FROM onefold.parked ORDER BY sequence, version"
    ).fetchall()


counted = Registry()


class Tally(Aggregate, category="tally"):
    class Added(Event, name="tally.added", registry=counted):
        amount: int

    total: int = 0

    @applies(Added)
    def _added(self, event: Added) -> None:
        self.total += event.amount

    def add(self, amount: int) -> None:
        self.emit(self.Added(amount=amount))


def count(message: Message, tx: Transaction) -> None:
    key = message.subject or ""
    tally = tx.find(Tally, key) or Tally.new(key)
    tally.add(message.data["amount"])
    tx.save(tally)


def uuid7(at: datetime | None = None) -> str:
    milliseconds = int((at or datetime.now(UTC)).timestamp() * 1000)
    tail = uuid4().bytes
    return str(UUID(bytes=milliseconds.to_bytes(6, "big") + bytes([0x70 | tail[6] & 15]) + tail[7:]))


class Desk:
    """A processor with a session of its own; what it is told to try again is tried again at once."""

    def __init__(self, url: str, consumer: Consumer) -> None:
        self.reader = Reader(consumer)
        self.session = Session(url, consumer, self.reader)
        self.processor = self.session.processor
        self.connection = self.session.connection
        self.finished: list[Arrival] = []
        self.returned: list[Arrival] = []
        self.retried: list[float] = []
        self._todo: deque[Arrival] = deque()

    def done(self, arrivals: Sequence[Arrival]) -> None:
        self.finished.extend(arrivals)

    def again(self, arrival: Arrival, delay: float) -> None:
        self.retried.append(delay)
        self._todo.append(arrival)

    def back(self, arrival: Arrival) -> None:
        self.returned.append(arrival)

    def arrivals(self, *messages: Outgoing) -> list[Arrival]:
        return [
            self.reader.arrival(
                Delivery(message.body, message.headers, f"test@{number}", published_at=datetime.now(UTC))
            )
            for number, message in enumerate(messages)
        ]

    def process(self, *messages: Outgoing, limit: int = 5_000) -> list[str]:
        """Process as one batch; return the outcomes of this process in the order of arrival ("" for a broken one)."""
        arrivals = self.arrivals(*messages)
        self._todo = deque(arrivals)
        while self._todo:
            self.processor.process(self._todo, self, limit=limit)
        return ["" if arrival.outcome is None else arrival.outcome.value for arrival in arrivals]

    def close(self) -> None:
        self.session.close()


@contextmanager
def desk(url: str, consumer: Consumer) -> Iterator[Desk]:
    made = Desk(url, consumer)
    try:
        yield made
    finally:
        made.close()

"""A log of stock, projections of it, and what stands in their versions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import psycopg

from onefold.domain.event import Event, EventMeta
from onefold.domain.registry import Registry
from onefold.infrastructure.postgres.log import EventLog
from onefold.infrastructure.wakeup import Wakeup
from onefold.infrastructure.worker import Worker
from onefold.projections.projection import AnyProjection, Projection
from onefold.projections.row import Row

known = Registry()


class Put(Event, name="rebuild.put", registry=known):
    amount: int = 1
    shelf: str = "a"


class Cleared(Event, name="rebuild.cleared", registry=known):
    pass


class Looked(Event, name="rebuild.looked", registry=known):
    """Changes nothing: its fold returns the row that it was given."""


class Stock(Row, key="item"):
    item: str
    amount: int = 0
    price: Decimal = Decimal(0)
    shelves: tuple[str, ...] = ()


class Shelf(Row, key="shelf, amount"):
    shelf: str
    amount: int
    count: int = 0


def stock(fold: Callable[[Put], None] = lambda _: None, **given: Any) -> Projection[Stock]:
    """A row a stream."""
    made = Projection("stock", Stock, registry=known, **given)

    @made.on(Put)
    def put(row: Stock | None, event: Put) -> Stock:
        fold(event)
        row = row or Stock(item=event.meta.key)
        return row.evolve(
            amount=row.amount + event.amount,
            price=row.price + Decimal(event.amount) / 7,
            shelves=(*row.shelves, event.shelf)[-3:],
        )

    @made.on(Cleared)
    def cleared(row: Stock | None, event: Cleared) -> None:
        return None

    @made.on(Looked)
    def looked(row: Stock | None, event: Looked) -> Stock | None:
        return row

    return made


def shelves(**given: Any) -> Projection[Shelf]:
    """Rows that many streams lead to."""

    def key(event: Put) -> tuple[str, int] | None:
        return None if event.shelf == "none" else (event.shelf, event.amount % 3)

    made = Projection("shelves", Shelf, key=key, registry=known, **given)

    @made.on(Put)
    def put(row: Shelf | None, event: Put) -> Shelf | None:
        row = row or Shelf(shelf=event.shelf, amount=event.amount % 3)
        return None if row.count == 5 else row.evolve(count=row.count + 1)

    return made


class Shop:
    """A log of what is put on stock."""

    def __init__(self, url: str, log: EventLog, connection: psycopg.Connection[Any]) -> None:
        self.url = url
        self.log = log
        self.connection = connection
        self._versions: dict[str, int] = {}

    def put(self, *items: str, **given: Any) -> int:
        """Append one event for each item; return the last position."""
        return self.append(*((item, Put(**given)) for item in items))

    def append(self, *facts: tuple[str, Event], connection: psycopg.Connection[Any] | None = None) -> int:
        events = []
        for item, fact in facts:
            stream = item if "/" in item else f"stock/{item}"
            self._versions[stream] = self._versions.get(stream, 0) + 1
            events.append(fact.bound(EventMeta(stream, self._versions[stream])))
        return self.log.append(events, connection=connection)[-1].meta.position

    def fill(self, events: int, items: int) -> int:
        """Append many events, of which some clear and some only look."""
        facts: list[tuple[str, Event]] = []
        for number in range(events):
            item = f"i{number * 7919 % items:05}"
            if number % 23 == 22:
                facts.append((item, Cleared()))
            elif number % 11 == 10:
                facts.append((item, Looked()))
            else:
                facts.append((item, Put(amount=number % 100, shelf="abc"[number % 3])))
        position = 0
        for first in range(0, len(facts), 1000):
            position = self.append(*facts[first : first + 1000])
        return position

    def dump(self, name: str = "stock", schema: str = "read") -> list[Any]:
        """Every row as text, bytes and all, in the order of its key."""
        return [text for (text,) in self.all(f"SELECT t::text FROM {schema}.{name} t ORDER BY 1")]

    def fresh(self, projection: Projection[Any]) -> list[Any]:
        """What a fresh fold by a worker gives, in a table of its own."""
        name, projection.name = projection.name, "fresh"
        try:
            self.all("DELETE FROM onefold.checkpoints WHERE projection = 'fresh' RETURNING 1")
            self.connection.execute("DROP TABLE IF EXISTS read.fresh")
            Worker(self.url, projection).run_once()
            return self.dump("fresh")
        finally:
            projection.name = name

    def position(self, name: str = "stock", segment: int = 0) -> int | None:
        query = (
            f"SELECT position FROM onefold.checkpoints WHERE projection = '{name}' AND segment = {segment}"
        )
        rows = self.all(query)
        return rows[0][0] if rows else None

    def versions(self, name: str = "stock") -> dict[int, int]:
        """Positions by segment."""
        query = f"SELECT segment, position FROM onefold.checkpoints WHERE projection = '{name}'"
        return dict(self.all(query))

    def reached(self, position: int, name: str = "stock", seconds: float = 20) -> None:
        until(lambda: (self.position(name) or 0) >= position, seconds)

    def all(self, query: str) -> list[Any]:
        return self.connection.execute(query.encode()).fetchall()


def until(condition: Callable[[], Any], seconds: float = 20) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {seconds} s"
        time.sleep(0.005)
    return found


@contextmanager
def running(url: str, projection: AnyProjection) -> Iterator[Future[None]]:
    """A worker beside the body."""
    with Wakeup(url, "onefold_events") as wakeup, ThreadPoolExecutor(1) as threads:
        worker = Worker(url, projection, wakeup=wakeup)
        future = threads.submit(worker.run)
        try:
            yield future
        finally:
            worker.stop()

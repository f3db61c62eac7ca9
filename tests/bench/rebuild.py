"""A rebuild beside the serving table: 1,000,000 events of 100,000 orders, in a log of their own."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import psycopg
from psycopg import Connection
from psycopg.sql import SQL, Identifier

from onefold import Projection
from onefold.infrastructure.identity import new_event_id
from onefold.infrastructure.postgres.readmodel import make_tables
from onefold.infrastructure.rebuilding.rebuild import Rebuild
from onefold.infrastructure.worker import Worker
from onefold.projections.engine import Progress

from . import projecting
from .measure import Case
from .model import Summary, script, summary
from .peer import Peer
from .projecting import AGREE, COLUMNS, steps

EVENTS = 1_000_000
ORDERS_TO_EVENTS = 10
LOG = "rebuild_events"
SINGLY = 5_000
"""Events that are applied one by one, each in a transaction of its own."""

# The same log and folds as the projection's case, under a name of its own.
made = Projection("bench_rebuild", Summary, log=LOG)
made.folds.update(summary.folds)

SERVER_SIDE = """
INSERT INTO limit_rebuild
SELECT split_part(stream, '/', 2),
    coalesce((array_agg(data ->> 'status' ORDER BY version DESC) FILTER (WHERE type = 'bench.moved'))[1], 'placed'),
    max(data ->> 'customer_id'),
    max(occurred_at) FILTER (WHERE type = 'bench.placed'),
    (array_agg(occurred_at ORDER BY version DESC) FILTER (WHERE data ->> 'status' = 'delivered'))[1],
    coalesce(sum((data ->> 'amount')::numeric), 0),
    max(data ->> 'currency'), max((data ->> 'items')::bigint), max(version)
FROM onefold.rebuild_events GROUP BY stream
"""


def fill(connection: Connection[Any], events: int) -> None:
    """Make the log and put the events into it."""
    connection.execute("SELECT onefold.create_log('onefold', %s)", (LOG,))
    at = datetime(2026, 1, 1, tzinfo=UTC)
    copy = SQL("COPY {} (version, occurred_at, event_id, stream, type, data) FROM STDIN").format(
        Identifier("onefold", LOG)
    )
    with connection.cursor() as cursor, cursor.copy(copy) as rows:
        for number, version in steps(events, events // ORDERS_TO_EVENTS):
            kind, data = script(number, version)
            body = json.dumps(data, default=str)
            rows.write_row((version, at, new_event_id(), f"order/{number:08d}", f"bench.{kind}", body))
    connection.execute(SQL("VACUUM ANALYZE {}").format(Identifier("onefold", LOG)))


class Contenders:
    """Each rebuilds from nothing and returns its events per second."""

    def __init__(self, url: str, events: int) -> None:
        self._url = url
        self._events = events
        self.last = 0.0

    def onefold(self) -> float:
        """Build beside, verify a sample, swap."""
        self._checkpoint()
        rebuild = Rebuild(self._url, made)
        started = time.perf_counter()
        done = rebuild.run()
        elapsed = time.perf_counter() - started
        if not done.swapped or done.applied != self._events:
            raise AssertionError(f"expected {self._events} events and a swap, found {done}")
        self.last = self._events / elapsed
        return self.last

    def live(self) -> float:
        """Build the table with the engine, page by page."""
        self._empty()
        started = time.perf_counter()
        progress = Worker(self._url, made).run_once()
        elapsed = time.perf_counter() - started
        if progress.applied != self._events:
            raise AssertionError(f"expected {self._events} events applied, found {progress.applied}")
        return self._events / elapsed

    def singly(self) -> float:
        """Begin to build the table with one event a transaction."""
        self._empty()

        def stop(progress: Progress) -> None:
            if progress.applied >= SINGLY:
                worker.stop()

        worker = Worker(self._url, made, page=1, on_page=stop)
        started = time.perf_counter()
        progress = worker.run_once()
        return progress.applied / (time.perf_counter() - started)

    def limit(self) -> float:
        """One statement on the server, and the primary key afterwards."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute("DROP TABLE IF EXISTS limit_rebuild")
            columns = COLUMNS.replace("PRIMARY KEY", "NOT NULL")
            connection.execute(f"CREATE TABLE limit_rebuild ({columns}) WITH (fillfactor = 70)")
            connection.execute("CHECKPOINT")
            started = time.perf_counter()
            connection.execute(SERVER_SIDE)
            connection.execute("ALTER TABLE limit_rebuild ADD PRIMARY KEY (order_id)")
            elapsed = time.perf_counter() - started
            ours, theirs = (
                connection.execute(SQL(AGREE).format(name)).fetchone()
                for name in (Identifier("read", made.name), Identifier("limit_rebuild"))
            )
            if ours != theirs:
                raise AssertionError(f"the contenders disagree: {ours} and {theirs}")
        return self._events / elapsed

    def _empty(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute("DELETE FROM onefold.checkpoints WHERE projection = %s", (made.name,))
            make_tables(connection, made)
        self._checkpoint()

    def _checkpoint(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute("CHECKPOINT")


def cases(url: str, peer: Peer, events: int, *, fill_peer: bool = True) -> list[Case]:
    """Fill the logs and return the cases; the second has the figure of the first beside other ways of Onefold."""
    with psycopg.connect(url, autocommit=True) as connection:
        fill(connection, events)
    if fill_peer:
        projecting.fill_peer(peer)
    contenders = Contenders(url, events)
    return [
        Case(
            "rebuild",
            "events/s",
            {
                "onefold": contenders.onefold,
                "eventsourcing": lambda: projecting.runner(url, peer),
                "limit": contenders.limit,
            },
        ),
        Case(
            "rebuild, beside other ways",
            "events/s",
            {
                "onefold": lambda: contenders.last,
                "live engine": contenders.live,
                "one event a transaction": contenders.singly,
            },
        ),
    ]

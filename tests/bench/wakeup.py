"""Wake-up: from the return of an append to its row in the read model, one event at a time."""

from __future__ import annotations

import statistics
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import psycopg
from eventsourcing.projection import ProjectionRunner

from onefold.infrastructure.identity import new_event_id
from onefold.infrastructure.postgres.log import EventLog
from onefold.infrastructure.postgres.pool import open_pool
from onefold.infrastructure.postgres.readmodel import prepare
from onefold.infrastructure.postgres.repository import Repository
from onefold.infrastructure.wakeup import Wakeup
from onefold.infrastructure.worker import Worker

from .append import DATA, PLAIN
from .model import Order, PeerOrder, PeerShop, summary
from .peer import Peer
from .projecting import COLUMNS, PeerProjection, PeerSummary

PAUSE = 0.012
TIMES, WARM_UP = 400, 20

Append = Callable[[], str]
"""Appends one event and returns the id of the row that it leads to."""


def onefold(url: str) -> tuple[float, float]:
    """Return median and 99th percentile for a worker that runs beside the writer, in milliseconds."""
    with open_pool(url, size=1) as pool, psycopg.connect(url, autocommit=True) as connection:
        prepare(connection, summary)
        log = EventLog(pool)
        repository = Repository(log, Order)

        def append() -> str:
            order = Order.new(str(uuid.uuid4()))
            order.emit(Order.Placed(**DATA), at=datetime.now(UTC))
            repository.save(order)
            return order.key

        with Wakeup(url, log.channel) as wakeup:
            worker = Worker(url, summary, wakeup=wakeup)
            thread = threading.Thread(target=worker.run)
            thread.start()
            try:
                return delays(connection, "SELECT 1 FROM read.bench_summary WHERE order_id = %s", append)
            finally:
                worker.stop()
                thread.join()


def peer(url: str, library: Peer) -> tuple[float, float]:
    """Return the same for the library's ProjectionRunner."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS peer_summary, peersummary_tracking")
        with ProjectionRunner(
            application_class=PeerShop,
            projection_class=PeerProjection,
            view_class=PeerSummary,
            env=library.env,
        ) as running:
            last = running.app.recorder.max_notification_id()
            while last is not None and not running.projection.view.has_tracking_id(running.app.name, last):
                time.sleep(0.05)

            def append() -> str:
                order = PeerOrder(**DATA)
                running.app.save(order)
                return str(order.id)

            return delays(connection, "SELECT 1 FROM peer_summary WHERE order_id = %s", append)


def limit(url: str) -> tuple[float, float]:
    """Return the same for a plain insert that notifies, and a listener that writes the row by one statement."""
    insert = (
        "INSERT INTO plain_events (version, occurred_at, event_id, stream, type, data)"
        " VALUES (1, %s, %s, %s, 'bench.placed', '{}') RETURNING (SELECT pg_notify('plain', %s) IS NULL)"
    )
    with psycopg.connect(url, autocommit=True) as connection, psycopg.connect(url, autocommit=True) as writer:
        connection.execute(PLAIN)
        connection.execute("DROP TABLE IF EXISTS wakeup_limit")
        connection.execute(f"CREATE TABLE wakeup_limit ({COLUMNS}) WITH (fillfactor = 70)")

        def append() -> str:
            key = str(uuid.uuid4())
            writer.execute(insert, (datetime.now(UTC), new_event_id(), key, key), prepare=True)
            return key

        with listening(url):
            return delays(connection, "SELECT 1 FROM wakeup_limit WHERE order_id = %s", append)


@contextmanager
def listening(url: str) -> Iterator[None]:
    """Write a row for every notification, in a thread of its own."""
    stop = threading.Event()

    def listen() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("LISTEN plain")
            ready.set()
            while not stop.is_set():
                for notify in list(connection.notifies(timeout=0.5, stop_after=1)):
                    connection.execute(
                        "INSERT INTO wakeup_limit (order_id, version) VALUES (%s, 1)",
                        (notify.payload,),
                        prepare=True,
                    )

    ready = threading.Event()
    thread = threading.Thread(target=listen)
    thread.start()
    ready.wait()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def delays(connection: psycopg.Connection[Any], seen: str, append: Append) -> tuple[float, float]:
    """Return median and 99th percentile in milliseconds; the row is looked for every 0.2 ms or so.

    Looking without a pause would keep both the interpreter and a core of the server from the worker.
    """
    found: list[float] = []
    for number in range(TIMES + WARM_UP):
        key = append()
        appended = time.perf_counter()
        while connection.execute(seen.encode(), (key,), prepare=True).fetchone() is None:
            if time.perf_counter() - appended > 30:
                raise AssertionError("the row did not appear in 30 s")
            time.sleep(0.0002)
        if number >= WARM_UP:
            found.append((time.perf_counter() - appended) * 1000)
        time.sleep(PAUSE)
    return statistics.median(found), statistics.quantiles(found, n=100)[98]

"""Consumption with ledger and version guard, of the events that the projection benchmark folds: as CloudEvents."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal
from uuid import UUID

import psutil
import psycopg

from onefold import Consumer, Projection
from onefold.infrastructure.consuming.consumption import Consumption
from onefold.infrastructure.identity import new_event_id

from . import projecting
from .measure import Case
from .model import Order, Summary, moved, paid, placed, script
from .projecting import EVENTS, ORDERS, steps

FLAT = 1_000_000


def projection(name: str) -> Projection[Summary]:
    """Return the benchmark's projection under another name."""
    twin = Projection(name, Summary)
    twin.on(Order.Placed)(placed)
    twin.on(Order.Paid)(paid)
    twin.on(Order.Moved)(moved)
    return twin


def write(path: Path, events: int, orders: int) -> None:
    """Write the events as structured CloudEvents, a line each, with a UUIDv7 as key."""
    at = "2026-01-01T00:00:00Z"
    with path.open("w") as lines:
        for number, version in steps(events, orders):
            kind, data = script(number, version)
            event = {
                "specversion": "1.0",
                "id": str(new_event_id()),
                "source": "bench",
                "type": f"bench.{kind}",
                "subject": f"order/{number:08d}",
                "time": at,
                "sequence": str(version),
                "datacontenttype": "application/json",
                "data": data,
            }
            lines.write(json.dumps(event, default=str) + "\n")


@contextmanager
def cases(url: str) -> Iterator[list[Case]]:
    """Return a case for each ledger; the limit is the projection engine's own rate on the same events in the log.

    The log must hold the events of the projection benchmark, and nothing else.
    """
    with tempfile.TemporaryDirectory(prefix="onefold-bench-") as folder:
        path = Path(folder) / "events.jsonl"
        write(path, EVENTS, ORDERS)

        def of(name: str, ledger: Literal["any", "time"]) -> Case:
            # The engine comes first: the consumer's rows are compared with its own.
            return Case(
                name,
                "messages/s",
                {"limit": lambda: projecting.onefold(url), "onefold": lambda: consume(url, path, ledger)},
            )

        yield [of("consume, time-ordered keys", "time"), of("consume, any keys", "any")]


def consume(url: str, path: Path, ledger: Literal["any", "time"]) -> float:
    """Return messages per second of one consumer that folds the file into an empty read model."""
    name = f"bench_{ledger}_{UUID(int=time.time_ns()).hex[-12:]}"
    model = projection(name)
    consumer = Consumer(name, ordering="delta", fold=model, key="id", version="sequence", ledger=ledger)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CHECKPOINT")
    consumption = Consumption(url, consumer, f"file:{path}", once=True, batch=20_000, messages=60_000)
    started = time.perf_counter()
    consumption.run()
    elapsed = time.perf_counter() - started
    with psycopg.connect(url, autocommit=True) as connection:
        found, expected = (
            connection.execute(f"SELECT count(*), sum(version), sum(paid) FROM read.{table}").fetchone()
            for table in (name, "bench_summary")
        )
        if found != expected:
            raise AssertionError(f"expected the rows of the engine, {expected}, found {found}")
        connection.execute(f"DROP TABLE read.{name}")
    return EVENTS / elapsed


def memory(url: str, messages: int = FLAT) -> list[tuple[int, float]]:
    """Consume many messages; return, every tenth of them, how many were received and the megabytes of this process."""
    pairs: list[tuple[int, float]] = []
    with tempfile.TemporaryDirectory(prefix="onefold-bench-") as folder:
        path = Path(folder) / "events.jsonl"
        write(path, messages, messages // 10)
        name = f"bench_memory_{UUID(int=time.time_ns()).hex[-12:]}"
        consumer = Consumer(
            name, ordering="delta", fold=projection(name), key="id", version="sequence", ledger="time"
        )
        consumption = Consumption(url, consumer, f"file:{path}", once=True, batch=5_000)
        process = psutil.Process()
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.05):
                received = consumption.intake.received
                if received >= (len(pairs) + 1) * messages // 10:
                    pairs.append((received, process.memory_info().rss / 2**20))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            consumption.run()
        finally:
            over.set()
            watcher.join()
    return pairs

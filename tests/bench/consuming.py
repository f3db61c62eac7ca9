"""Consumption with ledger and version guard, of the events that the projection benchmark folds: as CloudEvents."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Literal
from uuid import UUID

import msgspec
import psutil
import psycopg
from psycopg.sql import SQL, Identifier

from onefold import Consumer, Projection
from onefold.infrastructure.consuming.consumption import Consumption
from onefold.infrastructure.identity import new_event_id
from onefold.infrastructure.postgres.columns import PACK_POSITION, PACK_TEXT, pack_uuids
from onefold.infrastructure.postgres.pool import configure

from . import projecting
from .measure import Case
from .model import Order, Summary, moved, paid, placed, script
from .projecting import AGREE, COLUMNS, EVENTS, ORDERS, PAGE, steps

FLAT = 1_000_000

BARE = b"""
WITH given AS (
    SELECT * FROM unnest(%b::uuid[], %b::text[], %b::bigint[], %b::text[], %b::bigint[], %b::text[], %b::text[],
        %b::text[], %b::text[])
        AS g (key, order_id, version, at, items, customer_id, currency, status, amount)
), claimed AS (
    INSERT INTO bare_claims (key) SELECT key FROM given ORDER BY key ON CONFLICT DO NOTHING RETURNING key
)
INSERT INTO bare_summary AS t
SELECT order_id, (array_agg(status ORDER BY version DESC) FILTER (WHERE status IS NOT NULL))[1],
    max(customer_id), (max(at) FILTER (WHERE status = 'placed'))::timestamptz,
    (max(at) FILTER (WHERE status = 'delivered'))::timestamptz, coalesce(sum(amount::numeric), 0), max(currency),
    max(items), max(version)
FROM given JOIN claimed USING (key) GROUP BY order_id ORDER BY order_id
ON CONFLICT (order_id) DO UPDATE SET status = coalesce(excluded.status, t.status), paid = t.paid + excluded.paid,
    version = excluded.version, delivered_at = coalesce(excluded.delivered_at, t.delivered_at)
"""


class _Data(msgspec.Struct, gc=False):
    items: int | None = None
    customer_id: str | None = None
    currency: str | None = None
    status: str | None = None
    amount: str | None = None


class _Envelope(msgspec.Struct, gc=False):
    id: str
    type: str
    subject: str
    time: str
    sequence: str
    data: _Data


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
            # The engine comes first: the rows of the others are compared with its own.
            return Case(
                name,
                "messages/s",
                {
                    "limit": lambda: projecting.onefold(url),
                    "onefold": lambda: consume(url, path, ledger),
                    "physical limit": lambda: bare(url, path),
                },
            )

        yield [of("consume, time-ordered keys", "time"), of("consume, any keys", "any")]


def bare(url: str, path: Path) -> float:
    """Return messages per second of a loop with no guard but the key: what must be done, and nothing else.

    Lines are read and decoded while the server claims the keys of those before, and folds them, in one statement. There
    is no fingerprint, no order, no retry, no acknowledgement, and the fold is written in SQL.
    """
    decode = msgspec.json.Decoder(_Envelope).decode

    def page(lines: tuple[bytes, ...]) -> list[object]:
        found = [decode(line) for line in lines]
        data = [each.data for each in found]
        return [
            pack_uuids([UUID(each.id).bytes for each in found]),
            PACK_TEXT([each.subject.partition("/")[2] for each in found]),
            PACK_POSITION([int(each.sequence) for each in found]),
            PACK_TEXT([each.time for each in found]),
            PACK_POSITION([each.items for each in data]),
            PACK_TEXT([each.customer_id for each in data]),
            PACK_TEXT([each.currency for each in data]),
            PACK_TEXT(["placed" if each.type == "bench.placed" else each.data.status for each in found]),
            PACK_TEXT([each.amount for each in data]),
        ]

    with psycopg.connect(url, autocommit=True) as connection, path.open("rb") as lines:
        configure(connection)
        connection.execute("DROP TABLE IF EXISTS bare_claims, bare_summary")
        connection.execute("CREATE TABLE bare_claims (key uuid PRIMARY KEY)")
        connection.execute(f"CREATE TABLE bare_summary ({COLUMNS}) WITH (fillfactor = 70)")
        connection.execute("CHECKPOINT")
        started = time.perf_counter()
        with ThreadPoolExecutor(1) as server:
            work = None
            while taken := tuple(islice(lines, PAGE)):
                values = page(taken)
                if work is not None:
                    work.result()
                work = server.submit(connection.execute, BARE, values, prepare=True)
            if work is not None:
                work.result()
        elapsed = time.perf_counter() - started
        ours, theirs = (
            connection.execute(SQL(AGREE).format(name)).fetchone()
            for name in (Identifier("read", "bench_summary"), Identifier("bare_summary"))
        )
        if ours != theirs:
            raise AssertionError(f"expected the rows of the engine, {ours}, found {theirs}")
    return EVENTS / elapsed


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

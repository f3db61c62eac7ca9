"""Measure searching in a large log: `python tests/bench/searching.py --events 10000000`.

Makes a log of made-up orders on a private server with durable defaults, measures appends without and with the indexes
for searching, and then pages of each kind of search, histories and traces. `--plans` prints how each page is read.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg

sys.path.insert(0, str(Path(__file__).parents[1]))

from onefold.infrastructure.audit.field import field, field_of
from onefold.infrastructure.audit.indexes import make_indexes
from onefold.infrastructure.audit.search import Criteria, _Query, search
from onefold.infrastructure.audit.trace import trace
from onefold.infrastructure.embedded import EmbeddedServer
from onefold.infrastructure.history import history
from onefold.infrastructure.postgres.migrate import migrate

AT_ONCE = 10_000
ORDERS = """
INSERT INTO onefold.events (version, occurred_at, event_id, stream, type, data, metadata)
SELECT step, clock_timestamp(), gen_random_uuid(), 'order/' || id,
    (ARRAY['order.placed', 'order.payment_received', 'order.confirmed', 'order.shipped', 'order.delivered'])[step],
    CASE step
        WHEN 1 THEN jsonb_build_object('customer_id', 'c' || (random() * %(customers)s)::int, 'currency', 'EUR',
            'placed_on', '2026-03-01', 'items', jsonb_build_array(jsonb_build_object(
                'item_id', '1', 'product_id', 'p' || (random() * 900)::int,
                'price', jsonb_build_object('amount', '24.90', 'currency', 'EUR'),
                'freight', jsonb_build_object('amount', '0', 'currency', 'EUR'))))
        WHEN 2 THEN jsonb_build_object('payment_id', '1', 'amount',
            jsonb_build_object('amount', round((random() * 1000)::numeric, 2)::text, 'currency', 'EUR'))
        ELSE '{}'
    END,
    jsonb_build_object('actor', 'u' || (random() * 200)::int, 'correlation', id, 'causation', gen_random_uuid())
FROM (SELECT gen_random_uuid() AS id FROM generate_series(1, %(orders)s) OFFSET 0) made
CROSS JOIN generate_series(1, 5) step
ORDER BY id, step
"""


def append(connection: psycopg.Connection[Any], events: int, at_once: int = AT_ONCE) -> float:
    """Append so many events, so many in a transaction, and return events a second."""
    started = time.perf_counter()
    for _ in range(max(1, events // at_once)):
        connection.execute(ORDERS, {"orders": at_once // 5, "customers": 50_000})
    return events / (time.perf_counter() - started)


class Log:
    """The log that is searched: samples of what is in it."""

    def __init__(self, connection: psycopg.Connection[Any], chance: random.Random) -> None:
        self.connection = connection
        self._chance = chance
        query = "SELECT position, stream, metadata ->> 'correlation' FROM onefold.events WHERE position = %s"
        row = connection.execute("SELECT max(position) FROM onefold.events").fetchone()
        assert row is not None
        self._sample = [
            found
            for _ in range(2_000)
            if (found := connection.execute(query, (chance.randint(1, row[0]),)).fetchone()) is not None
        ]
        found = connection.execute("SELECT min(occurred_at), max(occurred_at) FROM onefold.events").fetchone()
        assert found is not None
        self._first, self._last = found

    def some(self, place: int) -> Any:
        return self._chance.choice(self._sample)[place]

    def any_time(self) -> datetime:
        return self._first + (self._last - self._first) * self._chance.random()

    def number(self, below: int) -> int:
        return self._chance.randrange(below)


def searches(log: Log) -> dict[str, Callable[[], tuple[Criteria, dict[str, Any]]]]:
    """The kinds of pages that are measured."""

    def actor() -> Any:
        return field("metadata.actor", f"u{log.number(200)}")

    return {
        "type, anywhere": lambda: (Criteria(types=("order.placed",)), {"after": log.some(0)}),
        "type, newest first": lambda: (Criteria(types=("order.shipped",)), {"newest_first": True}),
        "type that is not there": lambda: (Criteria(types=("order.nothing",)), {}),
        "category, anywhere": lambda: (Criteria(category="order"), {"after": log.some(0)}),
        "occurred since": lambda: (Criteria(since=log.any_time()), {}),
        "recorded before, newest first": lambda: (
            Criteria(until=log.any_time(), clock="recorded"),
            {"newest_first": True},
        ),
        "type and time": lambda: (Criteria(types=("order.placed",), since=log.any_time()), {}),
        "actor, anywhere": lambda: (Criteria(fields=(actor(),)), {"after": log.some(0)}),
        "actor that is not there": lambda: (Criteria(fields=(field("metadata.actor", "nobody"),)), {}),
        "actor and time": lambda: (Criteria(fields=(actor(),), since=log.any_time()), {}),
        "correlation": lambda: (Criteria(fields=(field("metadata.correlation", log.some(2)),)), {}),
        "field with an index": lambda: (
            Criteria(fields=(field_of(f"data.customer_id=c{log.number(50_000)}"),)),
            {},
        ),
        "field, --payload": lambda: (
            Criteria(fields=(field_of(f"data.amount.amount={log.number(100_000) / 100}"),)),
            {},
        ),
        "element of a list, --payload": lambda: (
            Criteria(fields=(field_of(f"data.items[].product_id=p{log.number(900)}"),)),
            {"after": log.some(0)},
        ),
    }


def measure(name: str, work: Callable[[], object], tries: int) -> None:
    taken = []
    for _ in range(tries):
        started = time.perf_counter()
        work()
        taken.append((time.perf_counter() - started) * 1_000)
    taken.sort()
    print(
        f"{name:34} p50 {taken[tries // 2]:9.2f} ms   p99 {taken[max(0, tries * 99 // 100 - 1)]:9.2f} ms",
        flush=True,
    )


def show_plan(connection: psycopg.Connection[Any], criteria: Criteria, options: dict[str, Any]) -> None:
    query = _Query(connection, criteria, options.get("after"), options.get("newest_first", False), "events")
    text, values = query.composed()
    for (line,) in connection.execute(b"EXPLAIN (ANALYZE, COSTS OFF) " + text, {**values, "limit": 51}):
        print("    ", line)


def run(url: str, events: int, tries: int, *, payload: bool, plans: bool) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        migrate(connection)
        print(f"{append(connection, events):,.0f} events/s while the log was made", flush=True)
        connection.execute("VACUUM ANALYZE onefold.events")
        for at_once in (5, 500):
            print(
                f"{append(connection, 100 * at_once, at_once):,.0f} events/s, {at_once} at once, without indexes"
            )
        started = time.perf_counter()
        for each in make_indexes(connection, fields=["data.customer_id"], payload=payload):
            print(f"    {each.of}: {each.size / 1e6:,.0f} MB")
        print(f"made in {time.perf_counter() - started:,.0f} s", flush=True)
        connection.execute("VACUUM ANALYZE onefold.events")
        for at_once in (5, 500):
            print(
                f"{append(connection, 100 * at_once, at_once):,.0f} events/s, {at_once} at once, with indexes"
            )
        log = Log(connection, random.Random(1))
        for name, make in searches(log).items():
            if "--payload" in name and not payload:
                continue

            def page(make: Callable[[], tuple[Criteria, dict[str, Any]]] = make) -> None:
                criteria, options = make()
                search(connection, criteria, limit=50, **options)

            measure(name, page, tries)
            if plans:
                show_plan(connection, *make())
        measure("history", lambda: list(history(connection, log.some(1))), tries)
        measure("trace of a correlation", lambda: trace(connection, log.some(2)), tries)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--tries", type=int, default=200)
    parser.add_argument("--payload", action="store_true", help="also index all data")
    parser.add_argument("--plans", action="store_true", help="print how each page is read")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="onefold-bench-") as home:
        Path(home).chmod(0o711)
        with EmbeddedServer(Path(home)).hold() as url:
            run(url, chosen.events, chosen.tries, payload=chosen.payload, plans=chosen.plans)


if __name__ == "__main__":
    main()

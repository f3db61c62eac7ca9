"""Projection of a log into rows like those of order_summary: 200,000 events of 20,000 orders."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import psycopg
from eventsourcing.domain import DomainEvent
from eventsourcing.persistence import Tracking
from eventsourcing.postgres import PostgresTrackingRecorder
from eventsourcing.projection import Projection, ProjectionRunner
from psycopg import Connection
from psycopg.sql import SQL, Identifier

from onefold.infrastructure.identity import new_event_id
from onefold.infrastructure.postgres.readmodel import make_tables
from onefold.infrastructure.worker import Worker

from .measure import Case
from .model import PeerOrder, PeerShop, script, summary
from .peer import Peer

EVENTS, ORDERS, PEER_EVENTS = 200_000, 20_000, 20_000
PAGE = 5_000

COLUMNS = """
    order_id text COLLATE "C" PRIMARY KEY, status text, customer_id text, placed_at timestamptz,
    delivered_at timestamptz, paid numeric, currency text, items bigint, version bigint
"""

SERVER_SIDE = """
MERGE INTO limit_summary t
USING (
    SELECT split_part(stream, '/', 2) AS order_id, max(version) AS version,
        (array_agg(data ->> 'status' ORDER BY position DESC) FILTER (WHERE type = 'bench.moved'))[1] AS status,
        max(data ->> 'customer_id') AS customer_id,
        max(occurred_at) FILTER (WHERE type = 'bench.placed') AS placed_at,
        (array_agg(occurred_at ORDER BY position DESC) FILTER (WHERE data ->> 'status' = 'delivered'))[1]
            AS delivered_at,
        coalesce(sum((data ->> 'amount')::numeric), 0) AS paid,
        max(data ->> 'currency') AS currency, max((data ->> 'items')::bigint) AS items
    FROM onefold.events WHERE position > %(after)s AND position <= %(upto)s GROUP BY 1
) s ON t.order_id = s.order_id
WHEN MATCHED THEN UPDATE SET status = coalesce(s.status, t.status), paid = t.paid + s.paid, version = s.version,
    delivered_at = coalesce(s.delivered_at, t.delivered_at)
WHEN NOT MATCHED THEN INSERT VALUES (s.order_id, coalesce(s.status, 'placed'), s.customer_id, s.placed_at,
    s.delivered_at, s.paid, s.currency, s.items, s.version)
"""

AGREE = """
SELECT count(*), sum(paid), sum(version), sum(items), md5(string_agg(order_id || status || paid || version
    || customer_id || coalesce(delivered_at::text, ''), ',' ORDER BY order_id)) FROM {}
"""


def steps(events: int, orders: int) -> Iterator[tuple[int, int]]:
    """Yield order number and version of each event: orders in random turn, the versions of each in order."""
    turns = [number % orders for number in range(events)]
    random.Random(20261130).shuffle(turns)
    versions = [0] * orders
    for number in turns:
        versions[number] += 1
        yield number, versions[number]


def fill(connection: Connection[Any]) -> None:
    """Put the events into the log."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    copy = "COPY onefold.events (version, occurred_at, event_id, stream, type, data) FROM STDIN"
    with connection.cursor() as cursor, cursor.copy(copy) as rows:
        for number, version in steps(EVENTS, ORDERS):
            kind, data = script(number, version)
            rows.write_row(
                (
                    version,
                    at,
                    new_event_id(),
                    f"order/{number:08d}",
                    f"bench.{kind}",
                    json.dumps(data, default=str),
                )
            )
    connection.execute("VACUUM ANALYZE onefold.events")


def fill_peer(peer: Peer) -> None:
    """Put the first events, of fewer orders, into the library's log."""
    with peer.application() as application:
        known: dict[int, PeerOrder] = {}
        for number, version in steps(PEER_EVENTS, ORDERS // 10):
            kind, data = script(number, version)
            if kind == "placed":
                known[number] = PeerOrder(**data)
            elif kind == "paid":
                known[number].pay(**data)
            else:
                known[number].move(**data)
        for order in known.values():
            application.save(order)


def case(url: str, peer: Peer) -> Case:
    """Fill both logs and return the case."""
    with psycopg.connect(url, autocommit=True) as connection:
        fill(connection)
    fill_peer(peer)
    return Case(
        "projection",
        "events/s",
        {
            "onefold": lambda: onefold(url),
            "eventsourcing": lambda: runner(url, peer),
            "limit": lambda: limit(url),
        },
    )


def onefold(url: str) -> float:
    """Return events per second of a worker that builds the read model from nothing."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DELETE FROM onefold.checkpoints WHERE projection = %s", (summary.name,))
        make_tables(connection, summary)
        connection.execute("CHECKPOINT")
    worker = Worker(url, summary)
    started = time.perf_counter()
    progress = worker.run_once()
    elapsed = time.perf_counter() - started
    if progress.applied != EVENTS:
        raise AssertionError(f"expected {EVENTS} events applied, found {progress.applied}")
    return EVENTS / elapsed


def limit(url: str) -> float:
    """Return events per second of one server-side statement for every 5,000 events."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS limit_summary")
        connection.execute(f"CREATE TABLE limit_summary ({COLUMNS}) WITH (fillfactor = 70)")
        connection.execute("CHECKPOINT")
        started = time.perf_counter()
        for after in range(0, EVENTS, PAGE):
            connection.execute(SERVER_SIDE, {"after": after, "upto": after + PAGE})
        elapsed = time.perf_counter() - started
        ours, theirs = (
            connection.execute(SQL(AGREE).format(name)).fetchone()
            for name in (Identifier("read", summary.name), Identifier("limit_summary"))
        )
        if ours is not None and ours[0] and ours != theirs:
            raise AssertionError(f"the contenders disagree: {ours} and {theirs}")
    return EVENTS / elapsed


class PeerSummary(PostgresTrackingRecorder):
    """The library's way: a view that is changed by one upsert an event, with the position in the same transaction."""

    def __init__(self, datastore: Any, **kwargs: Any) -> None:
        super().__init__(datastore, **kwargs)
        self.check_identifier_length("peer_summary")
        self.sql_create_statements.append(
            SQL(f"CREATE TABLE IF NOT EXISTS peer_summary ({COLUMNS}) WITH (fillfactor = 70)")
        )

    def apply(self, tracking: Tracking, statement: str, values: dict[str, Any]) -> None:
        """Run one statement and track, in one transaction."""
        with self.datastore.transaction(commit=True) as cursor:
            cursor.execute(statement, values, prepare=True)
            self._insert_tracking(cursor, tracking)


PLACED = """
INSERT INTO peer_summary (order_id, status, customer_id, placed_at, paid, currency, items, version)
VALUES (%(id)s, 'placed', %(customer_id)s, %(at)s, 0, %(currency)s, %(items)s, %(version)s)
ON CONFLICT (order_id) DO NOTHING
"""
PAID = "UPDATE peer_summary SET paid = paid + %(amount)s, version = %(version)s WHERE order_id = %(id)s"
MOVED = """
UPDATE peer_summary SET status = %(status)s, version = %(version)s,
    delivered_at = CASE WHEN %(status)s = 'delivered' THEN %(at)s ELSE delivered_at END
WHERE order_id = %(id)s
"""


class PeerProjection(Projection[PeerSummary]):
    """The library's projection of the same rows."""

    name = "peersummary"

    def process_event(self, domain_event: DomainEvent, tracking: Tracking) -> None:
        """Apply one event."""
        values = {
            **vars(domain_event),
            "id": str(domain_event.originator_id),
            "version": domain_event.originator_version,
            "at": domain_event.timestamp,
        }
        for name, statement in (("Placed", PLACED), ("Paid", PAID), ("Moved", MOVED)):
            if type(domain_event).__name__ == name:
                self.view.apply(tracking, statement, values)


def runner(url: str, peer: Peer) -> float:
    """Return events per second of the library's ProjectionRunner from nothing."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS peer_summary, peersummary_tracking")
        connection.execute("CHECKPOINT")
    with peer.application() as application:
        last = application.recorder.max_notification_id()
    started = time.perf_counter()
    with ProjectionRunner(
        application_class=PeerShop, projection_class=PeerProjection, view_class=PeerSummary, env=peer.env
    ) as running:
        while True:
            try:
                running.wait(last, timeout=5)
                break
            except TimeoutError:
                continue
        elapsed = time.perf_counter() - started
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute("SELECT sum(version) FROM peer_summary").fetchone()
        paid = connection.execute("SELECT sum(paid) FROM peer_summary").fetchone()
    expected = sum(
        Decimal(str(script(number, version)[1].get("amount", 0)))
        for number, version in steps(PEER_EVENTS, ORDERS // 10)
    )
    if found is None or int(found[0]) != PEER_EVENTS or paid is None or paid[0] != expected:
        raise AssertionError(f"expected {PEER_EVENTS} and {expected}, found {found} and {paid}")
    return PEER_EVENTS / elapsed

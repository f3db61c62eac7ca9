"""Appends while a sealer follows, beside those that nobody seals and those that chain hashes; verification."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import psycopg

from onefold.infrastructure.connection import connected
from onefold.infrastructure.postgres.log import EventLog
from onefold.infrastructure.postgres.pool import open_pool
from onefold.infrastructure.postgres.repository import Repository
from onefold.infrastructure.sealing.sealer import Sealer
from onefold.infrastructure.sealing.verifying import verify

from .append import DATA
from .measure import Case, rate_of_threads
from .model import Order

CHAINED = "chained_events"

# What an append would do that chains hashes itself: single events only, which is all that is measured.
CHAIN_ON_WRITE = """
CREATE FUNCTION chain_on_write() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO onefold.chained_events_hashes (position, previous, version, stream, hash, checks)
    SELECT a.position, p.position, a.version, a.stream,
        sha256('\\x00'::bytea || coalesce(h.hash, sha256('')) || sha256('onefold event 1'::bytea
            || int4send(8) || int8send(a.position) || int4send(8) || int8send(a.version)
            || int4send(8) || timestamptz_send(a.occurred_at) || int4send(8) || timestamptz_send(a.recorded_at)
            || int4send(16) || uuid_send(a.event_id) || int4send(4) || int4send(a.schema_version)
            || int4send(octet_length(a.stream)) || textsend(a.stream)
            || int4send(octet_length(a.type)) || textsend(a.type)
            || int4send(octet_length(jsonb_send(a.data))) || jsonb_send(a.data)
            || coalesce(jsonb_send(a.metadata), int4send(-1)))), ''
    FROM appended a
    LEFT JOIN onefold.chained_events p ON p.stream = a.stream AND p.version = a.version - 1
    LEFT JOIN onefold.chained_events_hashes h ON h.position = p.position;
    RETURN NULL;
END
$$;
CREATE TRIGGER chain_on_write AFTER INSERT ON onefold.chained_events REFERENCING NEW TABLE AS appended
    FOR EACH STATEMENT EXECUTE FUNCTION chain_on_write();
"""
FILL = """
INSERT INTO onefold.events (version, occurred_at, event_id, stream, type, data, metadata)
SELECT 1 + i %% 5, clock_timestamp(), gen_random_uuid(), %s || (i / 5), 'bench.placed',
    jsonb_build_object('customer_id', 'customer-' || i, 'currency', 'EUR', 'total', (i %% 9999)::numeric / 100),
    '{"actor": "ada"}'
FROM generate_series(0, %s - 1) i
"""


def cases(url: str, *, events: int = 4000, verified: int = 100_000) -> list[Case]:
    """Return appends by 4 writers and by 1, and the verification of a log of `verified` events or more."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT onefold.create_log('onefold', %s)", (CHAINED,))
        connection.execute("SELECT onefold.create_hashes(%s)", (CHAINED,))
        connection.execute(CHAIN_ON_WRITE)
        connection.execute(FILL, (f"fill-{uuid.uuid4()}/", verified))
    return [
        *(
            Case(
                f"append and seal, {writers} writer{'s' if writers > 1 else ''}",
                "events/s",
                {
                    "onefold": lambda writers=writers: sealed(url, writers, events),
                    "not sealed": lambda writers=writers: appended(url, "events", writers, events),
                    "chained on write": lambda writers=writers: appended(url, CHAINED, writers, events),
                },
            )
            for writers in (1, 4)
        ),
        Case("verify", "events/s", {"onefold": lambda: verified_rate(url)}),
    ]


def appended(url: str, log: str, writers: int, events: int) -> float:
    """Return saves per second to a log."""
    with open_pool(url, size=writers) as pool:
        repository = Repository(EventLog(pool, name=log), Order)

        def work(_: int) -> Callable[[], object]:
            def save() -> None:
                order = Order.new(str(uuid.uuid4()))
                order.emit(Order.Placed(**DATA), at=datetime.now(UTC))
                repository.save(order)

            return save

        rate_of_threads(writers, writers * 20, work)
        return rate_of_threads(writers, events, work)


def sealed(url: str, writers: int, events: int) -> float:
    """Return saves per second while a sealer in a process of its own follows."""
    with following(url):
        return appended(url, "events", writers, events)


@contextmanager
def following(url: str) -> Iterator[None]:
    """Seal what there is, and keep sealing while the body runs."""
    with connected(url) as connection:
        Sealer(connection).run()
        command = [sys.executable, "-m", "onefold.infrastructure.cli", "seal", "--follow"]
        environment = {**os.environ, "ONEFOLD_DATABASE_URL": url}
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            try:
                while not connection.execute(
                    "SELECT FROM pg_stat_activity WHERE application_name = 'onefold seal'"
                ).fetchall():
                    time.sleep(0.05)
                yield
            finally:
                process.terminate()


def verified_rate(url: str) -> float:
    """Return events per second of a verification of all that is sealed, by a process for each processor."""
    with connected(url) as connection:
        Sealer(connection).run()
    started = time.perf_counter()
    verdict = verify(url)
    if not verdict.intact:
        raise SystemExit(f"expected an untouched log, found {verdict.findings[:3]}")
    return verdict.events / (time.perf_counter() - started)

"""The ledgers, with many keys present: claims in batches, duplicates, and what it costs to forget."""

from __future__ import annotations

import hashlib
import itertools
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
from psycopg.sql import SQL, Identifier, Literal

from onefold.infrastructure.postgres.columns import pack_uuids
from onefold.infrastructure.postgres.ledger import Mode, claim, window
from onefold.infrastructure.postgres.maintenance import maintain
from onefold.infrastructure.postgres.pool import open_pool

from .measure import Case

KEYS = 10_000_000
BATCH, BATCHES = 1_000, 50
GENERATIONS = 5
RETENTION = timedelta(days=8)
DAY = timedelta(days=1)

TABLE = """
    first_seen timestamptz NOT NULL DEFAULT clock_timestamp(), consumer integer NOT NULL, key uuid NOT NULL,
    fingerprint uuid NOT NULL
"""
ANY_KEY = "md5(number::text)::uuid"
TIME_KEY = """
    (lpad(to_hex(%(from)s::bigint + number * %(milliseconds)s::bigint / %(keys)s::bigint), 12, '0')
        || '7' || substr(md5(number::text), 1, 3) || '8' || substr(md5(number::text), 4, 15))::uuid
"""
INSERT = """
WITH made AS (
    INSERT INTO plain_ledger (consumer, key, fingerprint)
    SELECT 1, key, fingerprint FROM unnest(%b::uuid[], %b::uuid[]) AS g (key, fingerprint)
    ON CONFLICT DO NOTHING RETURNING key
)
SELECT count(*) FROM made
"""
SELECT = """
SELECT l.key, l.fingerprint, l.first_seen FROM unnest(%b::uuid[]) AS g (key)
JOIN plain_ledger l ON l.consumer = 1 AND l.key = g.key
"""


def any_key(number: int) -> bytes:
    """Return the key of a number as the database computes it."""
    return hashlib.md5(str(number).encode(), usedforsecurity=False).digest()


class Times:
    """Time-ordered keys of numbers: `keys` of them over the retention, and later ones from now on."""

    def __init__(self, keys: int, now: datetime) -> None:
        self.keys = keys
        self.milliseconds = RETENTION // timedelta(milliseconds=1)
        self.start = int(now.timestamp() * 1000) - self.milliseconds

    def key(self, number: int) -> bytes:
        """Return the key of a number as the database computes it."""
        at = self.start + number * self.milliseconds // self.keys
        text = hashlib.md5(str(number).encode(), usedforsecurity=False).hexdigest()
        return bytes.fromhex(f"{at:012x}7{text[:3]}8{text[3:18]}")


def fill(url: str, keys: int = KEYS) -> Times:
    """Fill both ledgers, and a plain table beside them, with this many keys."""
    now = datetime.now(UTC)
    times = Times(keys, now)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO onefold.consumers (consumer, ledger, ordering, retention, gap_report, gap_deadline)"
            " SELECT 'bench_' || ledger, ledger, 'unordered', %s, '1 minute', '1 day'"
            " FROM (VALUES ('any'), ('time')) AS l (ledger)",
            (RETENTION,),
        )
        fill_any(connection, keys, now)
        fill_by_time(connection, times, now)
        fill_plain(connection, keys)
        maintain(connection)
    return times


@contextmanager
def cases(url: str, times: Times) -> Iterator[list[Case]]:
    """Give the cases, for ledgers that are filled."""
    keys = times.keys
    with open_pool(url, size=1) as pool, pool.connection() as connection:
        keys_of: dict[Mode, Callable[[int], bytes]] = {"any": any_key, "time": times.key}
        unused = {name: itertools.count(keys + 1) for name in (*keys_of, "plain")}
        recent = range(max(1, keys - 1_000_000), keys)
        everywhere = range(1, keys)
        found: list[Case] = []
        for mode, key_of in keys_of.items():
            known = everywhere if mode == "any" else recent
            new: dict[str, Callable[[], float]] = {"onefold": _claims(connection, mode, key_of, unused[mode])}
            again: dict[str, Callable[[], float]] = {"onefold": _duplicates(connection, mode, key_of, known)}
            if mode == "any":
                new["plain table"] = _inserts(connection, unused["plain"])
                again["plain table"] = _selects(connection, known)
            label = {"any": "any keys", "time": "time-ordered keys"}[mode]
            found += [
                Case(f"ledger, {label}: claims", "keys/s", new),
                Case(f"ledger, {label}: duplicates", "us/key", again, higher_is_better=False),
            ]
        rows = max(keys // 20, 1_000)
        purges = {
            "onefold": lambda: drop_generation(connection, rows),
            "DELETE": lambda: delete(connection, rows),
        }
        found.append(Case(f"ledger: purge of {rows:,} keys", "ms", purges, higher_is_better=False))
        yield found


def fill_any(connection: psycopg.Connection[Any], keys: int, now: datetime) -> None:
    """Make generations of random keys; the last is active."""
    connection.execute("ALTER TABLE onefold.ledger DETACH PARTITION onefold.ledger_1")
    connection.execute("DROP TABLE onefold.ledger_1")
    connection.execute("DELETE FROM onefold.ledger_partitions WHERE ledger = 'any'")
    share = keys // GENERATIONS
    for generation in range(1, GENERATIONS + 1):
        last = keys if generation == GENERATIONS else generation * share
        ends_at = None if generation == GENERATIONS else now - (GENERATIONS - generation) * DAY
        make_generation(connection, generation, (generation - 1) * share + 1, last, ends_at)


def make_generation(
    connection: psycopg.Connection[Any], generation: int, first: int, last: int, ends_at: datetime | None
) -> None:
    """Make a generation with the keys of these numbers; rows first, then the index, which is the faster way."""
    name = f"ledger_{generation}" if generation > 0 else f"ledger_old_{-generation}"
    table = Identifier("onefold", name)
    connection.execute(
        SQL(
            "CREATE TABLE {} (LIKE onefold.ledger INCLUDING DEFAULTS) WITH (autovacuum_enabled = off)"
        ).format(table)
    )
    connection.execute(
        SQL(
            "INSERT INTO {} (first_seen, generation, consumer, key, fingerprint)"
            f" SELECT now(), %(generation)s, 1, {ANY_KEY}, {ANY_KEY}"
            " FROM generate_series(%(first)s::bigint, %(last)s) AS number"
        ).format(table),
        {"generation": generation, "first": first, "last": last},
    )
    connection.execute(SQL("ALTER TABLE {} ADD PRIMARY KEY (consumer, key, generation)").format(table))
    if ends_at is not None:
        connection.execute(
            SQL("ALTER TABLE {} ADD CONSTRAINT ledger_sealed CHECK (false) NOT VALID").format(table)
        )
    connection.execute(
        SQL("ALTER TABLE onefold.ledger ATTACH PARTITION {} FOR VALUES IN ({})").format(
            table, Literal(generation)
        )
    )
    connection.execute(
        "INSERT INTO onefold.ledger_partitions (name, ledger, generation, starts_at, ends_at)"
        " VALUES (%s, 'any', %s, clock_timestamp(), %s)",
        (name, generation, ends_at),
    )


def fill_by_time(connection: psycopg.Connection[Any], times: Times, now: datetime) -> None:
    """Make partitions of a day over the retention and two days ahead, with keys up to now."""
    for (name,) in connection.execute(
        "SELECT name FROM onefold.ledger_partitions WHERE ledger = 'time'"
    ).fetchall():
        connection.execute(
            SQL("ALTER TABLE onefold.ledger_by_time DETACH PARTITION {}").format(Identifier("onefold", name))
        )
        connection.execute(SQL("DROP TABLE {}").format(Identifier("onefold", name)))
    connection.execute("DELETE FROM onefold.ledger_partitions WHERE ledger = 'time'")
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    starts = [today + number * DAY for number in range(-8, 11)]
    for start, end in itertools.pairwise([None, *starts]):
        connection.execute("SELECT onefold.make_ledger_range(%s, %s)", (start, end))
    connection.execute(
        "INSERT INTO onefold.ledger_by_time (first_seen, consumer, key, fingerprint)"
        f" SELECT now(), 1, {TIME_KEY}, {ANY_KEY} FROM generate_series(1, %(keys)s::bigint) AS number",
        {"from": times.start, "milliseconds": times.milliseconds, "keys": times.keys},
    )


def fill_plain(connection: psycopg.Connection[Any], keys: int) -> None:
    """Make one table with the same random keys."""
    connection.execute(f"CREATE TABLE plain_ledger ({TABLE})")
    connection.execute(
        f"INSERT INTO plain_ledger (first_seen, consumer, key, fingerprint) SELECT now(), 1, {ANY_KEY}, {ANY_KEY}"
        " FROM generate_series(1, %s::bigint) AS number",
        (keys,),
    )
    connection.execute("ALTER TABLE plain_ledger ADD PRIMARY KEY (consumer, key)")
    connection.execute("VACUUM ANALYZE plain_ledger")
    connection.execute("CHECKPOINT")


def drop_generation(connection: psycopg.Connection[Any], rows: int) -> float:
    """Return the milliseconds that maintenance takes for a generation that is old enough, from seal to drop."""
    row = connection.execute("SELECT min(generation) FROM onefold.ledger_partitions").fetchone()
    assert row is not None
    generation = min(row[0], 0) - 1
    name = f"ledger_old_{-generation}"
    make_generation(connection, generation, 1, rows, datetime.now(UTC) - RETENTION - DAY)
    started = time.perf_counter()
    done = maintain(connection)
    elapsed = time.perf_counter() - started
    if done.dropped != [name]:
        raise AssertionError(f"expected {name} dropped, found {done}")
    return elapsed * 1000


def delete(connection: psycopg.Connection[Any], rows: int) -> float:
    """Return the milliseconds of a DELETE by age, and of the VACUUM that makes its space usable again."""
    connection.execute("DROP TABLE IF EXISTS plain_old")
    connection.execute(f"CREATE TABLE plain_old ({TABLE}) WITH (autovacuum_enabled = off)")
    connection.execute(
        f"INSERT INTO plain_old SELECT now(), 1, {ANY_KEY}, {ANY_KEY} FROM generate_series(1, %s::bigint) AS number",
        (rows,),
    )
    connection.execute("ALTER TABLE plain_old ADD PRIMARY KEY (consumer, key)")
    connection.execute("CREATE INDEX ON plain_old (first_seen)")
    started = time.perf_counter()
    deleted = connection.execute("DELETE FROM plain_old WHERE first_seen <= now()").rowcount
    connection.execute("VACUUM plain_old")
    elapsed = time.perf_counter() - started
    if deleted != rows:
        raise AssertionError(f"expected {rows} rows deleted, found {deleted}")
    return elapsed * 1000


def _batches(key_of: Callable[[int], bytes], numbers: Iterator[int]) -> list[tuple[list[bytes], list[bytes]]]:
    made = []
    for _ in range(BATCHES):
        chosen = list(itertools.islice(numbers, BATCH))
        made.append(([key_of(number) for number in chosen], [any_key(number) for number in chosen]))
    return made


def _sample(known: range) -> Iterator[int]:
    return iter(random.Random(time.monotonic_ns()).sample(known, BATCH * BATCHES))


def _claims(
    connection: psycopg.Connection[Any], mode: Mode, key_of: Callable[[int], bytes], numbers: Iterator[int]
) -> Callable[[], float]:
    def run() -> float:
        batches = _batches(key_of, numbers)
        within = window(connection, mode)
        started = time.perf_counter()
        for keys, fingerprints in batches:
            with connection.transaction():
                if claim(connection, mode, 1, keys, fingerprints, within=within):
                    raise AssertionError("expected new keys, found some that were claimed before")
        return BATCH * BATCHES / (time.perf_counter() - started)

    return run


def _duplicates(
    connection: psycopg.Connection[Any], mode: Mode, key_of: Callable[[int], bytes], known: range
) -> Callable[[], float]:
    def run() -> float:
        batches = _batches(key_of, _sample(known))
        within = window(connection, mode)
        elapsed = 0.0
        for keys, fingerprints in batches:
            started = time.perf_counter()
            with connection.transaction():
                found = claim(connection, mode, 1, keys, fingerprints, within=within)
            elapsed += time.perf_counter() - started
            if {key: entry.fingerprint for key, entry in found.items()} != dict(
                zip(keys, fingerprints, strict=True)
            ):
                raise AssertionError("expected every key with its own fingerprint, found something else")
        return elapsed * 1e6 / (BATCH * BATCHES)

    return run


def _inserts(connection: psycopg.Connection[Any], numbers: Iterator[int]) -> Callable[[], float]:
    def run() -> float:
        batches = _batches(any_key, numbers)
        started = time.perf_counter()
        for keys, fingerprints in batches:
            ordered = sorted(zip(keys, fingerprints, strict=True))
            values = (pack_uuids([key for key, _ in ordered]), pack_uuids([each for _, each in ordered]))
            with connection.transaction():
                row = connection.execute(INSERT, values, prepare=True).fetchone()
            if row != (BATCH,):
                raise AssertionError(f"expected {BATCH} rows, found {row}")
        return BATCH * BATCHES / (time.perf_counter() - started)

    return run


def _selects(connection: psycopg.Connection[Any], known: range) -> Callable[[], float]:
    def run() -> float:
        batches = _batches(any_key, _sample(known))
        connection.execute("SET enable_seqscan = off")
        elapsed = 0.0
        for keys, fingerprints in batches:
            started = time.perf_counter()
            with connection.transaction():
                rows = connection.execute(SELECT, (pack_uuids(sorted(keys)),), prepare=True).fetchall()
            elapsed += time.perf_counter() - started
            if {UUID(bytes=key) for key in keys} != {row[0] for row in rows} or len(fingerprints) != len(
                rows
            ):
                raise AssertionError("expected every key, found something else")
        connection.execute("RESET enable_seqscan")
        return elapsed * 1e6 / (BATCH * BATCHES)

    return run

"""The ledgers make room ahead, forget what every consumer may forget, and hold nobody up while they do."""

from __future__ import annotations

import contextlib
import random
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from freezegun import freeze_time
from hypothesis import given
from hypothesis import strategies as st
from psycopg import IsolationLevel

from onefold.infrastructure.identity import new_event_id
from onefold.infrastructure.postgres import maintenance
from onefold.infrastructure.postgres.ledger import (
    Entry,
    LedgerRotated,
    Mode,
    OutsideWindow,
    UnfitTransaction,
    Window,
    bound_of,
    claim,
    window,
)
from onefold.infrastructure.postgres.maintenance import (
    LOCK,
    Maintenance,
    generation_length,
    maintain,
    missing_ranges,
    partition_period,
)
from onefold.infrastructure.postgres.pool import Pool, open_pool

Open = Callable[[], psycopg.Connection[Any]]
TWIN = bytes(range(16))
DAY, HOUR, MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)


@pytest.fixture
def first(open_raw: Open) -> psycopg.Connection[Any]:
    return open_raw()


@pytest.fixture
def second(open_raw: Open) -> psycopg.Connection[Any]:
    return open_raw()


def register(connection: psycopg.Connection[Any], name: str, mode: Mode, retention: timedelta) -> None:
    connection.execute(
        "INSERT INTO onefold.consumers (consumer, ledger, ordering, retention, gap_report, gap_deadline)"
        " VALUES (%s, %s, 'unordered', %s, '1 minute', '1 day')",
        (name, mode, retention),
    )


def claim_now(connection: psycopg.Connection[Any], mode: Mode, keys: list[bytes]) -> dict[bytes, Entry]:
    with connection.transaction():
        return claim(connection, mode, 1, keys, [TWIN] * len(keys), within=window(connection, mode))


def key_at(instant: datetime) -> bytes:
    key = bytearray(bound_of(instant)[:6] + uuid.uuid4().bytes[6:])
    key[6] = 0x70 | key[6] & 0x0F
    return bytes(key)


def now_of(connection: psycopg.Connection[Any]) -> datetime:
    row = connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
    assert row is not None
    return datetime.fromtimestamp(row[0], UTC)


def partitions(connection: psycopg.Connection[Any], mode: Mode) -> list[str]:
    table = {"any": "onefold.ledger", "time": "onefold.ledger_by_time"}[mode]
    return sorted(
        name
        for (name,) in connection.execute(
            "SELECT relname FROM pg_inherits JOIN pg_class ON oid = inhrelid"
            " WHERE inhparent = %s::regclass AND NOT inhdetachpending",
            (table,),
        )
    )


def tables(connection: psycopg.Connection[Any]) -> set[str]:
    return {
        name
        for (name,) in connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'onefold'::regnamespace AND relkind = 'r'"
            " AND relname ~ '^ledger_(by_time_)?[0-9f]'"
        )
    }


# What is due


@pytest.mark.parametrize(
    ("retention", "length"),
    [(30 * DAY, 7.5 * DAY), (4 * MINUTE, MINUTE), (MINUTE, MINUTE), (timedelta(seconds=1), MINUTE)],
)
def test_a_generation_is_a_quarter_of_the_retention(retention: timedelta, length: timedelta) -> None:
    assert generation_length(retention) == length


@pytest.mark.parametrize(
    ("retention", "period"),
    [
        (HOUR, 6 * HOUR),
        (7 * DAY, 6 * HOUR),
        (7.5 * DAY, 6 * HOUR),
        (8 * DAY, DAY),
        (30 * DAY, DAY),
        (31 * DAY, 7 * DAY),
        (400 * DAY, 30 * DAY),
        (10_000 * DAY, 365 * DAY),
        (50_000 * DAY, 365 * DAY),
    ],
)
def test_a_partition_is_a_round_part_of_the_retention(retention: timedelta, period: timedelta) -> None:
    assert partition_period(retention) == period


moments = st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


@given(moments, moments, st.floats(0.01, 3_650))
def test_ranges_follow_each_other_until_two_days_ahead(ceiling: datetime, now: datetime, days: float) -> None:
    period = partition_period(timedelta(days=days))
    found = list(missing_ranges(ceiling, now, period))
    reached = ceiling
    for start, end in found:
        assert start == reached < end
        reached = end
    assert reached >= now + 2 * DAY
    # However long nobody made any, there are few; with those that are kept they are at most sixty.
    assert len(found) <= 10
    assert len(found) + days * DAY / period + 1 <= 60
    assert bool(found) == (ceiling < now + 2 * DAY)


# One ledger


def test_without_consumers_nothing_is_done(first: psycopg.Connection[Any]) -> None:
    assert maintain(first, now=now_of(first) + 3_650 * DAY) == Maintenance()


def test_a_generation_is_sealed_when_its_time_is_up(first: psycopg.Connection[Any]) -> None:
    register(first, "payments", "any", 8 * DAY)
    register(first, "mails", "any", DAY)
    now = now_of(first)
    old, new = (new_event_id().bytes for _ in range(2))
    claim_now(first, "any", [old])
    # The first generation began with the database, of which this one is a copy.
    began = first.execute("SELECT starts_at FROM onefold.ledger_partitions WHERE generation = 1").fetchone()
    assert began is not None
    assert maintain(first, now=began[0] + 2 * DAY - MINUTE) == Maintenance()
    assert maintain(first, now=now + 2 * DAY) == Maintenance(made=["ledger_2"], sealed=["ledger_1"])
    assert maintain(first, now=now + 4 * DAY - MINUTE) == Maintenance()
    assert list(claim_now(first, "any", [old, new])) == [old]
    assert partitions(first, "any") == ["ledger_1", "ledger_2"]
    rows = first.execute("SELECT generation FROM onefold.ledger ORDER BY 1").fetchall()
    assert rows == [(1,), (2,)]


def test_an_old_generation_is_dropped_and_its_end_is_the_floor(first: psycopg.Connection[Any]) -> None:
    """C90, C92"""
    register(first, "payments", "any", 8 * DAY)
    start = now_of(first)
    keys = [new_event_id().bytes for _ in range(8)]
    for number, key in enumerate(keys):
        claim_now(first, "any", [key])
        done = maintain(first, now=start + (2 * number + 2) * DAY)
        if number < 5:
            assert not done.retired
        else:
            name = f"ledger_{number - 4}"
            assert done.retired == done.detached == done.dropped == [name]
            assert name not in tables(first)
    assert partitions(first, "any") == [f"ledger_{number}" for number in range(4, 10)]
    floor, ceiling = window(first, "any")
    assert floor == start + 6 * DAY
    assert ceiling is None
    # The keys of the three that are dropped would count as new: the floor tells that they are not.
    assert set(claim_now(first, "any", keys)) == set(keys[3:])


def test_a_generation_ends_after_everything_that_was_claimed_in_it(first: psycopg.Connection[Any]) -> None:
    register(first, "payments", "any", 4 * MINUTE)
    first.execute("UPDATE onefold.ledger_partitions SET starts_at = starts_at - interval '10 days'")
    claim_now(first, "any", [new_event_id().bytes])
    maintain(first, now=now_of(first) - DAY)
    row = first.execute(
        "SELECT ends_at >= (SELECT first_seen FROM onefold.ledger) FROM onefold.ledger_partitions WHERE generation = 1"
    ).fetchone()
    assert row == (True,)


def test_time_is_made_ahead_and_dropped_behind(first: psycopg.Connection[Any]) -> None:
    """C90, C92"""
    register(first, "payments", "time", 3 * DAY)
    start = now_of(first)
    for hours in range(0, 24 * 20, 7):
        now = start + hours * HOUR
        done = maintain(first, now=now)
        assert not done.skipped
        floor, ceiling = window(first, "time")
        assert ceiling is not None
        assert ceiling >= now + 2 * DAY
        assert len(partitions(first, "time")) <= 60
        assert claim_now(first, "time", [key_at(now)]) == {}
        for age in (timedelta(0), HOUR, 2.9 * DAY):
            key = key_at(now - age)
            claim_now(first, "time", [key])
            assert list(claim_now(first, "time", [key])) == [key]
        if floor is not None:
            assert now - 5 * DAY < floor < now - 3 * DAY
            with pytest.raises(OutsideWindow):
                claim_now(first, "time", [key_at(floor - MINUTE)])
            with pytest.raises(LedgerRotated), first.transaction():
                claim(first, "time", 1, [key_at(floor - MINUTE)], [TWIN], within=Window(None, None))
    assert floor is not None
    assert tables(first) == set(partitions(first, "time")) | {"ledger_1"}


def test_time_in_which_nobody_did_maintenance_is_one_partition(first: psycopg.Connection[Any]) -> None:
    register(first, "payments", "time", 30 * DAY)
    before = len(partitions(first, "time"))
    now = now_of(first) + 1_000 * DAY
    done = maintain(first, now=now)
    assert len(done.made) <= 4
    # Those of before are forgotten at the same time.
    assert len(done.dropped) == before
    assert claim_now(first, "time", [key_at(now - 29 * DAY), key_at(now)]) == {}


@pytest.mark.parametrize("mode", ["any", "time"])
def test_a_redelivery_in_another_month_is_a_duplicate(first: psycopg.Connection[Any], mode: Mode) -> None:
    """C93: whatever the day of the redelivery, and however often the ledger was rotated since."""
    register(first, "payments", mode, 100 * DAY)
    key = new_event_id().bytes
    assert claim_now(first, mode, [key]) == {}
    with freeze_time(datetime.now(UTC)) as clock:
        for _ in range(14):
            clock.tick(timedelta(days=7))
            maintain(first, now=datetime.now(UTC))
            assert list(claim_now(first, mode, [key])) == [key]
        for _ in range(30):
            clock.tick(timedelta(days=7))
            maintain(first, now=datetime.now(UTC))
        floor = window(first, mode).floor
        assert floor is not None
        assert floor > now_of(first)
    if mode == "time":
        with pytest.raises(OutsideWindow):
            claim_now(first, mode, [key])


# Several at it


def test_one_process_at_a_time_does_maintenance(
    first: psycopg.Connection[Any], second: psycopg.Connection[Any]
) -> None:
    register(first, "payments", "any", 8 * DAY)
    later = now_of(first) + 3 * DAY
    second.execute("SELECT pg_advisory_lock(%s)", (LOCK,))
    assert maintain(first, now=later) == Maintenance(busy=True)
    second.execute("SELECT pg_advisory_unlock(%s)", (LOCK,))
    assert maintain(first, now=later).sealed == ["ledger_1"]
    assert maintain(second, now=later) == Maintenance()


def test_maintenance_leaves_the_session_as_it_was(first: psycopg.Connection[Any]) -> None:
    first.execute("SET lock_timeout = '7s'")
    register(first, "payments", "any", 8 * DAY)
    maintain(first, now=now_of(first) + 3 * DAY)
    assert first.execute("SHOW lock_timeout").fetchone() == ("7s",)
    held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
    assert first.execute(held).fetchone() == (0,)


def test_maintenance_in_a_transaction_is_refused(first: psycopg.Connection[Any], database_url: str) -> None:
    with first.transaction(), pytest.raises(UnfitTransaction, match="open a connection for maintenance"):
        maintain(first)
    with psycopg.connect(database_url) as plain, pytest.raises(UnfitTransaction):
        maintain(plain)


def test_who_does_not_own_the_ledger_is_told(
    first: psycopg.Connection[Any], database_url: str, role: str
) -> None:
    register(first, "payments", "any", 8 * DAY)
    first.execute(f"GRANT USAGE ON SCHEMA onefold TO {role}".encode())
    first.execute(f"GRANT SELECT ON onefold.consumers, onefold.ledger_partitions TO {role}".encode())
    first.execute(f"GRANT SELECT, INSERT ON onefold.ledger, onefold.ledger_by_time TO {role}".encode())
    with psycopg.connect(database_url, autocommit=True) as other:
        other.execute(f"SET ROLE {role}".encode())
        key = new_event_id().bytes
        for mode in ("any", "time"):
            assert claim_now(other, mode, [key]) == {}
            assert list(claim_now(other, mode, [key])) == [key]
        done = maintain(other, now=now_of(first) + 3 * DAY)
        assert not done.sealed
        assert [(each.step, each.partition) for each in done.skipped] == [
            ("rotate", "ledger_1"),
            ("retire", "ledger"),
        ]
        for each in done.skipped:
            assert each.reason.endswith("run `onefold maintain` as the owner of the ledger")
    # A generation that is made later takes claims with the same privileges.
    maintain(first, now=now_of(first) + 3 * DAY)
    with psycopg.connect(database_url, autocommit=True) as other:
        other.execute(f"SET ROLE {role}".encode())
        assert claim_now(other, "any", [new_event_id().bytes]) == {}


@pytest.fixture
def role(server_url: str, database_url: str) -> Iterator[str]:
    name = f"consumer_{uuid.uuid4().hex}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name}".encode())
    yield name
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f"DROP OWNED BY {name}".encode())
        connection.execute(f"DROP ROLE {name}".encode())


# Long transactions


def test_a_long_claim_puts_the_rotation_off(
    first: psycopg.Connection[Any], second: psycopg.Connection[Any], open_raw: Open
) -> None:
    """C90"""
    register(first, "payments", "any", 8 * DAY)
    later = now_of(first) + 3 * DAY
    key = new_event_id().bytes
    third = open_raw()
    with second.transaction():
        claim(second, "any", 1, [key], [TWIN], within=Window(None, None))
        with beside(third, "any") as waits:
            started = time.monotonic()
            done = maintain(first, now=later)
            assert time.monotonic() - started < 3
        assert not done.sealed
        assert not done.made
        assert done.skipped == [
            maintenance.Skipped(
                "rotate", "ledger_1", "another transaction holds a lock on it", second.info.backend_pid
            )
        ]
    assert len(waits) > 10
    assert max(waits) < 1
    assert maintain(first, now=later).sealed == ["ledger_1"]
    assert list(claim_now(first, "any", [key])) == [key]


@pytest.mark.parametrize("mode", ["any", "time"])
def test_a_long_claim_puts_the_drop_off(
    first: psycopg.Connection[Any], second: psycopg.Connection[Any], open_raw: Open, mode: Mode
) -> None:
    """C90, C92: what is retired is forgotten at once; its partition goes when nobody uses it any more."""
    register(first, "payments", mode, 4 * DAY)
    start = now_of(first)
    old = new_event_id().bytes
    claim_now(first, mode, [old])
    maintain(first, now=start + 2 * DAY)
    fourth = open_raw()
    with second.transaction():
        # A claim of this kind touches every partition.
        claim(second, mode, 1, [old, new_event_id().bytes], [TWIN] * 2, within=window(first, mode))
        with beside(fourth, mode, start + 3 * DAY) as waits:
            done = maintain(first, now=start + 30 * DAY)
        assert done.retired
        assert not done.dropped
        assert done.skipped[-1].step == "detach"
        assert done.skipped[-1].pid == second.info.backend_pid
        floor = window(first, mode).floor
        assert floor is not None
        assert floor > start
    assert max(waits) < 1
    again = maintain(first, now=start + 30 * DAY)
    assert set(done.retired) <= set(again.dropped)
    assert not again.skipped
    assert not set(done.retired) & tables(first)


def test_a_long_transaction_that_claims_nothing_holds_nothing_up(
    first: psycopg.Connection[Any], second: psycopg.Connection[Any]
) -> None:
    register(first, "payments", "any", 4 * DAY)
    start = now_of(first)
    second.isolation_level = IsolationLevel.REPEATABLE_READ
    with second.transaction():
        second.execute("SELECT pg_current_xact_id() FROM onefold.consumers")
        maintain(first, now=start + 2 * DAY)
        done = maintain(first, now=start + 30 * DAY)
    assert done.dropped == ["ledger_1"]
    assert not done.skipped


def test_a_detachment_that_was_cut_off_is_finished_later(
    first: psycopg.Connection[Any], second: psycopg.Connection[Any]
) -> None:
    register(first, "payments", "any", 4 * DAY)
    start = now_of(first)
    maintain(first, now=start + 2 * DAY)
    with second.transaction():
        second.execute("SELECT count(*) FROM onefold.ledger")
        first.execute("SET lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            first.execute("ALTER TABLE onefold.ledger DETACH PARTITION onefold.ledger_1 CONCURRENTLY")
    assert partitions(first, "any") == ["ledger_2"]
    done = maintain(first, now=start + 30 * DAY)
    assert (done.detached, done.dropped) == (["ledger_1"], ["ledger_1"])


# Under load


@pytest.mark.parametrize("mode", ["any", "time"])
def test_rotation_and_purge_under_load(database_url: str, mode: Mode) -> None:
    """C90"""
    load(database_url, mode, seconds=5)


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["any", "time"])
def test_rotation_and_purge_under_load_for_minutes(database_url: str, mode: Mode) -> None:
    """C90"""
    load(database_url, mode, seconds=120)


def load(url: str, mode: Mode, *, seconds: float) -> None:
    """Twelve writers claim keys that others claim too, while the clock of maintenance runs through the retention.

    Beside them a long transaction is open for most of the time. No key has two effects; nobody waits for a second.
    """
    with open_pool(url, size=14) as pool, ThreadPoolExecutor(14) as threads:
        run = Load(pool, mode, time.monotonic() + seconds)
        with pool.connection() as connection:
            register(connection, "payments", mode, RETENTION)
            connection.execute("CREATE TABLE effect (key uuid, published_at timestamptz)")
        for done in [threads.submit(run.write, seed) for seed in range(12)] + [
            threads.submit(run.hold),
            threads.submit(run.keep),
        ]:
            done.result(seconds + 60)
        with pool.connection() as connection:
            twice = connection.execute(
                "SELECT key, count(*) FROM effect GROUP BY key HAVING count(*) > 1"
            ).fetchall()
            row = connection.execute("SELECT count(*) FROM effect").fetchone()
    assert twice == []
    assert row is not None
    assert row[0] == len(run.effects) > 300
    assert run.duplicates > 100
    assert run.expired
    assert len(run.dropped) > 2
    if mode == "any":
        # The long transaction was in the way.
        assert run.skipped
    assert max(run.waits) < 1, sorted(run.waits)[-5:]


RETENTION = 4 * DAY


class Load:
    """What the threads of a load share: the clock of the messages, the keys that come again, and what was seen."""

    def __init__(self, pool: Pool, mode: Mode, until: float) -> None:
        self.pool, self.mode, self.until = pool, mode, until
        self.now = datetime.now(UTC)
        self.recent: deque[tuple[bytes, datetime]] = deque(maxlen=6_000)
        self.effects: set[bytes] = set()
        self.duplicates = self.expired = self.rotated = 0
        self.waits: list[float] = []
        self.dropped: list[str] = []
        self.skipped: list[maintenance.Skipped] = []

    def running(self) -> bool:
        return time.monotonic() < self.until

    def write(self, seed: int) -> None:
        """Claim batches, half of new keys and half of keys that others have too, and note the effect of those won."""
        chance = random.Random(seed)
        with self.pool.connection() as connection:
            while self.running():
                published = self.now
                fresh = [(key_at(published), published) for _ in range(10)]
                self.recent.extend(fresh)
                batch = dict(fresh + chance.sample(list(self.recent), min(10, len(self.recent))))
                # Between arrival and claim the world may move on.
                time.sleep(chance.choice((0, 0, 0.01, 0.1)))
                while not self._claim(connection, batch, commits=chance.random() > 0.05):
                    self.rotated += 1

    def _claim(
        self, connection: psycopg.Connection[Any], batch: dict[bytes, datetime], *, commits: bool
    ) -> bool:
        within = window(connection, self.mode)
        floor = within.floor
        # Messages are of the very instant that a generation is sealed at, by this clock.
        forgotten = {
            key for key, published in batch.items() if floor is not None and published < floor + MINUTE
        }
        keys = [key for key in batch if self.mode == "any" or key not in forgotten]
        started = time.monotonic()
        try:
            with connection.transaction(force_rollback=not commits):
                known = claim(connection, self.mode, 1, keys, [TWIN] * len(keys), within=within)
                self.waits.append(time.monotonic() - started)
                won = [key for key in keys if key not in known and key not in forgotten]
                with connection.cursor() as cursor:
                    cursor.executemany(
                        "INSERT INTO effect VALUES (%s, %s)",
                        [(uuid.UUID(bytes=key), batch[key]) for key in won],
                    )
        except LedgerRotated:
            self.waits.append(time.monotonic() - started)
            return False
        if commits:
            assert not self.effects.intersection(won)
            self.effects.update(won)
            self.duplicates += len(known)
            self.expired += len(forgotten - known.keys())
        return True

    def hold(self) -> None:
        """Hold a claim for a second, again and again."""
        with self.pool.connection() as connection:
            while self.running():
                key = key_at(self.now)
                # It may be told that the ledger rotated, like any other.
                with contextlib.suppress(LedgerRotated), connection.transaction():
                    claim(connection, self.mode, 2, [key], [TWIN], within=window(connection, self.mode))
                    time.sleep(1)
                time.sleep(0.3)

    def keep(self) -> None:
        """Do maintenance by a clock that runs a quarter of the retention each time it could rotate."""
        with self.pool.connection() as connection:
            while self.running():
                self.now += RETENTION / 4
                done = maintain(connection, now=self.now)
                self.dropped += done.dropped
                self.skipped += done.skipped
                time.sleep(0.05)


class beside:  # noqa: N801 - used like a function
    """Claims new keys again and again in a thread of its own; gives how long each took."""

    def __init__(self, connection: psycopg.Connection[Any], mode: Mode, at: datetime | None = None) -> None:
        self._connection, self._mode, self._at = connection, mode, at
        self._stopped = threading.Event()
        self._thread = ThreadPoolExecutor(1)

    def __enter__(self) -> list[float]:
        waits: list[float] = []
        begun = threading.Event()

        def work() -> None:
            while not self._stopped.is_set():
                key = new_event_id().bytes if self._at is None else key_at(self._at)
                started = time.monotonic()
                try:
                    claim_now(self._connection, self._mode, [key])
                except (LedgerRotated, OutsideWindow):
                    # The time of these keys is dropped by now.
                    continue
                finally:
                    waits.append(time.monotonic() - started)
                    begun.set()

        self._running = self._thread.submit(work)
        begun.wait(10)
        return waits

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._running.result(30)
        self._thread.shutdown()

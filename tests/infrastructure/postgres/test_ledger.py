"""A key is claimed once by each consumer, in the transaction of its effect, or not at all."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import IsolationLevel
from psycopg.sql import Identifier

from onefold.domain.errors import OnefoldError
from onefold.infrastructure.identity import new_event_id
from onefold.infrastructure.postgres.ledger import (
    Entry,
    LedgerRotated,
    Mode,
    NotTimeOrdered,
    OutsideWindow,
    UnfitTransaction,
    Window,
    bound_of,
    claim,
    claimed,
    time_of,
    window,
)
from onefold.infrastructure.postgres.pool import Pool
from onefold.infrastructure.postgres.sql import statement

MODES: tuple[Mode, ...] = ("any", "time")
Open = Callable[[], psycopg.Connection[Any]]
TWIN = bytes(range(16))
ALL = Window(None, None)


def new_key() -> bytes:
    return new_event_id().bytes


def new_keys(number: int) -> list[bytes]:
    return [new_key() for _ in range(number)]


def claim_now(
    connection: psycopg.Connection[Any],
    mode: Mode,
    keys: Sequence[bytes],
    fingerprints: Sequence[bytes] | None = None,
    *,
    consumer: int = 1,
) -> dict[bytes, Entry]:
    """Claim and commit."""
    with connection.transaction():
        return claim(
            connection,
            mode,
            consumer,
            keys,
            fingerprints or [TWIN] * len(keys),
            within=window(connection, mode),
        )


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Mode:
    found: Mode = request.param
    return found


@pytest.fixture
def first(open_raw: Open) -> psycopg.Connection[Any]:
    return open_raw()


@pytest.fixture
def second(open_raw: Open) -> psycopg.Connection[Any]:
    return open_raw()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as threads:
        yield threads


def wait_until_blocked(watcher: psycopg.Connection[Any], waiting: psycopg.Connection[Any], by: int) -> None:
    """Return when the session of `waiting` waits for a lock that the session `by` holds."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        row = watcher.execute(
            "SELECT %s = ANY (pg_blocking_pids(%s))", (by, waiting.info.backend_pid)
        ).fetchone()
        if row == (True,):
            return
        time.sleep(0.002)
    raise AssertionError(f"session {waiting.info.backend_pid} does not wait for session {by}")


def test_a_new_key_is_claimed_and_a_known_one_is_returned(first: psycopg.Connection[Any], mode: Mode) -> None:
    """C02"""
    key, other = new_keys(2)
    before = datetime.now(UTC) - timedelta(seconds=1)
    assert claim_now(first, mode, [key], [b"a" * 16]) == {}
    found = claim_now(first, mode, [other, key], [b"b" * 16, b"c" * 16])
    assert list(found) == [key]
    assert found[key].fingerprint == b"a" * 16
    assert before < found[key].first_seen < datetime.now(UTC) + timedelta(seconds=1)
    again = claim_now(first, mode, [key, other])
    assert again == {key: found[key], other: Entry(b"b" * 16, again[other].first_seen)}


def test_what_is_claimed_can_be_looked_up(first: psycopg.Connection[Any], mode: Mode) -> None:
    key, other = new_keys(2)
    assert claimed(first, mode, 1, [key, other]) == {}
    claim_now(first, mode, [key])
    found = claimed(first, mode, 1, [other, key])
    assert found == claim_now(first, mode, [key])
    assert found[key].fingerprint == TWIN
    assert claimed(first, mode, 2, [key]) == {}


def test_claiming_nothing_asks_nothing_of_the_database(first: psycopg.Connection[Any], mode: Mode) -> None:
    with first.transaction():
        assert claim(first, mode, 1, [], [], within=Window(None, None)) == {}


@pytest.mark.parametrize("autocommit", [True, False])
def test_any_connection_will_do(database_url: str, mode: Mode, *, autocommit: bool) -> None:
    key = new_key()
    with psycopg.connect(database_url, autocommit=autocommit, row_factory=psycopg.rows.dict_row) as plain:
        assert claim_now(plain, mode, [key]) == {}
        assert claim_now(plain, mode, [key])[key].fingerprint == TWIN
        assert window(plain, mode).floor is None


def test_two_consumers_claim_the_same_key(first: psycopg.Connection[Any], mode: Mode) -> None:
    """C04"""
    key = new_key()
    assert claim_now(first, mode, [key], consumer=1) == {}
    assert claim_now(first, mode, [key], consumer=2) == {}
    assert list(claim_now(first, mode, [key], consumer=2)) == [key]


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(min_size=16, max_size=16), min_size=1, max_size=30, unique=True))
def test_every_sixteen_bytes_are_a_key_of_their_own(
    first: psycopg.Connection[Any], keys: list[bytes]
) -> None:
    """C05"""
    with first.transaction(force_rollback=True):
        assert claim(first, "any", 1, keys, keys[::-1], within=ALL) == {}
        found = claim(first, "any", 1, keys, [TWIN] * len(keys), within=ALL)
        held = {key: entry.fingerprint for key, entry in found.items()}
        assert held == dict(zip(keys, keys[::-1], strict=True))


@pytest.mark.parametrize("wrong", [b"", b"x" * 15, b"x" * 17, b"payment-1" * 1000])
def test_a_key_that_is_not_hashed_is_refused(
    first: psycopg.Connection[Any], mode: Mode, wrong: bytes
) -> None:
    """C05"""
    with first.transaction():
        for keys, fingerprints in (
            ([new_key(), wrong], [TWIN, TWIN]),
            ([new_key(), new_key()], [TWIN, wrong]),
        ):
            with pytest.raises(ValueError, match=rf"expected 16 bytes, found {len(wrong)} "):
                claim(first, mode, 1, keys, fingerprints, within=ALL)


def test_a_key_given_twice_is_refused(first: psycopg.Connection[Any], mode: Mode) -> None:
    key = new_key()
    with first.transaction(), pytest.raises(ValueError, match="different from each other"):
        claim(first, mode, 1, [key, new_key(), key], [TWIN] * 3, within=ALL)


def test_a_claim_outside_a_transaction_is_refused(first: psycopg.Connection[Any], mode: Mode) -> None:
    """C12"""
    key = new_key()
    with pytest.raises(
        UnfitTransaction, match=r"outside one.*claim inside `with connection.transaction\(\):`"
    ):
        claim(first, mode, 1, [key], [TWIN], within=ALL)
    assert claim_now(first, mode, [key]) == {}


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
def test_a_claim_that_could_not_see_what_it_waited_for_is_refused(
    first: psycopg.Connection[Any], mode: Mode, level: IsolationLevel
) -> None:
    first.isolation_level = level
    with pytest.raises(
        UnfitTransaction, match=f"found a claim in isolation level {level.name.lower()}".replace("_", " ")
    ):
        claim_now(first, mode, [new_key()])
    assert issubclass(UnfitTransaction, OnefoldError)


def test_a_claim_ends_with_its_transaction(first: psycopg.Connection[Any], mode: Mode) -> None:
    """C03"""
    key, inner = new_keys(2)
    with first.transaction(force_rollback=True):
        assert claim(first, mode, 1, [key], [TWIN], within=window(first, mode)) == {}
    assert claim_now(first, mode, [key]) == {}
    with first.transaction():
        with first.transaction(force_rollback=True):
            assert claim(first, mode, 1, [inner], [TWIN], within=window(first, mode)) == {}
        assert claim(first, mode, 1, [inner], [TWIN], within=window(first, mode)) == {}
    assert list(claim_now(first, mode, [inner])) == [inner]


@pytest.mark.parametrize("owner_commits", [True, False])
def test_the_loser_waits_for_the_owner(
    first: psycopg.Connection[Any],
    second: psycopg.Connection[Any],
    connection: psycopg.Connection[Any],
    threads: ThreadPoolExecutor,
    mode: Mode,
    *,
    owner_commits: bool,
) -> None:
    """C02"""
    key, free = new_keys(2)
    with first.transaction(force_rollback=not owner_commits):
        assert claim(first, mode, 1, [key], [b"o" * 16], within=window(first, mode)) == {}
        loser = threads.submit(claim_now, second, mode, [key, free])
        wait_until_blocked(connection, second, first.info.backend_pid)
    found = loser.result(20)
    assert {each: entry.fingerprint for each, entry in found.items()} == (
        {key: b"o" * 16} if owner_commits else {}
    )
    assert set(claim_now(first, mode, [key, free])) == {key, free}


def test_the_loser_gives_up_after_its_lock_timeout(
    first: psycopg.Connection[Any], second: psycopg.Connection[Any], mode: Mode
) -> None:
    """C02"""
    key = new_key()
    second.execute("SET lock_timeout = '20ms'")
    with first.transaction():
        claim(first, mode, 1, [key], [TWIN], within=window(first, mode))
        with pytest.raises(psycopg.errors.LockNotAvailable):
            claim_now(second, mode, [key])
    assert list(claim_now(second, mode, [key])) == [key]


def test_twelve_threads_claim_one_key_once(pool: Pool, threads: ThreadPoolExecutor, mode: Mode) -> None:
    """C02"""
    ready = threading.Barrier(12)

    def work(key: bytes) -> bool:
        with pool.connection() as connection:
            ready.wait(20)
            return not claim_now(connection, mode, [key])

    for key in new_keys(20):
        assert sum(threads.map(work, [key] * 12)) == 1


def test_batches_of_the_same_keys_in_any_order_do_not_deadlock(
    pool: Pool, threads: ThreadPoolExecutor, mode: Mode
) -> None:
    """C11"""
    ready = threading.Barrier(6)

    def work(keys: list[bytes], seed: int) -> set[bytes]:
        mine = random.Random(seed).sample(keys, len(keys))
        with pool.connection() as connection:
            ready.wait(20)
            return set(keys) - set(claim_now(connection, mode, mine))

    for number in range(3):
        keys = new_keys(2_000)
        won = list(threads.map(work, [keys] * 6, range(number, number + 6)))
        assert sum(map(len, won)) == 2_000
        assert set.union(*won) == set(keys)


def test_a_batch_is_one_round_trip(first: psycopg.Connection[Any], mode: Mode, tmp_path: Path) -> None:
    keys = new_keys(500)
    with first.transaction(), (tmp_path / "trace").open("w+") as trace:
        within = window(first, mode)
        claim(first, mode, 1, keys[:1], [TWIN], within=within)
        first.pgconn.trace(trace.fileno())
        assert len(claim(first, mode, 1, keys, [TWIN] * 500, within=within)) == 1
        first.pgconn.untrace()
        trace.seek(0)
        sent = [line.split("\t") for line in trace.read().splitlines()]
    assert [fields[3] for fields in sent if len(fields) > 3 and fields[1] == "F"].count("Sync") == 1


def test_no_plan_reads_a_ledger_through(first: psycopg.Connection[Any], mode: Mode) -> None:
    """What a few rows, or a wrong estimate, would make the cheaper plan is the wrong one a minute later."""
    pattern = {"any": "ledger_1", "time": "ledger_by_time_%"}[mode]
    for _ in range(10):
        claim_now(first, mode, new_keys(3))
    first.execute("ANALYZE onefold.ledger, onefold.ledger_by_time")
    keys = new_keys(300)
    for _ in range(10):
        claim_now(first, mode, keys)
    first.execute("SELECT pg_stat_force_next_flush()")
    row = first.execute(
        "SELECT sum(seq_scan), sum(idx_scan) FROM pg_stat_user_tables WHERE relname LIKE %s", (pattern,)
    ).fetchone()
    assert row is not None
    assert row[0] == 0
    assert row[1] >= 2_700


@pytest.mark.parametrize("change", ["UPDATE {} SET fingerprint = key", "DELETE FROM {}", "TRUNCATE {}"])
@pytest.mark.parametrize("table", ["onefold.ledger", "onefold.ledger_by_time"])
def test_a_claimed_key_is_never_changed_or_deleted(
    first: psycopg.Connection[Any], table: str, change: str
) -> None:
    with pytest.raises(
        psycopg.errors.InsufficientPrivilege, match="forgotten only when its partition is dropped"
    ):
        first.execute(change.format(table).encode())


def test_a_sealed_generation_takes_no_key_and_tells_what_it_has(first: psycopg.Connection[Any]) -> None:
    key = new_key()
    claim_now(first, "any", [key])
    first.execute(statement("ledger_seal", partition=Identifier("ledger_1")))
    assert list(claim_now(first, "any", [key])) == [key]
    with pytest.raises(LedgerRotated, match="roll back, ask for the window, and run the batch again"):
        claim_now(first, "any", [key, new_key()])


def test_a_generation_that_the_session_does_not_know_yet_is_told(first: psycopg.Connection[Any]) -> None:
    """For a moment a rotation is visible in the tables, and its partition not yet to sessions that have it cached."""
    first.execute("UPDATE onefold.ledger_partitions SET generation = 2 WHERE generation = 1")
    with pytest.raises(LedgerRotated):
        claim_now(first, "any", [new_key()])


def test_a_floor_that_rose_since_the_window_was_asked_for_is_told(first: psycopg.Connection[Any]) -> None:
    """C92: else a key that was forgotten in between would count as new."""
    before = window(first, "any")
    first.execute(
        "INSERT INTO onefold.ledger_partitions VALUES ('ledger_0', 'any', 0, now() - interval '2 days',"
        " now() - interval '1 day', now())"
    )
    after = window(first, "any")
    assert before == Window(None, None)
    assert after.floor is not None
    key = new_key()
    with first.transaction(), pytest.raises(LedgerRotated), first.transaction():
        claim(first, "any", 1, [key], [TWIN], within=before)
    with first.transaction():
        assert claim(first, "any", 1, [key], [TWIN], within=after) == {}


# Time-ordered keys


def at(instant: datetime) -> bytes:
    """A UUIDv7 of an instant."""
    key = bytearray(bound_of(instant)[:6] + uuid.uuid4().bytes[6:])
    key[6] = 0x70 | key[6] & 0x0F
    return bytes(key)


def test_keys_outside_the_window_cannot_be_claimed(first: psycopg.Connection[Any]) -> None:
    """C92"""
    floor, ceiling = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC)
    least = timedelta(milliseconds=1)
    within = Window(floor, ceiling)
    with first.transaction():
        assert claim(first, "time", 1, [at(floor), at(ceiling - least)], [TWIN] * 2, within=within) == {}
        with pytest.raises(OutsideWindow, match="a message with such a key is expired"):
            claim(first, "time", 1, [at(floor), at(floor - least)], [TWIN] * 2, within=within)
        with pytest.raises(OutsideWindow, match="run `onefold maintain`, or mend the clock"):
            claim(first, "time", 1, [at(floor), at(ceiling)], [TWIN] * 2, within=within)


def test_a_fresh_database_has_room_for_two_days(first: psycopg.Connection[Any]) -> None:
    floor, ceiling = window(first, "time")
    now = datetime.now(UTC)
    assert floor is None
    assert ceiling is not None
    assert now + timedelta(days=2) < ceiling <= now + timedelta(days=3)
    claimed = [
        at(datetime(1970, 1, 1, tzinfo=UTC)),
        at(now - timedelta(days=900)),
        at(ceiling - timedelta(seconds=1)),
    ]
    assert claim_now(first, "time", claimed) == {}
    assert set(claim_now(first, "time", claimed)) == set(claimed)


def test_a_key_whose_partition_is_not_there_is_told_as_a_window_that_moved(
    first: psycopg.Connection[Any],
) -> None:
    far = at(datetime.now(UTC) + timedelta(days=40))
    with pytest.raises(LedgerRotated), first.transaction():
        claim(first, "time", 1, [far], [TWIN], within=Window(None, None))


@pytest.mark.parametrize(
    "key",
    [b"", uuid.uuid4().bytes, uuid.uuid1().bytes, new_event_id().bytes[:8] + bytes(8), b"\x00" * 16],
    ids=["empty", "version 4", "version 1", "other variant", "nil"],
)
def test_a_key_that_is_no_uuid7_is_refused(first: psycopg.Connection[Any], key: bytes) -> None:
    with pytest.raises(NotTimeOrdered, match="expected a UUIDv7"):
        time_of(key)
    if len(key) == 16:
        with first.transaction(), pytest.raises(NotTimeOrdered):
            claim(first, "time", 1, [new_key(), key], [TWIN] * 2, within=ALL)


@given(st.integers(0, 253_402_300_799_998_999))
def test_the_time_of_a_key_is_its_millisecond(microseconds: int) -> None:
    instant = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    milliseconds = instant.replace(microsecond=instant.microsecond // 1000 * 1000)
    assert time_of(at(instant)) == milliseconds
    assert bound_of(milliseconds) <= at(instant) < bound_of(milliseconds + timedelta(milliseconds=1))


def test_a_key_from_beyond_the_calendar_has_the_last_time_there_is() -> None:
    assert time_of(b"\xff" * 6 + b"\x7f\xff\xbf" + b"\xff" * 7).year == 9999


def test_the_database_has_the_same_bounds(first: psycopg.Connection[Any]) -> None:
    for instant in (datetime(1970, 1, 1, tzinfo=UTC), datetime(2026, 11, 30, 18, tzinfo=UTC)):
        row = first.execute("SELECT uuid_send(onefold.ledger_bound(%s))", (instant,)).fetchone()
        assert row == (bound_of(instant),)

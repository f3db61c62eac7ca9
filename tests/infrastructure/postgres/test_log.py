"""The log: appends with an expected version, all or nothing, never changed again."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.sql import SQL, Identifier

from onefold.domain.errors import UnstorableValue
from onefold.domain.event import Event, EventMeta, UnboundEvent
from onefold.domain.registry import Registry
from onefold.infrastructure.identity import new_event_id
from onefold.infrastructure.postgres.errors import DuplicateEventId, VersionConflict
from onefold.infrastructure.postgres.log import EventLog
from onefold.infrastructure.postgres.pool import Pool, open_pool

known = Registry()


class Noted(Event, name="log.noted", registry=known):
    text: str = ""


class Counted(Event, name="log.counted", registry=known):
    numbers: dict[str, int]


class Weighed(Event, name="log.weighed", version=3, registry=known):
    kilograms: Decimal


def note(stream: str, version: int, text: str = "", **meta: Any) -> Event:
    return Noted(text=text).bound(EventMeta(stream, version, **meta))


def notes(stream: str, versions: Sequence[int]) -> list[Event]:
    return [note(stream, version) for version in versions]


@pytest.fixture
def log(pool: Pool) -> EventLog:
    return EventLog(pool, registry=known)


def rows(connection: psycopg.Connection[Any], columns: str = "stream, version") -> list[Any]:
    query = SQL("SELECT {} FROM onefold.events ORDER BY position").format(
        SQL(", ").join(Identifier(column.strip()) for column in columns.split(","))
    )
    return connection.execute(query).fetchall()


def require_streams_without_holes_or_forks(connection: psycopg.Connection[Any]) -> dict[str, int]:
    """Versions of each stream rise from 1 by one, in the order of positions; return the last of each."""
    last: dict[str, int] = defaultdict(int)
    for stream, version in rows(connection):
        assert version == last[stream] + 1, f"{stream}: version {version} after {last[stream]}"
        last[stream] = version
    return dict(last)


def test_an_appended_event_comes_back_as_it_was_with_its_place(log: EventLog) -> None:
    happened = datetime(2024, 2, 29, 12, 30, 0, 123_456, tzinfo=timezone(timedelta(hours=-3)))
    event_id = uuid4()
    before = datetime.now(UTC) - timedelta(seconds=5)
    (stored,) = log.append(
        [
            Weighed(kilograms=Decimal("1.50")).bound(
                EventMeta("a/1", 1, occurred_at=happened, event_id=event_id)
            )
        ],
        metadata={"actor": "ana", "tags": ["x", 1]},
    )
    (loaded,) = log.load("a/1")
    for event in (stored, loaded):
        assert event == Weighed(kilograms=Decimal("1.50"))
        meta = event.meta
        assert (meta.stream, meta.version, meta.position) == ("a/1", 1, 1)
        assert meta.occurred_at == happened
        assert meta.event_id == event_id
        assert meta.metadata == {"actor": "ana", "tags": ["x", 1]}
        assert meta.recorded_at is not None
        assert before < meta.recorded_at < datetime.now(UTC) + timedelta(seconds=5)
    assert stored.meta.recorded_at == loaded.meta.recorded_at


def test_an_event_that_was_given_no_instant_and_no_id_gets_both(log: EventLog) -> None:
    stored = log.append([note("a/1", 1), note("a/1", 2), note("b/1", 1)])
    loaded = [*log.load("a/1"), *log.load("b/1")]
    assert [event.meta.occurred_at for event in stored] == [event.meta.occurred_at for event in loaded]
    ids = [event.meta.event_id for event in stored]
    assert ids == [event.meta.event_id for event in loaded]
    assert len(set(ids)) == 3
    for event in stored:
        assert event.meta.event_id is not None
        assert event.meta.event_id.version == 7
        assert abs(event.meta.happened - datetime.now(UTC)) < timedelta(seconds=60)
        assert event.meta.metadata == {}


def test_ids_rise_with_time() -> None:
    first = new_event_id()
    time.sleep(0.002)
    second = new_event_id()
    assert first < second
    assert (first.version, first.variant) == (7, "specified in RFC 4122")


def test_stored_events_are_readable_json(log: EventLog, connection: psycopg.Connection[Any]) -> None:
    log.append([Weighed(kilograms=Decimal("1.50")).bound(EventMeta("a/1", 1))], metadata={"actor": "ana"})
    assert rows(connection, "type, schema_version, data, metadata, raw") == [
        ("log.weighed", 3, {"kilograms": "1.50"}, {"actor": "ana"}, None)
    ]


def test_appending_nothing_writes_nothing(log: EventLog, connection: psycopg.Connection[Any]) -> None:
    assert log.append([]) == []
    assert rows(connection) == []


def test_an_event_without_a_stream_is_refused(log: EventLog) -> None:
    with pytest.raises(UnboundEvent, match="Noted belongs to no stream yet"):
        log.append([Noted()])


def test_a_part_of_a_stream_can_be_loaded(log: EventLog) -> None:
    log.append(notes("a/1", range(1, 8)))
    log.append(notes("a/10", [1]))

    def versions(**limits: int) -> list[int]:
        return [event.meta.version for event in log.load("a/1", **limits)]

    assert versions() == [1, 2, 3, 4, 5, 6, 7]
    assert versions(after=5) == [6, 7]
    assert versions(upto=2) == [1, 2]
    assert versions(after=2, upto=4) == [3, 4]
    assert versions(after=7) == []
    assert log.load("nobody/1") == []


@pytest.mark.parametrize(
    ("present", "appended", "expected"),
    [
        (0, [2], 1),
        (0, [3, 4], 2),
        (2, [1], 0),
        (2, [2], 1),
        (2, [4], 3),
        (2, [2, 3], 1),
        (2, [4, 5], 3),
    ],
)
@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in a transaction"])
def test_an_append_at_another_version_is_a_conflict_that_names_both(
    log: EventLog,
    connection: psycopg.Connection[Any],
    present: int,
    appended: list[int],
    expected: int,
    inside: bool,
) -> None:
    log.append(notes("a/1", range(1, present + 1)))
    given = connection if inside else None
    with (
        pytest.raises(VersionConflict) as caught,
        connection.transaction() if inside else contextlib.nullcontext(),
    ):
        log.append(notes("a/1", appended), connection=given)
    conflict = caught.value
    assert (conflict.stream, conflict.expected, conflict.found) == ("a/1", expected, present)
    assert str(conflict) == (
        f"stream a/1: expected version {expected}, found {present}; nothing was written. "
        "Load the aggregate again and repeat the command"
    )
    assert len(rows(connection)) == present


def test_a_gap_or_a_repeat_within_one_append_is_refused(
    log: EventLog, connection: psycopg.Connection[Any]
) -> None:
    for versions in ([1, 3], [1, 1], [1, 2, 2], [2, 1], [1, 3, 2]):
        with pytest.raises(VersionConflict):
            log.append(notes("a/1", versions))
    assert rows(connection) == []


def test_an_append_to_several_streams_is_all_or_nothing(
    log: EventLog, connection: psycopg.Connection[Any]
) -> None:
    log.append(notes("c/1", [1, 2]))
    with pytest.raises(VersionConflict) as caught:
        log.append([*notes("a/1", [1, 2]), *notes("b/1", [1]), *notes("c/1", [2, 3])])
    assert (caught.value.stream, caught.value.expected, caught.value.found) == ("c/1", 1, 2)
    assert rows(connection) == [("c/1", 1), ("c/1", 2)]
    stored = log.append([*notes("a/1", [1, 2]), *notes("b/1", [1]), *notes("c/1", [3])])
    assert [event.meta.position for event in stored] == sorted(event.meta.position for event in stored)
    assert rows(connection)[2:] == [("a/1", 1), ("a/1", 2), ("b/1", 1), ("c/1", 3)]


@pytest.mark.parametrize("count", [63, 64, 65, 3000])
def test_a_long_append_is_written_in_order(log: EventLog, count: int) -> None:
    stored = log.append([note("a/1", number, str(number)) for number in range(1, count + 1)])
    assert [event.meta.version for event in stored] == list(range(1, count + 1))
    positions = [event.meta.position for event in stored]
    assert positions == list(range(positions[0], positions[0] + count))
    assert log.load("a/1") == stored
    assert [event.text for event in log.load("a/1")] == [str(n) for n in range(1, count + 1)]  # type: ignore[attr-defined]


def test_an_event_id_stands_in_the_log_once(log: EventLog, connection: psycopg.Connection[Any]) -> None:
    taken = uuid4()
    log.append([note("a/1", 1, event_id=taken)])
    with pytest.raises(DuplicateEventId, match=f"event id {taken} for stream b/1 is already in the log"):
        log.append([note("b/1", 1, event_id=taken)])
    with pytest.raises(DuplicateEventId) as caught:
        log.append([*notes("c/1", [1, 2]), note("d/1", 1, event_id=taken), note("e/1", 1)])
    assert caught.value.event_id == taken
    assert "for stream d/1" in str(caught.value)
    with pytest.raises(DuplicateEventId) as caught, connection.transaction():
        log.append([*notes("c/1", [1]), note("d/1", 1, event_id=taken)], connection=connection)
    assert caught.value.event_id == taken
    twice = uuid4()
    with pytest.raises(DuplicateEventId) as caught:
        log.append([note("c/1", 1, event_id=twice), note("c/1", 2, event_id=twice)])
    assert caught.value.event_id == twice
    assert rows(connection) == [("a/1", 1)]


def test_one_refused_event_keeps_its_whole_batch_out(
    log: EventLog, connection: psycopg.Connection[Any]
) -> None:
    """Case H5: nothing is written, and the error names the field."""
    good = note("a/1", 1)
    with pytest.raises(UnstorableValue, match="field text contains a NUL character; nothing was written"):
        log.append([good, note("a/1", 2, "a\0b")])
    with pytest.raises(UnstorableValue, match="field text contains a lone surrogate"):
        log.append([good, note("a/1", 2, "a\ud83db")])
    with pytest.raises(UnstorableValue, match=r"key 'k\\x00' of numbers contains a NUL character"):
        log.append([good, Counted(numbers={"k\0": 1}).bound(EventMeta("a/1", 2))])
    with pytest.raises(UnstorableValue, match=r"key 'k\\x00' of metadata contains a NUL character"):
        log.append([good], metadata={"k\0": 1})
    with pytest.raises(UnstorableValue, match=r"field metadata\.ratio is nan"):
        log.append([good], metadata={"ratio": float("nan")})
    assert rows(connection) == []
    # The six characters of an escape are not the letter that they could stand for.
    log.append(
        [note("a/1", 1, "a\\u0000b"), note("a/1", 2, "\U0001f600 'ü' \\ \x01")], metadata={"k": "\\u0000"}
    )
    assert [event.text for event in log.load("a/1")] == ["a\\u0000b", "\U0001f600 'ü' \\ \x01"]  # type: ignore[attr-defined]
    assert log.load("a/1")[0].meta.metadata == {"k": "\\u0000"}


# --- blind writers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("versions", [20, pytest.param(2000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("shared", [True, False], ids=["one process's pool", "a connection each"])
def test_of_blind_writers_exactly_one_wins_each_version(
    database_url: str, shared: bool, versions: int
) -> None:
    """Sixteen writers, none of whom looks at the log: no hole, no fork, no event lost or stored twice."""
    writers = 16
    start = threading.Barrier(writers)

    with open_pool(database_url, size=writers) as pool:
        log = EventLog(pool, registry=known)

        def write(writer: int) -> list[int]:
            won = []
            with psycopg.connect(database_url, autocommit=True) as own:
                start.wait()
                version = 1
                while version <= versions:
                    try:
                        log.append([note("a/1", version, str(writer))], connection=None if shared else own)
                        won.append(version)
                        version += 1
                    except VersionConflict as conflict:
                        # Losers follow what the winners wrote.
                        version = max(version, conflict.found + 1)
            return won

        with ThreadPoolExecutor(writers) as threads:
            won = list(threads.map(write, range(writers)))
        loaded = log.load("a/1")
    assert sorted(version for versions_won in won for version in versions_won) == list(range(1, versions + 1))
    assert [event.meta.version for event in loaded] == list(range(1, versions + 1))
    for event in loaded:
        assert event.meta.version in won[int(event.text)]  # type: ignore[attr-defined]


def test_blind_appends_to_several_streams_leave_no_hole_and_no_fork(database_url: str) -> None:
    """Whatever is appended at whatever version and however many at a time, only what follows is stored."""
    writers = 8
    start = threading.Barrier(writers)
    with open_pool(database_url, size=writers) as pool, psycopg.connect(database_url) as connection:
        log = EventLog(pool, registry=known)

        def write(writer: int) -> Counter[str]:
            chance = random.Random(writer)
            stored: Counter[str] = Counter()
            at: dict[str, int] = defaultdict(int)
            start.wait()
            for _ in range(60):
                events = []
                for stream in chance.sample(["a/1", "b/1", "c/1"], k=chance.randint(1, 3)):
                    first = max(1, at[stream] + chance.choice([0, 1, 1, 1, 2]))
                    events += notes(stream, range(first, first + chance.randint(1, 3)))
                try:
                    log.append(events)
                    stored.update(event.meta.stream for event in events)
                    for event in events:
                        at[event.meta.stream] = event.meta.version
                except VersionConflict as conflict:
                    at[conflict.stream] = conflict.found
            return stored

        with ThreadPoolExecutor(writers) as threads:
            stored = sum(threads.map(write, range(writers)), Counter())
        assert require_streams_without_holes_or_forks(connection) == dict(stored)


def test_an_append_that_is_the_victim_of_a_deadlock_is_tried_again(
    log: EventLog, database_url: str, connection: psycopg.Connection[Any]
) -> None:
    """Two transactions append to the same two streams in opposite order; PostgreSQL ends one of them."""
    with ThreadPoolExecutor(1) as threads, psycopg.connect(database_url) as rival:
        rival.execute("SET deadlock_timeout = '60s'")
        log.append([note("b/1", 1)], connection=rival)
        appending = threads.submit(log.append, [note("a/1", 1), note("b/1", 1)])
        wait_for_waiters(connection, 1)
        log.append([note("a/1", 1)], connection=rival)
        rival.rollback()
        assert [event.meta.version for event in appending.result()] == [1, 1]
    assert rows(connection) == [("a/1", 1), ("b/1", 1)]


def test_an_event_that_drew_its_position_before_its_predecessor_is_refused(
    log: EventLog, database_url: str, connection: psycopg.Connection[Any]
) -> None:
    """Otherwise a stream's second event would stand before its first one in the order of the log."""
    insert = """
        INSERT INTO onefold.events (stream, version, type, event_id, data)
        SELECT stream, version, 'log.noted', gen_random_uuid(), '{}' FROM (
            VALUES ('a/1', 2, 0), ('b/1', 1, 0.5)
        ) early (stream, version, wait) WHERE pg_sleep(wait) IS NOT NULL
    """
    with ThreadPoolExecutor(1) as threads, psycopg.connect(database_url, autocommit=True) as other:
        early = threads.submit(other.execute, insert)
        time.sleep(0.2)
        log.append([note("a/1", 1)])
        with pytest.raises(psycopg.IntegrityError, match="hole in stream a/1: version 2 does not follow"):
            early.result()
    assert rows(connection) == [("a/1", 1)]


# --- immutability ----------------------------------------------------------------------------------------------------

SAME = "WITH same AS (SELECT stream, version, type, event_id, data FROM onefold.events) "
INSERT = "INSERT INTO onefold.events (stream, version, type, event_id, data) "
MERGE = "MERGE INTO onefold.events t USING onefold.events s ON t.position = s.position "
CHANGES = [
    "UPDATE onefold.events SET type = 'x'",
    "UPDATE onefold.events SET type = 'x' WHERE false",
    "UPDATE ONLY onefold.events SET data = '{}' WHERE position = 1",
    "DELETE FROM onefold.events",
    "DELETE FROM onefold.events WHERE position = 1",
    "WITH gone AS (DELETE FROM onefold.events RETURNING *) SELECT count(*) FROM gone",
    "TRUNCATE onefold.events",
    "TRUNCATE onefold.events CASCADE",
    f"{SAME} {INSERT} TABLE same ON CONFLICT (stream, version) DO UPDATE SET type = 'x'",
    f"{INSERT} VALUES ('n/1', 1, 't', gen_random_uuid(), '{{}}') ON CONFLICT (event_id) DO UPDATE SET type = 'x'",
    f"{MERGE} WHEN MATCHED THEN UPDATE SET type = 'x'",
    f"{MERGE} WHEN MATCHED THEN DELETE",
]


@contextmanager
def role(database_url: str, connection: psycopg.Connection[Any], *, owner: bool) -> Iterator[str]:
    """A role of its own that may do everything with the log, as its owner or by grants."""
    name = f"writer_{uuid4().hex}"
    who = Identifier(name)
    connection.execute(SQL("CREATE ROLE {} LOGIN").format(who))
    connection.execute(SQL("GRANT USAGE, CREATE ON SCHEMA onefold TO {}").format(who))
    if owner:
        connection.execute(SQL("ALTER TABLE onefold.events OWNER TO {}").format(who))
    else:
        connection.execute(SQL("GRANT ALL ON ALL TABLES IN SCHEMA onefold TO {}").format(who))
    try:
        yield name
    finally:
        connection.execute(SQL("REASSIGN OWNED BY {} TO CURRENT_USER").format(who))
        connection.execute(SQL("DROP OWNED BY {}").format(who))
        connection.execute(SQL("DROP ROLE {}").format(who))


@pytest.mark.parametrize("who", ["superuser", "superuser as a replica", "owner", "role with every grant"])
def test_nobody_changes_what_was_appended(
    log: EventLog, database_url: str, connection: psycopg.Connection[Any], who: str
) -> None:
    stored = log.append(notes("a/1", [1, 2, 3]))
    before = rows(connection, "position, stream, version, type, event_id, data, occurred_at, recorded_at")

    def refused(session: psycopg.Connection[Any]) -> None:
        for change in CHANGES:
            with pytest.raises(
                psycopg.errors.InsufficientPrivilege,
                match=r"on onefold\.events is refused: the log is append-only",
            ):
                session.execute(change.encode())

    if who.startswith("superuser"):
        if who.endswith("replica"):
            connection.execute("SET session_replication_role = replica")
        refused(connection)
        connection.execute("RESET session_replication_role")
    else:
        with (
            role(database_url, connection, owner=who == "owner") as name,
            psycopg.connect(database_url, user=name, autocommit=True) as session,
        ):
            refused(session)
    assert (
        rows(connection, "position, stream, version, type, event_id, data, occurred_at, recorded_at")
        == before
    )
    assert log.load("a/1") == stored


def test_a_position_cannot_be_chosen(connection: psycopg.Connection[Any]) -> None:
    with pytest.raises(psycopg.errors.GeneratedAlways):
        connection.execute(
            "INSERT INTO onefold.events (position, stream, version, type, event_id, data) "
            "VALUES (99, 'a/1', 1, 't', gen_random_uuid(), '{}')"
        )


# --- the caller's transaction ----------------------------------------------------------------------------------------


def test_an_append_in_the_caller_s_transaction_stands_or_falls_with_it(
    log: EventLog, connection: psycopg.Connection[Any]
) -> None:
    connection.execute("CREATE TABLE public.work (name text)")
    with connection.transaction(force_rollback=True):
        connection.execute("INSERT INTO public.work VALUES ('first')")
        log.append(notes("a/1", [1, 2]), connection=connection)
    assert rows(connection) == []
    with connection.transaction():
        connection.execute("INSERT INTO public.work VALUES ('second')")
        log.append(notes("a/1", [1]), connection=connection)
        log.append(notes("a/1", [2]), connection=connection)
        assert log.load("a/1") == []
    assert connection.execute("SELECT name FROM public.work").fetchall() == [("second",)]
    assert [event.meta.version for event in log.load("a/1")] == [1, 2]


def test_a_conflict_inside_a_savepoint_leaves_the_transaction_usable(
    log: EventLog, connection: psycopg.Connection[Any]
) -> None:
    log.append(notes("a/1", [1]))
    with connection.transaction():
        with pytest.raises(VersionConflict), connection.transaction():
            log.append(notes("a/1", [1]), connection=connection)
        log.append(notes("a/1", [2]), connection=connection)
    assert require_streams_without_holes_or_forks(connection) == {"a/1": 2}


def test_any_connection_of_the_caller_will_do(log: EventLog, database_url: str) -> None:
    """Rows as dicts, another zone, nothing registered: what comes back is the same."""
    happened = datetime(2024, 1, 1, tzinfo=UTC)
    with psycopg.connect(database_url, row_factory=dict_row, options="-c timezone=Asia/Kathmandu") as own:
        one = log.append([note("a/1", 1, occurred_at=happened)], connection=own)
        more = log.append([note("a/1", 2, occurred_at=happened), note("b/1", 1)], connection=own)
        assert [record[1] for record in log.records(own, "a/1")] == [1, 2]
        assert log.versions(own, ["a/1", "b/1", "c/1"]) == {"a/1": 2, "b/1": 1, "c/1": 0}
    loaded = [*log.load("a/1"), *log.load("b/1")]
    assert [tuple(event.meta)[:5] for event in (*one, *more)] == [tuple(event.meta)[:5] for event in loaded]
    assert loaded[0].meta.occurred_at == happened


# --- answers that are lost -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3, 100])
def test_an_append_whose_answer_is_lost_is_reported_as_stored_once(wire: Any, count: int) -> None:
    with open_pool(wire.url, size=2) as pool:
        log = EventLog(pool, registry=known)
        log.append([note("warm/1", 1)])
        wire.lose_answer_to(b"INSERT 0")
        stored = log.append(notes("a/1", range(1, count + 1)), metadata={"actor": "ana"})
        assert wire.lost.is_set()
        loaded = log.load("a/1")
    assert [event.meta.version for event in loaded] == list(range(1, count + 1))
    assert [tuple(event.meta)[:5] for event in stored] == [tuple(event.meta)[:5] for event in loaded]
    assert all(event.meta.metadata == {"actor": "ana"} for event in (*stored, *loaded))


@pytest.mark.parametrize("count", [1, 3])
def test_an_append_that_goes_on_after_the_line_was_cut_is_reported_as_stored_once(
    wire: Any, database_url: str, count: int
) -> None:
    """The second try comes while the first one still waits for a rival, and both go on at the same moment."""
    with (
        open_pool(wire.url, size=4) as pool,
        psycopg.connect(database_url) as rival,
        psycopg.connect(database_url, autocommit=True) as watch,
        ThreadPoolExecutor(1) as threads,
    ):
        log = EventLog(pool, registry=known)
        log.append([note("warm/1", 1)])
        log.append([note("a/1", 1, "the rival's")], connection=rival)
        appending = threads.submit(log.append, notes("a/1", range(1, count + 1)))
        wait_for_waiters(watch, 1)
        wire.cut()
        wait_for_waiters(watch, 2)
        rival.rollback()
        stored = appending.result()
        loaded = log.load("a/1")
    assert [event.meta.position for event in stored] == [event.meta.position for event in loaded]
    assert len(loaded) == count


def test_another_s_event_at_the_place_is_a_conflict_also_when_the_line_was_cut(
    wire: Any, database_url: str
) -> None:
    with (
        open_pool(wire.url, size=4) as pool,
        psycopg.connect(database_url) as rival,
        psycopg.connect(database_url, autocommit=True) as watch,
        ThreadPoolExecutor(1) as threads,
    ):
        log = EventLog(pool, registry=known)
        log.append([note("warm/1", 1)])
        log.append([note("a/1", 1, "the rival's")], connection=rival)
        appending = threads.submit(log.append, [note("a/1", 1, "ours")])
        wait_for_waiters(watch, 1)
        wire.cut()
        wait_for_waiters(watch, 2)
        rival.commit()
        with pytest.raises(VersionConflict):
            appending.result()
        assert [event.text for event in log.load("a/1")] == ["the rival's"]  # type: ignore[attr-defined]


def test_an_append_survives_that_every_connection_of_the_pool_is_gone(
    database_url: str, connection: psycopg.Connection[Any]
) -> None:
    with open_pool(database_url, size=4) as pool:
        log = EventLog(pool, registry=known)
        pool.resize(4)
        pool.wait()
        for version in range(1, 4):
            log.append(notes("a/1", [version]))
            kill_all_others(connection)
        log.append(notes("b/1", [1]))
        assert [event.meta.version for event in log.load("a/1")] == [1, 2, 3]


def test_a_load_survives_that_every_connection_of_the_pool_is_gone(
    database_url: str, connection: psycopg.Connection[Any]
) -> None:
    with open_pool(database_url, size=4) as pool:
        log = EventLog(pool, registry=known)
        pool.resize(4)
        pool.wait()
        log.append(notes("a/1", [1]))
        for _ in range(3):
            kill_all_others(connection)
            assert len(log.load("a/1")) == 1


@pytest.mark.parametrize("each", [60, pytest.param(3000, marks=pytest.mark.soak)])
def test_appends_go_on_exactly_once_while_their_connections_are_ended_at_random(
    database_url: str, connection: psycopg.Connection[Any], each: int
) -> None:
    """Every event that was reported as stored is there once, and every one that is there was reported."""
    writers = 4
    unknown: list[int] = []
    done = threading.Event()
    with open_pool(database_url, size=4) as pool, ThreadPoolExecutor(writers + 1) as threads:
        log = EventLog(pool, registry=known)

        def write(writer: int) -> int:
            version = 1
            while version <= each:
                try:
                    log.append([note(f"a/{writer}", version)])
                except psycopg.OperationalError:
                    # Every try was hit: whether it is stored is for the caller to see.
                    unknown.append(version)
                    if not log.load(f"a/{writer}", after=version - 1):
                        continue
                version += 1
            return each

        def end_one_after_another() -> int:
            chance = random.Random(7)
            ended = 0
            while not done.is_set():
                time.sleep(chance.uniform(0.0, 0.02))
                ended += kill_one_other(connection)
            return ended

        killing = threads.submit(end_one_after_another)
        try:
            written = list(threads.map(write, range(writers)))
        finally:
            done.set()
        assert killing.result() > 0
    assert len(unknown) <= each // 20
    assert require_streams_without_holes_or_forks(connection) == {f"a/{n}": w for n, w in enumerate(written)}


def wait_for_waiters(connection: psycopg.Connection[Any], count: int) -> None:
    """Wait until `count` backends of the database wait for a lock."""
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND wait_event_type = 'Lock' AND state = 'active'"
    )
    deadline = time.monotonic() + 10
    while True:
        row = connection.execute(query).fetchone()
        assert row is not None
        if row[0] >= count:
            return
        assert time.monotonic() < deadline, f"expected {count} waiting backends, found {row[0]}"
        time.sleep(0.01)


def kill_all_others(connection: psycopg.Connection[Any]) -> None:
    connection.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


def kill_one_other(connection: psycopg.Connection[Any]) -> int:
    found = connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1"
    ).fetchall()
    return len(found)


# --- wake-ups --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["x" * 7_900, "x" * 8_000, "x" * 8_001, "ü" * 4_000, "x" * 1_000_000],
    ids=["7900", "8000", "8001", "4000 of two bytes", "1 MB"],
)
@pytest.mark.parametrize("count", [1, 2])
def test_a_payload_of_any_size_is_stored_and_its_listeners_are_woken(
    database_url: str, log: EventLog, text: str, count: int
) -> None:
    """Case H8: a notification carries no payload, so it cannot be too long."""
    with psycopg.connect(database_url, autocommit=True) as listener:
        listener.execute(SQL("LISTEN {}").format(Identifier(log.channel)))
        log.append([note("a/1", version, text) for version in range(1, count + 1)])
        (heard,) = listener.notifies(timeout=2.0, stop_after=1)
    assert (heard.channel, heard.payload) == ("onefold_events", "")
    assert [event.text for event in log.load("a/1")] == [text] * count  # type: ignore[attr-defined]


def test_wake_ups_are_few_when_appends_are_many(database_url: str, log: EventLog) -> None:
    with psycopg.connect(database_url, autocommit=True) as listener:
        listener.execute(SQL("LISTEN {}").format(Identifier(log.channel)))
        started = time.monotonic()
        for version in range(1, 201):
            log.append([note("a/1", version)])
        took = time.monotonic() - started
        heard = list(listener.notifies(timeout=0.2))
    assert 1 <= len(heard) <= took / 0.005 + 1


# --- numbers beyond 32 and 53 bits -----------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [2**31 - 8, 2**53 - 2, 2**63 - 40])
def test_positions_beyond_32_and_53_bits_stay_exact(
    log: EventLog, connection: psycopg.Connection[Any], start: int
) -> None:
    """Case H11."""
    connection.execute(
        SQL("ALTER TABLE onefold.events ALTER COLUMN position RESTART WITH {}").format(SQL(str(start)))  # type: ignore[arg-type]
    )
    one = log.append([note("a/1", 1)])
    more = log.append(notes("a/1", range(2, 21)))
    positions = [event.meta.position for event in (*one, *more)]
    assert positions == list(range(start, start + 20))
    assert [event.meta.position for event in log.load("a/1")] == positions


def test_versions_beyond_32_bits_stay_exact(log: EventLog, connection: psycopg.Connection[Any]) -> None:
    connection.execute("ALTER TABLE onefold.events DISABLE TRIGGER after_append")
    log.append([note("a/1", 2**53 + 1)])
    connection.execute("ALTER TABLE onefold.events ENABLE ALWAYS TRIGGER after_append")
    log.append([note("a/1", 2**53 + 2)])
    assert [event.meta.version for event in log.load("a/1")] == [2**53 + 1, 2**53 + 2]
    with pytest.raises(VersionConflict) as caught:
        log.append([note("a/1", 2**53 + 2)])
    assert (caught.value.expected, caught.value.found) == (2**53 + 1, 2**53 + 2)


def test_another_log_of_the_same_database_is_apart(pool: Pool, connection: psycopg.Connection[Any]) -> None:
    connection.execute("SELECT onefold.create_log('onefold', 'other')")
    first, second = EventLog(pool, registry=known), EventLog(pool, name="other", registry=known)
    same = UUID(int=7)
    first.append([note("a/1", 1, "first", event_id=same)])
    second.append([note("a/1", 1, "second", event_id=same)])
    assert [event.text for event in second.load("a/1")] == ["second"]  # type: ignore[attr-defined]
    assert (first.channel, second.channel) == ("onefold_events", "onefold_other")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match=r"DELETE on onefold\.other is refused"):
        connection.execute("DELETE FROM onefold.other")

"""Reading the log in order: late commits are waited for, rollbacks are passed over, nothing is skipped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from psycopg.sql import SQL, Literal

from onefold.domain.event import Event, EventMeta
from onefold.domain.registry import Registry
from onefold.infrastructure.embedded import EmbeddedServer
from onefold.infrastructure.postgres.horizon import Horizon
from onefold.infrastructure.postgres.log import EventLog
from onefold.infrastructure.postgres.migrate import migrate
from onefold.infrastructure.postgres.pool import configure, open_pool
from onefold.infrastructure.postgres.reader import LogReader, Stall

known = Registry()


class Noted(Event, name="reader.noted", registry=known):
    text: str = ""


class Counted(Event, name="reader.counted", registry=known):
    number: int = 0


Open = Callable[[], psycopg.Connection[Any]]


class Writers:
    """Sessions that append in transactions of their own, each time to a stream that nobody else writes."""

    def __init__(self, log: EventLog, open_raw: Open) -> None:
        self._log = log
        self._open = open_raw
        self._streams = 0
        self._sessions: dict[int, psycopg.Connection[Any]] = {}

    def append(self, session: int, count: int = 1, event: Event | None = None) -> list[int]:
        """Append in the transaction that the session has open, or opens now; return the positions."""
        self._streams += 1
        connection = self._sessions.get(session) or self._sessions.setdefault(session, self._open())
        if connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            connection.execute("BEGIN")
        events = [
            (event or Noted()).bound(EventMeta(f"s/{self._streams}", version))
            for version in range(1, count + 1)
        ]
        return [each.meta.position for each in self._log.append(events, connection=connection)]

    def end(self, session: int, how: str = "COMMIT") -> None:
        if session in self._sessions:
            self._sessions[session].execute(how.encode())

    def commit(self, *sessions: int) -> None:
        for session in sessions:
            self.end(session)

    def roll_back(self, *sessions: int) -> None:
        for session in sessions:
            self.end(session, "ROLLBACK")


@pytest.fixture
def writers(pool: Any, open_raw: Open) -> Writers:
    return Writers(EventLog(pool, registry=known), open_raw)


@pytest.fixture
def reader(open_raw: Open) -> LogReader:
    return LogReader(open_raw(), registry=known)


def positions(reader: LogReader, after: int = 0, limit: int = 1000) -> list[int]:
    return [record[0] for record in reader.read(after, limit).records]


def drain(reader: LogReader, after: int = 0, limit: int = 1000) -> list[int]:
    """Every position up to the log's end; fails if the reader has to wait."""
    found: list[int] = []
    while True:
        page = reader.read(found[-1] if found else after, limit)
        assert not page.waiting
        if not page.records:
            return found
        found += [record[0] for record in page.records]


def test_an_empty_log_gives_an_empty_page(reader: LogReader) -> None:
    page = reader.read(0, 10)
    assert (page.after, page.upto, list(page.records), page.waiting) == (0, 0, [], False)
    assert reader.head() == 0


def test_pages_follow_each_other_without_a_gap_or_a_repeat(writers: Writers, reader: LogReader) -> None:
    written = writers.append(1, 7)
    writers.commit(1)
    first = reader.read(0, 3)
    second = reader.read(first.upto, 3)
    third = reader.read(second.upto, 3)
    assert [record[0] for page in (first, second, third) for record in page.records] == written
    assert (first.upto, second.after, second.upto, third.upto) == (3, 3, 6, 7)
    assert reader.read(7, 3).records == []
    assert reader.head() == 7


def test_a_page_that_was_asked_for_ahead_is_taken_if_it_is_the_one_that_is_read(
    writers: Writers, reader: LogReader
) -> None:
    written = writers.append(1, 6)
    writers.commit(1)
    types = frozenset({"reader.noted"})
    reader.read(0, 2, types)
    reader.prefetch(2, 2, types)
    assert [record[0] for record in reader.read(2, 2, types).records] == written[2:4]
    for after, limit, asked in [
        (3, 2, types),
        (2, 3, types),
        (2, 2, frozenset({"reader.counted"})),
        (2, 2, None),
    ]:
        reader.prefetch(2, 2, types)
        page = reader.read(after, limit, asked)
        assert [record[0] for record in page.records] == written[after : after + limit]
        assert all((record[8] is None) == (asked is not None and asked != types) for record in page.records)
    reader.prefetch(6, 2, types)
    more = writers.append(1, 1)
    writers.commit(1)
    assert [record[0] for record in reader.read(6, 2, types).records] == more


def test_a_record_is_decoded_into_the_event_with_its_place(writers: Writers, reader: LogReader) -> None:
    writers.append(1, 1, Noted(text="ü"))
    writers.commit(1)
    (record,) = reader.read(0, 10).records
    event = reader.event(record)
    assert event == Noted(text="ü")
    assert (event.meta.stream, event.meta.version, event.meta.position) == ("s/1", 1, 1)


def test_data_comes_only_for_the_types_that_are_asked_for(writers: Writers, reader: LogReader) -> None:
    writers.append(1, 1, Noted(text="a"))
    writers.append(1, 1, Counted(number=5))
    writers.commit(1)
    chosen = reader.read(0, 10, {"reader.counted"})
    assert [(record[7], record[8]) for record in chosen.records] == [
        ("reader.noted", None),
        ("reader.counted", '{"number": 5}'),
    ]
    assert [record[8] for record in reader.read(0, 10, set()).records] == [None, None]


def test_an_event_that_commits_late_is_waited_for_and_then_delivered_in_its_place(
    writers: Writers, reader: LogReader
) -> None:
    """Case H1, at the reader: A drew its number first and commits last."""
    (late,) = writers.append(1)
    (early,) = writers.append(2)
    writers.commit(2)
    for _ in range(3):
        page = reader.read(0, 10)
        assert (list(page.records), page.waiting) == ([], True)
    writers.commit(1)
    page = reader.read(0, 10)
    assert ([record[0] for record in page.records], page.waiting) == ([late, early], False)


def test_events_before_the_hole_are_delivered_while_it_is_waited_for(
    writers: Writers, reader: LogReader
) -> None:
    before = writers.append(1, 3)
    writers.commit(1)
    writers.append(2)
    after = writers.append(1, 2)
    writers.commit(1)
    page = reader.read(0, 10)
    assert ([record[0] for record in page.records], page.waiting) == (before, True)
    assert positions(reader, page.upto) == []
    writers.roll_back(2)
    assert positions(reader, page.upto) == after


def test_a_part_of_a_hole_that_fills_is_delivered_while_the_rest_is_open(
    writers: Writers, reader: LogReader
) -> None:
    (first,) = writers.append(1)
    (second,) = writers.append(2)
    (third,) = writers.append(3)
    writers.commit(3)
    assert positions(reader) == []
    writers.commit(1)
    page = reader.read(0, 10)
    assert ([record[0] for record in page.records], page.waiting) == ([first], True)
    writers.commit(2)
    assert positions(reader, first) == [second, third]


def test_numbers_that_were_rolled_back_are_passed_over_at_once(writers: Writers, reader: LogReader) -> None:
    kept = []
    for number in range(20):
        kept += writers.append(1)
        writers.commit(1)
        writers.append(2, number % 3 + 1)
        writers.roll_back(2)
    kept += writers.append(1)
    writers.commit(1)
    assert drain(reader, limit=4) == kept
    writers.append(2, 5)
    writers.roll_back(2)
    more = writers.append(1)
    writers.commit(1)
    assert drain(reader, kept[-1]) == more


def test_appends_that_begin_after_the_look_do_not_prolong_the_wait(
    writers: Writers, reader: LogReader
) -> None:
    """Newcomers draw numbers above the page, so a log that is always written to is still read."""
    writers.append(1)
    (seen,) = writers.append(2)
    writers.commit(2)
    assert reader.read(0, 10).waiting
    for newcomer in (3, 4, 5):
        writers.append(newcomer)
    writers.roll_back(1)
    page = reader.read(0, 10)
    assert [record[0] for record in page.records] == [seen]
    writers.roll_back(3, 4, 5)


def test_a_stall_names_who_is_waited_for(writers: Writers, reader: LogReader) -> None:
    writers.append(1)
    writers.append(2)
    writers.commit(2)
    reader.read(0, 10)
    assert reader.stall is not None
    assert reader.stall.high == 2
    assert reader.stall.holders == {
        (holder[0], holder[1])
        for holder in writers._sessions[1].execute(
            "SELECT virtualtransaction, pid FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        )
    }
    writers.commit(1)
    reader.read(0, 10)
    assert reader.stall is None


def test_a_reader_that_starts_during_an_open_append_skips_nothing(writers: Writers, open_raw: Open) -> None:
    (late,) = writers.append(1)
    (early,) = writers.append(2)
    writers.commit(2)
    reader = LogReader(open_raw(), registry=known)
    assert reader.read(0, 10).waiting
    writers.commit(1)
    assert drain(LogReader(open_raw(), registry=known)) == drain(reader) == [late, early]


def test_open_transactions_that_append_nothing_delay_nothing(
    writers: Writers, reader: LogReader, database_url: str, server_url: str
) -> None:
    """Not in this database and not in another, whatever they have written, locked or numbered."""
    with psycopg.connect(server_url) as elsewhere, psycopg.connect(database_url) as here:
        elsewhere.execute("SELECT pg_current_xact_id(), pg_advisory_xact_lock_shared(1)")
        elsewhere.execute("CREATE TEMP TABLE busy ON COMMIT DROP AS SELECT 1 AS one")
        here.execute("CREATE TABLE public.busy AS SELECT pg_current_xact_id()::text AS id")
        here.execute("SELECT * FROM onefold.events FOR SHARE")
        here.execute("SELECT pg_advisory_xact_lock(17)")
        writers.append(1)
        writers.roll_back(1)
        written = writers.append(2, 3)
        writers.commit(2)
        assert drain(reader) == written
        here.rollback()
        elsewhere.rollback()


def test_an_open_append_to_another_log_delays_nothing(
    writers: Writers, pool: Any, open_raw: Open, connection: psycopg.Connection[Any]
) -> None:
    connection.execute("SELECT onefold.create_log('onefold', 'other')")
    others = Writers(EventLog(pool, name="other", registry=known), open_raw)
    others.append(1)
    writers.append(1)
    writers.roll_back(1)
    (written,) = writers.append(2)
    writers.commit(2)
    assert drain(LogReader(open_raw(), registry=known)) == [written]
    others.roll_back(1)


def test_a_number_that_is_rolled_back_to_a_savepoint_is_passed_over(
    writers: Writers, reader: LogReader, connection: psycopg.Connection[Any]
) -> None:
    (first,) = writers.append(1)
    session = writers._sessions[1]
    session.execute("SAVEPOINT here")
    writers.append(1, 2)
    session.execute("ROLLBACK TO here")
    (last,) = writers.append(1)
    (other,) = writers.append(2)
    writers.commit(2)
    assert reader.read(0, 10).waiting
    writers.commit(1)
    assert drain(reader) == [first, last, other]


def test_a_log_full_of_old_holes_is_caught_up_with_without_waiting(
    connection: psycopg.Connection[Any], reader: LogReader
) -> None:
    with connection.transaction():
        connection.execute(
            """
            DO $$ BEGIN
                FOR number IN 1..3000 LOOP
                    INSERT INTO onefold.events (stream, version, type, event_id, data)
                    VALUES ('s/' || number, 1, 'reader.noted', gen_random_uuid(), '{}');
                    PERFORM nextval('onefold.events_position_seq') FROM generate_series(1, number % 4);
                END LOOP;
            END $$
            """
        )
    started = time.monotonic()
    found = drain(reader, limit=500)
    took = time.monotonic() - started
    assert len(found) == 3000
    assert found[-1] > 7000
    assert took < 1.0


def test_one_wait_settles_every_hole_that_is_older_than_it(writers: Writers, reader: LogReader) -> None:
    """While a long log is caught up with, appends that began later are not waited for page after page."""
    reader.read(0, 5)
    kept: list[int] = []
    writers.append(9)
    for _ in range(30):
        kept += writers.append(1)
        writers.commit(1)
        writers.append(2)
        writers.roll_back(2)
    kept += writers.append(1)
    writers.commit(1)
    assert reader.read(0, 5).waiting
    writers.append(8)
    writers.roll_back(9)
    assert drain(reader, limit=5) == kept
    writers.roll_back(8)


def test_an_open_hole_is_looked_at_without_reading_what_lies_behind_it(
    writers: Writers, reader: LogReader
) -> None:
    """A hole that stays open for minutes is looked at thousands of times."""
    writers.append(1)
    writers.append(2, 5000, Noted(text="x" * 500))
    writers.commit(2)
    assert reader.read(0, 10_000).waiting
    started = time.monotonic()
    for _ in range(100):
        assert reader.read(0, 10_000).waiting
    assert time.monotonic() - started < 1.0
    writers.commit(1)
    assert len(reader.read(0, 10_000).records) == 5001


@pytest.fixture
def raw_connection(open_raw: Open) -> psycopg.Connection[Any]:
    return open_raw()


sessions = st.integers(min_value=1, max_value=4)
steps = st.one_of(
    st.tuples(st.just("append"), sessions, st.integers(1, 3)),
    st.tuples(st.just("append"), sessions, st.integers(1, 3)),
    st.tuples(st.just("commit"), sessions, st.just(0)),
    st.tuples(st.just("roll back"), sessions, st.just(0)),
    st.tuples(st.just("read"), st.integers(1, 6), st.just(0)),
    st.tuples(st.just("read"), st.integers(1, 6), st.just(0)),
    st.tuples(st.just("ask ahead"), st.integers(1, 6), st.just(0)),
    st.tuples(st.just("restart"), st.just(0), st.just(0)),
)


@example(
    script=[
        ("append", 1, 1),
        ("append", 2, 1),
        ("commit", 2, 0),
        ("read", 5, 0),
        ("commit", 1, 0),
        ("read", 5, 0),
    ]
)
@example(
    script=[
        ("append", 1, 1),
        ("append", 2, 1),
        ("commit", 2, 0),
        ("ask ahead", 5, 0),
        ("commit", 1, 0),
        ("read", 5, 0),
    ]
)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=st.lists(steps, min_size=4, max_size=30))
def test_however_appends_commits_rollbacks_and_reads_interleave_each_event_is_read_once_in_order(
    writers: Writers, raw_connection: psycopg.Connection[Any], script: list[tuple[str, int, int]]
) -> None:
    reader = LogReader(raw_connection, registry=known)
    start = cursor = drained(reader)
    seen: list[int] = []
    open_positions: dict[int, list[int]] = {}
    for action, number, count in script:
        if action == "append":
            open_positions.setdefault(number, []).extend(writers.append(number, count))
        elif action == "commit":
            writers.commit(number)
            open_positions.pop(number, None)
        elif action == "roll back":
            writers.roll_back(number)
            open_positions.pop(number, None)
        elif action == "ask ahead":
            reader.prefetch(cursor, number)
        elif action == "restart":
            reader = LogReader(raw_connection, registry=known)
        else:
            page = reader.read(cursor, number)
            found = [record[0] for record in page.records]
            still_open = [position for kept in open_positions.values() for position in kept]
            # Nothing is delivered that an open append may still come before.
            assert not found or not still_open or found[-1] < min(still_open)
            assert page.upto == (found[-1] if found else cursor)
            seen += found
            cursor = page.upto
    writers.commit(*open_positions)
    while page := reader.read(cursor, 5):
        if not page.records:
            assert not page.waiting
            break
        seen += [record[0] for record in page.records]
        cursor = page.upto
    stored = raw_connection.execute(
        "SELECT position FROM onefold.events WHERE position > %s ORDER BY position", (start,)
    ).fetchall()
    assert seen == [position for (position,) in stored]


def drained(reader: LogReader) -> int:
    head = reader.head()
    return (drain(reader, 0, 10_000) or [0])[-1] if head else 0


def holder(name: str, pid: int | None) -> tuple[str, int | None]:
    return (name, pid)


A, B, C = holder("3/1", 30), holder("4/1", 40), holder("3/2", 30)
PREPARED, OTHER = holder("-1/700", None), holder("-1/701", None)


@pytest.mark.parametrize(
    ("what", "waited_for", "present", "left"),
    [
        ("all are still there", {A, B}, {A, B}, {A, B}),
        ("newcomers do not matter", {A}, {A, B, C}, {A}),
        ("one has ended", {A, B}, {B, C}, {B}),
        ("all have ended", {A, B}, {C}, None),
        ("its connection went on with the next transaction", {A}, {C}, None),
        ("it was prepared", {A, B}, {B, PREPARED}, {B, PREPARED}),
        ("it ended, and something was prepared that may be it", {A}, {PREPARED, OTHER}, {PREPARED, OTHER}),
        ("nobody has ended, so what was prepared is not of them", {A, B}, {A, B, PREPARED}, {A, B}),
        ("what was prepared has ended", {PREPARED}, {OTHER}, None),
        ("what was prepared is still there", {PREPARED}, {PREPARED, OTHER}, {PREPARED}),
    ],
)
def test_a_stall_waits_for_those_who_were_there_under_whatever_name(
    what: str, waited_for: set[Any], present: set[Any], left: set[Any] | None
) -> None:
    narrowed = Stall(9, frozenset(waited_for)).narrowed(frozenset(present))
    assert narrowed == (None if left is None else Stall(9, frozenset(left))), what


@pytest.fixture(scope="module")
def two_phase_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of its own, because preparing transactions must be allowed at its start."""
    home: Path = tmp_path_factory.mktemp("two-phase")
    for folder in (home, *home.parents[:2]):
        folder.chmod(0o755)
    allowed = {"max_prepared_transactions": "5", "fsync": "off"}
    with EmbeddedServer(home, settings=allowed).hold() as url:
        with psycopg.connect(url, autocommit=True) as connection:
            migrate(connection)
        yield url


@pytest.mark.parametrize("outcome", ["COMMIT PREPARED", "ROLLBACK PREPARED"])
@pytest.mark.parametrize("prepared", ["before the first look", "between two looks"])
def test_a_prepared_append_is_waited_for_until_its_second_phase(
    two_phase_url: str, outcome: str, prepared: str
) -> None:
    """Its lock passes from its process to the prepared transaction, which has another name and no process."""
    with (
        open_pool(two_phase_url) as pool,
        psycopg.connect(two_phase_url, autocommit=True) as first,
        psycopg.connect(two_phase_url, autocommit=True) as reading,
        psycopg.connect(two_phase_url, autocommit=True) as looking,
    ):
        log = EventLog(pool, registry=known)
        configure(reading)
        reader, horizon = LogReader(reading, registry=known), Horizon("onefold", "events")
        cursor = drained(reader)
        stream = f"{outcome} {prepared}"
        first.execute("BEGIN")
        # By hand, since a transaction that has sent a wake-up cannot be prepared.
        insert = "VALUES (%s, 1, 'reader.noted', gen_random_uuid(), '{}') RETURNING position"
        found = first.execute(
            f"INSERT INTO onefold.events (stream, version, type, event_id, data) {insert}",
            (f"late/{stream}",),
        ).fetchone()
        assert found is not None
        late = found[0]
        (early,) = log.append([Noted().bound(EventMeta(f"early/{stream}", 1))])
        if prepared == "between two looks":
            assert reader.read(cursor, 10).waiting
            assert horizon.settle(looking) < late
        first.execute(SQL("PREPARE TRANSACTION {}").format(Literal(stream)))
        for _ in range(3):
            assert reader.read(cursor, 10).waiting
            assert horizon.settle(looking) < late
        first.execute(SQL("{} {}").format(SQL(outcome), Literal(stream)))  # type: ignore[arg-type]
        there = [late] if outcome == "COMMIT PREPARED" else []
        assert drain(reader, cursor) == [*there, early.meta.position]
        assert horizon.settle(looking) >= early.meta.position


def test_a_page_that_was_asked_for_ahead_is_the_one_that_is_read(writers: Writers, reader: LogReader) -> None:
    first, second, third, fourth = (writers.append(1, 1)[0] for _ in range(4))
    writers.commit(1)
    assert positions(reader, 0, 2) == [first, second]
    reader.prefetch(second, 2)
    assert positions(reader, second, 2) == [third, fourth]
    reader.prefetch(third, 2)
    assert positions(reader, 0, 3) == [first, second, third], "another page had been asked for"
    assert drain(reader, third) == [fourth]


def test_an_event_that_commits_after_a_page_was_asked_for_ahead_is_not_skipped(
    writers: Writers, reader: LogReader
) -> None:
    first = writers.append(1)[0]
    writers.commit(1)
    late = writers.append(1)[0]
    early = writers.append(2)[0]
    writers.commit(2)
    assert positions(reader) == [first]
    # The page has the hole; then what fills it is committed, which ends the wait for its holder.
    reader.prefetch(first, 1000)
    writers.commit(1)
    assert drain(reader, first) == [late, early]

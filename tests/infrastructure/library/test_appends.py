"""Appends through the library's recorders: what they store, whom they wait for, and what becomes of lost answers."""

from __future__ import annotations

import threading
import time
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from eventsourcing.persistence import (
    DataError,
    IntegrityError,
    OperationalError,
    ProgrammingError,
    StoredEvent,
    Tracking,
)

from onefold.domain.errors import UnstorableValue
from onefold.infrastructure.postgres import ApplicationRecorder, ProcessRecorder, datastore
from onefold.infrastructure.postgres.recorders import channel_of


def event(
    version: int = 1, *, stream: UUID | None = None, state: bytes = b"{}", topic: str = "a:B"
) -> StoredEvent:
    return StoredEvent(stream or uuid4(), version, topic, state)


def rows(connection: psycopg.Connection, query: Any, *values: Any) -> list[Any]:
    return connection.execute(query, values).fetchall()


def test_json_is_kept_as_json_and_read_with_psql(recorder: Any, connection: psycopg.Connection) -> None:
    stored = event(state=b'{"name": "Alice", "amounts": [1, 2.50]}')
    recorder.insert_events([stored])
    found = rows(connection, "SELECT data ->> 'name', data #>> '{amounts,1}', raw FROM onefold.stored_events")
    assert found == [("Alice", "2.50", None)]


def test_what_is_not_json_survives_byte_for_byte(recorder: Any, connection: psycopg.Connection) -> None:
    state = bytes(range(256))
    stored = event(state=state)
    recorder.insert_events([stored])
    assert rows(connection, "SELECT data, raw FROM onefold.stored_events") == [(None, state)]
    assert recorder.select_events(stored.originator_id) == [stored]
    assert recorder.select_notifications(None, 10)[0].state == state


def test_an_event_gets_a_time_ordered_id_and_both_instants(
    recorder: Any, connection: psycopg.Connection
) -> None:
    stamped = b'{"timestamp":{"_type_":"datetime_iso","_data_":"2024-02-29T12:00:00.000001+00:00"}}'
    recorder.insert_events([event(state=stamped), event(state=b"\x00")])
    first, second = rows(
        connection,
        "SELECT event_id, schema_version, occurred_at::text, recorded_at >= now() - interval '1 minute',"
        " abs(extract(epoch FROM recorded_at - occurred_at)) < 1 FROM onefold.stored_events ORDER BY position",
    )
    assert first[0].version == second[0].version == 7
    assert first[1:4] == (1, "2024-02-29 12:00:00.000001+00", True)
    assert second[3:] == (True, True)


def test_metadata_is_kept_beside_each_event(recorder: Any, connection: psycopg.Connection) -> None:
    recorder.insert_events([event(), event()], metadata={"actor": "alice", "tenant": 7})
    recorder.insert_events([event()], metadata=None)
    found = rows(connection, "SELECT metadata FROM onefold.stored_events ORDER BY position")
    assert found == [({"actor": "alice", "tenant": 7},)] * 2 + [(None,)]
    assert recorder.select_notifications(1, 1)[0].meta.metadata == {"actor": "alice", "tenant": 7}


def test_metadata_that_cannot_be_kept_is_refused_before_anything_is_written(recorder: Any) -> None:
    with pytest.raises(UnstorableValue, match=r"metadata\.actor"):
        recorder.insert_events([event()], metadata={"actor": "nul\x00"})
    with pytest.raises(TypeError, match="expected metadata as a mapping, found str"):
        recorder.insert_events([event()], metadata="alice")
    assert recorder.max_notification_id() is None


def test_a_stream_begins_with_version_0_or_1_and_has_no_hole(recorder: Any) -> None:
    first, second = uuid4(), uuid4()
    recorder.insert_events([event(0, stream=first), event(1, stream=first), event(1, stream=second)])
    with pytest.raises(
        IntegrityError, match=r"expected to append to .* at version 4, found a hole in stream"
    ):
        recorder.insert_events([event(4, stream=first)])
    with pytest.raises(IntegrityError, match=r"found a version taken .*nothing was written"):
        recorder.insert_events([event(2, stream=first), event(1, stream=second)])
    assert [each.originator_version for each in recorder.select_events(first)] == [0, 1]


def test_an_id_that_is_no_uuid_is_refused_with_the_setting_that_allows_it(
    recorder: Any, make_factory: Any
) -> None:
    with pytest.raises(
        DataError, match="expected a UUID as originator id, found 'order/1'; set ORIGINATOR_ID_TYPE"
    ):
        recorder.insert_events([StoredEvent("order/1", 1, "a:B", b"{}")])
    texts = make_factory("texts", ORIGINATOR_ID_TYPE="text").application_recorder()
    texts.insert_events([StoredEvent("order/1", 1, "a:B", b"{}")])
    assert texts.select_events("order/1")[0].originator_id == "order/1"


def test_a_uuid_written_as_text_is_the_same_stream(recorder: Any) -> None:
    stored = event()
    recorder.insert_events([stored])
    assert recorder.select_events(str(stored.originator_id).upper())[0].originator_id == stored.originator_id


def test_applications_keep_their_logs_apart(make_factory: Any) -> None:
    one, two = (make_factory(name).application_recorder() for name in ("Shop", "Bank"))
    stored = event()
    assert one.insert_events([stored]) == [1]
    assert two.insert_events([stored]) == [1]
    assert (one.table.as_string(), two.table.as_string()) == (
        '"onefold"."shop_events"',
        '"onefold"."bank_events"',
    )


def test_the_log_refuses_to_be_changed(recorder: Any, connection: psycopg.Connection) -> None:
    recorder.insert_events([event()])
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="the log is append-only"):
        connection.execute("UPDATE onefold.stored_events SET type = 'x'")


def test_an_open_append_stops_no_other_writer(recorder: Any, other: psycopg.Connection) -> None:
    other.execute(
        "INSERT INTO onefold.stored_events (version, event_id, stream, type, data)"
        " VALUES (1, gen_random_uuid(), 's', 't', '{}')"
    )
    begun = time.monotonic()
    for _ in range(10):
        recorder.insert_events([event()])
    assert time.monotonic() - begun < 2


def test_open_appends_interleave_and_neither_waits_for_the_other(recorder: Any, database_url: str) -> None:
    insert = (
        "INSERT INTO onefold.stored_events (version, event_id, stream, type, data)"
        " VALUES (%s, gen_random_uuid(), %s, 't', '{}') RETURNING position"
    )
    with psycopg.connect(database_url) as one, psycopg.connect(database_url) as two:
        for connection in (one, two):
            connection.execute("SET lock_timeout = '1s'")
        one_first = rows(one, insert, 1, str(UUID(int=1)))
        two_first = rows(two, insert, 1, str(UUID(int=2)))
        one_second = rows(one, insert, 2, str(UUID(int=1)))
        one.commit()
        two.commit()
    assert (one_first, two_first, one_second) == ([(1,)], [(2,)], [(3,)])
    assert [each.id for each in recorder.select_notifications(1, 10)] == [1, 2, 3]


def test_a_lock_timeout_is_reported_after_one_try(make_factory: Any, other: psycopg.Connection) -> None:
    recorder = make_factory(POSTGRES_LOCK_TIMEOUT="1").application_recorder()
    stored = event()
    other.execute(
        "INSERT INTO onefold.stored_events (version, event_id, stream, type, data)"
        " VALUES (1, gen_random_uuid(), %s, 't', '{}')",
        (str(stored.originator_id),),
    )
    begun = time.monotonic()
    with pytest.raises(OperationalError, match="lock timeout"):
        recorder.insert_events([stored])
    assert 0.9 < time.monotonic() - begun < 3
    other.rollback()
    recorder.insert_events([stored])


def test_a_pool_that_is_busy_is_reported_after_one_try(make_factory: Any) -> None:
    factory = make_factory(POSTGRES_POOL_SIZE="1", POSTGRES_MAX_OVERFLOW="0", POSTGRES_CONNECT_TIMEOUT="1")
    recorder = factory.application_recorder()
    begun = time.monotonic()
    with (
        factory.datastore.get_connection(),
        pytest.raises(OperationalError, match="couldn't get a connection"),
    ):
        recorder.insert_events([event()])
    assert time.monotonic() - begun < 3


def test_connections_that_the_server_ended_are_replaced(
    recorder: Any, connection: psycopg.Connection
) -> None:
    recorder.insert_events([event()])
    recorder.datastore.pool.wait()
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )
    assert recorder.insert_events([event()]) == [2]
    assert len(recorder.select_notifications(1, 10)) == 2


def test_a_server_that_stays_away_is_reported_in_the_end(
    recorder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datastore, "FIRST_WAIT", 0.0)
    attempts: list[int] = []

    def lose(attempt: int) -> None:
        attempts.append(attempt)
        with recorder.datastore.get_connection() as connection:
            connection.close()
            connection.execute("SELECT 1")

    with pytest.raises(OperationalError, match="closed"):
        datastore.retried(recorder.datastore, lose)
    assert attempts == list(range(datastore.ATTEMPTS))


def test_an_append_whose_answer_was_lost_is_told_as_stored(make_factory: Any, proxy: Any) -> None:
    recorder = make_factory(ONEFOLD_DATABASE_URL=proxy.url).application_recorder()
    assert recorder.insert_events([event()]) == [1]
    stored = [event(0), event(0)]
    proxy.lose(b"INSERT 0 2\x00")
    assert recorder.insert_events(stored) == [2, 3]
    assert proxy.lost == 1
    assert [each.id for each in recorder.select_notifications(1, 10)] == [1, 2, 3]


def test_a_true_conflict_after_a_lost_answer_is_still_a_conflict(
    make_factory: Any, proxy: Any, factory: Any
) -> None:
    recorder = make_factory(ONEFOLD_DATABASE_URL=proxy.url).application_recorder()
    stored = event()
    factory.application_recorder().insert_events([stored])
    proxy.lose(b"stream_version_key")
    with pytest.raises(IntegrityError):
        recorder.insert_events([stored])
    assert proxy.lost == 1


def test_events_and_position_whose_answer_was_lost_are_told_as_stored(make_factory: Any, proxy: Any) -> None:
    recorder = make_factory(ONEFOLD_DATABASE_URL=proxy.url).process_recorder()
    proxy.lose(b"COMMIT\x00")
    assert recorder.insert_events([event()], tracking=Tracking("upstream", 5)) == [1]
    proxy.lose(b"COMMIT\x00")
    assert recorder.insert_events([], tracking=Tracking("upstream", 6)) is None
    proxy.lose(b"COMMIT\x00")
    recorder.insert_tracking(Tracking("upstream", 7))
    assert proxy.lost == 3
    assert recorder.max_tracking_id("upstream") == 7
    for tracking in (Tracking("upstream", 6), Tracking("upstream", 7)):
        with pytest.raises(IntegrityError):
            recorder.insert_tracking(tracking)


def test_an_append_that_is_still_under_way_when_it_is_tried_again_is_stored_once(
    make_factory: Any, proxy: Any, other: psycopg.Connection, connection: psycopg.Connection
) -> None:
    recorder = make_factory(ONEFOLD_DATABASE_URL=proxy.url).application_recorder()
    stored = event()
    stream = str(stored.originator_id)
    other.execute(
        "INSERT INTO onefold.stored_events (version, event_id, stream, type, data)"
        " VALUES (1, gen_random_uuid(), %s, 'other', '{}')",
        (stream,),
    )
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(recorder.insert_events([stored])))
    thread.start()
    _until(lambda: _waiting(connection) == 1)
    proxy.cut()
    _until(lambda: _waiting(connection) == 2)
    other.rollback()
    thread.join(timeout=10)
    found = rows(connection, "SELECT position, type FROM onefold.stored_events WHERE stream = %s", stream)
    assert results == [[found[0][0]]]
    assert found == [(found[0][0], "a:B")]


def _waiting(connection: psycopg.Connection) -> int:
    query = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
    return int(rows(connection, query)[0][0])


def _until(condition: Any) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_position_and_events_are_stored_together_or_not_at_all(factory: Any) -> None:
    recorder = factory.process_recorder()
    stored = event()
    recorder.insert_events([stored], tracking=Tracking("upstream", 1))
    with pytest.raises(IntegrityError):
        recorder.insert_events([stored], tracking=Tracking("upstream", 2))
    assert recorder.max_tracking_id("upstream") == 1
    fresh = event()
    with pytest.raises(IntegrityError):
        recorder.insert_events([fresh], tracking=Tracking("upstream", 1))
    assert recorder.select_events(fresh.originator_id) == []


class WithNotes(ApplicationRecorder):
    """Writes a note into the transaction of the events."""

    def _insert_events(self, curs: Any, stored_events: Any, **kwargs: Any) -> None:
        super()._insert_events(curs, stored_events, **kwargs)
        curs.execute("INSERT INTO onefold.notes VALUES (%s)", (len(stored_events),))


class WithNotesToo(WithNotes, ProcessRecorder):
    pass


@pytest.mark.parametrize("recorder_class", [WithNotes, WithNotesToo])
def test_a_derived_recorder_writes_into_the_transaction_of_the_events(
    recorder_class: type[WithNotes], factory: Any, connection: psycopg.Connection
) -> None:
    connection.execute("CREATE TABLE onefold.notes (events integer)")
    recorder = recorder_class(factory.datastore, events_table_name="noted_events")
    recorder.create_table()
    stored = event()
    assert recorder.insert_events([stored]) == [1]
    with pytest.raises(IntegrityError):
        recorder.insert_events([stored])
    assert rows(connection, "SELECT events FROM onefold.notes") == [(1,)]


def test_a_table_name_that_postgres_would_cut_is_refused(factory: Any) -> None:
    with pytest.raises(ProgrammingError, match="at most 63 bytes"):
        ApplicationRecorder(factory.datastore, events_table_name="é" * 32)
    recorder = ApplicationRecorder(factory.datastore, events_table_name="s" * 63)
    recorder.create_table()
    assert recorder.insert_events([event()]) == [1]


def test_the_channel_of_a_log_fits_and_tells_long_names_apart() -> None:
    assert channel_of("bank_events") == "onefold_bank_events"
    long = [channel_of("x" * 62 + end) for end in "ab"]
    assert len(set(long)) == 2
    assert all(len(channel) <= 63 for channel in long)


def test_a_log_that_was_not_made_is_named(factory: Any) -> None:
    recorder = ApplicationRecorder(factory.datastore, events_table_name="missing_events")
    with pytest.raises(ProgrammingError, match="missing_events"):
        recorder.insert_events([event()])
    with pytest.raises(ProgrammingError, match="missing_events"):
        recorder.select_events(uuid4())

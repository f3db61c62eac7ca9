"""Notifications and subscriptions: nothing that is committed late is skipped, nobody waits for strangers."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from eventsourcing.persistence import ApplicationRecorder, Notification, StoredEvent

from onefold.infrastructure.postgres import subscription as subscriptions

INSERT = (
    "INSERT INTO onefold.stored_events (version, event_id, stream, type, data)"
    " VALUES (1, gen_random_uuid(), gen_random_uuid()::text, %s, '{}') RETURNING position"
)


def event(topic: str = "a:B") -> StoredEvent:
    return StoredEvent(uuid4(), 1, topic, b"{}")


def ids(notifications: Any) -> list[int]:
    return [each.id for each in notifications]


def append(connection: psycopg.Connection, topic: str = "a:B") -> int:
    row = connection.execute(INSERT, (topic,)).fetchone()
    assert row is not None
    return int(row[0])


def test_a_selection_ends_before_what_may_still_be_committed(
    recorder: Any, other: psycopg.Connection
) -> None:
    recorder.insert_events([event()])
    assert append(other) == 2
    recorder.insert_events([event(), event()])
    assert ids(recorder.select_notifications(None, 10)) == [1]
    assert ids(recorder.select_notifications(1, 10, stop=4)) == [1]
    assert ids(recorder.select_notifications(1, 10, inclusive_of_start=False)) == []
    assert ids(recorder.select_notifications(3, 10)) == [3, 4]
    other.commit()
    assert ids(recorder.select_notifications(1, 10, inclusive_of_start=False)) == [2, 3, 4]


def test_there_is_no_position_before_the_first(recorder: Any, other: psycopg.Connection) -> None:
    recorder.insert_events([event()])
    append(other)
    for start in (None, -5, 0, 1):
        assert ids(recorder.select_notifications(start, 10)) == [1]
    with recorder.subscribe(gt=-5) as subscription:
        assert next(subscription).id == 1


def test_a_position_that_was_rolled_back_is_passed_over(recorder: Any, other: psycopg.Connection) -> None:
    assert append(other) == 1
    recorder.insert_events([event(), event()])
    assert ids(recorder.select_notifications(None, 10)) == []
    other.rollback()
    assert ids(recorder.select_notifications(None, 10)) == [2, 3]
    assert ids(recorder.select_notifications(None, 1)) == [2]


def test_an_append_that_begins_later_does_not_hold_up_a_hole_that_is_settled(
    recorder: Any, other: psycopg.Connection, database_url: str
) -> None:
    append(other)
    recorder.insert_events([event()])
    assert ids(recorder.select_notifications(1, 10)) == []
    with psycopg.connect(database_url) as later:
        append(later)
        other.rollback()
        assert ids(recorder.select_notifications(1, 10)) == [2]
        later.rollback()


def test_a_selection_waits_a_moment_for_what_is_about_to_be_committed(
    recorder: Any, other: psycopg.Connection
) -> None:
    append(other)
    recorder.insert_events([event()])
    timer = threading.Timer(0.05, other.commit)
    timer.start()
    assert ids(recorder.select_notifications(1, 10)) == [1, 2]
    timer.join()


def test_a_strangers_open_transaction_delays_nothing(recorder: Any, other: psycopg.Connection) -> None:
    other.execute("CREATE TABLE elsewhere (id integer)")
    other.execute("INSERT INTO elsewhere VALUES (1)")
    recorder.insert_events([event()])
    assert ids(recorder.select_notifications(1, 10)) == [1]


def test_holes_are_judged_on_all_topics(recorder: Any, other: psycopg.Connection) -> None:
    recorder.insert_events([event("a:B"), event("a:C")])
    assert append(other, "a:C") == 3
    recorder.insert_events([event("a:B"), event("a:C")])
    assert ids(recorder.select_notifications(1, 10, topics=["a:C"])) == [2]
    assert ids(recorder.select_notifications(1, 10, topics=("a:B",))) == [1]
    other.commit()
    assert ids(recorder.select_notifications(1, 10, topics=["a:C"])) == [2, 3, 5]
    assert ids(recorder.select_notifications(2, 10, stop=4, topics=["a:B", "a:C"])) == [2, 3, 4]


def test_a_rare_topic_is_found_among_many_others(recorder: Any) -> None:
    recorder.insert_events([event("a:Often") for _ in range(700)] + [event("a:Rare")])
    recorder.insert_events([event("a:Often") for _ in range(700)] + [event("a:Rare")])
    assert ids(recorder.select_notifications(None, 1, topics=["a:Rare"])) == [701]
    assert ids(recorder.select_notifications(None, 10, topics=["a:Rare"])) == [701, 1402]
    assert ids(recorder.select_notifications(None, 2, topics=["a:Often"])) == [1, 2]
    assert ids(recorder.select_notifications(None, 10, topics=["a:Never"])) == []
    assert ids(recorder.select_notifications(None, 0)) == []


def test_a_subscription_delivers_what_is_committed_late(recorder: Any, other: psycopg.Connection) -> None:
    append(other)
    recorder.insert_events([event()])
    with recorder.subscribe(gt=0) as subscription:
        timer = threading.Timer(0.3, other.commit)
        timer.start()
        assert ids([next(subscription), next(subscription)]) == [1, 2]
        timer.join()


def test_a_subscription_passes_over_what_was_rolled_back(recorder: Any, other: psycopg.Connection) -> None:
    append(other)
    recorder.insert_events([event()])
    with recorder.subscribe() as subscription:
        timer = threading.Timer(0.2, other.rollback)
        timer.start()
        assert next(subscription).id == 2
        timer.join()


def test_subscriptions_skip_nothing_under_delayed_commits_and_rollbacks(
    recorder: Any, database_url: str
) -> None:
    writers, each = 8, 60
    received: list[list[int]] = [[], [], []]

    def read(subscription: Any, into: list[int]) -> None:
        into.extend(notification.id for notification in subscription)

    with contextlib.ExitStack() as stack:
        open_ones = [stack.enter_context(recorder.subscribe(gt=0)) for _ in received]
        readers = [threading.Thread(target=read, args=pair) for pair in zip(open_ones, received, strict=True)]
        for reader in readers:
            reader.start()
        with ThreadPoolExecutor(writers) as pool:
            written = list(pool.map(lambda seed: _write(database_url, seed, each), range(writers)))
        committed = sorted(position for positions in written for position in positions)
        deadline = time.monotonic() + 20
        while min(map(len, received)) < len(committed) and time.monotonic() < deadline:
            time.sleep(0.01)
        for subscription in open_ones:
            subscription.stop()
        for reader in readers:
            reader.join()
    assert len(committed) < writers * each
    assert received == [committed] * len(received)


def test_two_large_appends_at_once_are_complete_and_each_is_in_order(recorder: Any) -> None:
    streams = [uuid4(), uuid4()]
    batches = [[StoredEvent(stream, version, "a:B", b"{}") for version in range(1000)] for stream in streams]
    with ThreadPoolExecutor(2) as pool:
        positions = list(pool.map(recorder.insert_events, batches))
    found = recorder.select_notifications(None, 3000)
    assert ids(found) == sorted(positions[0] + positions[1]) == list(range(1, 2001))
    for stream, expected in zip(streams, positions, strict=True):
        own = [(each.id, each.originator_version) for each in found if each.originator_id == stream]
        assert own == list(zip(expected, range(1000), strict=True))
        assert expected == sorted(expected)


def _write(url: str, seed: int, count: int) -> list[int]:
    random = Random(seed)
    positions: list[int] = []
    with psycopg.connect(url) as connection:
        for _ in range(count):
            position = append(connection)
            time.sleep(random.uniform(0, 0.01))
            if random.random() < 0.1:
                connection.rollback()
            else:
                connection.commit()
                positions.append(position)
    return positions


def test_a_wake_up_arrives_long_before_the_next_poll(
    recorder: Any, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "FIRST_POLL", 20.0)
    with recorder.subscribe(gt=0) as subscription:
        thread, received = _receive(subscription, 1)
        _until(lambda: _listeners(connection))
        time.sleep(0.1)
        recorder.insert_events([event()])
        thread.join(timeout=5)
        assert received == [1]


def test_a_subscription_goes_on_when_its_connection_for_wake_ups_is_ended(
    recorder: Any, connection: psycopg.Connection
) -> None:
    with recorder.subscribe(gt=0) as subscription:
        thread, received = _receive(subscription, 2)
        _until(lambda: _listeners(connection))
        recorder.insert_events([event()])
        _until(lambda: len(received) == 1)
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
            " AND datname = current_database()"
        )
        _until(lambda: not _listeners(connection))
        recorder.insert_events([event()])
        thread.join(timeout=5)
        assert received == [1, 2]


def test_a_subscription_listens_again_after_its_connection_was_ended(
    recorder: Any, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "RECONNECT", 0.0)
    with recorder.subscribe(gt=0) as subscription:
        thread, received = _receive(subscription, 1)
        _until(lambda: _listeners(connection))
        (first,) = _listeners(connection)
        connection.execute("SELECT pg_terminate_backend(%s)", (first,))
        _until(lambda: _listeners(connection) not in ([], [first]))
        recorder.insert_events([event()])
        thread.join(timeout=5)
        assert received == [1]


def test_events_are_found_by_polling_alone(recorder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions.Listener, "start", lambda _: False)
    with recorder.subscribe(gt=0) as subscription:
        thread, received = _receive(subscription, 1)
        time.sleep(0.1)
        recorder.insert_events([event()])
        thread.join(timeout=5)
        assert received == [1]


def test_a_wait_ends_at_once_when_the_subscription_is_stopped(recorder: Any) -> None:
    with recorder.subscribe(gt=0) as subscription:
        thread, received = _receive(subscription, 1)
        time.sleep(0.3)
        begun = time.monotonic()
        subscription.stop()
        thread.join()
        assert time.monotonic() - begun < 0.2
        assert received == []
        with pytest.raises(StopIteration):
            next(subscription)


def test_a_subscription_leaves_no_thread_and_no_connection(
    recorder: Any, connection: psycopg.Connection
) -> None:
    recorder.insert_events([event()])
    before = threading.active_count()
    with recorder.subscribe(gt=0) as subscription:
        next(subscription)
        thread, _ = _receive(subscription, 1)
        _until(lambda: _listeners(connection))
        subscription.stop()
        thread.join()
    assert threading.active_count() <= before
    _until(lambda: not _listeners(connection))
    recorder.subscribe(gt=0)
    assert threading.active_count() <= before


def test_subscriptions_do_not_take_connections_from_a_pool_of_one(make_factory: Any) -> None:
    recorder: ApplicationRecorder = make_factory(
        POSTGRES_POOL_SIZE="1", POSTGRES_MAX_OVERFLOW="0", POSTGRES_CONNECT_TIMEOUT="2"
    ).application_recorder()
    with recorder.subscribe(gt=0) as one, recorder.subscribe(gt=0) as two:
        readers = [_receive(subscription, 3) for subscription in (one, two)]
        time.sleep(0.2)
        for _ in range(3):
            recorder.insert_events([event()])
        for thread, received in readers:
            thread.join(timeout=5)
            assert received == [1, 2, 3]


def test_a_subscription_to_a_rare_topic_does_not_look_through_the_others_again(recorder: Any) -> None:
    recorder.insert_events([event("a:Often") for _ in range(1200)])
    with recorder.subscribe(gt=0, topics=["a:Rare"]) as subscription:
        thread, received = _receive(subscription, 1)
        _until(lambda: subscription._position == 1200)
        recorder.insert_events([event("a:Rare")])
        thread.join(timeout=5)
        assert received == [1201]


def _receive(subscription: Any, count: int) -> tuple[threading.Thread, list[int]]:
    received: list[int] = []

    def read() -> None:
        for notification in subscription:
            received.append(notification.id)
            if len(received) == count:
                return

    thread = threading.Thread(target=read)
    thread.start()
    return thread, received


def _listeners(connection: psycopg.Connection) -> list[int]:
    query = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()"
    return [row[0] for row in connection.execute(query)]


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_was_read_equals_what_was_written(recorder: Any) -> None:
    stored = event()
    recorder.insert_events([stored])
    (back,) = recorder.select_events(stored.originator_id)
    (notification,) = recorder.select_notifications(None, 10)
    plain = Notification(stored.originator_id, 1, "a:B", b"{}", 1)
    assert back == stored
    assert hash(back) == hash(recorder.select_events(stored.originator_id)[0])
    assert notification == plain
    assert hash(notification) == hash(recorder.select_notifications(None, 10)[0])
    assert back != event()
    assert notification != Notification(stored.originator_id, 1, "a:B", b"{}", 2)
    assert notification != "a:B"

"""The repository: aggregates from their events, and snapshots that are never more than a shortcut."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from onefold.domain.aggregate import Aggregate, applies
from onefold.domain.event import Event
from onefold.domain.registry import Registry
from onefold.infrastructure.postgres.errors import AggregateNotFound, VersionConflict
from onefold.infrastructure.postgres.log import EventLog
from onefold.infrastructure.postgres.pool import Pool
from onefold.infrastructure.postgres.repository import Repository

KEPT = Registry()
AT = datetime(2026, 3, 4, 5, 6, 7, 890_123, tzinfo=UTC)


class Counter(Aggregate, category="counter"):
    class Counted(Event, name="counter.counted", registry=KEPT):
        by: int

    total: int = 0

    @applies(Counted)
    def _counted(self, event: Counted) -> None:
        self.total += event.by


@pytest.fixture
def log(pool: Pool) -> EventLog:
    return EventLog(pool, registry=KEPT)


def counted(key: str, *amounts: int) -> Counter:
    counter = Counter.new(key)
    for amount in amounts:
        counter.emit(Counter.Counted(by=amount), at=AT)
    return counter


def snapshots(connection: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    return connection.execute("SELECT stream, version FROM onefold.snapshots ORDER BY stream").fetchall()


def test_an_aggregate_comes_back_as_it_was_saved(log: EventLog) -> None:
    repository = Repository(log, Counter)
    saved = counted("a", 1, 2, 3)
    stored = repository.save(saved)
    assert [event.meta.version for event in stored] == [1, 2, 3]
    found = repository.get("a")
    assert (found.total, found.version, found.created_on, found.modified_on) == (6, 3, AT, AT)
    assert repository.save(found) == []


def test_an_aggregate_can_be_seen_as_of_a_version(log: EventLog) -> None:
    repository = Repository(log, Counter)
    repository.save(counted("a", 1, 2, 3))
    assert repository.get("a", version=2).total == 3
    with pytest.raises(AggregateNotFound, match="stream counter/a has no events at version 4"):
        repository.get("a", version=4)
    with pytest.raises(AggregateNotFound, match="stream counter/b has no events"):
        repository.get("b")


def test_a_stream_that_moved_on_keeps_its_events_and_the_aggregate_keeps_its_own(log: EventLog) -> None:
    repository = Repository(log, Counter)
    repository.save(counted("a", 1))
    one, two = repository.get("a"), repository.get("a")
    one.emit(Counter.Counted(by=10), at=AT)
    two.emit(Counter.Counted(by=100), at=AT)
    repository.save(one)
    with pytest.raises(VersionConflict) as conflict:
        repository.save(two)
    assert (conflict.value.expected, conflict.value.found) == (1, 2)
    assert len(two.pending) == 1
    assert repository.get("a").total == 11


def test_a_snapshot_is_taken_each_time_a_multiple_is_passed(
    log: EventLog, connection: psycopg.Connection[Any]
) -> None:
    repository = Repository(log, Counter, snapshot_every=3)
    counter = counted("a", 1, 1)
    repository.save(counter)
    assert snapshots(connection) == []
    counter.emit(Counter.Counted(by=1), at=AT)
    counter.emit(Counter.Counted(by=1), at=AT)
    repository.save(counter)
    assert snapshots(connection) == [("counter/a", 4)]


def test_a_load_starts_from_the_snapshot_and_goes_on_with_the_events_behind_it(
    log: EventLog, connection: psycopg.Connection[Any]
) -> None:
    repository = Repository(log, Counter, snapshot_every=2)
    repository.save(counted("a", 1, 2))
    connection.execute("UPDATE onefold.snapshots SET state = jsonb_set(state, '{state,total}', '1000')")
    later = repository.get("a")
    assert later.total == 1000, "the events were read although there is a snapshot"
    later.emit(Counter.Counted(by=5), at=AT)
    repository.save(later)
    found = repository.get("a")
    assert (found.total, found.version) == (1005, 3)
    assert repository.get("a", version=1).total == 1, (
        "a snapshot of a later version was taken for an earlier one"
    )
    assert Repository(log, Counter).get("a").total == 8


@pytest.mark.parametrize(
    "state", ["{}", '{"status": "", "first": null, "last": null, "state": {"total": "x"}}']
)
def test_a_snapshot_that_does_not_fit_the_code_is_ignored(
    log: EventLog, connection: psycopg.Connection[Any], state: str, caplog: pytest.LogCaptureFixture
) -> None:
    repository = Repository(log, Counter, snapshot_every=2)
    repository.save(counted("a", 1, 2))
    connection.execute("UPDATE onefold.snapshots SET state = %s::jsonb", (state,))
    with caplog.at_level(logging.WARNING):
        assert repository.get("a").total == 3
    assert "the snapshot of counter/a does not fit the code" in caplog.text


def test_a_snapshot_of_other_code_is_ignored_and_replaced(
    log: EventLog, connection: psycopg.Connection[Any]
) -> None:
    repository = Repository(log, Counter, snapshot_every=2)
    repository.save(counted("a", 1, 2))
    connection.execute("UPDATE onefold.snapshots SET fingerprint = 'older', version = 99, state = '{}'")
    found = repository.get("a")
    assert found.total == 3
    repository.snapshot(found)
    assert snapshots(connection) == [("counter/a", 2)]
    assert repository.get("a").total == 3


def test_a_save_whose_snapshot_fails_has_saved(
    log: EventLog, connection: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    repository = Repository(log, Counter, snapshot_every=1)
    connection.execute("ALTER TABLE onefold.snapshots RENAME TO away")
    with caplog.at_level(logging.WARNING):
        stored = repository.save(counted("a", 7))
    assert [event.meta.version for event in stored] == [1]
    assert "no snapshot of counter/a at version 1" in caplog.text
    assert Repository(log, Counter).get("a").total == 7


def test_what_is_saved_in_the_caller_s_transaction_ends_with_it(log: EventLog, pool: Pool) -> None:
    repository = Repository(log, Counter, snapshot_every=1)
    with pool.connection() as own:
        with own.transaction(force_rollback=True):
            repository.save(counted("a", 1), connection=own)
            assert repository.get("a", connection=own).total == 1
        with pytest.raises(AggregateNotFound):
            repository.get("a", connection=own)
        with own.transaction():
            repository.save(counted("a", 2), connection=own)
    assert repository.get("a").total == 2


def test_snapshots_are_taken_every_one_event_or_more(log: EventLog) -> None:
    with pytest.raises(ValueError, match="snapshot_every must be 1 or more"):
        Repository(log, Counter, snapshot_every=0)

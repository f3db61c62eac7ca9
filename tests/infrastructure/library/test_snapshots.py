"""Snapshots of the library: a help that must never make a save look as if it had failed."""

from __future__ import annotations

import logging
from typing import Any, ClassVar
from uuid import UUID, uuid4

import psycopg
import pytest
from eventsourcing.application import Application
from eventsourcing.domain import Aggregate
from eventsourcing.persistence import IntegrityError, StoredEvent


class Shop(Application[UUID]):
    snapshotting_intervals: ClassVar[dict[Any, int]] = {Aggregate: 2}


def grown(count: int) -> Aggregate:
    aggregate = Aggregate()
    for _ in range(count - 1):
        aggregate.trigger_event(Aggregate.Event)
    return aggregate


def test_a_snapshot_that_is_there_already_does_not_make_a_save_fail(connection: psycopg.Connection) -> None:
    with Shop() as shop:
        aggregate = grown(2)
        assert len(shop.save(aggregate)) == 2
        shop.take_snapshot(aggregate.id)
        shop.take_snapshot(aggregate.id, version=2)
        assert connection.execute("SELECT version FROM onefold.shop_snapshots").fetchall() == [(2,)]
        loaded: Aggregate = shop.repository.get(aggregate.id)
        assert (loaded.version, loaded.created_on) == (2, aggregate.created_on)


def test_the_same_snapshot_again_changes_nothing(factory: Any, connection: psycopg.Connection) -> None:
    recorder = factory.aggregate_recorder(purpose="snapshots")
    snapshot = StoredEvent(uuid4(), 7, "a:Snapshot", b'{"a": 1}')
    assert recorder.insert_events([]) is None
    assert recorder.insert_events([snapshot]) is None
    (before,) = connection.execute("SELECT taken_at, xmin::text FROM onefold.stored_snapshots").fetchall()
    recorder.insert_events([snapshot])
    assert connection.execute("SELECT taken_at, xmin::text FROM onefold.stored_snapshots").fetchall() == [
        before
    ]
    changed = StoredEvent(snapshot.originator_id, 7, "a:Snapshot", b"\x00")
    recorder.insert_events([changed])
    assert recorder.select_events(snapshot.originator_id) == [changed]


def test_a_snapshot_that_the_database_does_not_take_leaves_the_save_a_success(
    make_factory: Any,
    other: psycopg.Connection,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("POSTGRES_LOCK_TIMEOUT", "1")
    with Shop() as shop:
        other.execute("LOCK TABLE onefold.shop_snapshots IN ROW EXCLUSIVE MODE")
        other.execute("LOCK TABLE onefold.shop_snapshots IN SHARE ROW EXCLUSIVE MODE")
        aggregate = grown(2)
        with caplog.at_level(logging.WARNING):
            assert len(shop.save(aggregate)) == 2
        assert f"the snapshot of {aggregate.id} was not kept, its events are" in caplog.text
        other.rollback()
        loaded: Aggregate = shop.repository.get(aggregate.id)
        assert loaded.version == 2


def test_versions_of_what_is_no_event_may_leave_holes(factory: Any) -> None:
    recorder = factory.aggregate_recorder(purpose="notes")
    owner = uuid4()
    recorder.insert_events([StoredEvent(owner, version, "a:Note", b"{}") for version in (3, 9)])
    assert [each.originator_version for each in recorder.select_events(owner, gt=3, lte=9)] == [9]
    with pytest.raises(IntegrityError):
        recorder.insert_events([StoredEvent(owner, 9, "a:Note", b"{}")])

"""Pages that are slow, large, or end the thread that works on them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Literal

import psycopg
import pytest

from onefold import (
    Aggregate,
    App,
    Event,
    EventMeta,
    Handler,
    Projection,
    ProjectionFailed,
    Registry,
    Row,
    Store,
    connect,
)
from onefold.domain.errors import UnknownEventType
from onefold.infrastructure.postgres.pool import configure
from onefold.infrastructure.postgres.reader import LogReader
from onefold.infrastructure.runner import Runner
from onefold.infrastructure.worker import Worker

KEPT = Registry()
AT = datetime(2026, 4, 5, tzinfo=UTC)


class Parcel(Aggregate, category="hard"):
    class Packed(Event, name="hard.packed", registry=KEPT):
        text: str = ""


class Count(Row, key="key"):
    key: str
    number: int = 0


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    with connect(App(aggregates=[Parcel]), database_url) as opened:
        opened.log.registry = KEPT
        yield opened


def pack(store: Store, key: str, times: int, text: str = "") -> None:
    parcel = Parcel.new(key)
    for _ in range(times):
        parcel.emit(Parcel.Packed(text=text), at=AT)
    store.save(parcel)


def test_a_handler_that_is_slower_than_its_lease_allows_for_a_page_goes_on_in_parts(store: Store) -> None:
    pack(store, "a", 40)
    handled: list[int] = []
    slow = Handler("slow", lease=1.0, registry=KEPT)

    @slow.on(Parcel.Packed)
    def packed(event: Parcel.Packed, connection: psycopg.Connection[Any]) -> None:
        time.sleep(0.05)
        handled.append(event.meta.version)

    done = Worker(store.url, slow).run_once()
    assert handled == list(range(1, 41)), "2 s of handling under a lease of 1 s"
    assert (done.position, done.applied) == (40, 40)


def test_a_fold_that_asks_the_process_to_end_fails_like_any_other(store: Store) -> None:
    pack(store, "a", 3)
    quitting = Projection("quitting", Count, registry=KEPT)

    @quitting.on(Parcel.Packed)
    def packed(row: Count | None, event: Parcel.Packed) -> Count:
        if event.meta.version == 2:
            raise SystemExit(7)
        return Count(key=event.meta.key, number=event.meta.version)

    with pytest.raises(ProjectionFailed, match=r"version 2, position 2\): SystemExit: 7"):
        Worker(store.url, quitting).run_once()
    runner = Runner(store.url, [quitting])
    runner.start(once=True)
    (run,) = runner.join()
    assert run.failure is not None
    assert "SystemExit" in run.failure


@pytest.mark.parametrize("text", ["a\x00b", "\ud800", "x" * 5_000_000], ids=["NUL", "surrogate", "5 MB"])
def test_whatever_an_exception_says_is_kept_with_its_event(
    store: Store, text: str, connection: psycopg.Connection[Any]
) -> None:
    pack(store, "a", 1)
    loud = Projection("loud", Count, registry=KEPT)

    @loud.on(Parcel.Packed)
    def packed(row: Count | None, event: Parcel.Packed) -> Count:
        raise ValueError(text)

    with pytest.raises(ProjectionFailed) as failed:
        Worker(store.url, loud).run_once()
    assert len(str(failed.value)) < 3000
    found = connection.execute("SELECT failure ->> 'position', attempts FROM onefold.checkpoints").fetchall()
    assert found == [("1", 1)]


def test_a_page_of_large_events_ends_early_and_nothing_is_missed(store: Store) -> None:
    # Letters that compress badly, so that what is stored is as large as what was written.
    text = "".join(chr(0x4E00 + (number * 7919) % 20_000) for number in range(1_000_000))
    for number in range(8):
        pack(store, f"p{number}", 1, text)
    with psycopg.connect(store.url, autocommit=True) as connection:
        configure(connection)
        reader = LogReader(connection, registry=KEPT)
        found: list[int] = []
        sizes: list[int] = []
        while (page := reader.read(found[-1] if found else 0, 1000)).records:
            found += [record[0] for record in page.records]
            sizes.append(len(page.records))
    assert found == list(range(1, 9))
    assert max(sizes) < 8


def test_a_rebuild_waits_for_an_append_that_is_open(store: Store) -> None:
    counting = Projection("counting", Count, registry=KEPT)
    counting.on(Parcel.Packed)(lambda row, event: Count(key=event.meta.key, number=event.meta.version))
    pack(store, "a", 2)
    Worker(store.url, counting).run_once()
    with psycopg.connect(store.url) as held:
        late = Parcel.new("late")
        late.emit(Parcel.Packed(), at=AT)
        store.log.append(late.pending, connection=held)
        pack(store, "b", 3)
        threading.Timer(0.5, held.commit).start()
        done = Worker(store.url, counting).rebuild()
        assert (done.applied, done.waiting) == (6, False)
    assert [(row.key, row.number) for row in store.rows(counting)] == [("a", 2), ("b", 3), ("late", 1)]


@pytest.mark.parametrize("page", [1, 2, 100])
def test_a_projection_stops_at_an_event_whose_type_nobody_knows_and_loses_nothing(
    store: Store, page: int
) -> None:
    old, new = Registry(), Registry()

    class OldIn(Event, name="till.in", registry=old):
        amount: int

    class NewIn(Event, name="till.in", registry=new):
        amount: int

    class NewOut(Event, name="till.out", registry=new):
        amount: int

    def till(registry: Registry, unknown: Literal["stop", "pass"] = "stop") -> Projection[Count]:
        return Projection("till", Count, registry=registry, unknown=unknown)

    def plus(row: Count | None, event: OldIn | NewIn) -> Count:
        return Count(key=event.meta.key, number=(0 if row is None else row.number) + event.amount)

    def minus(row: Count | None, event: NewOut) -> Count:
        return Count(key=event.meta.key, number=(0 if row is None else row.number) - event.amount)

    before, after, passing = till(old), till(new), till(old, "pass")
    before.on(OldIn)(plus)
    passing.on(OldIn)(plus)
    after.on(NewIn)(plus)
    after.on(NewOut)(minus)
    events = [NewIn(amount=10), NewOut(amount=3), NewIn(amount=5)]
    store.log.append(
        [event.bound(EventMeta("till/1", version)) for version, event in enumerate(events, start=1)]
    )
    with pytest.raises(ProjectionFailed, match=r"'till\.out' .*version 2, position 2") as failed:
        Worker(store.url, before, page=page).run_once()
    assert isinstance(failed.value.__cause__, UnknownEventType)
    assert store.rows(before) == [Count(key="1", number=10)]
    Worker(store.url, after, page=page).run_once()
    assert store.rows(after) == [Count(key="1", number=12)]
    assert Worker(store.url, passing, page=page).rebuild().position == 3
    assert store.rows(passing) == [Count(key="1", number=15)]

"""Pages that are slow, large, or end the thread that works on them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from onefold import (
    Aggregate,
    App,
    Event,
    Handler,
    Projection,
    ProjectionFailed,
    Registry,
    Row,
    Store,
    connect,
)
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

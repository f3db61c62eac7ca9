"""Process managers at work: order within an instance, failures, timeouts, and what survives what."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from copy import copy
from dataclasses import field
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from onefold import (
    Aggregate,
    App,
    Event,
    ProcessManager,
    Registry,
    Retry,
    Store,
    Transaction,
    applies,
    connect,
    process_manager,
    reacts,
    timeout,
)
from onefold.infrastructure.consuming.dead_letters import discard, list_dead_letters, retry
from onefold.infrastructure.processes.running import consumption
from onefold.infrastructure.processes.status import process_status
from onefold.projections.guards import Outcome
from onefold.projections.process import process_of

from ..consuming.running import Running, until

registry = Registry()


class Parcel(Aggregate, category="parcel"):
    class Sent(Event, name="parcel.sent", registry=registry):
        to: str = "1"

    class Scanned(Event, name="parcel.scanned", registry=registry):
        to: str | None = "1"
        at: int

    class Lost(Event, name="parcel.lost", registry=registry):
        pass


broken: set[int] = set()
"""Scans that fail, for now."""

again: list[timedelta] = []
"""For how long the next scans wait, each; none is left means that the timeout is forgotten."""


@process_manager("tracing", begin="start", retry=Retry(attempts=2, first=0.01), registry=registry)
class Tracing(ProcessManager, category="tracing"):
    class Seen(Event, name="tracing.seen", registry=registry):
        at: int

    class Missed(Event, name="tracing.missed", registry=registry):
        pass

    seen: list[int] = field(default_factory=list)

    @reacts(Parcel.Sent, by=lambda event: event.to)
    def sent(self, event: Parcel.Sent, tx: Transaction) -> None:
        self.timeout("scan", after=timedelta(hours=1))

    @reacts(Parcel.Scanned, by=lambda event: event.to)
    def scanned(self, event: Parcel.Scanned, tx: Transaction) -> None:
        if event.at in broken:
            raise ValueError(f"scan {event.at} cannot be read")
        self.emit(self.Seen(at=event.at))
        if again:
            self.timeout("scan", after=again.pop())
        else:
            self.forget("scan")

    @reacts(Parcel.Lost, by=lambda event: 7)  # type: ignore[arg-type, return-value]
    def lost(self, event: Parcel.Lost, tx: Transaction) -> None:
        raise AssertionError("not reached")

    @timeout("scan")
    def missed(self, tx: Transaction) -> None:
        if -1 in broken:
            raise ValueError("nobody can be asked")
        self.emit(self.Missed())

    @applies(Seen)
    def _seen(self, event: Seen) -> None:
        self.seen = [*self.seen, event.at]


app = App(aggregates=(Parcel,), processes=(Tracing,))
PROCESS = process_of(Tracing)


class Depot:
    """Parcels of one database."""

    def __init__(self, store: Store, connection: psycopg.Connection[Any]) -> None:
        self.store = store
        self.store.log.registry = registry
        self.connection = connection

    def record(self, *events: Event, parcel: str = "p") -> None:
        try:
            found = self.store.get(Parcel, parcel)
        except LookupError:
            found = Parcel.new(parcel)
        for event in events:
            found.record(event, at=datetime.now(UTC))
        self.store.save(found)

    def scan(self, *numbers: int, to: str | None = "1") -> None:
        self.record(*(Parcel.Scanned(at=number, to=to) for number in numbers))

    def run(self) -> dict[Outcome, int]:
        return consumption(self.store.url, PROCESS, once=True).run().outcomes

    def seen(self, instance: str = "1") -> list[int]:
        return self.store.get(Tracing, instance).seen

    def missed(self, instance: str = "1") -> int:
        query = "SELECT count(*) FROM onefold.events WHERE stream = %s AND type = 'tracing.missed'"
        row = self.connection.execute(query, (f"tracing/{instance}",)).fetchone()
        assert row is not None
        return int(row[0])

    def make_due(self) -> int:
        return self.connection.execute("UPDATE onefold.timeouts SET due_at = clock_timestamp()").rowcount

    def letters(self) -> list[int]:
        return [each.id for each in list_dead_letters(self.connection, consumer="tracing")]

    def retry(self) -> list[str]:
        letters = list_dead_letters(self.connection, consumer="tracing")
        return [each.became for each in retry(self.store.url, app, letters, by="ana")]


@pytest.fixture
def depot(database_url: str) -> Iterator[Depot]:
    broken.clear()
    again.clear()
    with ExitStack() as stack:
        store = stack.enter_context(connect(app, database_url))
        yield Depot(store, stack.enter_context(psycopg.connect(database_url, autocommit=True)))


def test_a_process_that_begins_at_the_start_takes_what_the_log_has_and_each_event_once(depot: Depot) -> None:
    depot.scan(1, 2, 3)
    assert depot.run() == {Outcome.APPLIED: 3}
    assert depot.run() == {}
    depot.scan(4)
    assert depot.run() == {Outcome.APPLIED: 1}
    assert depot.seen() == [1, 2, 3, 4]


def test_an_event_of_no_instance_is_passed_over(depot: Depot) -> None:
    depot.scan(1, to=None)
    depot.scan(2)
    assert depot.run() == {Outcome.APPLIED: 1}
    assert depot.seen() == [2]


def test_an_event_that_comes_again_is_nothing_new_though_the_ledger_has_forgotten_it(depot: Depot) -> None:
    depot.scan(1, 2)
    depot.run()
    depot.connection.execute("UPDATE onefold.log_subscriptions SET position = 0")
    with depot.connection.transaction():
        depot.connection.execute("SET LOCAL session_replication_role = replica")
        depot.connection.execute("DELETE FROM onefold.ledger")
    assert depot.run() == {Outcome.APPLIED: 2}
    assert depot.seen() == [1, 2]


def test_what_follows_an_event_that_is_tried_again_waits_for_it(depot: Depot) -> None:
    depot.scan(1, 2, 3)
    broken.add(1)
    patient = copy(PROCESS)
    patient.consumer = copy(PROCESS.consumer)
    patient.consumer.retry = Retry(attempts=1_000, first=0.01, longest=0.02)
    work = Running(consumption(depot.store.url, patient))
    try:
        until(lambda: work.consumption.observed.outcomes.get(Outcome.RETRIED, 0) > 2)
        depot.scan(9, to="2")
        until(lambda: depot.connection.execute(
            "SELECT FROM onefold.events WHERE stream = 'tracing/2'"
        ).fetchone() is not None)  # fmt: skip
        broken.clear()
        until(lambda: depot.connection.execute(
            "SELECT count(*) FROM onefold.events WHERE stream = 'tracing/1'"
        ).fetchone() == (3,))  # fmt: skip
    finally:
        work.finish()
    assert depot.seen() == [1, 2, 3]
    assert depot.seen("2") == [9]


def test_what_follows_a_dead_letter_of_its_instance_is_one_too_and_all_are_retried_in_order(
    depot: Depot,
) -> None:
    depot.scan(1, 2, 3)
    depot.record(Parcel.Scanned(at=8, to="2"), parcel="q")
    broken.add(2)
    outcomes = depot.run()
    assert outcomes[Outcome.DEAD_LETTERED] == 1
    assert outcomes[Outcome.REJECTED] == 1
    assert (depot.seen(), depot.seen("2")) == ([1], [8])
    # It still fails, and what waits behind it is left alone.
    assert depot.retry() == ["dead_lettered", "waits"]
    (first, second) = list_dead_letters(depot.connection, consumer="tracing")
    assert f"behind dead letter {first.id}" in second.cause
    assert [each.became for each in retry(depot.store.url, app, [second], by="ana")] == ["rejected"]
    depot.scan(4)
    depot.run()
    broken.clear()
    assert depot.retry() == ["applied", "applied", "applied"]
    assert depot.seen() == [1, 2, 3, 4]
    depot.scan(5)
    depot.run()
    assert depot.seen() == [1, 2, 3, 4, 5]


def test_a_dead_letter_that_is_given_up_lets_go_of_those_behind_it(depot: Depot) -> None:
    depot.scan(1, 2)
    broken.add(1)
    depot.run()
    discard(depot.connection, depot.letters()[0], "ana")
    assert depot.retry() == ["applied"]
    depot.scan(3)
    depot.run()
    assert depot.seen() == [2, 3]


def test_an_event_whose_instance_cannot_be_told_is_a_dead_letter_and_holds_nobody_up(depot: Depot) -> None:
    depot.record(Parcel.Lost())
    depot.scan(1)
    depot.run()
    (letter,) = list_dead_letters(depot.connection, consumer="tracing")
    assert "expected the key of an instance of tracing" in letter.cause
    assert depot.seen() == [1]


def test_a_timeout_fires_once_when_it_is_due_late_if_nobody_was_there(depot: Depot) -> None:
    depot.record(Parcel.Sent())
    depot.run()
    assert depot.missed() == 0
    depot.make_due()
    assert depot.run() == {Outcome.APPLIED: 1}
    assert depot.run() == {}
    assert depot.missed() == 1


def test_a_timeout_that_is_forgotten_does_not_fire(depot: Depot) -> None:
    depot.record(Parcel.Sent(), Parcel.Scanned(at=1))
    depot.run()
    assert depot.make_due() == 0
    depot.run()
    assert depot.missed() == 0


def test_a_timeout_that_is_forgotten_by_an_event_before_it_does_not_fire_though_both_are_due(
    depot: Depot,
) -> None:
    depot.record(Parcel.Sent())
    depot.run()
    depot.scan(1)
    depot.make_due()
    depot.run()
    assert (depot.seen(), depot.missed()) == ([1], 0)


def test_a_timeout_that_is_set_anew_fires_at_the_new_time(depot: Depot) -> None:
    depot.record(Parcel.Sent())
    depot.run()
    (first,) = rows(depot)
    again.append(timedelta(seconds=-1))
    depot.scan(1)
    depot.run()
    assert depot.missed() == 1
    assert rows(depot) == []
    again.append(timedelta(hours=2))
    depot.scan(2)
    depot.run()
    (second,) = rows(depot)
    assert second[0] != first[0]
    assert second[1] - first[1] > timedelta(minutes=59)


def rows(depot: Depot) -> list[Any]:
    return depot.connection.execute("SELECT id, due_at FROM onefold.timeouts").fetchall()


def test_a_running_process_fires_a_timeout_within_a_second(depot: Depot) -> None:
    work = Running(consumption(depot.store.url, PROCESS))
    try:
        again.append(timedelta(seconds=0.5))
        depot.scan(1)
        started = time.monotonic()
        until(lambda: depot.missed() == 1)
        assert 0.4 < time.monotonic() - started < 3
    finally:
        work.finish()


def test_a_timeout_that_fails_is_a_dead_letter_that_can_be_retried_and_does_not_come_by_itself(
    depot: Depot,
) -> None:
    depot.record(Parcel.Sent())
    depot.run()
    depot.make_due()
    broken.add(-1)
    assert depot.run()[Outcome.DEAD_LETTERED] == 1
    assert depot.run() == {}
    depot.scan(1)
    assert depot.run() == {Outcome.REJECTED: 1}
    broken.clear()
    assert depot.retry() == ["applied", "applied"]
    assert (depot.missed(), depot.seen()) == (1, [1])
    assert rows(depot) == []


def test_another_process_has_nothing_to_do_with_the_timeouts_of_this_one(depot: Depot) -> None:
    depot.record(Parcel.Sent())
    depot.run()
    depot.connection.execute("UPDATE onefold.timeouts SET process = 'another', due_at = clock_timestamp()")
    assert depot.run() == {}


def test_the_status_counts_instances_and_timeouts(depot: Depot) -> None:
    depot.record(Parcel.Sent(to="1"), Parcel.Sent(to="2"), Parcel.Scanned(at=1, to="3"))
    depot.run()
    (found,) = process_status(depot.connection, ["tracing"])
    assert (found.name, found.instances, found.timeouts, found.due) == ("tracing", 3, 2, 0)
    depot.make_due()
    (found,) = process_status(depot.connection, ["tracing"])
    assert (found.timeouts, found.due) == (2, 2)
    assert process_status(depot.connection, []) == ()


def test_two_workers_do_every_step_once(depot: Depot) -> None:
    first = Running(consumption(depot.store.url, PROCESS, lanes=2))
    second = Running(consumption(depot.store.url, PROCESS))
    try:
        for number in range(40):
            depot.scan(number, to=str(number % 4))
        until(lambda: depot.connection.execute(
            "SELECT count(*) FROM onefold.events WHERE type = 'tracing.seen'"
        ).fetchone() == (40,))  # fmt: skip
    finally:
        first.finish()
        second.finish()
    for instance in range(4):
        assert depot.seen(str(instance)) == list(range(instance, 40, 4))

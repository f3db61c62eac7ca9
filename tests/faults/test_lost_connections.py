"""Connections that are lost in the middle of a batch (case H12): after the reconnection each event counts once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import psycopg
import pytest

from onefold.infrastructure.worker import Worker
from onefold.projections.projection import AnyProjection

EVENTS = 50


class Axe:
    """Ends the connections of a role when the n-th event is handled, counted over all tries."""

    def __init__(self, connection: psycopg.Connection[Any], role: str, at: int) -> None:
        self._connection = connection
        self._role = role
        self._at = at
        self._seen = 0
        self.ended = 0

    def __call__(self) -> None:
        self._seen += 1
        if self._seen == self._at:
            found = self._connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() "
                "AND application_name LIKE 'onefold %% ' || %s",
                (self._role,),
            ).fetchall()
            self.ended += len(found)


@pytest.mark.parametrize("kind", ["balance", "booked"])
@pytest.mark.parametrize("role", ["read", "write", "load"])
@pytest.mark.parametrize(
    ("at", "page"),
    [(20, 1000), (EVENTS, 1000), (20, 7), (EVENTS, 7), (1, 1)],
    ids=[
        "at event 20",
        "after the last handler",
        "at event 20 of pages",
        "after the last of pages",
        "at the first",
    ],
)
def test_a_connection_that_ends_inside_a_batch_costs_nothing(
    bank: Any, database_url: str, nursery: ModuleType, kind: str, role: str, at: int, page: int
) -> None:
    bank.deposit(*["a", "b"] * (EVENTS // 2))
    axe = Axe(bank.connection, role, at)
    worker = Worker(database_url, nursery.PROJECTIONS[kind](axe), page=page)
    progress = worker.run_once()
    assert axe.ended == 1
    assert (progress.position, progress.held) == (EVENTS, True)
    assert bank.balances(kind) == bank.expected() == {"a": (25, 25), "b": (25, 25)}
    assert bank.position(kind) == EVENTS


@pytest.mark.parametrize("kind", ["balance", "booked", "summed"])
@pytest.mark.parametrize("page", [7, 1000])
def test_an_answer_that_is_lost_after_the_commit_costs_nothing(
    bank: Any, nursery: ModuleType, wire: Any, kind: str, page: int
) -> None:
    """The server has written rows and checkpoint, and the worker does not learn of it."""
    bank.deposit(*["a", "b"] * (EVENTS // 2))
    wire.lose_answer_to(b"MERGE " if kind == "balance" else b"COMMIT")
    progress = Worker(wire.url, nursery.PROJECTIONS[kind](), page=page).run_once()
    assert wire.lost.is_set()
    assert progress.position == EVENTS
    assert bank.balances(kind) == bank.expected()


@pytest.mark.parametrize("times", [20, pytest.param(500, marks=pytest.mark.soak)])
@pytest.mark.parametrize("kind", ["balance", "booked", "summed"])
def test_a_worker_whose_connections_are_ended_at_random_applies_every_event_once(
    bank: Any, database_url: str, nursery: ModuleType, wait: Callable[..., float], kind: str, times: int
) -> None:
    chance = random.Random(kind)
    bank.deposit(*(f"a{number % 30}" for number in range(4000)))
    worker = Worker(database_url, nursery.PROJECTIONS[kind](lease=1.0), page=20)
    ended = 0
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(worker.run)
        try:
            while ended < times:
                time.sleep(chance.uniform(0.0, 0.15))
                ended += len(
                    bank.connection.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                        "AND application_name LIKE 'onefold % %' ORDER BY random() LIMIT 1"
                    ).fetchall()
                )
                if chance.random() < 0.2:
                    bank.deposit("late", "later")
            wait(lambda: bank.position(kind) == bank.head(), "all is applied", 30)
        finally:
            worker.stop()
            running.result()
    assert bank.balances(kind) == bank.expected()


def test_a_batch_that_overlaps_the_position_applies_only_its_new_part(
    bank: Any, database_url: str, nursery: ModuleType
) -> None:
    bank.deposit(*["a"] * 4)
    projection = nursery.balance()
    assert Worker(database_url, projection).run_once().applied == 4
    bank.connection.execute("UPDATE onefold.checkpoints SET position = 2")
    bank.deposit("a", "b")
    progress = Worker(database_url, projection).run_once()
    assert (progress.duplicates, progress.applied) == (2, 2)
    assert bank.balances() == {"a": (5, 5), "b": (1, 1)}


def test_a_checkpoint_that_is_set_back_under_a_working_worker_is_noticed(
    bank: Any, database_url: str, nursery: ModuleType, wait: Callable[..., float]
) -> None:
    bank.deposit(*["a"] * 10)
    worker = Worker(database_url, nursery.balance(lease=1.0))
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(worker.run)
        try:
            for back in (3, 0, 7):
                wait(lambda: bank.position() == bank.head(), "all is applied")
                bank.connection.execute("UPDATE onefold.checkpoints SET position = %s", (back,))
                bank.deposit("a")
                wait(lambda: bank.position() == bank.head(), "all is applied again")
        finally:
            worker.stop()
            running.result()
    assert bank.balances() == {"a": (13, 13)}


def three_at_once(database_url: str, make: Callable[[], AnyProjection], page: int) -> list[Worker]:
    return [Worker(database_url, make(), page=page) for _ in range(3)]


@pytest.mark.parametrize("kind", ["balance", "booked", "summed"])
def test_three_engines_of_one_projection_at_once_apply_every_event_once(
    bank: Any, database_url: str, nursery: ModuleType, wait: Callable[..., float], kind: str
) -> None:
    """They start at the same moment, leave in turn while the log grows, and new ones join."""
    stop_appending = threading.Event()

    def append() -> None:
        chance = random.Random(3)
        while not stop_appending.is_set():
            bank.deposit(*(f"a{chance.randrange(20)}" for _ in range(chance.randint(1, 80))))
            time.sleep(0.002)

    def make() -> AnyProjection:
        made: AnyProjection = nursery.PROJECTIONS[kind](lease=1.0)
        return made

    with ThreadPoolExecutor(12) as threads:
        workers = three_at_once(database_url, make, 50)
        running = [threads.submit(worker.run) for worker in workers]
        appending = threads.submit(append)
        try:
            for _ in range(4):
                before = bank.position(kind)
                wait(lambda last=before: bank.position(kind) > last, "somebody works")
                workers[0].stop()
                running.pop(0).result()
                workers.pop(0)
                workers += three_at_once(database_url, make, 50)[:1]
                running.append(threads.submit(workers[-1].run))
        finally:
            stop_appending.set()
            appending.result()
        try:
            wait(lambda: bank.position(kind) == bank.head(), "all is applied")
        finally:
            for worker in workers:
                worker.stop()
            for each in running:
                each.result()
    assert bank.balances(kind) == bank.expected()


@pytest.mark.parametrize("workers", [1, 2])
def test_folds_that_take_longer_than_the_lease_still_get_on(
    bank: Any, database_url: str, nursery: ModuleType, workers: int
) -> None:
    """Two workers whose page takes longer than the lease would take it from each other for ever."""
    bank.deposit(*["a"] * 60)

    def make() -> Worker:
        return Worker(database_url, nursery.balance(lambda: time.sleep(0.01), lease=0.3))

    started = time.monotonic()
    with ThreadPoolExecutor(2) as threads:
        runs = [threads.submit(make().run_once, patience=30) for _ in range(workers)]
        applied = [run.result().applied for run in runs]
    assert time.monotonic() - started < 15
    assert sum(applied) == 60
    assert bank.balances() == {"a": (60, 60)}

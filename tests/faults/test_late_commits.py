"""Commit order is not number order (case H1): nothing is skipped, nothing comes twice, nobody waits without need."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import psycopg
import pytest

from onefold.infrastructure.postgres.log import EventLog
from onefold.infrastructure.postgres.pool import open_pool
from onefold.infrastructure.wakeup import Wakeup
from onefold.infrastructure.worker import Worker
from onefold.projections.projection import AnyProjection

POLLING_LIMIT = 1.0
"""Seconds: far above the poll of a worker, for a machine that is busy with other things."""


@contextmanager
def following(url: str, projection: AnyProjection, **given: Any) -> Iterator[Worker]:
    """A worker that follows the log in a thread of its own."""
    with Wakeup(url, "onefold_events") as wakeup, ThreadPoolExecutor(1) as threads:
        worker = Worker(url, projection, wakeup=wakeup, **given)
        running = threads.submit(worker.run)
        try:
            yield worker
        finally:
            worker.stop()
            running.result()


@pytest.mark.parametrize("kind", ["balance", "booked", "summed"])
@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_a_deposit_that_is_committed_late_counts_once(
    bank: Any, database_url: str, nursery: ModuleType, kind: str, outcome: str
) -> None:
    """Case H1: session A appends and does not commit, B appends and commits, P runs, A commits, P runs."""
    projection = nursery.PROJECTIONS[kind]()
    with psycopg.connect(database_url) as session_a:
        bank.deposit("a", amount=10, connection=session_a)
        bank.deposit("b", amount=5)
        idle = Worker(database_url, projection).run_once(patience=0.3)
        assert idle.waiting
        assert bank.balances(kind) == {}
        getattr(session_a, outcome)()
    idle = Worker(database_url, projection).run_once()
    assert not idle.waiting
    expected = {"b": (5, 1)} if outcome == "rollback" else {"a": (10, 1), "b": (5, 1)}
    assert bank.balances(kind) == bank.expected() == expected


def test_an_event_behind_an_open_one_comes_as_soon_as_that_one_ends(
    bank: Any, database_url: str, nursery: ModuleType, wait: Callable[..., float]
) -> None:
    with following(database_url, nursery.balance()), psycopg.connect(database_url) as session:
        bank.deposit("before")
        wait(lambda: bank.balances() == {"before": (1, 1)}, "the first is applied")
        bank.deposit("late", connection=session)
        bank.deposit("early")
        time.sleep(0.5)
        assert bank.balances() == {"before": (1, 1)}
        session.commit()
        took = wait(lambda: bank.balances() == bank.expected(), "both are applied")
        assert took < POLLING_LIMIT


@contextmanager
def held_open(url: str, *statements: str) -> Iterator[None]:
    """A transaction that has written something that is no event, and stays open."""
    with psycopg.connect(url) as connection:
        for statement in statements:
            connection.execute(statement.encode())
        yield
        connection.rollback()


@pytest.mark.parametrize("total", [20_000, pytest.param(400_000, marks=pytest.mark.soak)])
def test_twelve_writers_with_delays_and_rollbacks_are_followed_without_a_skip_a_repeat_or_a_stall(
    bank: Any, database_url: str, server_url: str, nursery: ModuleType, wait: Callable[..., float], total: int
) -> None:
    """C27: transactions stay open elsewhere in the cluster and elsewhere in the database all the while."""
    writers = 12
    left = threading.Semaphore(total)
    lags: list[float] = []
    done = threading.Event()

    def write(number: int) -> int:
        chance = random.Random(number)
        versions = [0] * 10
        rollbacks = 0
        with open_pool(database_url, size=1) as pool, psycopg.connect(database_url) as own:
            log = EventLog(pool, registry=nursery.known)
            while True:
                account = chance.randrange(10)
                size = chance.choice([1, 1, 2, 5, 20, 60])
                rolled_back = chance.random() < 0.1
                size = sum(rolled_back or left.acquire(blocking=False) for _ in range(size))
                if not size:
                    return rollbacks
                first = versions[account] + 1
                # Two appends a transaction, so that a writer's numbers are torn apart by others'.
                half = max(1, size // 2)
                for part in (range(first, first + half), range(first + half, first + size)):
                    events = [nursery.deposit(f"w{number}a{account}", v, v % 7) for v in part]
                    log.append(events, connection=own)
                    time.sleep(chance.uniform(0.0, 0.025))
                if rolled_back:
                    own.rollback()
                    rollbacks += 1
                else:
                    own.commit()
                    versions[account] += size

    def watch() -> None:
        with psycopg.connect(database_url, autocommit=True) as own:
            while not done.wait(0.02):
                oldest = own.execute(
                    "SELECT extract(epoch FROM clock_timestamp() - min(recorded_at))::float8 FROM onefold.events, "
                    "onefold.checkpoints c WHERE events.position > c.position AND projection = 'balance'"
                ).fetchone()
                lags.append((oldest and oldest[0]) or 0.0)

    busy = ("CREATE TEMP TABLE busy AS SELECT 1 AS one", "SELECT pg_current_xact_id()")
    here = (
        "CREATE TABLE public.busy (one int)",
        "INSERT INTO public.busy VALUES (1)",
        "SELECT nextval('here')",
    )
    bank.connection.execute("CREATE SEQUENCE here")
    started = time.monotonic()
    with (
        held_open(server_url, *busy),
        held_open(database_url, *here),
        ThreadPoolExecutor(writers + 1) as threads,
    ):
        projection = nursery.balance()
        Worker(database_url, projection).run_once()
        with following(database_url, projection):
            watching = threads.submit(watch)
            rollbacks = sum(threads.map(write, range(writers)))
            wait(lambda: bank.position() == bank.head(), "the last event is applied", 5)
            done.set()
            watching.result()
    assert time.monotonic() - started < 20 + total / 1000
    assert sum(count for _, count in bank.balances().values()) == total
    assert bank.balances() == bank.expected()
    disorder = bank.connection.execute("SELECT count(*) FROM read.balance WHERE NOT in_order").fetchone()
    assert disorder == (0,)
    holes = bank.connection.execute("SELECT max(position) - count(*) FROM onefold.events").fetchone()
    assert rollbacks > 20
    assert holes[0] > rollbacks
    # An event waits for transactions that began before it, at most; those last 50 ms and the scheduler's delays.
    assert sorted(lags)[len(lags) // 2] < 1.0
    assert max(lags) < 5.0

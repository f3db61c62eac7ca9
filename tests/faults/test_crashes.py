"""Workers that are killed, stopped and revived: every deposit counts once (cases H2 and H12)."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

START = Callable[..., Any]
KINDS = ["balance", "booked", "summed"]


@pytest.mark.parametrize("kind", ["balance", "booked"])
@pytest.mark.parametrize("page", [3, 1000])
def test_a_worker_that_is_killed_between_effect_and_position_counts_nothing_twice(
    bank: Any, start_worker: START, wait: Callable[..., float], kind: str, page: int
) -> None:
    """Case H2: 100 deposits of 1, killed after the 37th handler returned, and at ten random points more."""
    chance = random.Random(page)
    bank.deposit(*["a"] * 100)
    start_worker(kind, lease=0.1, page=page, at=37, what="die").wait()
    for _ in range(10):
        counted, position = bank.state(kind)
        assert counted == position
        at = chance.randint(1, min(2 * page, 100 - position, 99))
        start_worker(kind, lease=0.1, page=page, at=at, what="die").wait()
    start_worker(kind, lease=0.2, page=page)
    wait(lambda: bank.position(kind) == 100, "all is applied")
    assert bank.balances(kind) == {"a": (100, 100)}


@pytest.mark.parametrize("rounds", [12, pytest.param(200, marks=pytest.mark.soak)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_that_is_killed_at_random_moments_loses_nothing_and_repeats_nothing(
    bank: Any, start_worker: START, wait: Callable[..., float], kind: str, rounds: int
) -> None:
    chance = random.Random(kind)
    bank.deposit(*(f"a{number % 40}" for number in range(10_000)))
    positions = {0}
    for _ in range(rounds):
        worker = start_worker(kind, lease=0.1, page=chance.choice([7, 20, 50]))
        before = max(positions)
        if before == bank.head():
            bank.deposit(*(f"a{number % 40}" for number in range(2000)))
        if chance.random() < 0.8:
            wait(lambda last=before: bank.position(kind) > last, "it works")
        time.sleep(chance.uniform(0.0, 0.02))
        worker.kill()
        counted, position = bank.state(kind)
        assert counted == position
        positions.add(position)
    assert len(positions) > 4
    start_worker(kind, lease=0.1)
    wait(lambda: bank.position(kind) == bank.head(), "all is applied")
    assert bank.balances(kind) == bank.expected()


@pytest.mark.parametrize("kind", KINDS)
def test_another_worker_takes_over_within_seconds_when_one_is_killed(
    bank: Any, start_worker: START, wait: Callable[..., float], kind: str
) -> None:
    first = start_worker(kind, lease=1.0)
    wait(lambda: bank.owner(kind) == first.pid, "the first holds the projection")
    second = start_worker(kind, lease=1.0)
    second.reached("ready")
    bank.deposit("a")
    wait(lambda: bank.position(kind) == 1, "the first works")
    first.kill()
    bank.deposit("a")
    took = wait(lambda: bank.position(kind) == 2, "the second works")
    assert took < 3.0
    assert bank.owner(kind) == second.pid
    assert bank.balances(kind) == {"a": (2, 2)}


def test_a_worker_that_ends_by_itself_hands_over_at_once(
    bank: Any, start_worker: START, wait: Callable[..., float]
) -> None:
    first = start_worker("balance", lease=20.0)
    wait(lambda: bank.owner() == first.pid, "the first holds the projection")
    second = start_worker("balance", lease=20.0)
    second.reached("ready")
    first.signal(signal.SIGTERM)
    first.wait()
    bank.deposit("a")
    assert wait(lambda: bank.position() == 1, "the second works") < 5.0


@pytest.mark.parametrize("kind", ["balance", "booked"])
@pytest.mark.parametrize("page", [1, 1000])
def test_a_worker_that_hangs_is_replaced_and_when_it_revives_it_is_refused_and_stands_by(
    bank: Any, start_worker: START, wait: Callable[..., float], kind: str, page: int
) -> None:
    """SIGSTOP in mid-work: the handler has its transaction open, the fold is about to write."""
    bank.deposit(*["a", "b"] * 10)
    first = start_worker(kind, lease=1.0, page=page, at=15, what="linger")
    first.reached("lingering")
    first.signal(signal.SIGSTOP)
    second = start_worker(kind, lease=1.0, page=page)
    took = wait(lambda: bank.position(kind) == 20, "the second takes over")
    assert took < 4.0
    assert bank.owner(kind) == second.pid
    bank.deposit("a", "b")
    wait(lambda: bank.position(kind) == 22, "the second goes on")
    first.signal(signal.SIGCONT)
    first.reached("lingered")
    time.sleep(0.3)
    assert first.alive
    assert bank.balances(kind) == bank.expected() == {"a": (11, 11), "b": (11, 11)}
    # It stands by, and takes over in its turn.
    second.kill()
    bank.deposit("a")
    took = wait(lambda: bank.position(kind) == 23, "the first takes over again")
    assert took < 4.0
    assert bank.owner(kind) == first.pid
    assert bank.balances(kind) == bank.expected()


def test_a_stopped_worker_writes_nothing_though_everyone_else_has_gone(
    bank: Any, start_worker: START, wait: Callable[..., float]
) -> None:
    bank.deposit(*["a"] * 20)
    first = start_worker("balance", lease=0.3, at=15, what="linger")
    first.reached("lingering")
    first.signal(signal.SIGSTOP)
    second = start_worker("balance", lease=0.3)
    wait(lambda: bank.position() == 20, "the second takes over")
    second.signal(signal.SIGTERM)
    second.wait()
    first.signal(signal.SIGCONT)
    first.reached("taken over by another worker")
    bank.deposit("a")
    wait(lambda: bank.position() == 21, "the first goes on from where the second was")
    assert bank.balances() == {"a": (21, 21)}


@pytest.mark.parametrize("rounds", [25, pytest.param(500, marks=pytest.mark.soak)])
def test_many_workers_that_are_killed_and_stopped_at_random_apply_every_event_once_in_order(
    bank: Any, start_worker: START, wait: Callable[..., float], rounds: int
) -> None:
    chance = random.Random(11)
    accounts = [f"a{number}" for number in range(20)]
    workers = []
    for _ in range(rounds):
        bank.deposit(*chance.choices(accounts, k=200))
        workers = [worker for worker in workers if worker.alive]
        while len(workers) < 3:
            workers.append(start_worker("balance", lease=0.15, page=chance.choice([5, 40, 500])))
        unlucky = chance.choice(workers)
        time.sleep(chance.uniform(0.0, 0.1))
        if chance.random() < 0.5:
            unlucky.kill()
        else:
            unlucky.signal(signal.SIGSTOP)
            time.sleep(chance.uniform(0.0, 0.3))
            unlucky.signal(signal.SIGCONT)
    wait(lambda: bank.position() == bank.head(), "all is applied")
    assert bank.balances() == bank.expected()
    assert bank.connection.execute("SELECT count(*) FROM read.balance WHERE NOT in_order").fetchone() == (0,)


@pytest.mark.parametrize("kind", ["balance", "booked"])
def test_a_rebuild_that_is_killed_is_finished_by_whoever_comes_next(
    bank: Any, start_worker: START, wait: Callable[..., float], kind: str
) -> None:
    bank.deposit(*["a", "b", "c"] * 100)
    builder = start_worker(kind, lease=0.2)
    wait(lambda: bank.position(kind) == 300, "the first build is done")
    builder.kill()
    first = bank.connection.execute(f"SELECT * FROM read.{kind} ORDER BY account").fetchall()
    for at in (1, 37, 290):
        start_worker(kind, lease=0.2, page=10, at=at, what="die", rebuild=True).wait()
        counted, position = bank.state(kind)
        assert counted == position < 300
    start_worker(kind, lease=0.2)
    wait(lambda: bank.position(kind) == 300, "the rebuild is finished")
    assert bank.connection.execute(f"SELECT * FROM read.{kind} ORDER BY account").fetchall() == first


def test_attempts_at_a_failing_event_are_counted_over_killed_processes(
    bank: Any, start_worker: START, wait: Callable[..., float]
) -> None:
    """C82, as far as projections go."""
    bank.deposit("a", "b", "a", "a")
    query = "SELECT attempts, failure ->> 'stream', failure ->> 'version', failure ->> 'reason', position "
    query += "FROM onefold.checkpoints WHERE projection = 'balance'"

    def state() -> Any:
        return bank.connection.execute(query.encode()).fetchone()

    retry = {"attempts": 4, "first": 0.5, "longest": 0.5}
    for attempt in (1, 2, 3):
        at = 3 if attempt == 1 else 1
        worker = start_worker("balance", lease=0.2, retry=retry, at=at, what="fail")
        wait(lambda n=attempt: (state() or (0,))[0] == n, f"attempt {attempt} is counted")
        assert state() == (attempt, "account/a", "2", "ValueError: told to fail", 2)
        worker.kill()
        time.sleep(0.25)
    last = start_worker("balance", lease=0.2, retry=retry, at=1, what="fail")
    last.wait()
    assert (
        "failed: projection balance failed at event bank.deposited (stream account/a, version 2, position 3): "
        "ValueError: told to fail." in last.said
    )
    assert state()[0] == 4
    assert bank.balances() == {"a": (1, 1), "b": (1, 1)}
    start_worker("balance", lease=0.2)
    wait(lambda: bank.position() == 4, "once mended, the rest is applied")
    assert bank.balances() == bank.expected()
    assert state()[:2] == (0, None)

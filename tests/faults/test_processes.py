"""The order-payment process, killed between every pair of steps (case C46)."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from copy import copy
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
import pytest

from onefold import Retry
from onefold.infrastructure.announcing import announcer
from onefold.infrastructure.brokers.log import LogSubscription
from onefold.infrastructure.consuming.processor import Processor
from onefold.infrastructure.processes.running import consumption
from onefold.infrastructure.testing.faults import die, in_child

SHOPPING = Path(__file__).parents[1] / "infrastructure" / "processes" / "shopping.py"

MOST = 120
"""Statements of one step at most."""


@pytest.fixture(scope="session")
def shopping() -> ModuleType:
    name = "tests_faults_shopping"
    spec = importlib.util.spec_from_file_location(name, SHOPPING)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def shop(shopping: ModuleType, database_url: str) -> Iterator[Any]:
    with shopping.shopping(database_url) as made:
        made.run()
        made.open()
        yield made


def count_down(at: int, *, after: bool) -> Callable[[], bool]:
    """Have this process die before (or after) the statement number `at` that its first lane sends while it works.

    What is returned tells whether the lane is at work.
    """
    working = threading.Event()
    main = threading.main_thread()
    left = [at]

    def due() -> bool:
        if not working.is_set() or threading.current_thread() is not main:
            return False
        left[0] -= 1
        return left[0] == 0

    def dying(inner: Callable[..., Any]) -> Callable[..., Any]:
        def sent(*arguments: Any, **more: Any) -> Any:
            last = due()
            if last and not after:
                die()
            result = inner(*arguments, **more)
            if last:
                die()
            return result

        return sent

    process = Processor.process

    def begun(self: Processor, *arguments: Any, **more: Any) -> Any:
        working.set()
        return process(self, *arguments, **more)

    Processor.process = begun  # type: ignore[method-assign]
    psycopg.Cursor.execute = dying(psycopg.Cursor.execute)  # type: ignore[method-assign]
    inner = psycopg.Transaction.__exit__

    def ended(self: psycopg.Transaction, *arguments: Any) -> Any:
        # The commit goes another way than statements do.
        last = due()
        if last and not after:
            die()
        result = inner(self, *arguments)
        if last:
            die()
        return result

    psycopg.Transaction.__exit__ = ended  # type: ignore[method-assign]
    return working.is_set


STEPS = {
    "placed": (("place",), ("reserved",)),
    "paid": (("place", "run", "pay"), ("reserved", "captured", "completed")),
    "timed out": (("place", "run", "time out"), ("reserved", "released")),
    "cancelled": (("place", "run", "cancel"), ("reserved", "released")),
    "cancelled after it was paid": (
        ("place", "pay", "run", "cancel"),
        ("reserved", "captured", "completed", "refunded", "released"),
    ),
    "paid too late": (
        ("place", "run", "time out", "run", "pay"),
        ("reserved", "released", "refunded"),
    ),
}


def do(shop: Any, step: str) -> None:
    match step:
        case "place":
            shop.place("1")
        case "pay":
            shop.pay("1")
        case "cancel":
            shop.cancel("1")
        case "time out":
            assert shop.make_due("1") == 1
        case _:
            shop.run()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("case", STEPS)
def test_a_process_that_is_killed_at_any_statement_takes_its_step_once(
    shop: Any, case: str, after: bool
) -> None:
    steps, expected = STEPS[case]
    for step in steps:
        do(shop, step)
    before = state(shop)
    patient = copy(shop_process(shop))
    patient.consumer = copy(patient.consumer)
    patient.consumer.retry = Retry(attempts=10_000)
    kills = 0
    for at in range(1, MOST):
        survived = work_until(shop, patient, at, after=after)
        now = state(shop)
        assert sum(shop.balances().values()) == 1000
        if survived:
            break
        kills += 1
        if now != before:
            # It was committed: all of it.
            assert now[0] == list(expected)
            # The next one only finds that nothing is left to do.
            after_commit = now
            shop.run()
            assert state(shop) == after_commit
            break
    assert kills > 12
    shop.run()
    assert state(shop)[0] == list(expected)
    shop.run()
    assert state(shop)[0] == list(expected)
    finish(shop)


def shop_process(shop: Any) -> Any:
    return shop.store.app.process("order_payment")


def state(shop: Any) -> tuple[Any, ...]:
    streams = ("order_payment/1", "order/1", "account/anna", "account/order-1")
    return (*(shop.types(stream) for stream in streams), shop.timeouts())


def work_until(shop: Any, process: Any, at: int, *, after: bool) -> bool:
    """Run the process in a child that is killed at a statement; tell whether it came to its end before."""

    def work() -> None:
        count_down(at, after=after)
        consumption(shop.store.url, process, announcer=announcer(shop.store.app), once=True).run()

    return survives(work)


def survives(work: Callable[[], object]) -> bool:
    """Do `work` in a child; tell whether it came to its end."""
    read, write = os.pipe()

    def to_the_end() -> None:
        work()
        os.write(write, b"done")

    try:
        in_child(to_the_end)
    finally:
        os.close(write)
    with os.fdopen(read) as said:
        return said.read() == "done"


def finish(shop: Any) -> None:
    """Whatever was the case, the order ends, and every refund is given once."""
    if not shop.has_ended("1"):
        shop.make_due("1")
        shop.run()
    shop.check_ended("1")
    assert sum(shop.balances().values()) == 1000


@pytest.mark.parametrize("point", ["_move", "settle"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_process_that_is_killed_while_it_acknowledges_takes_no_step_twice(
    shop: Any, point: str, after: bool
) -> None:
    shop.place("1")
    shop.run()
    shop.make_due("1")
    done = threading.Event()

    def work() -> None:
        from onefold.infrastructure.processes.subscription import ProcessSubscription

        place: Any = LogSubscription if point == "_move" else ProcessSubscription
        inner = getattr(place, point)
        acknowledge = LogSubscription.acknowledge

        def acknowledged(self: LogSubscription, deliveries: Any) -> None:
            done.set()
            acknowledge(self, deliveries)

        def dying(self: LogSubscription, *arguments: Any) -> None:
            if done.is_set() and not after:
                die()
            inner(self, *arguments)
            if done.is_set():
                die()

        LogSubscription.acknowledge = acknowledged  # type: ignore[method-assign]
        setattr(place, point, dying)
        consumption(shop.store.url, shop_process(shop), once=True).run()

    assert not survives(work)
    assert state(shop)[0] == ["reserved", "released"]
    shop.pay("1")
    shop.run()
    shop.run()
    assert state(shop)[0] == ["reserved", "released", "refunded"]
    finish(shop)


@contextlib.contextmanager
def worker(url: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of its own that runs process managers until it is killed."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "onefold.infrastructure.cli",
            "process",
            "--app",
            "onefold.projections.shop:app_with_payment",
        ],
        env={**os.environ, "ONEFOLD_DATABASE_URL": url},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(20)


def test_workers_that_are_killed_at_random_lose_no_order_and_repeat_no_step(
    shop: Any, wait: Callable[..., float]
) -> None:
    """SIGKILL of the real command, while orders are placed, paid, cancelled, and time out."""
    keys = [f"{number}" for number in range(1, 31)]
    shop.open(10_000, "rich")
    for turn in range(4):
        with worker(shop.store.url) as running, worker(shop.store.url):
            for key in keys[turn::4]:
                shop.place(key, customer="rich")
            for key in keys[turn::4]:
                if int(key) % 3 == 0:
                    shop.pay(key, "p-1", 60)
                    shop.pay(key, "p-2", 60)
                elif int(key) % 5 == 0:
                    shop.record(key, shop_order().Cancelled())
            reached = len(keys[: turn + 1])
            wait(lambda reached=reached: started(shop) >= reached, "some are reserved")
            time.sleep(0.05 * turn)
            running.send_signal(signal.SIGKILL)
            shop.make_due()
    for key in keys:
        shop.pay(key, "late", 7)
    with worker(shop.store.url), worker(shop.store.url):
        wait(lambda: started(shop) == len(keys), "all are reserved", 60)
        shop.make_due()
        wait(
            lambda: shop.make_due() == 0 and all(is_over(shop, key) for key in keys),
            "all have ended",
            60,
        )
    assert sum(shop.balances().values()) == 11_000
    for key in keys:
        shop.check_ended(key)
        order = shop.order(key)
        assert len(order.refunds) == shop.types(f"order_payment/{key}").count("refunded")
    assert dead(shop) == 0


def shop_order() -> Any:
    from onefold.domain.order import Order

    return Order


def started(shop: Any) -> int:
    return int(
        count(shop, "SELECT count(DISTINCT stream) FROM onefold.events WHERE stream LIKE 'order_payment/%'")
    )


def is_over(shop: Any, key: str) -> bool:
    """Tell whether an order has ended, and its late payment was dealt with."""
    return shop.has_ended(key) and "late" in shop.instance(key).seen


def dead(shop: Any) -> int:
    return count(shop, "SELECT count(*) FROM onefold.dead_letters")


def count(shop: Any, query: str) -> int:
    row = shop.connection.execute(query).fetchone()
    assert row is not None
    return int(row[0])

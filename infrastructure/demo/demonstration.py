"""The demonstration: a shop's events delivered badly, a worker killed in the middle, and a verdict."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

import psycopg

from ...domain.event import Event
from ...projections.shop import MonthRevenue, account_balance, app, order_summary
from ..connection import connected
from ..postgres.pool import configure
from ..postgres.reader import LogReader
from ..postgres.sql import statement
from ..postgres.table import Table
from ..status import Status, status
from . import delivery, processes
from .delivery import Disturbance, Plan
from .shop import LEASE
from .simulation import Simulation, simulate
from .verdict import ReadModels, Verdict, judge

PAGE = 200
"""Events of one transaction of the demonstration's workers: small, so that there is a middle to be killed in."""

PORTIONS = 40
KILL_AFTER = 0.3
"""Share of the events that a projection has applied when the worker is killed."""

GATE = 0.6
"""Share of the deliveries after which the rest waits until the worker was killed."""

PATIENCE = 120.0
"""Seconds that a step may take before the demonstration gives up."""

LOOK = 0.004
"""Seconds between looks at whether the worker is in the middle of something."""

SAMPLE = 0.25
"""Seconds between samples of the lag."""

SETTLE = 3.0
"""Seconds after which a worker that has nothing left to do is killed all the same."""


class Observer(Protocol):
    """Who watches the demonstration."""

    def begins(self, step: str) -> None:
        """A step begins."""

    def moves(self, share: float) -> None:
        """The step in hand is done to this share, 0 to 1."""

    def ends(self, note: str) -> None:
        """The step in hand is done; the note says with what result."""


class Silent:
    """An observer that takes no notice."""

    def begins(self, step: str) -> None:
        pass

    def moves(self, share: float) -> None:
        pass

    def ends(self, note: str) -> None:
        pass


@dataclass(slots=True)
class Outcomes:
    """What became of the deliveries, in the importer's words."""

    read: int = 0
    appended: int = 0
    duplicate: int = 0
    conflict: int = 0
    unreadable: int = 0
    conflicts: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def add(self, report: dict[str, Any]) -> None:
        """Add the report of a portion."""
        self.read += report["read"]
        self.appended += report["appended"]
        self.duplicate += report["duplicate"]
        self.conflict += report["conflict"]
        self.unreadable += report["unreadable"]
        self.conflicts += report["conflicts"]


@dataclass(slots=True)
class Kill:
    """The worker that was killed, and the one that took over.

    `positions` are those that it left, `head` the log's at that moment, `in_transaction` whether it was writing.
    `taken_over_after` counts seconds until every projection had the other worker.
    """

    pid: int = 0
    positions: dict[str, int] = field(default_factory=dict[str, int])
    head: int = 0
    in_transaction: bool = False
    successor: int = 0
    taken_over_after: float = 0.0


@dataclass(slots=True)
class Lag:
    """How far the read models were behind: at worst, and in the end."""

    worst_events: int = 0
    worst_seconds: float = 0.0
    final_events: int = 0
    final_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Demonstration:
    """What was shown."""

    seed: int
    simulation: Simulation
    plan: Plan
    outcomes: Outcomes
    kill: Kill
    lag: Lag
    status: Status
    models: ReadModels
    verdict: Verdict
    seconds: float


def demonstrate(
    url: str,
    *,
    orders: int,
    seed: int,
    disturbance: Disturbance | None = None,
    observer: Observer | None = None,
) -> Demonstration:
    """Simulate, deliver, kill, take over and judge, on an empty migrated database.

    Raises `DemoFailed` when a process fails, `psycopg.Error` when the database does; a bad verdict is returned.
    """
    watch = observer or Silent()
    started = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onefold-demo-")))
        # The worker comes up while the shop is simulated.
        first = stack.enter_context(processes.Worker(1, url, page=PAGE))
        deliverer = stack.enter_context(processes.Deliverer(url))
        watch.begins("simulate")
        simulation = simulate(orders, seed)
        plan = delivery.plan(simulation.events, disturbance or Disturbance(), seed)
        watch.ends(
            f"{len(simulation.orders):,} orders and {len(simulation.accounts):,} accounts: "
            f"{plan.events:,} events of one year"
        )
        watch.begins("deliver")
        relay = stack.enter_context(Relay(url, first, mark=max(1, round(plan.events * KILL_AFTER))))
        outcomes = _deliver(plan, deliverer, relay, folder, watch)
        watch.ends(f"{outcomes.read:,} deliveries in {time.monotonic() - started:.1f} s")
        watch.begins("take over")
        kill = relay.await_takeover()
        watch.ends(
            f"worker {kill.pid} was killed; its lease of {LEASE:.0f} s ran out, and worker {kill.successor} "
            f"took over {kill.taken_over_after:.1f} s later"
        )
        watch.begins("catch up")
        lag = relay.catch_up(watch)
        watch.ends("the read models are at the log's end")
        watch.begins("verify")
        with connected(url) as connection:
            final = status(connection, app)
            models = read_models(connection)
        verdict = judge(simulation, read_log(url), models)
        lag.final_events = max(each.lag.number for each in final.projections)
        lag.final_seconds = max(each.lag_seconds for each in final.projections)
        watch.ends(f"{sum(check.compared for check in verdict.checks):,} comparisons")
    seconds = time.monotonic() - started
    return Demonstration(seed, simulation, plan, outcomes, kill, lag, final, models, verdict, seconds)


def read_models(connection: psycopg.Connection[Any]) -> ReadModels:
    """Return the rows of the shop's read models."""
    months = connection.execute(statement("demo_revenue")).fetchall()
    return ReadModels(
        Table(order_summary).all(connection),
        Table(account_balance).all(connection),
        [MonthRevenue(*month) for month in months],
    )


def read_log(url: str) -> list[Event]:
    """Return every event of the log in the order of positions."""
    events: list[Event] = []
    with connected(url) as connection:
        configure(connection)
        reader = LogReader(connection)
        after = 0
        while True:
            page = reader.read(after, 10_000)
            if not page.records:
                return events
            events += map(reader.event, page.records)
            after = page.upto


def _deliver(
    plan: Plan, deliverer: processes.Deliverer, relay: Relay, folder: Path, watch: Observer
) -> Outcomes:
    outcomes = Outcomes()
    total = len(plan.deliveries)
    size = max(1, -(-total // PORTIONS))
    for start in range(0, total, size):
        if start >= total * GATE:
            relay.await_kill()
        path = folder / f"deliveries-{start:07}.jsonl"
        delivery.write(plan.deliveries[start : start + size], path)
        outcomes.add(deliverer.deliver(path))
        path.unlink()
        watch.moves(min(1.0, (start + size) / total))
    relay.await_kill()
    return outcomes


class Relay:
    """Kills the first worker in mid-work, starts the second, and keeps an eye on the lag."""

    def __init__(self, url: str, first: processes.Worker, *, mark: int) -> None:
        self._url = url
        self._first = first
        self._mark = mark
        self._second: processes.Worker | None = None
        self._kill = Kill(pid=first.pid)
        self._lag = Lag()
        self._killed = threading.Event()
        self._ending = threading.Event()
        self._delivered = threading.Event()
        self._caught_up = threading.Event()
        self._died = 0.0
        self._taken_over = threading.Event()
        self._share = 0.0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="onefold-relay", daemon=True)

    def await_kill(self) -> None:
        """Wait until the first worker is dead and the second is on its way."""
        self._wait(self._killed, "the worker to be at work and killed")

    def await_takeover(self) -> Kill:
        """Wait until the second worker has every projection, which the lease of the first one delays."""
        self._wait(self._taken_over, "another worker to take over")
        return self._kill

    def catch_up(self, watch: Observer) -> Lag:
        """Wait until the second worker has brought every projection to the log's end, and stop it."""
        self._delivered.set()
        self._wait(
            self._caught_up, "the read models to reach the log's end", lambda: watch.moves(self._share)
        )
        assert self._second is not None
        self._second.stop()
        return self._lag

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        if self._second is not None:
            self._second.__exit__(None, None, None)

    def _wait(self, what: threading.Event, words: str, meanwhile: Callable[[], None] = lambda: None) -> None:
        deadline = time.monotonic() + PATIENCE
        while not what.wait(0.05):
            meanwhile()
            if self._error is not None:
                raise self._error
            if time.monotonic() > deadline:
                raise processes.DemoFailed(f"expected {words} within {PATIENCE:.0f} s, found it still going")

    def _run(self) -> None:
        try:
            with connected(self._url, application="onefold demo") as connection:
                if self._await_midwork(connection):
                    self._replace(connection)
                    self._follow(connection)
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            self._error = error

    def _await_midwork(self, connection: psycopg.Connection[Any]) -> bool:
        settled: float | None = None
        query = statement("demo_work")
        while not self._ending.is_set():
            self._first.require_alive()
            furthest, least, head, writing = connection.execute(query, prepare=True).fetchone() or (
                0,
                0,
                0,
                False,
            )
            if furthest >= self._mark and least < head and writing:
                self._kill.in_transaction = True
                return True
            # Everything that came is applied: with so few events there is no better moment.
            idle = 0 < head == least
            settled = (settled or time.monotonic()) if idle else None
            if settled is not None and time.monotonic() - settled > SETTLE:
                return True
            time.sleep(LOOK)
        return False

    def _replace(self, connection: psycopg.Connection[Any]) -> None:
        self._first.kill()
        self._died = time.monotonic()
        self._second = processes.Worker(2, self._url, page=PAGE)
        left = status(connection, app)
        self._kill.positions = {each.name: each.position for each in left.projections}
        self._kill.head = left.logs[0].head
        self._kill.successor = self._second.pid
        self._killed.set()

    def _follow(self, connection: psycopg.Connection[Any]) -> None:
        second = self._second
        assert second is not None
        while not self._ending.is_set() and not self._caught_up.is_set():
            second.require_alive()
            delivered = self._delivered.is_set()
            seen = status(connection, app)
            self._note(seen, second.pid)
            if delivered and self._taken_over.is_set() and _caught_up(seen):
                self._caught_up.set()
            self._ending.wait(SAMPLE)

    def _note(self, seen: Status, successor: int) -> None:
        head = max(1, seen.logs[0].head)
        self._share = min(each.position for each in seen.projections) / head
        self._lag.worst_events = max(self._lag.worst_events, *(each.lag.number for each in seen.projections))
        self._lag.worst_seconds = max(
            self._lag.worst_seconds, *(each.lag_seconds for each in seen.projections)
        )
        if not self._taken_over.is_set() and all(
            f":{successor}:" in (each.owner or "") for each in seen.projections
        ):
            self._kill.taken_over_after = time.monotonic() - self._died
            self._taken_over.set()


def _caught_up(seen: Status) -> bool:
    return all(each.lag.number == 0 for each in seen.projections)

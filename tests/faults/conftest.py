"""Worker processes that the tests of faults kill, stop and revive."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import psycopg
import pytest

from onefold.infrastructure.postgres.log import EventLog
from onefold.infrastructure.postgres.pool import open_pool

NURSERY = Path(__file__).with_name("nursery.py")


def load(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def nursery() -> ModuleType:
    """The module that worker processes run: its events and projections."""
    return load(NURSERY, "tests_faults_nursery")


WIRE = Path(__file__).parents[1] / "infrastructure" / "postgres" / "wire.py"


@pytest.fixture
def wire(database_url: str, tmp_path: Path) -> Iterator[Any]:
    """A wire to the test's database that can be cut; `wire.url` leads through it."""
    made = load(WIRE, "tests_wire").Wire(database_url, tmp_path)
    yield made
    made.close()


class Process:
    """A worker process; `pid` is that of a real process of its own."""

    def __init__(self, pid: int, folder: Path) -> None:
        self.pid = pid
        self._folder = folder

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.wait()

    @property
    def alive(self) -> bool:
        return psutil.pid_exists(self.pid)

    def wait(self, seconds: float = 20) -> None:
        wait_until(lambda: not self.alive, f"process {self.pid} ends", seconds)

    @property
    def said(self) -> str:
        """What it printed and logged so far."""
        log = self._folder / f"{self.pid}.log"
        return log.read_text() if log.exists() else ""

    def reached(self, mark: str, seconds: float = 20) -> None:
        """Wait until it has printed `mark`."""
        wait_until(lambda: mark in self.said, f"process {self.pid} says {mark!r}", seconds)


class Nursery:
    """Forks workers from one process that has imported everything, which takes a hundredth of a new start."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, str(NURSERY), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._children: list[Process] = []

    def start(self, url: str, projection: str, **options: Any) -> Process:
        """Start a worker of `projection` (see `nursery.PROJECTIONS`)."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"url": url, "projection": projection, **options}) + "\n")
        self._process.stdin.flush()
        child = Process(int(self._process.stdout.readline()), self._folder)
        self._children.append(child)
        return child

    def kill_children(self) -> None:
        for child in self._children:
            child.kill()
        self._children.clear()

    def close(self) -> None:
        self.kill_children()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(20)


@pytest.fixture(scope="session")
def forking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    made = Nursery(tmp_path_factory.mktemp("nursery"))
    yield made
    made.close()


@pytest.fixture
def start_worker(forking: Nursery, database_url: str) -> Iterator[Callable[..., Process]]:
    """Starts worker processes on the test's database; those that are left are killed after the test."""

    def start(projection: str, **options: Any) -> Process:
        return forking.start(database_url, projection, **options)

    yield start
    forking.kill_children()


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 20) -> float:
    """Wait for `condition` and return how long it took, in seconds."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < seconds, f"expected within {seconds} s: {what}"
        time.sleep(0.005)
    return time.monotonic() - started


@pytest.fixture
def wait() -> Callable[..., float]:
    return wait_until


class Bank:
    """A log of deposits, and what the projections have made of it."""

    def __init__(self, log: EventLog, connection: psycopg.Connection[Any], events: ModuleType) -> None:
        self.log = log
        self.connection = connection
        self.events = events
        self._versions: dict[str, int] = {}

    def deposit(
        self, *accounts: str, amount: int = 1, connection: psycopg.Connection[Any] | None = None
    ) -> None:
        """Append a deposit for each account, in one transaction."""
        facts = []
        for account in accounts:
            self._versions[account] = self._versions.get(account, 0) + 1
            facts.append(self.events.deposit(account, self._versions[account], amount))
        for first in range(0, len(facts), 500):
            self.log.append(facts[first : first + 500], connection=connection)

    def balances(self, projection: str = "balance") -> dict[str, tuple[int, int]]:
        """Balance and count of events of each account."""
        query = f"SELECT account, balance, count FROM read.{projection} ORDER BY account"
        try:
            return {account: (balance, count) for account, balance, count in self._rows(query)}
        except psycopg.errors.UndefinedTable:
            return {}

    def expected(self) -> dict[str, tuple[int, int]]:
        """The same, recomputed from the log by SQL."""
        query = (
            "SELECT split_part(stream, '/', 2), sum((data ->> 'amount')::bigint)::bigint, count(*) "
            "FROM onefold.events GROUP BY 1 ORDER BY 1"
        )
        return {account: (balance, count) for account, balance, count in self._rows(query)}

    def position(self, projection: str = "balance") -> int:
        query = f"SELECT position FROM onefold.checkpoints WHERE projection = '{projection}'"
        rows = self._rows(query)
        return rows[0][0] if rows else -1

    def state(self, projection: str = "balance") -> tuple[int, int]:
        """Events counted in the rows and position of the checkpoint, in one snapshot, when no worker is connected.

        The server may go on with what a killed worker has asked for.
        """
        connected = f"SELECT FROM pg_stat_activity WHERE application_name LIKE 'onefold {projection} %'"
        connected += " AND datname = current_database()"
        wait_until(lambda: not self._rows(connected), f"the workers of {projection} are disconnected")
        if self.position(projection) < 0:
            return 0, 0
        query = f"SELECT (SELECT coalesce(sum(count), 0)::bigint FROM read.{projection}), position "
        query += f"FROM onefold.checkpoints WHERE projection = '{projection}'"
        counted, position = self._rows(query)[0]
        return counted, position

    def head(self) -> int:
        position: int = self._rows("SELECT coalesce(max(position), 0) FROM onefold.events")[0][0]
        return position

    def owner(self, projection: str = "balance") -> int | None:
        """The pid of the process that holds the projection."""
        query = f"SELECT owner FROM onefold.checkpoints WHERE projection = '{projection}'"
        rows = self._rows(query)
        return int(rows[0][0].split(":")[1]) if rows and rows[0][0] else None

    def _rows(self, query: str) -> list[Any]:
        return self.connection.execute(query.encode()).fetchall()


@pytest.fixture
def bank(database_url: str, connection: psycopg.Connection[Any], nursery: ModuleType) -> Iterator[Bank]:
    with open_pool(database_url, size=4) as pool:
        yield Bank(EventLog(pool, registry=nursery.known), connection, nursery)

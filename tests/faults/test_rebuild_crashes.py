"""Rebuilds that are killed while events are appended, a worker works and readers read: the old table serves on."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

START = Callable[..., Any]
REBUILDER = Path(__file__).with_name("rebuilder.py")
MEGABYTES = 250
"""What a rebuild's process may need, however long the log is; a third of it is the interpreter with its packages."""

PATIENT = "-c lock_timeout=200ms"
"""A reader fails that is kept waiting for longer; what a busy machine adds to its queries does not count."""


def rebuild(url: str, **options: Any) -> dict[str, Any] | None:
    """Run a rebuild as a process of its own; None when it was killed."""
    done = subprocess.run(
        [sys.executable, str(REBUILDER), url, json.dumps(options)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == -signal.SIGKILL:
        return None
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


class Reader:
    """Reads all balances again and again: every account is there, and none gets older."""

    def __init__(self, url: str, accounts: int, stop: threading.Event, pause: float) -> None:
        self.reads = 0
        self.wrong: list[str] = []
        last: dict[str, int] = {}
        query = "SELECT account, count, in_order FROM read.balance"
        with psycopg.connect(url, autocommit=True, options=PATIENT) as connection:
            while not stop.is_set():
                rows = connection.execute(query).fetchall()
                self.reads += 1
                if len(rows) != accounts:
                    self.wrong.append(f"{len(rows)} accounts")
                for account, count, in_order in rows:
                    if count < last.get(account, 0) or not in_order:
                        self.wrong.append(f"{account}: {count} after {last.get(account)}")
                    last[account] = count
                time.sleep(pause)


@contextmanager
def reading(url: str, accounts: int, readers: int, pause: float = 0.005) -> Iterator[list[Future[Reader]]]:
    stop = threading.Event()
    with ThreadPoolExecutor(readers) as threads:
        futures = [threads.submit(Reader, url, accounts, stop, pause) for _ in range(readers)]
        try:
            yield futures
        finally:
            stop.set()


@contextmanager
def depositing(bank: Any, accounts: int, rate: float) -> Iterator[None]:
    """Append so many events a second until the body ends."""
    stop = threading.Event()

    def deposit() -> None:
        number, began = 0, time.monotonic()
        while not stop.is_set():
            bank.deposit(f"a{number % accounts:06}")
            number += 1
            time.sleep(max(0.0, began + number / rate - time.monotonic()))

    with ThreadPoolExecutor(1) as threads:
        going = threads.submit(deposit)
        try:
            yield
        finally:
            stop.set()
            going.result()


def dump(bank: Any, table: str = "read.balance") -> str | None:
    query = f"SELECT md5(string_agg(t::text, ',' ORDER BY account)) FROM {table} t"
    found: str | None = bank.connection.execute(query).fetchone()[0]
    return found


def fresh(bank: Any, start_worker: START, wait: Callable[..., float]) -> str | None:
    """What a fresh build by a worker process gives."""
    bank.connection.execute("DELETE FROM onefold.checkpoints WHERE projection = 'balance'")
    for schema in ("read", "read_next", "read_before"):
        bank.connection.execute(f"DROP TABLE IF EXISTS {schema}.balance")
    worker = start_worker("balance")
    wait(lambda: bank.position() == bank.head(), "a fresh worker is at the log's end", 120)
    worker.kill()
    return dump(bank)


def settled(bank: Any, wait: Callable[..., float]) -> None:
    query = "SELECT position FROM onefold.checkpoints WHERE projection = 'balance' AND segment = 0"
    wait(
        lambda: bank.connection.execute(query).fetchone()[0] == bank.head(),
        "the worker is at the log's end",
        60,
    )


KILLS: list[dict[str, Any]] = [
    {"at": 0.1},
    {"at": 0.6},
    {"at": "hold"},
    {"at": "exchange", "delay": 0.0},
    {"at": "exchange", "delay": 0.002},
    {"at": "exchange", "delay": 0.006},
    {"at": "swapped"},
]


@pytest.mark.parametrize("resume", [False, True], ids=["begins anew", "resumes"])
def test_a_rebuild_that_is_killed_anywhere_leaves_a_table_that_serves_and_the_next_one_ends(
    bank: Any, database_url: str, start_worker: START, wait: Callable[..., float], resume: bool
) -> None:
    accounts = 50
    bank.deposit(*(f"a{number % accounts:06}" for number in range(2000)))
    start_worker("balance", lease=1.0)
    wait(lambda: bank.position() == bank.head(), "the table is built")
    with depositing(bank, accounts, 100), reading(database_url, accounts, 3) as readers:
        for kill in KILLS:
            assert rebuild(database_url, page=100, resume=resume, **kill) is None, kill
        done = rebuild(database_url, page=100, resume=resume, verify="full")
    assert done is not None
    assert done["swapped"]
    seen = [each.result() for each in readers]
    assert [each.wrong for each in seen] == [[]] * 3
    assert min(each.reads for each in seen) > 20
    settled(bank, wait)
    assert dump(bank) == fresh(bank, start_worker, wait)


def test_a_rebuild_that_is_stopped_in_its_swap_lets_the_worker_go_on(
    bank: Any, database_url: str, start_worker: START, wait: Callable[..., float]
) -> None:
    """SIGSTOP while the serving version is held: the worker takes over again when the hold runs out."""
    bank.deposit(*("a", "b", "c") * 10)
    start_worker("balance", lease=1.0)
    wait(lambda: bank.position() == bank.head(), "the table is built")
    with psycopg.connect(database_url) as blocking:
        # The exchange waits for this row, with the table locked, until its time is up, and is tried again.
        blocking.execute("SELECT FROM onefold.checkpoints WHERE segment = 0 FOR KEY SHARE")
        process = subprocess.Popen(
            [sys.executable, str(REBUILDER), database_url, "{}"], stdout=subprocess.PIPE
        )
        held = "SELECT 1 FROM onefold.checkpoints WHERE segment = 0 AND owner LIKE %s"
        try:
            wait(
                lambda: bank.connection.execute(held, (f"%:{process.pid}:%",)).fetchone(),
                "the version is held",
            )
            process.send_signal(signal.SIGSTOP)
            blocking.rollback()
            bank.deposit("a")
            assert wait(lambda: bank.balances().get("a", (0, 0))[1] == 11, "the worker goes on", 10) < 10
            process.send_signal(signal.SIGCONT)
            assert process.wait(30) == 0
        finally:
            if psutil.pid_exists(process.pid):
                process.kill()
            process.communicate()
    bank.deposit("b")
    settled(bank, wait)
    assert bank.balances() == bank.expected()


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2])
def test_a_million_events_are_rebuilt_under_load_and_kills(
    bank: Any, database_url: str, start_worker: START, wait: Callable[..., float], seed: int
) -> None:
    """500 events a second, ten readers, kills at chosen and at random places; memory stays flat."""
    accounts, drawn = 20_000, random.Random(seed)
    names = [f"a{number:06}" for number in range(accounts)]
    for _ in range(50):
        drawn.shuffle(names)
        bank.deposit(*names)
    start_worker("balance", lease=2.0)
    wait(lambda: bank.position() == bank.head(), "the table is built", 300)
    kills = [*KILLS, *({"at": drawn.random()} for _ in range(3))]
    drawn.shuffle(kills)
    with depositing(bank, accounts, 500), reading(database_url, accounts, 10, 0.2) as readers:
        for kill in kills:
            assert rebuild(database_url, resume=drawn.random() < 0.5, **kill) is None, kill
        done = rebuild(database_url, verify="full")
    assert done is not None
    assert done["swapped"]
    assert done["megabytes"] < MEGABYTES
    assert [each.result().wrong for each in readers] == [[]] * 10
    settled(bank, wait)
    assert dump(bank) == fresh(bank, start_worker, wait)

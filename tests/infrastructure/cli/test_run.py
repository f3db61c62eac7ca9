"""`onefold run` keeps projections up with their log, through failures, kills, hangs and signals."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from psycopg import Connection

from onefold.infrastructure.store import Store
from onefold.projections.shop import account_balance

from .conftest import Commands, Onefold, deposits, until


@pytest.fixture
def mine(application: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's application, importable in this process too."""
    monkeypatch.chdir(application)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return application


def checkpoint(connection: Connection, name: str = "total") -> tuple[int, str | None]:
    """Where a projection stands, and the owner of its lease."""
    found = connection.execute(
        "SELECT position, owner FROM onefold.checkpoints WHERE projection = %s AND segment = 0", (name,)
    ).fetchone()
    return found or (0, None)


def pid_of(owner: str | None) -> int:
    return int(owner.split(":")[-2]) if owner else 0


def totals(connection: Connection) -> Any:
    return connection.execute("SELECT account, total, deposits FROM read.total ORDER BY account").fetchall()


def test_once_applies_what_is_there_and_ends(onefold: Onefold, store: Store) -> None:
    deposits(store, "1", 10, 20)
    said = onefold("run", "--once", "--json")
    assert said.code == 0
    for found in said.document["projections"]:
        assert (found["position"], found["caught_up"], found["failure"]) == (3, True, None)
    assert store.rows(account_balance)[0].balance == 30
    shown = onefold("run", "--once")
    assert shown.code == 0
    assert shown.out.count("caught up") == 3


def test_projections_may_be_chosen_by_name(onefold: Onefold, store: Store) -> None:
    deposits(store, "1", 10)
    said = onefold("run", "--once", "account_balance", "account_balance", "--json")
    assert [each["projection"] for each in said.document["projections"]] == ["account_balance"]
    states = {each["name"]: each["state"] for each in onefold("status", "--json").document["projections"]}
    assert states == {
        "account_balance": "idle",
        "order_summary": "not built",
        "revenue_by_month": "not built",
    }


def test_an_application_without_projections_has_nothing_to_run(onefold: Onefold, mine: Path) -> None:
    said = onefold("run", "--app", "mine:nothing")
    assert said.code == 2
    assert "no projections to run" in said.err


@pytest.mark.parametrize(("page", "bound"), [("0", "1"), ("1000001", "1000000"), ("9" * 20, "1000000")])
def test_a_page_that_cannot_be_held_is_wrong_use(onefold: Onefold, page: str, bound: str) -> None:
    said = onefold("run", "--once", "--page", page)
    assert said.code == 2
    assert f"equal to {bound} " in said.err


def test_once_names_the_failure_and_lets_the_others_finish(
    onefold: Onefold, store: Store, mine: Path
) -> None:
    deposits(store, "1", 10, 13, 20)
    said = onefold("run", "--once", "--app", "mine:app", "--json")
    assert said.code == 1
    total, picky = said.document["projections"]
    assert (total["position"], total["failure"]) == (4, None)
    assert (picky["position"], picky["caught_up"]) == (2, False)
    assert picky["failed_event"]["stream"] == "account/1"
    assert picky["failed_event"]["version"] == 3
    shown = onefold("run", "--once", "--app", "mine:app")
    assert "[13] brings bad luck" in " ".join(shown.out.split())


def test_a_termination_signal_ends_it_in_order(start: Commands, store: Store, connection: Connection) -> None:
    deposits(store, "1", 10, 20)
    worker = start("run", "--json")
    for name in ("account_balance", "order_summary", "revenue_by_month"):
        until(lambda name=name: checkpoint(connection, name)[0] == 3)
    deposits(store, "1", 30)
    store.wait_for("account_balance", 4)
    assert pid_of(checkpoint(connection, "account_balance")[1]) == worker.pid
    said = worker.end(signal.SIGTERM)
    assert said.code == 0, said.err
    assert {each["position"] for each in said.document["projections"]} == {4}
    assert [
        each["applied"] for each in said.document["projections"] if each["projection"] == "account_balance"
    ] == [4]
    assert checkpoint(connection, "account_balance") == (4, None)
    assert store.rows(account_balance)[0].balance == 60


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_right_after_its_first_words_ends_it_in_order(
    start: Commands, store: Store, number: signal.Signals
) -> None:
    worker = start("run", "account_balance")
    assert worker.process.stderr is not None
    assert "running account_balance" in worker.process.stderr.readline()
    said = worker.end(number)
    assert said.code == 0, said.err
    assert "stopped" in said.out


def test_a_signal_is_heeded_from_the_first_words_on(onefold: Onefold, store: Store) -> None:
    class Interrupter(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "running" in record.getMessage():
                os.kill(os.getpid(), signal.SIGINT)

    logger, interrupter = logging.getLogger("onefold.run"), Interrupter()
    logger.addHandler(interrupter)
    try:
        said = onefold("run", "account_balance")
    finally:
        logger.removeHandler(interrupter)
    assert said.code == 0, said.err
    assert "stopped" in said.out


def test_an_interrupt_ends_it_in_order_too(start: Commands, store: Store, connection: Connection) -> None:
    deposits(store, "1", 10)
    worker = start("run", "account_balance")
    until(lambda: checkpoint(connection, "account_balance")[0] == 2)
    said = worker.end(signal.SIGINT)
    assert said.code == 0, said.err
    assert "stopped" in said.out


def test_it_may_end_with_the_program_that_started_it(start: Commands, connection: Connection) -> None:
    worker = start("run", "account_balance", "--stop-on-eof")
    until(lambda: checkpoint(connection, "account_balance")[1])
    assert worker.process.stdin is not None
    worker.process.stdin.close()
    assert worker.process.wait(30) == 0


def test_a_projection_that_fails_leaves_the_others_at_work(
    start: Commands, store: Store, connection: Connection, mine: Path
) -> None:
    deposits(store, "1", 10, 13)
    worker = start("run", "--app", "mine:app", "--json", cwd=mine)
    until(lambda: checkpoint(connection, "picky") == (2, None))
    deposits(store, "1", 20)
    until(lambda: checkpoint(connection)[0] == 4)
    said = worker.end()
    assert said.code == 1
    total, picky = said.document["projections"]
    assert (total["failure"], total["position"]) == (None, 4)
    assert "account.deposited (stream account/1, version 3, position 3)" in picky["failure"]
    assert "ERROR projection picky failed" in said.err
    assert totals(connection) == [("1", Decimal(43), 3)]


def test_it_ends_by_itself_when_everything_has_failed(start: Commands, store: Store, mine: Path) -> None:
    deposits(store, "1", 13)
    said = start("run", "picky", "--app", "mine:app", cwd=mine).end(None)
    assert said.code == 1
    assert "picky" in said.out


def test_a_projection_that_needs_a_rebuild_is_taken_up_again_after_it(
    start: Commands, store: Store, connection: Connection, mine: Path
) -> None:
    deposits(store, "1", 10)
    assert start("run", "--once", "--app", "mine:steady", cwd=mine).end(None).code == 0
    connection.execute("UPDATE onefold.checkpoints SET fingerprint = 'other' WHERE projection = 'total'")
    worker = start("run", "--app", "mine:steady", cwd=mine)
    assert worker.process.stderr is not None
    assert "running total" in worker.process.stderr.readline()
    assert "run `onefold rebuild total`. It goes on after that" in worker.process.stderr.readline()
    assert start("rebuild", "total", "--app", "mine:steady", cwd=mine).end(None).code == 0
    deposits(store, "1", 20)
    until(lambda: checkpoint(connection)[0] == 3)
    assert pid_of(checkpoint(connection)[1]) == worker.pid
    said = worker.end()
    assert said.code == 0, said.err
    assert "total: rebuilt, going on" in said.err


def test_one_that_still_needs_a_rebuild_when_it_is_stopped_is_a_problem(
    start: Commands, store: Store, connection: Connection, mine: Path
) -> None:
    assert start("run", "--once", "--app", "mine:steady", cwd=mine).end(None).code == 0
    connection.execute("UPDATE onefold.checkpoints SET fingerprint = 'other' WHERE projection = 'total'")
    worker = start("run", "--app", "mine:steady", cwd=mine)
    assert worker.process.stderr is not None
    assert "running total" in worker.process.stderr.readline()
    assert "rebuild total" in worker.process.stderr.readline()
    said = worker.end()
    assert said.code == 1
    assert "needs rebuild" in said.out
    assert said.err.count("rebuild total") == 0


@pytest.mark.parametrize("once", ["--once", "--json"])
def test_debugging_shows_the_line_of_a_fold_that_fails(
    start: Commands, store: Store, mine: Path, once: str
) -> None:
    deposits(store, "1", 13)
    arguments = ("run", "picky", once, "--app", "mine:app")
    quiet = start(*arguments, cwd=mine).end(None)
    assert quiet.code == 1
    assert "Traceback" not in quiet.err
    said = start(*arguments, "--debug", cwd=mine).end(None)
    assert said.code == 1
    assert f'File "{mine / "mine.py"}", line' in said.err
    assert 'raise ValueError("[13] brings bad luck")' in said.err


def test_another_process_takes_over_from_a_killed_one(
    start: Commands, store: Store, connection: Connection, mine: Path
) -> None:
    first = start("run", "--app", "mine:steady", "--page", "1", cwd=mine)
    until(lambda: pid_of(checkpoint(connection)[1]) == first.pid)
    second = start("run", "--app", "mine:steady", "--page", "1", cwd=mine)
    deposits(store, "1", *range(1, 400))
    until(lambda: checkpoint(connection)[0] > 20)
    first.send(signal.SIGKILL)
    died = time.monotonic()
    until(lambda: pid_of(checkpoint(connection)[1]) == second.pid)
    assert time.monotonic() - died < 10
    until(lambda: checkpoint(connection)[0] == 400)
    assert totals(connection) == [("1", Decimal(sum(range(1, 400))), 399)]
    assert second.end().code == 0
    assert first.end(None).code == -signal.SIGKILL


def test_a_stopped_process_is_replaced_and_refused_when_it_comes_back(
    start: Commands, store: Store, connection: Connection, mine: Path
) -> None:
    first = start("run", "--app", "mine:steady", "--page", "1", cwd=mine)
    until(lambda: pid_of(checkpoint(connection)[1]) == first.pid)
    second = start("run", "--app", "mine:steady", "--page", "1", cwd=mine)
    deposits(store, "1", *range(1, 400))
    until(lambda: checkpoint(connection)[0] > 20)
    first.send(signal.SIGSTOP)
    try:
        until(lambda: pid_of(checkpoint(connection)[1]) == second.pid, 15)
        until(lambda: checkpoint(connection)[0] == 400)
    finally:
        first.send(signal.SIGCONT)
    deposits(store, "1", *range(400, 500))
    until(lambda: checkpoint(connection)[0] == 500)
    time.sleep(0.5)
    assert pid_of(checkpoint(connection)[1]) == second.pid
    assert totals(connection) == [("1", Decimal(sum(range(1, 500))), 499)]
    assert second.end().code == 0
    until(lambda: pid_of(checkpoint(connection)[1]) == first.pid)
    assert first.end().code == 0
    assert totals(connection) == [("1", Decimal(sum(range(1, 500))), 499)]


def test_once_says_when_another_worker_holds_the_projection(
    onefold: Onefold,
    start: Commands,
    store: Store,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
    mine: Path,
) -> None:
    worker = start("run", "--app", "mine:steady", cwd=mine)
    until(lambda: pid_of(checkpoint(connection)[1]) == worker.pid)
    from onefold.infrastructure import worker as workers

    once = workers.Worker.run_once
    monkeypatch.setattr(workers.Worker, "run_once", lambda self: once(self, patience=0.2))
    said = onefold("run", "--once", "--app", "mine:steady")
    assert said.code == 1
    assert "held by another worker" in said.out
    assert worker.end().code == 0


def test_a_terminal_shows_how_far_it_is(database_url: str, store: Store, connection: Connection) -> None:
    deposits(store, "1", 10)
    screen, end = os.openpty()
    worker = subprocess.Popen(
        [sys.executable, "-m", "onefold.infrastructure.cli", "run"],
        stdout=subprocess.PIPE,
        stderr=end,
        env={**os.environ, "ONEFOLD_DATABASE_URL": database_url, "COLUMNS": "100", "TERM": "xterm"},
    )
    os.close(end)
    shown = b""
    try:
        while b"running" not in shown:
            shown += os.read(screen, 4096)
        worker.send_signal(signal.SIGINT)
        # Linux gives an error, others an end of file, once the last writer is gone.
        with contextlib.suppress(OSError):
            while more := os.read(screen, 4096):
                shown += more
        assert worker.wait(30) == 0
    finally:
        worker.kill()
        worker.communicate()
        os.close(screen)
    assert b"account_balance" in shown
    assert b"Ctrl-C finishes the page in hand and stops" in shown

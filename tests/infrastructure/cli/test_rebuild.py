"""`onefold rebuild` makes a read model anew from the whole log."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from psycopg import Connection

from onefold.infrastructure.store import Store
from onefold.projections.shop import account_balance

from .conftest import Commands, Onefold, deposits, until


def test_a_damaged_table_is_right_again(onefold: Onefold, store: Store, connection: Connection) -> None:
    deposits(store, "1", 10, 20)
    deposits(store, "2", 5)
    store.run()
    right = store.rows(account_balance)
    connection.execute("UPDATE read.account_balance SET balance = 99, version = 7")
    deposits(store, "2", 6)
    said = onefold("rebuild", "account_balance", "--json")
    assert said.code == 0
    found = said.document
    assert found.pop("seconds") > 0
    assert found == {"projection": "account_balance", "position": 6, "applied": 6, "lag_events": 0}
    assert [row.balance for row in store.rows(account_balance)] == [30, 11]
    assert store.rows(account_balance)[0] == right[0]
    assert (
        "rebuilt account_balance from 6 events up to position 6" in onefold("rebuild", "account_balance").out
    )


def test_a_projection_that_never_ran_may_be_rebuilt(onefold: Onefold, store: Store) -> None:
    deposits(store, "1", 10)
    assert onefold("rebuild", "account_balance").code == 0
    assert store.rows(account_balance)[0].balance == 10


def test_a_failing_event_is_named_and_kept_for_the_status(
    onefold: Onefold, store: Store, application: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(application)
    monkeypatch.setattr(sys, "path", [*sys.path])
    deposits(store, "1", 10, 13)
    said = onefold("rebuild", "picky", "--app", "mine:app")
    state = onefold("status", "--app", "mine:app", "--json").document["projections"][1]["state"]
    sys.modules.pop("mine", None)
    assert said.code == 1
    assert "projection picky failed at event account.deposited (stream account/1, version 3" in said.err
    assert state == "stopped by failure"


def test_debugging_a_rebuild_shows_the_line_of_a_fold_that_fails(
    store: Store, application: Path, start: Commands
) -> None:
    deposits(store, "1", 13)
    said = start("rebuild", "picky", "--app", "mine:app", "--debug", cwd=application).end(None)
    assert said.code == 1
    assert f'File "{application / "mine.py"}", line' in said.err
    assert said.err.splitlines()[-1].startswith("onefold: projection picky failed")


def test_a_projection_that_a_worker_runs_is_left_alone(
    onefold: Onefold,
    store: Store,
    connection: Connection,
    application: Path,
    start: Commands,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(application)
    monkeypatch.setattr(sys, "path", [*sys.path])
    deposits(store, "1", 10)
    worker = start("run", "--app", "mine:steady", cwd=application)
    query = "SELECT 1 FROM onefold.checkpoints WHERE projection = 'total' AND position = 2"
    until(lambda: connection.execute(query).fetchone())
    said = onefold("rebuild", "total", "--app", "mine:steady")
    sys.modules.pop("mine", None)
    assert said.code == 1
    assert f":{worker.pid}:" in said.err
    assert "stop that worker" in said.err
    assert worker.end().code == 0

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
    assert set(found.pop("phases")) == {"load", "finish", "follow", "verify", "swap"}
    assert found == {
        "projection": "account_balance",
        "position": 6,
        "applied": 6,
        "lag_events": 0,
        "rows": 2,
        "verified": 2,
        "swapped": True,
        "resumed": False,
        "left_behind": [],
    }
    assert [row.balance for row in store.rows(account_balance)] == [30, 11]
    assert store.rows(account_balance)[0] == right[0]
    said = onefold("rebuild", "account_balance")
    assert "rebuilt account_balance from 6 events up to position 6" in said.out
    assert "the version before is kept until `onefold projections drop-old account_balance`" in " ".join(
        said.out.split()
    )


def test_a_projection_that_never_ran_may_be_rebuilt(onefold: Onefold, store: Store) -> None:
    deposits(store, "1", 10)
    assert onefold("rebuild", "account_balance").code == 0
    assert store.rows(account_balance)[0].balance == 10


def test_a_failing_event_is_named_and_kept_for_the_list_of_versions(
    onefold: Onefold, store: Store, application: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(application)
    monkeypatch.setattr(sys, "path", [*sys.path])
    deposits(store, "1", 10, 13)
    said = onefold("rebuild", "picky", "--app", "mine:app")
    versions = onefold("projections", "list", "--app", "mine:app", "--json").document["versions"]
    shown = onefold("projections", "list", "--app", "mine:app").out
    state = onefold("status", "--app", "mine:app", "--json").document["projections"][1]["state"]
    sys.modules.pop("mine", None)
    assert said.code == 1
    assert "projection picky failed at event account.deposited (stream account/1, version 3" in said.err
    # The version that serves has not failed.
    assert state == "idle"
    (failed,) = [each for each in versions if each["failure"] is not None]
    assert (failed["role"], failed["code"], failed["phase"]) == ("next", "this", "load")
    assert "[13] brings bad luck" in " ".join(shown.split())


def test_debugging_a_rebuild_shows_the_line_of_a_fold_that_fails(
    store: Store, application: Path, start: Commands
) -> None:
    deposits(store, "1", 13)
    said = start("rebuild", "picky", "--app", "mine:app", "--debug", cwd=application).end(None)
    assert said.code == 1
    assert f'File "{application / "mine.py"}", line' in said.err
    assert said.err.splitlines()[-1].startswith("onefold: projection picky failed")


def test_a_projection_that_a_worker_runs_is_left_alone_by_a_rebuild_in_place(
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
    said = onefold("rebuild", "total", "--app", "mine:steady", "--in-place")
    sys.modules.pop("mine", None)
    assert said.code == 1
    assert f":{worker.pid}:" in said.err
    assert "stop that worker" in said.err
    assert worker.end().code == 0


def test_a_rebuild_beside_a_worker_swaps_and_can_be_rolled_back(
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
    until(lambda: connection.execute("SELECT 1 FROM onefold.checkpoints WHERE position = 2").fetchone())
    said = onefold("rebuild", "total", "--app", "mine:steady", "--json")
    assert said.code == 0, said.err
    assert said.document["swapped"]
    deposits(store, "1", 5)
    total = "SELECT total FROM read.total WHERE account = '1'"
    until(lambda: connection.execute(total).fetchone() == (15,))
    listed = onefold("projections", "list", "--app", "mine:steady", "--json").document["versions"]
    assert [(each["role"], each["code"], each["position"]) for each in listed] == [
        ("serving", "this", 3),
        ("before", "this", 2),
    ]
    back = onefold("projections", "rollback", "total", "--app", "mine:steady", "--json")
    assert (back.code, back.document["caught_up"], back.document["position"]) == (0, True, 3)
    assert connection.execute(total).fetchone() == (15,)
    assert "dropped the version before of total" in onefold("projections", "drop-old", "total").out
    again = onefold("projections", "rollback", "total", "--app", "mine:steady")
    sys.modules.pop("mine", None)
    assert again.code == 1
    assert "found none; it was dropped" in again.err
    assert worker.end().code == 0


def test_an_old_worker_ends_with_the_reason_when_newer_code_has_put_its_version_in_place(
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
    old = start("run", "--app", "mine:steady", cwd=application)
    until(lambda: connection.execute("SELECT 1 FROM onefold.checkpoints WHERE position = 2").fetchone())
    newer = (
        (application / "mine.py")
        .read_text()
        .replace('"total", Total, lease=1.0', '"total", Total, lease=1.0, version=2')
    )
    (application / "mine.py").write_text(newer)
    new = start("run", "--app", "mine:steady", cwd=application)
    assert new.process.stderr is not None
    until(lambda: "run `onefold rebuild total`" in new.process.stderr.readline())
    assert onefold("rebuild", "total", "--app", "mine:steady", "--to-version", "3").code == 2
    said = onefold("rebuild", "total", "--app", "mine:steady", "--to-version", "2")
    assert said.code == 0, said.err
    assert (
        "of version 2 already" in onefold("rebuild", "total", "--app", "mine:steady", "--to-version", "2").out
    )
    sys.modules.pop("mine", None)
    ended = old.end(None)
    assert ended.code == 1
    assert "put another one in its place; this worker ends" in " ".join(ended.err.split())
    deposits(store, "1", 5)
    until(lambda: connection.execute("SELECT 1 FROM read.total WHERE total = 15").fetchone())
    assert new.end().code == 0


def test_one_stream_is_folded_anew(onefold: Onefold, store: Store, connection: Connection) -> None:
    deposits(store, "1", 10)
    deposits(store, "2", 5)
    store.run()
    connection.execute("UPDATE read.account_balance SET balance = 99")
    said = onefold("rebuild", "account_balance", "--stream", "account/1", "--json")
    assert said.document == {
        "projection": "account_balance",
        "stream": "account/1",
        "position": 4,
        "rows": ["1"],
        "changed": 1,
    }
    assert [row.balance for row in store.rows(account_balance)] == [10, 99]
    said = onefold("rebuild", "account_balance", "--stream", "account/2")
    assert "folded 1 row of account_balance anew from account/2 up to position 4: 1 changed" in said.out
    assert onefold("rebuild", "account_balance", "--stream", "account/3").code == 1
    assert onefold("rebuild", "revenue_by_month", "--stream", "order/1").code == 2
    assert onefold("rebuild", "account_balance", "--stream", "account/1", "--in-place").code == 2


def test_a_projection_with_statements_of_its_own_is_rebuilt_in_place(onefold: Onefold, store: Store) -> None:
    said = onefold("rebuild", "revenue_by_month")
    assert said.code == 0
    assert "rebuilt revenue_by_month in place" in said.out


def test_a_version_as_of_a_position_is_left_beside(
    onefold: Onefold, store: Store, connection: Connection
) -> None:
    deposits(store, "1", 10, 20)
    store.run()
    said = onefold("rebuild", "account_balance", "--to-position", "2")
    assert "in read_next.account_balance, which serves nobody until" in " ".join(said.out.split())
    assert connection.execute("SELECT balance FROM read_next.account_balance").fetchall() == [(10,)]
    assert (
        onefold("projections", "drop-old", "account_balance", "--next", "--json").document["dropped"]
        == "next"
    )
    assert connection.execute("SELECT to_regclass('read_next.account_balance')").fetchone() == (None,)

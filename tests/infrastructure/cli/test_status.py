"""Status tells how far each projection is, who works on it, and who holds things up."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import Connection

from onefold.domain.account import Account
from onefold.domain.order import Order
from onefold.infrastructure.postgres.readmodel import ReadModelStore, prepare
from onefold.infrastructure.status import Count, State, status
from onefold.infrastructure.store import Store
from onefold.projections.app import App
from onefold.projections.projection import Handler, Projection
from onefold.projections.row import Row
from onefold.projections.shop import account_balance, app

from .conftest import Onefold, deposits


class Opened(Row, key="account"):
    account: str


def test_a_database_without_events_is_reported_as_such(onefold: Onefold) -> None:
    said = onefold("status", "--json")
    assert said.code == 0
    (log,) = said.document["logs"]
    assert log == {
        "name": "events",
        "there": True,
        "head": 0,
        "events": 0,
        "events_exact": True,
        "appending": [],
    }
    for projection in said.document["projections"]:
        assert (projection["state"], projection["position"], projection["lag_events"]) == ("not built", 0, 0)
        assert projection["lag_seconds"] == 0


def test_lag_is_counted_in_events_and_in_seconds_of_the_oldest(onefold: Onefold, store: Store) -> None:
    deposits(store, "1", 10, 20)
    store.run("account_balance")
    deposits(store, "1", 30, 40, 50)
    time.sleep(0.3)
    found = {each["name"]: each for each in onefold("status", "--json").document["projections"]}
    assert found["account_balance"]["position"] == 3
    assert found["account_balance"]["lag_events"] == 3
    assert found["account_balance"]["state"] == "idle"
    assert 0.3 <= found["account_balance"]["lag_seconds"] < 60
    assert found["order_summary"]["lag_events"] == 6
    store.run()
    found = {each["name"]: each for each in onefold("status", "--json").document["projections"]}
    assert {each["lag_events"] for each in found.values()} == {0}
    assert {each["lag_seconds"] for each in found.values()} == {0}


def test_a_count_beyond_its_bound_says_at_least(
    store: Store, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    deposits(store, "1", 10, 20, 30, 40)
    monkeypatch.setattr("onefold.infrastructure.status.COUNTED", 3)
    found = status(connection, app)
    assert found.projections[0].lag == Count(3, exact=False)
    assert not found.logs[0].events.exact


def test_positions_beyond_53_bits_are_exact(onefold: Onefold, store: Store, connection: Connection) -> None:
    first = 2**53 + 1
    connection.execute(f"ALTER TABLE onefold.events ALTER COLUMN position RESTART WITH {first}")
    deposits(store, "1", 10, 20)
    store.run("account_balance")
    deposits(store, "1", 30)
    said = onefold("status", "--json")
    assert said.document["logs"][0]["head"] == first + 3
    (projection,) = (each for each in said.document["projections"] if each["name"] == "account_balance")
    assert (projection["position"], projection["lag_events"]) == (first + 2, 1)
    assert f'"position": {first + 2},' in said.out
    assert f"{first + 3:,}" in onefold("status").out
    ran = onefold("run", "--once", "--json").document["projections"]
    assert {each["position"] for each in ran} == {first + 3}
    events = onefold("history", "account/1", "--json").document["events"]
    assert [event["position"] for event in events] == [first, first + 1, first + 2, first + 3]


def test_whoever_holds_an_append_open_is_named(
    onefold: Onefold, database_url: str, connection: Connection
) -> None:
    with psycopg.connect(database_url, application_name="slow writer") as writer:
        writer.execute(
            "INSERT INTO onefold.events (version, event_id, stream, type, data)"
            " VALUES (1, gen_random_uuid(), 'account/1', 'account.closed', '{}')"
        )
        pid = writer.info.backend_pid
        time.sleep(1.1)
        ((holder,),) = (log["appending"] for log in onefold("status", "--json").document["logs"])
        assert (holder["pid"], holder["application"]) == (pid, "slow writer")
        assert 1 <= holder["age"] < 60
        said = onefold("status")
        assert f"pid {pid} (slow writer) has an append open" in said.out
        writer.rollback()
    assert onefold("status", "--json").document["logs"][0]["appending"] == []


@pytest.fixture
def model(database_url: str) -> Iterator[ReadModelStore]:
    """A worker's hold on account_balance."""
    with (
        psycopg.connect(database_url, autocommit=True) as writer,
        psycopg.connect(database_url, autocommit=True) as loader,
    ):
        prepare(writer, account_balance)
        yield ReadModelStore(account_balance, writer, loader, None, owner="host:77:abcd")  # type: ignore[arg-type]


def test_a_worker_with_a_lease_is_shown_as_running(
    onefold: Onefold, connection: Connection, model: ReadModelStore
) -> None:
    model.claim()
    found = next(each for each in status(connection, app).projections if each.name == "account_balance")
    assert found.state is State.RUNNING
    assert found.owner == "host:77:abcd"
    assert 0 < (found.lease_seconds or 0) <= account_balance.lease
    assert "host:77" in onefold("status").out
    connection.execute("UPDATE onefold.checkpoints SET expires_at = clock_timestamp() - interval '90 s'")
    assert next(each for each in status(connection, app).projections if each.owner).state is State.IDLE
    assert "gone since 90" in onefold("status").out
    model.release()
    assert "host:77" not in onefold("status").out


def test_a_projection_that_was_stopped_by_a_failure_is_a_problem(
    store: Store, application: Path, onefold: Onefold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(application)
    monkeypatch.setattr(sys, "path", [*sys.path])
    deposits(store, "1", 10, 13, 20)
    assert onefold("run", "--once", "--app", "mine:app").code == 1
    said = onefold("status", "--app", "mine:app", "--json")
    shown = onefold("status", "--app", "mine:app")
    sys.modules.pop("mine", None)
    assert said.code == shown.code == 1
    total, picky = said.document["projections"]
    assert not said.document["sound"]
    assert (total["state"], total["failure"]) == ("idle", None)
    assert (picky["state"], picky["position"], picky["lag_events"]) == ("stopped by failure", 2, 2)
    failure = picky["failure"]
    assert failure.pop("at").endswith("Z")
    assert failure == {
        "type": "account.deposited",
        "stream": "account/1",
        "version": 3,
        "position": 3,
        "reason": "ValueError: [13] brings bad luck",
        "attempts": 1,
    }
    text = " ".join(shown.out.split())
    assert "picky stands before account.deposited (stream account/1, version 3, position 3)" in text
    assert "ValueError: [13] brings bad luck" in text


def test_a_failure_under_a_lease_is_being_retried(connection: Connection, model: ReadModelStore) -> None:
    from onefold.projections.errors import FailedEvent

    model.claim()
    model.note_failure(FailedEvent("account.deposited", "account/1", 2, 2**53 + 1, "ValueError: no"))
    found = next(each for each in status(connection, app).projections if each.name == "account_balance")
    assert found.state is State.RETRYING
    assert found.sound
    assert found.failure is not None
    assert (found.failure.event.position, found.failure.attempts) == (2**53 + 1, 1)


def test_a_read_model_that_other_code_built_needs_a_rebuild(
    onefold: Onefold, store: Store, connection: Connection
) -> None:
    store.run()
    connection.execute(
        "UPDATE onefold.checkpoints SET fingerprint = 'other' WHERE projection = 'order_summary'"
    )
    said = onefold("status")
    assert said.code == 1
    assert "run `onefold rebuild order_summary`" in said.out
    assert onefold("rebuild", "order_summary").code == 0
    assert onefold("status").code == 0


def test_the_way_out_of_an_old_read_model_is_told_beside_an_older_failure(
    onefold: Onefold, connection: Connection, model: ReadModelStore
) -> None:
    from onefold.projections.errors import FailedEvent

    model.claim()
    model.note_failure(FailedEvent("account.deposited", "account/1", 2, 2, "ValueError: no"))
    connection.execute("UPDATE onefold.checkpoints SET fingerprint = 'other'")
    said = onefold("status")
    assert said.code == 1
    assert "account_balance stands before account.deposited" in said.out
    assert "run `onefold rebuild account_balance`" in " ".join(said.out.split())


def test_projections_of_other_applications_are_named(store: Store, connection: Connection) -> None:
    store.run()
    mine = Projection("mine", Opened)
    mine.on(Account.Opened)(lambda row, event: Opened(account=event.meta.key))
    found = status(connection, App(projections=[mine]))
    assert [each.name for each in found.projections] == ["mine"]
    assert found.others == ("account_balance", "order_summary", "revenue_by_month")


def test_a_log_that_nobody_has_made_yet_is_not_there(connection: Connection) -> None:
    handler = Handler("mine", log="bookings")
    handler.on(Order.Placed)(lambda event, connection: None)
    found = status(connection, App(projections=[handler]))
    assert [(log.name, log.there) for log in found.logs] == [("events", True), ("bookings", False)]
    assert found.projections[0].state is State.NOT_BUILT
    assert found.projections[0].lag == Count(0)
    connection.execute("SELECT onefold.create_log('onefold', 'bookings')")
    assert [log.there for log in status(connection, App(projections=[handler])).logs] == [True, True]

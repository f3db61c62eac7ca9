"""One request has a key at a time, whatever happens to connections; old responses go with their generation."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from onefold.infrastructure.http.claims import (
    Busy,
    Done,
    HandlerBrokeTransaction,
    Mode,
    RequestTakenOver,
    Response,
    Work,
)
from onefold.infrastructure.http.keeper import Keeper
from onefold.infrastructure.http.key import Identity
from onefold.infrastructure.postgres.ledger import UnfitTransaction
from onefold.infrastructure.postgres.maintenance import Maintenance, maintain
from onefold.infrastructure.store import Store

from .conftest import Serve, rows
from .desk import Desk
from .test_middleware import problem

HELLO = Response(200, [("content-type", "text/plain")], b"hello")
MODES: tuple[Mode, ...] = ("lease", "transaction")
Begin = Callable[..., Work]


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maintenance is what these tests do themselves."""
    monkeypatch.setattr(Keeper, "look", lambda _: None)


@pytest.fixture
def begin(store: Store) -> Begin:
    def made(key: int = 1, asks: int = 1, lease: float = 30.0) -> Work:
        return Work(store.pool, lambda: Identity(bytes([key] * 16), bytes([asks] * 16)), lease)

    return made


@pytest.mark.parametrize("first", MODES)
@pytest.mark.parametrize("second", MODES)
def test_a_key_is_one_requests_however_both_claim_it(begin: Begin, first: Mode, second: Mode) -> None:
    owner, other = begin(), begin()
    assert owner.enter(first) is None
    assert other.enter(second) == Busy(same=True)
    # Whose claim is in a transaction cannot be seen; it is told later that the request is another one.
    assert begin(asks=2).enter(second) == Busy(same=first == "transaction")
    assert begin(key=2).enter(second) is None
    kept = owner.finish(HELLO)
    assert begin().enter(second) == Done(kept, same=True)
    assert begin(asks=2).enter(second) == Done(kept, same=False)


@pytest.mark.parametrize("first", MODES)
@pytest.mark.parametrize("second", MODES)
def test_who_lets_go_of_a_key_leaves_it_to_the_next(begin: Begin, first: Mode, second: Mode) -> None:
    owner, heir = begin(), begin()
    owner.enter(first)
    owner.abandon()
    owner.abandon()
    assert heir.enter(second) is None
    heir.abandon()


@pytest.mark.parametrize("second", MODES)
def test_a_lease_that_ran_out_is_taken_over_and_its_owner_keeps_nothing(
    begin: Begin, connection: Connection, second: Mode
) -> None:
    old, new = begin(lease=0.1), begin()
    old.enter("lease")
    time.sleep(0.15)
    assert new.enter(second) is None
    with pytest.raises(RequestTakenOver, match="longer lease"):
        old.finish(HELLO._replace(body=b"old"))
    kept = new.finish(HELLO)
    with pytest.raises(RequestTakenOver):
        old.finish(HELLO._replace(body=b"old"))
    old.abandon()
    assert begin().enter("lease") == Done(kept, same=True)


def test_an_owner_that_was_late_and_not_replaced_keeps_its_response(begin: Begin) -> None:
    late = begin(lease=0.05)
    late.enter("lease")
    time.sleep(0.1)
    kept = late.finish(HELLO)
    assert begin().enter("lease") == Done(kept, same=True)


def test_letting_go_late_does_not_take_the_key_from_the_heir(begin: Begin, connection: Connection) -> None:
    late, heir = begin(lease=0.05), begin()
    late.enter("lease")
    time.sleep(0.1)
    assert heir.enter("lease") is None
    late.abandon()
    assert rows(connection, "claims") == 1
    heir.finish(HELLO)


def test_a_claim_that_was_abandoned_before_it_began_claims_nothing(begin: Begin) -> None:
    work = begin()
    work.abandon()
    assert work.enter("lease") == Busy(same=True)
    assert begin().enter("lease") is None


@pytest.mark.parametrize("mode", MODES)
def test_connections_that_the_server_has_cut_are_replaced(
    begin: Begin, store: Store, connection: Connection, mode: Mode
) -> None:
    with store.pool.connection() as one:
        pid = one.info.backend_pid
    connection.execute("SELECT pg_terminate_backend(%s)", (pid,))
    time.sleep(0.1)
    work = begin()
    assert work.enter(mode) is None
    assert work.finish(HELLO).recorded_at is not None


def test_a_response_whose_commit_was_not_confirmed_is_found_and_not_kept_twice(
    begin: Begin, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = begin()
    work.enter("lease")
    keep, calls = Work._keep_alone, []

    def cut(self: Work, *arguments: Any, **more: Any) -> Response:
        calls.append(1)
        found = keep(self, *arguments, **more)
        if len(calls) == 1:
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return found

    monkeypatch.setattr(Work, "_keep_alone", cut)
    kept = work.finish(HELLO)
    assert len(calls) == 2
    assert rows(connection, "responses") == 1
    assert begin().enter("lease") == Done(kept, same=True)


def test_an_isolation_level_that_hides_what_was_committed_is_refused(
    begin: Begin, connection: Connection, store: Store
) -> None:
    with store.pool.connection() as one:
        one.execute("SET default_transaction_isolation = 'repeatable read'")
        pid = one.info.backend_pid
    with pytest.raises(UnfitTransaction, match="repeatable read"):
        begin().enter("lease")
    work = begin()
    assert work.enter("transaction") is None
    assert work.begin().info.backend_pid == pid
    work.abandon()


def test_a_handler_that_breaks_its_transaction_cannot_answer_with_success(
    begin: Begin, connection: Connection
) -> None:
    for how in ("SELECT 1 / 0", "COMMIT", "ROLLBACK"):
        work = begin()
        assert work.enter("transaction") is None
        with pytest.raises(psycopg.Error) if "/" in how else nullcontext():
            work.begin().execute(how.encode())
        with pytest.raises(HandlerBrokeTransaction, match="nothing of the request is kept"):
            work.finish(HELLO)
        work.abandon()
    assert rows(connection, "responses") == 0


def test_a_refusal_is_kept_also_after_an_error_of_the_database(begin: Begin, connection: Connection) -> None:
    work = begin()
    work.enter("transaction")
    with pytest.raises(psycopg.Error):
        work.begin().execute(b"SELECT 1 / 0")
    kept = work.finish(HELLO._replace(status=422))
    assert begin().enter("transaction") == Done(kept, same=True)


def test_a_commit_that_the_database_refuses_keeps_nothing(
    serve: Serve, desk: Desk, connection: Connection, claim: str
) -> None:
    connection.execute(
        "ALTER TABLE runs ADD CONSTRAINT once UNIQUE (path) DEFERRABLE INITIALLY DEFERRED;"
        " INSERT INTO runs (path) VALUES ('/work')"
    )
    client = serve(claim=claim)
    assert client.post("/work?tx=1").status_code == 500
    assert [rows(connection, table) for table in ("runs", "responses", "claims")] == [1, 0, 0]
    connection.execute("DELETE FROM runs")
    assert client.post("/work?tx=1").status_code == 200


def test_when_all_connections_are_in_use_the_answer_is_503_and_nothing_is_stuck(
    serve: Serve, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onefold.infrastructure.http.middleware.PATIENCE", 0.2)
    client = serve(claim="transaction")
    desk.gate.clear()
    with ThreadPoolExecutor(5) as threads:
        holding = [threads.submit(client.post, "/work?tx=1", f"h{number}") for number in range(5)]
        deadline = time.monotonic() + 10
        while len(desk.runs) < 5:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        refused = client.post("/work?tx=1", "one more")
        problem(refused, 503, "database-unavailable")
        assert refused.headers["Retry-After"]
        desk.gate.set()
        assert {each.result().status_code for each in holding} == {200}
    assert client.post("/work?tx=1", "one more").status_code == 200


def test_a_database_that_is_gone_is_503(serve: Serve, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    client = serve()

    def gone(*_: Any) -> None:
        raise psycopg.OperationalError("connection refused")

    monkeypatch.setattr(Work, "_try", gone)
    problem(client.post("/work"), 503, "database-unavailable")
    assert not desk.runs


# Retention


def aged(connection: Connection, table_from: str, by: str) -> None:
    column = {"start": b"starts_at", "end": b"ends_at"}[table_from]
    connection.execute(
        b"UPDATE onefold.http_generations SET " + column + b" = " + column + b" - %s::interval", (by,)
    )


def maintained(connection: Connection) -> Maintenance:
    with psycopg.connect(connection.info.dsn, autocommit=True) as own:
        return maintain(own)


def test_responses_are_forgotten_with_their_generation_and_not_before(
    serve: Serve, desk: Desk, connection: Connection
) -> None:
    client = serve()
    first = client.post("/work")
    assert maintained(connection) == Maintenance()
    aged(connection, "start", "7 hours")
    done = maintained(connection)
    assert (done.made, done.sealed, done.dropped) == (["http_responses_2"], ["http_responses_1"], [])
    assert client.post("/work").content == first.content
    second = client.post("/work", "k2")
    aged(connection, "end", "23 hours 59 minutes")
    assert maintained(connection).dropped == []
    assert client.post("/work").content == first.content
    aged(connection, "end", "3 minutes")
    done = maintained(connection)
    assert (done.retired, done.dropped) == (["http_responses_1"], ["http_responses_1"])
    assert client.post("/work").json()["run"] == 3
    assert client.post("/work", "k2").content == second.content


def test_without_a_service_nothing_is_made(connection: Connection) -> None:
    aged(connection, "start", "70 days")
    assert maintained(connection) == Maintenance()


def test_the_longest_retention_of_all_services_counts(
    serve: Serve, desk: Desk, connection: Connection
) -> None:
    serve(service="one", retention=timedelta(days=8)).post("/work")
    serve(service="two", retention=timedelta(days=1)).post("/work")
    aged(connection, "start", "1 day")
    assert maintained(connection).made == []
    aged(connection, "start", "1 day")
    assert maintained(connection).made == ["http_responses_2"]


def test_a_row_of_a_response_is_never_changed_or_deleted(begin: Begin, connection: Connection) -> None:
    work = begin()
    work.enter("lease")
    work.finish(HELLO)
    for statement in (
        b"DELETE FROM onefold.http_responses",
        b"UPDATE onefold.http_responses SET status = 201",
        b"TRUNCATE onefold.http_responses",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(statement)


def test_claims_go_on_while_generations_change(begin: Begin, connection: Connection) -> None:
    connection.execute("INSERT INTO onefold.http_services (service, retention) VALUES ('s', '4 minutes')")
    going = threading.Event()
    going.set()
    done: list[int] = []

    def ask(mode: Mode, lane: int) -> None:
        number = 0
        while going.is_set():
            key = 10 + lane * 100 + number % 100
            work = begin(key)
            if work.enter(mode) is None:
                work.finish(HELLO)
                done.append(key)
            number += 1

    with ThreadPoolExecutor(2) as threads:
        lanes = [threads.submit(ask, mode, lane) for lane, mode in enumerate(MODES)]
        for _ in range(4):
            time.sleep(0.2)
            aged(connection, "start", "61 seconds")
            found = maintained(connection)
            assert not found.skipped
            assert len(found.made) == 1
        going.clear()
        for lane in lanes:
            lane.result()
    # No key was done twice, in whichever generation its response is.
    assert len(done) == len(set(done)) == rows(connection, "responses")


def test_leases_that_nobody_came_back_for_are_forgotten(begin: Begin, connection: Connection) -> None:
    connection.execute("INSERT INTO onefold.http_services (service, retention) VALUES ('s', '1 hour')")
    for key in (1, 2):
        begin(key).enter("lease")
    connection.execute(
        "UPDATE onefold.http_claims SET expires_at = expires_at - interval '2 hours' WHERE key = %s",
        ("01010101-0101-0101-0101-010101010101",),
    )
    maintained(connection)
    assert rows(connection, "claims") == 1

"""A server that is killed in the middle of a request leaves nothing behind that the next try would stumble over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from psycopg import Connection

from ...docs.blocks import ROOT
from .conftest import rows
from .desk import Client, Desk
from .test_shop import ORDER

LEASE = 2.0
STEPS = ("in the handler", "before the response is kept", "before the commit", "after the commit")


class Server:
    """A server as a process of its own; `client` asks it."""

    def __init__(self, *arguments: str, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **(env or {})},
        )

    def connect(self, port: int) -> None:
        self.client = Client(f"http://127.0.0.1:{port}")

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        self.client.http.close()


Start = Callable[..., Server]


@pytest.fixture
def start(desk: Desk, database_url: str) -> Iterator[Start]:
    started: list[Server] = []

    def begin(claim: str, step: str) -> Server:
        server = Server("tests.infrastructure.http.victim", database_url, claim, step, str(LEASE))
        assert server.process.stdout is not None
        line = server.process.stdout.readline()
        if not line:
            pytest.fail(server.process.communicate()[1])
        server.connect(int(line))
        started.append(server)
        return server

    yield begin
    for server in started:
        server.end()


def asked_until_done(server: Server, path: str, **more: Any) -> tuple[httpx.Response, float]:
    """Try again for as long as the first try seems to be at work; return the answer and the seconds."""
    began = time.monotonic()
    while True:
        response = server.client.post(path, **more)
        if response.status_code != 409:
            return response, time.monotonic() - began
        assert response.headers["Retry-After"]
        assert time.monotonic() - began < LEASE + 5
        time.sleep(0.1)


@pytest.mark.parametrize("step", STEPS)
def test_a_server_killed_in_mid_request_has_done_all_of_it_or_nothing(
    start: Start, connection: Connection, claim: str, step: str
) -> None:
    victim = start(claim, step)
    with pytest.raises(httpx.TransportError):
        victim.client.post("/work?tx=1", json=ORDER)
    assert victim.process.wait(10) == -signal.SIGKILL
    done = 1 if step == "after the commit" else 0
    assert rows(connection) == rows(connection, "responses") == done
    assert rows(connection, "claims") == (1 if claim == "lease" and not done else 0)
    heir = start(claim, "nowhere")
    response, seconds = asked_until_done(heir, "/work?tx=1", json=ORDER)
    assert response.status_code == 200
    assert ("Idempotency-Replayed" in response.headers) is bool(done)
    # Without a lease nothing is waited for.
    assert seconds < (LEASE + 1 if claim == "lease" and not done else 1.5)
    assert [rows(connection, table) for table in ("runs", "responses", "claims")] == [1, 1, 0]


def test_a_handler_that_works_outside_of_the_transaction_is_run_again_when_its_lease_is_over(
    start: Start, connection: Connection
) -> None:
    victim = start("lease", "in the handler")
    with pytest.raises(httpx.TransportError):
        victim.client.post("/work?outside=1")
    heir = start("lease", "nowhere")
    response, seconds = asked_until_done(heir, "/work?outside=1")
    assert (response.status_code, seconds < LEASE + 1) == (200, True)
    # What is outside of the database of the claim is done at least once, as the page says.
    assert [rows(connection, table) for table in ("runs", "responses", "claims")] == [2, 1, 0]


def served(process: subprocess.Popen[str]) -> int:
    assert process.stderr is not None
    for line in process.stderr:
        if "serving the shop at" in line:
            return int(line.rpartition(":")[2])
    raise AssertionError("the server ended")


def test_a_killed_shop_lets_go_of_its_keys_even_while_its_statement_waits(
    database_url: str, connection: Connection
) -> None:
    command = ("onefold.infrastructure.cli", "serve", "--port", "0")
    env = {"ONEFOLD_DATABASE_URL": database_url}
    first = Server(*command, env=env)
    first.connect(served(first.process))
    second = Server(*command, env=env)
    second.connect(served(second.process))
    try:
        with connection.transaction():
            connection.execute("LOCK TABLE onefold.events IN SHARE MODE")
            with pytest.raises(httpx.TransportError):
                first.client.post("/orders", "o", json=ORDER, timeout=1)
            assert second.client.post("/orders", "o", json=ORDER).status_code == 409
            first.process.send_signal(signal.SIGKILL)
            first.process.wait(10)
            deadline = time.monotonic() + 5
            # The session of the dead server is the only one that has waited for the table until now.
            while connection.execute(
                "SELECT FROM pg_locks WHERE locktype = 'relation' AND NOT granted"
                " AND relation = 'onefold.events'::regclass"
            ).fetchone():
                assert time.monotonic() < deadline
                time.sleep(0.1)
        response = second.client.post("/orders", "o", json=ORDER)
        assert response.status_code == 201
        assert "Idempotency-Replayed" not in response.headers
        assert second.client.http.get("/orders/o1").json()["version"] == 1
    finally:
        first.end()
        second.end()

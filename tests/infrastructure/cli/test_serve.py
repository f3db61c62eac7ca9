"""`onefold serve` serves the shop until it is told to stop."""

from __future__ import annotations

import signal
import socket
import sys

import httpx
import pytest

from .conftest import Command, Commands, Onefold


def url_of(command: Command) -> str:
    assert command.process.stderr is not None
    for line in command.process.stderr:
        if "serving the shop at " in line:
            return line.rpartition(" ")[2].strip()
    raise AssertionError("the server ended")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_order(start: Commands, number: signal.Signals) -> None:
    server = start("serve", "--port", "0")
    url = url_of(server)
    opened = httpx.post(
        f"{url}/accounts", json={"currency": "EUR", "account_id": "a"}, headers={"Idempotency-Key": '"k"'}
    )
    assert opened.status_code == 201, opened.text
    assert httpx.get(f"{url}/accounts/a").json()["balance"] == {"amount": "0", "currency": "EUR"}
    said = server.end(number)
    assert said.code == 0, said.err
    assert "finishing the requests in hand" in said.err


def test_what_was_answered_is_answered_by_the_next_server_too(start: Commands) -> None:
    answers = []
    for _ in range(2):
        server = start("serve", "--port", "0")
        answers.append(
            httpx.post(
                f"{url_of(server)}/accounts", json={"currency": "EUR"}, headers={"Idempotency-Key": '"k"'}
            )
        )
        server.end()
    assert answers[0].json() == answers[1].json()
    assert answers[1].headers["Idempotency-Replayed"] == "true"


def test_an_address_that_is_taken_is_wrong_use(onefold: Onefold) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = onefold("serve", "--port", str(taken.getsockname()[1]))
    assert said.code == 2
    assert "expected an address" in said.err
    assert "--port" in said.err


def test_without_the_extra_it_says_what_to_install(onefold: Onefold, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    said = onefold("serve")
    assert said.code == 2
    assert "onefold[http]" in said.err

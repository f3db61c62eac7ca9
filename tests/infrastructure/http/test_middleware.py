"""A request with an idempotency key is done once, and answered as often as it comes (C47)."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
import pytest
from psycopg import Connection

from onefold.domain.errors import DeclarationError
from onefold.infrastructure.http import IdempotencyKey, OutsideRequest
from onefold.infrastructure.store import Store

from .conftest import Serve, rows
from .desk import Desk

PROBLEM = "application/problem+json"


def problem(response: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == PROBLEM
    document: dict[str, Any] = response.json()
    assert document["status"] == status
    assert document["type"] == f"/problems/{kind}"
    assert document["title"]
    assert document["detail"].endswith(".")
    return document


def ana(**more: str) -> dict[str, str]:
    return {"Authorization": "Bearer ana", **more}


def test_c47_a_repeated_request_gets_the_status_and_body_of_the_first_and_a_marker(
    serve: Serve, desk: Desk, connection: Connection, claim: str
) -> None:
    client = serve(claim=claim)
    first = client.post("/work?status=201&tx=1", json={"a": 1})
    assert first.status_code == 201
    again = client.post("/work?status=201&tx=1", json={"a": 1})
    assert (again.status_code, again.content) == (201, first.content)
    assert again.headers["Idempotency-Replayed"] == "true"
    assert "Idempotency-Replayed" not in first.headers
    assert len(desk.runs) == 1
    assert (rows(connection), rows(connection, "responses"), rows(connection, "claims")) == (1, 1, 0)


@pytest.mark.parametrize("path", ["/work", "/async"])
def test_handlers_of_both_kinds_may_work_with_and_without_the_transaction(
    serve: Serve, desk: Desk, connection: Connection, claim: str, path: str
) -> None:
    client = serve(claim=claim)
    for key, query, count in (("a", "?tx=1", 1), ("b", "", 1), ("c", "?tx=1", 2)):
        first, again = (client.post(f"{path}{query}", key) for _ in range(2))
        assert first.status_code == again.status_code == 200
        assert first.content == again.content
        assert rows(connection) == count
    assert len(desk.runs) == 3


def test_c47_a_missing_key_is_400_for_the_methods_that_keys_are_for(serve: Serve, desk: Desk) -> None:
    client = serve()
    for method in ("POST", "PATCH"):
        detail = problem(client.post("/work", None, method=method), 400, "idempotency-key-missing")["detail"]
        assert "Idempotency-Key" in detail
    for method in ("GET", "PUT"):
        assert client.post("/work", None, method=method).status_code == 200
    assert list(desk.runs) == ["GET /work", "PUT /work"]


def test_the_methods_are_declared(serve: Serve) -> None:
    client = serve(methods=["put"])
    problem(client.post("/work", None, method="PUT"), 400, "idempotency-key-missing")
    assert client.post("/work", None).status_code == 200


def test_a_key_may_be_left_out_where_none_is_required(
    serve: Serve, desk: Desk, connection: Connection
) -> None:
    client = serve(required=lambda scope: scope["path"] != "/work")
    for _ in range(2):
        response = client.post("/work?tx=1", None)
        assert response.status_code == 200
        assert "Idempotency-Expires" not in response.headers
    assert client.post("/work?tx=1&status=400", None).status_code == 400
    problem(client.post("/async", None), 400, "idempotency-key-missing")
    assert (rows(connection), rows(connection, "responses")) == (2, 0)
    first, again = (client.post("/work") for _ in range(2))
    assert first.content == again.content
    assert len(desk.runs) == 4


@pytest.mark.parametrize("value", ["k1", '"k1', '""', '"k1";a=1', "42"])
def test_c47_a_key_that_is_no_structured_string_is_400(serve: Serve, desk: Desk, value: str) -> None:
    client = serve()
    response = client.post("/work", None, headers={"Idempotency-Key": value})
    assert "String of RFC 9651" in problem(response, 400, "idempotency-key-malformed")["detail"]
    assert not desk.runs


def test_compat_takes_a_bare_key_as_the_same_one(serve: Serve, desk: Desk) -> None:
    client = serve(compat=True)
    first = client.post("/work", None, headers={"Idempotency-Key": "k1"})
    assert first.status_code == 200
    assert client.post("/work", "k1").headers["Idempotency-Replayed"] == "true"
    assert len(desk.runs) == 1


@pytest.mark.parametrize(
    "other", [{"json": {"a": 2}}, {"content": b"a"}, {}, {"json": {"a": 1}, "params": {"b": 1}}], ids=str
)
def test_c47_the_same_key_with_another_payload_is_422(
    serve: Serve, desk: Desk, claim: str, other: dict[str, Any]
) -> None:
    client = serve(claim=claim)
    assert client.post("/work", json={"a": 1}).status_code == 200
    problem(client.post("/work", **other), 422, "idempotency-key-reused")
    assert client.post("/work", json={"a": 1.0}).headers["Idempotency-Replayed"] == "true"
    assert len(desk.runs) == 1


def test_c47_a_request_whose_twin_is_at_work_is_409_with_retry_after(
    serve: Serve, desk: Desk, claim: str
) -> None:
    client = serve(claim=claim)
    desk.gate.clear()
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(client.post, "/work?tx=1", json=1)
        assert desk.reached.wait(10)
        began = time.monotonic()
        response = client.post("/work?tx=1", json=1)
        assert time.monotonic() - began < 1
        problem(response, 409, "idempotency-key-in-use")
        assert int(response.headers["Retry-After"]) > 0
        if claim == "lease":
            problem(client.post("/work?tx=1", json=2), 422, "idempotency-key-reused")
        desk.gate.set()
        assert first.result().status_code == 200
    assert client.post("/work?tx=1", json=1).content == first.result().content
    assert len(desk.runs) == 1


@pytest.mark.parametrize("status", [200, 201, 202, 204, 301, 400, 404, 409, 410, 412, 422])
def test_c47_what_says_success_or_refusal_is_kept(
    serve: Serve, desk: Desk, connection: Connection, claim: str, status: int
) -> None:
    client = serve(claim=claim)
    client.http.follow_redirects = False
    path = f"/work?tx=1&status={status}"
    first, again = client.post(path), client.post(path)
    assert first.status_code == again.status_code == status
    assert first.content == again.content
    assert len(desk.runs) == rows(connection, "responses") == 1
    # A refusal is kept without what the handler did before it refused.
    assert rows(connection) == (1 if status < 400 else 0)


@pytest.mark.parametrize("status", [401, 403, 408, 429, 500, 502, 503, 599])
def test_c47_what_may_be_better_the_next_time_is_not_kept(
    serve: Serve, desk: Desk, connection: Connection, claim: str, status: int
) -> None:
    client = serve(claim=claim)
    path = f"/work?tx=1&status={status}"
    for _ in range(2):
        response = client.post(path)
        assert response.status_code == status
        assert "Idempotency-Replayed" not in response.headers
    assert len(desk.runs) == 2
    assert [rows(connection, table) for table in ("runs", "responses", "claims")] == [0, 0, 0]


def test_an_error_of_the_handler_lets_go_of_the_key(
    serve: Serve, desk: Desk, connection: Connection, claim: str
) -> None:
    client = serve(claim=claim)
    for _ in range(2):
        assert client.post("/work?tx=1&raise=1").status_code == 500
    assert len(desk.runs) == 2
    assert [rows(connection, table) for table in ("runs", "responses", "claims")] == [0, 0, 0]


def test_a_handler_may_have_its_answer_forgotten(
    serve: Serve, desk: Desk, connection: Connection, claim: str
) -> None:
    client = serve(claim=claim)
    for _ in range(2):
        assert client.post("/work?tx=1&status=409&forget=1").status_code == 409
        assert client.post("/work?tx=1&forget=1", "k2").status_code == 200
    assert len(desk.runs) == 4
    assert [rows(connection, table) for table in ("runs", "responses", "claims")] == [0, 0, 0]


def test_c47_two_tenants_with_one_key_do_not_meet(serve: Serve, desk: Desk) -> None:
    client = serve()
    answers = [
        client.post("/work", "k1", headers=headers, json=1)
        for headers in (ana(), {"Authorization": "Bearer bob"}, {}, ana())
    ]
    assert [answer.json()["run"] for answer in answers] == [1, 2, 3, 1]
    assert len(desk.runs) == 3


def test_the_principal_may_be_found_by_a_function_of_the_scope(serve: Serve, desk: Desk) -> None:
    async def tenant(scope: Any) -> str | None:
        return dict(scope["headers"]).get(b"x-tenant", b"").decode() or None

    client = serve(principal=tenant)
    # A token that was renewed in between is another one of the same tenant.
    one = client.post("/work", headers=ana(**{"X-Tenant": "a"}))
    again = client.post("/work", headers={"X-Tenant": "a", "Authorization": "Bearer renewed"})
    other = client.post("/work", headers=ana(**{"X-Tenant": "b"}))
    assert one.content == again.content != other.content


def test_one_key_may_be_used_for_two_paths_and_two_methods(serve: Serve, desk: Desk) -> None:
    client = serve()
    answers = [client.post("/work/1"), client.post("/work/2"), client.post("/work/1", method="PATCH")]
    assert [answer.json()["run"] for answer in answers] == [1, 2, 3]


def test_two_services_of_one_database_do_not_meet(serve: Serve, desk: Desk) -> None:
    one, other = serve(service="one"), serve(service="other")
    assert one.post("/work").json() != other.post("/work").json()


def test_headers_of_the_response_are_kept_and_those_of_one_visitor_are_not(serve: Serve, desk: Desk) -> None:
    client = serve(keep_headers=["X-Secret"])
    first, again = client.post("/work?status=201"), client.post("/work?status=201")
    assert first.headers["location"] == again.headers["location"] == "/work/1"
    assert again.headers["content-type"] == "application/json"
    assert again.headers["x-secret"] == "of this one"
    assert "set-cookie" in first.headers
    assert "set-cookie" not in again.headers
    plain = serve(service="other")
    assert "x-secret" in plain.post("/work").headers
    assert "x-secret" not in plain.post("/work").headers


def test_c47_the_expiry_is_stated(serve: Serve) -> None:
    client = serve(retention=timedelta(hours=3))
    before = datetime.now(UTC).replace(microsecond=0)
    first, again = client.post("/work"), client.post("/work")
    expires = parsedate_to_datetime(first.headers["Idempotency-Expires"])
    assert before + timedelta(hours=3) <= expires <= datetime.now(UTC) + timedelta(hours=3)
    assert again.headers["Idempotency-Expires"] == first.headers["Idempotency-Expires"]


def test_a_body_that_is_too_large_is_413(serve: Serve, desk: Desk, connection: Connection) -> None:
    client = serve(max_body=10)
    assert client.post("/work", content=b"x" * 10).status_code == 200

    def parts() -> Any:
        yield b"x" * 8
        yield b"x" * 8

    for content in (b"x" * 11, parts()):
        problem(client.post("/work", "k2", content=content), 413, "request-too-large")
    assert len(desk.runs) == 1


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/stream?type=text/event-stream", "no end"),
        ("/stream?parts=1000000", "more than 100 bytes"),
        ("/work?tx=1&size=101", "101 bytes"),
    ],
)
def test_a_response_that_cannot_be_kept_is_refused(
    serve: Serve,
    desk: Desk,
    connection: Connection,
    claim: str,
    caplog: pytest.LogCaptureFixture,
    path: str,
    reason: str,
) -> None:
    client = serve(claim=claim, max_response=100)
    with caplog.at_level(logging.ERROR, "onefold.http"):
        problem(client.post(path), 500, "response-not-replayable")
    assert reason in caplog.text
    assert [rows(connection, table) for table in ("runs", "responses", "claims")] == [0, 0, 0]


def test_a_response_in_parts_that_ends_in_time_is_kept(serve: Serve, desk: Desk) -> None:
    client = serve()
    first, again = client.post("/stream"), client.post("/stream")
    assert first.content == again.content == b"part\n" * 3
    assert first.headers["content-length"] == "15"
    assert len(desk.runs) == 1


def test_the_lease_is_prolonged_while_the_handler_works(
    serve: Serve, desk: Desk, connection: Connection
) -> None:
    client = serve(lease=0.6)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(client.post, "/work?sleep=2")
        assert desk.reached.wait(10)
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            problem(client.post("/work?sleep=2"), 409, "idempotency-key-in-use")
            time.sleep(0.1)
        assert first.result().status_code == 200
    assert client.post("/work?sleep=2").headers["Idempotency-Replayed"] == "true"
    assert len(desk.runs) == 1


@pytest.mark.parametrize("query", ["", "&tx=1"])
def test_an_owner_whose_lease_was_taken_over_completes_nothing(
    serve: Serve, desk: Desk, connection: Connection, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    # As after a long pause of the process: nothing is prolonged.
    monkeypatch.setattr("onefold.infrastructure.http.keeper.Keeper.add", lambda *_: None)
    client = serve(lease=0.4)
    desk.gate.clear()
    path = f"/work?a=1{query}"
    with ThreadPoolExecutor(1) as threads:
        old = threads.submit(client.post, path)
        assert desk.reached.wait(10)
        time.sleep(0.5)
        desk.reached.clear()
        with ThreadPoolExecutor(1) as others:
            new = others.submit(client.post, path)
            assert desk.reached.wait(10)
            desk.gate.set()
            found = sorted((old.result().status_code, new.result().status_code))
    assert found == [200, 409]
    problem(old.result(), 409, "idempotency-key-in-use")
    again = client.post(path)
    assert again.content == new.result().content
    assert len(desk.runs) == 2
    assert (rows(connection), rows(connection, "responses"), rows(connection, "claims")) == (
        1 if query else 0,
        1,
        0,
    )


@pytest.mark.parametrize("path", ["/work", "/async"])
def test_fifty_requests_with_one_key_at_once_are_done_once(
    serve: Serve, desk: Desk, connection: Connection, claim: str, path: str
) -> None:
    client = serve(claim=claim)
    start = threading.Barrier(50)

    def ask(_: int) -> httpx.Response:
        start.wait()
        return client.post(f"{path}?tx=1&sleep=0.05", json={"amount": "24.90"})

    with ThreadPoolExecutor(50) as threads:
        answers = list(threads.map(ask, range(50)))
    fresh = [answer for answer in answers if answer.status_code == 200]
    (first,) = (answer for answer in fresh if "Idempotency-Replayed" not in answer.headers)
    assert {answer.content for answer in fresh} == {first.content}
    assert {answer.status_code for answer in answers} <= {200, 409}
    for answer in answers:
        if answer.status_code == 409:
            problem(answer, 409, "idempotency-key-in-use")
    assert len(desk.runs) == rows(connection) == rows(connection, "responses") == 1


def test_requests_with_fifty_keys_at_once_are_all_done(
    serve: Serve, desk: Desk, connection: Connection, claim: str
) -> None:
    client = serve(claim=claim)
    with ThreadPoolExecutor(50) as threads:
        answers = list(threads.map(lambda number: client.post("/work?tx=1", str(number)), range(50)))
    assert [answer.status_code for answer in answers] == [200] * 50
    assert rows(connection) == rows(connection, "responses") == 50


def test_a_client_that_is_gone_finds_the_response_when_it_comes_again(
    serve: Serve, desk: Desk, connection: Connection, claim: str
) -> None:
    client = serve(claim=claim)
    desk.gate.clear()
    with pytest.raises(httpx.ReadTimeout):
        client.post("/work?tx=1", timeout=0.5)
    desk.gate.set()
    deadline = time.monotonic() + 10
    while (again := client.post("/work?tx=1")).status_code == 409:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert again.headers["Idempotency-Replayed"] == "true"
    assert len(desk.runs) == rows(connection) == 1


def test_a_replay_is_logged_without_its_payload(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    client = serve()
    with caplog.at_level(logging.INFO, "onefold.http"):
        for _ in range(2):
            client.post("/work", headers=ana(), json={"secret": "s3cret"})
    (line,) = (each.getMessage() for each in caplog.records if each.name == "onefold.http")
    assert "POST /work is answered as it was at 20" in line
    assert "s3cret" not in line


def test_a_transaction_is_for_requests_that_the_middleware_handles(
    serve: Serve, desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    app = desk.app()
    client = serve(app)
    assert client.post("/outside").status_code == 200
    with pytest.raises(OutsideRequest, match="expected a request that the IdempotencyKey middleware handles"):
        desk.outside(_plain_request())
    assert client.post("/outside", None, method="GET").status_code == 500


def _plain_request() -> Any:
    from starlette.requests import Request

    return Request({"type": "http", "method": "GET", "headers": []})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"service": "A b"}, "service"),
        ({"claim": "hope"}, "claim"),
        ({"lease": 0}, "lease"),
        ({"lease": float("nan")}, "lease"),
        ({"retention": timedelta(seconds=1)}, "retention"),
        ({"max_body": -1}, "bytes"),
        ({"max_response": -1}, "bytes"),
    ],
)
def test_options_that_cannot_work_are_refused(store: Store, options: dict[str, Any], said: str) -> None:
    async def app(*_: Any) -> None: ...

    with pytest.raises(DeclarationError, match=said):
        IdempotencyKey(app, store, **options)


def test_a_service_looks_after_old_responses_itself(serve: Serve, connection: Connection) -> None:
    client = serve()
    connection.execute("UPDATE onefold.http_generations SET starts_at = starts_at - interval '7 hours'")
    client.post("/work")
    deadline = time.monotonic() + 10
    while connection.execute("SELECT count(*) FROM onefold.http_generations").fetchone() != (2,):
        assert time.monotonic() < deadline
        time.sleep(0.05)

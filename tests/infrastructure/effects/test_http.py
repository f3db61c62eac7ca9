"""HTTP requests of a call."""

from __future__ import annotations

import asyncio
import email
import time

import http_sf
import httpx
import pytest

from onefold.infrastructure.effects.call import Clients
from onefold.infrastructure.effects.errors import LeaseLost, SecondRequest
from onefold.projections.effect import step_of

from .making import KEY, async_call, calling
from .outside import Payments


def test_a_request_sends_the_key_as_a_structured_string(payments: Payments) -> None:
    with calling() as call:
        response = call.http.post(f"{payments.url}/charges", json={"amount": 5})
    assert (response.status_code, response.json()) == (201, {"charge": f'of "{KEY}"'})
    [(_, _, headers, body)] = payments.seen
    assert http_sf.parse(headers["Idempotency-Key"].encode(), tltype="item")[0] == str(KEY)
    assert body == b'{"amount":5}'


def test_every_try_sends_the_same_key_and_the_other_side_acts_once(payments: Payments) -> None:
    for attempt in (1, 2, 3):
        with calling(attempt=attempt) as call:
            call.http.post(f"{payments.url}/charges", json={"amount": 5}).raise_for_status()
    assert list(payments.charges) == [f'"{KEY}"']
    assert payments.requests.total() == 3


def test_the_same_request_may_be_made_again_in_a_call_and_another_may_not(payments: Payments) -> None:
    with calling() as call:
        for _ in range(2):
            call.http.post(f"{payments.url}/charges", json={"amount": 5})
        with pytest.raises(SecondRequest, match=r'call\.step\("name"\)'):
            call.http.post(f"{payments.url}/charges", json={"amount": 6})
        with pytest.raises(SecondRequest):
            call.http.put(f"{payments.url}/charges", json={"amount": 5})
    assert payments.requests == {f'"{KEY}"': 2}


def test_a_form_with_files_is_the_same_with_every_try(payments: Payments) -> None:
    def send(text: bytes, where: str = "charges") -> httpx.Response:
        return call.http.post(
            f"{payments.url}/{where}", data={"note": "ä"}, files={"invoice": ("a.txt", text)}
        )

    for _ in range(2):
        with calling() as call:
            for _ in range(2):
                assert send(b"24.90").status_code == 201
            with pytest.raises(SecondRequest):
                send(b"24.91")
    assert payments.requests == {f'"{KEY}"': 4}
    with calling() as call:
        sent = call.step("other").http.post(f"{payments.url}/charges", files={"invoice": b"24.91"}).request
    kind = sent.headers["Content-Type"]
    parsed = email.message_from_bytes(f"Content-Type: {kind}\r\n\r\n".encode() + sent.read())
    assert [part.get_payload() for part in parsed.get_payload()] == ["24.91"]
    assert kind.encode() not in [headers["Content-Type"].encode() for _, _, headers, _ in payments.seen[:4]]


def test_a_step_has_a_key_of_its_own_that_is_stable_too(payments: Payments) -> None:
    for _ in range(2):
        with calling() as call:
            # In another order than before, as where a condition has changed.
            call.step("capture").http.post(f"{payments.url}/charges", json={"capture": 1})
            call.http.post(f"{payments.url}/charges", json={"amount": 5})
            assert call.step("capture") is call.step("capture")
            assert call.step("capture").step("deep").key not in (call.key, call.step("capture").key)
    capture = f'"{step_of(KEY, "capture")}"'
    assert payments.requests == {f'"{KEY}"': 2, capture: 2}


def test_a_safe_request_and_one_with_a_key_of_its_own_go_as_they_are(payments: Payments) -> None:
    with calling() as call:
        assert call.http.get(f"{payments.url}/charges/{KEY}").status_code == 404
        call.http.post(f"{payments.url}/charges", headers={"Idempotency-Key": '"mine"'})
        call.http.post(f"{payments.url}/charges")
    assert [headers.get("Idempotency-Key") for _, _, headers, _ in payments.seen] == [
        None, '"mine"', f'"{KEY}"',
    ]  # fmt: skip


def test_settings_of_the_client_are_those_of_the_call(payments: Payments) -> None:
    with calling() as call:
        hooked: list[int] = []
        call.http.auth = httpx.BasicAuth("ana", "secret")
        call.http.headers["X-Shop"] = "7"
        call.http.follow_redirects = True
        call.http.event_hooks = {"response": [lambda response: hooked.append(response.status_code)]}
        response = call.http.post(f"{payments.url}/moved", content=b"x")
        assert [each.status_code for each in response.history] == [307]
        assert hooked == [307, 201]
        assert dict(call.http.cookies) == {"session": "1"}
        # Nothing of it reaches a step, or the next call of the worker.
        call.step("other").http.post(f"{payments.url}/charges", content=b"x")
    first, second, third = (headers for _, _, headers, _ in payments.seen)
    assert (first["X-Shop"], first["Authorization"], second["Authorization"]) == (
        "7", httpx.BasicAuth("ana", "secret")._auth_header, first["Authorization"],
    )  # fmt: skip
    assert second["Idempotency-Key"] == first["Idempotency-Key"]
    assert {"X-Shop", "Authorization", "Cookie"}.isdisjoint(third)


def test_a_stream_of_the_answer_can_be_read(payments: Payments) -> None:
    with calling() as call, call.http.stream("POST", f"{payments.url}/charges", content=b"x") as response:
        assert b"charge" in b"".join(response.iter_bytes())


def test_a_request_times_out_within_the_lease(payments: Payments) -> None:
    payments.between = lambda: time.sleep(1)
    with calling(lease=0.2) as call:
        began = time.monotonic()
        with pytest.raises(httpx.ReadTimeout):
            call.http.post(f"{payments.url}/charges", timeout=30)
        assert time.monotonic() - began < 0.9


def test_nothing_is_sent_when_the_lease_has_ended(payments: Payments) -> None:
    with calling(lease=0.01) as call:
        client = call.http
        time.sleep(0.02)
        with pytest.raises(LeaseLost, match="expected the call of key"):
            client.post(f"{payments.url}/charges")
    assert payments.seen == []


def test_an_async_function_has_an_async_client(payments: Payments) -> None:
    async def work() -> None:
        clients = Clients()
        call = async_call(clients)
        response = await call.http.post(f"{payments.url}/charges", json={"amount": 5})
        assert response.json() == {"charge": f'of "{KEY}"'}
        with pytest.raises(SecondRequest):
            await call.http.post(f"{payments.url}/charges", json={"amount": 6})
        await asyncio.gather(
            call.step("a").http.post(f"{payments.url}/charges", json={"a": 1}),
            call.step("b").http.post(f"{payments.url}/charges", json={"b": 1}),
        )
        await clients.aclose()

    asyncio.run(work())
    assert len(payments.charges) == 3

"""The shop's API: orders and accounts, entity tags, conflicts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import httpx
import pytest
from psycopg import Connection

from onefold import Money
from onefold.domain.account import Account
from onefold.domain.order import Order
from onefold.infrastructure.http.shop import shop_api
from onefold.infrastructure.store import Store

from .conftest import rows
from .desk import Client
from .serving import served
from .test_middleware import problem


def money(amount: str, currency: str = "EUR") -> dict[str, str]:
    return {"amount": amount, "currency": currency}


ITEM = {"item_id": "1", "product_id": "tea", "price": money("20.00"), "freight": money("4.90")}
ORDER: dict[str, Any] = {"order_id": "o1", "customer_id": "ana", "items": [ITEM]}


@pytest.fixture
def shop(store: Store) -> Iterator[Client]:
    with served(shop_api(store)) as url:
        client = Client(url)
        yield client
        client.http.close()


@pytest.fixture
def placed(shop: Client) -> Client:
    assert shop.post("/orders", "place", json=ORDER).status_code == 201
    return shop


def shown(response: httpx.Response, status: int = 200) -> dict[str, Any]:
    assert response.status_code == status, response.text
    document: dict[str, Any] = response.json()
    assert response.headers["ETag"] == f'"{document["version"]}"'
    return document


def test_an_order_goes_its_way(shop: Client, store: Store) -> None:
    response = shop.post("/orders", "place", json=ORDER)
    order = shown(response, 201)
    assert response.headers["Location"] == "/orders/o1"
    assert (order["status"], order["total"], order["paid"]) == ("placed", money("24.90"), money("0"))
    payment = {"payment_id": "p1", "kind": "card", "amount": money("24.90"), "installments": 3}
    order = shown(shop.post("/orders/o1/payments", "pay", json=payment), 201)
    assert order["paid"] == money("24.90")
    for path, status in (
        ("confirmation", "confirmed"),
        ("invoice", "invoiced"),
        ("shipment", "shipped"),
        ("delivery", "delivered"),
    ):
        assert shown(shop.post(f"/orders/o1/{path}", path))["status"] == status
    got = shown(shop.http.get("/orders/o1"))
    assert got["version"] == store.get(Order, "o1").version == 6
    assert got["payments"] == [payment]
    assert got["items"] == [ITEM]


def test_money_goes_into_an_account_and_out_of_it(shop: Client, store: Store) -> None:
    response = shop.post("/accounts", "open", json={"currency": "EUR"})
    account = shown(response, 201)["account_id"]
    assert response.headers["Location"] == f"/accounts/{account}"
    path = f"/accounts/{account}"
    shown(shop.post(f"{path}/deposits", "1", json={"amount": money("24.90")}), 201)
    found = shown(shop.post(f"{path}/withdrawals", "2", json={"amount": money("4.9")}), 201)
    assert (found["balance"], found["available"]) == (money("20.00"), money("20.00"))
    refused = shop.post(f"{path}/withdrawals", "3", json={"amount": money("20.01")})
    assert "20.00 EUR is available" in problem(refused, 409, "refused")["detail"]
    assert shown(shop.http.get(path))["balance"] == money("20.00")
    assert store.get(Account, account).balance == Decimal(20)


def test_an_order_without_an_id_gets_one_and_the_same_for_every_try(shop: Client) -> None:
    order = {**ORDER, "order_id": None}
    first, again, other = (shop.post("/orders", key, json=order) for key in ("a", "a", "b"))
    assert first.json() == again.json()
    assert first.json()["order_id"] != other.json()["order_id"]


def test_the_first_of_two_orders_with_one_id_is_placed(placed: Client) -> None:
    problem(placed.post("/orders", "another", json=ORDER), 409, "exists")
    with ThreadPoolExecutor(8) as threads:
        answers = list(
            threads.map(
                lambda number: placed.post("/orders", f"k{number}", json={**ORDER, "order_id": "o2"}),
                range(8),
            )
        )
    assert sorted(answer.status_code for answer in answers) == [201] + [409] * 7


def test_what_is_not_possible_now_is_a_conflict(placed: Client) -> None:
    detail = problem(placed.post("/orders/o1/delivery", "d"), 409, "illegal-transition")["detail"]
    assert "deliver is possible when shipped" in detail
    assert placed.post("/orders/o1/delivery", "d").headers["Idempotency-Replayed"] == "true"
    cancelled = shown(placed.post("/orders/o1/cancellation", "c", json={"reason": "changed my mind"}))
    assert cancelled["status"] == "cancelled"


@pytest.mark.parametrize(
    ("payment", "kind"),
    [
        ({"payment_id": "p1", "amount": money("1", "BRL")}, "refused"),
        ({"payment_id": "p1", "amount": money("0")}, "refused"),
    ],
)
def test_what_breaks_a_rule_is_a_conflict(placed: Client, payment: Any, kind: str) -> None:
    problem(placed.post("/orders/o1/payments", json=payment), 409, kind)


@pytest.mark.parametrize("path", ["/orders/o2", "/accounts/a1"])
def test_what_is_not_there_is_404(placed: Client, path: str) -> None:
    problem(placed.http.get(path), 404, "not-found")
    post = {"/orders/o2": "/orders/o2/shipment", "/accounts/a1": "/accounts/a1/deposits"}[path]
    problem(placed.post(post, json={"amount": money("1")}), 404, "not-found")


def test_other_errors_of_http_are_problems_too(shop: Client) -> None:
    for response, status in ((shop.http.get("/nowhere"), 404), (shop.http.delete("/orders/o1"), 405)):
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json() == {
            "type": "about:blank",
            "title": response.reason_phrase,
            "status": status,
            "detail": response.reason_phrase,
        }


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"customer_id": None}, "customer_id"),
        ({"customer_id": "a/b"}, "customer_id"),
        ({"items": []}, "items"),
        ({"surprise": 1}, "surprise"),
        ({"items": [{**ITEM, "price": money("1e3")}]}, "amount"),
        ({"items": [{**ITEM, "price": {"amount": 12.9, "currency": "EUR"}}]}, "amount"),
        ({"items": [{**ITEM, "price": money("1", "euro")}]}, "currency"),
    ],
    ids=str,
)
def test_what_does_not_fit_the_description_is_422_and_says_where(
    shop: Client, change: dict[str, Any], where: str
) -> None:
    document = problem(shop.post("/orders", json={**ORDER, **change}), 422, "invalid")
    assert any(where in flaw["loc"] for flaw in document["errors"])
    assert where in document["detail"]


def test_text_that_no_log_can_hold_is_422(placed: Client) -> None:
    body = rb'{"payment_id": "p1", "amount": {"amount": "1", "currency": "EUR"}, "kind": "%s"}'
    for number, kind in enumerate((rb"\u0000", rb"\ud800")):
        response = placed.post(
            "/orders/o1/payments",
            str(number),
            content=body % kind,
            headers={"Content-Type": "application/json"},
        )
        problem(response, 422, "invalid")


def test_a_command_is_tied_to_a_version_by_if_match(placed: Client, connection: Connection) -> None:
    tag = placed.http.get("/orders/o1").headers["ETag"]
    shown(placed.post("/orders/o1/confirmation", "c", headers={"If-Match": tag}))
    stale = placed.post("/orders/o1/shipment", "s", headers={"If-Match": tag})
    assert '"2"' in problem(stale, 412, "precondition-failed")["detail"]
    # Nothing was done, so the same key serves for the decision that is made anew.
    assert shown(placed.post("/orders/o1/shipment", "s", headers={"If-Match": '"7", "2"'}))["version"] == 3
    shown(placed.post("/orders/o1/delivery", "d", headers={"If-Match": "*"}))
    for number, value in enumerate(('W/"4"', "4", '"x"', "")):
        response = placed.post("/orders/o1/cancellation", str(number), json={}, headers={"If-Match": value})
        problem(response, 412, "precondition-failed")
    assert rows(connection, "responses") == 4


def test_of_two_decisions_for_one_version_one_is_made(placed: Client) -> None:
    def decide(number: int) -> int:
        path = ("/orders/o1/confirmation", "/orders/o1/cancellation")[number % 2]
        body = {} if number % 2 else None
        return placed.post(path, f"k{number}", json=body, headers={"If-Match": '"1"'}).status_code

    with ThreadPoolExecutor(8) as threads:
        found = sorted(threads.map(decide, range(8)))
    assert found == [200] + [412] * 7


def test_deposits_at_the_same_time_are_all_made_and_each_once(shop: Client, store: Store) -> None:
    shown(shop.post("/accounts", "open", json={"currency": "EUR", "account_id": "a"}), 201)

    def put(number: int) -> int:
        while True:
            response = shop.post("/accounts/a/deposits", f"k{number // 2}", json={"amount": money("1.50")})
            if response.status_code != 409:
                return response.status_code
            # Its twin is at work; others in between are waited for by the server.
            problem(response, 409, "idempotency-key-in-use")
            time.sleep(0.05)

    with ThreadPoolExecutor(20) as threads:
        assert set(threads.map(put, range(60))) == {201}
    account = store.get(Account, "a")
    assert account.balance == Money.of("45.00", "EUR").amount
    assert account.version == 31


def test_events_tell_which_request_caused_them(placed: Client, store: Store) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    placed.post("/orders/o1/confirmation", "c", headers={"traceparent": trace})
    first, second = store.log.load("order/o1")
    assert first.meta.metadata["service"] == "shop"
    assert first.meta.metadata["causation"] != second.meta.metadata["causation"]
    assert second.meta.metadata["traceparent"] == trace


def test_the_description_names_the_key_and_every_problem(shop: Client) -> None:
    described = shop.http.get("/openapi.json").json()
    posts = [operation["post"] for operation in described["paths"].values() if "post" in operation]
    assert len(posts) == 10
    for operation in posts:
        (key,) = (each for each in operation["parameters"] if each["name"] == "Idempotency-Key")
        assert key["required"]
        assert {"400", "409", "422"} <= set(operation["responses"])
        assert list(operation["responses"]["422"]["content"]) == ["application/problem+json"]
    assert "HTTPValidationError" not in str(described)

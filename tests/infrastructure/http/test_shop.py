"""The shop's API: orders and accounts, entity tags, conflicts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from onefold.infrastructure.http.shop import shop_api
from onefold.infrastructure.store import Store

from .desk import Client
from .serving import served

PRICE = {"amount": "20.00", "currency": "EUR"}
ITEM = {
    "item_id": "1",
    "product_id": "tea",
    "price": PRICE,
    "freight": {"amount": "4.90", "currency": "EUR"},
}
ORDER = {"order_id": "o1", "customer_id": "ana", "items": [ITEM]}


@pytest.fixture
def shop(store: Store) -> Iterator[Client]:
    with served(shop_api(store)) as url:
        client = Client(url)
        yield client
        client.http.close()


def test_an_order_goes_its_way(shop: Client) -> None:
    placed = shop.post("/orders", "place", json=ORDER)
    assert placed.status_code == 201, placed.text
    print(placed.json(), placed.headers)
    got = shop.http.get("/orders/o1")
    print(got.json(), got.headers)
    r = shop.http.get("/openapi.json")
    assert r.status_code == 200, r.text
    for path, want in [("confirmation", 200), ("shipment", 200), ("delivery", 200), ("cancellation", 409)]:
        r = shop.post(f"/orders/o1/{path}", path, json={} if path == "cancellation" else None)
        print(r.status_code, r.text)
        assert r.status_code == want
    r = shop.post("/orders/o1/payments", "p", json={"payment_id": "p1", "amount": PRICE})
    print(r.status_code, r.text)
    r = shop.post("/orders", "bad", json={"a": 1})
    print(r.status_code, r.text)
    r = shop.post("/orders/nix/shipment", "bad")
    print(r.status_code, r.text)
    r = shop.http.get("/nowhere")
    print(r.status_code, r.text)

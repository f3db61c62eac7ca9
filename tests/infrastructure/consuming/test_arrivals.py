"""Arrivals: many deliveries read together are what each of them is when it is read by itself."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.domain.event import Event
from onefold.domain.registry import Registry
from onefold.infrastructure.brokers import Delivery
from onefold.infrastructure.brokers.envelope import STRUCTURED
from onefold.infrastructure.consuming.arrivals import Arrival, Reader
from onefold.projections.consumer import Consumer
from onefold.projections.message import Message
from onefold.projections.projection import Projection
from onefold.projections.row import Row

KEPT = Registry()
TIMED = (
    "0193b3c4-7a6b-7000-8000-0123456789ab",
    "0193B3C47A6B7000800001234567 9ab",
    "0193b3c47a6b70008000abcdefabcdef",
)


class Paid(Event, name="account.paid", registry=KEPT):
    amount: Decimal
    note: str | None = None
    version: int = 0


class Account(Row, key="account"):
    account: str
    paid: Decimal


ACCOUNTS = Projection("accounts_arrived", Account, registry=KEPT)


@ACCOUNTS.on(Paid)
def paid(row: Account | None, event: Paid) -> Account:
    return Account(account=event.meta.key, paid=event.amount + (row.paid if row else 0))


def typed(event: Paid, tx: Any) -> None: ...


def untyped(event: Message, tx: Any) -> None: ...


CONSUMERS = (
    Consumer("a", ordering="delta", fold=ACCOUNTS, key="id", version="sequence", registry=KEPT),
    Consumer(
        "b", ordering="delta", fold=ACCOUNTS, key="id", version="sequence", ledger="time", registry=KEPT
    ),
    Consumer("c", ordering="snapshot", effect=typed, version="time", unknown="pass", registry=KEPT),
    Consumer("d", ordering="unordered", effect=untyped, age="received"),
    Consumer(
        "e",
        ordering="delta",
        effect=untyped,
        version=lambda message: message.data["version"],
        age="published",
    ),
)

USUAL: dict[str, Any] = {
    "specversion": "1.0",
    "id": TIMED[0],
    "source": "/s",
    "type": "account.paid",
    "subject": "account/1",
    "time": "2026-01-31T12:00:00Z",
    "sequence": "1",
    "data": {"amount": "24.90", "version": 1},
}
CHANGES: dict[str, tuple[Any, ...]] = {
    "specversion": ("0.3",),
    "id": (*TIMED, "1", "", None, 5, "\u00e9", "x" * 5000),
    "type": ("account.closed", "account.paid "),
    "subject": (None, "1", "account/", "account/\u00e9", "a\\b", "\u0000"),
    "time": (None, "2026-01-31T12:00:00.5+01:00", "yesterday", "2026-01-31T12:00:01Z"),
    "sequence": (None, 3, "0", "x", "3", "99999999999999999999", "\u0663", 1.5, True),
    "data": (
        None, [], {}, {"amount": 24.9}, {"amount": "24.9", "version": "2"}, {"amount": "2", "version": 2, "note": "x"},
        {"amount": {"b": ["c"]}}, "x", {"amount": "24.90", "note": "\ud800"},
    ),
    "traceparent": ("00-1-2-01", 5),
    "schemaversion": ("1", "2", 1),
    "idempotencykey": ("pay-1", 7),
    "datacontenttype": ("application/json", ""),
    "flagged": (True,),
}  # fmt: skip


@st.composite
def deliveries(draw: st.DrawFn) -> list[Delivery]:
    """Usual ones, of which a few are changed in one way or several."""
    found: list[Delivery] = []
    odd = draw(st.sets(st.integers(0, 11), max_size=3))
    for place in range(12):
        members = {**USUAL, "id": TIMED[0][:-2] + f"{place:02d}", "sequence": str(place + 1)}
        for name in draw(st.lists(st.sampled_from(sorted(CHANGES)), max_size=2)) if place in odd else ():
            members[name] = draw(st.sampled_from(CHANGES[name]))
        body = json.dumps(members, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
        kind = draw(st.sampled_from([STRUCTURED] * 9 + ["application/json"])) if place in odd else STRUCTURED
        published = datetime(2026, 1, 31, 11, place, tzinfo=UTC)
        found.append(Delivery(body, {"content-type": kind}, f"test@{place}", published_at=published))
    return found


def seen(arrival: Arrival) -> dict[str, Any]:
    """All that an arrival is, and the place of its event."""
    fields = {name: getattr(arrival, name) for name in arrival.__struct_fields__}
    event = arrival.event
    return fields | {"meta": tuple(event.meta) if isinstance(event, Event) else None, "kind": type(event)}


@pytest.mark.parametrize("consumer", CONSUMERS, ids=lambda consumer: consumer.name)
@settings(max_examples=200, deadline=None)
@given(deliveries())
def test_deliveries_read_together_are_what_each_is_by_itself(
    consumer: Consumer, found: list[Delivery]
) -> None:
    reader = Reader(consumer)
    together = [seen(arrival) for arrival in reader.arrivals(found)]
    assert together == [seen(reader.arrival(delivery)) for delivery in found]


@pytest.mark.parametrize("consumer", CONSUMERS, ids=lambda consumer: consumer.name)
def test_usual_deliveries_are_read_together(consumer: Consumer) -> None:
    reader = Reader(consumer)
    body = json.dumps(USUAL | {"traceparent": "00-1-2-01"}).encode()
    published = datetime(2026, 1, 31, tzinfo=UTC)
    usual = Delivery(body, {"content-type": STRUCTURED}, "test@1", published_at=published)
    assert reader._together([usual] * 3) is not None

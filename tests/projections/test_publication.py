"""Publications: which events go out, through which channel, and as what message."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from onefold import App, Event, Money, Publication, publish
from onefold.domain.account import Account
from onefold.domain.errors import DeclarationError
from onefold.domain.event import EventMeta
from onefold.domain.order import Order
from onefold.domain.registry import Registry
from onefold.infrastructure.brokers.envelope import read, write
from onefold.infrastructure.brokers.port import Delivery

AT = datetime(2026, 3, 2, 12, 0, 0, 250, tzinfo=UTC)
ID = UUID("01950000-0000-7000-8000-000000000001")


def stored(event: Event, version: int = 2, metadata: dict[str, Any] | None = None) -> Event:
    return event.bound(
        EventMeta(
            "account/7", version, 40, occurred_at=AT, recorded_at=AT, event_id=ID, metadata=metadata or {}
        )
    )


def deposited(**options: Any) -> Event:
    return stored(Account.Deposited(amount=Money.of("24.90", "EUR")), **options)


def test_an_event_goes_out_with_its_own_identity_its_stream_and_its_version() -> None:
    posting = publish(Account.Deposited, to="accounts").posting(deposited())
    assert posting is not None
    message = posting.message
    assert (posting.channel, posting.key, posting.numbered) == ("accounts", "account/7", False)
    assert (message.id, message.source, message.type) == (str(ID), "/account", "account.deposited")
    assert (message.subject, message.time) == ("account/7", AT)
    assert message.data["amount"] == {"amount": "24.90", "currency": "EUR"}
    assert message.extensions == {"sequence": "2"}


def test_a_message_travels_and_comes_back_as_it_was() -> None:
    posting = publish(Account, to="accounts").posting(deposited())
    assert posting is not None
    outgoing = write(posting.message)
    assert read(Delivery(outgoing.body, outgoing.headers, "here")) == posting.message


def test_numbers_keep_all_their_digits() -> None:
    class Weighed(Event, name="parcel.weighed", registry=Registry()):
        grams: int
        share: float

    posting = publish(Weighed, to="parcels").posting(stored(Weighed(grams=2**70, share=0.1)))
    assert posting is not None
    assert posting.message.data == {"grams": 2**70, "share": Decimal("0.1")}


def test_what_an_event_was_caused_by_goes_on() -> None:
    metadata = {
        "correlation": "c-1",
        "causation": "m-9",
        "actor": "ana",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }
    posting = publish(Account, to="accounts").posting(deposited(metadata=metadata))
    assert posting is not None
    assert posting.message.extensions == {
        "sequence": "2",
        "correlationid": "c-1",
        "causationid": "m-9",
        "traceparent": metadata["traceparent"],
    }


def test_an_aggregate_stands_for_all_its_events_and_a_base_class_for_those_that_derive_from_it() -> None:
    everything, movements = publish(Account, to="accounts"), publish(Order, Account.Deposited, to="some")
    assert everything.takes(Account.Opened)
    assert everything.takes(Account.Closed)
    assert not everything.takes(Order.Placed)
    assert movements.takes(Order.Placed)
    assert not movements.takes(Account.Withdrawn)
    assert movements.posting(stored(Account.Withdrawn(amount=Money.of("1.00", "EUR")))) is None


def test_data_key_type_and_source_are_as_they_are_declared() -> None:
    publication = publish(
        Account.Deposited,
        to="money",
        key=lambda event: event.amount.currency,
        data=lambda event: {"sum": event.amount.amount},
        type="money.in",
        source="https://bank.example/ledger",
        sequence="channel",
    )
    posting = publication.posting(deposited())
    assert posting is not None
    assert (posting.key, posting.numbered) == ("EUR", True)
    assert posting.message.data == {"sum": Decimal("24.90")}
    assert (posting.message.type, posting.message.source) == ("money.in", "https://bank.example/ledger")
    assert posting.message.extensions == {"partitionkey": "EUR"}


def test_no_data_is_no_message() -> None:
    large = publish(
        Account.Deposited,
        to="large",
        data=lambda event: (event.amount.amount > 100 and {"is": "large"}) or None,
    )
    assert large.posting(deposited()) is None
    assert large.posting(stored(Account.Deposited(amount=Money.of("100.01", "EUR")))) is not None


def test_bytes_are_sent_as_such() -> None:
    posting = publish(Account, to="accounts", data=lambda _: b"\x00\xff").posting(deposited())
    assert posting is not None
    assert posting.message.datacontenttype == "application/octet-stream"
    body = json.loads(write(posting.message).body)
    assert body["data_base64"] == "AP8="


@pytest.mark.parametrize("key", ["", None, 7, "a\x00", "\ud800", "ö" * 1_001])
def test_a_key_is_text_that_a_database_can_hold(key: object) -> None:
    publication = publish(Account, to="accounts", key=lambda _: key)  # type: ignore[arg-type,return-value]
    with pytest.raises(DeclarationError, match=r"of at most 2,000 bytes as key of account/7 version 2"):
        publication.posting(deposited())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: publish(to="accounts"), "expected event or aggregate classes, found none"),
        (lambda: publish(Account, to="Accounts!"), "must be lower-case letters, digits and underscores"),
        (
            lambda: publish(date, to="days"),
            "expected an event or aggregate class, found <class 'datetime.date'>",
        ),
        (
            lambda: publish(Account, to="accounts", via="log", sequence="channel"),
            'numbers messages as they are written, which needs via="outbox"',
        ),
        (
            lambda: App(publications=[publish(Account, to="all"), publish(Order, to="all", via="log")]),
            "channel 'all' is published via both 'outbox' and 'log'",
        ),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_declared(make: Any, says: str) -> None:
    with pytest.raises(DeclarationError, match=says):
        make()


def test_a_publication_says_what_it_is() -> None:
    publication = publish(Account, Order.Placed, to="all")
    assert isinstance(publication, Publication)
    assert repr(publication) == "publish(Account, Placed, to='all')"
    assert "publications=[publish(Account, Placed, to='all')]" in repr(App(publications=[publication]))

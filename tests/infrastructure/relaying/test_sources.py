"""The log and the outbox give the same messages for the same declaration, in the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from onefold import App, Money, publish
from onefold.domain.account import Account
from onefold.domain.errors import DeclarationError
from onefold.domain.event import Event
from onefold.infrastructure.relaying.errors import PublicationFailed
from onefold.infrastructure.relaying.relay import Relay
from onefold.infrastructure.store import Store, connect
from onefold.projections.publication import Publication

from .outgoing import Broker, Connection

AT = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
WRITTEN = publish(Account, to="written")
READ = publish(Account, to="read", via="log")
SELECTED = publish(Account.Deposited, to="selected", via="log", key=lambda event: event.meta.key, type="paid")
APP = App(aggregates=[Account], publications=[WRITTEN, READ, SELECTED])


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    with connect(APP, database_url) as connected:
        yield connected


def fill(store: Store, accounts: int, deposits: int = 4) -> None:
    for number in range(accounts):
        account = Account.open(str(number), "EUR", at=AT)
        for _ in range(deposits):
            account.deposit(Money.of("1.00", "EUR"), at=AT)
        store.save(account, metadata={"correlation": f"c-{number}"})


def out(url: str, broker: Broker, channel: str, *publications: Publication, **options: Any) -> Relay:
    made = Relay(
        url,
        channel,
        "file:nowhere",
        publications=publications or APP.publications,
        publisher=broker,
        lease=1.0,
        once=True,
        **options,
    )
    made.run()
    return made


def test_both_say_the_same_in_the_same_bytes(store: Store) -> None:
    """C07, C21"""
    written, read = Broker(), Broker()
    fill(store, 20)
    assert out(store.url, written, "written").source == "outbox"
    assert out(store.url, read, "read", batch=7).source == "log"
    assert len(read.taken) == 100
    by_body = {each.body: each for each in written.taken}
    assert {each.body: each for each in read.taken} == by_body
    for number in range(20):
        stream = f"account/{number}"
        assert read.first(stream) == written.first(stream)
        assert len(read.first(stream)) == 5
    assert out(store.url, read, "read").published == 0


def test_only_what_is_declared_is_read_from_the_log(store: Store) -> None:
    broker = Broker()
    fill(store, 3)
    out(store.url, broker, "selected", segments=2, batch=2)
    assert {each.key for each in broker.taken} == {"0", "1", "2"}
    assert len(broker.taken) == 12
    # Nothing is left to read: what is not published is passed over too.
    with store.pool.connection() as connection:
        rows = connection.execute("SELECT position FROM onefold.relays WHERE relay = 'selected'").fetchall()
    assert rows == [(15,), (15,)]


def test_two_messages_of_one_event_are_refused_from_the_log(store: Store) -> None:
    broker = Broker()
    fill(store, 1)
    again = publish(Account.Deposited, to="read", via="log", type="again")
    with pytest.raises(DeclarationError, match="from the log each event goes out once"):
        out(store.url, broker, "read", READ, again)


def test_a_publication_that_fails_is_named_and_nothing_passes_the_event(
    store: Store, connection: Connection
) -> None:
    def data(event: Event) -> Any:
        return {"n": 1 / (event.meta.version - 2)}

    broken = publish(Account, to="broken", via="log", data=data)
    broker = Broker()
    fill(store, 1)
    with pytest.raises(PublicationFailed, match=r"account/0, version 2.*ZeroDivisionError") as raised:
        out(store.url, broker, "broken", broken)
    assert "publish(Account, to='broken')" in str(raised.value)
    assert broker.taken == []
    row = connection.execute("SELECT min(position) FROM onefold.relays WHERE relay = 'broken'").fetchone()
    assert row == (0,)


def test_a_message_that_cannot_travel_is_named_too(store: Store) -> None:
    broken = publish(Account, to="broken", via="log", data=lambda _: {"text": "a\x00b"}, type="x\x00")
    fill(store, 1)
    with pytest.raises(PublicationFailed, match="account/0, version 1"):
        out(store.url, Broker(), "broken", broken)


def test_what_was_refused_of_the_log_waits_as_well(store: Store, connection: Connection) -> None:
    broker = Broker()
    fill(store, 1, 2)
    event = store.log.load(Account.stream_of("0"))[1]
    broker.refused = {str(event.meta.event_id)}
    done = out(store.url, broker, "read")
    assert (done.published, done.held) == (1, 2)
    broker.refused.clear()
    connection.execute("UPDATE onefold.held_messages SET asked_at = now() WHERE cause IS NOT NULL")
    out(store.url, broker, "read")
    ids = [str(each.meta.event_id) for each in store.log.load(Account.stream_of("0"))]
    assert broker.ids == ids

"""The outbox: messages in the transaction of the state change that they tell of."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from onefold import App, Money, publish
from onefold.domain.account import Account
from onefold.infrastructure.brokers.envelope import BadEnvelope, read
from onefold.infrastructure.brokers.port import Delivery
from onefold.infrastructure.connection import connected
from onefold.infrastructure.postgres import outbox
from onefold.infrastructure.postgres.errors import VersionConflict
from onefold.infrastructure.postgres.outbox import BadPosting, NoTransaction
from onefold.infrastructure.store import Store, connect
from onefold.projections.message import Message
from onefold.projections.publication import Posting

AT = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
EVERYTHING = publish(Account, to="accounts")
NUMBERED = publish(Account.Deposited, to="money", sequence="channel")


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    with connect(App(aggregates=[Account], publications=[EVERYTHING, NUMBERED]), database_url) as connected:
        yield connected


def account(number: str = "7") -> Account:
    return Account.open(number, "EUR", at=AT)


def euro(amount: str) -> Money:
    return Money.of(amount, "EUR")


def written(url: str, channel: str = "accounts") -> list[Message]:
    with connected(url, application="test") as connection:
        rows = connection.execute(
            "SELECT body, headers FROM onefold.outbox WHERE channel = %s ORDER BY position", (channel,)
        ).fetchall()
    return [read(Delivery(bytes(body), headers, "outbox")) for body, headers in rows]


def message(number: int = 1, **options: Any) -> Message:
    return Message(f"m{number}", "/test", "test.said", {"number": number}, **options)


def test_messages_are_written_with_the_events_that_they_tell_of(store: Store) -> None:
    first = account()
    first.deposit(euro("24.90"), at=AT)
    stored = store.save(first, metadata={"correlation": "c-1"})
    found = written(store.url)
    assert [each.id for each in found] == [str(event.meta.event_id) for event in stored]
    assert [each.extensions["sequence"] for each in found] == ["1", "2"]
    assert {each.extensions["correlationid"] for each in found} == {"c-1"}
    assert [each.id for each in written(store.url, "money")] == [str(stored[1].meta.event_id)]


def test_an_append_that_is_refused_writes_no_message(store: Store) -> None:
    store.save(account())
    with pytest.raises(VersionConflict, match="expected version 0, found 1"):
        store.save(account())
    assert len(written(store.url)) == 1
    # The store goes on.
    store.change(Account, "7", lambda known: known.deposit(euro("1.00"), at=AT))
    assert len(written(store.url)) == 2


def test_an_append_whose_message_is_refused_writes_no_event(database_url: str) -> None:
    broken = publish(Account, to="accounts", data=lambda _: {"text": "a\x00b"})
    with connect(App(aggregates=[Account], publications=[broken]), database_url) as store:
        with pytest.raises(BadEnvelope, match="text"):
            store.save(account())
        assert list(store.events()) == []
    assert written(database_url) == []


def test_a_rolled_back_transaction_leaves_neither_event_nor_message(store: Store) -> None:
    with store.pool.connection() as connection:
        with connection.transaction():
            store.save(account(), connection=connection)
            outbox.write(connection, [Posting("accounts", message())])
            raise psycopg.Rollback
        with connection.transaction():
            store.save(account("8"), connection=connection)
            outbox.write(connection, [Posting("accounts", message())])
    assert [each.type for each in written(store.url)] == ["account.opened", "test.said"]
    assert [event.meta.stream for event in store.events()] == ["account/8"]


def test_events_that_nobody_publishes_write_nothing(database_url: str) -> None:
    with connect(App(aggregates=[Account], publications=[NUMBERED]), database_url) as store:
        store.save(account())
    assert written(database_url, "money") == []


def test_writers_side_by_side_lose_and_repeat_nothing(store: Store) -> None:
    def work(number: int) -> None:
        each = account(str(number))
        store.save(each)
        for _ in range(10):
            store.change(Account, str(number), lambda known: known.deposit(euro("1.00"), at=AT))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    events = [str(event.meta.event_id) for event in store.events()]
    found = written(store.url)
    assert len(found) == 88
    assert sorted(each.id for each in found) == sorted(events)
    for number in range(8):
        mine = [each for each in found if each.subject == f"account/{number}"]
        assert [each.extensions["sequence"] for each in mine] == [str(version) for version in range(1, 12)]


def test_a_connection_lost_in_mid_append_leaves_each_message_once(store: Store) -> None:
    """The append is tried again, and finds what the first try committed."""
    stop = threading.Event()
    killed = 0

    def kill() -> None:
        nonlocal killed
        with connected(store.url, application="killer") as connection:
            while not stop.wait(0.01):
                killed += connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE application_name = 'onefold' AND datname = current_database() AND random() < 0.3"
                ).rowcount

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        for number in range(40):
            each = account(str(number))
            each.deposit(euro("1.00"), at=AT)
            store.save(each)
    finally:
        stop.set()
        killer.join()
    with connected(store.url, application="test") as connection:
        row = connection.execute(
            "SELECT array_agg(event_id::text ORDER BY event_id) FROM onefold.events"
        ).fetchone()
    assert row is not None
    assert sorted(each.id for each in written(store.url)) == row[0]
    assert len(row[0]) == 80
    assert killed > 0


def test_numbered_messages_of_a_key_have_no_hole_whoever_writes_them(database_url: str) -> None:
    def work(writer: int) -> None:
        with connected(database_url, application="test") as connection:
            for number in range(20):
                # Several keys in either order: those who write them wait for each other and do not deadlock.
                keys = ["a", "b", "c"][:: 1 if writer % 2 else -1]
                postings = [
                    Posting("numbers", message(100 * writer + number), key, numbered=True) for key in keys
                ]
                with connection.transaction():
                    outbox.write(connection, [*postings, Posting("numbers", message(), "a", numbered=True)])
                    if number % 5 == 4:
                        raise psycopg.Rollback

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))
    with connected(database_url, application="test") as connection:
        rows = connection.execute(
            "SELECT key, convert_from(body, 'UTF8')::jsonb ->> 'sequence' FROM onefold.outbox ORDER BY position"
        ).fetchall()
    for key, count in (("a", 2 * 6 * 16), ("b", 6 * 16), ("c", 6 * 16)):
        # The order in which they were written is that of their numbers.
        assert [number for each, number in rows if each == key] == [str(n) for n in range(1, count + 1)]


def test_a_message_needs_a_transaction(database_url: str) -> None:
    with connected(database_url, application="test") as connection:
        with pytest.raises(NoTransaction, match="expected a connection with an open transaction"):
            outbox.write(connection, [Posting("accounts", message())])
        outbox.write(connection, [])


@pytest.mark.parametrize(
    ("posting", "says"),
    [
        (Posting("Big Channel", message()), "expected a channel of lower-case letters"),
        (Posting("accounts", message(), ""), "expected a key of text"),
        (Posting("accounts", message(), "a\x00"), "expected a key of text without NUL"),
        (Posting("accounts", message(), "\ud800"), r"found '\\ud800'"),
        (Posting("accounts", message(), 7), "found 7"),  # type: ignore[arg-type]
        (Posting("accounts", message(), "ö" * 1_001), "of 1 to 2,000 bytes"),
        (Posting("accounts", replace(message(), id="ö" * 1_001)), "an id of at most 2,000 bytes"),
        (Posting("accounts", message(), None, True), "expected a key for a numbered message to accounts"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is(
    database_url: str, posting: Posting, says: str
) -> None:
    with (
        connected(database_url, application="test") as connection,
        connection.transaction(),
        pytest.raises(BadPosting, match=says),
    ):
        outbox.write(connection, [Posting("accounts", message()), posting])
    assert written(database_url) == []


def test_a_message_in_the_outbox_cannot_be_changed(database_url: str) -> None:
    with connected(database_url, application="test") as connection:
        with connection.transaction():
            outbox.write(connection, [Posting("accounts", message())])
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="goes out as it was written"):
            connection.execute("UPDATE onefold.outbox SET body = ''")


def test_slots_are_the_same_in_every_release() -> None:
    assert [outbox.slot_of(key) for key in ("order/4711", "account/7", "ä", "")] == [
        SLOTS["order/4711"], SLOTS["account/7"], SLOTS["ä"], SLOTS[""],
    ]  # fmt: skip
    assert {outbox.slot_of(str(number)) for number in range(2000)} == set(range(64))


SLOTS = {"order/4711": 47, "account/7": 7, "ä": 3, "": 0}

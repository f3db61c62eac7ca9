"""Relays on a database and an in-process broker: order, exactly what is there, and what is held back."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from onefold import App, Money, publish
from onefold.domain.account import Account
from onefold.infrastructure.brokers.memory import MemoryBroker
from onefold.infrastructure.brokers.port import BrokerLost, BrokerMisconfigured, Outgoing, Refusals
from onefold.infrastructure.postgres import outbox
from onefold.infrastructure.relaying.dead_letters import (
    HeldMessageError,
    discard,
    list_held,
    message_of,
    retry,
)
from onefold.infrastructure.relaying.errors import PublicationFailed, RelayBusy, RelayChanged
from onefold.infrastructure.relaying.maintenance import remove_published
from onefold.infrastructure.relaying.registration import resegment
from onefold.infrastructure.relaying.relay import Relay
from onefold.infrastructure.relaying.status import RelayStatus, orphans, relays_status
from onefold.infrastructure.store import Store, connect
from onefold.projections.message import Message
from onefold.projections.publication import Posting

AT = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
ACCOUNTS = publish(Account, to="accounts")
ALL = publish(Account, to="everything", via="log")
APP = App(aggregates=[Account], publications=[ACCOUNTS, ALL])
SOON = 15.0
_names = itertools.count(1)

Write = Callable[..., None]


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker(f"relay-{next(_names)}")


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    with connect(APP, database_url) as connected:
        yield connected


@pytest.fixture
def write(database_url: str) -> Write:
    """Writes messages of a key, numbered as given, to a channel."""

    def do(*numbers: int, key: str | None = "a", channel: str = "things", body: str = "") -> None:
        with psycopg.connect(database_url) as connection, connection.transaction():
            outbox.write(
                connection,
                [
                    Posting(channel, Message(f"{key}{n}", "/test", "test.said", {"n": n, "body": body}), key)
                    for n in numbers
                ],
            )

    return do


def relay(url: str, broker: MemoryBroker, channel: str = "things", **options: Any) -> Relay:
    options.setdefault("publications", APP.publications)
    return Relay(url, channel, f"memory://{broker.name}", **options)


def once(url: str, broker: MemoryBroker, channel: str = "things", **options: Any) -> Relay:
    made = relay(url, broker, channel, once=True, **options)
    made.run()
    return made


@contextmanager
def running(*relays: Relay) -> Iterator[None]:
    errors: list[BaseException] = []

    def run(each: Relay) -> None:
        try:
            each.run()
        except Exception as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(each,)) for each in relays]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for each in relays:
            each.stop()
        for thread in threads:
            thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    for error in errors:
        raise error


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def published(broker: MemoryBroker) -> list[Outgoing]:
    found = broker.subscribe("looker").receive(100_000, 0.05)
    return [Outgoing(each.body, each.headers, each.key) for each in found]


def ids(broker: MemoryBroker) -> list[str]:
    return [each.body.decode().partition('"id":"')[2].partition('"')[0] for each in published(broker)]


def status_of(connection: psycopg.Connection[Any], name: str = "things") -> RelayStatus:
    (found,) = (each for each in relays_status(connection) if each.name == name)
    return found


def fill(store: Store, accounts: int = 20, deposits: int = 4) -> None:
    for number in range(accounts):
        account = Account.open(str(number), "EUR", at=AT)
        for _ in range(deposits):
            account.deposit(Money.of("1.00", "EUR"), at=AT)
        store.save(account)


@pytest.mark.parametrize("channel", ["accounts", "everything"])
def test_every_message_goes_out_once_in_the_order_of_its_key_with_the_same_bytes_from_both_sources(
    store: Store, broker: MemoryBroker, channel: str
) -> None:
    """C07, C21"""
    fill(store)
    assert once(store.url, broker, channel).published == 100
    found = published(broker)
    assert len({each.body for each in found}) == len(found) == 100
    by_key: dict[str | None, list[int]] = {}
    for each in found:
        version = int(each.body.decode().partition('"sequence":"')[2].partition('"')[0])
        by_key.setdefault(each.key, []).append(version)
    assert by_key == {f"account/{number}": [1, 2, 3, 4, 5] for number in range(20)}
    with store.pool.connection() as connection:
        rows = connection.execute(
            "SELECT body FROM onefold.outbox WHERE channel = 'accounts'", binary=True
        ).fetchall()
    assert sorted(each.body for each in found) == sorted(bytes(body) for (body,) in rows)
    assert once(store.url, broker, channel).published == 0


def test_what_comes_later_goes_out_too_and_in_little_time(
    database_url: str, broker: MemoryBroker, write: Write
) -> None:
    with running(relay(database_url, broker)):
        write(1)
        until(lambda: broker.unacknowledged("looker") == 1)
        began = time.monotonic()
        write(2, 3)
        until(lambda: broker.unacknowledged("looker") == 3)
        assert time.monotonic() - began < 1
    assert ids(broker) == ["a1", "a2", "a3"]


def test_what_commits_late_is_not_skipped(
    database_url: str, broker: MemoryBroker, write: Write, connection: psycopg.Connection[Any]
) -> None:
    """C41: a position is drawn before the commit, so that a higher one may be visible first."""
    with running(relay(database_url, broker, segments=1)), psycopg.connect(database_url) as slow:
        slow.execute("SELECT 1")
        outbox.write(slow, [Posting("things", Message("late", "/test", "test.said", {}), "k")])
        write(1, 2)
        time.sleep(0.3)
        assert broker.unacknowledged("looker") == 0
        slow.commit()
        until(lambda: broker.unacknowledged("looker") == 3)
    assert ids(broker) == ["late", "a1", "a2"]


def test_what_is_rolled_back_does_not_go_out_and_keeps_nobody_waiting(
    database_url: str, broker: MemoryBroker, write: Write
) -> None:
    """C40"""
    with psycopg.connect(database_url) as connection:
        connection.execute("SELECT 1")
        outbox.write(connection, [Posting("things", Message("never", "/test", "test.said", {}), "k")])
        connection.rollback()
    write(1)
    assert once(database_url, broker).published == 1
    assert ids(broker) == ["a1"]


def test_two_processes_share_the_segments_and_one_takes_over_what_the_other_leaves(
    database_url: str, broker: MemoryBroker, write: Write, connection: psycopg.Connection[Any]
) -> None:
    first, second = (relay(database_url, broker, lease=1.5) for _ in range(2))
    with running(first):
        until(lambda: len(first._held) == 4)
        with running(second):
            until(lambda: len(first._held) == len(second._held) == 2)
            assert not set(first._held) & set(second._held)
            assert status_of(connection).processes == 2
            for key in range(40):
                write(1, 2, key=f"k{key}-")
            until(lambda: first.published + second.published == 80)
            assert first.published
            assert second.published
        until(lambda: len(first._held) == 4)
    assert len(set(ids(broker))) == broker.unacknowledged("looker") == 80
    assert status_of(connection).processes == 0


class Refusing:
    """A publisher to a memory broker that refuses what it is told to, and loses its broker when told to."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self.bad: set[str] = set()
        self.lost = 0
        self.error: Exception | None = None

    def __call__(self) -> Refusing:
        return self

    def publish(self, messages: Sequence[Outgoing]) -> Refusals:
        if self.error is not None:
            raise self.error
        if self.lost:
            self.lost -= 1
            # A part of it had gone out.
            self.broker.publish_all(messages[: len(messages) // 2])
            raise BrokerLost("lost")
        refused: dict[int, str] = {}
        stopped: set[str | None] = set()
        for place, each in enumerate(messages):
            if each.key in stopped:
                continue
            if any(f'"{one}"' in each.body.decode() for one in self.bad):
                refused[place] = "too large\x00"
                stopped.add(each.key)
            else:
                self.broker.publish_all([each])
        return refused

    def close(self) -> None:
        pass


def test_a_refused_message_is_a_dead_letter_its_key_waits_and_others_go_on(
    database_url: str, broker: MemoryBroker, write: Write, connection: psycopg.Connection[Any]
) -> None:
    out = Refusing(broker)
    out.bad = {"a2"}
    write(1, 2, 3)
    write(1, key="b")
    with running(relay(database_url, broker, publisher=out)):
        until(lambda: len(list_held(connection)) == 1)
        write(4)
        write(2, key="b")
        until(lambda: broker.unacknowledged("looker") == 3)
        until(lambda: list_held(connection)[0].behind == 2)
        (letter,) = list_held(connection)
        assert (letter.message_id, letter.key, letter.cause, letter.attempts) == ("a2", "a", "too large", 1)
        body, headers = message_of(connection, letter.id)
        assert b'"a2"' in body
        assert headers["content-type"].startswith("application/cloudevents")
        assert not status_of(connection).sound
        # It is refused again: nothing has changed but the count.
        retry(connection, letter.id)
        until(lambda: list_held(connection)[0].attempts == 2)
        assert broker.unacknowledged("looker") == 3
        out.bad.clear()
        retry(connection, letter.id)
        until(lambda: broker.unacknowledged("looker") == 6)
        until(lambda: not list_held(connection))
        write(5)
        until(lambda: broker.unacknowledged("looker") == 7)
    assert [each for each in ids(broker) if each.startswith("a")] == ["a1", "a2", "a3", "a4", "a5"]
    (done,) = list_held(connection, resolved=True)
    assert done.resolution == "published"
    with pytest.raises(HeldMessageError, match="found none with the number"):
        retry(connection, done.id)


def test_a_discarded_message_lets_those_behind_it_go(
    database_url: str, broker: MemoryBroker, write: Write, connection: psycopg.Connection[Any]
) -> None:
    out = Refusing(broker)
    out.bad = {"a1", "a3"}
    write(1, 2, 3, 4)
    with running(relay(database_url, broker, publisher=out)):
        until(lambda: len(list_held(connection)) == 1)
        discard(connection, list_held(connection)[0].id, "ada")
        # The next one that is refused holds the rest.
        until(lambda: [each.message_id for each in list_held(connection)] == ["a3"])
        discard(connection, list_held(connection)[0].id, "ada")
        until(lambda: broker.unacknowledged("looker") == 2)
        write(5)
        until(lambda: broker.unacknowledged("looker") == 3)
    assert ids(broker) == ["a2", "a4", "a5"]
    found = list_held(connection, resolved=True)
    assert [(each.message_id, each.resolution, each.resolved_by) for each in found] == [
        ("a1", "discarded", "ada"),
        ("a3", "discarded", "ada"),
    ]
    with pytest.raises(HeldMessageError):
        discard(connection, 2**70, "ada")


def test_a_message_without_key_keeps_nothing_waiting(
    database_url: str, broker: MemoryBroker, write: Write, connection: psycopg.Connection[Any]
) -> None:
    out = Refusing(broker)
    out.bad = {"None2"}
    write(1, 2, 3, key=None)
    assert once(database_url, broker, publisher=out).held == 1
    assert sorted(ids(broker)) == ["None1", "None3"]
    assert [(each.message_id, each.behind) for each in list_held(connection)] == [("None2", 0)]


def test_a_lost_broker_gets_the_same_messages_again_in_order(
    database_url: str, broker: MemoryBroker, write: Write
) -> None:
    """C07, C48"""
    out = Refusing(broker)
    out.lost = 2
    write(*range(1, 11))
    assert once(database_url, broker, publisher=out).published == 10
    found = published(broker)
    assert len(found) == 20
    assert len({each.body for each in found}) == 10
    firsts = list(dict.fromkeys(each.body for each in found))
    assert firsts == [each.body for each in found[-10:]]


def test_what_concerns_the_whole_channel_ends_the_relay(
    database_url: str, broker: MemoryBroker, write: Write
) -> None:
    out = Refusing(broker)
    out.error = BrokerMisconfigured("no such topic")
    write(1)
    with pytest.raises(BrokerMisconfigured, match="no such topic"):
        relay(database_url, broker, publisher=out).run()


def test_a_publication_that_fails_is_named_and_nothing_passes_the_event(
    store: Store, broker: MemoryBroker
) -> None:
    def data(event: Any) -> Any:
        return {"n": 1 / (event.meta.version - 2)}

    broken = publish(Account, to="broken", via="log", data=data)
    fill(store, 1, 3)
    with pytest.raises(PublicationFailed, match="account/0, version 2.*ZeroDivisionError"):
        once(store.url, broker, "broken", publications=[broken])
    assert len(published(broker)) <= 1


def test_a_worker_that_was_replaced_can_note_nothing(
    database_url: str, broker: MemoryBroker, write: Write, connection: psycopg.Connection[Any]
) -> None:
    """C41"""
    entered, go = threading.Event(), threading.Event()

    class Slow(Refusing):
        def publish(self, messages: Sequence[Outgoing]) -> Refusals:
            refused = super().publish(messages)
            entered.set()
            assert go.wait(30)
            return refused

    stale = relay(database_url, broker, segments=1, publisher=Slow(broker), lease=1.0)
    write(1, 2, 3)
    with running(stale):
        assert entered.wait(SOON)
        # As if it had been stopped: its lease is over, and another has taken the segment and gone on.
        connection.execute("UPDATE onefold.relays SET owner = NULL, expires_at = NULL, token = token + 1")
        connection.execute("DELETE FROM onefold.relay_members")
        write(4)
        before = status_of(connection)
        go.set()
        until(lambda: status_of(connection).published >= 4)
    assert before.published == 0
    assert stale.published == 4
    firsts = list(dict.fromkeys(ids(broker)))
    assert firsts == ["a1", "a2", "a3", "a4"]


def test_a_relay_stays_as_it_was_begun(
    database_url: str, broker: MemoryBroker, write: Write, connection: psycopg.Connection[Any]
) -> None:
    write(1)
    once(database_url, broker, segments=2)
    for options in ({"segments": 3}, {"channel": "others", "name": "things"}):
        with pytest.raises(RelayChanged):
            once(database_url, broker, **{"channel": "things", **options})
    assert once(database_url, broker).published == 0
    assert status_of(connection).segments == 2


def test_segments_change_at_a_common_position_and_order_is_kept(
    database_url: str, broker: MemoryBroker, write: Write, connection: psycopg.Connection[Any]
) -> None:
    out = Refusing(broker)
    out.bad = {"a1"}
    write(1, 2)
    for key in "bcdef":
        write(1, 2, key=key)
    once(database_url, broker, segments=4, publisher=out)
    with pytest.raises(RelayChanged, match="found none of the name"):
        resegment(connection, "nothing", 2)
    with pytest.raises(RelayChanged, match="1 to 64"):
        resegment(connection, "things", 65)
    connection.execute("UPDATE onefold.relays SET owner = 'x', expires_at = now() + interval '1 h'")
    with pytest.raises(RelayBusy):
        resegment(connection, "things", 2)
    connection.execute("UPDATE onefold.relays SET owner = NULL, expires_at = NULL")
    resegment(connection, "things", 3)
    out.bad.clear()
    retry(connection, list_held(connection)[0].id)
    with running(relay(database_url, broker, publisher=out)):
        until(lambda: not list_held(connection))
        write(3)
        until(lambda: "a3" in {each.body.decode().partition('"id":"')[2][:2] for each in log_of(broker)})
    assert list(dict.fromkeys(each for each in ids(broker) if each[0] == "a")) == ["a1", "a2", "a3"]


def log_of(broker: MemoryBroker) -> list[Outgoing]:
    return [each.message for each in broker._log]


def test_a_new_relay_may_begin_at_the_end(database_url: str, broker: MemoryBroker, write: Write) -> None:
    write(1, 2)
    once(database_url, broker, at_head=True)
    write(3)
    once(database_url, broker, at_head=True)
    assert ids(broker) == ["a3"]


def test_one_that_begins_at_the_end_waits_for_those_who_write(
    database_url: str, broker: MemoryBroker, write: Write
) -> None:
    with psycopg.connect(database_url) as slow:
        slow.execute("SELECT 1")
        outbox.write(slow, [Posting("things", Message("late", "/test", "test.said", {}), "k")])
        write(1)
        made = relay(database_url, broker, at_head=True, segments=1)
        with running(made):
            time.sleep(0.3)
            assert not made._held
            slow.commit()
            until(lambda: bool(made._held))
            write(2)
            until(lambda: broker.unacknowledged("looker") == 1)
    assert ids(broker) == ["a2"]


def test_once_waits_for_segments_that_others_have_left_behind(
    database_url: str, broker: MemoryBroker, write: Write, connection: psycopg.Connection[Any]
) -> None:
    write(1)
    once(database_url, broker, segments=2)
    for key in "bcdefgh":
        write(1, key=key)
    connection.execute(
        "UPDATE onefold.relays SET owner = 'killed', expires_at = clock_timestamp() + interval '1.5 s' "
        "WHERE segment = 0"
    )
    assert once(database_url, broker, lease=1.0).published == 7
    connection.execute(
        "UPDATE onefold.relays SET owner = 'other', expires_at = clock_timestamp() + interval '1 h'"
    )
    write(2)
    with pytest.raises(RelayBusy, match="in the hands of other processes"):
        once(database_url, broker, lease=1.0)


def test_what_all_relays_are_past_is_removed_after_its_time(
    database_url: str, broker: MemoryBroker, write: Write, connection: psycopg.Connection[Any]
) -> None:
    """C42"""
    out = Refusing(broker)
    out.bad = {"a2"}
    write(1, 2, 3)
    write(1, channel="unread")
    once(database_url, broker, publisher=out)
    write(4)
    assert remove_published(connection) == 0
    assert remove_published(connection, keep=0.0) == 3
    assert remove_published(connection, keep=0.0) == 0
    assert orphans(connection) == {"unread": 1}
    other = MemoryBroker(f"relay-{next(_names)}")
    once(database_url, other, name="second")
    assert ids(other) == ["a4"]
    assert remove_published(connection, keep=0.0) == 0
    # What was held back is still there.
    retry(connection, list_held(connection)[0].id)
    out.bad.clear()
    with running(relay(database_url, broker, publisher=out)):
        until(lambda: broker.unacknowledged("looker") == 4)
    assert ids(broker) == ["a1", "a2", "a3", "a4"]


def test_status_says_how_much_waits_and_for_how_long(
    store: Store, broker: MemoryBroker, write: Write, connection: psycopg.Connection[Any]
) -> None:
    """C83"""
    write(1)
    once(store.url, broker)
    once(store.url, broker, "everything")
    write(2, 3)
    fill(store, 1, 1)
    time.sleep(0.05)
    found = status_of(connection)
    assert (found.waiting, found.published, found.at_work, found.sound) == (2, 1, 0, True)
    assert found.waiting_seconds is not None
    assert 0.04 < found.waiting_seconds < 10
    logged = status_of(connection, "everything")
    assert (logged.waiting, logged.behind) == (None, 2)
    assert logged.waiting_seconds is not None
    assert orphans(connection) == {"accounts": 2}


def test_the_database_may_go_away_for_a_moment(
    database_url: str, broker: MemoryBroker, write: Write, connection: psycopg.Connection[Any]
) -> None:
    made = relay(database_url, broker, lease=1.5)
    with running(made):
        write(1)
        until(lambda: broker.unacknowledged("looker") == 1)
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
            "AND application_name LIKE 'onefold relay%'"
        )
        write(2)
        until(lambda: broker.unacknowledged("looker") == 2)
    assert ids(broker) == ["a1", "a2"]

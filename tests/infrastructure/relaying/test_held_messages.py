"""What the broker refuses is held back with all that follows it in its key; nothing overtakes, nothing is stuck."""

from __future__ import annotations

import logging
import time

import pytest

from onefold.infrastructure.brokers.memory import MemoryBroker
from onefold.infrastructure.relaying.dead_letters import (
    HeldMessageError,
    discard,
    list_held,
    message_of,
    retry,
)
from onefold.infrastructure.relaying.registration import resegment
from onefold.infrastructure.relaying.relay import Relay

from .outgoing import (
    CHANNEL,
    Broker,
    Connection,
    count,
    post,
    posting,
    published,
    relay,
    running,
    until,
)


@pytest.fixture
def broker(database_url: str, connection: Connection) -> Broker:
    """A broker that has refused a2, so that a3 waits; b1 and b2 are out."""
    made = Broker()
    made.refused = {"a2"}
    post(connection, *(posting(each, each[0]) for each in ("a1", "b1", "a2", "a3", "b2")))
    done = published(database_url, made)
    assert (done.published, done.held) == (3, 2)
    return made


def waiting(connection: Connection) -> list[str]:
    rows = connection.execute(
        "SELECT message_id FROM onefold.held_messages WHERE resolved_at IS NULL ORDER BY position"
    )
    return [found for (found,) in rows]


def test_a_refused_message_is_held_and_what_follows_waits(broker: Broker, connection: Connection) -> None:
    assert broker.first("a") == ["a1"]
    assert broker.first("b") == ["b1", "b2"]
    (letter,) = list_held(connection)
    assert (letter.relay, letter.key, letter.message_id, letter.type) == (CHANNEL, "a", "a2", "test.said")
    assert (letter.cause, letter.attempts, letter.behind, letter.asked_at, letter.resolution) == (
        "expected a message that it takes, found a2", 1, 1, None, None,
    )  # fmt: skip
    body, headers = message_of(connection, letter.id)
    row = connection.execute(
        "SELECT body, headers FROM onefold.outbox WHERE id = 'a2' AND position = %s", (letter.position,)
    ).fetchone()
    assert row == (body, headers)


def test_what_comes_later_in_its_key_waits_too(
    broker: Broker, database_url: str, connection: Connection
) -> None:
    # Another process, which knows of it by the database only, and a broker that would take it now.
    broker.refused.clear()
    post(connection, posting("a4", "a"), posting("b3", "b"))
    published(database_url, broker)
    assert broker.first("a") == ["a1"]
    assert broker.first("b") == ["b1", "b2", "b3"]
    assert waiting(connection) == ["a2", "a3", "a4"]


def test_another_try_publishes_in_order(broker: Broker, database_url: str, connection: Connection) -> None:
    broker.refused.clear()
    (letter,) = list_held(connection)
    retry(connection, letter.id)
    (letter,) = list_held(connection)
    assert letter.asked_at is not None
    post(connection, posting("a4", "a"))
    published(database_url, broker)
    assert broker.ids.count("a1") == 1
    assert broker.first("a") == ["a1", "a2", "a3", "a4"]
    assert list_held(connection) == []
    (letter,) = list_held(connection, resolved=True)
    assert (letter.message_id, letter.resolution, letter.attempts) == ("a2", "published", 1)
    with pytest.raises(HeldMessageError, match=f"found none with the number {letter.id}"):
        retry(connection, letter.id)


def test_a_relay_at_work_tries_again_when_it_is_asked_to(
    broker: Broker, database_url: str, connection: Connection
) -> None:
    with running(relay(database_url, broker)):
        post(connection, posting("a4", "a"))
        until(lambda: waiting(connection) == ["a2", "a3", "a4"])
        broker.refused.clear()
        (letter,) = list_held(connection)
        retry(connection, letter.id)
        until(lambda: waiting(connection) == [])
        post(connection, posting("a5", "a"))
        until(lambda: broker.first("a") == ["a1", "a2", "a3", "a4", "a5"])
    assert len(broker.ids) == 7


def test_one_that_is_refused_again_stays_with_its_new_cause(
    broker: Broker, database_url: str, connection: Connection
) -> None:
    (letter,) = list_held(connection)
    retry(connection, letter.id)
    published(database_url, broker)
    (letter,) = list_held(connection)
    assert (letter.attempts, letter.asked_at, letter.behind) == (2, None, 1)
    assert broker.first("a") == ["a1"]


def test_another_one_behind_it_may_be_refused(
    broker: Broker, database_url: str, connection: Connection
) -> None:
    broker.refused = {"a3"}
    (letter,) = list_held(connection)
    retry(connection, letter.id)
    post(connection, posting("a4", "a"))
    published(database_url, broker)
    assert broker.first("a") == ["a1", "a2"]
    (letter,) = list_held(connection)
    assert (letter.message_id, letter.attempts, letter.behind) == ("a3", 1, 1)


def test_one_that_is_given_up_lets_those_behind_it_go(
    broker: Broker, database_url: str, connection: Connection
) -> None:
    (letter,) = list_held(connection)
    discard(connection, letter.id, "ops")
    published(database_url, broker)
    assert broker.first("a") == ["a1", "a3"]
    (letter,) = list_held(connection, resolved=True)
    assert (letter.message_id, letter.resolution, letter.resolved_by) == ("a2", "discarded", "ops")
    with pytest.raises(HeldMessageError):
        discard(connection, letter.id, "ops")
    post(connection, posting("a4", "a"))
    published(database_url, broker)
    assert broker.first("a") == ["a1", "a3", "a4"]


def test_a_message_that_is_held_while_the_one_before_it_is_given_up_is_not_stuck(
    broker: Broker, database_url: str, connection: Connection
) -> None:
    with running(relay(database_url, broker)):
        post(connection, posting("b3", "b"))
        until(lambda: "b3" in broker.ids)
        # The relay knows by its last look that the key is held, and holds what comes in the meantime.
        with connection.transaction():
            (letter,) = list_held(connection)
            discard(connection, letter.id, "ops")
            post(connection, posting("a4", "a"))
        until(lambda: broker.first("a") == ["a1", "a3", "a4"], 5)
    assert waiting(connection) == []


def test_a_key_that_is_given_up_again_and_again_loses_nothing_else(
    database_url: str, connection: Connection
) -> None:
    broker = Broker()
    broker.refused = {f"a{number}" for number in range(0, 24, 3)}
    with running(relay(database_url, broker, segments=1, batch=4)):
        for number in range(24):
            post(connection, posting(f"a{number}", "a"))
            for letter in list_held(connection):
                discard(connection, letter.id, "ops")
        deadline = time.monotonic() + 40
        while len(broker.first("a")) < 16:
            assert time.monotonic() < deadline, waiting(connection)
            for letter in list_held(connection):
                discard(connection, letter.id, "ops")
            time.sleep(0.05)
    assert broker.first("a") == [f"a{number}" for number in range(24) if number % 3]
    assert waiting(connection) == []


def test_one_that_only_waits_is_no_dead_letter(broker: Broker, connection: Connection) -> None:
    row = connection.execute("SELECT id FROM onefold.held_messages WHERE message_id = 'a3'").fetchone()
    assert row is not None
    with pytest.raises(HeldMessageError, match="expected a message that is held back"):
        retry(connection, row[0])


def test_what_was_never_held_is_told(connection: Connection) -> None:
    with pytest.raises(HeldMessageError, match="expected a held message, found none with the number 7"):
        message_of(connection, 7)


def test_a_message_without_a_key_holds_nobody_up(database_url: str, connection: Connection) -> None:
    broker = Broker()
    broker.refused = {"m1"}
    post(connection, *(posting(f"m{number}", None) for number in range(4)))
    published(database_url, broker)
    assert sorted(broker.ids) == ["m0", "m2", "m3"]
    broker.refused.clear()
    (letter,) = list_held(connection)
    retry(connection, letter.id)
    published(database_url, broker)
    assert sorted(broker.ids) == ["m0", "m1", "m2", "m3"]
    assert {each.key for each in broker.taken} == {None}


def test_held_messages_follow_their_key_into_other_segments(
    broker: Broker, database_url: str, connection: Connection
) -> None:
    assert resegment(connection, CHANNEL, 7) == 5
    post(connection, posting("a4", "a"))
    published(database_url, broker)
    assert broker.first("a") == ["a1"]
    assert waiting(connection) == ["a2", "a3", "a4"]
    broker.refused.clear()
    (letter,) = list_held(connection)
    retry(connection, letter.id)
    published(database_url, broker)
    assert broker.first("a") == ["a1", "a2", "a3", "a4"]


def test_a_checkpoint_that_is_set_back_brings_nothing_back_that_was_given_up(
    broker: Broker, database_url: str, connection: Connection
) -> None:
    (letter,) = list_held(connection)
    discard(connection, letter.id, "ops")
    published(database_url, broker)
    connection.execute("UPDATE onefold.relays SET position = 0")
    broker.refused.clear()
    published(database_url, broker)
    assert "a2" not in broker.ids
    assert broker.first("a") == ["a1", "a3"]
    assert waiting(connection) == []


def test_a_checkpoint_that_is_set_back_keeps_what_was_asked_for(
    broker: Broker, database_url: str, connection: Connection
) -> None:
    (letter,) = list_held(connection)
    retry(connection, letter.id)
    connection.execute("UPDATE onefold.relays SET position = 0")
    broker.refused.clear()
    published(database_url, broker)
    assert broker.first("a") == ["a1", "a2", "a3"]
    assert waiting(connection) == []


def test_the_limits_of_a_broker_are_met_alike(database_url: str, connection: Connection) -> None:
    MemoryBroker("small", largest=200)
    post(connection, posting("short", "a"), posting("x" * 100, "a"), posting("next", "a"), posting("o", "b"))
    Relay(database_url, CHANNEL, "memory://small", once=True).run()
    (letter,) = list_held(connection)
    assert letter.cause is not None
    assert letter.cause.startswith("expected a message of up to 200 bytes, found ")
    assert letter.behind == 1


def test_a_refusal_is_logged_without_what_is_in_the_message(
    database_url: str, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker()
    broker.refused = {"a1"}
    post(connection, posting("a1", "a"), posting("a2", "a"))
    published(database_url, broker)
    (found,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert found.getMessage() == (
        "relay news: message a1 of test.said is refused by the broker, and a waits: "
        "expected a message that it takes, found a1"
    )


def test_held_messages_are_few_in_the_record_when_they_are_out(
    broker: Broker, database_url: str, connection: Connection
) -> None:
    broker.refused.clear()
    (letter,) = list_held(connection)
    retry(connection, letter.id)
    published(database_url, broker)
    # What only waited leaves no trace; what was refused does.
    assert count(connection, "held_messages") == 1

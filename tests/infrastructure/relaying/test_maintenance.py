"""Messages that all relays of their channel are past are removed, those and no others."""

from __future__ import annotations

import psycopg
import pytest

from onefold.infrastructure.relaying import maintenance
from onefold.infrastructure.relaying.dead_letters import list_held, message_of, retry
from onefold.infrastructure.relaying.maintenance import remove_published
from onefold.infrastructure.relaying.relay import Relay

from .outgoing import CHANNEL, Broker, Connection, count, post, posting, published, relay, running, until


def left(connection: Connection) -> list[str]:
    return [found for (found,) in connection.execute("SELECT id FROM onefold.outbox ORDER BY position")]


def test_they_are_kept_for_their_time(database_url: str, connection: Connection) -> None:
    post(connection, posting("a"))
    published(database_url, Broker())
    assert remove_published(connection) == 0
    assert remove_published(connection, keep=0.0) == 1
    assert remove_published(connection, keep=0.0) == 0


def test_none_goes_before_every_relay_of_its_channel_is_past_it(
    database_url: str, connection: Connection
) -> None:
    post(connection, posting("a"), posting("b"))
    published(database_url, Broker())
    Relay(database_url, CHANNEL, "file:nowhere", name="second", publisher=Broker(), once=True).run()
    connection.execute("UPDATE onefold.relays SET position = 1 WHERE relay = 'second' AND segment = 2")
    post(connection, posting("c"))
    assert remove_published(connection, keep=0.0) == 1
    assert left(connection) == ["b", "c"]


def test_a_channel_without_a_relay_keeps_everything(database_url: str, connection: Connection) -> None:
    post(connection, posting("a"), posting("x", channel="unread"))
    published(database_url, Broker())
    assert remove_published(connection, keep=0.0) == 1
    assert left(connection) == ["x"]


def test_a_relay_of_the_log_does_not_count(database_url: str, connection: Connection) -> None:
    post(connection, posting("a"))
    connection.execute(
        "INSERT INTO onefold.relays (relay, segment, segments, channel, source, position) "
        "VALUES ('logged', 0, 1, 'news', 'log', 100)"
    )
    assert remove_published(connection, keep=0.0) == 0


def test_what_was_refused_is_kept_apart_with_its_bytes(database_url: str, connection: Connection) -> None:
    broker = Broker()
    broker.refused = {"a"}
    post(connection, posting("a"), posting("b"))
    row = connection.execute("SELECT body, headers FROM onefold.outbox WHERE id = 'a'").fetchone()
    published(database_url, broker)
    assert remove_published(connection, keep=0.0) == 2
    (letter,) = list_held(connection)
    assert message_of(connection, letter.id) == row
    broker.refused.clear()
    retry(connection, letter.id)
    published(database_url, broker)
    assert broker.ids == ["a", "b"]


def test_they_go_in_slices(
    database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    post(connection, *(posting(f"m{number}") for number in range(25)))
    published(database_url, Broker())
    monkeypatch.setattr(maintenance, "SLICE", 10)
    assert remove_published(connection, keep=0.0, slices=1) == 10
    assert remove_published(connection, keep=0.0) == 15


def test_dead_letters_that_were_dealt_with_are_forgotten_after_a_month(
    database_url: str, connection: Connection
) -> None:
    broker = Broker()
    broker.refused = {"a", "x"}
    post(connection, posting("a"), posting("x", "x"))
    published(database_url, broker)
    connection.execute(
        "UPDATE onefold.held_messages SET resolution = 'discarded', resolved_at = now() - interval '31 days' "
        "WHERE message_id = 'a'"
    )
    remove_published(connection)
    assert [each.message_id for each in list_held(connection, resolved=True)] == ["x"]


def test_a_running_relay_removes_them_too(database_url: str, connection: Connection) -> None:
    broker = Broker()
    post(connection, posting("a"))
    published(database_url, broker)
    with psycopg.connect(database_url, autocommit=True) as other:
        other.execute("SET session_replication_role = 'replica'")
        other.execute("UPDATE onefold.outbox SET written_at = now() - interval '2 days'")
    with running(relay(database_url, broker)):
        until(lambda: count(connection) == 0)

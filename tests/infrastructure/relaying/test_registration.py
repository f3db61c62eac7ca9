"""A relay is begun once, by however many processes, and its segments change by request only."""

from __future__ import annotations

import threading

import psycopg
import pytest

from onefold.infrastructure.connection import connected
from onefold.infrastructure.relaying.errors import RelayBusy, RelayChanged
from onefold.infrastructure.relaying.registration import begin, resegment

from .outgoing import CHANNEL, Broker, Connection, post, posting, published, relay, running, until


def segments(connection: Connection) -> list[tuple[int, int, int]]:
    return connection.execute(
        "SELECT segment, segments, position FROM onefold.relays ORDER BY segment"
    ).fetchall()


def test_processes_that_begin_it_at_once_find_the_same_segments(
    database_url: str, connection: Connection
) -> None:
    ready = threading.Barrier(6)
    found: list[int | str] = []

    def start(number: int | None) -> None:
        with connected(database_url) as mine:
            ready.wait()
            try:
                found.append(begin(mine, CHANNEL, CHANNEL, "outbox", number))
            except RelayChanged:
                found.append("changed")

    threads = [threading.Thread(target=start, args=(number,)) for number in (2, 4, 8, 8, 4, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    (number,) = {each for each in found if each != "changed"}
    assert found.count("changed") == 4
    assert segments(connection) == [(each, number, 0) for each in range(int(number))]


def test_other_segments_begin_where_the_last_one_is(database_url: str, connection: Connection) -> None:
    broker = Broker()
    post(connection, *(posting(f"{key}1", key) for key in "abcdefgh"))
    published(database_url, broker, segments=2)
    connection.execute("UPDATE onefold.relays SET position = 3 WHERE segment = 1")
    assert resegment(connection, CHANNEL, 3) == 3
    assert segments(connection) == [(each, 3, 3) for each in range(3)]
    row = connection.execute("SELECT sum(published) FROM onefold.relays").fetchone()
    assert row == (8,)
    published(database_url, broker)
    assert set(broker.ids[8:]) == {"d1", "e1", "f1", "g1", "h1"}


def test_segments_do_not_change_under_a_process_at_work(database_url: str, connection: Connection) -> None:
    broker = Broker()
    with running(relay(database_url, broker)):
        post(connection, posting("a"))
        until(lambda: broker.ids == ["a"])
        with pytest.raises(RelayBusy, match="expected no process of relay news at work"):
            resegment(connection, CHANNEL, 2)
    assert resegment(connection, CHANNEL, 2) == 1


def test_a_process_that_stands_by_learns_of_other_segments(database_url: str, connection: Connection) -> None:
    published(database_url, Broker(), segments=1)
    connection.execute(
        "UPDATE onefold.relays SET owner = 'other', expires_at = clock_timestamp() + interval '1 minute'"
    )
    broker = Broker()
    with running(relay(database_url, broker)):
        until(lambda: connection.execute("SELECT FROM onefold.relay_members").fetchone() is not None)
        connection.execute("UPDATE onefold.relays SET expires_at = clock_timestamp() - interval '1 second'")
        with connection.transaction():
            connection.execute("DELETE FROM onefold.relays")
            begin(connection, CHANNEL, CHANNEL, "outbox", 3)
        post(connection, *(posting(f"{key}1", key) for key in "abcdefgh"))
        until(lambda: len(broker.ids) == 8)


def test_there_must_be_a_relay_and_a_number_that_can_be(connection: Connection) -> None:
    with pytest.raises(RelayChanged, match="found none of the name 'news'"):
        resegment(connection, CHANNEL, 2)
    for number in (0, 65):
        with pytest.raises(RelayChanged, match=f"expected 1 to 64 segments, found {number}"):
            resegment(connection, CHANNEL, number)


def test_the_head_is_waited_for_so_long_only(
    database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onefold.infrastructure.relaying.registration.PATIENCE", 0.1)
    with psycopg.connect(database_url) as late:
        late.execute("SELECT 1")
        post_open(late)
        post(connection, posting("b"))
        with pytest.raises(RelayBusy, match="found one that does not"):
            begin(connection, CHANNEL, CHANNEL, "outbox", None, at_head=True)


def post_open(connection: Connection) -> None:
    """Write a message, and leave the transaction open."""
    from onefold.infrastructure.postgres import outbox

    outbox.write(connection, [posting("a")])

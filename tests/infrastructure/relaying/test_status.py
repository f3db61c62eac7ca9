"""How relays stand, as status and metrics tell it."""

from __future__ import annotations

import time
from urllib.request import urlopen

from onefold import App
from onefold.infrastructure.metrics import serve
from onefold.infrastructure.relaying.metrics import RelayMetrics
from onefold.infrastructure.relaying.registration import begin
from onefold.infrastructure.relaying.status import RelayStatus, orphans, relays_status
from onefold.infrastructure.status import status

from .outgoing import CHANNEL, Broker, Connection, post, posting, published, relay, running, until


def of(connection: Connection, name: str = CHANNEL) -> RelayStatus:
    (found,) = (each for each in relays_status(connection) if each.name == name)
    return found


def test_what_waits_is_counted_with_its_age(database_url: str, connection: Connection) -> None:
    """C83"""
    post(connection, posting("a"))
    published(database_url, Broker())
    found = of(connection)
    assert (found.channel, found.source, found.segments, found.at_work, found.processes) == (
        CHANNEL, "outbox", 4, 0, 0,
    )  # fmt: skip
    assert (found.position, found.published, found.waiting, found.waiting_seconds) == (1, 1, 0, None)
    post(connection, posting("b"), posting("c", "c"), posting("x", channel="other"))
    time.sleep(0.05)
    found = of(connection)
    assert (found.waiting, found.behind, found.bounded, found.sound) == (2, None, False, True)
    assert found.waiting_seconds is not None
    assert 0.04 < found.waiting_seconds < 10


def test_one_of_the_log_says_how_many_positions_it_is_behind(connection: Connection) -> None:
    begin(connection, "logged", "logged", "log", 2)
    found = of(connection, "logged")
    assert (found.source, found.waiting, found.behind, found.waiting_seconds) == ("log", None, 0, None)


def test_who_is_at_work_is_counted(database_url: str, connection: Connection) -> None:
    with running(relay(database_url, Broker()), relay(database_url, Broker())):
        until(lambda: [(each.processes, each.at_work) for each in relays_status(connection)] == [(2, 4)])
    assert of(connection).at_work == 0


def test_what_is_held_back_makes_it_unsound(database_url: str, connection: Connection) -> None:
    broker = Broker()
    broker.refused = {"a"}
    post(connection, posting("a"), posting("b"), posting("c"))
    published(database_url, broker)
    found = of(connection)
    assert (found.held, found.behind_held, found.waiting, found.sound) == (1, 2, 0, False)
    assert not status(connection, App()).sound


def test_channels_that_no_relay_reads_are_named(database_url: str, connection: Connection) -> None:
    assert orphans(connection) == {}
    post(connection, posting("a"), posting("x", channel="beta"), posting("y", channel="beta"))
    post(connection, posting("z", channel="zeta"))
    published(database_url, Broker())
    begin(connection, "zeta", "zeta", "log", 1)
    # One that reads the log under the name of a channel leaves its outbox where it is.
    assert orphans(connection) == {"beta": 2, "zeta": 1}
    assert dict(status(connection, App()).orphans) == {"beta": 2, "zeta": 1}


def test_metrics_tell_the_same(database_url: str, connection: Connection) -> None:
    broker = Broker()
    broker.refused = {"a"}
    post(connection, posting("a"), posting("b"), posting("o", "o"))
    published(database_url, broker)
    post(connection, posting("p", "o"))
    with RelayMetrics(database_url) as metrics, serve(0, metrics) as server:
        text = urlopen(server.url, timeout=10).read().decode()
    for line in (
        'onefold_relay_published_messages_total{relay="news"} 1.0',
        'onefold_relay_waiting_messages{relay="news"} 1.0',
        'onefold_relay_dead_letters{relay="news"} 1.0',
        'onefold_relay_held_messages{relay="news"} 1.0',
        'onefold_relay_processes{relay="news"} 0.0',
    ):
        assert line in text
    assert 'onefold_relay_oldest_waiting_seconds{relay="news"}' in text
    assert "onefold_database_up 1.0" in text

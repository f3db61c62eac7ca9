"""A relay publishes in the order of each key, skips nothing, and says the same again after a loss."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter

import psycopg
import pytest

from onefold.domain.errors import DeclarationError
from onefold.infrastructure.brokers.memory import MemoryBroker
from onefold.infrastructure.brokers.port import BrokerLost, BrokerMisconfigured
from onefold.infrastructure.postgres import outbox
from onefold.infrastructure.relaying.errors import RelayBusy, RelayChanged
from onefold.infrastructure.relaying.relay import Relay

from .outgoing import (
    CHANNEL,
    Broker,
    Connection,
    begin,
    count,
    post,
    posting,
    published,
    relay,
    running,
    until,
)


def held_by(connection: Connection) -> Counter[str]:
    rows = connection.execute(
        "SELECT owner FROM onefold.relays WHERE owner IS NOT NULL AND expires_at > clock_timestamp()"
    )
    return Counter(owner for (owner,) in rows)


def test_messages_go_out_in_the_order_of_their_keys(database_url: str, connection: Connection) -> None:
    names = {key: [f"{key}{number}" for number in range(50)] for key in "abcdefgh"}
    for number in range(0, 50, 10):
        for key, ids in names.items():
            post(connection, *(posting(each, key) for each in ids[number : number + 10]))
    broker = Broker()
    done = published(database_url, broker, batch=7)
    assert (done.published, done.held) == (400, 0)
    assert {key: broker.first(key) for key in names} == names
    assert len(broker.ids) == 400
    assert count(connection) == 400


def test_messages_without_a_key_go_out_once_each(database_url: str, connection: Connection) -> None:
    post(connection, *(posting(f"m{number}", None) for number in range(30)))
    broker = Broker()
    published(database_url, broker)
    published(database_url, broker)
    assert sorted(broker.ids) == sorted(f"m{number}" for number in range(30))
    assert {each.key for each in broker.taken} == {None}


def test_what_goes_out_is_what_was_written(database_url: str, connection: Connection) -> None:
    post(connection, posting("a", "7"))
    broker = MemoryBroker("as_written")
    Relay(database_url, CHANNEL, "memory://as_written", once=True).run()
    broker.finish()
    (found,) = broker.subscribe("anybody").receive(10, 1)
    row = connection.execute("SELECT body, headers FROM onefold.outbox").fetchone()
    assert row is not None
    assert (found.body, found.headers, found.key) == (bytes(row[0]), row[1], "7")


def test_other_channels_are_left_alone(database_url: str, connection: Connection) -> None:
    post(connection, posting("a"), posting("b", channel="other"), posting("c"))
    broker = Broker()
    published(database_url, broker)
    assert broker.ids == ["a", "c"]


def test_a_late_commit_is_not_skipped(database_url: str, connection: Connection) -> None:
    broker = Broker()
    with psycopg.connect(database_url) as late:
        begin(late)
        outbox.write(late, [posting("late", "x")])
        post(connection, posting("early", "y"), posting("later", "x"))
        with running(relay(database_url, broker)):
            time.sleep(0.3)
            assert broker.ids == []
            late.commit()
            until(lambda: len(broker.ids) == 3)
    assert broker.first("x") == ["late", "later"]


def test_a_late_rollback_is_passed_over(database_url: str, connection: Connection) -> None:
    broker = Broker()
    with psycopg.connect(database_url) as late, running(relay(database_url, broker)):
        begin(late)
        outbox.write(late, [posting("late", "x")])
        post(connection, posting("early", "y"))
        time.sleep(0.2)
        assert broker.ids == []
        late.rollback()
        until(lambda: broker.ids == ["early"])


def test_what_is_written_while_it_runs_goes_out_soon(database_url: str, connection: Connection) -> None:
    broker = Broker()
    with running(relay(database_url, broker)):
        for number in range(5):
            post(connection, posting(f"m{number}"))
            until(lambda wanted=number + 1: len(broker.ids) == wanted, 3)
    assert broker.ids == [f"m{number}" for number in range(5)]


def test_two_relays_publish_each_message_once(database_url: str, connection: Connection) -> None:
    broker = Broker()
    one, two = relay(database_url, broker, batch=5), relay(database_url, broker, batch=5)
    with running(one, two):
        until(lambda: sorted(held_by(connection).values()) == [2, 2])
        for number in range(100):
            post(connection, *(posting(f"{key}{number}", key) for key in "abcdefgh"))
        until(lambda: len(broker.ids) == 800)
    assert max(Counter(broker.ids).values()) == 1
    assert {key: broker.first(key) for key in "ah"} == {
        key: [f"{key}{number}" for number in range(100)] for key in "ah"
    }
    assert one.published + two.published == 800
    assert min(one.published, two.published) > 0


def test_segments_are_shared_out_anew_when_a_relay_joins_or_leaves(
    database_url: str, connection: Connection
) -> None:
    broker = Broker()
    with running(relay(database_url, broker)):
        until(lambda: sorted(held_by(connection).values()) == [4])
        with running(relay(database_url, broker), relay(database_url, broker)):
            until(lambda: sorted(held_by(connection).values()) == [1, 1, 2])
        until(lambda: sorted(held_by(connection).values()) == [4])
    assert held_by(connection) == {}
    assert count(connection, "relay_members") == 0


def test_a_relay_that_is_gone_without_a_word_is_replaced(database_url: str, connection: Connection) -> None:
    broker = Broker()
    published(database_url, broker)
    connection.execute(
        "UPDATE onefold.relays SET owner = 'gone', token = token + 1, "
        "expires_at = clock_timestamp() + interval '1 second'"
    )
    connection.execute("INSERT INTO onefold.relay_members VALUES (%s, 'gone')", (CHANNEL,))
    post(connection, *(posting(f"{key}1", key) for key in "abcdefgh"))
    with running(relay(database_url, broker)):
        until(lambda: len(broker.ids) == 8)
        until(lambda: sorted(held_by(connection).values()) == [4])


def test_after_a_lost_broker_the_same_goes_out_again(
    database_url: str, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker()
    broker.loses = 3
    post(connection, *(posting(f"m{number}") for number in range(10)))
    published(database_url, broker, segments=1)
    assert broker.first("k") == [f"m{number}" for number in range(10)]
    assert Counter(broker.ids)["m0"] == 4
    assert len({(each.body, each.key, str(each.headers)) for each in broker.taken}) == 10
    assert "expected an answer, found none; trying again" in caplog.text


def test_after_a_lost_database_the_same_goes_out_again(database_url: str, connection: Connection) -> None:
    broker = Broker()
    broker.hold.clear()
    post(connection, *(posting(f"m{number}") for number in range(10)))
    with running(relay(database_url, broker, segments=1)):
        assert broker.asked.wait(10)
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name LIKE 'onefold%' AND datname = current_database()"
        )
        broker.hold.set()
        until(lambda: len(broker.ids) >= 20)
        until(lambda: position(connection) == 10)
    assert broker.first("k") == [f"m{number}" for number in range(10)]
    assert len({each.body for each in broker.taken}) == 10


def position(connection: Connection) -> int:
    row = connection.execute("SELECT min(position) FROM onefold.relays").fetchone()
    assert row is not None
    return int(row[0])


def test_a_broker_that_is_lost_at_the_start_is_waited_for(database_url: str, connection: Connection) -> None:
    post(connection, posting("a"))
    broker, tries = Broker(), iter(range(3))

    def connect() -> Broker:
        if next(tries, None) is not None:
            raise BrokerLost("expected a broker, found none")
        return broker()

    published(database_url, connect, segments=1)
    assert broker.ids == ["a"]


def test_what_waiting_does_not_mend_ends_it(database_url: str, connection: Connection) -> None:
    class Missing(Broker):
        def publish(self, messages: object) -> dict[int, str]:
            raise BrokerMisconfigured("expected a topic, found none")

    post(connection, posting("a"))
    with pytest.raises(BrokerMisconfigured, match="expected a topic"):
        relay(database_url, Missing()).run()
    assert held_by(connection) == {}
    assert position(connection) == 0


def test_what_no_relay_expects_ends_it_too(database_url: str, connection: Connection) -> None:
    class Broken(Broker):
        def publish(self, messages: object) -> dict[int, str]:
            raise ZeroDivisionError("of the client")

    post(connection, posting("a"))
    with pytest.raises(ZeroDivisionError, match="of the client"):
        relay(database_url, Broken()).run()


def test_a_new_relay_at_the_head_publishes_what_comes_after(
    database_url: str, connection: Connection
) -> None:
    broker = Broker()
    post(connection, posting("before"))
    published(database_url, broker, at_head=True)
    post(connection, posting("after"))
    published(database_url, broker, at_head=True)
    assert broker.ids == ["after"]


def test_a_relay_at_the_head_waits_for_who_writes_at_the_moment(
    database_url: str, connection: Connection
) -> None:
    broker = Broker()
    with psycopg.connect(database_url) as late:
        begin(late)
        outbox.write(late, [posting("late")])
        post(connection, posting("before"))
        made = relay(database_url, broker, at_head=True)
        with running(made):
            time.sleep(0.2)
            assert count(connection, "relays") == 0
            late.commit()
            until(lambda: len(held_by(connection)) == 1)
            post(connection, posting("after"))
            until(lambda: broker.ids == ["after"])


def test_once_ends_when_what_was_there_is_out(database_url: str, connection: Connection) -> None:
    broker = Broker()
    broker.hold.clear()
    post(connection, posting("a"), posting("b"))
    made = relay(database_url, broker, once=True)
    thread = threading.Thread(target=made.run)
    thread.start()
    assert broker.asked.wait(10)
    post(connection, posting("c"))
    broker.hold.set()
    thread.join(20)
    assert not thread.is_alive()
    assert broker.ids[:2] == ["a", "b"]


def test_once_waits_for_what_others_have_in_hand(database_url: str, connection: Connection) -> None:
    broker = Broker()
    broker.hold.clear()
    post(connection, *(posting(f"{key}1", key) for key in "abcdefgh"))
    with running(relay(database_url, broker, segments=1)):
        assert broker.asked.wait(10)
        second = relay(database_url, broker, once=True)
        thread = threading.Thread(target=second.run)
        thread.start()
        time.sleep(0.5)
        assert thread.is_alive()
        broker.hold.set()
        thread.join(20)
        assert not thread.is_alive()
    assert sorted(broker.ids) == [f"{key}1" for key in "abcdefgh"]


def test_once_gives_up_where_others_do_not_go_on(database_url: str, connection: Connection) -> None:
    broker = Broker()
    published(database_url, broker)
    post(connection, posting("a"))
    connection.execute(
        "UPDATE onefold.relays SET owner = 'other', expires_at = clock_timestamp() + interval '1 minute'"
    )
    with pytest.raises(RelayBusy, match="in the hands of other processes"):
        published(database_url, broker)


def test_a_relay_is_told_to_stop_and_notes_what_is_under_way(
    database_url: str, connection: Connection
) -> None:
    broker = Broker()
    broker.hold.clear()
    post(connection, *(posting(f"m{number}") for number in range(5)))
    made = relay(database_url, broker, segments=1)
    with running(made):
        assert broker.asked.wait(10)
        made.stop()
        broker.hold.set()
    assert (made.published, position(connection)) == (5, 5)
    assert held_by(connection) == {}


def test_a_relay_is_what_it_was_begun_as(database_url: str, connection: Connection) -> None:
    broker = Broker()
    published(database_url, broker, segments=2)
    published(database_url, broker)
    with pytest.raises(RelayChanged, match="expected relay news with 2 segments, as it was begun, found 3"):
        published(database_url, broker, segments=3)
    with pytest.raises(RelayChanged, match=r"publish channel news from the outbox.*found channel other"):
        Relay(database_url, "other", "file:nowhere", name=CHANNEL, publisher=broker).run()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": "A-b"}, "'A-b' must be lower-case"),
        ({"segments": 65}, "expected 1 to 64 segments, found 65"),
        ({"batch": 0}, "expected a batch of 1 message or more, found 0"),
        ({"lease": 0.5}, "expected a lease of 1 second or more, found 0.5"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, object], says: str) -> None:
    with pytest.raises(DeclarationError, match=says):
        relay("", Broker(), **options)


def test_nothing_that_is_in_a_message_is_logged(
    database_url: str, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    post(connection, posting("secret-1"), posting("secret-2"))
    broker = Broker()
    broker.loses = 1
    broker.refused = {"secret-2"}
    published(database_url, broker)
    assert '{"name"' not in caplog.text

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from onefold.infrastructure.brokers import (
    BadBrokerURL,
    BrokerLost,
    BrokerMisconfigured,
    Delivery,
    Outgoing,
    Subscription,
    publisher,
    rabbitmq,
    subscribe,
)
from onefold.infrastructure.brokers.rabbitmq_queue import declared, refused

from ...services.fixtures import ThroughProxy, UniqueName

QUORUM = {"x-queue-type": "quorum", "x-dead-letter-exchange": "amq.fanout", "x-delivery-limit": 20}
SOON = 15.0

Declare = Callable[..., str]
Open = Callable[..., Subscription]


@pytest.fixture
def connection(rabbitmq_url: str) -> Iterator[pika.BlockingConnection]:
    opened = pika.BlockingConnection(pika.URLParameters(rabbitmq_url))
    yield opened
    if opened.is_open:
        opened.close()


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    return connection.channel()


@pytest.fixture
def declare(channel: BlockingChannel, unique_name: UniqueName) -> Iterator[Declare]:
    """Declares a queue of a new name with these arguments, those of QUORUM if there are none; gives the name."""
    names: list[str] = []

    def make(arguments: dict[str, Any] | None = None, **more: Any) -> str:
        names.append(unique_name())
        options = {"durable": True} | more
        channel.queue_declare(names[-1], arguments=QUORUM if arguments is None else arguments, **options)
        return names[-1]

    yield make
    channel.connection.process_data_events()
    for name in names:
        channel.queue_delete(name)


@pytest.fixture
def subscribed(rabbitmq_url: str) -> Iterator[Open]:
    """Subscribes to a queue, with options for the URL."""
    opened: list[Subscription] = []

    def open_one(queue: str, options: str = "", server: str = rabbitmq_url) -> Subscription:
        opened.append(subscribe(f"{server}?queue={queue}{options}", "test"))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def fill(channel: BlockingChannel, queue: str, count: int) -> None:
    for number in range(count):
        channel.basic_publish("", queue, str(number).encode(), pika.BasicProperties(delivery_mode=2))


def take(subscription: Subscription, count: int, *, quiet: float = 0.0) -> list[Delivery]:
    found: list[Delivery] = []
    end = time.monotonic() + SOON
    while len(found) < count and time.monotonic() < end:
        found.extend(subscription.receive(count, 0.2))
    if quiet:
        found.extend(subscription.receive(100, quiet))
    return found


def bodies(deliveries: list[Delivery]) -> list[bytes]:
    return [delivery.body for delivery in deliveries]


class TestWhatAQueueIsDeclaredWith:
    def test_every_argument_is_learned_and_nothing_is_changed(
        self, connection: pika.BlockingConnection, declare: Declare
    ) -> None:
        arguments = {
            **QUORUM,
            "x-dead-letter-strategy": "at-least-once",
            "x-dead-letter-routing-key": "it's 'quoted' of type 'longstr'",
            "x-max-length": 1000,
            "x-message-ttl": 60_000,
            "x-overflow": "reject-publish",
            "x-single-active-consumer": True,
        }
        queue = declare(arguments)
        assert declared(connection, queue) == arguments
        assert declared(connection, declare({"x-queue-type": "quorum"})) == {"x-queue-type": "quorum"}
        assert declared(connection, declare({})) == {}
        assert declared(connection, declare({"x-queue-type": "stream"})) == {"x-queue-type": "stream"}

    def test_the_client_does_not_warn_of_what_is_asked_for(
        self, connection: pika.BlockingConnection, declare: Declare, caplog: pytest.LogCaptureFixture
    ) -> None:
        declared(connection, declare())
        assert not caplog.records

    def test_a_queue_that_is_missing_is_not_made(
        self, connection: pika.BlockingConnection, unique_name: UniqueName
    ) -> None:
        for _ in range(2):
            with pytest.raises(BrokerMisconfigured, match="declare it durable with x-queue-type=quorum"):
                declared(connection, unique_name())

    def test_a_queue_that_is_lost_at_a_restart_is_refused(
        self, connection: pika.BlockingConnection, declare: Declare
    ) -> None:
        with pytest.raises(BrokerMisconfigured, match="durable"):
            declared(connection, declare({}, durable=False, auto_delete=True))

    def test_what_passes_by_itself_is_lost_and_what_does_not_is_misconfigured(self) -> None:
        def closed(code: int, text: str) -> pika.exceptions.ChannelClosedByBroker:
            return pika.exceptions.ChannelClosedByBroker(code, text)

        assert isinstance(refused("q", closed(403, "ACCESS_REFUSED")), BrokerMisconfigured)
        assert isinstance(refused("q", closed(405, "RESOURCE_LOCKED")), BrokerMisconfigured)
        assert isinstance(
            refused("q", closed(404, "NOT_FOUND - home node 'a@b' of durable queue 'q' is down")), BrokerLost
        )
        assert isinstance(refused("q", closed(406, "PRECONDITION_FAILED - delivery timed out")), BrokerLost)


class TestChecksAtTheStart:
    """C61."""

    @pytest.mark.parametrize("kind", ["classic", "stream"])
    def test_a_queue_of_another_kind_is_refused(self, declare: Declare, subscribed: Open, kind: str) -> None:
        with pytest.raises(BrokerMisconfigured, match=f"quorum queue, found type {kind}"):
            subscribed(declare({"x-queue-type": kind}))

    def test_a_queue_without_a_dead_letter_exchange_is_refused(
        self, declare: Declare, subscribed: Open
    ) -> None:
        queue = declare({"x-queue-type": "quorum", "x-delivery-limit": 20})
        with pytest.raises(BrokerMisconfigured, match=r"found none \(x-delivery-limit: 20\)"):
            subscribed(queue)
        assert subscribed(queue, "&dead_letter=off").receive(1, 0) == []

    def test_a_dead_letter_exchange_that_is_missing_is_refused(
        self, declare: Declare, subscribed: Open
    ) -> None:
        queue = declare(QUORUM | {"x-dead-letter-exchange": "nowhere"})
        with pytest.raises(BrokerMisconfigured, match="'nowhere'"):
            subscribed(queue)

    def test_dead_letters_may_not_return_to_where_they_are_dropped(
        self, declare: Declare, subscribed: Open
    ) -> None:
        with pytest.raises(BrokerMisconfigured, match="x-dead-letter-routing-key"):
            subscribed(declare(QUORUM | {"x-dead-letter-exchange": ""}))
        to = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "missing"}
        with pytest.raises(BrokerMisconfigured, match="'missing'"):
            subscribed(declare(QUORUM | to))
        subscribed(declare(QUORUM | to | {"x-dead-letter-routing-key": declare()}))

    def test_one_active_consumer_is_asked_for_with_order(self, declare: Declare, subscribed: Open) -> None:
        with pytest.raises(BrokerMisconfigured, match="x-single-active-consumer=true"):
            subscribed(declare(), "&order=single")

    def test_a_low_delivery_limit_is_warned_of(
        self, declare: Declare, subscribed: Open, caplog: pytest.LogCaptureFixture
    ) -> None:
        subscribed(declare(QUORUM | {"x-delivery-limit": 3}))
        assert "x-delivery-limit is 3" in caplog.text

    def test_a_passive_start_checks_the_name_only_and_says_so(
        self, declare: Declare, subscribed: Open, caplog: pytest.LogCaptureFixture
    ) -> None:
        subscribed(declare({}), "&passive=on")
        assert "not checked" in caplog.text
        with pytest.raises(BrokerMisconfigured, match="missing"):
            subscribed("missing", "&passive=on")

    def test_the_time_to_live_is_the_retention(self, declare: Declare, subscribed: Open) -> None:
        assert subscribed(declare(QUORUM | {"x-message-ttl": 90_000})).retention() == 90.0
        assert subscribed(declare()).retention() is None

    def test_a_wrong_password_or_virtual_host_is_misconfigured(self, rabbitmq_url: str) -> None:
        with pytest.raises(BrokerMisconfigured, match="check user, password") as caught:
            subscribe(f"{rabbitmq_url.replace('guest:guest', 'guest:secret')}?queue=q", "test")
        assert "secret" not in str(caught.value)
        with pytest.raises(BrokerMisconfigured, match="'elsewhere'"):
            subscribe(f"{rabbitmq_url.rpartition('/')[0]}/elsewhere?queue=q", "test")


@pytest.mark.parametrize(
    "rest",
    [
        "host/?prefetch=3", "host/?queue=", "host/?queue=q&prefetch=0", "host/?queue=q&prefetch=1.5",
        "host/?queue=q&prefetch=65536", "host/?queue=q&order=all", "host/?queue=q&passive=maybe",
        "host/?queue=q&order=single&passive=on", "host/?queue=q&other=1", "host/a/b?queue=q", "/?queue=q",
        "host:port/?queue=q", "host/?queue=q&ca=file", "host/?queue=q&heartbeat=0", "host/?queue=q#part",
    ],
)  # fmt: skip
def test_urls_that_cannot_be_used_are_refused(rest: str) -> None:
    with pytest.raises(BadBrokerURL):
        subscribe(f"amqp://{rest}", "test")


def test_certificates_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(BadBrokerURL, match="ca"):
        subscribe("amqps://host/?queue=q&ca=/missing.pem", "test")


class TestReceiving:
    def test_prefetch_bounds_what_is_taken(
        self, channel: BlockingChannel, declare: Declare, subscribed: Open
    ) -> None:
        queue = declare()
        fill(channel, queue, 30)
        subscription = subscribed(queue, "&prefetch=5")
        found = take(subscription, 5, quiet=0.5)
        assert bodies(found) == [b"0", b"1", b"2", b"3", b"4"]
        subscription.acknowledge(found[:2])
        assert bodies(take(subscription, 2, quiet=0.5)) == [b"5", b"6"]

    def test_a_full_buffer_takes_no_more_than_the_prefetch(
        self, channel: BlockingChannel, declare: Declare, subscribed: Open
    ) -> None:
        queue = declare()
        fill(channel, queue, 30)
        subscription = subscribed(queue, "&prefetch=5")
        for _ in range(5):
            assert subscription.receive(0, 0.1) == []
        assert channel.queue_declare(queue, passive=True).method.message_count == 25
        assert subscription.backlog() == 30

    def test_heartbeats_go_on_while_the_buffer_is_full(
        self, channel: BlockingChannel, declare: Declare, subscribed: Open
    ) -> None:
        queue = declare()
        fill(channel, queue, 2)
        subscription = subscribed(queue, "&heartbeat=1")
        found = take(subscription, 2)
        end = time.monotonic() + 5
        while time.monotonic() < end:
            subscription.receive(0, 0.5)
        subscription.acknowledge(found)
        subscription.receive(0, 0.1)
        assert channel.queue_declare(queue, passive=True).method.message_count == 0

    def test_a_broker_that_falls_silent_is_lost(
        self, through_proxy: ThroughProxy, declare: Declare, subscribed: Open
    ) -> None:
        wire = through_proxy("rabbitmq")
        subscription = subscribed(declare(), "&heartbeat=1", wire.url)
        wire.proxy.freeze()
        with pytest.raises(BrokerLost):
            take(subscription, 1)
        wire.proxy.thaw()

    def test_what_is_acknowledged_out_of_turn_is_done_and_nothing_else(
        self, channel: BlockingChannel, declare: Declare, subscribed: Open
    ) -> None:
        queue = declare()
        fill(channel, queue, 10)
        first = subscribed(queue)
        found = take(first, 10)
        first.acknowledge([found[0], found[1], found[4], found[9]])
        first.acknowledge([found[2], found[5]])
        first.close()
        assert bodies(take(subscribed(queue), 4, quiet=0.5)) == [b"3", b"6", b"7", b"8"]

    def test_deliveries_of_a_lost_subscription_do_not_stand_for_those_of_the_next(
        self, channel: BlockingChannel, declare: Declare, subscribed: Open
    ) -> None:
        queue = declare()
        fill(channel, queue, 3)
        first = subscribed(queue)
        old = take(first, 3)
        first.close()
        second = subscribed(queue)
        assert len(take(second, 3)) == 3
        second.acknowledge(old)
        second.give_back(old)
        second.give_back(old, 0.1)
        assert take(second, 0, quiet=0.4) == []
        second.close()
        assert len(take(subscribed(queue), 3, quiet=0.5)) == 3

    def test_one_active_consumer_at_a_time(
        self, channel: BlockingChannel, declare: Declare, subscribed: Open
    ) -> None:
        queue = declare(QUORUM | {"x-single-active-consumer": True})
        first, second = subscribed(queue, "&order=single"), subscribed(queue, "&order=single")
        fill(channel, queue, 4)
        assert len(take(first, 4)) == 4
        assert second.receive(10, 0.3) == []
        first.close()
        assert bodies(take(second, 4)) == [b"0", b"1", b"2", b"3"]


class TestGivingBack:
    def test_a_delay_is_held_here_in_order_and_does_not_count(
        self, channel: BlockingChannel, declare: Declare, subscribed: Open
    ) -> None:
        queue = declare(QUORUM | {"x-delivery-limit": 1})
        fill(channel, queue, 4)
        subscription = subscribed(queue)
        found = take(subscription, 4)
        for _ in range(5):
            began = time.monotonic()
            subscription.give_back([found[2], found[0]], 0.3)
            back = take(subscription, 2)
            assert time.monotonic() - began >= 0.3
            assert bodies(back) == [b"0", b"2"]
            assert [delivery.attempt for delivery in back] == [1, 1]
        subscription.acknowledge(found)
        assert subscription.receive(10, 0.3) == []

    def test_what_is_held_or_given_back_returns_when_the_subscription_ends(
        self, channel: BlockingChannel, declare: Declare, subscribed: Open
    ) -> None:
        queue = declare()
        fill(channel, queue, 3)
        first = subscribed(queue)
        found = take(first, 3)
        first.give_back(found[:1], 60)
        first.give_back(found[1:2])
        first.close()
        assert sorted(bodies(take(subscribed(queue), 3))) == [b"0", b"1", b"2"]

    def test_what_is_held_for_long_returns_to_the_queue_before_the_broker_gives_up(
        self, channel: BlockingChannel, declare: Declare, subscribed: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rabbitmq, "_OLDEST_HELD", 0.2)
        queue = declare()
        fill(channel, queue, 1)
        subscription = subscribed(queue)
        found = take(subscription, 1)
        subscription.give_back(found, 3600)
        [back] = take(subscription, 1)
        assert (back.body, back.attempt) == (b"0", 2)

    def test_past_the_delivery_limit_the_broker_dead_letters(
        self, channel: BlockingChannel, declare: Declare, subscribed: Open
    ) -> None:
        dead = declare()
        queue = declare(
            QUORUM | {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead, "x-delivery-limit": 2}
        )
        fill(channel, queue, 1)
        subscription = subscribed(queue)
        for attempt in (1, 2, 3):
            [found] = take(subscription, 1)
            assert found.attempt == attempt
            subscription.give_back([found])
        [letter] = take(subscribed(dead), 1)
        assert letter.body == b"0"
        assert "delivery_limit" in letter.headers["x-death"]


class TestLosing:
    def test_a_queue_that_is_deleted_is_lost_and_then_missing(
        self, channel: BlockingChannel, declare: Declare, subscribed: Open
    ) -> None:
        queue = declare()
        subscription = subscribed(queue)
        channel.queue_delete(queue)
        with pytest.raises(BrokerLost, match="cancelled by the broker"):
            take(subscription, 1)
        subscription.close()
        with pytest.raises(BrokerMisconfigured, match=queue):
            subscribed(queue)

    def test_a_channel_that_the_broker_ends_is_lost_and_says_why(
        self, channel: BlockingChannel, declare: Declare, subscribed: Open
    ) -> None:
        queue = declare()
        fill(channel, queue, 1)
        subscription: Any = subscribed(queue)
        found = take(subscription, 1)
        # The same as the broker does when its consumer_timeout is over.
        subscription._channel.basic_ack(4711)
        with pytest.raises(BrokerLost, match="unknown delivery tag"):
            take(subscription, 1)
        with pytest.raises(BrokerLost):
            subscription.acknowledge(found)
        subscription.close()
        assert bodies(take(subscribed(queue), 1)) == [b"0"]

    def test_a_lost_connection_says_so_at_every_call(
        self, through_proxy: ThroughProxy, channel: BlockingChannel, declare: Declare, subscribed: Open
    ) -> None:
        wire = through_proxy("rabbitmq")
        queue = declare()
        fill(channel, queue, 2)
        subscription = subscribed(queue, server=wire.url)
        found = take(subscription, 2)
        wire.proxy.cut()
        for act in (
            lambda: take(subscription, 1),
            lambda: subscription.receive(0, 0),
            lambda: subscription.acknowledge(found[:1]),
            lambda: subscription.give_back(found[1:]),
            subscription.backlog,
        ):
            with pytest.raises(BrokerLost):
                act()
        subscription.close()


class TestDeliveries:
    def test_properties_and_tables_become_headers_of_text(
        self, channel: BlockingChannel, declare: Declare, subscribed: Open
    ) -> None:
        queue = declare()
        moment = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
        table = {
            "cloudEvents:ID": "é🎉",
            "yes": True,
            "count": -5,
            "big": 2**40,
            "amount": Decimal("24.9"),
            "at": moment.replace(tzinfo=None),
            "raw": b"\xff\x00",
            "nothing": None,
            "nested": {"a": [1, True, None, "x", Decimal("1.5")], "at": moment.replace(tzinfo=None)},
        }
        properties = pika.BasicProperties(
            content_type="application/json",
            content_encoding="identity",
            correlation_id="c-1",
            message_id="m-1",
            app_id="shop",
            type="order.placed",
            reply_to="answers",
            timestamp=1_700_000_000,
            headers=table,
        )
        channel.basic_publish("", queue, b"{}", properties)
        [found] = take(subscribed(queue), 1)
        assert found.headers == {
            "cloudevents:id": "é🎉",
            "yes": "true",
            "count": "-5",
            "big": "1099511627776",
            "amount": "24.9",
            "at": "2026-03-01T12:30:00Z",
            "raw": "/wA=",
            "nested": '{"a": [1, true, null, "x", "1.5"], "at": "2026-03-01T12:30:00Z"}',
            "content-type": "application/json",
            "content-encoding": "identity",
            "amqp-correlation-id": "c-1",
            "amqp-message-id": "m-1",
            "amqp-app-id": "shop",
            "amqp-type": "order.placed",
            "amqp-reply-to": "answers",
        }
        assert found.place == f"{queue}@m-1"
        assert found.published_at == datetime.fromtimestamp(1_700_000_000, UTC)

    def test_a_bare_message_has_no_headers_and_no_time(
        self, channel: BlockingChannel, declare: Declare, subscribed: Open
    ) -> None:
        queue = declare()
        channel.basic_publish("", queue, b"x")
        [found] = take(subscribed(queue), 1)
        assert (found.headers, found.key, found.published_at, found.attempt) == ({}, None, None, 1)
        assert found.place == f"{queue}#1"

    @pytest.mark.parametrize(
        ("headers", "timestamp", "expected"),
        [
            ({"timestamp_in_ms": 1_700_000_000_123}, 1, datetime.fromtimestamp(1_700_000_000.123, UTC)),
            ({}, 1_700_000_000_123, datetime.fromtimestamp(1_700_000_000.123, UTC)),
            ({"timestamp_in_ms": "soon"}, 10, datetime.fromtimestamp(10, UTC)),
            ({}, 2**63, None),
        ],
    )
    def test_the_time_is_the_brokers_in_milliseconds_or_the_producers(
        self,
        channel: BlockingChannel,
        declare: Declare,
        subscribed: Open,
        headers: dict[str, Any],
        timestamp: int,
        expected: datetime | None,
    ) -> None:
        queue = declare()
        channel.basic_publish("", queue, b"x", pika.BasicProperties(headers=headers, timestamp=timestamp))
        [found] = take(subscribed(queue), 1)
        assert found.published_at == expected


class TestPublishing:
    def test_properties_survive_and_messages_are_persistent(
        self, rabbitmq_url: str, channel: BlockingChannel, declare: Declare
    ) -> None:
        queue = declare()
        out = publisher(f"{rabbitmq_url}?queue={queue}&prefetch=10&order=single")
        out.publish([Outgoing(b"x", {"content-type": "a/b", "amqp-message-id": "7", "h": "v"}, "k")])
        out.close()
        out.close()
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        assert method is not None
        assert properties is not None
        assert (body, properties.content_type, properties.message_id, properties.delivery_mode) == (
            b"x", "a/b", "7", 2,
        )  # fmt: skip
        assert {"h": "v", "onefold-key": "k"}.items() <= properties.headers.items()
        with pytest.raises(BrokerLost, match="closed"):
            out.publish([Outgoing(b"x")])

    def test_an_exchange_and_a_routing_key(
        self, rabbitmq_url: str, channel: BlockingChannel, declare: Declare, unique_name: UniqueName
    ) -> None:
        queue, key = declare(), unique_name()
        channel.queue_bind(queue, "amq.topic", key)
        out = publisher(f"{rabbitmq_url}?exchange=amq.topic&routing_key={key}")
        out.publish([Outgoing(b"routed")])
        out.close()
        assert channel.basic_get(queue, auto_ack=True)[2] == b"routed"

    @pytest.mark.parametrize("where", ["queue=missing", "exchange=amq.topic&routing_key=missing"])
    def test_what_reaches_no_queue_is_an_error(self, rabbitmq_url: str, where: str) -> None:
        out = publisher(f"{rabbitmq_url}?{where}")
        with pytest.raises(BrokerMisconfigured, match="unroutable"):
            out.publish([Outgoing(b"x")])
        out.close()

    def test_an_exchange_that_is_missing_is_an_error(self, rabbitmq_url: str) -> None:
        out = publisher(f"{rabbitmq_url}?exchange=missing")
        with pytest.raises(BrokerMisconfigured, match="missing"):
            out.publish([Outgoing(b"x")])
        out.close()

    @pytest.mark.parametrize(
        "headers", [{"content-type": "x" * 256}, {"n" * 256: "x"}, {"é" * 128: "x"}, {"large": "x" * 131_000}]
    )
    def test_what_amqp_cannot_carry_is_refused_and_what_follows_it_in_its_key_waits(
        self, rabbitmq_url: str, channel: BlockingChannel, declare: Declare, headers: dict[str, str]
    ) -> None:
        queue = declare()
        out = publisher(f"{rabbitmq_url}?queue={queue}")
        bad = Outgoing(b"2", headers, "k")
        refused = out.publish(
            [Outgoing(b"1", {}, "k"), bad, Outgoing(b"3", {}, "k"), Outgoing(b"4", {}, "l")]
        )
        assert list(refused) == [1]
        assert "bytes" in refused[1]
        out.close()
        taken = [channel.basic_get(queue, auto_ack=True)[2] for _ in range(3)]
        assert taken == [b"1", b"4", None]

    def test_the_largest_size_is_learned_of_the_broker(
        self, rabbitmq_url: str, channel: BlockingChannel, declare: Declare
    ) -> None:
        queue = declare()
        out = publisher(f"{rabbitmq_url}?queue={queue}")
        large = Outgoing(bytes(2**24 + 1), {}, "k")
        refused = out.publish(
            [Outgoing(b"1", {}, "k"), large, Outgoing(b"3", {}, "k"), Outgoing(b"4", {}, "l")]
        )
        assert list(refused) == [1]
        assert "16,777,216" in refused[1]
        assert list(out.publish([large, Outgoing(b"5")])) == [0]
        out.close()
        taken = []
        while (body := channel.basic_get(queue, auto_ack=True)[2]) is not None:
            taken.append(body)
        assert list(dict.fromkeys(taken)) == [b"1", b"4", b"5"]

    def test_many_are_under_way_at_once(
        self, rabbitmq_url: str, channel: BlockingChannel, declare: Declare
    ) -> None:
        queue = declare()
        out = publisher(f"{rabbitmq_url}?queue={queue}")
        bodies = [b"%d" % number for number in range(3000)]
        out.publish([Outgoing(body) for body in bodies])
        out.close()
        assert [channel.basic_get(queue, auto_ack=True)[2] for _ in bodies] == bodies

    def test_a_full_queue_is_an_error_that_passes(self, rabbitmq_url: str, declare: Declare) -> None:
        queue = declare(QUORUM | {"x-max-length": 1, "x-overflow": "reject-publish"})
        out = publisher(f"{rabbitmq_url}?queue={queue}")

        # That it is full, the queue says a moment later.
        def fill() -> None:
            for _ in range(100):
                out.publish([Outgoing(b"x")] * 10)

        with pytest.raises(BrokerLost, match="refused by the broker"):
            fill()
        out.close()

    def test_a_connection_that_ended_meanwhile_is_made_again(
        self, through_proxy: ThroughProxy, channel: BlockingChannel, declare: Declare
    ) -> None:
        wire = through_proxy("rabbitmq")
        queue = declare()
        out = publisher(f"{wire.url}?queue={queue}")
        out.publish([Outgoing(b"1")])
        wire.proxy.cut()
        with pytest.raises(BrokerLost):
            out.publish([Outgoing(b"2")])
        wire.proxy.mend()
        out.publish([Outgoing(b"3")])
        out.close()
        assert [channel.basic_get(queue, auto_ack=True)[2] for _ in range(2)] == [b"1", b"3"]

    @pytest.mark.parametrize(
        "query", ["", "queue=q&exchange=e", "queue=q&routing_key=k", "routing_key=k", "queue=q&other=1"]
    )
    def test_urls_that_cannot_be_used_are_refused(self, query: str) -> None:
        with pytest.raises(BadBrokerURL):
            publisher(f"amqp://host/?{query}")


@pytest.fixture(autouse=True)
def warnings_only(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

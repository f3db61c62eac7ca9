"""Pub/Sub (C63), against the emulator or its stand-in; what neither does, against a server that answers by a script.

Where the emulator (0.8.20) is not like Pub/Sub:

- what follows a message that was given back does not come again by itself, but after its own lease, and what was given
  back in several calls comes in the order of the calls: the adapter gives back a message and its followers in one call;
- a follower that was acknowledged before delays the message until the lease of the follower is over, and comes first
  then: consumers know it for a duplicate, and have their own guard of the sequence;
- there is no exactly-once delivery, in which each acknowledgement may fail for itself.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.empty_pb2 import Empty
from google.pubsub_v1 import types
from google.pubsub_v1.services.publisher import PublisherClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from onefold.infrastructure.brokers import (
    BadBrokerURL,
    BrokerLost,
    BrokerMisconfigured,
    Delivery,
    Outgoing,
    Publisher,
    Subscription,
    publisher,
    subscribe,
)

PROJECT = "tests"
MODULE = "onefold.infrastructure.brokers.pubsub"
SOON = 20.0


class Topic:
    """A topic and a subscription of a test's own, and what was opened of them."""

    def __init__(self, address: str, name: str, settings: dict[str, Any]) -> None:
        self.address = address
        self.name = name
        self.path = f"projects/{PROJECT}/topics/{name}"
        self.channel = grpc.insecure_channel(address)
        self.topics: Any = PublisherClient(transport=PublisherGrpcTransport(channel=self.channel))
        self.subscriptions: Any = SubscriberClient(transport=SubscriberGrpcTransport(channel=self.channel))
        self.topics.create_topic(name=self.path)
        self.subscriptions.create_subscription(
            request={
                "name": f"projects/{PROJECT}/subscriptions/{name}",
                "topic": self.path,
                "enable_message_ordering": True,
                **settings,
            }
        )
        self.opened: list[Subscription | Publisher] = []

    def subscribe(self, **options: Any) -> Any:
        more = "".join(f"&{name}={value}" for name, value in options.items())
        opened = subscribe(f"pubsub://{PROJECT}/{self.name}?endpoint={self.address}{more}", "test")
        self.opened.append(opened)
        return opened

    def publish(self, *messages: Outgoing) -> None:
        opened = publisher(f"pubsub://{PROJECT}/{self.name}?endpoint={self.address}")
        self.opened.append(opened)
        opened.publish(messages)

    def close(self) -> None:
        for opened in self.opened:
            opened.close()
        self.channel.close()


@pytest.fixture
def make(pubsub_emulator: str, unique_name: Callable[[], str]) -> Iterator[Callable[..., Topic]]:
    made: list[Topic] = []

    def new(**settings: Any) -> Topic:
        made.append(Topic(pubsub_emulator, unique_name(), settings))
        return made[-1]

    yield new
    for topic in made:
        topic.close()


def numbered(*numbers: int, key: str | None = "k") -> list[Outgoing]:
    return [Outgoing(str(number).encode(), {}, key) for number in numbers]


def bodies(deliveries: Sequence[Delivery]) -> list[bytes]:
    return [delivery.body for delivery in deliveries]


def drain(subscription: Subscription, count: int, *, limit: int = 1000) -> list[Delivery]:
    found: list[Delivery] = []
    end = time.monotonic() + SOON
    while len(found) < count and time.monotonic() < end:
        found.extend(subscription.receive(limit, 0.2))
    return found


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# Receiving


def test_a_delivery_tells_what_pubsub_knows_of_it(make: Callable[..., Topic]) -> None:
    topic = make()
    before = datetime.now(UTC)
    topic.publish(Outgoing(b"\x00\xff", {"Tenant": "Łódź"}, "order/1"), Outgoing(b"2"))
    first, second = sorted(drain(topic.subscribe(), 2), key=lambda delivery: delivery.body)
    assert (first.body, first.headers, first.key, first.attempt) == (
        b"\x00\xff",
        {"tenant": "Łódź"},
        "order/1",
        None,
    )
    assert first.published_at is not None
    assert abs(first.published_at - before) < timedelta(seconds=20)
    assert first.place.startswith(f"{topic.name}@")
    assert (second.body, second.key) == (b"2", None)


def test_what_is_given_back_comes_again_with_its_followers_in_order(make: Callable[..., Topic]) -> None:
    """C63."""
    topic = make()
    topic.publish(*numbered(1, 2, 3), *numbered(10, 11, key="other"), *numbered(4))
    subscription = topic.subscribe()
    found = {delivery.body: delivery for delivery in drain(subscription, 6)}
    subscription.acknowledge([found[b"1"], found[b"10"]])
    subscription.give_back([found[b"2"]])
    subscription.extend([found[b"3"], found[b"4"], found[b"11"]])
    again = drain(subscription, 3)
    assert bodies(again) == [b"2", b"3", b"4"]
    subscription.acknowledge([*again, found[b"11"]])
    assert subscription.receive(10, 0.5) == []


def test_what_is_given_back_in_any_order_comes_again_in_order(make: Callable[..., Topic]) -> None:
    topic = make()
    topic.publish(*numbered(1, 2, 3, 4))
    subscription = topic.subscribe()
    found = drain(subscription, 4)
    subscription.give_back(found[::-1])
    again = drain(subscription, 4)
    assert bodies(again) == [b"1", b"2", b"3", b"4"]
    subscription.acknowledge(again)


def test_followers_that_wait_for_a_caller_with_room_are_given_back_too(make: Callable[..., Topic]) -> None:
    topic = make()
    subscription = topic.subscribe()
    assert subscription.receive(3, 0.001) == []
    topic.publish(*numbered(1, 2, 3))
    time.sleep(0.5)
    [first] = drain(subscription, 1, limit=1)
    subscription.give_back([first])
    again = drain(subscription, 3)
    assert bodies(again) == [b"1", b"2", b"3"]
    subscription.acknowledge(again)
    assert subscription.receive(10, 0.5) == []


def test_a_pull_under_way_is_not_lost_between_calls(make: Callable[..., Topic]) -> None:
    """A client that ends its pulls early leaves messages with a server that has just sent them."""
    topic = make(ack_deadline_seconds=600)
    subscription = topic.subscribe()
    thread = threading.Thread(
        target=lambda: [topic.publish(*numbered(number)) or time.sleep(0.01) for number in range(40)]
    )
    thread.start()
    found: list[bytes] = []
    end = time.monotonic() + SOON
    while len(found) < 40 and time.monotonic() < end:
        some = subscription.receive(3, 0.003)
        assert len(some) <= 3
        subscription.acknowledge(some)
        found += bodies(some)
    thread.join()
    assert found == [str(number).encode() for number in range(40)]


def test_what_waits_for_a_caller_with_room_keeps_its_lease(make: Callable[..., Topic]) -> None:
    topic = make()
    subscription = topic.subscribe(lease=2)
    assert subscription.receive(10, 0.01) == []
    topic.publish(*numbered(1, 2, 3, key=None))
    end = time.monotonic() + 4.5
    while time.monotonic() < end:
        assert subscription.receive(0, 0.1) == []
    first = subscription.receive(2, 0.1)
    second = subscription.receive(2, 0.1)
    assert sorted(bodies([*first, *second])) == [b"1", b"2", b"3"]
    subscription.acknowledge([*first, *second])
    assert subscription.receive(10, 0.5) == []


def test_an_idle_pull_begins_anew(make: Callable[..., Topic], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{MODULE}._PULL_SECONDS", 0.2)
    topic = make()
    subscription = topic.subscribe()
    assert subscription.receive(10, 0.7) == []
    topic.publish(*numbered(1))
    assert bodies(drain(subscription, 1)) == [b"1"]


def test_attempts_are_told_where_there_is_a_dead_letter_topic(
    make: Callable[..., Topic], caplog: pytest.LogCaptureFixture
) -> None:
    policy = {"dead_letter_topic": make().path, "max_delivery_attempts": 7}
    topic = make(dead_letter_policy=policy)
    topic.publish(*numbered(1))
    with caplog.at_level(logging.INFO, "onefold"):
        subscription = topic.subscribe()
    assert "after about 7 deliveries" in caplog.text
    for attempt in (1, 2, 3):
        [found] = drain(subscription, 1)
        assert found.attempt == attempt
        subscription.give_back([found])


# Leases


def test_the_lease_is_the_subscription_s_or_the_url_s(make: Callable[..., Topic]) -> None:
    topic = make(ack_deadline_seconds=77)
    assert topic.subscribe().lease == 77
    assert topic.subscribe(lease=30).lease == 30


def test_a_lease_from_the_url_holds_from_the_start(make: Callable[..., Topic]) -> None:
    topic = make(ack_deadline_seconds=10)
    topic.publish(*numbered(1))
    subscription = topic.subscribe(lease=1)
    drain(subscription, 1)
    began = time.monotonic()
    assert bodies(drain(subscription, 1)) == [b"1"]
    assert time.monotonic() - began < 8


def test_a_message_is_extended_for_an_hour_and_then_let_go(
    make: Callable[..., Topic], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """C63."""
    topic = make()
    topic.publish(*numbered(1))
    subscription = topic.subscribe(lease=2)
    held = drain(subscription, 1)
    for _ in range(3):
        time.sleep(1)
        subscription.extend(held)
        assert subscription.receive(1, 0.01) == []
    received = held[0].handle.received_at
    for seconds in (3598.5, 3599.5):
        monkeypatch.setattr(f"{MODULE}.monotonic", lambda seconds=seconds: received + seconds)
        subscription.extend(held)
    monkeypatch.undo()
    assert len(warnings(caplog)) == 1
    assert "nearly an hour" in warnings(caplog)[0]
    assert bodies(drain(subscription, 1)) == [b"1"]


def test_a_delay_is_at_most_ten_minutes(make: Callable[..., Topic]) -> None:
    topic = make()
    topic.publish(*numbered(1))
    subscription = topic.subscribe()
    subscription.give_back(drain(subscription, 1), delay=10_000)
    assert subscription.receive(1, 0.3) == []


def test_closing_gives_back_what_is_held_and_what_waits(make: Callable[..., Topic]) -> None:
    topic = make(ack_deadline_seconds=600)
    first = topic.subscribe()
    assert first.receive(3, 0.001) == []
    topic.publish(*numbered(1, 2, 3, key=None))
    time.sleep(0.5)
    assert len(drain(first, 1, limit=1)) == 1
    first.close()
    first.close()
    assert sorted(bodies(drain(topic.subscribe(), 3))) == [b"1", b"2", b"3"]
    with pytest.raises(BrokerLost, match="closed"):
        first.extend([])


# Publishing


def test_messages_of_many_keys_are_each_in_order(
    make: Callable[..., Topic], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{MODULE}._MOST", 7)
    topic = make()
    topic.publish(*(Outgoing(str(number).encode(), {}, f"k{number % 60}") for number in range(1800)))
    topic.publish(*numbered(*range(1800, 1820), key=None))
    subscription = topic.subscribe()
    found: list[Delivery] = []
    end = time.monotonic() + SOON
    while len(found) < 1820 and time.monotonic() < end:
        some = subscription.receive(1000, 0.2)
        subscription.acknowledge(some)
        found += some
    assert len(found) == 1820
    for key in range(60):
        mine = [int(delivery.body) for delivery in found if delivery.key == f"k{key}"]
        assert mine == list(range(key, 1800, 60))


def test_requests_stay_below_the_limit_in_bytes(make: Callable[..., Topic]) -> None:
    topic = make()
    topic.publish(*(Outgoing(bytes(4_000_000), {"n": str(number)}, "k") for number in range(3)))
    subscription = topic.subscribe()
    found: list[str] = []
    end = time.monotonic() + SOON
    while len(found) < 3 and time.monotonic() < end:
        some = subscription.receive(10, 0.2)
        subscription.acknowledge(some)
        found += [delivery.headers["n"] for delivery in some]
    assert found == ["0", "1", "2"]


def test_a_message_of_nothing_is_carried(make: Callable[..., Topic]) -> None:
    topic = make()
    topic.publish(Outgoing(b""))
    [found] = drain(topic.subscribe(), 1)
    assert (found.body, found.headers) == (b"", {})


def test_a_missing_topic_is_named(pubsub_emulator: str) -> None:
    out = publisher(f"pubsub://{PROJECT}/nothing?endpoint={pubsub_emulator}")
    with pytest.raises(
        BrokerMisconfigured, match="expected Pub/Sub topic projects/tests/topics/nothing, found none"
    ):
        out.publish(numbered(1, 2, 3, key=None))
    out.close()
    out.close()
    with pytest.raises(BrokerLost, match="closed"):
        out.publish(numbered(1))


# What can be asked


def test_retention_is_the_longer_one_of_subscription_and_topic(make: Callable[..., Topic]) -> None:
    assert make().subscribe().retention() == 7 * 86400
    assert make(message_retention_duration=timedelta(hours=1)).subscribe().retention() == 3600


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"push_config": {"push_endpoint": "https://example.com"}}, "it pushes"),
        ({"bigquery_config": {"table": "p.d.t"}}, "it writes to BigQuery"),
        ({"cloud_storage_config": {"bucket": "b"}}, "it writes to Cloud Storage"),
        ({"detached": True}, "it is detached"),
    ],
)
def test_a_subscription_that_cannot_be_pulled_is_refused(settings: dict[str, Any], found: str) -> None:
    with (
        scripted(
            {"GetSubscription": lambda _: types.Subscription(ack_deadline_seconds=10, **settings)}
        ) as url,
        pytest.raises(BrokerMisconfigured, match=found),
    ):
        subscribe(url, "test")


def test_a_deleted_topic_is_named(caplog: pytest.LogCaptureFixture) -> None:
    about = types.Subscription(
        topic="_deleted-topic_", ack_deadline_seconds=10, topic_message_retention_duration=timedelta(days=31)
    )
    with scripted({"GetSubscription": lambda _: about}) as url:
        subscription = subscribe(url, "test")
        assert "its topic was deleted" in warnings(caplog)[0]
        assert subscription.retention() == 31 * 86400
        subscription.close()


# What goes wrong

REQUESTS: dict[str, Any] = {
    "GetSubscription": types.GetSubscriptionRequest,
    "Pull": types.PullRequest,
    "Acknowledge": types.AcknowledgeRequest,
    "ModifyAckDeadline": types.ModifyAckDeadlineRequest,
    "Publish": types.PublishRequest,
}


class Refusal(Exception):
    """How a call ends that fails: its code, and what is said about each acknowledgement."""

    def __init__(self, code: int, **reasons: str) -> None:
        self.code = code
        self.reasons = reasons


@contextmanager
def scripted(script: dict[str, Callable[[Any], Any]]) -> Iterator[str]:
    """Serve calls by their names, and yield the URL of a subscription."""

    def handler(name: str) -> Any:
        def call(request: Any, context: grpc.ServicerContext) -> Any:
            try:
                return script[name](request)
            except Refusal as refusal:
                status = status_pb2.Status(code=refusal.code, message="no")
                if refusal.reasons:
                    status.details.add().Pack(
                        error_details_pb2.ErrorInfo(reason="r", metadata=refusal.reasons)
                    )
                context.abort_with_status(rpc_status.to_status(status))

        def written(answer: Any) -> bytes:
            data: bytes = (
                answer.SerializeToString() if isinstance(answer, Empty) else type(answer).serialize(answer)
            )
            return data

        return grpc.unary_unary_rpc_method_handler(call, REQUESTS[name].deserialize, written)

    with ThreadPoolExecutor(8) as pool:
        server = grpc.server(pool, options=[("grpc.max_receive_message_length", -1)])
        for service in ("Subscriber", "Publisher"):
            calls = {
                name: handler(name) for name in script if (name == "Publish") is (service == "Publisher")
            }
            server.add_generic_rpc_handlers(
                [grpc.method_handlers_generic_handler(f"google.pubsub.v1.{service}", calls)]
            )
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"pubsub://tests/scripted?endpoint=127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


def pulled(*numbers: int) -> types.PullResponse:
    return types.PullResponse(
        received_messages=[
            types.ReceivedMessage(ack_id=f"a{number}", message={"message_id": str(number), "data": b"x"})
            for number in numbers
        ]
    )


def test_acknowledgements_of_exactly_once_delivery_may_fail_one_by_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What fails for now is acknowledged again; what fails for good comes again, and is no error."""
    asked: list[list[str]] = []

    def acknowledge(request: Any) -> Empty:
        asked.append(list(request.ack_ids))
        if len(asked) == 1:
            raise Refusal(
                code_pb2.FAILED_PRECONDITION,
                a2="PERMANENT_FAILURE_INVALID_ACK_ID",
                a3="TRANSIENT_FAILURE_UNORDERED_ACK_ID",
            )
        return Empty()

    script = {
        "GetSubscription": lambda _: types.Subscription(
            ack_deadline_seconds=10, enable_exactly_once_delivery=True
        ),
        "Pull": lambda _: pulled(1, 2, 3),
        "Acknowledge": acknowledge,
        "ModifyAckDeadline": lambda _: Empty(),
    }
    with scripted(script) as url:
        subscription = subscribe(url, "test")
        subscription.acknowledge(subscription.receive(3, 5))
        subscription.close()
    assert asked == [["a1", "a2", "a3"], ["a3"]]
    assert "1 messages are done but were not accepted" in warnings(caplog)[0]


def test_leases_of_exactly_once_delivery_may_have_ended(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[tuple[list[str], int]] = []

    def modify(request: Any) -> Empty:
        asked.append((list(request.ack_ids), request.ack_deadline_seconds))
        if len(asked) == 1:
            raise Refusal(code_pb2.INVALID_ARGUMENT, a1="PERMANENT_FAILURE_INVALID_ACK_ID")
        return Empty()

    script = {
        "GetSubscription": lambda _: types.Subscription(ack_deadline_seconds=10),
        "Pull": lambda _: pulled(1, 2),
        "ModifyAckDeadline": modify,
    }
    with scripted(script) as url:
        subscription = subscribe(url, "test")
        held = subscription.receive(2, 5)
        subscription.extend(held)
        subscription.extend(held)
        subscription.give_back(held)
        subscription.close()
    assert asked == [(["a1", "a2"], 10), (["a2"], 10), (["a2"], 0)]
    assert warnings(caplog) == []


def test_what_stays_unaccepted_is_left_and_named(caplog: pytest.LogCaptureFixture) -> None:
    def acknowledge(_: Any) -> Empty:
        raise Refusal(code_pb2.UNAVAILABLE, a1="TRANSIENT_FAILURE_SERVER")

    script = {
        "GetSubscription": lambda _: types.Subscription(ack_deadline_seconds=10),
        "Pull": lambda _: pulled(1),
        "Acknowledge": acknowledge,
    }
    with scripted(script) as url:
        subscription = subscribe(url, "test")
        subscription.acknowledge(subscription.receive(1, 5))
        subscription.close()
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (code_pb2.PERMISSION_DENIED, BrokerMisconfigured),
        (code_pb2.UNAUTHENTICATED, BrokerMisconfigured),
        (code_pb2.NOT_FOUND, BrokerMisconfigured),
        (code_pb2.FAILED_PRECONDITION, BrokerMisconfigured),
        (code_pb2.UNAVAILABLE, BrokerLost),
        (code_pb2.RESOURCE_EXHAUSTED, BrokerLost),
        (code_pb2.INTERNAL, BrokerLost),
    ],
)
def test_a_refusal_is_told_by_whether_it_will_last(code: int, kind: type[Exception]) -> None:
    def refuse(_: Any) -> Any:
        raise Refusal(code)

    script = {
        "GetSubscription": lambda _: types.Subscription(ack_deadline_seconds=10),
        "Pull": refuse,
        "Acknowledge": refuse,
    }
    with scripted(script) as url:
        subscription = subscribe(url, "test")
        with pytest.raises(kind, match="Pub/Sub subscription projects/tests/subscriptions/scripted"):
            subscription.receive(1, 5)
        with pytest.raises(kind):
            subscription.acknowledge([Delivery(b"", {}, "", handle=_receipt("a1"))])
        subscription.close()


def _receipt(ack_id: str) -> Any:
    from onefold.infrastructure.brokers.pubsub import _Receipt

    return _Receipt(ack_id, "", 0.0, 0.0)


def test_who_may_not_ask_for_settings_consumes_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    """The role of a subscriber does not include it."""

    def refuse(_: Any) -> Any:
        raise Refusal(code_pb2.PERMISSION_DENIED)

    asked: list[int] = []

    def modify(request: Any) -> Empty:
        asked.append(request.ack_deadline_seconds)
        return Empty()

    script = {"GetSubscription": refuse, "Pull": lambda _: pulled(1), "ModifyAckDeadline": modify}
    with scripted(script) as url:
        subscription = subscribe(url, "test")
        assert "allow pubsub.subscriptions.get" in warnings(caplog)[0]
        assert (subscription.lease, subscription.retention(), subscription.backlog()) == (60, None, None)
        assert len(subscription.receive(1, 5)) == 1
        subscription.close()
    assert asked == [60, 0]


def test_a_server_with_nothing_is_not_asked_in_a_loop() -> None:
    asked: list[int] = []

    def pull(_: Any) -> Any:
        asked.append(1)
        return types.PullResponse()

    script = {"GetSubscription": lambda _: types.Subscription(ack_deadline_seconds=10), "Pull": pull}
    with scripted(script) as url:
        subscription = subscribe(url, "test")
        assert subscription.receive(10, 0.5) == []
        assert subscription.receive(10, 0.0) == []
        subscription.close()
    assert len(asked) <= 12


def test_what_fails_for_now_is_published_again_in_order() -> None:
    taken: list[bytes] = []
    failures = iter([True, True, False, True])

    def publish(request: Any) -> Any:
        if next(failures, False):
            raise Refusal(code_pb2.UNAVAILABLE)
        taken.extend(message.data for message in request.messages)
        return types.PublishResponse(message_ids=["1"])

    with scripted({"Publish": publish}) as url:
        out = publisher(url)
        out.publish([Outgoing(bytes([number]) * 4_000_000, {}, "k") for number in range(4)])
        out.close()
    assert [data[0] for data in taken] == [0, 1, 2, 3]


def test_what_is_never_taken_is_a_lost_broker_and_nothing_passes_it() -> None:
    taken: list[bytes] = []

    def publish(request: Any) -> Any:
        if request.messages[0].data == b"1":
            raise Refusal(code_pb2.UNAVAILABLE)
        taken.extend(message.data for message in request.messages)
        return types.PublishResponse(message_ids=["1"])

    with scripted({"Publish": publish}) as url:
        out = publisher(url)
        with pytest.raises(BrokerLost, match="to reach Pub/Sub topic"):
            out.publish([*numbered(1), *numbered(2, key="other"), Outgoing(bytes(9_000_000), {}, "k")])
        out.close()
    assert taken == [b"2"]


@pytest.mark.parametrize("key", [None, "k"])
def test_of_a_request_that_is_refused_the_one_message_is_found(key: str | None) -> None:
    taken: list[bytes] = []

    def publish(request: Any) -> Any:
        if any(message.data == b"2" for message in request.messages):
            raise Refusal(code_pb2.INVALID_ARGUMENT)
        taken.extend(message.data for message in request.messages)
        return types.PublishResponse(message_ids=["1"])

    with scripted({"Publish": publish}) as url:
        out = publisher(url)
        refused = out.publish([*numbered(1, 2, 3, key=key), *numbered(4, key="other")])
        out.close()
    assert list(refused) == [1]
    assert "to take it" in refused[1]
    assert sorted(taken) == ([b"1", b"3", b"4"] if key is None else [b"1", b"4"])


@pytest.mark.parametrize(
    "bad",
    [
        Outgoing(bytes(10_000_001)),
        Outgoing(b"", {"n" * 257: "x"}),
        Outgoing(b"", {"googclient": "x"}),
        Outgoing(b"", {"n": "x" * 1025}),
        Outgoing(b"", {f"n{number}": "x" for number in range(101)}),
        Outgoing(b"", {}, "k" * 1025),
    ],
)
def test_what_is_beyond_the_limits_of_pubsub_is_refused_unsent(
    make: Callable[..., Topic], bad: Outgoing
) -> None:
    topic = make()
    out = publisher(f"pubsub://{PROJECT}/{topic.name}?endpoint={topic.address}")
    refused = out.publish([*numbered(1), bad, *numbered(2)])
    out.close()
    assert list(refused) == [1]
    assert bodies(drain(topic.subscribe(), 2)) == [b"1", b"2"]


# Finding the server


def test_the_emulator_s_variable_is_honoured_and_an_endpoint_goes_before_it(
    make: Callable[..., Topic], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make()
    topic.publish(*numbered(1))
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", topic.address)
    subscription = subscribe(f"pubsub://{PROJECT}/{topic.name}", "test")
    assert bodies(drain(subscription, 1)) == [b"1"]
    subscription.close()
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "127.0.0.1:1")
    assert bodies(drain(topic.subscribe(), 1)) == [b"1"]


@pytest.mark.parametrize("endpoint", ["", "?endpoint=europe-west3-pubsub.googleapis.com:443"])
def test_missing_credentials_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, endpoint: str
) -> None:
    monkeypatch.delenv("PUBSUB_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "missing.json"))
    with pytest.raises(BrokerMisconfigured, match="set GOOGLE_APPLICATION_CREDENTIALS"):
        subscribe(f"pubsub://{PROJECT}/payments{endpoint}", "test")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("pubsub:", "a project and a"),
        ("pubsub://project", "a project and a"),
        ("pubsub://project/a/b", "a project and a"),
        ("pubsub://user:secret@project/payments", "a project and a"),
        ("pubsub://project/payments?wait=1", r"no option 'wait' \(known: endpoint"),
    ],
)
def test_a_bad_url_says_what_was_expected(url: str, expected: str) -> None:
    for use in (lambda: subscribe(url, "test"), lambda: publisher(url)):
        with pytest.raises(BadBrokerURL, match=expected) as caught:
            use()
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("lease", ["601", "0.5", "x", "-1"])
def test_a_lease_is_a_whole_number_of_seconds(lease: str) -> None:
    with pytest.raises(BadBrokerURL, match="option lease"):
        subscribe(f"pubsub://project/payments?lease={lease}", "test")

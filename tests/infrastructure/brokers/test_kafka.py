"""Kafka (C60): offsets follow what is done, members come and go, and nobody skips what failed."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from onefold.infrastructure.brokers import (
    BadBrokerURL,
    BrokerLost,
    BrokerMisconfigured,
    Delivery,
    Outgoing,
    kafka,
    publisher,
    subscribe,
)
from onefold.infrastructure.brokers.kafka import KafkaSubscription, _retention
from onefold.infrastructure.brokers.kafka_publisher import KafkaPublisher

QUICK = "session.timeout.ms=2000&heartbeat.interval.ms=300"
"""Tansu waits for half a session whenever a member joins."""
PATIENT = "session.timeout.ms=6000&heartbeat.interval.ms=500"
"""The mock cluster waits for three seconds, and a session must not end in between."""
SOON = 60.0

Make = Callable[..., KafkaSubscription]


@pytest.fixture
def member() -> Iterator[Make]:
    """Make subscriptions, which are closed after the test."""
    made: list[KafkaSubscription] = []

    def make(url: str, consumer: str = "c") -> KafkaSubscription:
        subscription = subscribe(url, consumer)
        assert isinstance(subscription, KafkaSubscription)
        made.append(subscription)
        return subscription

    yield make
    for subscription in made:
        subscription.close()


@pytest.fixture
def topic(kafka_servers: str, unique_name: Callable[[], str]) -> str:
    """A topic with one partition in tansu."""
    return made_topic(kafka_servers, unique_name(), 1)


@pytest.fixture
def mock_topic(mock_kafka: str, unique_name: Callable[[], str]) -> str:
    """A topic with four partitions in the mock cluster."""
    name = unique_name()
    Producer({"bootstrap.servers": mock_kafka}).list_topics(name, timeout=10)
    return name


def made_topic(servers: str, name: str, partitions: int) -> str:
    admin = AdminClient({"bootstrap.servers": servers})
    for future in admin.create_topics([NewTopic(name, partitions, 1)]).values():
        future.result(10)
    return name


def at(servers: str, topic: str, more: str = "") -> str:
    """URL of a topic in tansu, for a group of its own name."""
    return f"kafka://{servers}/{topic}?group={topic}&{QUICK}{more}"


def mocked(servers: str, topic: str, more: str = "") -> str:
    """URL of a topic in the mock cluster, for a group of its own name."""
    return f"kafka://{servers}/{topic}?group={topic}&{PATIENT}{more}"


def publish(servers: str, topic: str, numbers: Sequence[int], keys: int = 1) -> None:
    out = publisher(f"kafka://{servers}/{topic}")
    out.publish([Outgoing(b"%d" % number, {}, f"k{number % keys}") for number in numbers])
    out.close()


def numbers(deliveries: Sequence[Delivery]) -> list[int]:
    return [int(delivery.body) for delivery in deliveries]


def drain(subscription: KafkaSubscription, count: int, within: float = SOON) -> list[Delivery]:
    found: list[Delivery] = []
    end = time.monotonic() + within
    while len(found) < count and time.monotonic() < end:
        found.extend(subscription.receive(count - len(found), 0.2))
    return found


def until(condition: Callable[[], bool], within: float = SOON) -> bool:
    end = time.monotonic() + within
    while not condition():
        if time.monotonic() > end:
            return False
    return True


def committed(servers: str, topic: str, group: str = "", partitions: int = 1) -> dict[int, int]:
    asker = Consumer({"bootstrap.servers": servers, "group.id": group or topic})
    try:
        asked = [TopicPartition(topic, number) for number in range(partitions)]
        found = asker.committed(asked, timeout=10)
        return {one.partition: one.offset for one in found if one.offset >= 0}
    finally:
        asker.close()


# -- joining


def test_it_has_joined_when_the_group_has_let_it_in(kafka_servers: str, topic: str, member: Make) -> None:
    subscription = member(at(kafka_servers, topic))
    assert not subscription.joined

    def has_joined() -> bool:
        subscription.receive(1, 0.1)
        return subscription.joined

    assert until(has_joined)


def test_a_member_that_waits_for_its_group_says_so_once(
    kafka_servers: str,
    topic: str,
    member: Make,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(kafka, "JOIN_SECONDS", 0.1)
    caplog.set_level(logging.INFO, "onefold")
    subscription = member(at(kafka_servers, topic))

    def has_joined() -> bool:
        subscription.receive(1, 0.1)
        return subscription.joined

    assert until(has_joined)
    waiting, joined = caplog.messages
    assert waiting.startswith(f"waiting for the group {topic} to let this member in")
    assert joined.startswith(f"joined the group {topic} after ")


def test_a_member_without_a_partition_has_joined_too(mock_kafka: str, mock_topic: str, member: Make) -> None:
    members = [member(mocked(mock_kafka, mock_topic)) for _ in range(5)]

    def all_joined() -> bool:
        for one in members:
            one.receive(1, 0.1)
        return all(one.joined for one in members)

    assert until(all_joined)


# -- offsets


def test_a_failed_message_is_not_skipped_by_the_next_commit(
    kafka_servers: str, topic: str, member: Make
) -> None:
    publish(kafka_servers, topic, range(6))
    first = member(at(kafka_servers, topic))
    found = drain(first, 6)
    first.acknowledge([found[0], found[1], found[3], found[4], found[5]])
    first.close()
    assert committed(kafka_servers, topic) == {0: 2}
    assert numbers(drain(member(at(kafka_servers, topic)), 4)) == [2, 3, 4, 5]


def test_offsets_are_committed_while_a_consumer_runs(kafka_servers: str, topic: str, member: Make) -> None:
    publish(kafka_servers, topic, range(4))
    subscription = member(f"kafka://{kafka_servers}/{topic}?{QUICK}", "ledger")
    found = drain(subscription, 4)
    time.sleep(0.3)
    subscription.acknowledge(found[:3])
    subscription.receive(0, 0.3)
    assert until(lambda: committed(kafka_servers, topic, "onefold.ledger") == {0: 3}, 10)


def test_nothing_is_committed_before_something_is_done(kafka_servers: str, topic: str, member: Make) -> None:
    publish(kafka_servers, topic, range(4))
    subscription = member(at(kafka_servers, topic))
    drain(subscription, 4)
    subscription.close()
    # Where the group stands by its first message is no step forward.
    assert committed(kafka_servers, topic) in ({}, {0: 0})


def test_what_is_given_back_holds_up_its_partition(kafka_servers: str, topic: str, member: Make) -> None:
    publish(kafka_servers, topic, range(8))
    subscription = member(at(kafka_servers, topic))
    found = drain(subscription, 4)
    assert numbers(found) == [0, 1, 2, 3]
    began = time.monotonic()
    subscription.give_back([found[3], found[1]], delay=0.8)
    subscription.acknowledge([found[0]])
    back = drain(subscription, 6)
    assert time.monotonic() - began >= 0.8
    assert numbers(back) == [1, 3, 4, 5, 6, 7]
    subscription.acknowledge(back)
    subscription.close()
    assert committed(kafka_servers, topic) == {0: 2}


def test_several_topics_are_read(kafka_servers: str, unique_name: Callable[[], str], member: Make) -> None:
    one, two = (made_topic(kafka_servers, unique_name(), 2) for _ in range(2))
    publish(kafka_servers, one, range(10), keys=5)
    publish(kafka_servers, two, range(10, 20), keys=5)
    found = drain(member(at(kafka_servers, f"{one},{two}")), 20)
    assert sorted(numbers(found)) == list(range(20))
    assert {delivery.place.partition("[")[0] for delivery in found} == {one, two}


# -- what a message is made of


def test_records_of_other_producers_are_delivered_as_text_and_bytes(
    kafka_servers: str, topic: str, member: Make
) -> None:
    producer = Producer({"bootstrap.servers": kafka_servers})
    producer.produce(topic, None, b"gone")
    producer.produce(
        topic,
        b"\x00\xff",
        b"\xff\x00k",
        headers=[
            ("Trace", b"\x01\xfe"),
            ("none", None),
            ("x", "first"),
            ("X", "last"),
            ("ce_id", "é".encode()),
        ],
        timestamp=1_700_000_000_123,
    )
    producer.produce(topic, b"plain")
    assert producer.flush(10) == 0
    tombstone, odd, plain = drain(member(at(kafka_servers, topic)), 3)
    assert (tombstone.body, tombstone.key) == (b"", "gone")
    assert (odd.body, odd.key) == (b"\x00\xff", "\\xff\x00k")
    assert odd.headers == {"trace": "\x01\\xfe", "none": "", "x": "last", "ce_id": "é"}
    assert odd.published_at is not None
    assert odd.published_at.isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert (plain.key, plain.headers, plain.place) == (None, {}, f"{topic}[0]@2")


# -- members of a group


def test_members_share_partitions_and_late_acknowledgements_have_no_effect(
    mock_kafka: str, mock_topic: str, member: Make
) -> None:
    url = mocked(mock_kafka, mock_topic)
    publish(mock_kafka, mock_topic, range(80), keys=40)
    first = member(url)
    found = drain(first, 80)
    first.acknowledge(found[:40])
    second = member(url)
    back: list[Delivery] = []

    def shared() -> bool:
        first.receive(0, 0.02)
        back.extend(second.receive(100, 0.02))
        return len(second._partitions) == 2 and len(first._partitions) == 2

    assert until(shared)
    before = committed(mock_kafka, mock_topic, partitions=4)
    taken_over = {number for _, number in second._partitions}
    first.acknowledge(found)
    time.sleep(0.3)
    first.receive(0, 0.3)
    assert until(lambda: not first.receive(0, 0.05) and first._commits == 0)
    after = committed(mock_kafka, mock_topic, partitions=4)
    for number in taken_over:
        assert after.get(number) == before.get(number)
    # Whatever the first had not acknowledged of them came to the second.
    undone = {int(delivery.body) for delivery in found[40:] if delivery.handle[0].number in taken_over}
    back += drain(second, len(undone) - len(back), 5)
    assert undone <= set(numbers(back))


def test_a_zombie_cannot_commit(
    mock_kafka: str, mock_topic: str, member: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "onefold")
    publish(mock_kafka, mock_topic, range(20), keys=20)
    zombie = member(mocked(mock_kafka, mock_topic, "&max.poll.interval.ms=6000"))
    held = drain(zombie, 20)
    # It stops, and the group goes on without it.
    time.sleep(7)
    heir = member(mocked(mock_kafka, mock_topic))
    again = drain(heir, 20)
    assert sorted(numbers(again)) == list(range(20))
    zombie.acknowledge(held)
    zombie.receive(0, 0.3)
    assert until(lambda: "went on without this member" in caplog.text or bool(zombie.receive(1, 0.1)))
    zombie.close()
    assert all(offset == 0 for offset in committed(mock_kafka, mock_topic, partitions=4).values())
    assert "with 20 unfinished messages" in caplog.text or "were not committed" in caplog.text


def test_a_full_buffer_does_not_cost_the_membership(
    mock_kafka: str, mock_topic: str, member: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "onefold")
    publish(mock_kafka, mock_topic, range(40), keys=20)
    subscription = member(mocked(mock_kafka, mock_topic, "&max.poll.interval.ms=6000"))
    found = drain(subscription, 10)
    end = time.monotonic() + 8
    while time.monotonic() < end:
        assert list(subscription.receive(0, 0.2)) == []
    found += drain(subscription, 30)
    assert sorted(numbers(found)) == list(range(40))
    assert "went on without" not in caplog.text


def test_a_partition_that_was_paused_when_it_went_flows_when_it_comes_back(
    mock_kafka: str, mock_topic: str, member: Make
) -> None:
    url = mocked(mock_kafka, mock_topic)
    publish(mock_kafka, mock_topic, range(40), keys=40)
    first = member(url)
    first.acknowledge(drain(first, 40))
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        first.receive(0, 0.1)
    assert all(partition.paused for partition in first._partitions.values())
    second = member(url)

    def shared() -> bool:
        first.receive(0, 0.05)
        second.receive(10, 0.05)
        return len(first._partitions) == len(second._partitions) == 2

    assert until(shared)
    second.close()
    publish(mock_kafka, mock_topic, range(100, 140), keys=40)
    found: set[int] = set()

    def whole() -> bool:
        found.update(numbers(first.receive(100, 0.2)))
        return found >= set(range(100, 140))

    assert until(whole)


# -- when the broker goes away


def test_a_short_break_is_survived(
    through_proxy: Callable[[str], Any], unique_name: Callable[[], str], member: Make
) -> None:
    wire = through_proxy("kafka")
    name = made_topic(wire.url, unique_name(), 1)
    subscription = member(at(wire.url, name))
    publish(wire.url, name, range(3))
    found = drain(subscription, 3)
    wire.proxy.cut()
    wire.proxy.mend()
    subscription.acknowledge(found)
    publish(wire.url, name, range(3, 6))
    assert numbers(drain(subscription, 3)) == [3, 4, 5]


def test_closing_does_not_wait_for_a_broker_that_is_silent(
    through_proxy: Callable[[str], Any], unique_name: Callable[[], str], member: Make
) -> None:
    wire = through_proxy("kafka")
    name = made_topic(wire.url, unique_name(), 1)
    subscription = member(at(wire.url, name))
    publish(wire.url, name, range(3))
    subscription.acknowledge(drain(subscription, 3))
    wire.proxy.freeze()
    try:
        began = time.monotonic()
        subscription.close()
        assert time.monotonic() - began < 10
    finally:
        wire.proxy.thaw()


def test_publishing_to_a_broker_that_went_away_is_told(
    through_proxy: Callable[[str], Any], unique_name: Callable[[], str]
) -> None:
    wire = through_proxy("kafka")
    name = made_topic(wire.url, unique_name(), 1)
    out = publisher(f"kafka://{wire.url}/{name}?message.timeout.ms=1500")
    out.publish([Outgoing(b"1")])
    wire.proxy.cut()
    with pytest.raises(BrokerLost, match="publish them again by a new publisher"):
        out.publish([Outgoing(b"2")])
    with pytest.raises(BrokerLost):
        out.publish([Outgoing(b"3")])
    wire.proxy.mend()
    out.close()
    out.close()


# -- publishing


def test_messages_of_one_key_keep_their_order(
    kafka_servers: str, unique_name: Callable[[], str], member: Make
) -> None:
    name = made_topic(kafka_servers, unique_name(), 3)
    publish(kafka_servers, name, range(300), keys=7)
    found = drain(member(at(kafka_servers, name)), 300)
    assert len(found) == 300
    for key in range(7):
        mine = [number for number in numbers(found) if number % 7 == key]
        assert mine == sorted(mine)
    assert len({delivery.place.partition("@")[0] for delivery in found if delivery.key == "k3"}) == 1


def test_a_message_that_is_too_large_is_refused_and_what_follows_it_in_its_key_waits(
    kafka_servers: str, topic: str, member: Make
) -> None:
    out = publisher(f"kafka://{kafka_servers}/{topic}?message.max.bytes=2000")
    large = Outgoing(b"x" * 3000, {}, "k")
    refused = out.publish(
        [
            Outgoing(b"1", {}, "k"),
            large,
            Outgoing(b"3", {}, "k"),
            Outgoing(b"4", {}, "l"),
            Outgoing(b"x" * 3000),
        ]
    )
    assert sorted(refused) == [1, 4]
    assert "too large" in refused[1]
    out.publish([Outgoing(b"5", {}, "k")])
    out.close()
    assert sorted(numbers(drain(member(at(kafka_servers, topic)), 3))) == [1, 4, 5]


class RefusingProducer:
    """Takes what is sent as the broker's one batch, which is refused with all in it where one is too large."""

    taken: ClassVar[list[bytes]] = []
    made: ClassVar[int] = 0

    def __init__(self) -> None:
        self._batch: list[tuple[bytes, Any]] = []
        type(self).made += 1

    def produce(self, topic: str, body: bytes, key: object, *, headers: object, on_delivery: Any) -> None:
        self._batch.append((body, on_delivery))

    def flush(self, timeout: float) -> int:
        bad = any(body == b"bad" for body, _ in self._batch)
        for body, report in self._batch:
            report(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE) if bad else None, None)
            if not bad:
                self.taken.append(body)
        self._batch.clear()
        return 0

    def purge(self) -> None:
        self._batch.clear()


def test_of_a_batch_that_the_broker_refuses_the_one_message_is_found(
    kafka_servers: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = publisher(f"kafka://{kafka_servers}/{topic}")
    monkeypatch.setattr(RefusingProducer, "taken", [])
    monkeypatch.setattr(KafkaPublisher, "_made", lambda _: RefusingProducer())
    out._renew()
    bodies = [b"1", b"bad", b"3", b"4", b"bad", b"6"]
    refused = out.publish([Outgoing(body, {}, key) for body, key in zip(bodies, "kkkllm", strict=True)])
    assert sorted(refused) == [1, 4]
    assert "a message that Kafka takes" in refused[1]
    assert RefusingProducer.taken == [b"1", b"4", b"6"]
    assert out.publish([Outgoing(b"7", {}, "k")]) == {}
    assert RefusingProducer.taken[-1] == b"7"


def test_the_largest_size_is_asked_of_the_topic(
    kafka_servers: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KafkaPublisher, "_limit", lambda _: 1900)
    out = publisher(f"kafka://{kafka_servers}/{topic}")
    assert list(out.publish([Outgoing(b"1"), Outgoing(b"x" * 2000), Outgoing(b"3")])) == [1]
    out.close()


def test_a_topic_that_is_missing_is_told_to_a_publisher(kafka_servers: str) -> None:
    with pytest.raises(BrokerMisconfigured, match="expected topic nowhere"):
        publisher(f"kafka://{kafka_servers}/nowhere")


def test_a_closed_publisher_takes_nothing(kafka_servers: str, topic: str) -> None:
    out = publisher(f"kafka://{kafka_servers}/{topic}")
    out.close()
    with pytest.raises(BrokerLost, match="closed"):
        out.publish([Outgoing(b"x")])


# -- URLs and settings


@pytest.mark.parametrize(
    "bad",
    [
        "kafka:///topic",
        "kafka://host:9092",
        "kafka://host:9092/",
        "kafka://host:9092/a,,b",
        "kafka://user:secret@host:9092/a",
        "kafka://host:9092/a#b",
        "kafka://host:9092/a?group=",
        "kafka://host:9092/a?group=x&group=y",
        "kafka://host:9092/a?enable.auto.commit=true",
        "kafka://host:9092/a?enable.auto.offset.store=true",
        "kafka://host:9092/a?group.id=x",
        "kafka://host:9092/a?bootstrap.servers=x",
        "kafka://host:9092/a?no.such.setting=1",
        "kafka://host:9092/a?session.timeout.ms=soon",
    ],
)
def test_an_url_that_makes_no_sense_is_refused(bad: str) -> None:
    with pytest.raises(BadBrokerURL, match="expected") as caught:
        subscribe(bad, "c")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "bad",
    [
        "kafka://host:9092/a,b",
        "kafka://host:9092/a?acks=1",
        "kafka://host:9092/a?enable.idempotence=false",
        "kafka://host:9092/a?enable.auto.commit=true",
        "kafka://host:9092/a?sasl.password=secret&acks=1",
    ],
)
def test_an_url_that_would_weaken_publishing_is_refused(bad: str) -> None:
    with pytest.raises(BadBrokerURL, match="expected") as caught:
        publisher(bad)
    assert "secret" not in str(caught.value)


def test_a_login_that_the_broker_does_not_know_is_told_as_such(kafka_servers: str, topic: str) -> None:
    login = "security.protocol=SASL_PLAINTEXT&sasl.mechanism=PLAIN&sasl.username=u&sasl.password=secret"
    with pytest.raises((BrokerMisconfigured, BrokerLost)) as caught:
        subscribe(f"kafka://{kafka_servers}/{topic}?{login}", "c")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ({"retention.ms": "604800000"}, 604800.0),
        ({"retention.ms": "-1"}, math.inf),
        ({"retention.ms": "1000", "cleanup.policy": "compact"}, math.inf),
        ({"retention.ms": "1000", "cleanup.policy": "compact,delete"}, 1.0),
    ],
)
def test_retention_follows_the_settings_of_the_topic(settings: dict[str, str], seconds: float) -> None:
    entries = {name: SimpleNamespace(value=value) for name, value in settings.items()}
    assert _retention(entries) == seconds


def test_retention_is_unknown_where_the_broker_does_not_say(
    kafka_servers: str, topic: str, member: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "onefold")
    assert member(at(kafka_servers, topic)).retention() is None
    (line,) = caplog.messages
    assert line.endswith("is not known: the broker did not list the setting retention.ms")


def test_no_error_of_the_client_escapes(kafka_servers: str, topic: str, member: Make) -> None:
    subscription = member(at(kafka_servers, topic))
    subscription._consumer.close()
    with pytest.raises(BrokerLost):
        subscription.receive(1, 0.1)
    with pytest.raises(BrokerLost):
        subscription.acknowledge([])
    assert not issubclass(BrokerLost, KafkaException)
    subscription.close()

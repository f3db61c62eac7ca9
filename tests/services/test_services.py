"""Every broker of the tests is really there: what is published is received, and it can be cut, stopped and started."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pika
import psutil
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from google.api_core.exceptions import NotFound
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.types import PublisherOptions
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from .fixtures import StartService, ThroughProxy, UniqueName
from .keeper import alive
from .proxy import Proxy
from .pubsub import PUBSUB_STAND_IN
from .rabbitmq import RABBITMQ
from .redis import REDIS, recipe
from .service import Recipe, Service, Unavailable, connects, running


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def exchange_rabbitmq(url: str, name: str) -> bytes | None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
        channel.confirm_delivery()
        channel.basic_publish("", name, b"one", mandatory=True)
        _, _, body = channel.basic_get(name, auto_ack=True)
        return body


def exchange_kafka(servers: str, name: str) -> tuple[int, bytes | None]:
    producer = Producer({"bootstrap.servers": servers})
    partitions = producer.list_topics(name, timeout=10).topics[name].partitions
    producer.produce(name, b"one", partition=3)
    assert producer.flush(10) == 0
    consumer = Consumer({"bootstrap.servers": servers, "group.id": name, "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(name, 3, 0)])
        message = consumer.poll(10)
        assert message is not None
        assert message.error() is None
        return len(partitions), message.value()
    finally:
        consumer.close()


def exchange_sqs(endpoint: str, name: str) -> str:
    client = boto3.client("sqs", endpoint_url=endpoint)
    try:
        queue = client.create_queue(QueueName=name)["QueueUrl"]
        client.send_message(QueueUrl=queue, MessageBody="one")
        (message,) = client.receive_message(QueueUrl=queue, WaitTimeSeconds=5)["Messages"]
        return message["Body"]
    finally:
        client.close()


class PubSub:
    """A topic with a subscription, at the address of an emulator."""

    def __init__(self, name: str, **settings: Any) -> None:
        self.publisher = pubsub_v1.PublisherClient(
            publisher_options=PublisherOptions(enable_message_ordering=True)
        )
        self.subscriber = pubsub_v1.SubscriberClient()
        self.topic = self.publisher.topic_path("tests", name)
        self.subscription = self.subscriber.subscription_path("tests", name)
        self.publisher.create_topic(name=self.topic)
        self.subscriber.create_subscription(
            request={"name": self.subscription, "topic": self.topic, **settings}
        )

    def publish(self, data: bytes, key: str = "") -> None:
        self.publisher.publish(self.topic, data, ordering_key=key).result(10)

    def pull(self, limit: int = 10) -> list[Any]:
        request = {"subscription": self.subscription, "max_messages": limit}
        return list(self.subscriber.pull(request=request, timeout=10).received_messages)

    def bodies(self, count: int) -> list[bytes]:
        """Receive and acknowledge `count` messages, however many come at once."""
        got: list[bytes] = []
        while len(got) < count:
            pulled = self.pull()
            got += [one.message.data for one in pulled]
            if pulled:
                self.acknowledge(pulled)
        return got

    def acknowledge(self, pulled: list[Any]) -> None:
        ids = [one.ack_id for one in pulled]
        self.subscriber.acknowledge(subscription=self.subscription, ack_ids=ids)

    def give_back(self, pulled: list[Any]) -> None:
        ids = [one.ack_id for one in pulled]
        request = {"subscription": self.subscription, "ack_ids": ids, "ack_deadline_seconds": 0}
        self.subscriber.modify_ack_deadline(request=request)

    def close(self) -> None:
        self.publisher.stop()
        self.publisher.transport.close()
        self.subscriber.close()


MakePubSub = Callable[..., PubSub]


@pytest.fixture(params=["found", "stand-in"])
def pubsub(
    request: pytest.FixtureRequest,
    unique_name: UniqueName,
    start_service: StartService,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[MakePubSub]:
    """Makes topics with subscriptions in the emulator of this machine, and in the stand-in."""
    if request.param == "found":
        request.getfixturevalue("pubsub_emulator")
    else:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", start_service(PUBSUB_STAND_IN).url)
    made: list[PubSub] = []

    def make(**settings: Any) -> PubSub:
        made.append(PubSub(unique_name(), **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_rabbitmq_has_quorum_queues(rabbitmq_url: str, unique_name: UniqueName) -> None:
    assert exchange_rabbitmq(rabbitmq_url, unique_name()) == b"one"


def test_redis_has_streams_with_groups(redis_url: str, unique_name: UniqueName) -> None:
    name = unique_name()
    with Redis.from_url(redis_url) as client:
        client.xadd(name, {"body": b"one"})
        client.xgroup_create(name, "readers", id="0")
        assert b"one" in repr(client.xreadgroup("readers", "me", {name: ">"})).encode()
        assert client.xpending(name, "readers")["pending"] == 1


def test_kafka_has_topics_of_several_partitions(kafka_servers: str, unique_name: UniqueName) -> None:
    name = unique_name()
    admin = AdminClient({"bootstrap.servers": kafka_servers})
    admin.create_topics([NewTopic(name, num_partitions=5, replication_factor=1)])[name].result(10)
    assert exchange_kafka(kafka_servers, name) == (5, b"one")


def test_the_mock_cluster_makes_a_topic_when_asked_for_it(mock_kafka: str, unique_name: UniqueName) -> None:
    assert exchange_kafka(mock_kafka, unique_name()) == (4, b"one")


@pytest.mark.parametrize("cluster", ["kafka_servers", "mock_kafka"])
def test_a_member_that_the_group_left_behind_cannot_commit(
    cluster: str, request: pytest.FixtureRequest, unique_name: UniqueName
) -> None:
    servers: str = request.getfixturevalue(cluster)
    name = unique_name()
    producer = Producer({"bootstrap.servers": servers})
    if cluster == "kafka_servers":
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])[name].result(10)
    else:
        producer.list_topics(name, timeout=10)
    producer.produce(name, b"one", partition=0)
    assert producer.flush(10) == 0
    settings = {
        "bootstrap.servers": servers,
        "group.id": name,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "session.timeout.ms": 6000,
        "max.poll.interval.ms": 6000,
        "log_level": 0,
    }
    zombie = Consumer(settings)
    zombie.subscribe([name])
    message = zombie.poll(20)
    assert message is not None
    assert message.error() is None
    # It neither polls nor leaves: the group puts it out after six seconds.
    time.sleep(7)
    with pytest.raises(KafkaException):
        zombie.commit(message, asynchronous=False)
    zombie.close()


@pytest.mark.parametrize("fifo", [False, True])
def test_sqs_has_standard_and_fifo_queues(sqs_endpoint: str, unique_name: UniqueName, fifo: bool) -> None:
    client = boto3.client("sqs", endpoint_url=sqs_endpoint)
    if fifo:
        made = client.create_queue(QueueName=f"{unique_name()}.fifo", Attributes={"FifoQueue": "true"})
        more: dict[str, Any] = {"MessageGroupId": "a", "MessageDeduplicationId": "1"}
    else:
        made, more = client.create_queue(QueueName=unique_name()), {}
    queue = made["QueueUrl"]
    client.send_message(QueueUrl=queue, MessageBody="one", **more)
    (message,) = client.receive_message(QueueUrl=queue, WaitTimeSeconds=5)["Messages"]
    assert message["Body"] == "one"
    client.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    client.close()


def test_pubsub_delivers_and_forgets_what_was_acknowledged(pubsub: MakePubSub) -> None:
    made = pubsub()
    made.publish(b"one")
    (message,) = made.pull()
    assert message.message.data == b"one"
    made.acknowledge([message])
    made.publish(b"two")
    assert made.bodies(1) == [b"two"]


def test_pubsub_brings_again_what_was_given_back_with_all_that_follows_in_its_key(
    pubsub: MakePubSub, request: pytest.FixtureRequest
) -> None:
    made = pubsub(enable_message_ordering=True)
    for data in (b"1", b"2", b"3"):
        made.publish(data, "k")
    (first,) = made.pull(1)
    assert first.message.data == b"1"
    made.give_back([first])
    bodies = made.bodies(3)
    assert sorted(bodies) == [b"1", b"2", b"3"]
    if "stand-in" in request.node.name:
        # The emulator brings what was given back after what follows, which Pub/Sub does not.
        assert bodies == [b"1", b"2", b"3"]


def test_pubsub_brings_again_what_was_not_acknowledged_in_time(pubsub: MakePubSub) -> None:
    made = pubsub(ack_deadline_seconds=10)
    made.publish(b"one")
    assert len(made.pull()) == 1
    start = time.monotonic()
    assert made.bodies(1) == [b"one"]
    assert 5 < time.monotonic() - start < 30


def test_pubsub_counts_deliveries_where_there_is_a_dead_letter_topic(
    pubsub: MakePubSub,
) -> None:
    dead = pubsub()
    made = pubsub(dead_letter_policy={"dead_letter_topic": dead.topic, "max_delivery_attempts": 5})
    made.publish(b"one")
    for attempt in range(1, 6):
        pulled: list[Any] = []
        until(lambda pulled=pulled: bool(pulled.extend(made.pull()) or pulled))  # type: ignore[misc]
        assert [one.delivery_attempt for one in pulled] == [attempt]
        made.give_back(pulled)
    until(lambda: not made.pull())
    assert dead.bodies(1) == [b"one"]


def test_pubsub_streams_to_a_subscriber(pubsub: MakePubSub) -> None:
    made = pubsub()
    got: list[bytes] = []

    def take(message: Any) -> None:
        got.append(message.data)
        message.ack()

    stream = made.subscriber.subscribe(made.subscription, callback=take)
    for number in range(20):
        made.publish(b"%d" % number)
    until(lambda: len(got) >= 20)
    stream.cancel()
    stream.result(10)
    assert sorted(got) == sorted(b"%d" % number for number in range(20))


def test_pubsub_names_what_is_missing(pubsub: MakePubSub) -> None:
    made = pubsub()
    with pytest.raises(NotFound):
        made.subscriber.pull(subscription=f"{made.subscription}-none", max_messages=1)


@pytest.mark.parametrize("name", ["rabbitmq", "redis", "kafka", "sqs", "pubsub"])
def test_a_broker_behind_a_proxy_is_reached_cut_and_reached_again(
    through_proxy: ThroughProxy, name: str
) -> None:
    wire = through_proxy(name)
    assert connects(wire.proxy.port)
    wire.proxy.cut()
    with pytest.raises(ConnectionRefusedError):
        connects(wire.proxy.port)
    wire.proxy.mend()
    assert connects(wire.proxy.port)


def test_clients_work_through_a_proxy(
    through_proxy: ThroughProxy,
    unique_name: UniqueName,
    sqs_endpoint: str,
    pubsub_emulator: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert exchange_rabbitmq(through_proxy("rabbitmq").url, unique_name()) == b"one"
    assert exchange_sqs(through_proxy("sqs").url, unique_name()) == "one"
    kafka, name = through_proxy("kafka").url, unique_name()
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_topics([NewTopic(name, num_partitions=4, replication_factor=1)])[name].result(10)
    assert exchange_kafka(kafka, name) == (4, b"one")
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", through_proxy("pubsub").url)
    made = PubSub(unique_name())
    made.publish(b"one")
    assert made.bodies(1) == [b"one"]
    made.close()


def test_cutting_a_proxy_ends_connections_and_mending_takes_new_ones(through_proxy: ThroughProxy) -> None:
    wire = through_proxy("redis")
    with Redis.from_url(wire.url) as client:
        assert client.ping()
        assert wire.proxy.connections == 1
        wire.proxy.cut()
        with pytest.raises(RedisConnectionError):
            client.ping()
        wire.proxy.mend()
        assert client.ping()


def test_a_frozen_proxy_holds_up_and_a_thawed_one_delivers() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        Proxy(server.getsockname()[1]) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port)) as client,
    ):
        far, _ = server.accept()
        with far:
            proxy.freeze()
            client.sendall(b"one")
            far.settimeout(0.2)
            with pytest.raises(TimeoutError):
                far.recv(3)
            proxy.thaw()
            far.settimeout(5)
            assert far.recv(3) == b"one"


def test_rabbitmq_has_its_queues_again_after_a_restart_at_the_same_address(
    start_service: StartService,
) -> None:
    service = start_service(RABBITMQ)
    url = service.url
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.queue_declare("kept", durable=True, arguments={"x-queue-type": "quorum"})
        channel.confirm_delivery()
        channel.basic_publish("", "kept", b"one", mandatory=True)
    service.stop()
    assert not service.running
    assert service.start() == url
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        got: list[bytes | None] = []
        until(lambda: bool(got.append(channel.basic_get("kept", auto_ack=True)[2]) or got[-1]))
        assert got[-1] == b"one"


def test_a_durable_redis_has_its_streams_again_after_it_was_killed(start_service: StartService) -> None:
    service = start_service(recipe(durable=True))
    with Redis.from_url(service.url) as client:
        client.xadd("kept", {"body": b"one"})
    service.kill()
    service.start()
    with Redis.from_url(service.url) as client:
        assert client.xlen("kept") == 1


def test_a_service_ends_with_its_owner(run_home: Path) -> None:
    folder = run_home / "services" / "orphan"
    owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    service = Service(REDIS, folder, owner.pid)
    service.start()
    keeper, born = json.loads((folder / "keeper").read_text())
    children = psutil.Process(keeper).children(recursive=True)
    assert children
    owner.kill()
    owner.communicate()
    until(lambda: not alive(keeper, born))
    assert not running(folder)
    assert not any(child.is_running() for child in children)


def test_a_service_that_cannot_be_had_says_what_to_install(
    start_service: StartService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commands(folder: Path, ports: Any) -> Any:
        raise Unavailable("expected a broker, found none; install it: apt-get install broker")

    nothing = Recipe("nothing", commands, connects, str)
    monkeypatch.setenv("ONEFOLD_REQUIRE_SERVICES", "1")
    with pytest.raises(pytest.fail.Exception, match="apt-get install broker"):
        start_service(nothing)
    monkeypatch.delenv("ONEFOLD_REQUIRE_SERVICES")
    with pytest.raises(pytest.skip.Exception, match="apt-get install broker"):
        start_service(nothing)


def test_rabbitmq_is_reached_from_this_machine_alone(run_home: Path, rabbitmq_url: str) -> None:
    keeper, _ = json.loads((run_home / "services" / "rabbitmq" / "keeper").read_text())
    listening = [
        one.laddr.ip
        for process in psutil.Process(keeper).children(recursive=True)
        for one in process.net_connections(kind="inet")
        if one.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert set(listening) <= {"127.0.0.1", "::1"}
    assert os.getpid() != keeper

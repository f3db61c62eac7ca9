"""Benches of Kafka: tansu, and the mock cluster of librdkafka."""

from __future__ import annotations

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from .benches import Bench, unused_port

SETTINGS = "?session.timeout.ms=3000&heartbeat.interval.ms=500"
"""A member that was killed holds its partitions for three seconds, not for 45; the others wait for half of it."""
MOCK_SETTINGS = "?session.timeout.ms=6000&heartbeat.interval.ms=500"
"""The mock cluster waits for three seconds whenever a member joins, and a session must not end in between."""


class KafkaBench(Bench):
    """A topic with three partitions in a tansu of its own: its clients go where it says, so it must say the proxy."""

    name = "kafka"
    expires = attempts = False
    patience = 15.0
    refused = 1_100_000

    def prepare(self) -> None:
        wire = self.request.getfixturevalue("through_proxy")("kafka")
        self.servers, self.proxy = wire.url, wire.proxy
        # Nothing of this client is to be in the way of a cut.
        admin = AdminClient({"bootstrap.servers": self.servers})
        for made in admin.create_topics([NewTopic(self.queue, 3, 1)]).values():
            made.result(10)

    @property
    def url(self) -> str:
        # This broker takes the last batch of a partition for one message when it is asked where the partition ends.
        return f"kafka://{self.servers}/{self.queue}{SETTINGS}&batch.num.messages=1"

    @property
    def missing(self) -> str:
        return f"kafka://{self.servers}/missing-{self.queue}"

    @property
    def unreachable(self) -> str:
        return f"kafka://127.0.0.1:{unused_port()}/{self.queue}"

    def cut(self) -> None:
        self.proxy.cut()

    def restore(self) -> None:
        self.proxy.mend()


class MockKafkaBench(Bench):
    """A topic with four partitions in the mock cluster, whose brokers are in this process and cannot be cut off."""

    name = "mock-kafka"
    expires = attempts = networked = False
    patience = 15.0
    refused = 1_100_000

    def prepare(self) -> None:
        self.servers = self.request.getfixturevalue("mock_kafka")
        # The first producer that asks for a topic makes it.
        Producer({"bootstrap.servers": self.servers}).list_topics(self.queue, timeout=10)

    @property
    def url(self) -> str:
        return f"kafka://{self.servers}/{self.queue}{MOCK_SETTINGS}"

    @property
    def missing(self) -> str:
        return f"kafka://{self.servers}/missing-{self.queue}"


BENCHES = (KafkaBench, MockKafkaBench)

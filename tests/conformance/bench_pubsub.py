"""The bench of Pub/Sub: a subscription that keeps order, in the emulator or its stand-in."""

from __future__ import annotations

from typing import Any

from google.pubsub_v1.services.publisher import PublisherClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport
from grpc import insecure_channel

from onefold.infrastructure.brokers import Publisher, publisher

from .benches import Bench, unused_port

PROJECT = "conformance"
LEASE = 4


class PubsubBench(Bench):
    """A topic and a subscription with ordering keys. It hands out nothing of a key that is held."""

    name = "pubsub"
    # An emulator has no dead-letter policy of its own accord, so that nothing counts attempts.
    counts = attempts = ahead = False
    patience = LEASE + 3.0
    refused = 10_000_001

    def prepare(self) -> None:
        address: str = self.request.getfixturevalue("pubsub_emulator")
        self.wire = self.request.getfixturevalue("through_proxy")("pubsub")
        self.channel = insecure_channel(address)
        topics: Any = PublisherClient(transport=PublisherGrpcTransport(channel=self.channel))
        subscriptions: Any = SubscriberClient(transport=SubscriberGrpcTransport(channel=self.channel))
        topic = topics.create_topic(name=f"projects/{PROJECT}/topics/{self.queue}")
        subscriptions.create_subscription(
            request={
                "name": f"projects/{PROJECT}/subscriptions/{self.queue}",
                "topic": topic.name,
                "enable_message_ordering": True,
            }
        )

    @property
    def url(self) -> str:
        return f"pubsub://{PROJECT}/{self.queue}?lease={LEASE}&endpoint={self.wire.url}"

    @property
    def missing(self) -> str:
        return f"pubsub://{PROJECT}/missing?endpoint={self.wire.url}"

    @property
    def unreachable(self) -> str:
        return f"pubsub://{PROJECT}/{self.queue}?endpoint=127.0.0.1:{unused_port()}"

    def cut(self) -> None:
        self.wire.proxy.cut()

    def restore(self) -> None:
        self.wire.proxy.mend()

    def close(self) -> None:
        super().close()
        self.channel.close()

    def publisher(self) -> Publisher:
        """Return a publisher to the topic, whose URL has no lease."""
        return publisher(f"pubsub://{PROJECT}/{self.queue}?endpoint={self.wire.url}")


BENCHES = (PubsubBench,)

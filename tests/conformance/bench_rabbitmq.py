"""Benches of RabbitMQ: a quorum queue, and one with a single active consumer."""

from __future__ import annotations

from typing import Any, ClassVar

import pika

from .benches import Bench, unused_port


class RabbitBench(Bench):
    """A quorum queue with a dead-letter exchange and a delivery limit."""

    name = "rabbitmq"
    expires = False
    refused = 2**24 + 1
    arguments: ClassVar[dict[str, Any]] = {}
    options: ClassVar[str] = ""

    def prepare(self) -> None:
        self.connection = pika.BlockingConnection(
            pika.URLParameters(self.request.getfixturevalue("rabbitmq_url"))
        )
        self.channel = self.connection.channel()
        self.channel.exchange_declare(f"{self.queue}-dead", "fanout", durable=True)
        self.channel.queue_declare(
            self.queue,
            durable=True,
            arguments={
                "x-queue-type": "quorum",
                "x-delivery-limit": 20,
                "x-dead-letter-exchange": f"{self.queue}-dead",
                **self.arguments,
            },
        )
        wire = self.request.getfixturevalue("through_proxy")("rabbitmq")
        self.wired, self.proxy = wire.url, wire.proxy

    @property
    def url(self) -> str:
        return f"{self.wired}?queue={self.queue}{self.options}"

    @property
    def missing(self) -> str:
        return f"{self.wired}?queue=missing"

    @property
    def unreachable(self) -> str:
        return f"amqp://127.0.0.1:{unused_port()}/?queue={self.queue}"

    def cut(self) -> None:
        self.proxy.cut()

    def restore(self) -> None:
        self.proxy.mend()

    def close(self) -> None:
        super().close()
        # Heartbeats were missed while the test ran.
        self.connection.process_data_events()
        self.channel.queue_delete(self.queue)
        self.channel.exchange_delete(f"{self.queue}-dead")
        self.connection.close()


class SingleBench(RabbitBench):
    """The same with a single active consumer."""

    name = "rabbitmq-single"
    arguments: ClassVar[dict[str, Any]] = {"x-single-active-consumer": True}
    options = "&order=single"


BENCHES = (RabbitBench, SingleBench)

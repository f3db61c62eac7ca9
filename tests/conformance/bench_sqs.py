"""Benches of SQS: a standard and a FIFO queue, in moto's server."""

from __future__ import annotations

from typing import Any, ClassVar
from urllib.parse import quote

import boto3

from .benches import Bench, unused_port

REGION = "eu-central-1"
LEASE = 6


class SqsBench(Bench):
    """A standard queue, which keeps no order and no key. In moto it happens to keep the order."""

    name = "sqs"
    ordered = keyed = False
    patience = LEASE + 3.0
    # Moto's time for a receive grows with the messages that wait.
    many = 60
    refused = 2**20 + 1
    suffix: ClassVar[str] = ""
    settings: ClassVar[dict[str, str]] = {}

    def prepare(self) -> None:
        endpoint: str = self.request.getfixturevalue("sqs_endpoint")
        self.wire = self.request.getfixturevalue("through_proxy")("sqs")
        self.client: Any = boto3.client("sqs", region_name=REGION, endpoint_url=endpoint)
        self.queue = self.queue.replace("conformance-", "c-") + self.suffix
        self.where = self.client.create_queue(QueueName=self.queue, Attributes=self.settings)["QueueUrl"]

    def at(self, endpoint: str, queue: str) -> str:
        return f"sqs://{queue}?region={REGION}&endpoint={quote(endpoint)}&visibility={LEASE}"

    @property
    def url(self) -> str:
        return self.at(self.wire.url, self.queue)

    @property
    def missing(self) -> str:
        return self.at(self.wire.url, f"missing{self.suffix}")

    @property
    def unreachable(self) -> str:
        return self.at(f"http://127.0.0.1:{unused_port()}", self.queue)

    def cut(self) -> None:
        self.wire.proxy.cut()

    def restore(self) -> None:
        self.wire.proxy.mend()

    def close(self) -> None:
        super().close()
        self.client.delete_queue(QueueUrl=self.where)
        self.client.close()


class FifoBench(SqsBench):
    """A FIFO queue without deduplication by content. It hands out nothing of a group that is held."""

    name = "sqs-fifo"
    ordered = keyed = True
    ahead = False
    suffix = ".fifo"
    settings: ClassVar[dict[str, str]] = {"FifoQueue": "true"}


BENCHES = (SqsBench, FifoBench)

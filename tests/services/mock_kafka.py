"""The mock cluster of librdkafka: several brokers in this process, which clients of any process can reach.

It has consumer groups with the classic protocol, and refuses what a member says that the group has left behind. A
topic is made, with four partitions, when a client first asks for it; it cannot be made or deleted by an administrator,
and lives as long as the process.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

BROKERS = 3


class MockKafka:
    """A cluster of three brokers; `servers` is what a client's `bootstrap.servers` takes."""

    def __init__(self) -> None:
        from confluent_kafka import Producer

        self._holder = Producer(
            {"test.mock.num.brokers": BROKERS, "bootstrap.servers": "unused", "log_level": 0}
        )
        brokers = self._holder.list_topics(timeout=10).brokers.values()
        self.servers = ",".join(f"{one.host}:{one.port}" for one in brokers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The cluster ends with its last client.
        del self._holder

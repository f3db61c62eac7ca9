"""Partitions that are added in mid-stream: the keys move, and the order is the consumer's."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

import psycopg
import pytest
from confluent_kafka import Producer

from onefold.infrastructure.consuming.consumption import Consumption

from ..infrastructure.consuming.desk import (
    TABLE,
    balances,
    dead_letters,
    deposits,
    disordered,
    envelope,
    outcomes,
    parked,
)
from ..infrastructure.consuming.running import Running, until
from .bench_kafka import SETTINGS

ACCOUNTS = [f"a{number}" for number in range(12)]
Publish = Callable[[int, range], None]


@pytest.fixture
def topic(mock_kafka: str, unique_name: Callable[[], str]) -> str:
    """A topic with four partitions."""
    name = unique_name()
    Producer({"bootstrap.servers": mock_kafka}).list_topics(name, timeout=10)
    return name


@pytest.fixture
def publish(mock_kafka: str, topic: str) -> Publish:
    """Publishes deposits of these versions, each to the partition of its key among so many."""

    def send(partitions: int, versions: range) -> None:
        producer = Producer({"bootstrap.servers": mock_kafka, "acks": "all"})
        for version in versions:
            for account in ACCOUNTS:
                message = envelope(account, version)
                producer.produce(
                    topic,
                    message.body,
                    account,
                    partition=zlib.crc32(account.encode()) % partitions,
                    headers=dict(message.headers),
                )
        assert producer.flush(10) == 0

    return send


@pytest.fixture
def workers(mock_kafka: str, topic: str, database_url: str) -> Iterator[Callable[[], Running]]:
    """Starts workers of one group."""
    made: list[Running] = []

    def start() -> Running:
        url = f"kafka://{mock_kafka}/{topic}{SETTINGS}"
        made.append(Running(Consumption(database_url, deposits(), url, batch=10)))
        return made[-1]

    yield start
    for each in made:
        each.finish()


def test_keys_that_move_to_added_partitions_keep_their_order(
    publish: Publish, workers: Callable[[], Running], connection: psycopg.Connection[object]
) -> None:
    """C21: not the partition but the version keeps the order, so later messages may come from a partition before."""
    connection.execute(TABLE)
    moved = [account for account in ACCOUNTS if zlib.crc32(account.encode()) % 4 > 1]
    assert 0 < len(moved) < len(ACCOUNTS)
    for _ in range(2):
        workers()
    publish(4, range(4, 7))
    until(lambda: outcomes(connection).get("parked", 0) == 3 * len(ACCOUNTS), 40)
    publish(2, range(1, 4))
    until(lambda: outcomes(connection).get("applied", 0) == 6 * len(ACCOUNTS), 40)
    assert balances(connection) == dict.fromkeys(sorted(ACCOUNTS), 6)
    assert disordered(connection) == []
    assert (parked(connection), dead_letters(connection)) == ([], [])

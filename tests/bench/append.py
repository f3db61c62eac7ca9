"""Append of single events, by 1, 4 and 16 threads of one process."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import psycopg

from onefold.infrastructure.identity import new_event_id
from onefold.infrastructure.postgres.log import EventLog
from onefold.infrastructure.postgres.pool import open_pool
from onefold.infrastructure.postgres.repository import Repository

from .measure import Case, rate_of_threads
from .model import Order, PeerOrder
from .peer import Peer

PLAIN = """
CREATE TABLE IF NOT EXISTS plain_events (
    position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    version bigint NOT NULL,
    occurred_at timestamptz NOT NULL, recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    event_id uuid NOT NULL UNIQUE, schema_version integer NOT NULL DEFAULT 1,
    stream text COLLATE "C" NOT NULL, type text COLLATE "C" NOT NULL, data jsonb NOT NULL, metadata jsonb,
    UNIQUE (stream, version))
"""
INSERT = (
    "INSERT INTO plain_events (version, occurred_at, event_id, stream, type, data)"
    " VALUES (%s, %s, %s, %s, %s, %s) RETURNING position"
)
DATA = {"customer_id": "customer-7", "currency": "EUR", "items": 2}


def cases(url: str, peer: Peer, *, events: int = 4000) -> list[Case]:
    """Return the cases of 1, 4 and 16 writers."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(PLAIN)
    return [
        Case(
            f"append, {writers} writer{'s' if writers > 1 else ''}",
            "events/s",
            {
                "onefold": lambda writers=writers: onefold(url, writers, events),
                "eventsourcing": lambda writers=writers: peer_rate(peer, writers, events // 4),
                "limit": lambda writers=writers: limit(url, writers, events),
            },
        )
        for writers in (1, 4, 16)
    ]


def onefold(url: str, writers: int, events: int) -> float:
    """Return saves per second through the repository."""
    with open_pool(url, size=writers) as pool:
        repository = Repository(EventLog(pool), Order)

        def work(_: int) -> Callable[[], object]:
            def save() -> None:
                order = Order.new(str(uuid.uuid4()))
                order.emit(Order.Placed(**DATA), at=datetime.now(UTC))
                repository.save(order)

            return save

        rate_of_threads(writers, writers * 20, work)
        return rate_of_threads(writers, events, work)


def peer_rate(peer: Peer, writers: int, events: int) -> float:
    """Return saves per second through the library's application."""
    with peer.application(pool=writers) as application:

        def work(_: int) -> Callable[[], object]:
            return lambda: application.save(PeerOrder(**DATA))

        rate_of_threads(writers, writers * 5, work)
        return rate_of_threads(writers, events, work)


def limit(url: str, writers: int, events: int) -> float:
    """Return plain inserts per second, each thread on a connection of its own."""
    connections = [psycopg.connect(url, autocommit=True) for _ in range(writers)]
    try:

        def work(number: int) -> Callable[[], object]:
            connection: psycopg.Connection[Any] = connections[number]

            def insert() -> None:
                values = (
                    1,
                    datetime.now(UTC),
                    new_event_id(),
                    f"order/{uuid.uuid4()}",
                    "bench.placed",
                    json.dumps(DATA),
                )
                connection.execute(INSERT, values, prepare=True).fetchone()

            return insert

        rate_of_threads(writers, writers * 20, work)
        return rate_of_threads(writers, events, work)
    finally:
        for connection in connections:
            connection.close()

"""A log of orders that is sealed in small ranges, and somebody who may do everything in its database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import Connection
from psycopg.types.json import Jsonb

from onefold.domain.content import FIRST, checks_of, content_hash, event_hash, fields_of
from onefold.infrastructure.connection import connected
from onefold.infrastructure.identity import new_event_id
from onefold.infrastructure.sealing.contents import Contents
from onefold.infrastructure.sealing.sealer import Sealed, Sealer

APPEND = (
    "INSERT INTO onefold.events (version, event_id, stream, type, data, metadata, occurred_at)"
    " VALUES (%s, %s, %s, %s, %s, %s, '2026-03-01 12:30:00.000001+00') RETURNING position"
)
RANGE = 10


def append(connection: Connection[Any], stream: str, version: int, **data: Any) -> int:
    values = (version, new_event_id(), stream, "order.placed", Jsonb(data), Jsonb({"actor": "ada"}))
    row = connection.execute(APPEND, values).fetchone()
    assert row is not None
    position: int = row[0]
    return position


def sealed(url: str, to: Path | None = None, **options: Any) -> Sealed:
    with connected(url) as connection:
        return Sealer(connection, to=to, events_at_once=RANGE, **options).run()


@pytest.fixture
def url(database_url: str) -> str:
    """A log of 4 streams of 6 events each, in turns, at positions 1 to 24; not sealed."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        for version in range(1, 7):
            for number in range(1, 5):
                append(connection, f"order/{number}", version, amount=f"{number * 10 + version}.90")
    return database_url


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "seals.jsonl"


@pytest.fixture
def sealed_url(url: str, file: Path) -> str:
    """The same, sealed and handed out: positions 1 to 10, 11 to 20 and 21 to 24."""
    assert sealed(url, file).seals == 3
    return url


@contextmanager
def superuser(url: str) -> Iterator[Connection[Any]]:
    """A connection of somebody who has switched off all guards."""
    with psycopg.connect(url, autocommit=True) as connection:
        for table in ("events", "events_hashes", "seals"):
            connection.execute(f"ALTER TABLE onefold.{table} DISABLE TRIGGER ALL")  # type: ignore[arg-type]
        yield connection


def recompute(connection: Connection[Any], stream: str) -> None:
    """Make the hashes of a stream anew, as somebody does who knows how."""
    rows = connection.execute("SELECT position FROM onefold.events WHERE stream = %s", (stream,)).fetchall()
    before, hash_before = None, FIRST
    connection.execute("DELETE FROM onefold.events_hashes WHERE stream = %s", (stream,))
    for position, content in list(Contents(connection, "events").at([position for (position,) in rows])):
        fields = fields_of(content)
        hash_before = event_hash(hash_before, content_hash(content))
        connection.execute(
            "INSERT INTO onefold.events_hashes VALUES (%s, %s, %s, %s, %s, %s)",
            (
                position,
                before,
                int.from_bytes(fields[1] or b"", "big"),
                stream,
                hash_before,
                checks_of(fields),
            ),
        )
        before = position


def reseal(connection: Connection[Any], url: str) -> None:
    """Make all hashes and seals anew."""
    connection.execute("DELETE FROM onefold.events_hashes")
    connection.execute("DELETE FROM onefold.seals")
    sealed(url)

"""History: what happened to one stream, as the log keeps it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import class_row
from psycopg.sql import Identifier

from ..domain.errors import OnefoldError
from .postgres.sql import statement

ROWS_AT_ONCE = 500


class UnknownLog(OnefoldError, LookupError):
    """A log is named that the database does not have."""


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """An event as it is stored: nothing is decoded or upcast, so its type need not be known.

    `data` and `metadata` are JSON texts. Data that is not JSON is in `raw` and `data` is None.
    """

    position: int
    version: int
    occurred_at: datetime
    recorded_at: datetime
    event_id: UUID
    schema_version: int
    stream: str
    type: str
    data: str | None
    raw: bytes | None
    metadata: str | None


def logs(connection: psycopg.Connection[Any]) -> list[str]:
    """Return the names of the database's logs."""
    return [name for (name,) in connection.execute(statement("logs"))]


def require_log(connection: psycopg.Connection[Any], name: str) -> None:
    """Raise `UnknownLog`, listing those there are, unless the database has a log of this name."""
    known = logs(connection)
    if name not in known:
        raise UnknownLog(f"expected one of the logs {', '.join(known) or '(none)'}, found {name!r}")


def history(
    connection: psycopg.Connection[Any], stream: str, *, log: str = "events"
) -> Iterator[RecordedEvent]:
    """Return the events of a stream in the order of their versions, read a few hundred at a time.

    Nothing for a stream without events. Raises `UnknownLog`.
    """
    require_log(connection, log)
    query = statement("history", log=Identifier("onefold", log))
    after = -1
    with connection.cursor(row_factory=class_row(RecordedEvent)) as cursor:
        while page := cursor.execute(query, (stream, after, ROWS_AT_ONCE)).fetchall():
            yield from page
            after = page[-1].version

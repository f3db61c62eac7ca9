"""The survey: what of a log a rebuild will read, and whether it can be read stream by stream."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import psycopg
from psycopg.sql import Identifier

from ...domain.errors import UnknownEventType
from ...projections.bulk import failure_of
from ...projections.ports import Record
from ...projections.projection import Projection
from ..postgres.horizon import Horizon
from ..postgres.sql import statement


class Survey(NamedTuple):
    """What is in a log up to position `upto`: how many `events` the projection folds, and of which `category`.

    The category is None where one row may be that of several streams: such rows are folded in the order of the log.
    """

    upto: int
    events: int
    category: str | None


def horizon(
    connection: psycopg.Connection[Any], log: str, *, patience: float, stop: Callable[[], bool]
) -> int:
    """Return a position up to which nothing can appear any more: the log's present head, unless an append is open.

    Waits up to `patience` seconds for open appends; then it is as far as any projection of the log has come.
    `connection` reads raw.
    """
    found = Horizon("onefold", log)
    deadline = time.monotonic() + patience
    head = _number(connection.execute(statement("head", log=Identifier("onefold", log))))
    while (settled := found.settle(connection)) < head and time.monotonic() < deadline and not stop():
        time.sleep(0.01)
    reached = connection.execute(statement("highest_checkpoint"), ("onefold", log))
    return max(settled, min(head, _number(reached)))


def survey(connection: psycopg.Connection[Any], projection: Projection[Any], upto: int) -> Survey:
    """Look over the log up to a settled position.

    Raises `ProjectionFailed` at the first event of a type that nobody knows, unless the projection passes those over.
    """
    log = Identifier("onefold", projection.log)
    types = projection.types() or frozenset()
    events, categories, unknown, slashes = 0, set[str](), list[int](), True
    found = connection.execute(statement("rebuild_survey", log=log), {"upto": upto}).fetchall()
    for name, count, first, lowest, highest, bare in found:
        if name in types:
            events += count
            categories |= {lowest, highest}
            slashes = slashes and not bare
        elif projection.unknown == "stop" and not projection.registry.knows(name):
            unknown.append(first)
    if unknown:
        record = record_at(connection, projection.log, min(unknown))
        error = UnknownEventType(record[7], record[5], record[6], record[1], record[0])
        raise failure_of(projection.name, record, error) from error
    alone = projection.key is None and slashes and len(categories) == 1
    return Survey(upto, events, min(categories) if alone else None)


def record_at(connection: psycopg.Connection[Any], log: str, position: int) -> Record:
    """Return the event at a position; `connection` reads raw."""
    query = statement("rebuild_record", log=Identifier("onefold", log))
    found = connection.execute(query, (position,), binary=True).fetchone()
    assert found is not None
    record: Record = found
    return record


def _number(cursor: psycopg.Cursor[Any]) -> int:
    row = cursor.fetchone()
    return 0 if row is None else int(row[0])

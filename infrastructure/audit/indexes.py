"""Indexes for searching: made when they are asked for, since each of them makes appends slower."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.sql import SQL, Composed, Identifier

from ..history import require_log
from ..postgres.sql import statement
from .field import BadField, Path, path_of

COLUMNS = ("type", "occurred_at", "recorded_at")
"""Columns that are indexed, each together with the position."""

FIELDS = ("metadata.actor",)
"""Fields that are indexed whether others are named or not."""

METADATA = "metadata"
"""Indexed as a whole: correlations and causes have few events each, and so an index that costs little is enough."""

PAYLOAD = "data"
"""Indexed as a whole where any field is to be searched for."""

PENDING = 256
"""Kilobytes of entries that such an index collects before it merges them: all of them are read by every search."""


@dataclass(frozen=True, slots=True)
class SearchIndex:
    """An index for searching: what it is of, its name, and its size in bytes."""

    of: str
    name: str
    size: int


def valid_indexes(connection: psycopg.Connection[Any], log: str) -> frozenset[str]:
    """Return the names of a log's indexes for searching that are ready."""
    return frozenset(name for name, valid, _ in _present(connection, log) if valid)


def make_indexes(
    connection: psycopg.Connection[Any],
    *,
    fields: Iterable[str] = (),
    payload: bool = False,
    log: str = "events",
    begun: Callable[[str], None] = lambda _of: None,
) -> list[SearchIndex]:
    """Make the indexes for searching that are missing, of types, times, metadata and these fields; return all.

    With `payload` one of all data, too. Appends go on meanwhile. One that was broken off is made anew. The connection
    is in autocommit mode. Raises `BadField` and `UnknownLog`.
    """
    require_log(connection, log)
    named = (str(_indexable(text)) for text in (*FIELDS, *fields))
    wanted = [*COLUMNS, METADATA, *named, *([PAYLOAD] if payload else [])]
    present = {name: valid for name, valid, _ in _present(connection, log)}
    for of in dict.fromkeys(wanted):
        name = index_name(log, of)
        if present.get(name):
            continue
        begun(of)
        if name in present:
            _drop(connection, name)
        connection.execute(_definition(log, of))
        connection.execute(SQL("COMMENT ON INDEX {} IS {}").format(Identifier("onefold", name), of))
    connection.execute(SQL("ANALYZE {}").format(Identifier("onefold", log)))
    return list_indexes(connection, log=log)


def drop_indexes(connection: psycopg.Connection[Any], *, log: str = "events") -> list[SearchIndex]:
    """Remove all indexes for searching of a log, and return them. The connection is in autocommit mode."""
    found = list_indexes(connection, log=log)
    for name, _, _ in _present(connection, log):
        _drop(connection, name)
    return found


def list_indexes(connection: psycopg.Connection[Any], *, log: str = "events") -> list[SearchIndex]:
    """Return the indexes for searching of a log that are ready; raises `UnknownLog`."""
    require_log(connection, log)
    comment = SQL("SELECT obj_description({}::regclass, 'pg_class')")
    found: list[SearchIndex] = []
    for name, valid, size in _present(connection, log):
        if valid:
            row = connection.execute(
                comment.format(Identifier("onefold", name).as_string(connection))
            ).fetchone()
            found.append(SearchIndex((row and row[0]) or name, name, size))
    return found


def _present(connection: psycopg.Connection[Any], log: str) -> list[tuple[str, bool, int]]:
    table = Identifier("onefold", log).as_string(connection)
    return connection.execute(statement("audit_indexes"), {"log": table}).fetchall()


def _definition(log: str, of: str) -> Composed:
    table, name = Identifier("onefold", log), Identifier(index_name(log, of))
    if of in COLUMNS:
        return SQL("CREATE INDEX CONCURRENTLY {} ON {} ({}, position)").format(name, table, Identifier(of))
    if of in (METADATA, PAYLOAD):
        whole = SQL(
            "CREATE INDEX CONCURRENTLY {} ON {} USING gin ({} jsonb_path_ops) WITH (gin_pending_list_limit = {})"
        )
        return whole.format(name, table, Identifier(of), PENDING)
    value = path_of(of).value()
    return SQL("CREATE INDEX CONCURRENTLY {0} ON {1} (({2}), position) WHERE ({2}) IS NOT NULL").format(
        name, table, value
    )


def _drop(connection: psycopg.Connection[Any], name: str) -> None:
    connection.execute(SQL("DROP INDEX CONCURRENTLY IF EXISTS {}").format(Identifier("onefold", name)))


def _indexable(text: str) -> Path:
    path = path_of(text)
    if not path.indexable:
        raise BadField(
            f"expected a field with one value, found {text}, which has many; an index of all data finds it"
        )
    return path


def index_name(log: str, of: str) -> str:
    """Return the name of the index of a column, a field, or all metadata or data."""
    word = re.sub(r"\W+", "_", of.rpartition(".")[2].lower(), flags=re.ASCII)[:30].strip("_")
    return f"search_{word}_{hashlib.sha256(f'{log} {of}'.encode()).hexdigest()[:10]}"

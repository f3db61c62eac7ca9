"""What others have put on the serving table, and how the next one comes to have it too."""

from __future__ import annotations

import logging
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier

from ...projections.projection import Projection
from ..postgres.sql import statement
from ..postgres.table import POSITION, READ, Table
from .errors import RebuildBlocked

log = logging.getLogger("onefold.rebuild")

NEXT = "read_next"
"""Schema of the read models that are being built."""

BEFORE = "read_before"
"""Schema of the versions that served before."""


def regclass(schema: str, name: str) -> str:
    """Return a table's name as SQL reads it."""
    return Identifier(schema, name).as_string(None)


def exists(connection: psycopg.Connection[Any], schema: str, name: str) -> bool:
    """Tell whether there is such a table."""
    found = connection.execute("SELECT to_regclass(%s)", (regclass(schema, name),)).fetchone()
    return found is not None and found[0] is not None


def require_movable(connection: psycopg.Connection[Any], projection: Projection[Any]) -> None:
    """Raise `RebuildBlocked` when something hangs on the serving table that cannot be made anew on the next one."""
    if not exists(connection, READ, projection.name):
        return
    values = {"table": regclass(READ, projection.name)}
    obstacles = [text for (text,) in connection.execute(statement("rebuild_obstacles"), values)]
    types = {column.name: _type_name(connection, column.sql_type) for column in Table(projection).columns}
    types[POSITION] = "bigint"
    for view, column, kind in connection.execute(statement("rebuild_views"), values):
        if column is not None and types.get(column) != kind:
            found = "has no such column" if column not in types else f"has it as {types[column]}"
            obstacles.append(f"view {view}, which wants {column} as {kind} where the new table {found}")
    if obstacles:
        raise RebuildBlocked(projection.name, obstacles)


def carry_over(connection: psycopg.Connection[Any], projection: Projection[Any]) -> list[str]:
    """Put on the next table what is on the serving one; return the statements for which it lacks a column."""
    left: list[str] = []
    if not exists(connection, READ, projection.name):
        return left
    with connection.transaction():
        _look_into(connection, READ)
        values = {"table": regclass(READ, projection.name)}
        statements = [
            text for (text,) in connection.execute(statement("rebuild_belongings"), values).fetchall()
        ]
        _look_into(connection, NEXT, READ)
        for text in statements:
            try:
                with connection.transaction():
                    connection.execute(text.encode())
            except psycopg.errors.UndefinedColumn:
                log.warning("projection %s: the new table lacks a column for: %s", projection.name, text)
                left.append(text)
    return left


def _look_into(connection: psycopg.Connection[Any], *schemas: str) -> None:
    path = SQL(", ").join(Identifier(schema) for schema in schemas)
    connection.execute(SQL("SET LOCAL search_path = {}").format(path))


def _type_name(connection: psycopg.Connection[Any], sql_type: str) -> str:
    found = connection.execute("SELECT format_type(%s::regtype, NULL)", (sql_type,)).fetchone()
    assert found is not None
    return str(found[0])

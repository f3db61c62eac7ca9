"""Connections: a small pool whose connections are in autocommit mode and read records raw."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.rows import tuple_row
from psycopg_pool import ConnectionPool

from ..connection import conninfo
from .columns import register
from .wire import read_raw


class Connection(psycopg.Connection[Any]):
    """A connection whose binary results are raw (see `wire.read_raw`)."""


Pool = ConnectionPool[Connection]


def raw_cursor(connection: psycopg.Connection[Any]) -> psycopg.Cursor[Any]:
    """Return a cursor with raw binary results on any connection; on one of the pool's it costs nothing."""
    cursor = connection.cursor(binary=True, row_factory=tuple_row)
    if not isinstance(connection, Connection):
        read_raw(cursor)
    return cursor


def configure(connection: psycopg.Connection[Any]) -> None:
    """Prepare a connection of the product: raw reads in binary results, packed columns as parameters."""
    read_raw(connection)
    register(connection)
    connection.prepared_max = 200


@contextmanager
def open_pool(url: str, *, size: int = 4, application: str = "onefold") -> Iterator[Pool]:
    """Open a pool of up to `size` connections to `url`; they are opened when they are first needed."""
    pool: Pool = ConnectionPool(
        conninfo(url, application=application),
        connection_class=Connection,
        min_size=1,
        max_size=size,
        open=False,
        configure=configure,
        kwargs={"autocommit": True},
    )
    pool.open()
    try:
        yield pool
    finally:
        pool.close()

"""The datastore: connections for the recorders of the `eventsourcing` library, and when to try again."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from typing import Any, Self, TypeVar

import psycopg
import psycopg_pool
from eventsourcing.persistence import PersistenceError
from eventsourcing.postgres import PostgresDatastore
from psycopg import Connection
from psycopg.rows import DictRow, dict_row, tuple_row
from psycopg.sql import SQL, Literal

from .log import lost

T = TypeVar("T")

ATTEMPTS = 8
FIRST_WAIT = 0.05
"""Seconds before the second attempt; each further wait is twice as long, up to a second."""

_POOL_ERRORS = (psycopg_pool.PoolTimeout, psycopg_pool.PoolClosed, psycopg_pool.TooManyRequests)
# Serialization failure, deadlock: the server has rolled the transaction back and asks for another try.
_ROLLED_BACK = frozenset({"40001", "40P01"})
# The server ended an idle connection.
_ENDED = frozenset({"25P03", "57P05"})


class Datastore(PostgresDatastore):
    """The library's datastore, on a connection string of any kind that libpq reads."""

    @classmethod
    def like(cls, other: PostgresDatastore, *, conninfo: str | None, application: str) -> Self:
        """Return a datastore with the settings of `other`, and with its server unless `conninfo` is given.

        `application` is the name under which the server lists the connections, unless they have another.
        """
        pool = other.pool
        kwargs = pool.kwargs
        assert isinstance(kwargs, dict)
        datastore = cls(
            kwargs["dbname"],
            kwargs["host"],
            kwargs["port"],
            kwargs["user"],
            kwargs["password"],
            connect_timeout=pool.timeout,
            idle_in_transaction_session_timeout=other.idle_in_transaction_session_timeout,
            pool_size=pool.min_size,
            max_overflow=pool.max_size - pool.min_size,
            max_waiting=pool.max_waiting,
            conn_max_age=pool.max_lifetime,
            pre_ping=other.pre_ping,
            lock_timeout=other.lock_timeout,
            schema=other.schema,
            pool_open_timeout=other.pool_open_timeout,
            get_password_func=pool.get_password_func,
            single_row_tracking=other.single_row_tracking,
            originator_id_type="text" if other.originator_id_type == "text" else "uuid",
        )
        if conninfo is not None:
            datastore.pool.conninfo = conninfo
            datastore.pool.kwargs = {"row_factory": dict_row}
        datastore.pool.kwargs = {**_mapping(datastore.pool.kwargs), "fallback_application_name": application}
        return datastore

    def after_connect_func(self) -> Callable[[Connection[Any]], None]:
        """Return what prepares a new connection; waits for locks end after `lock_timeout` seconds (0: never)."""
        prepare = super().after_connect_func()
        statement = SQL("SET lock_timeout = {}").format(Literal(f"{self.lock_timeout}s"))

        def after_connect(connection: Connection[DictRow]) -> None:
            prepare(connection)
            connection.execute(statement)

        return after_connect


def connect(datastore: PostgresDatastore) -> Connection[tuple[Any, ...]]:
    """Open a connection outside of the pool, in autocommit mode; the pool may be as small as one."""
    pool = datastore.pool
    conninfo = pool.conninfo
    assert isinstance(conninfo, str)
    kwargs = _mapping(pool.kwargs)
    if pool.get_password_func is not None:
        kwargs["password"] = pool.get_password_func()
    kwargs.update(row_factory=tuple_row, autocommit=True)
    return Connection.connect(conninfo, **kwargs)


def retried(datastore: PostgresDatastore, operation: Callable[[int], T]) -> T:
    """Return what `operation` returns, which is called with the number of its attempt from 0.

    It is tried again when the connection was lost or the server rolled it back for others; what it did before may
    then be committed. A lock that was waited for in vain, or a pool without a free connection, is not tried again.
    """
    wait = FIRST_WAIT
    for attempt in range(ATTEMPTS - 1):
        try:
            return operation(attempt)
        except PersistenceError as error:
            if not _passing(error.__cause__):
                raise
        with contextlib.suppress(psycopg.Error):
            # After a restart of the server every connection of the pool is broken.
            datastore.pool.check()
        time.sleep(wait * random.uniform(0.75, 1.25))  # noqa: S311
        wait = min(2 * wait, 1.0)
    return operation(ATTEMPTS - 1)


def _passing(cause: BaseException | None) -> bool:
    if not isinstance(cause, psycopg.Error) or isinstance(cause, _POOL_ERRORS):
        return False
    if isinstance(cause, psycopg.InterfaceError) or lost(cause):
        return True
    return cause.sqlstate in _ROLLED_BACK or cause.sqlstate in _ENDED


def _mapping(kwargs: Any) -> dict[str, Any]:
    assert isinstance(kwargs, dict)
    return dict(kwargs)

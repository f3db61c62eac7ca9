"""The session: a worker's connection, its number, and the processor that works on it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import psycopg

from ...domain.errors import OnefoldError
from ...projections.consumer import Consumer
from ..connection import connected
from ..postgres.inbox import ConsumerChanged, Inbox, register
from ..postgres.log import Announcer, EventLog
from ..postgres.maintenance import maintain
from ..postgres.pool import Pool, configure, open_pool
from ..postgres.repository import Repository
from ..postgres.sql import statement
from ..postgres.table import Table
from .arrivals import Reader
from .folding import Span
from .notices import Notices
from .observed import Observed
from .processor import Processor

LOCK_TIMEOUT = 2.0
"""Seconds that a key or a sequence is waited for that another worker has in hand."""

IDLE_TIMEOUT = 120.0
"""Seconds that a function may work without a word to the database, before the server ends its transaction."""


WATCH = 2.0
"""Seconds within which the server finds out, in the middle of a statement, that its worker is gone."""


class Session:
    """A connection to the database for one worker of a consumer."""

    def __init__(
        self,
        url: str,
        consumer: Consumer,
        reader: Reader,
        *,
        log: str = "events",
        announcer: Announcer | None = None,
        observed: Observed | None = None,
        notices: Notices | None = None,
        span: Span | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._stack = contextlib.ExitStack()
        try:
            self.connection = self._stack.enter_context(
                connected(
                    url, application=f"onefold {consumer.name} consume", target_session_attrs="read-write"
                )
            )
            configure(self.connection)
            for name, value in (
                # Milliseconds.
                ("lock_timeout", str(round(LOCK_TIMEOUT * 1000))),
                ("idle_in_transaction_session_timeout", str(round(IDLE_TIMEOUT * 1000))),
                # A claim that waited for another must see what that one has committed.
                ("default_transaction_isolation", "read committed"),
            ):
                self.connection.execute("SELECT set_config(%s, %s, false)", (name, value))
            # What is acknowledged must not be lost with the server; with other values it is not.
            self.connection.execute(
                "SELECT set_config('synchronous_commit', 'local', false) "
                "WHERE current_setting('synchronous_commit') = 'off'"
            )
            # Some systems have no means to watch a connection.
            with contextlib.suppress(psycopg.DataError):
                self.connection.execute(
                    "SELECT set_config('client_connection_check_interval', %s, false)",
                    (str(round(WATCH * 1000)),),
                )
            self.number = register(self.connection, consumer)
            if consumer.fold is not None:
                prepare_table(self.connection, consumer, self.number)
            maintain(self.connection)
            self.worker = draw_number(self.connection)
            self.database = identity(self.connection)
            # What dead workers had in hand is counted before anything of it is tried again.
            reap(self.connection)
            self._pool: Pool | None = None
            self._url = url
            self._log = log
            self._announcer = announcer
            self._registry = consumer.registry
            self._repositories: dict[type[Any], Repository[Any]] = {}
            self.inbox = Inbox(self.connection, self.number, self.worker)
            self.processor = Processor(
                consumer,
                self.inbox,
                self.repository,
                reader,
                observed=observed,
                notices=notices,
                span=span,
                stopping=stopping,
            )
            self._stack.callback(self.processor.close)
        except BaseException:
            self._stack.close()
            raise

    def repository(self, aggregate_class: type[Any]) -> Repository[Any]:
        """Return the repository of an aggregate class, which works on the connection that it is given."""
        found = self._repositories.get(aggregate_class)
        if found is None:
            if self._pool is None:
                self._pool = self._stack.enter_context(open_pool(self._url, size=1))
            event_log = EventLog(
                self._pool, name=self._log, registry=self._registry, announcer=self._announcer
            )
            found = self._repositories[aggregate_class] = Repository(event_log, aggregate_class)
        return found

    def close(self) -> None:
        """Close the connection; what is in hand is noted as let go, if that can still be said."""
        with contextlib.suppress(psycopg.Error):
            if not self.connection.broken:
                self.inbox.unmark()
        self._stack.close()


def identity(connection: psycopg.Connection[Any]) -> str:
    """Return what tells this database from every other, and from what it was before a failover or a restore."""
    row = connection.execute(statement("database_identity")).fetchone()
    assert row is not None
    return str(row[0])


def draw_number(connection: psycopg.Connection[Any]) -> int:
    """Return a number that no other living worker has; the session holds its lock."""
    for _ in range(100):
        row = connection.execute(statement("inbox_number")).fetchone()
        assert row is not None
        if row[1]:
            return int(row[0])
    raise OnefoldError("expected a free worker number among a hundred, found none; end some of the workers")


def reap(connection: psycopg.Connection[Any]) -> int:
    """Count a failed try for what dead workers had in hand; return how many messages that were."""
    return connection.execute(statement("inbox_reap")).rowcount


def prepare_table(connection: psycopg.Connection[Any], consumer: Consumer, number: int) -> None:
    """Make the table that a consumer folds into, if it has folded nothing yet.

    Raises `ConsumerChanged` when the table is gone, or is another's.
    """
    assert consumer.fold is not None
    name = consumer.fold.name
    table = Table(consumer.fold)
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (name,))
        row = connection.execute(
            statement("inbox_table"),
            {"table": table.name.as_string(connection), "projection": name, "consumer": number},
        ).fetchone()
        assert row is not None
        is_there, has_begun, other = row
        if other is not None:
            raise ConsumerChanged(
                f"consumer {consumer.name} folds into table read.{name}, which {other} writes: each would overwrite "
                "what the other has written; give the projection of one of them another name"
            )
        if is_there:
            return
        if has_begun:
            raise ConsumerChanged(
                f"consumer {consumer.name}: expected table read.{name}, which it has folded messages into, found "
                "none: they are not in the log and cannot be folded again; restore the table, or give consumer and "
                "projection other names, and consume anew from the broker"
            )
        table.create(connection)

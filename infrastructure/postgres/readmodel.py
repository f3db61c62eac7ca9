"""Read models in PostgreSQL: rows and checkpoint change in one transaction, under a lease."""

from __future__ import annotations

import os
import secrets
import socket
import struct
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.sql import SQL, Identifier
from pydantic_core import to_json

from ...projections.errors import FailedEvent, HandlerFailed, RowRefused
from ...projections.ports import Checkpoint, Kept, Key, LogReader, Page
from ...projections.projection import AnyProjection, Handler, Projection
from .errors import BrokenTransaction, Fenced, ReadModelChanged
from .sql import statement
from .table import READ, PackedRows, Table

MOVE = "SELECT onefold.move_checkpoint(%s, %s, %s, %s, %s, %s)"
SHARE = 0.3
"""Part of its lease that a worker gives to the handlers of one transaction; the session ends after a whole one."""

FENCED = "OF001"
"""SQLSTATE of a checkpoint that is no longer where its worker has left it; see migration 0001."""

REFUSALS = (
    psycopg.DataError,
    psycopg.IntegrityError,
    psycopg.ProgrammingError,
    psycopg.NotSupportedError,
    psycopg.errors.ProgramLimitExceeded,
    psycopg.errors.StatementTooComplex,
    TypeError,
    ValueError,
    ArithmeticError,
    struct.error,
)
"""What trying again cannot mend: the page holds an event whose outcome cannot be written."""


def worker_name() -> str:
    """Return a name that no other worker has: host, process, and a random part."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def prepare(connection: psycopg.Connection[Any], projection: AnyProjection) -> None:
    """Make the projection's checkpoint and tables if they are not there; safe to call from several processes.

    Raises `ReadModelChanged` when the table was built by another shape or version of the projection.
    """
    fingerprint = projection.fingerprint()
    found = connection.execute(
        "SELECT fingerprint FROM onefold.checkpoints WHERE projection = %s AND segment = 0",
        (projection.name,),
    ).fetchone()
    if found is None:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (projection.name,))
            made = connection.execute(
                statement("new_checkpoint"), (projection.name, 0, projection.log, fingerprint)
            )
            if made.rowcount:
                make_tables(connection, projection)
                return
        found = connection.execute(
            "SELECT fingerprint FROM onefold.checkpoints WHERE projection = %s AND segment = 0",
            (projection.name,),
        ).fetchone()
    if found is not None and found[0] != fingerprint:
        raise ReadModelChanged(projection.name)


def make_tables(connection: psycopg.Connection[Any], projection: AnyProjection) -> None:
    """Make the projection's tables anew, without rows."""
    if isinstance(projection, Projection):
        Table(projection).create(connection)
        return
    for name in reversed(projection.tables):
        connection.execute(SQL("DROP TABLE IF EXISTS {}").format(qualified(name)))
    if projection.create:
        connection.execute(projection.create.encode())


def empty_tables(connection: psycopg.Connection[Any], projection: AnyProjection) -> bool:
    """Empty the projection's tables, which keep their grants, indexes and the views on them.

    False, and nothing done, when one of them is not there.
    """
    names = [f"read.{projection.name}"] if isinstance(projection, Projection) else projection.tables
    tables = [qualified(name) for name in names]
    for table in tables:
        found = connection.execute("SELECT to_regclass(%s)", (table.as_string(connection),)).fetchone()
        if found is None or found[0] is None:
            return False
    if tables:
        connection.execute(SQL("TRUNCATE {}").format(SQL(", ").join(tables)))
    return True


class ReadModelStore:
    """One projection's rows and checkpoint, for one worker.

    `writer` is used for claims and writes, `loader` for reading rows; they may be used by two threads at the same
    time and must not be the same connection. Both are in autocommit mode. `schema` and `segment` say which version of
    the read model it is: the serving one, or one beside it.
    """

    def __init__(
        self,
        projection: AnyProjection,
        writer: psycopg.Connection[Any],
        loader: psycopg.Connection[Any],
        reader: LogReader,
        *,
        owner: str,
        segment: int = 0,
        schema: str = READ,
    ) -> None:
        self.projection = projection
        self.owner = owner
        self._writer = writer
        self._loader = loader
        self._reader = reader
        self._table = Table(projection, schema) if isinstance(projection, Projection) else None
        self._who = {
            "projection": projection.name,
            "segment": segment,
            "owner": owner,
            "lease": projection.lease,
        }
        self._claim = statement("claim")
        self._held: Checkpoint | None = None
        self._built_as: str | None = None
        self._renewed = 0.0
        # A worker that is stopped in mid-transaction must not block the one that replaces it.
        writer.execute(
            "SELECT set_config('idle_in_transaction_session_timeout', %s, false)",
            (str(max(1, round(projection.lease * 1000))),),
        )

    def claim(self) -> Checkpoint | None:
        """Take or renew the lease; None while another worker holds it. Asks the database each third of a lease."""
        now = time.monotonic()
        if self._held is not None and now - self._renewed < self.projection.lease / 3:
            return self._held
        row = self._writer.execute(self._claim, self._who, prepare=True).fetchone()
        if row is None:
            self._held = None
            return None
        if row[2] != self.projection.fingerprint():
            raise ReadModelChanged(self.projection.name)
        self._held = Checkpoint(row[0], row[1])
        self._renewed = now
        return self._held

    def load(self, keys: Collection[Key]) -> Mapping[Key, Kept]:
        """Return the stored rows of these keys; raises `RowRefused` for a key that does not fit its column."""
        assert self._table is not None
        try:
            return self._table.load(self._loader, keys)
        except REFUSALS as error:
            if self._held is not None and self._was_replaced(self._loader, self._held):
                raise Fenced(self.projection.name, self._held.position) from error
            raise RowRefused(error) from error

    def pack(self, changes: Mapping[Key, Kept]) -> PackedRows | None:
        """Return changed rows made ready for `write`, None for no change."""
        assert self._table is not None
        try:
            return self._table.pack(changes) if changes else None
        except REFUSALS as error:
            raise RowRefused(error) from error

    def write(self, packed: PackedRows | None, at: Checkpoint, upto: int) -> Checkpoint:
        """Write rows and move the checkpoint, in one transaction."""
        assert self._table is not None
        with self._fenced(at):
            if packed is not None:
                self._table.write(self._writer, packed, self._move(at, upto))
            else:
                self._writer.execute(MOVE, self._move(at, upto), prepare=True)
        return self._moved(at, upto)

    def handle(self, page: Page, at: Checkpoint) -> Checkpoint:
        """Run the projection's statements or handlers over a page, and move the checkpoint, in one transaction."""
        projection, reached = self.projection, page.upto
        with self._fenced(at), self._writer.transaction():
            # First the fence, from here to here: nothing of a worker that was replaced may run.
            self._writer.execute(MOVE, self._move(at, at.position), prepare=True)
            if isinstance(projection, Handler):
                reached = self._run_handlers(projection, page)
            elif not isinstance(projection, Projection):
                for text in projection.statements:
                    self._writer.execute(text.encode(), {"after": page.after, "upto": page.upto})
            self._writer.execute(MOVE, self._move(at, reached), prepare=True)
        return self._moved(at, reached)

    def note_failure(self, event: FailedEvent) -> int:
        """Keep the failure for the status; return how many times in a row the projection has failed."""
        failure = to_json(event._asdict()).decode()
        row = self._writer.execute(statement("note_failure"), {**self._who, "failure": failure}).fetchone()
        return 1 if row is None else int(row[0])

    def reset(self) -> None:
        """Empty the tables, or make them anew if their shape changed, and set the checkpoint to 0, in one transaction.

        The lease must be held, by `claim_for_rebuild`.
        """
        held = self._held
        if held is None:
            raise Fenced(self.projection.name, 0)
        with self._writer.transaction():
            values = {
                **self._who,
                "token": held.token,
                "log": self.projection.log,
                "fingerprint": self.projection.fingerprint(),
            }
            if self._writer.execute(statement("reset_checkpoint"), values).rowcount != 1:
                raise Fenced(self.projection.name, held.position)
            same = self._built_as == self.projection.fingerprint()
            if not (same and empty_tables(self._writer, self.projection)):
                make_tables(self._writer, self.projection)
        self._held = Checkpoint(0, held.token)

    def claim_for_rebuild(self) -> bool:
        """Take the lease whatever the fingerprint; false while another worker holds it."""
        row = self._writer.execute(self._claim, self._who).fetchone()
        self._held = None if row is None else Checkpoint(row[0], row[1])
        self._built_as = None if row is None else str(row[2])
        self._renewed = time.monotonic()
        return row is not None

    def release(self) -> None:
        """Give the lease up, so that another worker may take it at once."""
        self._held = None
        self._writer.execute(statement("release"), self._who)

    def _run_handlers(self, projection: Handler, page: Page) -> int:
        """Return the position reached: the end of the page, or where a part of the lease had passed."""
        handlers, types = projection.handlers, projection.types() or frozenset()
        deadline = time.monotonic() + SHARE * projection.lease
        handled = False
        for record in page.records:
            if record[7] not in types:
                continue
            if handled and time.monotonic() > deadline:
                return record[0] - 1
            handled = True
            try:
                event = self._reader.event(record)
                handler = handlers.get(type(event))
                if handler is None:
                    continue
                handler(event, self._writer)
                if self._writer.info.transaction_status != TransactionStatus.INTRANS:
                    raise BrokenTransaction
            except psycopg.OperationalError as error:
                if isinstance(error, REFUSALS):
                    raise HandlerFailed(error) from error
                raise
            except (Exception, SystemExit) as error:
                raise HandlerFailed(error) from error
        return page.upto

    def _move(self, at: Checkpoint, upto: int) -> tuple[Any, ...]:
        who = self._who
        return who["projection"], who["segment"], at.position, at.token, upto, who["lease"]

    @contextmanager
    def _fenced(self, at: Checkpoint) -> Iterator[None]:
        try:
            yield
        except REFUSALS as error:
            if self._was_replaced(self._writer, at):
                self._held = None
                raise Fenced(self.projection.name, at.position) from error
            raise RowRefused(error) from error
        except psycopg.DatabaseError as error:
            if error.sqlstate != FENCED:
                raise
            self._held = None
            raise Fenced(self.projection.name, at.position) from error

    def _was_replaced(self, connection: psycopg.Connection[Any], at: Checkpoint) -> bool:
        """Tell whether what refused a row may be the table of another version, that was put in place meanwhile."""
        found = connection.execute(
            "SELECT token FROM onefold.checkpoints WHERE projection = %(projection)s AND segment = %(segment)s",
            self._who,
        ).fetchone()
        return found is None or found[0] != at.token

    def _moved(self, at: Checkpoint, upto: int) -> Checkpoint:
        self._renewed = time.monotonic()
        self._held = Checkpoint(upto, at.token)
        return self._held


def qualified(name: str) -> Identifier:
    """Return the identifier of a table given as `schema.table`."""
    return Identifier(*name.split("."))

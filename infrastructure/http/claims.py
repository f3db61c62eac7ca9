"""Claims: one request has a key at a time, and what it answered is kept for the others."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Any, Literal, NamedTuple
from uuid import UUID, uuid4

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from ...domain.errors import OnefoldError
from ..consuming.transaction import TransactionEnded
from ..postgres.ledger import ISOLATED, UnfitTransaction
from ..postgres.log import lost
from ..postgres.pool import Connection, Pool
from ..postgres.sql import statement
from .key import Identity

Mode = Literal["lease", "transaction"]
"""How a key is claimed: for a time that is prolonged, or in the transaction in which the handler works."""

FENCED = "OF005"
"""SQLSTATE of a lease that was taken over; see migration 0007."""

PATIENCE = 5.0
"""Seconds that a request waits for a connection of the pool."""

TRIES = 3

_CLAIM = statement("http_claim")
_KEEP = statement("http_keep")
_RELEASE = statement("http_release")
_BEGIN = b"BEGIN ISOLATION LEVEL READ COMMITTED"
_SAVEPOINT = b"SAVEPOINT onefold_handler"
_BACK = b"ROLLBACK TO SAVEPOINT onefold_handler"


class RequestTakenOver(OnefoldError):
    """The lease of a request ran out and another one has the key now: nothing of this one is kept."""

    def __init__(self) -> None:
        super().__init__(
            "expected to hold the key of the request to its end, found that its lease ran out and was taken over; "
            "nothing of it is kept: give the middleware a longer lease, or mend what held this process up"
        )


class HandlerBrokeTransaction(OnefoldError):
    """A handler answered with success, and left the transaction of its request failed or ended."""

    def __init__(self) -> None:
        super().__init__(
            "expected the transaction to be open after the handler, found it failed or ended: a handler must not "
            "swallow an error of the database (use tx.savepoint() around what may fail), and must neither commit nor "
            "roll back; nothing of the request is kept"
        )


class Response(NamedTuple):
    """A response as it is kept: `headers` as pairs of text (latin-1), `recorded_at` once it is."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    recorded_at: datetime | None = None


class Busy(NamedTuple):
    """Another request has the key; `same` is false where that one is known to ask for something else."""

    same: bool


class Done(NamedTuple):
    """The key has a response; `same` is false where it is that of a request that asks for something else."""

    response: Response
    same: bool


class Work:
    """One request at work: its claim, and the transaction of its handler; used by one thread at a time.

    `asked` says which request it is, and is called where that may take a while. Without it there is no claim, and only
    the transaction.
    """

    def __init__(self, pool: Pool, asked: Callable[[], Identity] | None, lease: float) -> None:
        self._pool = pool
        self._asked = asked
        self._identity: Identity | None = None
        self._lease = lease
        # Between the thread that enters and the one that clears up after a request that was cancelled.
        self._turn = threading.RLock()
        self.over = False
        self._connection: Connection | None = None
        self.token: UUID | None = None

    @property
    def key(self) -> UUID | None:
        """The key, None for a request without one."""
        return None if self._identity is None else UUID(bytes=self._identity.key)

    def enter(self, mode: Mode) -> Busy | Done | None:
        """Claim the key; None if it is this request's now.

        In mode `transaction` the connection is held from here to the end. Raises `psycopg.Error`.
        """
        token = uuid4() if mode == "lease" else None
        with self._turn:
            if self.over:
                return Busy(same=True)
            assert self._asked is not None
            self._identity = self._asked()
            for number in range(TRIES):
                try:
                    found = self._try(token)
                    break
                except psycopg.OperationalError as error:
                    if number == TRIES - 1 or not lost(error):
                        raise
                    # Such as one that a restart of the server has cut; the token says if it had come through.
                    self._pool.check()
            else:
                raise AssertionError("unreachable")
            if found is None:
                self.token = token
            else:
                self.over = True
            return found

    def begin(self) -> Connection:
        """Return the connection with the transaction of the handler, begun now if it was not."""
        with self._turn:
            if self.over:
                raise TransactionEnded
            for number in range(TRIES):
                if self._connection is not None:
                    break
                self._connection = self._pool.getconn(PATIENCE)
                try:
                    self._connection.execute(_BEGIN)
                    self._connection.execute(_SAVEPOINT)
                except psycopg.OperationalError as error:
                    self._end(b"ROLLBACK")
                    if number == TRIES - 1 or not lost(error):
                        raise
                    self._pool.check()
            assert self._connection is not None
            return self._connection

    def finish(self, response: Response) -> Response:
        """Keep the response, with what the handler did if it says success, and commit; return it as kept.

        Raises `RequestTakenOver` and `HandlerBrokeTransaction`, and `psycopg.Error`; then nothing is kept, unless the
        connection was lost in mid-commit.
        """
        with self._turn:
            if self._connection is not None:
                return self._finish(self._connection, response)
            if self._identity is None:
                self.over = True
                return response
            for number in range(TRIES):
                try:
                    with self._pool.connection(PATIENCE) as connection:
                        kept = self._keep_alone(connection, response, again=number > 0)
                    self.over = True
                    return kept
                except psycopg.OperationalError as error:
                    if number == TRIES - 1 or not lost(error):
                        raise
                    self._pool.check()
            raise AssertionError("unreachable")

    def abandon(self) -> None:
        """Undo what the handler did, and let go of the key; does nothing where the work is over."""
        with self._turn:
            if self.over:
                return
            self.over = True
            self._end(b"ROLLBACK")
            if self.token is not None:
                # What cannot be reached now ends with the lease.
                with suppress(psycopg.Error), self._pool.connection(PATIENCE) as connection:
                    connection.execute(_RELEASE, (self.key, self.token), prepare=True)

    def _try(self, token: UUID | None) -> Busy | Done | None:
        assert self._identity is not None
        if token is not None:
            with self._pool.connection(PATIENCE) as connection:
                return self._claim(connection, token)
        connection = self._pool.getconn(PATIENCE)
        self._connection = connection
        claimed = False
        try:
            connection.execute(_BEGIN)
            found = self._claim(connection, None)
            if found is None:
                connection.execute(_SAVEPOINT)
                claimed = True
            return found
        finally:
            if not claimed:
                self._end(b"ROLLBACK")

    def _claim(self, connection: Connection, token: UUID | None) -> Busy | Done | None:
        assert self._identity is not None
        key, fingerprint = (UUID(bytes=each) for each in self._identity)
        lease = None if token is None else self._lease
        try:
            with connection.cursor(row_factory=tuple_row) as cursor:
                row = cursor.execute(_CLAIM, (key, fingerprint, token, lease), prepare=True).fetchone()
        except psycopg.errors.LockNotAvailable:
            return Busy(same=True)
        except psycopg.DatabaseError as error:
            if error.sqlstate == ISOLATED:
                raise UnfitTransaction(
                    f"expected a claim in isolation level read committed, found a {error.diag.message_primary}; "
                    "set default_transaction_isolation of the role or database"
                ) from error
            raise
        assert row is not None
        state, found, status, headers, body, recorded_at = row
        same = found is None or found == fingerprint
        if state == "busy":
            return Busy(same)
        if state == "done":
            return Done(Response(status, [(name, value) for name, value in headers], body, recorded_at), same)
        return None

    def _finish(self, connection: Connection, response: Response) -> Response:
        status = connection.info.transaction_status
        if response.status < 400:
            if status != TransactionStatus.INTRANS:
                raise HandlerBrokeTransaction
        elif status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            # The request is refused: the answer stays, and nothing else.
            connection.execute(_BACK)
        else:
            raise HandlerBrokeTransaction
        kept = response if self._identity is None else self._keep(connection, response)
        self._end(b"COMMIT")
        self.over = True
        return kept

    def _keep_alone(self, connection: Connection, response: Response, *, again: bool) -> Response:
        assert self.token is not None
        try:
            with connection.transaction():
                return self._keep(connection, response)
        except RequestTakenOver:
            if not again:
                raise
        # The try before may have come through: then what is kept is this response.
        found = self._claim(connection, self.token)
        if isinstance(found, Done) and found.response[:3] == response[:3]:
            return found.response
        raise RequestTakenOver

    def _keep(self, connection: Connection, response: Response) -> Response:
        assert self._identity is not None
        key, fingerprint = (UUID(bytes=each) for each in self._identity)
        values: tuple[Any, ...] = (
            key,
            fingerprint,
            self.token,
            response.status,
            json.dumps(response.headers),
            response.body,
        )
        try:
            with connection.cursor(row_factory=tuple_row) as cursor:
                row = cursor.execute(_KEEP, values, prepare=True).fetchone()
        except psycopg.errors.LockNotAvailable as error:
            # The row of a lease is locked for long only by a transaction that takes it over.
            if self.token is not None:
                raise RequestTakenOver from error
            raise
        except psycopg.DatabaseError as error:
            if error.sqlstate == FENCED:
                raise RequestTakenOver from error
            raise
        assert row is not None
        return response._replace(recorded_at=row[0])

    def _end(self, how: bytes) -> None:
        """End the transaction and give the connection back."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            if connection.info.transaction_status != TransactionStatus.IDLE:
                ended = connection.execute(how)
                if how == b"COMMIT" and ended.statusmessage == "ROLLBACK":
                    raise HandlerBrokeTransaction
        except psycopg.Error:
            if how == b"COMMIT":
                raise
        finally:
            self._pool.putconn(connection)

"""The transaction that a consumer's function works in."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.sql import Composable

from ...domain.aggregate import Aggregate
from ...domain.errors import OnefoldError
from ...domain.event import Event
from ...projections.effect import Effect
from ...projections.message import Message
from ...projections.publication import CARRIED, Posting
from ..effects.tasks import perform
from ..identity import new_event_id
from ..postgres import outbox
from ..postgres.errors import AggregateNotFound
from ..postgres.processes import ProcessRecords
from ..postgres.repository import Repository
from ..tracing import trace_of

A = TypeVar("A", bound=Aggregate)
Repositories = Callable[[type[Any]], Repository[Any]]

_ENDS = re.compile(
    r"(?:^|;)\s*(?:commit|end|abort|prepare\s+transaction|rollback(?!\s+(?:\w+\s+)?to\b))\b", re.IGNORECASE
)
_WORD = re.compile(r"\b(?:commit|end|abort|prepare|rollback)\b", re.IGNORECASE)
# Comments, and what a word may stand in that is no command.
_QUOTED = re.compile(
    r"--[^\n]*|/\*.*?\*/|\be'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|\"[^\"]*\"|\$(\w*)\$.*?\$\1\$",
    re.IGNORECASE | re.DOTALL,
)


class TransactionEnded(OnefoldError):
    """A transaction was used after its message was done with, as from a thread or task that was left running."""

    def __init__(self) -> None:
        super().__init__(
            "expected a call while the message is handled, found one afterwards; "
            "wait for everything that uses tx before the function returns"
        )


class TransactionNotYours(OnefoldError):
    """A function tried to commit or roll back the transaction of its message, which ends with the whole batch."""

    def __init__(self, statement: str = "") -> None:
        found = (
            repr(statement) if statement else "a commit, a rollback, or SET CONSTRAINTS ALL, by the function"
        )
        super().__init__(
            f"expected a statement that leaves the transaction open, found {found}: the keys of other messages "
            "are in it; raise an error to have it rolled back, or use tx.savepoint() for a part"
        )


class Transaction:
    """The open transaction of a message: what is done in it is committed together with the key, or not at all.

    `message` is the message as it arrived. The transaction is committed, or rolled back, by the consumer alone.
    """

    def __init__(
        self, connection: psycopg.Connection[Any], repositories: Repositories, message: Message, consumer: str
    ) -> None:
        self._connection: psycopg.Connection[Any] | None = connection
        self._repositories = repositories
        self._consumer = consumer
        # Held by each call, so that none of a thread that was left running begins in time and works too late.
        self._calls = threading.RLock()
        self.message = message

    @property
    def connection(self) -> psycopg.Connection[Any]:
        """The connection, for what the methods do not offer; never commit or roll back on it."""
        if self._connection is None:
            raise TransactionEnded
        # What came now would be committed by itself.
        if self._connection.pgconn.transaction_status == TransactionStatus.IDLE:
            raise TransactionNotYours
        return self._connection

    def execute(self, query: Any, parameters: Any = None) -> psycopg.Cursor[Any]:
        """Run one statement, with psycopg's parameters (`%s`, `%(name)s`), and return its cursor.

        Raises `TransactionNotYours` for one that would end the transaction.
        """
        with self._calls:
            connection = self.connection
            if found := _end_in(query, connection):
                raise TransactionNotYours(found)
            return connection.execute(query, parameters)

    @property
    def processes(self) -> ProcessRecords:
        """What is kept beside the streams of process managers; for these alone."""
        return ProcessRecords(self.execute)

    def get(self, aggregate_class: type[A], key: str) -> A:
        """Return the aggregate with this key, as this transaction sees it; raises `AggregateNotFound`."""
        repository: Repository[A] = self._repositories(aggregate_class)
        with self._calls:
            return repository.get(key, connection=self.connection)

    def find(self, aggregate_class: type[A], key: str) -> A | None:
        """Return the aggregate with this key, None if its stream has no events."""
        try:
            return self.get(aggregate_class, key)
        except AggregateNotFound:
            return None

    def save(self, aggregate: Aggregate, *, metadata: Mapping[str, Any] | None = None) -> Sequence[Event]:
        """Append what the aggregate decided; what caused it is noted in the metadata.

        Someone else's append to the same stream in between (`VersionConflict`) runs the message again.
        """
        repository: Repository[Any] = self._repositories(type(aggregate))
        with self._calls:
            return repository.save(
                aggregate, metadata={**self._causes(), **(metadata or {})}, connection=self.connection
            )

    def publish(
        self,
        message: Message | str,
        data: Any = None,
        *,
        to: str,
        key: str | None = None,
        subject: str | None = None,
        numbered: bool = False,
    ) -> str:
        """Write a message to the outbox, to go out through the channel `to` once this is committed; return its id.

        Give a message, or its type and its data, any JSON value; then it gets an id, the time, the consumer as its
        source, and what caused it. `key` is what its order is kept by, the subject where it is left out. With
        `numbered`, its extension `sequence` is the next number of the key in the channel, from 1 without a hole.
        """
        if isinstance(message, str):
            message = self._message(message, data, subject)
        with self._calls:
            outbox.write(self.connection, [Posting(to, message, key or message.subject, numbered)])
        return message.id

    def perform(self, effect: str | Effect, data: Any = None, *, key: str | None = None) -> str:
        """Ask for an effect, to be made once this is committed; return the key of its call.

        `data` is what its function gets: any JSON value, a pydantic model, or an event. The same `key` with equal data
        asks for nothing new, with other data it raises `EffectConflict`. Left out, each call of this asks for one.
        """
        with self._calls:
            return perform(self.connection, effect, data, key=key)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Run the body in a savepoint: an error that leaves it undoes only the body."""
        with self.connection.transaction():
            yield

    def end(self) -> None:
        """Refuse further use, once the call that is at work has ended."""
        with self._calls:
            self._connection = None

    def _message(self, kind: str, data: Any, subject: str | None) -> Message:
        causes = self._causes()
        extensions = {name: value for name, value in causes.items() if name in CARRIED}
        extensions["causationid"] = self.message.id
        if "correlation" in causes:
            extensions["correlationid"] = causes["correlation"]
        return Message(
            str(new_event_id()),
            f"/{self._consumer}",
            kind,
            data,
            subject,
            datetime.now(UTC),
            "application/octet-stream" if isinstance(data, bytes) else "application/json",
            extensions=extensions,
        )

    def _causes(self) -> dict[str, Any]:
        message = self.message
        found = {"causation": message.id, "consumer": self._consumer, **trace_of(message)}
        correlation = message.extensions.get("correlationid")
        return found if correlation is None else {**found, "correlation": str(correlation)}


def _end_in(query: Any, connection: psycopg.Connection[Any]) -> str:
    """Return what would end a transaction in a query of one statement or several, empty if nothing would."""
    if isinstance(query, Composable):
        query = query.as_string(connection)
    text = query.decode(errors="replace") if isinstance(query, bytes) else query
    if not isinstance(text, str) or not _WORD.search(text):
        return ""
    found = _ENDS.search(_QUOTED.sub(_blank, text))
    return "" if found is None else " ".join(found.group().lstrip(";").split())


def _blank(match: re.Match[str]) -> str:
    # What is quoted is something; a comment is nothing.
    return " " if match.group().startswith(("--", "/*")) else "''"


class AsyncTransaction:
    """`Transaction` for a function that is `async`: the same methods, to be awaited."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self.message = transaction.message

    async def execute(self, query: Any, parameters: Any = None) -> psycopg.Cursor[Any]:
        """Run one statement; the rows of its cursor are at hand already and are fetched without waiting."""
        return await asyncio.to_thread(self._transaction.execute, query, parameters)

    async def get(self, aggregate_class: type[A], key: str) -> A:
        """Return the aggregate with this key; raises `AggregateNotFound`."""
        return await asyncio.to_thread(self._transaction.get, aggregate_class, key)

    async def find(self, aggregate_class: type[A], key: str) -> A | None:
        """Return the aggregate with this key, None if its stream has no events."""
        return await asyncio.to_thread(self._transaction.find, aggregate_class, key)

    async def save(
        self, aggregate: Aggregate, *, metadata: Mapping[str, Any] | None = None
    ) -> Sequence[Event]:
        """Append what the aggregate decided."""
        return await asyncio.to_thread(self._transaction.save, aggregate, metadata=metadata)

    async def publish(
        self,
        message: Message | str,
        data: Any = None,
        *,
        to: str,
        key: str | None = None,
        subject: str | None = None,
        numbered: bool = False,
    ) -> str:
        """Write a message to the outbox; see `Transaction.publish`."""
        return await asyncio.to_thread(
            self._transaction.publish, message, data, to=to, key=key, subject=subject, numbered=numbered
        )

    async def perform(self, effect: str | Effect, data: Any = None, *, key: str | None = None) -> str:
        """Ask for an effect; see `Transaction.perform`."""
        return await asyncio.to_thread(self._transaction.perform, effect, data, key=key)

"""Traces: what led to what, across streams, consumers and the messages between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

import psycopg
from psycopg.rows import class_row
from psycopg.sql import Identifier

from ...domain.errors import OnefoldError
from ...projections.causes import Kind, Node, Twig, tree
from ..history import RecordedEvent, require_log
from ..postgres.sql import statement
from .field import field
from .history import meta_of
from .indexes import METADATA, index_name, valid_indexes

MANY = 10_000
"""Nodes in a trace at most."""

IDS_AT_ONCE = 500


class NothingTraced(OnefoldError, LookupError):
    """No event or message has this id, correlation or cause."""


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message in the outbox, which was not removed yet."""

    position: int
    channel: str
    key: str | None
    id: str
    type: str
    written_at: datetime


@dataclass(frozen=True, slots=True)
class WaitingMessage:
    """A message at a consumer that was not applied, and why; `resolution` is what became of a dead letter."""

    kind: Kind
    number: int
    consumer: str
    id: str
    type: str | None
    sequence: str | None
    version: int | None
    reason: str
    at: datetime
    resolution: str | None


@dataclass(frozen=True, slots=True)
class Trace:
    """The tree of causes, line by line; `complete` is false where more belongs to it than is shown."""

    twigs: tuple[Twig, ...]
    complete: bool


class Source(Protocol):
    """Where causes and what they led to are kept: one for each kind of thing that can be a cause."""

    def of_ids(self, ids: Sequence[str]) -> Iterable[Node]:
        """Return what has one of these ids."""
        ...

    def caused_by(self, ids: Sequence[str]) -> Iterable[Node]:
        """Return what names one of these ids as its cause."""
        ...

    def of_correlation(self, correlation: str) -> Iterable[Node]:
        """Return what belongs to a correlation."""
        ...


class Events:
    """The events of a log, by the correlation and causation in their metadata."""

    def __init__(self, connection: psycopg.Connection[Any], log: str) -> None:
        self._connection = connection
        table = Identifier("onefold", log)
        self._of_ids = statement("audit_trace_ids", log=table)
        self._indexed = index_name(log, METADATA) in valid_indexes(connection, log)
        name = "audit_trace_metadata_indexed" if self._indexed else "audit_trace_metadata"
        self._of_metadata = statement(name, log=table)

    def of_ids(self, ids: Sequence[str]) -> Iterator[Node]:
        """Yield the events that have one of these ids."""
        uuids = [found for each in ids if (found := _uuid(each)) is not None]
        return self._nodes(self._of_ids, {"ids": uuids})

    def caused_by(self, ids: Sequence[str]) -> Iterator[Node]:
        """Yield the events whose metadata name one of these ids as causation."""
        return self._with("causation", ids)

    def of_correlation(self, correlation: str) -> Iterator[Node]:
        """Yield the events whose metadata name this correlation."""
        return self._with("correlation", [correlation])

    def _with(self, name: str, values: Sequence[str]) -> Iterator[Node]:
        if not self._indexed:
            return self._nodes(self._of_metadata, {"name": name, "values": list(values)})
        conditions = (field(f"metadata.{name}", value).condition() for value in values)
        return self._nodes(self._of_metadata, {"jsonpath": f"strict ({' || '.join(conditions)})"})

    def _nodes(self, query: bytes, values: dict[str, Any]) -> Iterator[Node]:
        with self._connection.cursor(row_factory=class_row(RecordedEvent)) as cursor:
            for event in cursor.execute(query, {**values, "limit": MANY + 1}, prepare=False):
                cause = meta_of(event).metadata.get("causation")
                yield Node(
                    "event",
                    str(event.event_id),
                    None if cause is None else str(cause),
                    (event.recorded_at, event.position),
                    event,
                )


class Outbox:
    """The messages of the outbox that were not removed yet. Those of an event have its id."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._query = statement("audit_trace_outbox")

    def of_ids(self, ids: Sequence[str]) -> Iterator[Node]:
        """Yield the messages that have one of these ids, and those that name one as their cause."""
        return self._nodes({"ids": list(ids), "correlation": None})

    def caused_by(self, ids: Sequence[str]) -> Iterator[Node]:
        """Yield nothing: `of_ids` has them."""
        return iter(())

    def of_correlation(self, correlation: str) -> Iterator[Node]:
        """Yield the messages of a correlation."""
        return self._nodes({"ids": [], "correlation": correlation})

    def _nodes(self, values: dict[str, Any]) -> Iterator[Node]:
        for *fields, cause in self._connection.execute(self._query, {**values, "limit": MANY + 1}):
            message = OutgoingMessage(*fields)
            order = (message.written_at, message.position)
            yield Node("message", message.id, cause, order, message)


class Waiting:
    """Messages at consumers that were not applied: parked ones and dead letters."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._query = statement("audit_trace_waiting")

    def of_ids(self, ids: Sequence[str]) -> Iterator[Node]:
        """Yield the messages that have one of these ids."""
        values = {"ids": list(ids), "limit": MANY + 1}
        for row in self._connection.execute(self._query, values):
            message = WaitingMessage(*row)
            yield Node(message.kind, message.id, None, (message.at, message.number), message)

    def caused_by(self, ids: Sequence[str]) -> Iterator[Node]:
        """Yield nothing: what a message caused is not written while it waits."""
        return iter(())

    def of_correlation(self, correlation: str) -> Iterator[Node]:
        """Yield nothing: a correlation stands in the message itself, in the form of its broker."""
        return iter(())


def sources(connection: psycopg.Connection[Any], log: str = "events") -> tuple[Source, ...]:
    """Return where causes are looked for: the log, the outbox, and what waits at consumers."""
    return Events(connection, log), Outbox(connection), Waiting(connection)


def trace(
    connection: psycopg.Connection[Any],
    what: str,
    *,
    log: str = "events",
    among: Sequence[Source] | None = None,
) -> Trace:
    """Return the tree of causes that an event, a message or a correlation belongs to.

    `what` is the id of an event or message, or a correlation. All that is connected by causes with what it names is in
    the tree, and all of its correlation. `among` are the sources, those of `sources` when left out. Raises
    `NothingTraced` and `UnknownLog`.
    """
    require_log(connection, log)
    looking = _Search(among if among is not None else sources(connection, log))
    looking.take(node for source in looking.sources for node in source.of_correlation(what))
    looking.take(node for source in looking.sources for node in source.of_ids([what]))
    for node in list(looking.nodes):
        if isinstance(node.content, RecordedEvent) and node.id == what:
            correlation = meta_of(node.content).metadata.get("correlation")
            if correlation is not None:
                looking.take(
                    node for source in looking.sources for node in source.of_correlation(str(correlation))
                )
    looking.follow([what])
    if not looking.nodes:
        raise NothingTraced(
            f"expected the id of an event or message, or a correlation, found {what!r}, which nothing in log {log}, "
            "the outbox or the inbox has; `onefold history` and `search` show the ids and correlations of events"
        )
    return Trace(tuple(tree(looking.nodes)), looking.complete)


class _Search:
    """The nodes that were found, and the ids whose causes and effects are still to be looked for."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = sources
        self.nodes: dict[Node, None] = {}
        self.complete = True
        self._waiting: dict[str, None] = {}
        self._done: set[str] = set()

    def take(self, found: Iterable[Node]) -> None:
        for node in found:
            if len(self.nodes) >= MANY and node not in self.nodes:
                self.complete = False
                return
            self.nodes[node] = None
            for each in (node.id, node.cause):
                if each is not None and each not in self._done:
                    self._waiting[each] = None

    def follow(self, first: Sequence[str]) -> None:
        self._waiting |= dict.fromkeys(first)
        while self._waiting and self.complete:
            some = list(self._waiting)[:IDS_AT_ONCE]
            for each in some:
                del self._waiting[each]
            self._done.update(some)
            for source in self.sources:
                self.take(source.of_ids(some))
                self.take(source.caused_by(some))


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None

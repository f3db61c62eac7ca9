"""Sources: what a relay reads, in order, without skipping what commits late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import psycopg
from psycopg.rows import tuple_row

from ...domain.errors import DeclarationError
from ...domain.event import Event
from ...domain.registry import Registry
from ...projections.publication import Publication
from ...projections.relaying import Leaving
from ..brokers.envelope import BadEnvelope, write
from ..postgres.horizon import Horizon
from ..postgres.outbox import slot_of
from ..postgres.reader import LogReader
from ..postgres.sql import statement
from .errors import PublicationFailed


class Page(NamedTuple):
    """Messages of one segment; nothing that belongs between the last page and `upto` is missing or can still appear.

    `more` is true where the next page is there already.
    """

    messages: Sequence[Leaving]
    upto: int
    more: bool = False


class Source(Protocol):
    """Reads one segment of a channel, on a connection of its own."""

    def read(self, after: int, limit: int) -> Page:
        """Return up to `limit` messages after a position, in order; `upto` is `after` where nothing is known yet."""
        ...


class OutboxSource:
    """Reads the outbox. The connection is in autocommit mode."""

    def __init__(
        self, connection: psycopg.Connection[Any], channel: str, segment: int, segments: int
    ) -> None:
        self._connection = connection
        self._horizon = Horizon("onefold", "outbox")
        self._page = statement("relay_page")
        self._values = {"channel": channel, "segment": segment, "segments": segments}

    def read(self, after: int, limit: int) -> Page:
        """Return the next messages of the segment; see `Source`."""
        settled = self._horizon.settle(self._connection)
        if settled <= after:
            return Page([], after)
        values = {**self._values, "after": after, "upto": settled, "limit": limit}
        with self._connection.cursor(row_factory=tuple_row) as cursor:
            rows = cursor.execute(self._page, values, prepare=True).fetchall()
        messages = [Leaving._make((*row[:5], bytes(row[5]), row[6])) for row in rows]
        full = len(messages) == limit
        return Page(messages, messages[-1].position if full else settled, full)


class LogSource:
    """Reads the log, and makes messages of its events as they are declared.

    The connection is in autocommit mode and reads raw (`postgres.pool.configure`).
    """

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        publications: Sequence[Publication],
        registry: Registry,
        segment: int,
        segments: int,
        *,
        log: str = "events",
    ) -> None:
        self._reader = LogReader(connection, log=log, registry=registry)
        self._publications = publications
        self._registry = registry
        self._segment, self._segments = segment, segments
        self._takes: dict[str, bool] = {}
        self._by_stream = all(each.by_stream for each in publications)

    def read(self, after: int, limit: int) -> Page:
        """Return the next messages of the segment; see `Source`. Raises what decoding an event raises."""
        page = self._reader.read(after, limit)
        messages: list[Leaving] = []
        for record in page.records:
            if self._takes.get(record[7], True) and self._may_be_mine(record[6]):
                messages += self._made(self._reader.event(record), record[0], record[7])
        return Page(messages, page.upto, len(page.records) >= limit)

    def _may_be_mine(self, stream: str) -> bool:
        """Tell by the stream alone, where that is the key: to decode the events of others would cost the most."""
        return not self._by_stream or slot_of(stream) % self._segments == self._segment

    def _made(self, event: Event, position: int, stored_as: str) -> list[Leaving]:
        if stored_as not in self._takes:
            self._takes[stored_as] = any(each.takes(type(event)) for each in self._publications)
        found: list[Leaving] = []
        known: Publication | None = None
        for publication in self._publications:
            try:
                posting = publication.posting(event)
            except Exception as error:
                raise PublicationFailed(publication, event, error) from error
            if posting is None:
                continue
            if known is not None:
                raise DeclarationError(
                    f"event {event.event_name} is published by {known!r} and by {publication!r}; from "
                    "the log each event goes out once: give one of them another channel"
                )
            known = publication
            message, key = posting.message, posting.key
            if slot_of(message.id if key is None else key) % self._segments != self._segment:
                continue
            try:
                outgoing = write(message)
            except BadEnvelope as error:
                raise PublicationFailed(publication, event, error) from error
            found.append(
                Leaving(
                    position,
                    key or message.id,
                    key,
                    message.id,
                    message.type,
                    outgoing.body,
                    outgoing.headers,
                )
            )
        return found

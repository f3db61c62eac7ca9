"""The log: appends with an expected version, and loads of streams."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar
from uuid import UUID

import psycopg
import psycopg_pool
from psycopg.sql import Identifier, Literal
from pydantic_core import to_json

from ...domain.errors import OnefoldError
from ...domain.event import Event, encode, reject_unstorable_metadata
from ...domain.registry import Registry
from ...domain.registry import registry as shared_registry
from ...projections.ports import Record
from ..backoff import Backoff
from ..identity import new_event_id
from .combiner import Combiner, Request
from .errors import DuplicateEventId, VersionConflict
from .pool import Pool, raw_cursor
from .sql import statement
from .wire import meta_of

T = TypeVar("T")
CHANNEL_BYTES = 63
END = 2**63 - 1
PATIENCE = 10.0
"""Seconds for which a load or an append is tried again whose connection was lost, or whose transaction the server
gave up for another's sake."""

WAKE_INTERVAL = 0.005
"""Seconds between two wake-ups that one process sends; each costs a lock of the whole cluster at commit."""


AT_ONCE = 4
"""Appends of one process that are under way each by itself; with more callers they share transactions."""

BULK = 64
"""Events from which on an append is written by itself, not together with those of other callers."""

Appended = tuple[int, int, int]
"""Where an event was put: position, recorded_at and occurred_at in microseconds since 2000-01-01 UTC."""


class Announcer(Protocol):
    """Writes more in the transaction of an append, such as messages to an outbox."""

    def concerns(self, event_class: type[Event]) -> bool:
        """Tell whether anything is to be written for events of this class."""
        ...

    def announce(self, connection: psycopg.Connection[Any], events: Sequence[Event]) -> None:
        """Write what belongs to stored events, in the transaction that is open on the connection."""
        ...


Then = Callable[[psycopg.Connection[Any], list[Appended]], None]
"""What is done in the transaction of an append, after it."""


class EventLog:
    """One log of a database: a table of events in schema `onefold`.

    Any number of threads may use it. Every append is one transaction of its own unless a `connection` is given,
    then it is part of the transaction that the caller has open. What `announcer` writes for the events is part of the
    same transaction.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        name: str = "events",
        registry: Registry = shared_registry,
        announcer: Announcer | None = None,
    ) -> None:
        self.pool = pool
        self.name = name
        self.registry = registry
        self.announcer = announcer
        self.table = table = Identifier("onefold", name)
        self.channel = channel_of(name)
        wake = {"log": table, "channel": Literal(self.channel)}
        self._append_one = (statement("append_one", log=table), statement("append_one_and_wake", **wake))
        self._append_many = (statement("append_many", log=table), statement("append_many_and_wake", **wake))
        self._by_event_id = statement("by_event_id", log=table)
        self._load_stream = statement("load_stream", log=table)
        self._stream_versions = statement("stream_versions", log=table)
        self._last_wake = 0.0
        self._combiner = Combiner(self._together, self._alone, at_once=AT_ONCE)

    def append(
        self,
        events: Sequence[Event],
        *,
        metadata: Mapping[str, Any] | None = None,
        connection: psycopg.Connection[Any] | None = None,
    ) -> list[Event]:
        """Append events that are bound to their streams and versions, all or none; return them as stored.

        The events of a stream follow its present version without a hole, otherwise `VersionConflict` is raised
        and nothing is written. A value that JSON cannot hold raises `UnstorableValue` before anything is sent.
        A connection that is lost in mid-append is answered by a second try, which finds what the first committed.
        """
        if not events:
            return []
        extra = None
        if metadata:
            reject_unstorable_metadata(metadata)
            extra = to_json(metadata).decode()
        prepared = [_parameters(event, extra) for event in events]
        _require_sequence(prepared)
        then = self._announcing(events, prepared)
        if connection is not None:
            placed = self._insert(connection, prepared)
            if then is not None:
                then(connection, placed)
        elif then is not None or len(prepared) >= BULK:
            placed = self._alone(prepared, uncertain=False, then=then)
        else:
            placed = self._combiner.submit(prepared)
        return list(map(_bound, events, prepared, placed))

    def load(self, stream: str, *, after: int = 0, upto: int = END) -> list[Event]:
        """Return the stream's events with versions above `after` and up to `upto`, in order."""
        registry = self.registry
        records = self.reading(lambda connection: self.records(connection, stream, after, upto))
        return [registry.decode(record[7], record[5], record[8], meta_of(record)) for record in records]

    def reading(self, work: Callable[[psycopg.Connection[Any]], T]) -> T:
        """Return what `work` reads on a connection of the pool; another one is tried when it is lost."""
        deadline, backoff = time.monotonic() + PATIENCE, Backoff(0.005, 0.5)
        while True:
            try:
                with self.pool.connection() as connection:
                    return work(connection)
            except psycopg.OperationalError as error:
                if not lost(error) or time.monotonic() > deadline:
                    raise
            time.sleep(backoff.next())
            self.pool.check()

    def records(
        self, connection: psycopg.Connection[Any], stream: str, after: int = 0, upto: int = END
    ) -> list[Record]:
        """Return the raw records of a stream, in order."""
        cursor = raw_cursor(connection)
        return cursor.execute(self._load_stream, (stream, after, upto), prepare=True).fetchall()

    def by_ids(self, connection: psycopg.Connection[Any], event_ids: Sequence[UUID]) -> list[Record]:
        """Return the raw records of the events that have these ids."""
        cursor = raw_cursor(connection)
        return cursor.execute(self._by_event_id, (list(event_ids),), prepare=True).fetchall()

    def versions(self, connection: psycopg.Connection[Any], streams: Sequence[str]) -> dict[str, int]:
        """Return the present version of each stream, 0 for one without events."""
        cursor = raw_cursor(connection)
        return dict(cursor.execute(self._stream_versions, (list(streams),), prepare=True).fetchall())

    def event(self, record: Record) -> Event:
        """Return the decoded event of a record."""
        return self.registry.decode(record[7], record[5], record[8], meta_of(record))

    def _together(self, requests: Sequence[Request[list[Parameters], list[Appended]]]) -> None:
        if len(requests) == 1:
            try:
                requests[0].result = self._alone(requests[0].work, uncertain=False)
            except Exception as error:  # noqa: BLE001 - is raised again where the caller is
                requests[0].error = error
            return
        # Everybody takes streams in the same order, so that two such transactions do not wait for each other.
        requests = sorted(requests, key=lambda request: request.work[0].stream)
        try:
            with self.pool.connection() as own:
                placed = self._insert(
                    own, [parameters for request in requests for parameters in request.work]
                )
        except (psycopg.Error, OnefoldError):
            # One of them is in conflict, or the connection is gone: each caller tries by itself, and finds out.
            return
        first = 0
        for request in requests:
            request.result = placed[first : first + len(request.work)]
            first += len(request.work)

    def _announcing(self, events: Sequence[Event], prepared: Sequence[Parameters]) -> Then | None:
        announcer = self.announcer
        if announcer is None or not any(announcer.concerns(type(event)) for event in events):
            return None
        return lambda connection, placed: announcer.announce(
            connection, list(map(_bound, events, prepared, placed))
        )

    def _alone(
        self, prepared: list[Parameters], *, uncertain: bool = True, then: Then | None = None
    ) -> list[Appended]:
        """Append in a transaction of its own; `uncertain` says that an earlier try may have been committed."""
        deadline, backoff = time.monotonic() + PATIENCE, Backoff(0.005, 0.5)
        while True:
            own = self.pool.getconn()
            try:
                return self._insert_once(own, prepared, uncertain, then)
            except psycopg.OperationalError as error:
                # Class 40: the server rolled it back for another transaction's sake, as in a deadlock.
                given_up = (error.sqlstate or "").startswith("40")
                if not (given_up or lost(error)) or time.monotonic() > deadline:
                    raise
                uncertain = uncertain or not given_up
            except VersionConflict as conflict:
                # Equal: the event before ours was committed after ours had drawn its position.
                if conflict.expected != conflict.found or time.monotonic() > deadline:
                    raise
            finally:
                self.pool.putconn(own)
            time.sleep(backoff.next())
            if uncertain:
                self.pool.check()

    def _insert_once(
        self,
        connection: psycopg.Connection[Any],
        prepared: list[Parameters],
        uncertain: bool,
        then: Then | None,
    ) -> list[Appended]:
        if uncertain and (stored := self._stored(connection, prepared)):
            return stored
        try:
            if then is None:
                return self._insert(connection, prepared)
            with connection.transaction():
                placed = self._insert(connection, prepared)
                then(connection, placed)
            return placed
        except (VersionConflict, DuplicateEventId):
            # The earlier try may have been under way on the server until now.
            if uncertain and (stored := self._stored(connection, prepared)):
                return stored
            raise

    def _insert(self, connection: psycopg.Connection[Any], prepared: Sequence[Parameters]) -> list[Appended]:
        now = time.monotonic()
        wake = now - self._last_wake >= WAKE_INTERVAL
        cursor = raw_cursor(connection)
        try:
            if len(prepared) == 1:
                rows = cursor.execute(self._append_one[wake], prepared[0], prepare=True).fetchall()
            else:
                columns = [list(column) for column in zip(*prepared, strict=True)]
                found = cursor.execute(self._append_many[wake], columns, prepare=True).fetchall()
                placed = {row[3]: row for row in found}
                rows = [placed[parameters.event_id.bytes] for parameters in prepared]
        except psycopg.IntegrityError as error:
            raise self._conflict(connection, error, prepared) from error
        if wake:
            self._last_wake = now
        return [row[:3] for row in rows]

    def _stored(
        self, connection: psycopg.Connection[Any], prepared: Sequence[Parameters]
    ) -> list[Appended] | None:
        found = {
            record[4]: record
            for record in self.by_ids(connection, [parameters.event_id for parameters in prepared])
        }
        placed: list[Appended] = []
        for parameters in prepared:
            record = found.get(parameters.event_id.bytes)
            if record is None or (record[6], record[1]) != (parameters.stream, parameters.version):
                return None
            placed.append((record[0], record[3], record[2]))
        return placed

    def _conflict(
        self,
        connection: psycopg.Connection[Any],
        error: psycopg.IntegrityError,
        prepared: Sequence[Parameters],
    ) -> Exception:
        constraint = error.diag.constraint_name or ""
        first = prepared[0]
        if constraint.endswith("event_id_key"):
            detail = error.diag.message_detail or ""
            taken = next((each for each in prepared if str(each.event_id) in detail), first)
            return DuplicateEventId(taken.event_id, taken.stream)
        if not constraint.endswith("stream_version_key") and constraint != "no_hole_in_stream":
            return error
        expected: dict[str, int] = {}
        for parameters in prepared:
            expected.setdefault(parameters.stream, parameters.version - 1)
        if connection.info.transaction_status == psycopg.pq.TransactionStatus.INERROR:
            # Inside the caller's transaction nothing can be read any more; another connection can, if one is free.
            try:
                with self.pool.connection(timeout=0.5) as other:
                    found = self.versions(other, list(expected))
            except psycopg_pool.PoolTimeout:
                return VersionConflict(first.stream, first.version - 1, None)
        else:
            found = self.versions(connection, list(expected))
        for stream, version in expected.items():
            if found[stream] != version:
                return VersionConflict(stream, version, found[stream])
        return VersionConflict(first.stream, first.version - 1, found[first.stream])


class Parameters(NamedTuple):
    """The values of one event in the order of the insert."""

    version: int
    occurred_at: Any
    event_id: UUID
    schema_version: int
    stream: str
    type_name: str
    data: str
    metadata: str | None


def _parameters(event: Event, metadata: str | None) -> Parameters:
    meta = event.meta
    return Parameters(
        meta.version,
        meta.occurred_at,
        meta.event_id or new_event_id(),
        event.schema_version,
        meta.stream,
        event.event_name,
        encode(event),
        metadata,
    )


def _require_sequence(prepared: Sequence[Parameters]) -> None:
    last: dict[str, int] = {}
    for parameters in prepared:
        known = last.get(parameters.stream)
        if known is not None and parameters.version != known + 1:
            raise VersionConflict(parameters.stream, parameters.version - 1, known)
        last[parameters.stream] = parameters.version


def _bound(event: Event, parameters: Parameters, placed: Appended) -> Event:
    position, recorded_at, occurred_at = placed
    record = (
        position,
        parameters.version,
        occurred_at,
        recorded_at,
        parameters.event_id.bytes,
        parameters.schema_version,
        parameters.stream,
        parameters.type_name,
        None,
        parameters.metadata,
    )
    return event.bound(meta_of(record))


def lost(error: BaseException) -> bool:
    """Tell whether an error means that the connection to the server is gone."""
    if isinstance(error, psycopg_pool.PoolTimeout | psycopg_pool.PoolClosed | psycopg_pool.TooManyRequests):
        return False
    return isinstance(error, psycopg.OperationalError) and (
        error.sqlstate is None
        or error.sqlstate in {"57P01", "57P02", "57P03"}
        or error.sqlstate.startswith("08")
    )


def channel_of(log: str) -> str:
    """Return the channel on which the appends to a log wake those who wait for them; at most 63 bytes."""
    channel = f"onefold_{log}"
    if len(channel.encode()) <= CHANNEL_BYTES:
        return channel
    return f"onefold_{hashlib.sha256(log.encode()).hexdigest()[:32]}"

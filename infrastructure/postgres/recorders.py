"""Recorders of the `eventsourcing` library on logs of this product."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from eventsourcing import persistence, postgres
from eventsourcing.persistence import (
    DataError,
    IntegrityError,
    Notification,
    ProgrammingError,
    StoredEvent,
    Tracking,
)
from eventsourcing.postgres import PostgresDatastore, PostgresRecorder
from psycopg import Connection, Cursor
from psycopg.rows import DictRow, tuple_row
from psycopg.sql import SQL, Identifier, Literal
from pydantic_core import to_json

from ...domain.event import EventMeta, reject_unstorable_metadata
from ...projections.gaps import deliverable
from ..identity import new_event_id
from .datastore import retried
from .horizon import Horizon
from .jsonstate import json_of, timestamp_of
from .log import END, WAKE_INTERVAL, channel_of
from .sql import statement
from .stored import EncodedEvent, RecordedEvent, RecordedNotification
from .subscription import LogSubscription

PATIENCE = 0.25
"""Seconds for which a selection waits when nothing but a hole that may still be filled stands where it starts."""
FIRST_SPAN = 100
LAST_SPAN = 4000
"""Events that one statement looks through for topics; each that finds too few doubles it."""

# The advisory lock under which tables are made: "OF", a number for the purpose, and nothing.
CREATE_LOCK = 0x4F46_0003 << 32

logger = logging.getLogger(__name__)


class NotificationPage(NamedTuple):
    """A run of notifications: all of the wanted ones up to position `upto`, none of which can appear any more.

    `waiting` is true when events beyond are there but an earlier one may still be committed.
    """

    upto: int
    notifications: Sequence[Notification]
    waiting: bool


class Row(NamedTuple):
    """The values of one event in the order of the insert."""

    version: int
    occurred_at: datetime | None
    event_id: UUID
    schema_version: int
    stream: str
    topic: str
    data: str | None
    raw: bytes | None
    metadata: str | None


class TableRecorder(PostgresRecorder):
    """What the recorders of one table have in common: names, ids, and how statements are run."""

    datastore: PostgresDatastore

    def __init__(self, datastore: PostgresDatastore, *, events_table_name: str = "stored_events") -> None:
        super().__init__(datastore)
        if len(events_table_name.encode()) > self.MAX_IDENTIFIER_LEN:
            raise ProgrammingError(
                f"expected the name of a table of at most {self.MAX_IDENTIFIER_LEN} bytes, found "
                f"{events_table_name!r}; give the application a shorter name"
            )
        self.events_table_name = events_table_name
        self.table = Identifier(datastore.schema, events_table_name)

    def _stream(self, originator_id: UUID | str) -> str:
        if self.datastore.originator_id_type == "text" or isinstance(originator_id, UUID):
            return str(originator_id)
        try:
            return str(UUID(originator_id))
        except ValueError:
            raise DataError(
                f"expected a UUID as originator id, found {originator_id!r}; "
                "set ORIGINATOR_ID_TYPE=text for an application whose ids are text"
            ) from None

    def _originator_id(self, stream: str) -> UUID | str:
        return stream if self.datastore.originator_id_type == "text" else UUID(stream)

    def _columns(self, cursor: Cursor[DictRow]) -> set[str]:
        names = (self.datastore.schema, self.events_table_name)
        return {row["attname"] for row in cursor.execute(statement("library_columns"), names)}

    def _foreign(self) -> ProgrammingError:
        return ProgrammingError(
            f"expected a table of Onefold as {self.datastore.schema}.{self.events_table_name}, found another, perhaps "
            "one of eventsourcing.postgres; name another schema in POSTGRES_SCHEMA, or move the table away"
        )

    def _fetch(self, query: bytes, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        def fetch(_: int) -> list[tuple[Any, ...]]:
            with (
                self.datastore.get_connection() as connection,
                connection.cursor(row_factory=tuple_row, binary=True) as cursor,
            ):
                return cursor.execute(query, values, prepare=True).fetchall()

        return retried(self.datastore, fetch)


class LogRecorder(TableRecorder):
    """Appends to a log and loads streams from it."""

    def __init__(self, datastore: PostgresDatastore, *, events_table_name: str = "stored_events") -> None:
        super().__init__(datastore, events_table_name=events_table_name)
        self.channel_name = channel_of(events_table_name)
        wake = {"log": self.table, "channel": Literal(self.channel_name)}
        self._append_one = (
            statement("library_append_one", log=self.table),
            statement("library_append_one_and_wake", **wake),
        )
        self._append_many = (
            statement("library_append_many", log=self.table),
            statement("library_append_many_and_wake", **wake),
        )
        self._positions = statement("library_positions", log=self.table)
        self._stream_upwards = statement("library_stream", log=self.table, order=SQL("ASC"))
        self._stream_downwards = statement("library_stream", log=self.table, order=SQL("DESC"))
        self._last_wake = 0.0

    def _create_table(self, curs: Cursor[DictRow]) -> None:
        curs.execute("SELECT pg_advisory_xact_lock(%s)", (CREATE_LOCK,))
        columns = self._columns(curs)
        if not columns:
            curs.execute("SELECT onefold.create_log(%s, %s)", (self.datastore.schema, self.events_table_name))
        elif not {"position", "stream", "raw"} <= columns:
            raise self._foreign()
        super()._create_table(curs)

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[StoredEvent]:
        """Return the events of a stream with versions above `gt` and up to `lte`, at most `limit` of them."""
        bounds = (-1 if gt is None else gt, END if lte is None else lte, limit)
        query = self._stream_downwards if desc else self._stream_upwards
        return [self._event(row) for row in self._fetch(query, (self._stream(originator_id), *bounds))]

    def _event(self, row: tuple[Any, ...]) -> StoredEvent:
        stream, version, topic, state, schema_version = row[1:6]
        return RecordedEvent(self._originator_id(stream), version, topic, state, schema_version, _meta(row))

    def _insert_events(
        self, curs: Cursor[DictRow], stored_events: Sequence[StoredEvent], **kwargs: Any
    ) -> None:
        """Write what belongs into the transaction of the events; a subclass overrides this, to call it too."""

    def _record(
        self, stored_events: Sequence[StoredEvent], *, together: bool, **kwargs: Any
    ) -> Sequence[int] | None:
        """Append the events in one statement, `together` with what `_insert_events` writes, and return positions.

        An append whose answer was lost is made again under the same event ids; if the first one was committed, the
        second is refused for it, and the events are found.
        """
        rows = self._rows(stored_events, kwargs.get("metadata"))

        def record(attempt: int) -> Sequence[int] | None:
            try:
                with self.datastore.get_connection() as connection:
                    if not together:
                        return self._insert(connection, rows)
                    with connection.transaction():
                        with connection.cursor() as cursor:
                            self._insert_events(cursor, stored_events, **kwargs)
                        return self._insert(connection, rows) if rows else None
            except IntegrityError:
                if attempt == 0 or not (found := self._found(rows, **kwargs)):
                    raise
                return found if rows else None

        return retried(self.datastore, record)

    def _found(self, rows: Sequence[Row], **_: Any) -> Sequence[int]:
        """Return the positions of the rows if they are in the log, otherwise nothing."""
        ids = [row.event_id for row in rows]
        positions = {found[1]: found[0] for found in self._fetch(self._positions, (ids,))}
        return [positions[event_id] for event_id in ids] if len(positions) == len(ids) else []

    def _insert(self, connection: Connection[DictRow], rows: Sequence[Row]) -> Sequence[int]:
        now = time.monotonic()
        wake = now - self._last_wake >= WAKE_INTERVAL
        with connection.cursor(row_factory=tuple_row) as cursor:
            try:
                if len(rows) == 1:
                    cursor.execute(self._append_one[wake], rows[0], prepare=True)
                else:
                    columns = [list(column) for column in zip(*rows, strict=True)]
                    cursor.execute(self._append_many[wake], columns, prepare=True)
                found = cursor.fetchall()
            except psycopg.IntegrityError as error:
                raise IntegrityError(_conflict(error, rows)) from error
        if wake:
            self._last_wake = now
        positions = {row[1]: row[0] for row in found}
        return [positions[row.event_id] for row in rows]

    def _rows(self, stored_events: Sequence[StoredEvent], metadata: object) -> list[Row]:
        extra = _metadata(metadata)
        return [self._row(event, extra) for event in stored_events]

    def _row(self, event: StoredEvent, metadata: str | None) -> Row:
        stream = self._stream(event.originator_id)
        if isinstance(event, EncodedEvent):
            data = event.state.decode() if event.faithful else None
            return Row(
                event.originator_version,
                event.occurred_at,
                event.event_id or new_event_id(),
                event.schema_version,
                stream,
                event.topic,
                data,
                event.state if data is None else None,
                metadata,
            )
        state = json_of(event.state)
        return Row(
            event.originator_version,
            None if state is None else timestamp_of(state.value),
            new_event_id(),
            1,
            stream,
            event.topic,
            None if state is None else state.text,
            event.state if state is None else None,
            metadata,
        )


class AggregateRecorder(LogRecorder, persistence.AggregateRecorder):
    """Records the events of aggregates in a log, without telling positions."""

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int] | None:
        """Append the events, all or none; raises `IntegrityError` when a version is taken or leaves a hole.

        `metadata`, a mapping of what JSON holds, is kept beside each event.
        """
        if stored_events:
            hooked = type(self)._insert_events is not LogRecorder._insert_events
            self._record(stored_events, together=hooked, **kwargs)
        return None


class ApplicationRecorder(LogRecorder, persistence.ApplicationRecorder):
    """Records the events of an application in a log, and reads them in the order of their positions."""

    def __init__(self, datastore: PostgresDatastore, *, events_table_name: str = "stored_events") -> None:
        super().__init__(datastore, events_table_name=events_table_name)
        self._page = statement("library_page", log=self.table)
        self._page_of_topics = statement("library_page_of_topics", log=self.table)
        self._head = statement("head", log=self.table)
        self._horizon = Horizon(datastore.schema, events_table_name)

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int] | None:
        """Append the events, all or none, and return their positions.

        `metadata`, a mapping of what JSON holds, is kept beside each event. Raises `IntegrityError` when a version
        is taken or leaves a hole; nothing is written then.
        """
        hooked = type(self)._insert_events is not LogRecorder._insert_events
        if not stored_events and not hooked:
            return None
        return self._record(stored_events, together=hooked, **kwargs)

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> Sequence[Notification]:
        """Return up to `limit` notifications from `start` (or after it) up to `stop`, with `topics` if any are given.

        The selection ends before a position that an open append may still fill, so that whoever goes on from the last
        id skips nothing. When it would be empty for that reason, it first waits for a moment.
        """
        after = 0 if start is None else max(0, start - 1 if inclusive_of_start else start)
        found: list[Notification] = []
        span = max(limit, FIRST_SPAN) if topics else limit
        deadline = time.monotonic() + PATIENCE
        while len(found) < limit:
            page = self.read_page(after, span, stop=stop, topics=topics)
            found += page.notifications
            if page.waiting:
                if found or time.monotonic() >= deadline:
                    break
                time.sleep(0.005)
            elif not topics or page.upto == after:
                break
            after = page.upto
            span = min(2 * span, LAST_SPAN)
        return found[:limit]

    def read_page(
        self, after: int, limit: int, *, stop: int | None = None, topics: Sequence[str] = ()
    ) -> NotificationPage:
        """Look through up to `limit` events after position `after` and return those with `topics` (all if none)."""

        def read(_: int) -> NotificationPage:
            with self.datastore.get_connection() as connection:
                settled = self._horizon.settled(connection)
                rows = self._rows_after(connection, after, limit, stop, topics)
                count = deliverable(after, [row[0] for row in rows], settled)
                if count < len(rows):
                    settled = self._horizon.settle(connection)
                    rows = self._rows_after(connection, after, limit, stop, topics)
                    count = deliverable(after, [row[0] for row in rows], settled)
            upto = rows[count - 1][0] if count else after
            wanted = [self._notification(row) for row in rows[:count] if row[4] is not None]
            return NotificationPage(upto, wanted, count < len(rows))

        return retried(self.datastore, read)

    def max_notification_id(self) -> int | None:
        """Return the highest position that is visible now; lower ones may still be committed by open appends."""
        found = self._fetch(self._head, ())
        return found[0][0] or None

    def subscribe(self, gt: int | None = None, topics: Sequence[str] = ()) -> LogSubscription:
        """Return an iterator over the notifications after `gt`, those to come included."""
        return LogSubscription(self, gt=gt, topics=topics)

    def _rows_after(
        self, connection: Connection[DictRow], after: int, limit: int, stop: int | None, topics: Sequence[str]
    ) -> list[tuple[Any, ...]]:
        bounds = (after, END if stop is None else stop, limit)
        with connection.cursor(row_factory=tuple_row, binary=True) as cursor:
            if topics:
                return cursor.execute(self._page_of_topics, (list(topics), *bounds), prepare=True).fetchall()
            return cursor.execute(self._page, bounds, prepare=True).fetchall()

    def _notification(self, row: tuple[Any, ...]) -> Notification:
        position, stream, version, topic, state, schema_version = row[:6]
        return RecordedNotification(
            self._originator_id(stream), version, topic, state, position, schema_version, _meta(row)
        )


class TrackingRecorder(postgres.PostgresTrackingRecorder):
    """Keeps how far applications were followed, in a table of the library's own layout.

    As the library demands, a position at or below the one that is kept is refused with `IntegrityError`.
    """

    def insert_tracking(self, tracking: Tracking) -> None:
        """Keep the position of `tracking`; raises `IntegrityError` unless it is above the one that is kept."""

        def insert(attempt: int) -> None:
            try:
                with self.datastore.transaction(commit=True) as cursor:
                    self._insert_tracking(cursor, tracking)
            except IntegrityError:
                if attempt == 0 or not self._kept(tracking):
                    raise

        retried(self.datastore, insert)

    def max_tracking_id(self, application_name: str) -> int | None:
        """Return the highest position that is kept for an application, None when there is none."""

        def select(_: int) -> int | None:
            with self.datastore.get_connection() as connection, connection.cursor() as cursor:
                return self._max_tracking_id(application_name, cursor)

        return retried(self.datastore, select)

    def has_tracking_id(self, application_name: str, notification_id: int | None) -> bool:
        """Tell whether a position at or above `notification_id` is kept for an application."""
        return persistence.TrackingRecorder.has_tracking_id(self, application_name, notification_id)

    def _kept(self, tracking: Tracking) -> bool:
        """Tell whether exactly this position is kept: all that an insert whose answer was lost was to bring about."""
        return self.max_tracking_id(tracking.application_name) == tracking.notification_id


class ProcessRecorder(TrackingRecorder, ApplicationRecorder, persistence.ProcessRecorder):
    """Records events and the position of the event that they answer, in one transaction."""

    def __init__(
        self,
        datastore: PostgresDatastore,
        *,
        events_table_name: str = "stored_events",
        tracking_table_name: str = "notification_tracking",
    ) -> None:
        super().__init__(
            datastore, tracking_table_name=tracking_table_name, events_table_name=events_table_name
        )

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int] | None:
        """Append the events and keep the position of `tracking`, all or none; return the events' positions.

        Raises `IntegrityError` when a version is taken or leaves a hole, and when the position is not above the one
        that is kept.
        """
        hooked = type(self)._insert_events is not ProcessRecorder._insert_events
        together = hooked or kwargs.get("tracking") is not None
        if not stored_events and not together:
            return None
        return self._record(stored_events, together=together, **kwargs)

    def _insert_events(
        self, curs: Cursor[DictRow], stored_events: Sequence[StoredEvent], **kwargs: Any
    ) -> None:
        tracking: Tracking | None = kwargs.get("tracking")
        if tracking is not None:
            self._insert_tracking(curs, tracking)
        super()._insert_events(curs, stored_events, **kwargs)

    def _found(self, rows: Sequence[Row], **kwargs: Any) -> Sequence[int]:
        tracking: Tracking | None = kwargs.get("tracking")
        if not rows and tracking is not None:
            return [tracking.notification_id] if self._kept(tracking) else []
        return super()._found(rows, **kwargs)


def _meta(row: tuple[Any, ...]) -> EventMeta:
    position, stream, version, _, _, _, occurred_at, recorded_at, event_id, metadata = row
    return EventMeta(
        stream,
        version,
        position,
        occurred_at=occurred_at,
        recorded_at=recorded_at,
        event_id=event_id,
        metadata=metadata,
    )


def _metadata(metadata: object) -> str | None:
    if metadata is None:
        return None
    if not isinstance(metadata, Mapping):
        raise TypeError(f"expected metadata as a mapping, found {type(metadata).__name__}; give a dict")
    reject_unstorable_metadata(metadata)
    return to_json(metadata).decode() if metadata else None


def _conflict(error: psycopg.IntegrityError, rows: Sequence[Row]) -> str:
    firsts: dict[str, int] = {}
    for row in rows:
        firsts.setdefault(row.stream, row.version)
    streams = ", ".join(f"{stream} at version {version}" for stream, version in firsts.items())
    constraint = error.diag.constraint_name or ""
    if constraint == "no_hole_in_stream":
        found = f"found a {error.diag.message_primary}"
    elif constraint.endswith("stream_version_key"):
        found = f"found a version taken ({error.diag.message_detail})"
    else:
        return str(error)
    return (
        f"expected to append to {streams}, {found}; nothing was written. Load the aggregate again and repeat"
    )

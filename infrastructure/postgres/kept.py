"""Recorders of what is kept beside a log: snapshots, and other states that the library numbers by version."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from eventsourcing import persistence
from eventsourcing.persistence import (
    InterfaceError,
    OperationalError,
    StoredEvent,
)
from eventsourcing.postgres import PostgresDatastore
from psycopg import Cursor
from psycopg.rows import DictRow
from psycopg.sql import SQL

from .datastore import retried
from .jsonstate import json_of
from .log import END
from .recorders import CREATE_LOCK, TableRecorder
from .sql import statement

logger = logging.getLogger(__name__)


class KeptRecorder(TableRecorder, persistence.AggregateRecorder):
    """Records what belongs to aggregates but is no event, in a plain table: versions may leave holes."""

    _keeping = "library_keep"

    def __init__(self, datastore: PostgresDatastore, *, events_table_name: str = "stored_snapshots") -> None:
        super().__init__(datastore, events_table_name=events_table_name)
        self._keep = statement(self._keeping, table=self.table)
        self._upwards = statement("library_snapshots", table=self.table, order=SQL("ASC"))
        self._downwards = statement("library_snapshots", table=self.table, order=SQL("DESC"))

    def _create_table(self, curs: Cursor[DictRow]) -> None:
        curs.execute("SELECT pg_advisory_xact_lock(%s)", (CREATE_LOCK,))
        columns = self._columns(curs)
        if not columns:
            curs.execute(statement("library_create_snapshots", table=self.table))
        elif not {"stream", "raw", "taken_at"} <= columns:
            raise self._foreign()
        super()._create_table(curs)

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int] | None:
        """Keep the records, all or none; raises `IntegrityError` when one with the same version is kept."""
        if not stored_events:
            return None
        rows: list[tuple[str, int, str, str | None, bytes | None]] = []
        for event in stored_events:
            state = json_of(event.state)
            text, raw = (None, event.state) if state is None else (state.text, None)
            rows.append((self._stream(event.originator_id), event.originator_version, event.topic, text, raw))
        columns = [list(column) for column in zip(*rows, strict=True)]

        def insert(_: int) -> None:
            with self.datastore.get_connection() as connection:
                connection.execute(self._keep, columns, prepare=True)

        retried(self.datastore, insert)
        return None

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[StoredEvent]:
        """Return the records with versions above `gt` and up to `lte`, at most `limit` of them."""
        bounds = (-1 if gt is None else gt, END if lte is None else lte, limit)
        query = self._downwards if desc else self._upwards
        return [
            StoredEvent(self._originator_id(stream), version, topic, state)
            for stream, version, topic, state in self._fetch(query, (self._stream(originator_id), *bounds))
        ]


class SnapshotRecorder(KeptRecorder):
    """Keeps snapshots, the newest of each version.

    They are taken after the events were stored: a failure here must not look like one there.
    """

    _keeping = "library_replace_snapshot"

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int] | None:
        """Keep the snapshots, in place of those of the same version; one that the database does not take is logged."""
        try:
            super().insert_events(stored_events, **kwargs)
        except (InterfaceError, OperationalError) as error:
            logger.warning(
                "the snapshot of %s was not kept, its events are: %s", stored_events[0].originator_id, error
            )
        return None

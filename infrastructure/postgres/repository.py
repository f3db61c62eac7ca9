"""The repository: loads aggregates from the log, with snapshots, and saves what they decided."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import psycopg

from ...domain.aggregate import Aggregate, SnapshotCodec
from ...domain.event import Event
from ...projections.ports import Record
from .errors import AggregateNotFound
from .log import END, EventLog
from .pool import raw_cursor
from .sql import statement
from .wire import meta_of

A = TypeVar("A", bound=Aggregate)
logger = logging.getLogger("onefold.repository")


class Repository(Generic[A]):
    """Loads and saves the aggregates of one class.

    With `snapshot_every=n` the state is kept each time a stream passes a multiple of n events, after the
    events were committed; a snapshot that does not fit the code is ignored and replaced.
    """

    def __init__(self, log: EventLog, aggregate_class: type[A], *, snapshot_every: int | None = None) -> None:
        if snapshot_every is not None and snapshot_every < 1:
            raise ValueError(f"snapshot_every must be 1 or more events, found {snapshot_every}")
        self.log = log
        self.aggregate_class = aggregate_class
        self.snapshot_every = snapshot_every
        self._codec = SnapshotCodec(aggregate_class)
        self._load = statement("load_from_snapshot", log=log.table)
        self._save_snapshot = statement("save_snapshot")

    def get(
        self, key: str, *, version: int | None = None, connection: psycopg.Connection[Any] | None = None
    ) -> A:
        """Return the aggregate with this key, as of `version` when given.

        Raises `AggregateNotFound` when its stream is empty or shorter than `version`. With a `connection` the
        events are read in the caller's transaction.
        """
        if connection is None:
            return self.log.reading(lambda own: self._get(own, key, version))
        return self._get(connection, key, version)

    def _get(self, connection: psycopg.Connection[Any], key: str, version: int | None) -> A:
        stream = self.aggregate_class.stream_of(key)
        upto = END if version is None else version
        aggregate, records = self._begun(connection, stream, upto)
        decode = self.log.registry.decode
        follow = aggregate.follow
        for record in records:
            follow(decode(record[7], record[5], record[8], meta_of(record)))
        if aggregate.version == 0:
            raise AggregateNotFound(stream)
        if version is not None and aggregate.version < version:
            raise AggregateNotFound(stream, f" at version {version}: its last version is {aggregate.version}")
        return aggregate

    def _begun(
        self, connection: psycopg.Connection[Any], stream: str, upto: int
    ) -> tuple[A, Sequence[Record]]:
        """Return the aggregate as its snapshot has it, or blank, and the records that follow."""
        if self.snapshot_every is not None:
            fingerprint = self._codec.fingerprint
            values = (self.log.name, stream, fingerprint, upto, stream, upto)
            records = raw_cursor(connection).execute(self._load, values, prepare=True).fetchall()
            if not records or records[0][0] is not None:
                return self.aggregate_class.blank(stream), records
            try:
                return self._codec.decode(stream, records[0][1], records[0][8]), records[1:]
            except ValueError as error:
                # A snapshot is only a shortcut; the events say the same.
                logger.warning(
                    "the snapshot of %s does not fit the code, its events are read: %s", stream, error
                )
        return self.aggregate_class.blank(stream), self.log.records(connection, stream, 0, upto)

    def save(
        self,
        aggregate: A,
        *,
        metadata: Mapping[str, Any] | None = None,
        connection: psycopg.Connection[Any] | None = None,
    ) -> Sequence[Event]:
        """Append what the aggregate decided and return the stored events; nothing pending is nothing done.

        Raises `VersionConflict` when the stream has moved on: load again and repeat the command. The pending
        events stay with the aggregate until they are stored.
        """
        pending = aggregate.pending
        if not pending:
            return []
        stored = self.log.append(pending, metadata=metadata, connection=connection)
        aggregate.saved(stored)
        every = self.snapshot_every
        if every is not None and aggregate.version // every > (aggregate.version - len(stored)) // every:
            self._try_snapshot(aggregate, connection)
        return stored

    def _try_snapshot(self, aggregate: A, connection: psycopg.Connection[Any] | None) -> None:
        try:
            self.snapshot(aggregate, connection=connection)
        except (psycopg.Error, ValueError) as error:
            if connection is not None:
                raise
            # The events are stored: a missing snapshot must not look like a failed save.
            logger.warning("no snapshot of %s at version %d: %s", aggregate.id, aggregate.version, error)

    def snapshot(self, aggregate: A, *, connection: psycopg.Connection[Any] | None = None) -> None:
        """Keep the aggregate's state; later loads start from it."""
        values = (
            self.log.name,
            aggregate.id,
            aggregate.version,
            self._codec.fingerprint,
            self._codec.encode(aggregate),
        )
        if connection is not None:
            connection.execute(self._save_snapshot, values, prepare=True)
            return
        with self.log.pool.connection() as own:
            own.execute(self._save_snapshot, values, prepare=True)

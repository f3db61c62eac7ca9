"""Single rows: those that one stream leads to are folded anew and put in place, without stopping anybody."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import psycopg
from psycopg.sql import Identifier

from ...projections.bulk import ADVICE, KeyFolder
from ...projections.engine import PAGE
from ...projections.ports import Key, Record
from ...projections.projection import Projection
from ..connection import connected
from ..postgres.columns import register
from ..postgres.errors import ReadModelChanged
from ..postgres.log import END
from ..postgres.pool import configure
from ..postgres.reader import LogReader
from ..postgres.readmodel import REFUSALS, prepare
from ..postgres.sql import statement
from ..postgres.table import Table
from ..postgres.wire import meta_of
from .errors import RebuildRefused
from .survey import survey


class Mended(NamedTuple):
    """What the rebuild of single rows did: the keys of the rows, how many were `changed`, at which position."""

    keys: tuple[Key, ...]
    changed: int
    position: int


def rebuild_stream(url: str, projection: Projection[Any], stream: str) -> Mended:
    """Fold the rows anew that a stream's events lead to, up to where the projection is, and put them in their place.

    Readers see the rows change at once. A worker goes on after them: it is made to read anew what it has in memory.
    Raises `RebuildRefused` for a stream without an event that the projection folds, `ReadModelChanged` when the table
    was built by other code, and `ProjectionFailed`.
    """
    with contextlib.ExitStack() as stack:
        writer, reader = (
            stack.enter_context(connected(url, application=f"onefold rebuild {projection.name} {role}"))
            for role in ("write", "read")
        )
        configure(reader)
        register(writer)
        prepare(writer, projection)
        return _Mender(projection, writer, reader).mend(stream)


class _Mender:
    def __init__(
        self,
        projection: Projection[Any],
        writer: psycopg.Connection[Any],
        reader: psycopg.Connection[Any],
    ) -> None:
        self._projection = projection
        self._table = Table(projection)
        self._writer = writer
        self._reader = reader
        self._types = projection.types() or frozenset()

    def mend(self, stream: str) -> Mended:
        projection, who = self._projection, {"projection": self._projection.name}
        keys = self._keys_of(stream)
        if not keys:
            raise RebuildRefused(
                f"projection {projection.name}: expected a stream with events that it folds, found none in {stream}; "
                "a stream is named category/key"
            )
        folder = KeyFolder(projection, frozenset(keys))
        reached = 0
        alone = self._is_alone(stream)
        if not alone:
            # The rows of other streams: all the log is read, most of it before anybody is kept waiting.
            reached = self._feed(folder, 0, self._position())
        with self._writer.transaction():
            found = self._writer.execute(statement("rebuild_lock_row"), who).fetchone()
            if found is None or found[1] != projection.fingerprint():
                raise ReadModelChanged(projection.name)
            position: int = found[0]
            if alone:
                folder.feed([record for record in self._stream(stream) if record[0] <= position])
            else:
                self._feed(folder, reached, position)
            changed = self._put(keys, folder)
            self._writer.execute(statement("rebuild_fence_serving"), who)
        return Mended(tuple(keys), changed, position)

    def _put(self, keys: Iterable[Key], folder: KeyFolder) -> int:
        chosen = list(keys)
        before = self._table.load(self._writer, chosen)
        after = {key: folder.rows.get(key, (0, None)) for key in chosen}
        changes = {
            key: kept
            for key, kept in after.items()
            if (kept if kept[1] is not None else None) != before.get(key)
        }
        if changes:
            try:
                self._table.merge(self._writer, changes)
            except REFUSALS as error:
                raise RebuildRefused(f"projection {self._projection.name}: {error}. {ADVICE}") from error
        return len(changes)

    def _is_alone(self, stream: str) -> bool:
        """Tell whether the row of the stream is that of no other stream."""
        if self._projection.key is not None:
            return False
        category = survey(self._reader, self._projection, END).category
        return category is not None and stream.startswith(f"{category}/")

    def _keys_of(self, stream: str) -> list[Key]:
        keys: dict[Key, None] = {}
        for record in self._stream(stream):
            event = self._projection.registry.decode(record[7], record[5], record[8], meta_of(record))
            if type(event) in self._projection.folds:
                key = self._projection.key_of(event)
                if key is not None:
                    keys[key] = None
        return list(keys)

    def _stream(self, stream: str) -> Iterator[Record]:
        query = statement("load_stream", log=Identifier("onefold", self._projection.log))
        for record in self._reader.execute(query, (stream, -1, END), binary=True).fetchall():
            if record[7] in self._types:
                yield record

    def _feed(self, folder: KeyFolder, after: int, upto: int) -> int:
        reader = LogReader(self._reader, log=self._projection.log, registry=self._projection.registry)
        while after < upto and (page := reader.read(after, PAGE, self._types)).records:
            folder.feed([record for record in page.records if record[0] <= upto])
            after = min(page.upto, upto)
        return after

    def _position(self) -> int:
        found = self._writer.execute(
            "SELECT position FROM onefold.checkpoints WHERE projection = %s AND segment = 0",
            (self._projection.name,),
        ).fetchone()
        return 0 if found is None else int(found[0])

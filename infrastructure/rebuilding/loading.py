"""Loading in bulk: a range of streams is read in their order, each row folded once and written once.

One page is read ahead, and one written behind, while a third is folded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg
from psycopg.sql import Identifier

from ...projections.bulk import KeyFolder, StreamFolder, failure_of
from ...projections.ports import Kept, Key, Record
from ...projections.projection import Projection
from ..postgres.errors import Fenced
from ..postgres.reader import LogReader
from ..postgres.readmodel import REFUSALS
from ..postgres.sql import statement
from ..postgres.table import Table
from .belongings import NEXT
from .survey import record_at

ROWS_IN_MEMORY = 200_000
"""Rows of other keys than the stream's that are folded in memory; beyond that the engine goes on, page by page."""

ROWS_AT_ONCE = 20_000
FIRST = -1
"""Below the first version of every stream."""


def after_category(category: str) -> str:
    """Return the first name that no stream of a category has: they all begin with the category and a slash."""
    return f"{category}0"


class Part(NamedTuple):
    """A range of streams, of which those before `from_stream` are loaded; `before_stream` belongs to the next part."""

    number: int
    from_stream: str
    before_stream: str
    done: bool = False


class Token(NamedTuple):
    """What fences a rebuild: nothing is written once the checkpoint of the next version has another one."""

    owner: str
    number: int


class Loader:
    """Loads one projection's next table; the connections are those of one thread each.

    `reader` reads raw, `writer` takes packed columns. `count` is called with the number of events of each page.
    """

    def __init__(
        self,
        projection: Projection[Any],
        reader: psycopg.Connection[Any],
        writer: psycopg.Connection[Any],
        token: Token,
        *,
        page: int,
        count: Callable[[int], None],
        stop: Callable[[], bool],
    ) -> None:
        self.projection = projection
        self.table = Table(projection, NEXT)
        self._reader = reader
        self._writer = writer
        self._token = token
        self._page = page
        self._count = count
        self._stop = stop
        self._types = sorted(projection.types() or ())
        self._streams = statement("rebuild_streams", log=Identifier("onefold", projection.log))
        self._advance = statement("rebuild_advance")
        self._fence = statement("rebuild_fence")

    def load_streams(self, part: Part, upto: int) -> bool:
        """Load a part, up to a settled position of the log; false when asked to stop before its end.

        What is loaded and how far it is are one transaction a page. Raises `ProjectionFailed` and `Fenced`.
        """
        folder = StreamFolder(self.projection)
        with ThreadPoolExecutor(2, thread_name_prefix="onefold-rebuild") as threads:
            reading = threads.submit(self._read, part.from_stream, FIRST, part.before_stream, upto)
            writing: Future[None] | None = None
            while not self._stop():
                records = reading.result()
                if records:
                    last = records[-1]
                    reading = threads.submit(self._read, last[6], last[1], part.before_stream, upto)
                    rows, here = folder.feed(records), last[6]
                else:
                    rows, here = folder.finish(), part.from_stream
                packed = self._packed(rows, writing)
                if writing is not None:
                    writing.result()
                progress = part._replace(from_stream=here)
                writing = threads.submit(self._write, packed, progress, len(records), not records)
                if not records:
                    writing.result()
                    return True
            if writing is not None:
                writing.result()
        return False

    def load_keys(self, reader: LogReader, upto: int) -> tuple[int, bool]:
        """Fold the log in its order, in memory, and write the rows; return the position reached, and whether by then
        there are more rows than fit.

        The position is at most `upto`, unless the last page ended beyond it.
        """
        folder = KeyFolder(self.projection)
        types = self.projection.types() or frozenset()
        reached, full = 0, False
        with ThreadPoolExecutor(1, thread_name_prefix="onefold-rebuild") as threads:
            page = reader.read(0, self._page, types)
            while page.records and not self._stop() and not full:
                inside = page.upto < upto
                ahead = threads.submit(reader.prefetch, page.upto, self._page, types) if inside else None
                records = page.records if page.upto <= upto else [r for r in page.records if r[0] <= upto]
                folder.feed(records)
                self._count(sum(record[7] in types for record in records))
                reached, full = min(page.upto, upto), len(folder.rows) > ROWS_IN_MEMORY
                if ahead is None:
                    break
                ahead.result()
                page = reader.read(reached, self._page, types)
        rows = {key: kept for key, kept in folder.rows.items() if kept[1] is not None}
        with self._fenced():
            for few in _slices(rows, ROWS_AT_ONCE):
                self._fill(few)
        return reached, full

    def _read(self, stream: str, version: int, before: str, upto: int) -> list[Record]:
        values = (stream, version, before, upto, self._types, self._page)
        return self._reader.execute(self._streams, values, prepare=True, binary=True).fetchall()

    def _packed(self, rows: Mapping[Key, Kept], writing: Future[None] | None) -> Any:
        if not rows:
            return None
        try:
            return self.table.pack(rows), rows
        except REFUSALS as error:
            if writing is not None:
                writing.result()
            raise self._refused(rows, error) from error

    def _write(self, packed: Any, part: Part, events: int, done: bool) -> None:
        with self._fenced():
            if packed is not None:
                self._fill_packed(*packed)
            values = {"from_stream": part.from_stream, "part": part.number, "events": events, "done": done}
            self._writer.execute(self._advance, {**values, "projection": self.projection.name})
        self._count(events)

    def _fill(self, rows: Mapping[Key, Kept]) -> None:
        packed = self._packed(rows, None)
        if packed is not None:
            self._fill_packed(*packed)

    def _fill_packed(self, packed: Any, rows: Mapping[Key, Kept]) -> None:
        try:
            with self._writer.transaction():
                self.table.fill(self._writer, packed)
        except REFUSALS as error:
            raise self._refused(rows, error) from error

    def _refused(self, rows: Mapping[Key, Kept], error: Exception) -> Exception:
        """Return the error at the event that changed the row last which a column or the database refuses."""
        while len(rows) > 1:
            for half in _slices(rows, (len(rows) + 1) // 2):
                try:
                    with self._writer.transaction(force_rollback=True):
                        self.table.fill(self._writer, self.table.pack(half))
                except REFUSALS as found:
                    rows, error = half, found
                    break
            else:
                return error
        ((position, _),) = rows.values()
        record = record_at(self._reader, self.projection.log, position)
        return failure_of(self.projection.name, record, error)

    @contextmanager
    def _fenced(self) -> Iterator[None]:
        values = {
            "projection": self.projection.name,
            "owner": self._token.owner,
            "token": self._token.number,
        }
        with self._writer.transaction():
            if self._writer.execute(self._fence, values).rowcount != 1:
                raise Fenced(self.projection.name, 0)
            yield


def _slices(rows: Mapping[Key, Kept], size: int) -> Iterator[dict[Key, Kept]]:
    items = list(rows.items())
    for first in range(0, len(items), size):
        yield dict(items[first : first + size])

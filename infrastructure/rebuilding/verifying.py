"""Verification: the next table against a fold of the log that shares no code with the one that built it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import psycopg
from psycopg.sql import Identifier

from ...domain.event import Event
from ...projections.ports import Key, Record
from ...projections.projection import Projection
from ..postgres.reader import LogReader
from ..postgres.sql import statement
from ..postgres.table import Table
from ..postgres.wire import meta_of
from .belongings import NEXT
from .errors import VerificationFailed
from .loading import FIRST, after_category

Extent = Literal["sample", "full", "none"]

SAMPLE = 100
"""Events, and rows, that are drawn for a sample; the rows that they lead to are folded anew."""

ROWS_AT_ONCE = 100_000
SHOWN = 5


class Verifier:
    """Compares the next table of a projection, as it is at a position, with rows that are folded anew.

    `reader` reads raw, `loader` reads rows. `count` is called with the number of events of each page.
    """

    def __init__(
        self,
        projection: Projection[Any],
        reader: psycopg.Connection[Any],
        loader: psycopg.Connection[Any],
        upto: int,
        category: str | None,
        *,
        page: int,
        count: Callable[[int], None],
    ) -> None:
        self.projection = projection
        self._table = Table(projection, NEXT)
        self._reader = reader
        self._loader = loader
        self._upto = upto
        self._category = category
        self._page = page
        self._count = count
        self._types = projection.types() or frozenset()

    def verify(self, extent: Extent) -> int:
        """Return how many rows were compared; raises `VerificationFailed`."""
        if extent == "none":
            return 0
        if extent == "sample":
            return self._compare_sample()
        compared = self._compare_streams() if self._category is not None else self._compare_keys()
        found = self._rows()
        if found != compared:
            raise VerificationFailed(
                self.projection.name, compared, found, ["rows that no event of the log leads to"]
            )
        return compared

    def _compare_sample(self) -> int:
        records = self._drawn()
        keys = {key for key in map(self._key_of, records) if key is not None} | self._keys_of_rows()
        if self._category is None:
            rows = self.projection.fold(
                event for event in self._events() if self.projection.key_of(event) in keys
            )
        else:
            rows = self.projection.fold(
                event for key in keys for event in self._stream(f"{self._category}/{key[0]}")
            )
        self._compare(keys, rows)
        return len(rows)

    def _compare_streams(self) -> int:
        assert self._category is not None
        compared, stream, version = 0, f"{self._category}/", FIRST
        query = statement("rebuild_streams", log=Identifier("onefold", self.projection.log))
        pending: list[Record] = []
        while True:
            values = (
                stream,
                version,
                after_category(self._category),
                self._upto,
                sorted(self._types),
                self._page,
            )
            records: list[Record] = self._reader.execute(query, values, prepare=True, binary=True).fetchall()
            self._count(len(records))
            pending += records
            if records:
                stream, version = records[-1][6], records[-1][1]
                complete = [record for record in pending if record[6] != stream]
                pending = [record for record in pending if record[6] == stream]
            else:
                complete, pending = pending, []
            if complete:
                compared += self._compare_complete(complete)
            if not records:
                return compared

    def _compare_complete(self, records: list[Record]) -> int:
        rows = self.projection.fold(map(self._decode, records))
        keys = {(record[6].partition("/")[2],) for record in records}
        self._compare(keys, rows)
        return len(rows)

    def _compare_keys(self) -> int:
        """Compare all rows, in as many passes over the log as keep what is in memory small."""
        passes = 1 + self._rows() // ROWS_AT_ONCE
        compared = 0
        for number in range(passes):
            seen: set[Key] = set()

            def mine(number: int = number, seen: set[Key] = seen) -> Iterator[Event]:
                for event in self._events():
                    key = self.projection.key_of(event)
                    if key is not None and hash(key) % passes == number:
                        seen.add(key)
                        yield event

            rows = self.projection.fold(mine())
            self._compare(seen, rows)
            compared += len(rows)
        return compared

    def _compare(self, keys: Iterable[Key], rows: dict[Key, Any]) -> None:
        chosen = list(keys)
        expected, found = self._table.compare(self._loader, chosen, rows)
        if expected == found:
            return
        stored = self._table.load(self._loader, chosen)
        apart = [key for key in chosen if rows.get(key) != (stored[key][1] if key in stored else None)]
        raise VerificationFailed(
            self.projection.name,
            expected.rows,
            found.rows,
            [_described(key, rows.get(key), stored.get(key)) for key in (apart or chosen)[:SHOWN]],
        )

    def _drawn(self) -> list[Record]:
        query = statement("rebuild_sample", log=Identifier("onefold", self.projection.log))
        found = self._reader.execute(query, (SAMPLE, self._upto, self._upto), binary=True).fetchall()
        return [record for record in found if record[7] in self._types]

    def _key_of(self, record: Record) -> Key | None:
        if self._category is not None:
            return (record[6].partition("/")[2],)
        event = self._decode(record)
        return self.projection.key_of(event) if type(event) in self.projection.folds else None

    def _keys_of_rows(self) -> set[Key]:
        rows = self._rows()
        percent = min(100.0, 150.0 * SAMPLE / max(rows, 1))
        return set(self._table.some_keys(self._loader, percent, SAMPLE))

    def _rows(self) -> int:
        return self._table.count(self._loader)

    def _stream(self, stream: str) -> Iterator[Event]:
        query = statement("rebuild_stream_upto", log=Identifier("onefold", self.projection.log))
        values = (stream, self._upto)
        for record in self._reader.execute(query, values, prepare=True, binary=True).fetchall():
            if record[7] in self._types:
                yield self._decode(record)

    def _events(self) -> Iterator[Event]:
        reader = LogReader(self._reader, log=self.projection.log, registry=self.projection.registry)
        after = 0
        while after < self._upto and (page := reader.read(after, self._page, self._types)).records:
            for record in page.records:
                if record[0] <= self._upto and record[7] in self._types:
                    event = self._decode(record)
                    if type(event) in self.projection.folds:
                        yield event
            self._count(len(page.records))
            after = page.upto

    def _decode(self, record: Record) -> Event:
        registry = self.projection.registry
        return registry.decode(record[7], record[5], record[8], meta_of(record))


def _described(key: Key, expected: Any, stored: Any) -> str:
    name = ", ".join(map(str, key))
    return f"{name}: expected {expected!r}, found {None if stored is None else stored[1]!r}"

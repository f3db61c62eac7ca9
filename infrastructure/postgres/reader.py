"""Reading the log in order, without skipping what commits late and without stopping writers.

An append holds the log's advisory lock, shared, from before it draws positions to its end, and becomes visible
before it lets go. So an append that drew a number below one that is visible either shows in the next snapshot,
or is still among the holders, or was rolled back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, overload

import psycopg
from psycopg.sql import Identifier

from ...domain.event import Event
from ...domain.registry import Registry
from ...domain.registry import registry as shared_registry
from ...projections.gaps import deliverable
from ...projections.ports import Page, Record
from .holders import STANDBY, Holder, look
from .sql import statement
from .wire import meta_of


class Stall(NamedTuple):
    """A hole that may still be filled: positions up to `high` wait for `holders` to end."""

    high: int
    holders: frozenset[Holder]

    def narrowed(self, present: frozenset[Holder]) -> Stall | None:
        """Return what is left to wait for while `present` hold the lock, None when nothing is."""
        if STANDBY in present:
            return self
        remaining = self.holders & present
        if any(pid is not None for _, pid in self.holders - present):
            # A transaction that was prepared goes on under another name, and without a process; also where a
            # standby was promoted.
            remaining |= {holder for holder in present if holder[1] is None}
        return Stall(self.high, remaining) if remaining else None


class Ahead(NamedTuple):
    """A page that was asked for ahead."""

    after: int
    limit: int
    types: Collection[str] | None
    cursor: psycopg.Cursor[Any]


class LogReader:
    """Reads one log on a connection of its own, which must be in autocommit mode and read raw (`pool.configure`).

    Not for several threads at once.
    """

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        *,
        log: str = "events",
        schema: str = "onefold",
        registry: Registry = shared_registry,
    ) -> None:
        self._connection = connection
        self._registry = registry
        table = Identifier(schema, log)
        self._read_page = statement("read_page", log=table)
        self._read_page_of_types = statement("read_page_of_types", log=table)
        self._head = statement("head", log=table)
        self._next = statement("next_position", log=table)
        self._log = (schema, log)
        found = connection.execute(statement("append_lock_key"), self._log).fetchone()
        assert found is not None
        self._lock_key: int = found[0]
        self._settled = -1
        self._stall: Stall | None = None
        self._hole_after = -1
        self._ahead: Ahead | None = None

    @property
    def stall(self) -> Stall | None:
        """The hole that the reader waits at, if any."""
        return self._stall

    def read(self, after: int, limit: int, types: Collection[str] | None = None) -> Page:
        """Return the next page; see `projections.ports.LogReader`.

        A page is cut before the first hole that an open append may still fill; `waiting` says so. Call again
        after a moment: the hole fills, or its holders end and it is passed over for good.
        """
        if (page := self._taken(after, limit, types)) is not None:
            return page
        if self._stall is not None:
            high = self._stall.high
            self._stall = self._stall.narrowed(self._present_holders())
            if self._stall is None:
                self._settled = max(self._settled, high)
            elif after == self._hole_after and self._hole_is_open(after):
                return Page(after, after, [], waiting=True)
        elif self._settled < 0:
            self._settle()
        records = self._page(after, limit, types)
        count = deliverable(after, _Positions(records), self._settled)
        if count < len(records) and self._beyond_stall(records[count - 1][0] if count else after):
            # The holders are asked for after the head was read: whoever drew a number below it holds the lock
            # since before that, or has ended and shows in a fresh snapshot.
            high = max(records[-1][0], self.head())
            holders = self._present_holders()
            if holders:
                self._stall = Stall(high, holders)
            else:
                self._settled = high
                records = self._page(after, limit, types)
                count = deliverable(after, _Positions(records), self._settled)
        waiting = count < len(records) and self._stall is not None
        if count < len(records):
            records = records[:count]
        upto = records[-1][0] if records else after
        self._hole_after = upto if waiting else -1
        return Page(after, upto, records, waiting)

    def prefetch(self, after: int, limit: int, types: Collection[str] | None = None) -> None:
        """Ask the server for a page before it is read; may run in another thread, though not beside a read."""
        self._ahead = Ahead(after, limit, types, self._ask(after, limit, types))

    def _taken(self, after: int, limit: int, types: Collection[str] | None) -> Page | None:
        """Return the page that was asked for ahead, if it is this one and has no hole that was open then."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or (ahead.after, ahead.limit, ahead.types) != (after, limit, types):
            return None
        records: list[Record] = ahead.cursor.fetchall()
        # Before anything else is settled: holes are judged by what was settled when the page was asked for.
        if not records or deliverable(after, _Positions(records), self._settled) < len(records):
            return None
        return Page(after, records[-1][0], records)

    def event(self, record: Record) -> Event:
        """Return the decoded event of a record."""
        return self._registry.decode(record[7], record[5], record[8], meta_of(record))

    def head(self) -> int:
        """Return the highest position that is visible now, 0 for an empty log."""
        row = self._connection.execute(self._head, prepare=True).fetchone()
        return 0 if row is None else int(row[0])

    def _settle(self) -> None:
        head = self.head()
        holders = self._present_holders()
        self._settled = max(0, self._settled) if holders else head
        self._stall = Stall(head, holders) if holders else None

    def _hole_is_open(self, after: int) -> bool:
        row = self._connection.execute(self._next, (after,), prepare=True).fetchone()
        return row is not None and deliverable(after, row, self._settled) == 0

    def _beyond_stall(self, delivered: int) -> bool:
        return self._stall is None or delivered >= self._stall.high

    def _page(self, after: int, limit: int, types: Collection[str] | None) -> list[Record]:
        return self._ask(after, limit, types).fetchall()

    def _ask(self, after: int, limit: int, types: Collection[str] | None) -> psycopg.Cursor[Any]:
        execute = self._connection.execute
        if types is None:
            return execute(self._read_page, (after, limit), prepare=True, binary=True)
        return execute(self._read_page_of_types, (list(types), after, limit), prepare=True, binary=True)

    def _present_holders(self) -> frozenset[Holder]:
        holders, final = look(self._connection.cursor(), self._lock_key, self._log)
        self._settled = max(self._settled, final)
        return holders


class _Positions(Sequence[int]):
    """The positions of records, as the sequence that the gap rule reads."""

    __slots__ = ("_records",)

    def __init__(self, records: list[Record]) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> _Positions: ...
    def __getitem__(self, index: int | slice) -> int | _Positions:
        if isinstance(index, slice):
            return _Positions(self._records[index])
        position: int = self._records[index][0]
        return position

"""The horizon of a log: up to which position nothing can appear any more."""

from __future__ import annotations

from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg.rows import tuple_row
from psycopg.sql import Identifier

from .holders import STANDBY, Holder, look
from .reader import Stall
from .sql import statement


class Horizon:
    """What several readers of one log know about its holes; for any number of threads.

    Every hole at or below a position that is settled was rolled back. What is found on the primary is shared; what a
    connection may rely on is what was settled on it, because another one may lead to a standby that is behind.
    """

    def __init__(self, schema: str, table: str) -> None:
        self._log = (schema, table)
        self._key: int | None = None
        self._settled = 0
        self._stall: Stall | None = None
        self._settled_on = WeakKeyDictionary[psycopg.Connection[Any], int]()
        self._lock = Lock()
        self._head = statement("head", log=Identifier(schema, table))
        self._lock_key = statement("append_lock_key")

    def settled(self, connection: psycopg.Connection[Any]) -> int:
        """Return what was settled by the last look on this connection, 0 before the first.

        To rely on it, take it before a page is read: an event that was committed after the page was read is not in the
        page, whatever is settled by then.
        """
        with self._lock:
            return self._settled_on.get(connection, 0)

    def settle(self, connection: psycopg.Connection[Any]) -> int:
        """Return up to where holes are settled, after a look at who appends now, for the page that is read next.

        Appends that drew a number up to the highest one that is visible are among those who hold the log's lock
        afterwards, or have ended. Once they have all ended, everything up to that number is settled; appends that
        begin later draw higher ones.
        """
        stall = self._stall
        high, holders, final = self._look(connection)
        with self._lock:
            if STANDBY in holders:
                settled = max(final, self._settled_on.get(connection, 0))
            else:
                settled = self._settle(stall, high, holders)
            self._settled_on[connection] = settled
            return settled

    def _settle(self, stall: Stall | None, high: int, holders: frozenset[Holder]) -> int:
        # Another reader's stall that is younger than this look may wait for appends which the look was too early for.
        if stall is not None and self._stall is stall:
            self._stall = stall.narrowed(holders)
            if self._stall is None:
                self._settled = max(self._settled, stall.high)
        if self._stall is None and high > self._settled:
            if holders:
                self._stall = Stall(high, holders)
            else:
                self._settled = high
        return self._settled

    def _look(self, connection: psycopg.Connection[Any]) -> tuple[int, frozenset[Holder], int]:
        with connection.cursor(row_factory=tuple_row) as cursor:
            if (key := self._key) is None:
                found = cursor.execute(self._lock_key, self._log).fetchone()
                assert found is not None
                key = self._key = int(found[0])
            # Two statements, in this order: each has a snapshot of its own.
            head = cursor.execute(self._head, prepare=True).fetchone()
            assert head is not None
            return head[0], *look(cursor, key, self._log)

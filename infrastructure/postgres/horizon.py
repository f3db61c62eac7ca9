"""The horizon of a log: up to which position nothing can appear any more."""

from __future__ import annotations

from threading import Lock
from typing import Any

import psycopg
from psycopg.rows import tuple_row
from psycopg.sql import Identifier

from .errors import ReadOnlyServer
from .reader import Holder, Stall
from .sql import statement


class Horizon:
    """What several readers of one log know about its holes; for any number of threads.

    Every hole at or below `settled` was rolled back. To rely on it, take its value before a page is read: an event
    that was committed after the page was read is not in the page, whatever is settled by then.
    """

    def __init__(self, schema: str, table: str) -> None:
        self.settled = 0
        self._names = (schema, table)
        self._key: int | None = None
        self._stall: Stall | None = None
        self._lock = Lock()
        self._head = statement("head", log=Identifier(schema, table))
        self._holders = statement("append_lock_holders")
        self._lock_key = statement("library_lock_key")

    def settle(self, connection: psycopg.Connection[Any]) -> int:
        """Return `settled` after a look at who appends now, for the page that is read next.

        Appends that drew a number up to the highest one that is visible are among those who hold the log's lock
        afterwards, or have ended. Once they have all ended, everything up to that number is settled; appends that
        begin later draw higher ones. Raises `ReadOnlyServer` on a standby, where holders cannot be seen.
        """
        high, holders = self._look(connection)
        with self._lock:
            if self._stall is not None:
                waited_for = self._stall.high
                self._stall = self._stall.narrowed(holders)
                if self._stall is None:
                    self.settled = max(self.settled, waited_for)
            if self._stall is None and high > self.settled:
                if holders:
                    self._stall = Stall(high, holders)
                else:
                    self.settled = high
            return self.settled

    def _look(self, connection: psycopg.Connection[Any]) -> tuple[int, frozenset[Holder]]:
        with connection.cursor(row_factory=tuple_row) as cursor:
            if self._key is None:
                found = cursor.execute(self._lock_key, self._names).fetchone()
                assert found is not None
                if found[1]:
                    raise ReadOnlyServer
                self._key = found[0]
            # Two statements, in this order: each has a snapshot of its own.
            head = cursor.execute(self._head, prepare=True).fetchone()
            assert head is not None
            return head[0], frozenset(cursor.execute(self._holders, (self._key,), prepare=True).fetchall())

"""The horizon of a log: up to which position nothing can appear any more."""

from __future__ import annotations

from threading import Lock
from typing import Any

import psycopg
from psycopg.rows import tuple_row

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
        self._holders = statement("append_lock_holders")
        self._lock_key = statement("library_lock_key")

    def settle(self, connection: psycopg.Connection[Any], high: int) -> int:
        """Return `settled` after a look at who appends now; `high` is the highest position of a page read before.

        Appends that drew a number up to `high` are among the holders of the log's lock, or have ended. Once those
        that were seen have ended too, all up to `high` is settled; appends that begin later draw higher numbers.
        Raises `ReadOnlyServer` on a standby, where holders cannot be seen.
        """
        holders = self._present(connection)
        with self._lock:
            if self._stall is not None:
                remaining = self._stall.holders & holders
                if remaining:
                    self._stall = Stall(self._stall.high, remaining)
                else:
                    self.settled = max(self.settled, self._stall.high)
                    self._stall = None
            if self._stall is None and high > self.settled:
                if holders:
                    self._stall = Stall(high, holders)
                else:
                    self.settled = high
            return self.settled

    def _present(self, connection: psycopg.Connection[Any]) -> frozenset[Holder]:
        with connection.cursor(row_factory=tuple_row) as cursor:
            if self._key is None:
                found = cursor.execute(self._lock_key, self._names).fetchone()
                assert found is not None
                if found[1]:
                    raise ReadOnlyServer
                self._key = found[0]
            return frozenset(cursor.execute(self._holders, (self._key,), prepare=True).fetchall())

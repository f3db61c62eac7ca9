"""The swap: another version of a read model takes the place of the one that serves.

Nobody waits long for it. A table that a long transaction uses is left alone until that has ended; only then the lock is
asked for, and given up after `LOCK_MS`, because whoever comes after us in the queue waits too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from ...projections.projection import Projection
from ..backoff import Backoff
from ..postgres.errors import Fenced
from ..postgres.readmodel import FENCED
from ..postgres.sql import statement
from ..postgres.table import READ
from .belongings import regclass
from .errors import SwapBlocked

LOCK_MS = 80
"""Milliseconds for which a lock is waited for."""

LOOK = 0.04
"""Seconds between two looks at who uses the table; whoever is there in both is not about to go."""

HOLD = 2.0
"""Seconds for which the serving version is kept from moving while the lock is tried."""

NEXT_SEGMENT, BEFORE_SEGMENT = -1, -2
"""Where onefold.checkpoints keeps the next version, and the one that served before."""

BEHIND = "OF005"


class Swapper:
    """Puts a version of one projection in the place of the serving one, on a connection in autocommit mode."""

    def __init__(
        self,
        projection: Projection[Any],
        connection: psycopg.Connection[Any],
        owner: str,
        *,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._connection = connection
        self._owner = owner
        self._stop = stop
        self.projection = projection

    def swap(
        self,
        segment: int,
        catch_up: Callable[[], int] | None,
        *,
        patience: float,
        waiting: Callable[[list[str]], None] = lambda _: None,
    ) -> bool:
        """Exchange the serving version with that of `segment`; false when asked to stop before.

        `catch_up` brings that version to the log's end and returns its position; without, it may lie behind the
        serving one. Raises `SwapBlocked` after `patience` seconds; `Fenced` when another rebuild took over.
        """
        deadline = time.monotonic() + patience
        backoff = Backoff(0.1, 5.0)
        while not self._stop():
            holders = self._lasting_holders()
            if not holders and self._try(segment, catch_up):
                return True
            waiting(holders)
            if time.monotonic() > deadline:
                raise SwapBlocked(self.projection.name, patience, holders or self._lasting_holders())
            time.sleep(backoff.next())
            if catch_up is not None:
                catch_up()
        return False

    def _try(self, segment: int, catch_up: Callable[[], int] | None) -> bool:
        if catch_up is not None:
            catch_up()
        with self._holding() as position:
            deadline = time.monotonic() + HOLD / 2
            backoff = Backoff(0.01, 0.2)
            if catch_up is not None:
                while catch_up() < position:
                    if time.monotonic() > deadline or self._stop():
                        return False
                    time.sleep(0.01)
            while time.monotonic() < deadline and not self._stop():
                if not self._lasting_holders() and self._exchange(segment, behind=catch_up is None):
                    return True
                time.sleep(backoff.next())
        return False

    @contextmanager
    def _holding(self) -> Iterator[int]:
        """Keep the serving version where it is, and give its position."""
        who = {"projection": self.projection.name, "owner": self._owner}
        held = self._connection.execute(statement("rebuild_hold"), {**who, "seconds": HOLD}).fetchall()
        try:
            yield max((position for (position,) in held), default=0)
        finally:
            if not self._connection.closed:
                self._connection.execute(statement("rebuild_let_go"), who)

    def _exchange(self, segment: int, *, behind: bool) -> bool:
        values = {
            "projection": self.projection.name,
            "segment": segment,
            "owner": self._owner,
            "coming_owner": None if behind else self._owner,
            "behind": behind,
            "lock_ms": LOCK_MS,
        }
        try:
            self._connection.execute(statement("rebuild_exchange"), values)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            return False
        except psycopg.DatabaseError as error:
            if error.sqlstate == BEHIND:
                return False
            if error.sqlstate == FENCED:
                raise Fenced(self.projection.name, 0) from error
            raise
        return True

    def _lasting_holders(self) -> list[str]:
        """Return who uses the serving table for longer than a moment."""
        first = self._holders()
        if not first:
            return []
        time.sleep(LOOK)
        second = self._holders()
        return [text for transaction, text in second.items() if transaction in first]

    def _holders(self) -> dict[str, str]:
        values = {"table": regclass(READ, self.projection.name)}
        found = self._connection.execute(statement("rebuild_holders"), values).fetchall()
        return {transaction: _described(pid, name, age) for transaction, pid, name, age in found}


def _described(pid: int | None, application: str | None, age: float | None) -> str:
    who = "a prepared transaction" if pid is None else f"pid {pid}"
    name = f" ({application})" if application else ""
    return f"{who}{name}{'' if age is None else f' for {age:.1f} s'}"

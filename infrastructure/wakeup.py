"""Wake-ups: one LISTEN connection a process and log, which tells every worker that something was appended."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

import psycopg
from psycopg.sql import SQL, Identifier

from .backoff import Backoff
from .connection import connected


class Wakeup:
    """Counts the notifications of a channel; workers wait for the count to rise.

    Only a hint: notifications are few (see `WAKE_INTERVAL`), may be lost with their connection, and are never
    needed for correctness. Workers poll beside it.
    """

    def __init__(self, url: str, channel: str) -> None:
        self._url = url
        self._channel = channel
        self._changed = threading.Condition()
        self._count = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._listen, name=f"onefold-listen-{channel}", daemon=True)

    @property
    def count(self) -> int:
        """How many wake-ups came so far."""
        return self._count

    def wait(self, seen: int, timeout: float) -> int:
        """Wait until the count is above `seen`, at most `timeout` seconds; return the count."""
        with self._changed:
            self._changed.wait_for(lambda: self._count > seen or self._stopping.is_set(), timeout)
            return self._count

    def wake(self) -> None:
        """Wake every worker now."""
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self.wake()
        self._thread.join()

    def _listen(self) -> None:
        backoff = Backoff()
        while not self._stopping.is_set():
            try:
                with connected(self._url, application="onefold listen") as connection:
                    connection.execute(SQL("LISTEN {}").format(Identifier(self._channel)))
                    self.wake()
                    backoff.reset()
                    while not self._stopping.is_set():
                        for _ in connection.notifies(timeout=0.5, stop_after=1):
                            self.wake()
            except psycopg.OperationalError:
                self._stopping.wait(backoff.next())

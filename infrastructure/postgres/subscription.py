"""Subscriptions: notifications as they come, by LISTEN with polling behind it."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections import deque
from collections.abc import Sequence
from threading import RLock
from typing import TYPE_CHECKING, Any

import psycopg
from eventsourcing import persistence
from eventsourcing.persistence import Notification, Subscription
from eventsourcing.postgres import PostgresDatastore
from psycopg import Connection
from psycopg.sql import SQL, Identifier

from .datastore import connect

if TYPE_CHECKING:
    from .recorders import ApplicationRecorder

PAGE = 500
"""Events that are read at once."""
FIRST_POLL = 0.005
"""Seconds until the next look after something came; each look that finds nothing doubles it."""
LAST_POLL = 0.5
"""Seconds between two looks when nothing comes and no wake-up either."""
HOLE_POLL = 0.05
"""The same while an append that is under way may still fill a hole; when it is rolled back, nobody is woken."""
RECONNECT = 1.0
"""Seconds until a lost connection for wake-ups is made again; polling goes on meanwhile."""


class Listener:
    """Waits for wake-ups on a channel, over a connection of its own, and can be interrupted.

    The connection is a help and never needed: while there is none, a wait just takes its time.
    """

    def __init__(self, datastore: PostgresDatastore, channel: str) -> None:
        self._datastore = datastore
        self._listen = SQL("LISTEN {}").format(Identifier(channel))
        self._connection: Connection[tuple[Any, ...]] | None = None
        self._next_try = 0.0
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)

    def start(self) -> bool:
        """Begin to listen; return True when that is new, so that what came before must be looked for once more."""
        if self._connection is not None or time.monotonic() < self._next_try:
            return False
        self._next_try = time.monotonic() + RECONNECT
        with contextlib.suppress(psycopg.Error):
            connection = connect(self._datastore)
            self._connection = connection
            connection.execute(self._listen)
            return True
        self._drop()
        return False

    def wait(self, seconds: float) -> bool:
        """Wait for a wake-up or an interruption; return True if there was one within `seconds`."""
        poll = select.poll()
        poll.register(self._far, select.POLLIN)
        if self._connection is not None:
            try:
                poll.register(self._connection.fileno(), select.POLLIN)
            except psycopg.Error:
                self._drop()
        if not poll.poll(1000 * seconds):
            return False
        if self._connection is not None:
            try:
                for _ in self._connection.notifies(timeout=0):
                    pass
            except psycopg.Error:
                self._drop()
        return True

    def interrupt(self) -> None:
        """End the present wait, or the next one, at once; for any thread."""
        with contextlib.suppress(OSError):
            self._near.send(b"\0")

    def close(self) -> None:
        """Let go of the connection; there will be no more waits."""
        self._drop()
        self._near.close()
        self._far.close()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()


class LogSubscription(Subscription[persistence.ApplicationRecorder]):
    """Iterates over the notifications of a log in the order of positions, skipping none that is committed late.

    It runs in the thread that iterates; `stop` may be called from any other and ends the iteration at once.
    """

    def __init__(
        self, recorder: ApplicationRecorder, gt: int | None = None, topics: Sequence[str] = ()
    ) -> None:
        super().__init__(recorder, gt, topics)
        self._log = recorder
        self._position = max(0, gt or 0)
        self._ready = deque[Notification]()
        self._listener = Listener(recorder.datastore, recorder.channel_name)
        self._iterating = RLock()

    def __next__(self) -> Notification:
        with self._iterating:
            if not self._ready and not self._has_been_stopped:
                self._fill()
            if self._has_been_stopped:
                self._listener.close()
                raise StopIteration
            notification = self._ready.popleft()
            self._last_notification_id = notification.id
            return notification

    def __exit__(self, *args: object, **kwargs: Any) -> None:
        super().__exit__(*args, **kwargs)
        with self._iterating:
            self._listener.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self._listener.close()

    def stop(self) -> None:
        """End the iteration, also for a thread that waits in it."""
        super().stop()
        self._listener.interrupt()
        if self._iterating.acquire(blocking=False):
            try:
                self._listener.close()
            finally:
                self._iterating.release()

    def _fill(self) -> None:
        seconds = FIRST_POLL
        while not self._has_been_stopped:
            page = self._log.read_page(self._position, PAGE, topics=self._topics)
            moved = page.upto > self._position
            self._position = page.upto
            if page.notifications:
                self._ready.extend(page.notifications)
                return
            # Wake-ups are sent once in a while only: soon after one, more may have come without another.
            if moved or self._listener.start():
                continue
            woken = self._listener.wait(seconds)
            longest = HOLE_POLL if page.waiting else LAST_POLL
            seconds = FIRST_POLL if woken else min(2 * seconds, longest)

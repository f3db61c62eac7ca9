"""The keeper: renews the leases of the calls that a runner has in hand."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

from ..connection import connected, one_line
from .hold import Hold
from .queue import Claimed, renew

log = logging.getLogger("onefold.effects")

SHARE = 3.0
"""How often a lease is renewed within its own time."""


class Keeper:
    """One thread with a connection of its own, so that a call that takes long does not lose its lease."""

    def __init__(self, url: str, shortest: float) -> None:
        self._url = url
        self._pause = shortest / SHARE
        self._lock = threading.Lock()
        self._held: dict[int, tuple[Claimed, Hold]] = {}
        self._stopping = threading.Event()
        self._connection: psycopg.Connection[Any] | None = None
        self._thread = threading.Thread(target=self._keep, name="onefold-effects-keeper", daemon=True)

    @property
    def in_hand(self) -> int:
        """How many calls are being made."""
        return len(self._held)

    @contextmanager
    def holding(self, task: Claimed, lease: float, since: float) -> Iterator[Hold]:
        """Renew the task's lease, which was taken at `since`, while the body runs."""
        hold = Hold(lease, since)
        with self._lock:
            self._held[task.id] = (task, hold)
        try:
            yield hold
        finally:
            # What the function has left running sends nothing any more.
            hold.end()
            with self._lock:
                del self._held[task.id]

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    def stop(self) -> None:
        """Renew no more."""
        self._stopping.set()
        self._thread.join(self._pause + 1.0)

    def _keep(self) -> None:
        while not self._stopping.wait(self._pause):
            with self._lock:
                held = list(self._held.values())
            try:
                for task, hold in held:
                    self._renew(task, hold)
            except psycopg.Error as error:
                log.warning("leases of effects are not renewed: %s", one_line(error))
                self._let_go()
        self._let_go()

    def _renew(self, task: Claimed, hold: Hold) -> None:
        if self._connection is None:
            self._connection = connected(self._url, application="onefold effects keeper", connect_timeout=2)
        asked = time.monotonic()
        if renew(self._connection, task, hold.lease):
            hold.renewed(asked)
            return
        with self._lock:
            still = self._held.get(task.id)
        if still is not None and still[1] is hold:
            hold.end()
            log.warning("effect %s: key %s is in the hands of another runner", task.effect, task.key)

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()

"""The keeper: prolongs the leases of requests at work, and looks after what is kept of those that are done."""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg

from ..connection import connected, one_line
from ..postgres.maintenance import maintain
from ..postgres.pool import Pool
from ..postgres.sql import statement

log = logging.getLogger("onefold.http")

UPKEEP = 60.0
"""Seconds between two looks at the generations of kept responses."""


class Keeper:
    """A thread that lives as long as there are leases to prolong, with a connection of its own.

    A handler that blocks the event loop does not keep it from its work.
    """

    def __init__(self, url: str, lease: float) -> None:
        self._url = url
        self._lease = lease
        self._leases: dict[UUID, UUID] = {}
        self._turn = threading.Lock()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._looked = 0.0
        self._registered = False

    def register(self, pool: Pool, service: str, retention: timedelta) -> None:
        """Say once, in the database, for how long the service promises to remember."""
        if not self._registered:
            with pool.connection() as connection:
                connection.execute(statement("http_register"), (service, retention.total_seconds()))
            self._registered = True

    def add(self, token: UUID, key: UUID) -> None:
        """Prolong this lease from now on."""
        with self._turn:
            self._leases[token] = key
            if self._thread is None:
                self._ending.clear()
                self._thread = threading.Thread(target=self._run, name="onefold-http-leases", daemon=True)
                self._thread.start()

    def remove(self, token: UUID) -> None:
        """Let this lease be."""
        with self._turn:
            self._leases.pop(token, None)

    def look(self) -> None:
        """Look after the generations if it is time to, in a thread that nothing waits for."""
        now = time.monotonic()
        if now - self._looked > UPKEEP:
            self._looked = now
            threading.Thread(target=self._upkeep, name="onefold-http-upkeep", daemon=True).start()

    def close(self) -> None:
        """End the thread."""
        with self._turn:
            thread = self._thread
            self._ending.set()
        if thread is not None:
            thread.join(5.0)

    def _run(self) -> None:
        connection: psycopg.Connection[Any] | None = None
        while not self._ending.wait(self._lease / 3):
            with self._turn:
                leases = dict(self._leases)
                if not leases:
                    self._thread = None
                    break
            try:
                if connection is None or connection.broken:
                    connection = connected(self._url, application="onefold http leases")
                values = {"lease": self._lease, "keys": list(leases.values()), "tokens": list(leases)}
                connection.execute(statement("http_renew"), values)
            except psycopg.Error as error:
                log.warning("leases of %d requests not prolonged: %s", len(leases), one_line(error))
        if self._ending.is_set():
            self._thread = None
        if connection is not None:
            connection.close()

    def _upkeep(self) -> None:
        try:
            with connected(self._url, application="onefold http upkeep") as connection:
                maintain(connection)
        except psycopg.Error as error:
            log.debug("upkeep of kept responses: %s; trying again later", one_line(error))

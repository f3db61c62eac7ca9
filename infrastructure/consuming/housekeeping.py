"""Housekeeping: what a consumer says of itself, and the upkeep of the ledger, beside its work."""

from __future__ import annotations

import logging
import threading
import time
from datetime import datetime
from typing import Any, Protocol

import psycopg

from ...projections.consumer import Consumer
from ..brokers.options import shown
from ..connection import connected, one_line
from ..postgres.maintenance import maintain
from ..postgres.readmodel import worker_name
from ..postgres.sql import statement
from .intake import Intake
from .observed import Observed
from .session import reap

log = logging.getLogger("onefold.consumer")

SAY = 2.0
"""Seconds between two reports of a worker."""

KEEP = 60.0
"""Seconds between two looks at the ledger's partitions."""


class _Subject(Protocol):
    consumer: Consumer
    broker: str
    observed: Observed
    intake: Intake

    @property
    def newest(self) -> datetime | None: ...


class Housekeeping:
    """A thread with a connection of its own, that nothing waits for."""

    def __init__(self, url: str, subject: _Subject) -> None:
        self._url = url
        self._subject = subject
        self._name = worker_name()
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"onefold-housekeeping-{subject.consumer.name}", daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Say that this worker is gone, and end."""
        self._stopping.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                application = f"onefold {self._subject.consumer.name} keep"
                with connected(
                    self._url, application=application, target_session_attrs="read-write"
                ) as connection:
                    self._keep(connection)
            except psycopg.Error as error:
                log.debug(
                    "housekeeping of %s: %s; trying again", self._subject.consumer.name, one_line(error)
                )
                self._stopping.wait(1.0)

    def _keep(self, connection: psycopg.Connection[Any]) -> None:
        kept = 0.0
        while not self._stopping.is_set():
            self._say(connection)
            reap(connection)
            if time.monotonic() - kept > KEEP:
                maintain(connection)
                kept = time.monotonic()
            self._stopping.wait(SAY)
        connection.execute(statement("worker_gone"), (self._name,))

    def _say(self, connection: psycopg.Connection[Any]) -> None:
        subject = self._subject
        observed = subject.observed
        values = {
            "worker": self._name,
            "consumer": subject.consumer.name,
            "broker": shown(subject.broker),
            "backlog": subject.intake.backlog,
            "in_flight": subject.intake.in_flight,
            "newest": subject.newest,
            "claim_ms": 1_000 * observed.claim_seconds / observed.claims if observed.claims else None,
        }
        connection.execute(statement("worker_says"), values)

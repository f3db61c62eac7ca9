"""Waiting: parked messages whose turn comes by the clock, and not by another message."""

from __future__ import annotations

import logging
import time

from ..postgres.inbox import Inbox
from ..postgres.sql import statement
from .processor import Processor

log = logging.getLogger("onefold.consumer")

EACH = 1.0
"""Seconds between looks at what waits."""


class Waiting:
    """Looks after the parked messages of one consumer: next tries, late reports, deadlines."""

    def __init__(self, processor: Processor) -> None:
        self._processor = processor
        self._inbox: Inbox = processor.inbox
        self._name = processor.consumer.name
        self._next = 0.0

    def look(self, *, now: bool = False) -> None:
        """Do what is due; at most once a second unless `now`."""
        at = time.monotonic()
        if not now and at < self._next:
            return
        self._next = at + EACH
        connection, number = self._inbox.connection, (self._inbox.number,)
        for sequence, count, version, since, reason in connection.execute(statement("inbox_report"), number):
            log.warning(
                "consumer %s: %s of %s %s since %s, from version %s on: %s",
                self._name,
                "1 message" if count == 1 else f"{count} messages",
                sequence,
                "waits" if count == 1 else "wait",
                since.isoformat(),
                version,
                reason,
            )
        for name in ("inbox_waiting", "inbox_overdue"):
            for (sequence,) in connection.execute(statement(name), number).fetchall():
                self._processor.drain(sequence)

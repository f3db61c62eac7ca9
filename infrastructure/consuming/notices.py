"""Notices: what is logged of messages; who, which key and since when, never what is in them."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from datetime import datetime

from ...projections.guards import FAILED_FOR_GOOD, Outcome
from ..postgres.ledger import Entry
from .arrivals import Arrival

log = logging.getLogger("onefold.consumer")

EACH_SECOND = 100
"""Lines a second about duplicates and the like; those beyond are counted, and told in one line."""


class Notices:
    """The log of one consumer. Lines are sampled when there are many; the counts in the database are not."""

    def __init__(self, consumer: str) -> None:
        self._consumer = consumer
        self._first_seen: dict[bytes, datetime] = {}
        self._second = 0
        self._lines = 0
        self._left_out = 0

    def first_seen(self, entries: Mapping[bytes, Entry]) -> None:
        """Remember, for the lines of a batch, when its duplicates were seen first."""
        self._first_seen = {key: entry.first_seen for key, entry in entries.items()}

    def decided(self, item: Arrival, outcome: Outcome, cause: str = "") -> None:
        """Log a message that was not applied."""
        if outcome in FAILED_FOR_GOOD:
            log.warning(
                "consumer %s: %s %s (%s) is a dead letter, %s: %s",
                self._consumer,
                item.message.type,
                _key(item),
                item.delivery.place,
                outcome.value,
                cause,
            )
            return
        if not log.isEnabledFor(logging.INFO) or not self._may_log():
            return
        if outcome is Outcome.DUPLICATE:
            seen = self._first_seen.get(item.key)
            when = "a moment ago" if seen is None else seen.isoformat()
            log.info("consumer %s: duplicate of key %s, first seen %s", self._consumer, _key(item), when)
        else:
            log.info("consumer %s: key %s is %s: %s", self._consumer, _key(item), outcome.value, cause)

    def unreadable(self, arrival: Arrival) -> None:
        """Log a delivery that is no message, or has no key."""
        log.warning(
            "consumer %s: %s is a dead letter, rejected: %s",
            self._consumer,
            arrival.delivery.place,
            arrival.problem,
        )

    def failed(self, item: Arrival, text: str, attempts: int, delay: float, cause: BaseException) -> None:
        """Log a failed try."""
        log.warning(
            "consumer %s: key %s failed: %s. Attempt %d, next in %.1f s",
            self._consumer,
            _key(item),
            text,
            attempts,
            delay,
            exc_info=cause if log.isEnabledFor(logging.DEBUG) else None,
        )

    def _may_log(self) -> bool:
        now = int(time.monotonic())
        if now != self._second:
            if self._left_out:
                log.info(
                    "consumer %s: %d more lines like these were left out", self._consumer, self._left_out
                )
            self._second, self._lines, self._left_out = now, 0, 0
        self._lines += 1
        if self._lines > EACH_SECOND:
            self._left_out += 1
            return False
        return True


def _key(item: Arrival) -> str:
    text = item.key_text
    return text if len(text) <= 80 else f"{text[:77]}..."

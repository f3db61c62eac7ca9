"""Claims: the keys of a batch, claimed in the ledger as far as it can remember them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import psycopg

from ...domain.instant import instant, microseconds
from ...projections.consumer import Consumer
from ...projections.guards import Memory, Outcome, recall
from ...projections.retention import duration
from ..postgres.ledger import Entry, Window, claim, claimed, window
from .arrivals import Arrival
from .failures import LedgerBehind
from .observed import Observed

WINDOW = 60.0
"""Seconds after which the ledger is asked again what it remembers."""

FUTURE = 86_400
"""Seconds that the time of a message, or of a time-ordered key, may be ahead of this clock."""

_FIRST = microseconds(datetime.min.replace(tzinfo=UTC))
_LAST = microseconds(datetime.max.replace(tzinfo=UTC))
_NEVER = 2**63


class Claims:
    """Claims the keys of one consumer, on the connection of its transaction."""

    def __init__(
        self, connection: psycopg.Connection[Any], consumer: Consumer, number: int, observed: Observed
    ) -> None:
        self._connection = connection
        self._consumer = consumer
        self._number = number
        self._observed = observed
        self._window: Window | None = None
        self._window_at = 0.0

    def look_again(self) -> None:
        """Ask the ledger before the next claim what it remembers: it has moved on."""
        self._window = None

    def claim(self, items: Sequence[Arrival]) -> Mapping[bytes, Entry]:
        """Claim the keys of a batch, and return the entries of those that were claimed before.

        What is too old, or too far in the future, is marked so, and claims nothing. Raises as `ledger.claim` does,
        and `LedgerBehind`.
        """
        mode = self._consumer.ledger
        found = self._present_window(refresh=False)
        floor = _FIRST if found.floor is None else microseconds(found.floor)
        if mode == "any":
            # The time of a message is its producer's, that of the floor the database's.
            floor += int(self._consumer.retention.clock_skew * 1_000_000) if found.floor is not None else 0
        ceiling = None if found.ceiling is None else microseconds(found.ceiling)
        # Of time-ordered keys the ceiling tells.
        latest = _NEVER if mode == "time" else microseconds(datetime.now(UTC)) + FUTURE * 1_000_000
        keys: dict[bytes, bytes] = {}
        old: set[bytes] = set()
        early: list[Arrival] = []
        before = latest + 1 if ceiling is None else min(latest + 1, ceiling)
        for item in items:
            aged = item.aged
            if aged is not None and floor < aged < before and not item.unclaimed:
                # The usual one: `recall` says the same.
                item.forgotten = False
                keys.setdefault(item.key, item.fingerprint)
                continue
            found_by_age = recall(aged, floor=floor, latest=latest, ceiling=ceiling, at_floor=mode == "any")
            if aged is not None and (found_by_age is Memory.EARLY or item.unclaimed):
                if item.ruled is None:
                    item.ruled = (Outcome.REJECTED, self._why_early(aged))
                early.append(item)
                old.add(item.key)
                continue
            item.forgotten = found_by_age is Memory.FORGOTTEN
            if item.forgotten:
                old.add(item.key)
                continue
            if found_by_age is Memory.BEYOND and aged is not None:
                ceiling = self._ceiling_for(item, aged)
                if item.ruled is not None and aged >= ceiling:
                    item.unclaimed = True
                    continue
            keys.setdefault(item.key, item.fingerprint)
        for item in early:
            item.unclaimed = item.key not in keys
        started = time.monotonic()
        entries: dict[bytes, Entry] = {}
        if keys:
            entries = claim(
                self._connection,
                mode,
                self._number,
                list(keys),
                list(keys.values()),
                # Of time-ordered keys the ceiling may have been looked up anew.
                within=self._window if mode == "time" and self._window is not None else found,
            )
            self._observed.claimed(len(keys), time.monotonic() - started)
        if old := old.difference(keys):
            entries |= claimed(self._connection, mode, self._number, list(old))
        return entries

    def _present_window(self, *, refresh: bool) -> Window:
        """Return what the ledger remembers; a claim finds out by itself when that is too old."""
        now = time.monotonic()
        if self._window is None or refresh or now - self._window_at > WINDOW:
            self._window = window(self._connection, self._consumer.ledger)
            self._window_at = now
        return self._window

    def _why_early(self, aged: int) -> str:
        at = instant(min(aged, _LAST)).isoformat()
        ahead = f"is {at}, more than {duration(FUTURE)} in the future, and it would be too young to expire"
        if self._consumer.age == "time":
            clocks = 'the clock of its producer, or declare age="published" or age="received"'
            return f"its time {ahead}; mend {clocks}"
        return f"the broker's time of it {ahead}; mend the broker's clock, or declare age=\"received\""

    def _ceiling_for(self, item: Arrival, aged: int) -> int:
        """Return the ledger's present ceiling; rule a key out that is of the future, as its clock must be wrong."""
        found = self._present_window(refresh=True).ceiling
        ceiling = _LAST if found is None else microseconds(found)
        if aged >= ceiling:
            if aged < microseconds(datetime.now(UTC)) + FUTURE * 1_000_000:
                raise LedgerBehind(self._consumer.name)
            if item.ruled is None:
                at = instant(min(aged, _LAST)).isoformat()
                cause = f"its key is of {at}, too far in the future; mend the clock of its producer"
                item.ruled = (Outcome.REJECTED, cause)
        return ceiling

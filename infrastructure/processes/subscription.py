"""The subscription of a process manager: the events that it answers, and its timeouts beside them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from ...domain.instant import instant
from ...projections.ports import Record
from ...projections.process import INSTANCE, TIMEOUT, Process
from ..brokers.log import LEASE, STRUCTURED, Entry, LogSubscription
from ..brokers.port import Delivery
from ..postgres.sql import statement

LOOK = 0.1
"""Seconds between two looks for timeouts that are due."""

AT_ONCE = 500
"""Timeouts that are taken at once at most."""


class ProcessSubscription(LogSubscription):
    """Delivers to a process manager: of one instance, one message at a time.

    So a message that is tried again is not overtaken by those that follow it. A timeout comes after every event that
    was committed by when it was found due: what came in time counts, however late the worker is.
    """

    def __init__(self, database: str, process: Process, *, once: bool = False, lease: float = LEASE) -> None:
        super().__init__(
            database,
            process.name,
            log=process.log,
            begin=process.begin,
            types=process.types,
            registry=process.registry,
            once=once,
            lease=lease,
        )
        self._process = process
        self._in_hand: set[UUID] = set()
        self._due: list[tuple[UUID, Entry]] = []
        self._barrier = 0
        self._look_at = 0.0
        self._none_due = False

    @property
    def ended(self) -> bool:
        """Whether the log's end was reached and no timeout is due, where that is the end."""
        return super().ended and (self._none_due or not self.joined)

    def key_of(self, record: Record) -> tuple[bool, str | None]:
        """Tell whether an event goes to an instance, and to which."""
        try:
            key = self._process.instance_of(self.reader.event(record))
        except Exception:  # noqa: BLE001 - it is delivered without an instance, and fails where that is counted
            return True, None
        return key is not None, key

    def attributes_of(self, record: Record, key: str | None) -> dict[str, str]:
        """Return what the instance, and the event's place in the log, are known by."""
        found = {"position": str(record[0]), "recordedtime": instant(record[3]).isoformat()}
        if record[9] is not None:
            found["metadata"] = record[9]
        if key is not None:
            found[INSTANCE] = key
        return found

    def beside(self, limit: int) -> Sequence[Entry]:
        """Return timeouts that are due, once every event before them was handed out."""
        if not self._due and time.monotonic() >= self._look_at:
            self._find_due()
        if not self._due or not self.has_handed_out(self._barrier):
            return ()
        due, self._due = self._due, []
        taken: list[Entry] = []
        keys: set[str] = set()
        for identity, entry in due:
            key = entry.key
            assert key is not None
            # Those whose instance has something in hand are found again.
            if len(taken) < limit and key not in keys and self.is_free(key):
                keys.add(key)
                self._in_hand.add(identity)
                taken.append(entry)
        return taken

    def settle(self, entries: Sequence[Entry]) -> None:
        """Keep timeouts that were not done from coming again: they are dead letters."""
        self._none_due = False
        ids = [UUID(entry.delivery.place.rpartition("@")[2]) for entry in entries]
        if ids:
            self.connection.execute(statement("timeout_settle"), (ids,))
            self._in_hand.difference_update(ids)

    def _find_due(self) -> None:
        self._look_at = time.monotonic() + LOOK
        values = (self._process.name, list(self._in_hand), AT_ONCE)
        rows = self.connection.execute(statement("timeout_due"), values).fetchall()
        self._none_due = not rows
        if rows:
            # After those were found: what was committed in time is below it.
            self._barrier = self.reader.head()
            self._due = [(row[0], self._entry(*row)) for row in rows]

    def _entry(self, identity: UUID, key: str, name: str, due: datetime) -> Entry:
        process = self._process
        body = {
            "specversion": "1.0",
            "id": str(identity),
            "source": f"/{process.name}",
            "type": TIMEOUT,
            "subject": process.manager.stream_of(key),
            "time": due.isoformat(),
            "datacontenttype": "application/json",
            INSTANCE: key,
            "data": {"instance": key, "name": name},
        }
        delivery = Delivery(
            json.dumps(body, ensure_ascii=False).encode(),
            {"content-type": STRUCTURED},
            f"{process.name}.{name}@{identity}",
            key,
            due,
        )
        entry = Entry(delivery, None, key)
        delivery.handle = entry
        return entry

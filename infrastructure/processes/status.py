"""Status of process managers: how many instances there are, and which timeouts are set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg

from ..postgres.sql import statement

COUNTED = 100_000
"""Instances and timeouts that are counted one by one; from there on a count says "at least"."""


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """A process manager in one moment: its instances, its timeouts that are set, and those of them that are due.

    `next_due` is when the first timeout is due, None without any. A count of `COUNTED` means at least as many.
    """

    name: str
    instances: int
    timeouts: int
    due: int
    next_due: datetime | None


def process_status(connection: psycopg.Connection[Any], names: Sequence[str]) -> tuple[ProcessStatus, ...]:
    """Return the process managers of these names, in this order."""
    if not names:
        return ()
    values = {"processes": list(names), "bound": COUNTED}
    return tuple(
        ProcessStatus(name, instances, timeouts, due, None if at is None else at.astimezone(UTC))
        for name, instances, timeouts, due, at in connection.execute(statement("process_status"), values)
    )

"""Maintenance of the outbox: what every relay of its channel has published is removed, a slice at a time."""

from __future__ import annotations

from typing import Any

import psycopg

from ..postgres.sql import statement

KEEP = 86_400.0
"""Seconds for which a message stays in the outbox after it was written, at least."""

RESOLVED = 30 * 86_400.0
"""Seconds for which a dead letter is kept after it was dealt with."""

SLICE = 5_000
"""Messages removed in one transaction."""


def remove_published(
    connection: psycopg.Connection[Any], *, keep: float = KEEP, slices: int | None = None
) -> int:
    """Remove messages that all relays of their channel are past, older than `keep` seconds; return how many.

    The connection is in autocommit mode: each slice is a transaction. A channel without a relay keeps everything;
    what is held back is kept apart, with its bytes.
    """
    removed, left = 0, slices
    while left is None or left > 0:
        count = connection.execute(statement("relay_remove"), {"keep": keep, "slice": SLICE}).rowcount
        removed += count
        if count < SLICE:
            break
        left = None if left is None else left - 1
    connection.execute(statement("relay_forget"), (RESOLVED, SLICE))
    return removed

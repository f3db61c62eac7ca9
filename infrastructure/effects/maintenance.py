"""Maintenance of tasks: those that were dealt with long enough ago are removed, a slice at a time."""

from __future__ import annotations

from typing import Any

import psycopg

from ..postgres.sql import statement

SLICE = 1_000
"""Tasks removed in one transaction."""

DISCARDED = 30 * 86_400.0
"""Seconds for which a dead letter is kept that was given up."""


def remove_old(connection: psycopg.Connection[Any], *, slices: int | None = None) -> int:
    """Remove tasks that are done, or given up, and were kept for their time; return how many.

    The connection is in autocommit mode: each slice is a transaction. `slices` bounds them, None is all there are.
    A call that is removed is never made again: keys that were given by hand stay known, others never come again.
    """
    removed, left = 0, slices
    while left is None or left > 0:
        count = connection.execute(statement("effect_remove"), (SLICE,)).rowcount
        removed += count
        if count < SLICE:
            break
        left = None if left is None else left - 1
    return removed

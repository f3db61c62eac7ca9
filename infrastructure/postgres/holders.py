"""Who may still fill a hole of a log, as far as the server that is read can tell.

A primary lists the appends that are under way. A standby cannot. What it has are the checkpoints: a worker on
the primary moved one to a position only after every hole up to there was filled or rolled back, and its commit
follows theirs in the WAL. So what a checkpoint says on a standby holds for every page that is read there afterwards.
"""

from __future__ import annotations

from typing import Any

import psycopg

from .sql import statement

Holder = tuple[str, int | None]
"""A transaction that holds the lock of a log: its virtual id, and its process unless it is prepared."""

STANDBY: Holder = ("standby", 0)
"""Stands for all that may append on the primary of a standby."""

_HOLDERS = statement("append_lock_holders")
_HIGHEST = statement("highest_checkpoint")


def look(cursor: psycopg.Cursor[Any], key: int, log: tuple[str, str]) -> tuple[frozenset[Holder], int]:
    """Return who may be appending, and the position up to which no hole can be filled whoever they are.

    `key` is that of the log's lock, `log` its schema and name, and `cursor` gives tuples. The position is 0 on a
    primary, where the holders tell all, and holds for pages that are read after this look.
    """
    holders = frozenset(cursor.execute(_HOLDERS, (key,), prepare=True).fetchall())
    if STANDBY not in holders:
        return holders, 0
    highest = cursor.execute(_HIGHEST, log, prepare=True).fetchone()
    assert highest is not None
    return holders, highest[0]

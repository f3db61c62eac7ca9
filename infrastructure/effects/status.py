"""Status of effects: how many calls wait, are being made, or were given up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from ..postgres.sql import statement

COUNTED = 100_000
"""Tasks of one effect that are counted one by one; from there on a count says "at least"."""


@dataclass(frozen=True, slots=True)
class EffectStatus:
    """An effect in one moment.

    `pending` counts calls that are due, or will be at their next try, `running` those in the hands of a runner, and
    `dead` those given up that nobody has dealt with. `oldest_seconds` says since when the oldest one is due, None
    while none is. `bounded` is true where there may be more; `declared` false where the application has no such effect.
    """

    name: str
    declared: bool = True
    pending: int = 0
    running: int = 0
    dead: int = 0
    oldest_seconds: float | None = None
    bounded: bool = False

    @property
    def sound(self) -> bool:
        """False when someone has to do something about it."""
        return not self.dead


def effects_status(
    connection: psycopg.Connection[Any], declared: Sequence[str], *, others: bool = True
) -> tuple[EffectStatus, ...]:
    """Return the state of the declared effects, and of `others` that the database has open calls of, by name."""
    values = {"declared": list(declared), "others": others, "bound": COUNTED}
    known = set(declared)
    return tuple(
        EffectStatus(
            name, name in known, pending, running, dead, oldest, max(pending + running, dead) >= COUNTED
        )
        for name, pending, running, dead, oldest in connection.execute(statement("effect_status"), values)
        if name in known or pending or running or dead
    )

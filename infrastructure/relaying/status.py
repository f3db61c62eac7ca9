"""How relays stand: how far they are, what waits, and what is held back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from ..postgres.sql import statement

COUNTED = 100_000
"""Messages that are counted one by one; from there on a count says "at least"."""


@dataclass(frozen=True, slots=True)
class RelayStatus:
    """A relay in one moment.

    `waiting` counts the messages of its outbox that are not published yet, None where it reads the log, whose lag is
    `behind`, in positions. `waiting_seconds` is the age of the oldest, None without any. `held` counts the messages
    that were refused, `behind_held` those that wait behind them. `at_work` is the number of its segments with a lease,
    which `processes` have.
    """

    name: str
    channel: str
    source: str
    segments: int
    at_work: int
    processes: int
    position: int
    published: int
    waiting: int | None
    waiting_seconds: float | None
    behind: int | None
    held: int
    behind_held: int

    @property
    def sound(self) -> bool:
        """False when someone has to do something about it."""
        return not self.held

    @property
    def bounded(self) -> bool:
        """True where there may be more waiting than is counted."""
        return self.waiting is not None and self.waiting >= COUNTED


def relays_status(connection: psycopg.Connection[Any]) -> tuple[RelayStatus, ...]:
    """Return the relays that were ever begun in the database, by name."""
    found: list[RelayStatus] = []
    for (
        name,
        channel,
        source,
        segments,
        position,
        published,
        at_work,
        processes,
        held,
        behind,
    ) in connection.execute(statement("relay_status")).fetchall():
        waiting: int | None = None
        age: float | None = None
        lag: int | None = None
        if source == "outbox":
            values = {"relay": name, "channel": channel, "position": position, "bound": COUNTED}
            row = connection.execute(statement("relay_lag"), values).fetchone()
            waiting, age = (0, None) if row is None else (row[0], row[1])
        else:
            row = connection.execute(statement("relay_lag_of_log"), (position, position)).fetchone()
            lag, age = (0, None) if row is None else (row[0], row[1])
        found.append(
            RelayStatus(
                name=name,
                channel=channel,
                source=source,
                segments=segments,
                at_work=at_work,
                processes=processes,
                position=position,
                published=published,
                waiting=waiting,
                waiting_seconds=age,
                behind=lag,
                held=held,
                behind_held=behind,
            )
        )
    return tuple(found)


def orphans(connection: psycopg.Connection[Any]) -> dict[str, int]:
    """Return the channels with messages in the outbox and no relay, and how many wait, up to `COUNTED` in all."""
    return dict(connection.execute(statement("relay_orphans"), (COUNTED,)).fetchall())

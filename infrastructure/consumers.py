"""Consumers: what became of their messages, how far each is behind its broker, and what waits for somebody."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import psycopg

from ..projections.guards import Outcome
from .lag import Share, backlog, lag_messages, lag_seconds
from .postgres.sql import statement

ALIVE = 15.0
"""Seconds without a word after which a worker is not counted as alive."""

COUNTED = 100_000
"""Parked messages and dead letters that are counted one by one; from there on a count says "at least"."""


class ConsumerState(Enum):
    """What a consumer is doing."""

    RUNNING = "running"
    IDLE = "idle"
    NOT_STARTED = "not started"


@dataclass(frozen=True, slots=True)
class ConsumerWorker:
    """A worker that is alive: what it consumes from, and what it said of itself `silent` seconds ago.

    `claim_ms` is the time of one key in the ledger, in milliseconds, on average since it began.
    """

    name: str
    broker: str
    backlog: int | None
    in_flight: int
    newest: datetime | None
    claim_ms: float | None
    started_at: datetime
    silent: float

    @property
    def share(self) -> Share:
        """What it says of the lag."""
        return Share(self.broker, self.backlog, self.in_flight, self.newest)


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """A consumer in one moment.

    `outcomes` counts messages by what became of them, exactly, since the consumer was first run. `backlog`, `lag` (both
    messages) and `lag_seconds` come from the workers that are alive, and are None where these cannot say. `floor` is
    the instant from which on the ledger remembers keys, None while it has forgotten none; `retention` is seconds.
    `parked` and `dead_letters` count what is open; `bounded` is true where there may be more. `parked_seconds` is the
    age of the oldest parked message.
    """

    name: str
    state: ConsumerState
    ledger: str
    ordering: str
    retention: float
    floor: datetime | None = None
    outcomes: dict[Outcome, int] = field(default_factory=dict[Outcome, int])
    backlog: int | None = None
    in_flight: int = 0
    lag: int | None = None
    lag_seconds: float | None = None
    parked: int = 0
    parked_seconds: float | None = None
    dead_letters: int = 0
    bounded: bool = False
    claim_ms: float | None = None
    workers: tuple[ConsumerWorker, ...] = ()

    @property
    def sound(self) -> bool:
        """False when someone has to do something about it."""
        return not self.dead_letters


def consumers_status(
    connection: psycopg.Connection[Any], names: Sequence[str] | None = None
) -> tuple[ConsumerStatus, ...]:
    """Return the consumers of these names that the database knows, in their order; all of them without names."""
    found = connection.execute(
        statement("status_consumers"), {"consumers": None if names is None else list(names), "bound": COUNTED}
    ).fetchall()
    if not found:
        return ()
    row = connection.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    numbers = [number for number, *_ in found]
    outcomes = _outcomes(connection, numbers)
    workers = _workers(connection, numbers)
    return tuple(_consumer(each, outcomes, workers, row[0]) for each in found)


def open_dead_letters(
    connection: psycopg.Connection[Any],
    consumers: Iterable[str] | None = None,
    *,
    sequence: str | None = None,
) -> int:
    """Return how many dead letters nobody has dealt with, of these consumers, of all without names."""
    values = {"consumers": None if consumers is None else list(consumers), "sequence": sequence}
    row = connection.execute(statement("dead_letters_count"), values).fetchone()
    assert row is not None
    return int(row[0])


def _consumer(
    row: Sequence[Any],
    outcomes: dict[int, dict[Outcome, int]],
    workers: dict[int, list[ConsumerWorker]],
    now: datetime,
) -> ConsumerStatus:
    number, name, ledger, ordering, retention, floor, parked, parked_seconds, dead_letters = row
    alive = workers.get(number, [])
    shares = [worker.share for worker in alive]
    return ConsumerStatus(
        name,
        ConsumerState.RUNNING if alive else ConsumerState.IDLE,
        ledger,
        ordering,
        retention,
        None if floor is None else floor.astimezone(UTC),
        outcomes.get(number, {}),
        backlog(shares),
        sum(worker.in_flight for worker in alive),
        lag_messages(shares),
        lag_seconds(shares, now),
        parked,
        parked_seconds,
        dead_letters,
        parked >= COUNTED or dead_letters >= COUNTED,
        _mean(worker.claim_ms for worker in alive),
        tuple(alive),
    )


def _outcomes(connection: psycopg.Connection[Any], numbers: list[int]) -> dict[int, dict[Outcome, int]]:
    found: dict[int, dict[Outcome, int]] = {}
    for number, outcome, count in connection.execute(statement("status_outcomes"), (numbers,)):
        found.setdefault(number, {})[Outcome(outcome)] = count
    return found


def _workers(connection: psycopg.Connection[Any], numbers: list[int]) -> dict[int, list[ConsumerWorker]]:
    found: dict[int, list[ConsumerWorker]] = {}
    for number, name, broker, waiting, held, newest, claim_ms, started_at, silent in connection.execute(
        statement("status_workers"), (numbers, ALIVE)
    ):
        newest = None if newest is None else newest.astimezone(UTC)
        worker = ConsumerWorker(
            name, broker, waiting, held, newest, claim_ms, started_at.astimezone(UTC), silent
        )
        found.setdefault(number, []).append(worker)
    return found


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None

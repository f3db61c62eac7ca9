"""Status: how far projections and consumers are, who works on them, and what is in the way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import psycopg
from psycopg.sql import Identifier

from ..projections.app import App
from ..projections.errors import FailedEvent
from ..projections.projection import AnyProjection
from .consumers import ConsumerState, ConsumerStatus, consumers_status
from .effects.status import EffectStatus, effects_status
from .history import logs
from .postgres.sql import statement
from .processes.status import ProcessStatus, process_status
from .relaying.status import RelayStatus, orphans, relays_status

COUNTED = 1_000_000
"""Events that are counted one by one; from there on a count says "at least"."""


class State(Enum):
    """What a projection is doing."""

    RUNNING = "running"
    RETRYING = "retrying"
    IDLE = "idle"
    FAILED = "stopped by failure"
    NOT_BUILT = "not built"
    NEEDS_REBUILD = "needs rebuild"


@dataclass(frozen=True, slots=True)
class Count:
    """A number of events; `exact` is false where there are at least, or about, as many."""

    number: int
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Holder:
    """A transaction that appends now: events behind it wait for its end. `age` is seconds.

    `pid` is None for a prepared transaction.
    """

    pid: int | None
    age: float | None
    application: str


@dataclass(frozen=True, slots=True)
class LogStatus:
    """A log: `head` is its highest position, `holders` those who append now, the oldest first.

    `there` is false for a log that a projection reads and nobody has made yet.
    """

    name: str
    head: int = 0
    events: Count = Count(0)
    holders: tuple[Holder, ...] = ()
    there: bool = True


@dataclass(frozen=True, slots=True)
class Failure:
    """The event that a projection stands before, why, how often it was tried, and when last."""

    event: FailedEvent
    attempts: int
    at: datetime | None


@dataclass(frozen=True, slots=True)
class ProjectionStatus:
    """A projection: applied up to `position` of its log.

    `lag` counts the events of the log beyond it, `lag_seconds` is the age of the oldest of them, 0 without any.
    `owner` is the worker that has the lease or had it last, `lease_seconds` what is left of the lease: negative when it
    has run out, None without an owner.
    """

    name: str
    log: str
    state: State
    position: int
    lag: Count
    lag_seconds: float
    owner: str | None = None
    lease_seconds: float | None = None
    moved_at: datetime | None = None
    failure: Failure | None = None

    @property
    def sound(self) -> bool:
        """False when someone has to do something about it."""
        return self.state not in (State.FAILED, State.NEEDS_REBUILD)


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a database in one moment, `at`.

    `others` are projections in it that the application lacks. `consumers` are all of the database, and those of the
    application that were never started. `effects` are those of the application, and others with calls that are open.
    `relays` are all of the database, `orphans` channels with messages in the outbox that no relay reads, and how many.
    `processes` are the process managers of the application.
    """

    database: str
    server: str
    at: datetime
    logs: tuple[LogStatus, ...]
    projections: tuple[ProjectionStatus, ...]
    others: tuple[str, ...] = ()
    consumers: tuple[ConsumerStatus, ...] = ()
    effects: tuple[EffectStatus, ...] = ()
    relays: tuple[RelayStatus, ...] = ()
    orphans: tuple[tuple[str, int], ...] = ()
    processes: tuple[ProcessStatus, ...] = ()

    @property
    def sound(self) -> bool:
        """False when a projection has stopped or needs a rebuild, a consumer, an effect or a relay has dead letters."""
        return (
            all(each.sound for each in self.projections)
            and all(each.sound for each in self.consumers)
            and all(each.sound for each in self.effects)
            and all(each.sound for each in self.relays)
        )


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    position: int
    fingerprint: str
    owner: str | None
    lease_seconds: float | None
    moved_at: datetime | None
    failure: Failure | None


@dataclass(slots=True)
class _Lags:
    """Counts what is beyond a position, once for all projections that stand there."""

    connection: psycopg.Connection[Any]
    there: frozenset[str]
    known: dict[tuple[str, int], tuple[Count, float]] = field(
        default_factory=dict[tuple[str, int], tuple[Count, float]]
    )

    def of(self, log: str, position: int) -> tuple[Count, float]:
        if log not in self.there:
            return Count(0), 0.0
        if (log, position) not in self.known:
            query = statement("status_lag", log=Identifier("onefold", log))
            values = {"after": position, "bound": COUNTED}
            number, age = self.connection.execute(query, values).fetchone() or (0, None)
            self.known[log, position] = (Count(number, number < COUNTED), max(age or 0.0, 0.0))
        return self.known[log, position]


def status(connection: psycopg.Connection[Any], app: App) -> Status:
    """Return the state of the application's logs and projections, and of consumers, all of one moment.

    `connection` is in autocommit mode and its database migrated. Nothing is changed, nobody is kept waiting.
    """
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        database, now = connection.execute("SELECT current_database(), clock_timestamp()").fetchone() or (
            "",
            datetime.now(UTC),
        )
        names = dict.fromkeys(["events", *(projection.log for projection in app.projections)])
        there = frozenset(logs(connection))
        checkpoints = _checkpoints(connection)
        lags = _Lags(connection, there)
        number = connection.info.server_version
        return Status(
            database=database,
            server=f"{number // 10000}.{number % 10000}",
            at=now.astimezone(UTC),
            logs=tuple(
                _log(connection, name) if name in there else LogStatus(name, there=False) for name in names
            ),
            projections=tuple(
                _projection(projection, checkpoints.get(projection.name), lags)
                for projection in app.projections
            ),
            others=_others(checkpoints, app.projections),
            consumers=_consumers(connection, app),
            effects=effects_status(connection, [each.name for each in app.effects]),
            relays=relays_status(connection),
            orphans=tuple(orphans(connection).items()),
            processes=process_status(connection, [each.name for each in app.processes]),
        )


def _consumers(connection: psycopg.Connection[Any], app: App) -> tuple[ConsumerStatus, ...]:
    found = consumers_status(connection)
    known = {each.name for each in found}
    new = (
        ConsumerStatus(
            each.name, ConsumerState.NOT_STARTED, each.ledger, each.rule.ordering, each.retention.ledger
        )
        for each in app.consumers
        if each.name not in known
    )
    return tuple(sorted((*found, *new), key=lambda each: each.name))


def _log(connection: psycopg.Connection[Any], name: str) -> LogStatus:
    query = statement("status_log", log=Identifier("onefold", name))
    values = {"bound": COUNTED, "log": Identifier("onefold", name).as_string(connection)}
    row = connection.execute(query, values).fetchone()
    assert row is not None
    head, counted, estimated, lock_key = row
    exact = counted < COUNTED
    holders = connection.execute(statement("append_lock_culprits"), (lock_key,)).fetchall()
    return LogStatus(
        name,
        head,
        Count(counted if exact else max(counted, estimated), exact),
        tuple(Holder(pid, age, application or "") for pid, age, application in holders),
    )


def _checkpoints(connection: psycopg.Connection[Any]) -> dict[str, _Checkpoint]:
    found: dict[str, _Checkpoint] = {}
    for name, position, fingerprint, owner, lease, moved_at, attempts, failure in connection.execute(
        statement("status_checkpoints")
    ):
        found[name] = _Checkpoint(
            position,
            fingerprint,
            owner,
            lease,
            moved_at.astimezone(UTC),
            None if failure is None else _failure(failure, attempts),
        )
    return found


def _failure(kept: dict[str, Any], attempts: int) -> Failure:
    at = kept.get("at")
    event = FailedEvent(*(kept[name] for name in FailedEvent._fields))
    return Failure(event, attempts, None if at is None else datetime.fromisoformat(at).astimezone(UTC))


def _projection(projection: AnyProjection, checkpoint: _Checkpoint | None, lags: _Lags) -> ProjectionStatus:
    position = 0 if checkpoint is None else checkpoint.position
    lag, age = lags.of(projection.log, position)
    if checkpoint is None:
        return ProjectionStatus(projection.name, projection.log, State.NOT_BUILT, position, lag, age)
    return ProjectionStatus(
        projection.name,
        projection.log,
        _state(projection, checkpoint),
        position,
        lag,
        age,
        checkpoint.owner,
        None if checkpoint.owner is None else checkpoint.lease_seconds,
        checkpoint.moved_at,
        checkpoint.failure,
    )


def _state(projection: AnyProjection, checkpoint: _Checkpoint) -> State:
    if checkpoint.fingerprint != projection.fingerprint():
        return State.NEEDS_REBUILD
    held = checkpoint.owner is not None and (checkpoint.lease_seconds or 0.0) > 0
    if checkpoint.failure is not None:
        return State.RETRYING if held else State.FAILED
    return State.RUNNING if held else State.IDLE


def _others(known: Iterable[str], projections: Iterable[AnyProjection]) -> tuple[str, ...]:
    ours = {projection.name for projection in projections}
    return tuple(sorted(name for name in known if name not in ours))

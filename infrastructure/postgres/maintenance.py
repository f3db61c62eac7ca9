"""Maintenance of the ledgers and the kept responses: room is made ahead, and what is old goes with its partition.

Nothing here waits long for a lock, because claims would queue up behind it: a step that finds its lock taken is left
for the next time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString, NamedTuple

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg.sql import Identifier

from ...domain.instant import instant
from ..backoff import Backoff
from .ledger import Mode, UnfitTransaction
from .pool import raw_cursor
from .sql import statement

LOCK = 0x4F46_0002_0000_0000
"""Key of the advisory lock of the one process that is at it."""

LOCK_TIMEOUT = "150ms"
"""For how long claims may have to wait behind one try of a step."""

TRIES = 4
AHEAD = timedelta(days=2)
SHORTEST_GENERATION = timedelta(minutes=1)
GENERATIONS = 4
"""Generations that a retention is divided into."""

STRAGGLERS = timedelta(minutes=1)
"""By how much the response of a transaction that began before the end of a generation may be younger than that."""

PARTITIONS = 30
PERIODS = tuple(timedelta(hours=hours) for hours in (6, 24, 7 * 24, 30 * 24, 365 * 24))
_PARENTS: dict[str, LiteralString] = {"any": "ledger", "time": "ledger_by_time", "http": "http_responses"}
_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Skipped(NamedTuple):
    """A step that could not be taken now, and why.

    The steps are `make`, `rotate`, `detach` and `drop` of a partition, and `retire` and `forget`, of a whole table.
    `pid` is the session that holds the lock, of several the one whose transaction is open longest; None where none is
    known.
    """

    step: str
    partition: str
    reason: str
    pid: int | None = None


@dataclass(slots=True)
class Maintenance:
    """What was done, by names of partitions in schema `onefold`.

    `made` take keys from now on, `sealed` take none any more, `retired` count as forgotten; `detached` are no part of
    the ledger any more, and `dropped` are gone. `busy` is true when another process was at it; nothing was done here.
    """

    made: list[str] = field(default_factory=list)
    sealed: list[str] = field(default_factory=list)
    retired: list[str] = field(default_factory=list)
    detached: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    busy: bool = False


def maintain(connection: psycopg.Connection[Any], *, now: datetime | None = None) -> Maintenance:
    """Make partitions ahead, seal a generation that is old enough, and drop what every consumer may forget.

    The same is done for the responses of HTTP services, whose generations need no seal.
    The connection is in autocommit mode and outside any transaction. `now` is the database's clock unless it is given.
    Any number of processes may do it at any time; one of them does the work. A ledger without consumers stays as it
    is. Claims are held up for 0.15 seconds at most, time after time; nothing is ever deleted row by row.

    A partition that is retired is forgotten at once, and dropped when no transaction uses it. What is skipped is done
    by a later call. Raises `UnfitTransaction` for a connection in a transaction.
    """
    if not connection.autocommit or connection.info.transaction_status != TransactionStatus.IDLE:
        raise UnfitTransaction(
            "expected a connection in autocommit mode outside any transaction, found another; partitions are detached "
            "in several transactions: open a connection for maintenance"
        )
    done = Maintenance()
    with _alone(connection) as alone:
        if not alone:
            done.busy = True
            return done
        _Run(connection, done).run(now)
    return done


def generation_length(retention: timedelta) -> timedelta:
    """Return for how long a generation takes keys."""
    return max(retention / GENERATIONS, SHORTEST_GENERATION)


def partition_period(retention: timedelta) -> timedelta:
    """Return the length of time whose keys share a partition: as short as it can be with few partitions."""
    return next((period for period in PERIODS if retention / period <= PARTITIONS), PERIODS[-1])


def missing_ranges(
    ceiling: datetime, now: datetime, period: timedelta
) -> Iterator[tuple[datetime, datetime]]:
    """Yield the ranges from `ceiling` to two days after `now`; time in which nobody made any is one of them."""
    reached = _start(now, period)
    if ceiling < reached:
        yield ceiling, reached
        ceiling = reached
    while ceiling < now + AHEAD:
        end = _start(ceiling, period) + period
        yield ceiling, end
        ceiling = end


def _start(at: datetime, period: timedelta) -> datetime:
    return at - (at - _UNIX_EPOCH) % period


class _Due(NamedTuple):
    now: int
    retention_any: float | None
    retention_time: float | None
    generation: int
    name: str
    starts_at: int
    ceiling: int


class _HttpDue(NamedTuple):
    now: int
    retention: float | None
    generation: int
    name: str
    starts_at: int


class _Run:
    def __init__(self, connection: psycopg.Connection[Any], done: Maintenance) -> None:
        self._connection = connection
        self._done = done
        self._http = False

    def run(self, at: datetime | None) -> None:
        with raw_cursor(self._connection) as cursor:
            row = cursor.execute(statement("ledger_due"), {"now": at}).fetchone()
        assert row is not None
        due = _Due(*row)
        now = instant(due.now)
        if due.retention_time is not None:
            retention = timedelta(seconds=due.retention_time)
            for start, end in missing_ranges(instant(due.ceiling), now, partition_period(retention)):
                if not self._make_range(start, end):
                    break
            self._retire("time", retention, now)
        if due.retention_any is not None:
            retention = timedelta(seconds=due.retention_any)
            if now - instant(due.starts_at) >= generation_length(retention):
                self._rotate(due.generation, due.name, now)
            self._retire("any", retention, now)
        self._run_http(at)
        blocked: set[str] = set()
        for name, ledger, halfway in self._retired():
            # Only one partition of a table may be halfway at a time.
            if halfway is not None and ledger in blocked:
                continue
            if not self._detach(name, _PARENTS[ledger]):
                blocked.add(ledger)
            else:
                self._drop(name)

    def _run_http(self, at: datetime | None) -> None:
        try:
            with raw_cursor(self._connection) as cursor:
                row = cursor.execute(statement("http_due"), {"now": at}).fetchone()
        except psycopg.errors.InsufficientPrivilege:
            # A role that serves no HTTP, such as that of a consumer, has nothing to do with them.
            return
        assert row is not None
        self._http = True
        due = _HttpDue(*row)
        if due.retention is None:
            return
        now, retention = instant(due.now), timedelta(seconds=due.retention)
        if now - instant(due.starts_at) >= generation_length(retention):
            self._rotate_http(due.generation, due.name, now)
        values = {"now": now, "retention": due.retention}

        def retire() -> None:
            # Commits of responses may come a moment after their generation has ended.
            late = {**values, "retention": (retention + STRAGGLERS).total_seconds()}
            with self._connection.cursor(row_factory=tuple_row) as cursor:
                cursor.execute(statement("http_retire"), late)
                self._done.retired += sorted(name for (name,) in cursor)

        def forget() -> None:
            self._connection.execute(statement("http_forget"), values)

        self._take("retire", "http_responses", ("http_generations",), retire)
        self._take("forget", "http_claims", ("http_claims",), forget)

    def _rotate_http(self, generation: int, active: str, now: datetime) -> None:
        name = f"http_responses_{generation + 1}"

        def step() -> None:
            with self._connection.transaction():
                self._connection.execute(statement("http_make"), (name, generation + 1))
                self._connection.execute(
                    statement("http_rotate"), {"now": now, "generation": generation, "name": name}
                )

        if self._take("rotate", active, ("http_responses",), step):
            self._done.made.append(name)
            self._done.sealed.append(active)

    def _make_range(self, start: datetime, end: datetime) -> bool:
        name = f"ledger_by_time_{start:%Y%m%d_%H%M}"

        def step() -> None:
            self._connection.execute("SELECT onefold.make_ledger_range(%s, %s)", (start, end))

        made = self._take("make", name, ("ledger_by_time",), step)
        if made:
            self._done.made.append(name)
        return made

    def _rotate(self, generation: int, active: str, now: datetime) -> None:
        name = f"ledger_{generation + 1}"

        def step() -> None:
            with self._connection.transaction():
                self._connection.execute(statement("ledger_make"), (name, generation + 1))
                # From here to the commit claims wait.
                self._connection.execute(statement("ledger_seal", partition=Identifier(active)))
                self._connection.execute(
                    statement("ledger_rotate"), {"now": now, "generation": generation, "name": name}
                )

        if self._take("rotate", active, (active,), step):
            self._done.made.append(name)
            self._done.sealed.append(active)

    def _retire(self, ledger: Mode, retention: timedelta, now: datetime) -> None:
        """Raise the floor, committed before anything is detached: no claim may miss a key and not be told so."""
        values = {"ledger": ledger, "now": now, "retention": retention.total_seconds()}

        def step() -> None:
            with self._connection.cursor(row_factory=tuple_row) as cursor:
                cursor.execute(statement("ledger_retire"), values)
                self._done.retired += sorted(name for (name,) in cursor)

        self._take("retire", _PARENTS[ledger], ("ledger_partitions",), step)

    def _detach(self, name: str, parent: LiteralString) -> bool:
        names = {"parent": Identifier(parent), "partition": Identifier(name)}

        def step() -> None:
            # A try that timed out has left it halfway, or not begun.
            halfway = {partition: state for partition, _, state in self._retired()}[name]
            if halfway is not None:
                how = "ledger_detach_finalize" if halfway else "ledger_detach"
                self._connection.execute(statement(how, **names))
                self._done.detached.append(name)

        return self._take("detach", name, (name, parent), step)

    def _drop(self, name: str) -> None:
        def step() -> None:
            self._connection.execute(statement("ledger_drop", partition=Identifier(name)))

        if self._take("drop", name, (name,), step):
            self._done.dropped.append(name)

    def _retired(self) -> list[tuple[str, str, bool | None]]:
        found: list[tuple[str, str, bool | None]] = []
        with self._connection.cursor(row_factory=tuple_row) as cursor:
            for name in ("ledger_retired", "http_retired") if self._http else ("ledger_retired",):
                found += cursor.execute(statement(name)).fetchall()
        return found

    def _take(self, step: str, partition: str, tables: Sequence[str], call: Callable[[], None]) -> bool:
        """Take a step, in a few tries; true if it is done."""
        pauses = Backoff(0.05, 0.2)
        for number in range(TRIES):
            if number:
                # Claims that have queued up go first.
                time.sleep(pauses.next())
            try:
                call()
                return True
            except psycopg.errors.LockNotAvailable:
                continue
            except psycopg.errors.InsufficientPrivilege as error:
                reason = f"{error.diag.message_primary}; run `onefold maintain` as the owner of the ledger"
                self._done.skipped.append(Skipped(step, partition, reason))
                return False
        with self._connection.cursor(row_factory=tuple_row) as cursor:
            row = cursor.execute(statement("ledger_blocker"), (list(tables),)).fetchone()
        self._done.skipped.append(
            Skipped(
                step, partition, "another transaction holds a lock on it", None if row is None else row[0]
            )
        )
        return False


@contextmanager
def _alone(connection: psycopg.Connection[Any]) -> Iterator[bool]:
    """Hold the lock of maintenance, and wait for other locks no longer than claims may be held up."""
    with connection.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute(
            "SELECT pg_try_advisory_lock(%s), current_setting('lock_timeout')", (LOCK,)
        ).fetchone()
    assert row is not None
    alone, before = row
    if not alone:
        yield False
        return
    setting = "SELECT set_config('lock_timeout', %s, false)"
    try:
        connection.execute(setting, (LOCK_TIMEOUT,))
        yield True
    finally:
        # A connection that is lost has lost the lock too.
        if not connection.closed:
            connection.execute(setting, (before,))
            connection.execute("SELECT pg_advisory_unlock(%s)", (LOCK,))

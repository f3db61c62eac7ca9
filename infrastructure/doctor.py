"""The doctor: examines an installation, and says what is wrong with it and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import psycopg
from psycopg.rows import namedtuple_row

from ..domain.errors import OnefoldError
from ..projections.app import App
from .consumers import ConsumerState
from .postgres.migrate import pending
from .postgres.sql import statement
from .status import ProjectionStatus, State, Status, status

SKEW = 1.0
"""Seconds by which the clocks of this machine and of the server may differ."""

SKEW_OF_HARM = 60.0
"""Seconds of difference from which on the retention of keys cannot be relied on."""

LONG = 60.0
"""Seconds from which on a transaction counts as long."""

IN_THE_WAY = 5.0
"""Seconds from which on an append that is open counts as in the way of all readers."""

BEHIND = 60.0
"""Seconds by which a projection may be behind."""

ROOM = 86_400.0
"""Seconds for which the time-ordered ledger should have room ahead."""

FULL = 0.9
"""Share of the server's connections from which on they count as nearly used up."""

QUEUE = 0.1
"""Share of the server's queue of notifications from which on it counts as filling up."""

AGE = 1_500_000_000
"""Transactions since the last freezing from which on the server is near to refusing writes, which it does at 2^31."""


class Severity(Enum):
    """How bad a finding is: `fine` is nothing to do, `warning` may become a problem, `problem` is one."""

    FINE = "fine"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at (`check`), what was found, and what to do; `advice` is empty for what is fine."""

    check: str
    severity: Severity
    found: str
    advice: str = ""


Check = Callable[[], Iterable[Finding]]


def examine(connection: psycopg.Connection[Any], app: App, *, embedded: bool = False) -> list[Finding]:
    """Return what there is to say about a database and the server it is on, in the order of the examination.

    `connection` is in autocommit mode; with `embedded` it is to the private server, where the program's role owns
    everything. Nothing is changed, and nobody is kept waiting. A check that cannot be made
    is a finding itself.
    """
    found = [
        *_guarded("server", lambda: _server(connection, embedded)),
        *_guarded("migrations", lambda: _migrations(connection)),
    ]
    if any(each.check == "migrations" and each.severity is Severity.PROBLEM for each in found):
        return found
    state: list[Status] = []

    def looked() -> Status:
        if not state:
            state.append(status(connection, app))
        return state[0]

    checks: dict[str, Check] = {
        "append-only": lambda: _append_only(connection),
        "appends": lambda: _appends(looked()),
        "transactions": lambda: _transactions(connection),
        "indexes": lambda: _indexes(connection),
        "ledgers": lambda: _ledgers(connection),
        "projections": lambda: _projections(looked()),
        "consumers": lambda: _consumers(looked()),
        "relays": lambda: _relays(looked()),
    }
    for name, check in checks.items():
        found += _guarded(name, check)
    return found


def clocks(before: datetime, server: datetime, after: datetime) -> Finding:
    """Return what two clocks say of each other, of which the server's was read between two looks at this machine's."""
    slack = (after - before).total_seconds() / 2
    skew = (server - before).total_seconds() - slack
    if abs(skew) <= SKEW + slack:
        return Finding(
            "clocks", Severity.FINE, f"this machine and the server agree within {SKEW + slack:.1f} s"
        )
    which = "ahead of" if skew > 0 else "behind"
    harm = abs(skew) > SKEW_OF_HARM + slack
    return Finding(
        "clocks",
        Severity.PROBLEM if harm else Severity.WARNING,
        f"the server's clock is {abs(skew):.1f} s {which} this machine's",
        "let both follow the same time server (NTP): the ages of messages, the retention of keys and UUIDv7 ids are "
        "taken from both clocks",
    )


def _guarded(name: str, check: Check) -> list[Finding]:
    try:
        return list(check())
    except (psycopg.Error, OnefoldError) as error:
        return [
            Finding(
                name,
                Severity.PROBLEM,
                f"it cannot be examined: {' '.join(str(error).split())}",
                "mend what the message says, or examine with a role that may read the schema onefold",
            )
        ]


def _server(connection: psycopg.Connection[Any], embedded: bool) -> Iterator[Finding]:
    before = datetime.now(UTC)
    with connection.cursor(row_factory=namedtuple_row) as cursor:
        server: Any = cursor.execute(statement("doctor_server")).fetchone()
    after = datetime.now(UTC)
    assert server is not None
    number = connection.info.server_version
    yield Finding(
        "server",
        Severity.FINE,
        f"PostgreSQL {number // 10000}.{number % 10000}{', a standby' if server.standby else ''}, database "
        f"{connection.info.dbname}, {server.connections} of {server.max_connections} connections",
    )
    yield clocks(before, server.now, after)
    for name, on in (("fsync", server.fsync), ("full_page_writes", server.full_page_writes)):
        if not on:
            yield Finding(
                name,
                Severity.PROBLEM,
                f"{name} is off: a crash of the server can lose or garble what was committed",
                f"set {name} = on in postgresql.conf and reload",
            )
    if server.synchronous_commit == "off":
        yield Finding(
            "synchronous_commit",
            Severity.WARNING,
            "synchronous_commit is off: a crash of the server loses the appends of the last moments (consumers turn it "
            "on for themselves)",
            "set synchronous_commit = on, at least for the roles that append",
        )
    if not server.autovacuum:
        yield Finding(
            "autovacuum",
            Severity.PROBLEM,
            "autovacuum is off: tables bloat, and the server stops in the end",
            "set autovacuum = on in postgresql.conf and reload",
        )
    if not server.track_activities:
        yield Finding(
            "track_activities",
            Severity.WARNING,
            "track_activities is off: who is in the way cannot be named",
            "set track_activities = on",
        )
    if server.connections >= FULL * server.max_connections:
        yield Finding(
            "connections",
            Severity.WARNING,
            f"{server.connections} of {server.max_connections} connections are in use",
            "raise max_connections, or run fewer workers: a projection takes 3, a lane of a consumer up to 2",
        )
    if server.notification_queue >= QUEUE:
        yield Finding(
            "notifications",
            Severity.PROBLEM if server.notification_queue >= FULL else Severity.WARNING,
            f"the queue of notifications is {server.notification_queue:.0%} full: when it is full, appends fail",
            "end the listening session that stays in a transaction; the long ones are listed under transactions",
        )
    if server.transaction_age >= AGE:
        yield Finding(
            "transaction ids",
            Severity.PROBLEM,
            f"{server.transaction_age:,} transactions have passed since the database was frozen; at 2,147,483,648 the "
            "server refuses writes",
            "end old transactions, prepared ones too, and run VACUUM FREEZE",
        )
    if server.superuser and not embedded:
        yield Finding(
            "role",
            Severity.WARNING,
            f"role {server.role} is a superuser: what guards the log does not bind it",
            "give the application a role of its own, as docs/guides/operation.md says",
        )


def _migrations(connection: psycopg.Connection[Any]) -> Iterator[Finding]:
    missing = pending(connection)
    if missing:
        yield Finding(
            "migrations",
            Severity.PROBLEM,
            f"{len(missing)} migrations are pending, the first {missing[0]}",
            "run `onefold db migrate`",
        )
    else:
        yield Finding("migrations", Severity.FINE, "all are applied, and none was changed afterwards")


def _append_only(connection: psycopg.Connection[Any]) -> Iterator[Finding]:
    names = [name for (name,) in connection.execute(statement("doctor_logs"))]
    missing = connection.execute(statement("doctor_guards"), (names,)).fetchall()
    for log, trigger in missing:
        yield Finding(
            "append-only",
            Severity.PROBLEM,
            f"trigger {trigger} of log {log} is missing or not enabled always: what it refuses may have happened",
            f"ALTER TABLE onefold.{log} ENABLE ALWAYS TRIGGER {trigger}; then find out who turned it off, and check "
            "the log",
        )
    if not missing:
        yield Finding("append-only", Severity.FINE, f"the guards of {', '.join(names)} are in force")


def _appends(state: Status) -> Iterator[Finding]:
    slow = [
        (log.name, holder)
        for log in state.logs
        for holder in log.holders
        if holder.age is None or holder.age > IN_THE_WAY
    ]
    for log, holder in slow:
        who = (
            "a prepared transaction"
            if holder.pid is None
            else f"pid {holder.pid} ({holder.application or 'no name'})"
        )
        age = "for a time that is not known" if holder.age is None else f"for {holder.age:.0f} s"
        end = (
            "COMMIT PREPARED or ROLLBACK PREPARED it"
            if holder.pid is None
            else f"SELECT pg_terminate_backend({holder.pid})"
        )
        yield Finding(
            "appends",
            Severity.PROBLEM,
            f"{who} has an append to {log} open {age}: readers wait before what it may still commit",
            f"let it commit, or end it: {end}; an application must not keep a transaction open after an append",
        )
    if not slow:
        yield Finding("appends", Severity.FINE, "no append stays open")


def _transactions(connection: psycopg.Connection[Any]) -> Iterator[Finding]:
    with connection.cursor(row_factory=namedtuple_row) as cursor:
        rows: list[Any] = cursor.execute(statement("doctor_sessions"), (LONG, LONG)).fetchall()
    for row in rows:
        if row.pid is None:
            found = f"transaction {row.application_name!r} was prepared {row.age:.0f} s ago and not ended"
            advice = f"COMMIT PREPARED or ROLLBACK PREPARED '{row.application_name}'"
        else:
            doing = f"silent for {row.silent:.0f} s" if row.idle else "at work"
            place = "" if row.here else ", in another database"
            found = (
                f"pid {row.pid} ({row.application_name or 'no name'}, role {row.usename}{place}) has a transaction "
                f"open for {row.age:.0f} s, {doing}"
            )
            advice = (
                f"let it end, or SELECT pg_terminate_backend({row.pid}); until then dead rows stay, and partitions "
                "of the ledger may not be dropped"
            )
        yield Finding("transactions", Severity.WARNING, found, advice)
    if not rows:
        yield Finding("transactions", Severity.FINE, f"none is open for more than {LONG:.0f} s")


def _indexes(connection: psycopg.Connection[Any]) -> Iterator[Finding]:
    broken = [name for (name,) in connection.execute(statement("doctor_indexes"))]
    for name in broken:
        yield Finding(
            "indexes",
            Severity.PROBLEM,
            f"index {name} is not valid and guards nothing",
            f"REINDEX INDEX CONCURRENTLY {name}",
        )
    if not broken:
        yield Finding("indexes", Severity.FINE, "all are valid")


def _ledgers(connection: psycopg.Connection[Any]) -> Iterator[Finding]:
    with connection.cursor(row_factory=namedtuple_row) as cursor:
        ledger: Any = cursor.execute(statement("doctor_ledger")).fetchone()
    assert ledger is not None
    sound = True
    if not ledger.active:
        sound = False
        yield Finding(
            "ledgers",
            Severity.PROBLEM,
            "no generation takes new keys: consumers cannot claim",
            "run `onefold maintain` as the owner of the tables",
        )
    ahead = ledger.ahead if ledger.ahead is not None else 0.0
    if ledger.timed and ahead < ROOM:
        sound = False
        yield Finding(
            "ledgers",
            Severity.PROBLEM if ahead <= 0 else Severity.WARNING,
            f"the time-ordered ledger has room for {max(ahead, 0) / 3600:.0f} h ahead, expected {ROOM / 3600:.0f} h",
            "run `onefold maintain` as the owner of the tables, or keep a consumer running, which does the same",
        )
    if ledger.undropped:
        sound = False
        yield Finding(
            "ledgers",
            Severity.WARNING,
            f"{ledger.undropped} partitions were retired more than a day ago and are still there",
            "run `onefold maintain`: it names who is in the way",
        )
    if sound:
        yield Finding("ledgers", Severity.FINE, "they have room for new keys")


def _projections(state: Status) -> Iterator[Finding]:
    sound = True
    for each in state.projections:
        told = _told(each)
        if told is None:
            continue
        bad, found, advice = told
        sound = False
        yield Finding("projections", Severity.PROBLEM if bad else Severity.WARNING, found, advice)
    if sound:
        yield Finding("projections", Severity.FINE, f"{len(state.projections)} are up to date")


def _told(each: ProjectionStatus) -> tuple[bool, str, str] | None:
    """Return whether it is a problem, what is wrong with a projection, and what to do; None where nothing is."""
    match each.state:
        case State.FAILED | State.RETRYING:
            assert each.failure is not None
            event, stopped = each.failure.event, each.state is State.FAILED
            found = (
                f"{each.name} {'stopped' if stopped else 'fails'} before position {event.position} "
                f"({event.type_name}, {event.stream} version {event.version}): {event.reason}"
            )
            return stopped, found, "mend the fold, or the event's upcast, and start it again"
        case State.NEEDS_REBUILD:
            return True, f"{each.name} was built by other code", f"run `onefold rebuild {each.name}`"
        case State.NOT_BUILT:
            return False, f"{each.name} has never run", f"run `onefold run {each.name}`"
        case _ if each.lag_seconds > BEHIND:
            about, idle = "" if each.lag.exact else "at least ", each.state is State.IDLE
            found = (
                f"{each.name} is {about}{each.lag.number:,} events and {each.lag_seconds:.0f} s behind, "
                f"{'and nobody works on it' if idle else 'a worker is on it'}"
            )
            slow = "see whether it catches up; the log of its worker says what slows it down"
            return idle, found, f"run `onefold run {each.name}`" if idle else slow
        case _:
            return None


def _consumers(state: Status) -> Iterator[Finding]:
    sound = True
    for each in state.consumers:
        if each.dead_letters:
            sound = False
            yield Finding(
                "consumers",
                Severity.PROBLEM,
                f"{each.name} has {each.dead_letters:,} open dead letters; what follows them in their sequences waits",
                f"see `onefold dead-letters list --consumer {each.name}`, then retry or discard them",
            )
        if each.state is ConsumerState.IDLE and each.parked:
            sound = False
            yield Finding(
                "consumers",
                Severity.WARNING,
                f"{each.name} has {each.parked:,} parked messages, and nobody consumes for it",
                f"run `onefold consume URL --consumer {each.name}`",
            )
    if sound:
        yield Finding("consumers", Severity.FINE, f"{len(state.consumers)} have nothing in their way")


def _relays(state: Status) -> Iterator[Finding]:
    sound = True
    for each in state.relays:
        if each.held:
            sound = False
            yield Finding(
                "relays",
                Severity.PROBLEM,
                f"{each.name}: the broker has refused {each.held:,} messages, and {each.behind_held:,} wait behind "
                "them in their keys",
                "see `onefold dead-letters list`, then retry or discard them",
            )
        waiting = (each.behind if each.waiting is None else each.waiting) or 0
        if waiting and not each.processes:
            sound = False
            what = "positions of the log" if each.waiting is None else "messages"
            age = "" if each.waiting_seconds is None else f", the oldest for {each.waiting_seconds:.0f} s"
            yield Finding(
                "relays",
                Severity.PROBLEM if (each.waiting_seconds or 0.0) > BEHIND else Severity.WARNING,
                f"{each.name} has {'at least ' if each.bounded else ''}{waiting:,} {what} to publish{age}, and no "
                "process of it is at work",
                f"run `onefold relay {each.channel} --to URL{_named(each.name, each.channel)}`",
            )
    for channel, number in state.orphans:
        sound = False
        yield Finding(
            "relays",
            Severity.WARNING,
            f"channel {channel} has {number:,} messages in the outbox, and no relay: they are kept for ever",
            f"run `onefold relay {channel} --to URL`, or take the publication out of the application",
        )
    if sound:
        yield Finding("relays", Severity.FINE, f"{len(state.relays)} have nothing in their way")


def _named(name: str, channel: str) -> str:
    return "" if name == channel else f" --name {name}"

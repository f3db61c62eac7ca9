"""`onefold status`: how far everything is."""

from __future__ import annotations

from typing import Any

import typer
from rich.console import Console, Group, RenderableType
from rich.text import Text

from ..status import Count, Holder, LogStatus, ProjectionStatus, State, Status
from ..status import status as status_of
from .application import SHOP, load_app
from .database import readable
from .options import Application, AsJson
from .output import cell, fitted, moment, plain, report, seconds, sign, table, write_json
from .problems import PROBLEMS

COLOURS = {
    State.RUNNING: "green",
    State.RETRYING: "yellow",
    State.IDLE: "dim",
    State.FAILED: "bold red",
    State.NOT_BUILT: "dim",
    State.NEEDS_REBUILD: "bold yellow",
}
PATIENCE = 1.0
"""Seconds after which an open append is worth a word."""


def status(app: Application = SHOP, json: AsJson = False) -> None:
    """Show how far each projection is behind its log, who works on it, and who holds things up.

    Lag is counted in events beyond the projection's position, and in seconds since the oldest of them was recorded.
    Exits with 1 when a projection was stopped by a failure or needs a rebuild.
    """
    application = load_app(app)
    with readable() as connection:
        found = status_of(connection, application)
    if json:
        write_json(document(found))
    else:
        show(report(), found)
    if not found.sound:
        raise typer.Exit(PROBLEMS)


def document(found: Status) -> dict[str, Any]:
    """Return the status as values that JSON holds."""
    return {
        "database": found.database,
        "server": found.server,
        "at": found.at,
        "sound": found.sound,
        "logs": [
            {
                "name": log.name,
                "there": log.there,
                "head": log.head,
                "events": log.events.number,
                "events_exact": log.events.exact,
                "appending": log.holders,
            }
            for log in found.logs
        ],
        "projections": [
            {
                "name": projection.name,
                "log": projection.log,
                "state": projection.state,
                "position": projection.position,
                "lag_events": projection.lag.number,
                "lag_exact": projection.lag.exact,
                "lag_seconds": round(projection.lag_seconds, 3),
                "owner": projection.owner,
                "lease_seconds": None
                if projection.lease_seconds is None
                else round(projection.lease_seconds, 3),
                "moved_at": projection.moved_at,
                "failure": _failure(projection),
            }
            for projection in found.projections
        ],
        "others": found.others,
    }


def show(console: Console, found: Status) -> None:
    """Print the status for people."""
    console.print(overview(console, found))
    for projection in found.projections:
        if projection.failure is not None:
            console.print(sign(console, False), _words(projection))
        if projection.state is State.NEEDS_REBUILD:
            console.print(
                sign(console, False),
                f"{projection.name} was built by other code; run `onefold rebuild {projection.name}`",
            )
    for log in found.logs:
        for holder in log.holders:
            if holder.age is None or holder.age >= PATIENCE:
                console.print(sign(console, False), _stall(log, holder))
    if found.others:
        console.print(Text(f"also in this database, of other applications: {', '.join(found.others)}", "dim"))


def overview(console: Console, found: Status) -> RenderableType:
    """Return the logs as lines and the projections as a table that the console has room for."""
    lines: list[RenderableType] = []
    for log in found.logs:
        if log.there:
            text = f"head {log.head:,}, {_count(log.events)} event{'' if log.events.number == 1 else 's'}"
        else:
            text = "not there yet"
        lines.append(
            Text.assemble(
                ("log ", "dim"), (plain(log.name), "bold"), f"  {text}", (f"  {cell(found.at)}", "dim")
            )
        )
    rows = table(
        "projection",
        "state",
        "position",
        "lag",
        "behind",
        "worker (lease)",
        right=("position", "lag", "behind"),
    )
    for projection in found.projections:
        rows.add_row(
            Text(projection.name, "bold"),
            Text(projection.state.value, COLOURS[projection.state]),
            cell(projection.position),
            Text(_count(projection.lag), "yellow" if projection.lag.number else ""),
            seconds(projection.lag_seconds) if projection.lag.number else "–",
            _worker(projection),
        )
    return Group(*lines, fitted(console, rows, "worker (lease)", "position"))


def _count(count: Count) -> str:
    return f"{'' if count.exact else '≥ '}{count.number:,}"


def _worker(projection: ProjectionStatus) -> str:
    if projection.owner is None:
        return "–"
    left = projection.lease_seconds or 0.0
    host_and_process = projection.owner.rpartition(":")[0] or projection.owner
    return f"{plain(host_and_process)} ({f'{left:.0f} s' if left > 0 else f'gone since {seconds(-left)}'})"


def _words(projection: ProjectionStatus) -> str:
    failure = projection.failure
    assert failure is not None
    event = failure.event
    when = "" if failure.at is None else f", last {moment(failure.at)}"
    return plain(
        f"{projection.name} stands before {event.type_name} (stream {event.stream}, version {event.version}, "
        f"position {event.position}), tried {failure.attempts} time{'' if failure.attempts == 1 else 's'}{when}: "
        f"{' '.join(event.reason.split())}"
    )


def _failure(projection: ProjectionStatus) -> dict[str, Any] | None:
    failure = projection.failure
    if failure is None:
        return None
    event = failure.event
    return {
        "type": event.type_name,
        "stream": event.stream,
        "version": event.version,
        "position": event.position,
        "reason": event.reason,
        "attempts": failure.attempts,
        "at": failure.at,
    }


def _stall(log: LogStatus, holder: Holder) -> str:
    who = (
        "a prepared transaction" if holder.pid is None else f"pid {holder.pid} ({plain(holder.application)})"
    )
    age = "" if holder.age is None else f" for {seconds(holder.age)}"
    return f"log {plain(log.name)}: {who} has an append open{age}; events after it wait until it ends"

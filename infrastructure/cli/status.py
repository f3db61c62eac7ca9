"""`onefold status`: how far everything is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import typer
from rich.console import Console, Group, RenderableType
from rich.text import Text

from ...projections.guards import Outcome
from ..consumers import COUNTED, ConsumerState, ConsumerStatus
from ..status import Count, Holder, LogStatus, ProjectionStatus, State, Status
from ..status import status as status_of
from .application import SHOP, load_app
from .database import readable
from .options import Application, AsJson
from .output import cell, fitted, moment, plain, report, seconds, sign, table, write_json
from .problems import PROBLEMS
from .status_of_effects import overview_of_effects, problem_of_effect
from .status_of_processes import overview_of_processes
from .status_of_relays import overview_of_relays, problem_of_relay

COLOURS = {
    State.RUNNING: "green",
    State.RETRYING: "yellow",
    State.IDLE: "dim",
    State.FAILED: "bold red",
    State.NOT_BUILT: "dim",
    State.NEEDS_REBUILD: "bold yellow",
}
CONSUMER_COLOURS = {
    ConsumerState.RUNNING: "green",
    ConsumerState.IDLE: "dim",
    ConsumerState.NOT_STARTED: "dim",
}
PATIENCE = 1.0
"""Seconds after which an open append is worth a word."""


def status(app: Application = SHOP, json: AsJson = False) -> None:
    """Show how far projections are behind their log and consumers behind their broker, and what holds things up.

    Lag is counted in events beyond the projection's position, and in seconds since the oldest of them was recorded.
    Exits with 1 when a projection was stopped by a failure or needs a rebuild, or there are dead letters of a consumer
    or an effect.
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
        "consumers": [_consumer(consumer) for consumer in found.consumers],
        "effects": [
            {
                "name": effect.name,
                "declared": effect.declared,
                "pending": effect.pending,
                "oldest_due_seconds": _rounded(effect.oldest_seconds),
                "running": effect.running,
                "dead_letters": effect.dead,
                "counts_exact": not effect.bounded,
            }
            for effect in found.effects
        ],
        "relays": [
            {
                "name": relay.name,
                "channel": relay.channel,
                "reads": relay.source,
                "segments": relay.segments,
                "segments_at_work": relay.at_work,
                "processes": relay.processes,
                "position": relay.position,
                "published": relay.published,
                "waiting": relay.waiting,
                "oldest_waiting_seconds": _rounded(relay.waiting_seconds),
                "positions_behind": relay.behind,
                "dead_letters": relay.held,
                "held": relay.behind_held,
                "counts_exact": not relay.bounded,
            }
            for relay in found.relays
        ],
        "channels_without_relay": dict(found.orphans),
        "processes": [
            {
                "name": process.name,
                "instances": process.instances,
                "timeouts": process.timeouts,
                "timeouts_due": process.due,
                "next_due": process.next_due,
            }
            for process in found.processes
        ],
    }


def _consumer(found: ConsumerStatus) -> dict[str, Any]:
    return {
        "name": found.name,
        "state": found.state,
        "ledger": found.ledger,
        "ordering": found.ordering,
        "retention_seconds": found.retention,
        "floor": found.floor,
        "outcomes": {outcome.value: found.outcomes.get(outcome, 0) for outcome in Outcome},
        "backlog": found.backlog,
        "in_flight": found.in_flight,
        "lag_messages": found.lag,
        "lag_seconds": _rounded(found.lag_seconds),
        "parked": found.parked,
        "oldest_parked_seconds": _rounded(found.parked_seconds),
        "dead_letters": found.dead_letters,
        "counts_exact": not found.bounded,
        "claim_ms": _rounded(found.claim_ms, 6),
        "workers": [
            {
                "worker": worker.name,
                "broker": worker.broker,
                "backlog": worker.backlog,
                "in_flight": worker.in_flight,
                "newest": worker.newest,
                "claim_ms": _rounded(worker.claim_ms, 6),
                "started_at": worker.started_at,
                "silent_seconds": _rounded(worker.silent),
            }
            for worker in found.workers
        ],
    }


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else round(value, digits)


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
    for consumer in found.consumers:
        if consumer.dead_letters:
            console.print(
                sign(console, False),
                f"{plain(consumer.name)} has {_at_least(consumer.dead_letters, consumer)} dead "
                f"letter{'' if consumer.dead_letters == 1 else 's'}; see "
                f"`onefold dead-letters list --consumer {plain(consumer.name)}`",
            )
    for effect in found.effects:
        if problem := problem_of_effect(effect):
            console.print(sign(console, False), problem)
    for relay in found.relays:
        if problem := problem_of_relay(relay):
            console.print(sign(console, False), problem)
    for channel, number in found.orphans:
        console.print(
            Text(
                f"channel {plain(channel)} has {number:,} messages that no relay publishes; run `onefold relay`",
                "yellow",
            )
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
    if found.projections or not (found.consumers or found.effects or found.relays):
        lines.append(fitted(console, rows, "worker (lease)", "position"))
    if found.consumers:
        lines.append(overview_of_consumers(console, found.consumers))
    if found.processes:
        lines.append(overview_of_processes(console, found.processes))
    if found.effects:
        lines.append(overview_of_effects(console, found.effects))
    if found.relays:
        lines.append(overview_of_relays(console, found.relays))
    return Group(*lines)


def overview_of_consumers(console: Console, found: Iterable[ConsumerStatus]) -> RenderableType:
    """Return consumers as a table that the console has room for."""
    rows = table(
        "consumer",
        "state",
        "applied",
        "duplicates",
        "lag",
        "behind",
        "parked",
        "oldest",
        "dead letters",
        "workers",
        "claim",
        "ledger",
        "remembers since",
        right=(
            "applied",
            "duplicates",
            "lag",
            "behind",
            "parked",
            "oldest",
            "dead letters",
            "workers",
            "claim",
        ),
    )
    for each in found:
        rows.add_row(
            Text(plain(each.name), "bold"),
            Text(each.state.value, CONSUMER_COLOURS[each.state]),
            cell(each.outcomes.get(Outcome.APPLIED, 0)),
            cell(each.outcomes.get(Outcome.DUPLICATE, 0)),
            Text(cell(each.lag), "yellow" if each.lag else ""),
            seconds(each.lag_seconds) if each.lag_seconds else "–",
            Text(_at_least(each.parked, each), "yellow" if each.parked else ""),
            "–" if each.parked_seconds is None else seconds(each.parked_seconds),
            Text(_at_least(each.dead_letters, each), "bold red" if each.dead_letters else ""),
            cell(len(each.workers)),
            "–" if each.claim_ms is None else f"{each.claim_ms * 1000:.0f} µs",
            each.ledger,
            cell(each.floor),
        )
    return fitted(console, rows, "remembers since", "claim", "ledger", "duplicates", "oldest", "behind")


def _at_least(number: int, found: ConsumerStatus) -> str:
    return f"{'≥ ' if found.bounded and number >= COUNTED else ''}{number:,}"


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

"""`onefold diff`: what differs between the states of a stream at two points."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from ...domain.point import point_of
from .. import history as events
from ..audit.diff import Difference, Side, difference
from ..audit.history import aggregate_of
from ..history import RecordedEvent
from .application import SHOP, load_app
from .changes import change_document, change_lines, point_document
from .database import readable
from .history import clock_of, empty, headline
from .options import Application, AsJson, ByClock, InLog
from .output import counted, plain, report, write_json

POINT = "a version (3), a position (@1234), or an instant with its zone (2026-01-01T00:00:00Z)"


def diff(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream, such as order/4711.")],
    earlier: Annotated[str, typer.Option("--from", metavar="POINT", help=f"One point: {POINT}.")],
    later: Annotated[str, typer.Option("--to", metavar="POINT", help="The other point, likewise.")],
    clock: ByClock = "occurred",
    log: InLog = "events",
    app: Application = SHOP,
    json: AsJson = False,
) -> None:
    """Show what differs between the states of a stream at two points, and the events that made it.

    Version 0 is the state before the first event. Exits with 1 for a stream without events.
    """
    chosen = clock_of(clock)
    points = [point_of(text, chosen, bare_version=True) for text in (earlier, later)]
    aggregate_class = aggregate_of(load_app(app), stream)
    with readable() as connection:
        if next(events.history(connection, stream, log=log), None) is None:
            raise empty(stream, log)
        found = difference(connection, aggregate_class, stream, points[0], points[1], log=log)
    if json:
        write_json(
            {
                "stream": stream,
                "log": log,
                "from": _side(found.earlier),
                "to": _side(found.later),
                "changes": [change_document(change) for change in found.changes],
                "added": [_event(event) for event in found.added],
                "removed": [_event(event) for event in found.removed],
            }
        )
    else:
        _show(report(), found)


def _side(side: Side) -> dict[str, Any]:
    return {"at": point_document(side.point), "version": side.version, "events": side.events}


def _event(event: RecordedEvent) -> dict[str, Any]:
    return {
        "version": event.version,
        "position": event.position,
        "type": event.type,
        "event_id": event.event_id,
        "occurred_at": event.occurred_at,
        "recorded_at": event.recorded_at,
    }


def _show(console: Console, found: Difference) -> None:
    console.print(
        Text.assemble((plain(found.stream), "bold"), f"  from {found.earlier.point} to {found.later.point}"),
        soft_wrap=True,
    )
    console.print()
    for line in change_lines(console, found.changes):
        console.print(line, soft_wrap=True)
    if not found.changes:
        console.print("no field differs")
    for sign, only in (("+", found.added), ("-", found.removed)):
        if only:
            console.print()
        for event in only:
            headline(console, event, f"{sign} {event.version:>4}  ")
    console.print()
    console.print(
        Text(
            f"{counted(len(found.changes), 'change')} by {counted(len(found.added), 'event')}"
            + (f", and without {counted(len(found.removed), 'event')}" if found.removed else ""),
            "dim",
        )
    )

"""`onefold history`: every event of a stream, what it changed, and the state as of a point."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any

import psycopg
import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from ...domain.aggregate import Aggregate
from ...domain.errors import OnefoldError
from ...domain.past import Past, state_of
from ...domain.point import Clock, point_of
from ...projections.app import App
from .. import history as events
from ..audit.history import Entry, UnknownCategory, aggregate_of, as_of, entries
from ..history import RecordedEvent
from .application import SHOP, load_app
from .changes import change_document, change_lines, point_document, presentable, shown
from .database import readable
from .document import parsed, rendered
from .options import Application, AsJson, ByClock, InLog
from .output import aside, counted, is_unicode, moment, plain, report, write_json
from .problems import WrongUse

RAW_SHOWN = 64
INDENT = 6


class EmptyStream(OnefoldError):
    """A stream has no events."""


def history(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream, such as order/4711.")],
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="POINT",
            help="Show the state as of then: an instant with its zone (2026-01-01T00:00:00Z), a version (v7) or a "
            "position (@1234).",
        ),
    ] = None,
    clock: ByClock = "occurred",
    log: InLog = "events",
    app: Application = SHOP,
    json: AsJson = False,
) -> None:
    """Show every event of a stream as it is stored, and what it changed; or, with --at, the state as of then.

    Events of types that no code knows are shown too, without what they changed. Exits with 1 for a stream without
    events.
    """
    application = load_app(app)
    if at is not None:
        _state(stream, at, clock_of(clock), log, application, json)
        return
    aggregate_class = known_aggregate(application, stream)
    with readable() as connection:
        found = events.history(connection, stream, log=log)
        first = next(found, None)
        if first is None:
            raise empty(stream, log)
        told = _Told(entries(chain([first], found), aggregate_class))
        if json:
            _write(stream, log, told)
        else:
            _show(report(), stream, told)
    _tell(aggregate_class, stream, told)


def known_aggregate(app: App, stream: str) -> type[Aggregate] | None:
    """Return the aggregate class of a stream, None where the application has none of its category."""
    try:
        return aggregate_of(app, stream)
    except UnknownCategory:
        return None


def clock_of(text: str) -> Clock:
    """Return the clock of this name; raises `WrongUse`."""
    if text == "occurred":
        return "occurred"
    if text == "recorded":
        return "recorded"
    raise WrongUse(f"expected --clock occurred or recorded, found {text!r}")


def empty(stream: str, log: str) -> EmptyStream:
    """Return the error about a stream without events."""
    return EmptyStream(f"stream {plain(stream)} has no events in log {log}; a stream is named category/key")


@dataclass(slots=True)
class _Told:
    """Entries on their way to a reader, and why changes are not known of some."""

    entries: Iterable[Entry]
    unknown: str = ""

    def __iter__(self) -> Iterator[Entry]:
        for entry in self.entries:
            self.unknown = self.unknown or entry.unknown
            yield entry


def _tell(aggregate_class: type[Aggregate] | None, stream: str, told: _Told) -> None:
    if not told.unknown:
        return
    if aggregate_class is None:
        category = plain(stream.partition("/")[0])
        text = f"the application has no aggregate of category {category}: what its events changed is not shown (--app)"
    else:
        text = f"what was changed is not shown: {plain(told.unknown)}"
    aside().print(Text(text, "dim"), soft_wrap=True)


def _state(stream: str, at: str, clock: Clock, log: str, app: App, json: bool) -> None:
    point = point_of(at, clock)
    aggregate_class = aggregate_of(app, stream)
    with readable() as connection:
        _require_events(connection, stream, log)
        found = as_of(connection, aggregate_class, stream, point, log=log)
    if json:
        write_json(
            {
                "stream": stream,
                "log": log,
                "at": point_document(point),
                "version": found.version,
                "events": found.events,
                "events_of_stream": found.of,
                "left_out": found.left_out,
                "state": presentable(state_of(found.aggregate)),
            }
        )
        return
    console = report()
    console.print(Text.assemble((plain(stream), "bold"), f"  as of {found.point}"), soft_wrap=True)
    console.print()
    for name, value in state_of(found.aggregate).items():
        _indented(console, Text.assemble((f"{plain(name)} ", "green"), shown(value)))
    console.print()
    console.print(Text(_included(found), "dim"), soft_wrap=True)


def _included(found: Past[Any]) -> str:
    text = f"{found.events:,} of {counted(found.of, 'event')}, up to version {found.version}"
    if found.left_out:
        versions = ", ".join(map(str, found.left_out[:10])) + (" …" if len(found.left_out) > 10 else "")
        text += f"; without version {versions}, which happened later"
    return text


def _require_events(connection: psycopg.Connection[Any], stream: str, log: str) -> None:
    if next(events.history(connection, stream, log=log), None) is None:
        raise empty(stream, log)


def _write(stream: str, log: str, found: Iterable[Entry]) -> None:
    ascii_only = not is_unicode(sys.stdout.encoding)
    write = sys.stdout.write
    head = rendered({"stream": stream, "log": log}, ascii_only=ascii_only).removesuffix("\n}")
    write(f'{head},\n  "events": [')
    for number, entry in enumerate(found):
        write("," if number else "")
        document = event_document(entry.event) | {
            "changes": None if entry.unknown else [change_document(change) for change in entry.changes],
            "changes_unknown": entry.unknown or None,
        }
        write("\n    " + rendered(document, ascii_only=ascii_only, indent="    "))
    write("\n  ]\n}\n")


def event_document(event: RecordedEvent) -> dict[str, Any]:
    """Return a recorded event as a document, its data and metadata digit for digit."""
    return {
        "version": event.version,
        "position": event.position,
        "type": event.type,
        "schema_version": event.schema_version,
        "event_id": event.event_id,
        "occurred_at": event.occurred_at,
        "recorded_at": event.recorded_at,
        "metadata": None if event.metadata is None else parsed(event.metadata),
        "data": None if event.data is None else parsed(event.data),
        "raw": event.raw,
    }


def _show(console: Console, stream: str, found: Iterable[Entry]) -> None:
    console.print(Text(plain(stream), "bold"))
    count = 0
    for entry in found:
        event = entry.event
        count += 1
        console.print()
        headline(console, event, f"{event.version:>4}  ")
        for name, value in facts(event):
            _indented(console, Text.assemble((f"{name} ", "green"), value))
        for line in change_lines(console, entry.changes):
            _indented(console, line)
    console.print()
    console.print(Text(counted(count, "event"), "dim"))


def headline(console: Console, event: RecordedEvent, number: str, *more: str) -> None:
    """Print the line about an event: type, when it occurred, where it stands, and when it was recorded."""
    schema = f" v{event.schema_version}" if event.schema_version > 1 else ""
    line = Text.assemble(
        (number, "bold cyan"),
        (plain(event.type) + schema, "bold"),
        (f"  occurred {moment(event.occurred_at)}", ""),
    )
    parts = (*more, f"position {event.position:,}", f"recorded {moment(event.recorded_at)}")
    place = Text(", ".join(parts), "dim")
    if console.is_terminal and line.cell_len + 2 + place.cell_len > console.width:
        console.print(line)
        _indented(console, place)
    else:
        console.print(Text.assemble(line, "  ", place), soft_wrap=True)


def _indented(console: Console, line: Text) -> None:
    if console.is_terminal:
        console.print(Padding(line, (0, 0, 0, INDENT)))
    else:
        console.print(Text.assemble(" " * INDENT, line), soft_wrap=True)


def facts(event: RecordedEvent) -> Iterator[tuple[str, str]]:
    """Yield what an event says, name by name, and its metadata with a sign before their names."""
    if event.data is not None:
        yield from _fields(event.data, "data")
    elif event.raw is not None:
        more = "…" if len(event.raw) > RAW_SHOWN else ""
        yield "raw", f"{len(event.raw):,} bytes, {event.raw[:RAW_SHOWN].hex()}{more}"
    if event.metadata is not None:
        yield from ((f"@{name}", value) for name, value in _fields(event.metadata, "metadata"))


def _fields(text: str, whole: str) -> Iterator[tuple[str, str]]:
    value = parsed(text)
    if not isinstance(value, dict):
        value = {whole: value}
    for name, part in value.items():
        text_of_part = part if isinstance(part, str) else rendered(part, ascii_only=False, indent=None)
        yield plain(name), plain(text_of_part)

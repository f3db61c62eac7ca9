"""`onefold history`: every event of a stream."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from ...domain.errors import OnefoldError
from .. import history as events
from ..history import RecordedEvent
from .database import readable
from .document import parsed, rendered
from .options import AsJson
from .output import counted, is_unicode, moment, plain, report

RAW_SHOWN = 64
INDENT = 6


class EmptyStream(OnefoldError):
    """A stream has no events."""


def history(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream, such as order/4711.")],
    log: Annotated[str, typer.Option("--log", metavar="NAME", help="The log that it is in.")] = "events",
    json: AsJson = False,
) -> None:
    """Show every event of a stream as it is stored: when, by whom, and what it says.

    Nothing is decoded, so events of types that no code knows are shown too. Exits with 1 for a stream without events.
    """
    with readable() as connection:
        found = events.history(connection, stream, log=log)
        first = next(found, None)
        if first is None:
            raise EmptyStream(
                f"stream {plain(stream)} has no events in log {log}; a stream is named category/key"
            )
        everything = chain([first], found)
        if json:
            _write(stream, log, everything)
        else:
            _show(report(), stream, everything)


def _write(stream: str, log: str, found: Iterator[RecordedEvent]) -> None:
    ascii_only = not is_unicode(sys.stdout.encoding)
    write = sys.stdout.write
    head = rendered({"stream": stream, "log": log}, ascii_only=ascii_only).removesuffix("\n}")
    write(f'{head},\n  "events": [')
    for number, event in enumerate(found):
        write("," if number else "")
        write("\n    " + rendered(_document(event), ascii_only=ascii_only, indent="    "))
    write("\n  ]\n}\n")


def _document(event: RecordedEvent) -> dict[str, Any]:
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


def _show(console: Console, stream: str, found: Iterator[RecordedEvent]) -> None:
    console.print(Text(plain(stream), "bold"))
    count = 0
    for event in found:
        count += 1
        schema = f" v{event.schema_version}" if event.schema_version > 1 else ""
        console.print()
        line = Text.assemble(
            (f"{event.version:>4}  ", "bold cyan"),
            (plain(event.type) + schema, "bold"),
            (f"  {moment(event.occurred_at)}", ""),
        )
        place = Text(f"position {event.position:,}, recorded {moment(event.recorded_at)}", "dim")
        if console.is_terminal and line.cell_len + 2 + place.cell_len > console.width:
            console.print(line)
            _indented(console, place)
        else:
            console.print(Text.assemble(line, "  ", place), soft_wrap=True)
        for name, value in _facts(event):
            _indented(console, Text.assemble((f"{name} ", "green"), value))
    console.print()
    console.print(Text(counted(count, "event"), "dim"))


def _indented(console: Console, line: Text) -> None:
    if console.is_terminal:
        console.print(Padding(line, (0, 0, 0, INDENT)))
    else:
        console.print(Text.assemble(" " * INDENT, line), soft_wrap=True)


def _facts(event: RecordedEvent) -> Iterator[tuple[str, str]]:
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
        shown = part if isinstance(part, str) else rendered(part, ascii_only=False, indent=None)
        yield plain(name), plain(shown)

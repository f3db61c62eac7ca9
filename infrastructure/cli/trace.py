"""`onefold trace`: the tree of causes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from ...projections.causes import Twig
from ..audit.history import meta_of
from ..audit.trace import OutgoingMessage, Trace, WaitingMessage
from ..audit.trace import trace as find
from ..history import RecordedEvent
from .database import readable
from .history import event_document
from .options import AsJson, InLog
from .output import counted, is_unicode, moment, plain, report, write_json

NAMED = ("actor", "consumer", "command", "correlation")


def trace(
    what: Annotated[
        str, typer.Argument(metavar="CORRELATION|ID", help="A correlation, or the id of an event or message.")
    ],
    log: InLog = "events",
    json: AsJson = False,
) -> None:
    """Draw the tree of causes that an event, a message or a correlation belongs to.

    Across streams, consumers, the outbox, and messages that wait. Causes that are missing are shown, and cycles.
    Exits with 1 when nothing is found.
    """
    with readable() as connection:
        found = find(connection, what, log=log)
    if json:
        write_json(
            {"of": what, "log": log, "complete": found.complete, "tree": [_document(t) for t in found.twigs]}
        )
    else:
        _show(report(), what, found)


def _document(twig: Twig) -> dict[str, Any]:
    document: dict[str, Any] = {"depth": twig.depth, "id": twig.id, "note": twig.note or None}
    node = twig.node
    if node is None:
        return {**document, "kind": None}
    content = node.content
    document |= {"kind": node.kind, "cause": node.cause}
    if isinstance(content, RecordedEvent):
        document["event"] = {"stream": content.stream, **event_document(content)}
    else:
        document["message"] = content
    return document


def _show(console: Console, what: str, found: Trace) -> None:
    unicode = is_unicode(console.encoding)
    for twig, rail in zip(found.twigs, _rails([twig.depth for twig in found.twigs], unicode), strict=True):
        asked = "bold magenta" if twig.id == what else "bold"
        console.print(Text.assemble((rail, "dim"), *_words(twig, asked)), soft_wrap=True)
    console.print()
    events = {twig.id for twig in found.twigs if twig.node is not None and twig.node.kind == "event"}
    missing = sum(twig.note == "missing" for twig in found.twigs)
    parts = [counted(len(events), "event")]
    if missing:
        parts.append(f"{counted(missing, 'cause')} not in this database")
    if not found.complete:
        parts.append("and more, which are not shown")
    console.print(Text(", ".join(parts), "dim"), soft_wrap=True)


def _words(twig: Twig, style: str) -> list[Any]:
    node = twig.node
    if node is None:
        return [(plain(twig.id), style), ("  not in this database", "yellow")]
    again = [("  again: it is a cause of its own cause", "bold red")] if twig.note == "cycle" else []
    match node.content:
        case RecordedEvent() as event:
            metadata = meta_of(event).metadata
            named = "".join(
                f", {name} {plain(metadata[name])}" for name in NAMED if metadata.get(name) is not None
            )
            return [
                (f"{plain(event.stream)} v{event.version}  ", "bold cyan"),
                (plain(event.type), style),
                f"  occurred {moment(event.occurred_at)}",
                (f"  recorded {moment(event.recorded_at)}{named}  {event.event_id}", "dim"),
                *again,
            ]
        case OutgoingMessage() as message:
            return [
                ("message to ", ""),
                (plain(message.channel), "bold cyan"),
                (f"  {plain(message.type)}", style),
                (f"  written {moment(message.written_at)}, waits in the outbox  {plain(message.id)}", "dim"),
                *again,
            ]
        case WaitingMessage() as message:
            end = "" if message.resolution is None else f", resolved: {message.resolution}"
            number = f" {message.number}" if message.kind == "dead letter" else ""
            return [
                (f"{message.kind}{number}", "yellow"),
                (f" at {plain(message.consumer)}", "bold cyan"),
                (f"  {plain(message.type or '')}", style),
                f"  {plain(message.reason)}{end}",
                (f"  {moment(message.at)}  {plain(message.id)}", "dim"),
                *again,
            ]
        case _:
            return [(f"{node.kind} ", ""), (plain(twig.id), style), *again]


def _rails(depths: Sequence[int], unicode: bool) -> list[str]:
    """Return what stands before each line of a tree, so that it looks like one."""
    fork, end, bar = ("├─ ", "└─ ", "│  ") if unicode else ("|- ", "`- ", "|  ")
    rails: list[str] = []
    open_at: set[int] = set()
    for depth in reversed(depths):
        parts = [bar if level in open_at else "   " for level in range(1, depth)]
        if depth:
            parts.append(fork if depth in open_at else end)
        rails.append("".join(parts))
        open_at = {level for level in open_at if level < depth} | ({depth} if depth else set())
    return rails[::-1]

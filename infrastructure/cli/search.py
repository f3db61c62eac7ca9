"""`onefold search`, and the indexes that make it fast."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ...domain.point import instant_of
from ..audit.field import field_of
from ..audit.indexes import SearchIndex, drop_indexes, list_indexes, make_indexes
from ..audit.search import Criteria, Page
from ..audit.search import search as find
from ..connection import connected
from .database import readable, writable
from .document import rendered
from .history import clock_of, event_document, facts, headline
from .options import AsJson, ByClock, InLog
from .output import aside, cell, counted, plain, report, sign, table, write_json
from .problems import WrongUse

SLOW = 1.0
"""Seconds after which a search says how it becomes faster."""


def search(
    types: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="TYPE", help="A type, such as order.placed; may be repeated."),
    ] = None,
    stream: Annotated[
        str | None, typer.Option("--stream", metavar="STREAM", help="Only this stream.")
    ] = None,
    category: Annotated[
        str | None,
        typer.Option("--category", metavar="NAME", help="Only streams of this category, such as order."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="INSTANT", help="From this instant on, such as 2026-01-01T00:00:00Z."
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="INSTANT", help="Up to this instant, which is not included."),
    ] = None,
    clock: ByClock = "occurred",
    actor: Annotated[
        str | None, typer.Option("--actor", metavar="WHO", help="Who wrote it (metadata.actor).")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            "-w",
            metavar="FIELD=VALUE",
            help="A field and its value: data.customer_id=c-1, data.items[].product_id=p-1, data.amount.amount=24.9. "
            "In quotes it is exactly this text. May be repeated.",
        ),
    ] = None,
    after: Annotated[
        int | None,
        typer.Option(
            "--after", metavar="POSITION", help="The page after the one that ends with this position."
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="EVENTS", help="Events in a page.")] = 50,
    newest: Annotated[bool, typer.Option("--newest", help="The newest first.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Show what each event says.")] = False,
    log: InLog = "events",
    json: AsJson = False,
) -> None:
    """Find events by type, stream, time, actor and what they say, a page at a time.

    In the order of positions, or of the clock where a time is given. `onefold db index-search` makes it fast.
    """
    fields = [field_of(text) for text in where or ()]
    if actor is not None:
        fields.append(field_of(f"metadata.actor={rendered(actor)}"))
    criteria = Criteria(
        types=tuple(types or ()),
        stream=stream,
        category=category,
        since=None if since is None else instant_of(since),
        until=None if until is None else instant_of(until),
        clock=clock_of(clock),
        fields=tuple(fields),
    )
    started = time.monotonic()
    with readable() as connection:
        found = find(connection, criteria, after=after, limit=limit, newest_first=newest, log=log)
    if json:
        write_json(
            {
                "log": log,
                "ordered_by": found.ordered_by,
                "events": [{"stream": event.stream, **event_document(event)} for event in found.events],
                "after": found.after,
            }
        )
    else:
        _show(report(), found, full)
    if time.monotonic() - started > SLOW:
        aside().print(
            Text("much was read for this; `onefold db index-search` makes indexes for searching", "dim"),
            soft_wrap=True,
        )


def _show(console: Console, found: Page, full: bool) -> None:
    for event in found.events:
        headline(console, event, f"{plain(event.stream)} v{event.version}  ")
        if full:
            for name, value in facts(event):
                console.print(Text.assemble("      ", (f"{name} ", "green"), value), soft_wrap=True)
    text = f"{counted(len(found.events), 'event')} in the order of {found.ordered_by}"
    if found.after is not None:
        text += f"; more with --after {found.after}"
    console.print(Text(text, "dim"), soft_wrap=True)


def index_search(
    fields: Annotated[
        list[str] | None,
        typer.Option(
            "--field",
            metavar="FIELD",
            help="Index this field, too, such as data.customer_id; may be repeated.",
        ),
    ] = None,
    payload: Annotated[
        bool,
        typer.Option(
            "--payload", help="Index all data, so that any field can be searched for; costs the most."
        ),
    ] = False,
    show: Annotated[bool, typer.Option("--list", help="Only list those there are.")] = False,
    drop: Annotated[bool, typer.Option("--drop", help="Remove them all.")] = False,
    log: InLog = "events",
    json: AsJson = False,
) -> None:
    """Make indexes for `onefold search` and `trace`: of types, both times, metadata and fields.

    Appends go on meanwhile, and are somewhat slower from then on. Run it again to add fields. One that was broken off
    is made anew.
    """
    if (show or drop) and (fields or payload or (show and drop)):
        raise WrongUse("expected --list or --drop alone, found other options with it")
    console = aside()
    if show:
        with readable() as connection:
            found = list_indexes(connection, log=log)
    else:
        with writable() as url, connected(url, application="onefold index-search") as connection:
            if drop:
                found = drop_indexes(connection, log=log)
            else:
                found = make_indexes(
                    connection,
                    fields=fields or (),
                    payload=payload,
                    log=log,
                    begun=lambda of: (
                        console.print(Text(f"indexing {plain(of)}", "dim")) if not json else None
                    ),
                )
    if json:
        write_json({"log": log, "dropped" if drop else "indexes": found})
    else:
        _list(report(), found, drop)


def _list(console: Console, found: list[SearchIndex], dropped: bool) -> None:
    if dropped:
        for each in found:
            console.print(sign(console, True), f"removed the index of {plain(each.of)}")
    rows = table("of", "index", "bytes", right=("bytes",))
    for each in found:
        rows.add_row(plain(each.of), plain(each.name), cell(each.size))
    if found and not dropped:
        console.print(rows)
    if not found:
        console.print("there are no indexes for searching")

"""`onefold import`: files read in."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..postgres.log import EventLog
from ..postgres.pool import open_pool
from ..reading import Conflict, Importer, ImportReport, Problem, Progress, load_mapping
from .database import writable
from .options import AsJson
from .output import aside, cell, counted, heading, plain, progress, report, seconds, sign, table, write_json
from .problems import PROBLEMS

SHOWN = 10


def read_in(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILES", help="CSV or JSON lines, also gzipped, in any order."),
    ],
    mapping: Annotated[
        str,
        typer.Option(
            "--mapping",
            "-m",
            metavar="FILE.py:NAME",
            help="What the rows mean: a mapping in a Python file, such as docs/examples/olist.py:mapping.",
        ),
    ],
    json: AsJson = False,
) -> None:
    """Read files in, each event once.

    Events that the log has already are no-ops. A row that says something else about one is a conflict: it is
    listed and not applied. A row that cannot be read is listed, and the rest goes on. Exits with 1 when
    there was a conflict or an unreadable row.
    """
    chosen = load_mapping(mapping)
    started = time.monotonic()
    with (
        writable() as url,
        open_pool(url, application="onefold import") as pool,
        progress(aside(), wanted=not json) as bars,
    ):
        task = bars.add_task("reading in", total=None)

        def show(done: Progress) -> None:
            bars.update(
                task,
                completed=done.bytes_read,
                total=done.bytes_total or None,
                description=f"{counted(done.rows, 'row')}, {counted(done.events, 'event')}",
            )

        found = Importer(EventLog(pool)).run(chosen, files, progress=show)
    if json:
        write_json(found.as_dict())
    else:
        show_report(report(), found, time.monotonic() - started)
    if not found.clean:
        raise typer.Exit(PROBLEMS)


def show_report(console: Console, found: ImportReport, taken: float) -> None:
    """Print what became of an import."""
    console.print(
        sign(console, found.clean), f"{plain(found.source)}: {counted(found.read, 'row')} in {seconds(taken)}"
    )
    rows = table("outcome", "count", "", right=("count",))
    rows.add_row("appended", cell(found.appended), "events that are new")
    rows.add_row("duplicate", cell(found.duplicate), "events that the log had already")
    rows.add_row("conflict", cell(found.conflict), "events that contradict the log, not applied")
    rows.add_row("unreadable", cell(found.unreadable), "rows that could not be read")
    if found.held_back:
        rows.add_row("held back", cell(found.held_back), "sound rows that belong with an unreadable one")
    console.print(rows)
    if found.conflict:
        heading(console, "Conflicts")
        _show_conflicts(console, found.conflicts)
        _show_more(console, found.conflict)
    for title, problems, count in (
        ("Unreadable", found.unreadable_rows, found.unreadable),
        ("Held back", found.held_back_rows, found.held_back),
    ):
        if count:
            heading(console, title)
            _show_problems(console, problems)
            _show_more(console, count)


def _show_conflicts(console: Console, conflicts: list[Conflict]) -> None:
    rows = table("where", "stream", "field", "in the log", "in the file")
    for conflict in conflicts[:SHOWN]:
        for number, difference in enumerate(conflict.differences):
            place = (
                (_place(conflict.file, conflict.line), plain(conflict.stream)) if number == 0 else ("", "")
            )
            rows.add_row(*place, difference.field, plain(difference.stored), plain(difference.found))
    console.print(rows)


def _show_problems(console: Console, problems: list[Problem]) -> None:
    rows = table("where", "why")
    for problem in problems[:SHOWN]:
        rows.add_row(_place(problem.file, problem.line), plain(problem.reason))
    console.print(rows)


def _show_more(console: Console, count: int) -> None:
    if count > SHOWN:
        console.print(f"and {count - SHOWN:,} more; --json lists them", style="dim")


def _place(file: str, line: int) -> str:
    return plain(f"{file}:{line}" if line else file)

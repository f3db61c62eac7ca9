"""Output: reports on standard output, progress and errors on standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from .document import instant, rendered

WIDE = 10_000
"""Columns of what nobody looks at in a terminal: there nothing has to be broken off."""


def report() -> Console:
    """Return the console for what a command has to say."""
    return _console(stderr=False)


def aside() -> Console:
    """Return the console for progress, hints and errors."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    made = Console(stderr=stderr, highlight=False, emoji=False, markup=False)
    if not made.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
        made.width = WIDE
    return made


def write_json(document: Any) -> None:
    """Write one JSON document to standard output."""
    sys.stdout.write(rendered(document, ascii_only=not is_unicode(sys.stdout.encoding)) + "\n")
    sys.stdout.flush()


def is_unicode(encoding: str | None) -> bool:
    """Tell whether a stream of this encoding takes every character."""
    return (encoding or "").lower().replace("-", "").startswith("utf")


def sign(console: Console, good: bool) -> Text:
    """Return the sign for what went well or did not."""
    words = ("✓", "✗") if is_unicode(console.encoding) else ("ok", "!!")
    return Text(words[0], "green") if good else Text(words[1], "bold red")


def heading(console: Console, title: str, note: str = "") -> None:
    """Print the title of a part of a report."""
    console.print()
    console.print(Text.assemble((title, "bold"), (f"  {note}" if note else "", "dim")))


def table(*columns: str, right: Iterable[str] = ()) -> Table:
    """Return an empty table; the columns named in `right` hold numbers."""
    made = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, header_style="dim")
    numbers = set(right)
    for column in columns:
        made.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return made


def fitted(console: Console, rows: Table, *spare: str) -> Table:
    """Return the table without those of its spare columns, the first given first, that the console has no room for."""
    for header in spare:
        wide = console.measure(rows, options=console.options.update(width=WIDE, max_width=WIDE))
        if wide.maximum > console.width:
            rows = _without(rows, header)
    return rows


def _without(rows: Table, header: str) -> Table:
    kept = [column for column in rows.columns if column.header != header]
    made = table(
        *(str(column.header) for column in kept),
        right=[str(column.header) for column in kept if column.justify == "right"],
    )
    for cells in zip(*(column.cells for column in kept), strict=True):
        made.add_row(*cells)
    return made


def plain(text: object) -> str:
    """Return text in which no character can move the cursor or change the terminal."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "backslashreplace").decode()
        for letter in str(text)
    )


def counted(number: int, noun: str) -> str:
    """Return how many there are of something, `1 event` or `2 events`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def cell(value: object) -> str:
    """Return a value as it stands in a table."""
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case Decimal():
            return f"{value:,f}"
        case datetime():
            return moment(value.replace(microsecond=0))
        case _:
            return plain(value)


def moment(value: datetime) -> str:
    """Return an instant for people: UTC, without its microseconds when there are none."""
    text = instant(value).replace("T", " ")
    return text.replace(".000000Z", "Z")


def seconds(value: float) -> str:
    """Return a span of time for people."""
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 120:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
    return f"{hours // 24} days"


class _Share(TaskProgressColumn):
    """How much is done; empty where nobody knows how much there is."""

    def render(self, task: Task) -> Text:
        return Text() if task.total is None else super().render(task)


@contextmanager
def progress(console: Console, *, wanted: bool = True) -> Iterator[Progress]:
    """Show progress bars while the body runs, if the console is a terminal."""
    bars = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        _Share(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        expand=True,
        disable=not (wanted and console.is_terminal),
    )
    with bars:
        yield bars

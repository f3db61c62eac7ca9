"""How process managers stand, as commands show it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.text import Text

from ..processes.status import COUNTED, ProcessStatus
from .output import cell, fitted, plain, table


def overview_of_processes(console: Console, found: Sequence[ProcessStatus]) -> RenderableType:
    """Return process managers as a table that the console has room for."""
    rows = table(
        "process", "instances", "timeouts", "due", "next due", right=("instances", "timeouts", "due")
    )
    for each in found:
        rows.add_row(
            Text(plain(each.name), "bold"),
            _at_least(each.instances),
            _at_least(each.timeouts),
            Text(_at_least(each.due), "yellow" if each.due else ""),
            cell(each.next_due),
        )
    return fitted(console, rows, "next due")


def _at_least(number: int) -> str:
    return f"{'≥ ' if number >= COUNTED else ''}{number:,}"

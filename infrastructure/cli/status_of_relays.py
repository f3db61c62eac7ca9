"""How relays stand, as commands show it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.text import Text

from ..relaying.status import RelayStatus
from .output import cell, counted, fitted, plain, seconds, table


def overview_of_relays(console: Console, found: Sequence[RelayStatus]) -> RenderableType:
    """Return relays as a table that the console has room for."""
    numbers = ("published", "waiting", "since", "held back")
    rows = table(
        "relay", "reads", "segments", "processes", *numbers, right=("segments", "processes", *numbers)
    )
    for each in found:
        waiting = each.behind if each.waiting is None else each.waiting
        rows.add_row(
            Text(plain(each.name), "bold"),
            f"{plain(each.channel)} ({each.source})",
            f"{each.at_work} of {each.segments}",
            cell(each.processes),
            cell(each.published),
            Text(f"{'≥ ' if each.bounded else ''}{waiting or 0:,}", "yellow" if waiting else ""),
            "–" if each.waiting_seconds is None else seconds(max(each.waiting_seconds, 0.0)),
            Text(f"{each.held + each.behind_held:,}", "bold red" if each.held else ""),
        )
    return fitted(console, rows, "since", "processes")


def problem_of_relay(found: RelayStatus) -> str:
    """Return what somebody has to do about a relay, empty if nothing."""
    if not found.held:
        return ""
    return (
        f"relay {plain(found.name)}: the broker has refused {counted(found.held, 'message')}, and "
        f"{found.behind_held:,} wait behind; see `onefold dead-letters list`"
    )

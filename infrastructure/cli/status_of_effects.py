"""How effects stand, as commands show it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.text import Text

from ..effects.status import COUNTED, EffectStatus
from .output import cell, fitted, plain, seconds, table


def overview_of_effects(console: Console, found: Sequence[EffectStatus]) -> RenderableType:
    """Return effects as a table that the console has room for."""
    rows = table(
        "effect",
        "pending",
        "due since",
        "running",
        "dead letters",
        right=("pending", "due since", "running", "dead letters"),
    )
    for each in found:
        rows.add_row(
            Text(plain(each.name), "bold")
            if each.declared
            else Text(f"{plain(each.name)} (not of this application)", "dim"),
            Text(_at_least(each.pending, each), "yellow" if each.pending else ""),
            "–" if each.oldest_seconds is None else seconds(each.oldest_seconds),
            cell(each.running),
            Text(_at_least(each.dead, each), "bold red" if each.dead else ""),
        )
    return fitted(console, rows, "due since")


def _at_least(number: int, found: EffectStatus) -> str:
    return f"{'≥ ' if found.bounded and number >= COUNTED else ''}{number:,}"


def problem_of_effect(found: EffectStatus) -> str:
    """Return what somebody has to do about an effect, empty if nothing."""
    name = plain(found.name)
    if found.dead:
        letters = f"dead letter{'' if found.dead == 1 else 's'}"
        return f"effect {name} has {_at_least(found.dead, found)} {letters}; see `onefold dead-letters list`"
    return ""

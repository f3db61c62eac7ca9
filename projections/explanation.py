"""Explanations: what each event made of a row, and which events each column comes from. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from ..domain.change import ABSENT, Change, changes, plain, same
from ..domain.event import Event
from .ports import Key
from .projection import Projection
from .row import Row

Effect = Literal["made", "changed", "unchanged", "removed", "failed"]


@dataclass(frozen=True, slots=True)
class Touch:
    """What an event made of the row: it was made, changed, left as it was or removed, or the fold failed.

    `columns` are the changes, column by column; `reason` is why the fold failed.
    """

    event: Event
    effect: Effect
    columns: tuple[Change, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What events made of one row: `touches` in order, and the `row` in the end, None where there is none.

    Nothing is folded after a touch that failed.
    """

    touches: tuple[Touch, ...] = ()
    row: Row | None = None
    chains: dict[str, tuple[Touch, ...]] = field(default_factory=dict[str, tuple[Touch, ...]])
    """By column, the touches that set its value, the last one last; since the row was made anew, if it was removed."""


def explain(projection: Projection[Any], key: Key, events: Iterable[Event]) -> Explanation:
    """Return what events made of the row of a key, folded one by one.

    `events` are in the order of the log. Those of other rows, and those without a fold, are left out.
    """
    row: Row | None = None
    touches: list[Touch] = []
    chains: dict[str, list[Touch]] = {}
    for event in events:
        fold = projection.folds.get(type(event))
        if fold is None or projection.key_of(event) != key:
            continue
        try:
            after = fold(row, event)
        except Exception as error:  # noqa: BLE001 - whatever a fold raises stops the projection there
            touches.append(Touch(event, "failed", reason=f"{type(error).__name__}: {error}"))
            break
        touch = Touch(event, _effect(row, after), _columns(row, after))
        touches.append(touch)
        if after is None or row is None:
            chains = {}
        if after is not None:
            for change in touch.columns:
                chains.setdefault(change.path, []).append(touch)
        row = after
    return Explanation(tuple(touches), row, {name: tuple(found) for name, found in chains.items()})


def differences(stored: Row | None, folded: Row | None) -> tuple[Change, ...]:
    """Return how a stored row differs from the folded one, value by value."""
    return changes(_values(stored), _values(folded))


def _effect(before: Row | None, after: Row | None) -> Effect:
    if after is None:
        return "unchanged" if before is None else "removed"
    if before is None:
        return "made"
    return "unchanged" if same(_values(before), _values(after)) else "changed"


def _columns(before: Row | None, after: Row | None) -> tuple[Change, ...]:
    old, new = _values(before), _values(after)
    return tuple(
        Change(name, old.get(name, ABSENT), new.get(name, ABSENT))
        for name in dict.fromkeys((*old, *new))
        if not same(old.get(name, ABSENT), new.get(name, ABSENT))
    )


def _values(row: Row | None) -> dict[str, Any]:
    return {} if row is None else {name: plain(value) for name, value in row.__dict__.items()}

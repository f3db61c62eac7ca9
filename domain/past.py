"""The past of an aggregate: its state as of a point, and what each event changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .aggregate import Aggregate
from .change import Change, changes, plain
from .event import Event
from .point import Point

A = TypeVar("A", bound=Aggregate)


@dataclass(frozen=True, slots=True)
class Past(Generic[A]):
    """An aggregate as of a point.

    `version` is the highest version that is included, 0 for none; `events` counts those that are, `of` those of the
    stream. `left_out` are versions below `version` that are not included, as they happened later. The aggregate is for
    looking at: its own version counts what was folded, so that saving it is refused while anything is left out.
    """

    aggregate: A
    point: Point
    version: int
    events: int
    of: int
    left_out: tuple[int, ...]


def past(aggregate_class: type[A], stream: str, events: Iterable[Event], point: Point) -> Past[A]:
    """Return the aggregate of a stream as of a point: the fold, in the order of versions, of the events it includes.

    `events` are all of the stream, in order.
    """
    aggregate = aggregate_class.blank(stream)
    folded = version = total = 0
    missing: list[int] = []
    left_out: tuple[int, ...] = ()
    for event in events:
        total += 1
        if not point.includes(event.meta):
            missing.append(event.meta.version)
            continue
        follow(aggregate, event)
        folded, version = folded + 1, event.meta.version
        left_out = tuple(missing)
    aggregate._version = folded
    return Past(aggregate, point, version, folded, total, left_out)


def follow(aggregate: Aggregate, event: Event) -> None:
    """Fold an event of the aggregate's stream, also when events before it were left out."""
    aggregate._version = event.meta.version - 1
    aggregate.follow(event)


def state_of(aggregate: Aggregate) -> dict[str, Any]:
    """Return the public state as plain values: status, fields, and the properties that the class declares.

    A property that raises an error has no value in this state and is left out.
    """
    return Watch().look(aggregate)


class Watch:
    """Looks at one aggregate again and again, and says what has changed since."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Any, Any]] = {}
        self._state: dict[str, Any] = {}

    def look(self, aggregate: Aggregate) -> dict[str, Any]:
        """Return the public state; what is still the same value is not made plain anew."""
        state: dict[str, Any] = {}
        if aggregate.lifecycle.initial:
            state["status"] = aggregate.status
        for name in _names(type(aggregate)):
            try:
                value = getattr(aggregate, name)
            except Exception:  # noqa: BLE001, S112 - the property is the application's own
                continue
            state[name] = self._plain(name, value)
        return state

    def changes(self, aggregate: Aggregate) -> tuple[Change, ...]:
        """Return what differs from the last call; the first one compares with nothing."""
        before, self._state = self._state, self.look(aggregate)
        return changes(before, self._state)

    def _plain(self, name: str, value: Any) -> Any:
        known = self._seen.get(name)
        if known is not None and known[0] is value and _is_fixed(value):
            return known[1]
        made = plain(value)
        self._seen[name] = (value, made)
        return made


def _names(aggregate_class: type[Aggregate]) -> Iterable[str]:
    kind: Any = aggregate_class
    found = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    names = dict.fromkeys(field.name for field in found if not field.name.startswith("_"))
    for each in aggregate_class.__mro__:
        if each is Aggregate:
            break
        names |= dict.fromkeys(
            name
            for name, value in vars(each).items()
            if isinstance(value, property) and not name.startswith("_")
        )
    return names


def _is_fixed(value: Any) -> bool:
    """Tell whether a value cannot have changed while it stayed the same object."""
    try:
        hash(value)
    except TypeError:
        return False
    return True

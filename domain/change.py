"""Changes: what differs between two states, field by field, compared by value."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from enum import Enum
from typing import Any, Final, NamedTuple

from pydantic import BaseModel

_PLAIN_NAME = re.compile(r"\w+")


class Absent(Enum):
    """What stands for a field, key or element that is not there."""

    ABSENT = "absent"

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = Absent.ABSENT


class Change(NamedTuple):
    """One field that differs: its path, such as `payments[0].amount`, and its value before and after.

    Where the field was not there, or is no more, the value is `ABSENT`. Values are plain, as `plain` gives them.
    """

    path: str
    before: Any
    after: Any


def plain(value: Any) -> Any:
    """Return a value as dicts, lists and single values: models and dataclasses become dicts, sets sorted lists."""
    match value:
        case BaseModel():
            return {name: plain(part) for name, part in value.__dict__.items()}
        case Mapping():
            return {_key(key): plain(part) for key, part in value.items()}
        case list() | tuple():
            return [plain(part) for part in value]
        case set() | frozenset():
            return sorted((plain(part) for part in value), key=repr)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        case _:
            return value


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Change, ...]:
    """Return what differs between two plain states, in the order of their fields.

    Values are compared by value: `24.9` is `24.90`, and an instant is the same in every zone. Lists are compared from
    both ends, so that what was added or taken out in one place is one change or a few, and not the whole list.
    """
    return tuple(_of_mappings("", before, after))


def same(before: Any, after: Any) -> bool:
    """Tell whether two plain values are equal; a truth value is no number."""
    return next(_differences("", before, after), None) is None


def _differences(path: str, before: Any, after: Any) -> Iterator[Change]:
    if before is after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _of_mappings(path, before, after)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _of_lists(path, before, after)
    elif not _equal(before, after):
        yield Change(path, before, after)


def _equal(before: Any, after: Any) -> bool:
    if isinstance(before, bool) != isinstance(after, bool):
        return False
    if before != before and after != after:
        return True
    return bool(before == after)


def _of_mappings(path: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Change]:
    for name in _in_order(before, after):
        yield from _differences(_joined(path, name), before.get(name, ABSENT), after.get(name, ABSENT))


def _of_lists(path: str, before: list[Any], after: list[Any]) -> Iterator[Change]:
    first, shorter = 0, min(len(before), len(after))
    while first < shorter and same(before[first], after[first]):
        first += 1
    last = 0
    while last < shorter - first and same(before[-1 - last], after[-1 - last]):
        last += 1
    old, new = before[first : len(before) - last], after[first : len(after) - last]
    for place in range(max(len(old), len(new))):
        yield from _differences(
            f"{path}[{first + place}]",
            old[place] if place < len(old) else ABSENT,
            new[place] if place < len(new) else ABSENT,
        )


def _in_order(before: Iterable[str], after: Iterable[str]) -> Iterable[str]:
    return dict.fromkeys((*before, *after))


def _joined(path: str, name: str) -> str:
    if not _PLAIN_NAME.fullmatch(name):
        return f"{path}[{json.dumps(name, ensure_ascii=False)}]"
    return f"{path}.{name}" if path else name


def _key(key: Any) -> str:
    match key:
        case str():
            return key
        case Enum():
            return str(key.value)
        case datetime():
            return key.isoformat()
        case _:
            return str(key)

"""JSON documents, written exactly: numbers keep every digit, whatever their size."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

STEP = "  "


class Number(str):
    """A number of JSON as it was written, so that it is written again digit for digit."""

    __slots__ = ()


def parsed(text: str) -> Any:
    """Return the value of a JSON text; its fractions are `Number`, its integers ints of any size."""
    return json.loads(text, parse_float=Number)


def rendered(value: Any, *, ascii_only: bool = True, indent: str | None = "") -> str:
    """Return `value` as JSON; with `indent` None on one line.

    Takes what JSON has, and dataclasses (objects), Decimals and UUIDs (texts), instants (texts in ISO 8601, UTC),
    dates, paths, and enums (by value).
    """
    return "".join(_parts(value, ascii_only, indent))


def instant(value: datetime) -> str:
    """Return an instant in ISO 8601, UTC, to the microsecond."""
    return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _parts(value: Any, ascii_only: bool, indent: str | None) -> Iterator[str]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Number):
        yield str(value)
    elif isinstance(value, Mapping):
        names = [json.dumps(str(name), ensure_ascii=ascii_only) for name in value]
        parts = _inner(value.values(), ascii_only, indent)
        items = [f"{name}: {part}" for name, part in zip(names, parts, strict=True)]
        yield from _bracketed("{", items, "}", indent)
    elif isinstance(value, list | tuple):
        yield from _bracketed("[", _inner(value, ascii_only, indent), "]", indent)
    else:
        yield json.dumps(_plain(value), ensure_ascii=ascii_only, allow_nan=False)


def _inner(values: Iterable[Any], ascii_only: bool, indent: str | None) -> list[str]:
    deeper = None if indent is None else indent + STEP
    return [rendered(value, ascii_only=ascii_only, indent=deeper) for value in values]


def _bracketed(opening: str, items: list[str], closing: str, indent: str | None) -> Iterator[str]:
    if not items:
        yield opening + closing
    elif indent is None:
        yield opening + ", ".join(items) + closing
    else:
        deeper = "\n" + indent + STEP
        yield opening + deeper + f",{deeper}".join(items) + "\n" + indent + closing


def _plain(value: Any) -> Any:
    match value:
        case Enum():
            return value.value
        case datetime():
            return instant(value)
        case date():
            return value.isoformat()
        case Decimal() | UUID() | PurePath():
            return str(value)
        case bytes():
            return value.hex()
        case _:
            return value

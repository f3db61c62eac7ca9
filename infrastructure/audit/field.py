"""Fields of what events say: where they are in data or metadata, and the values that are looked for there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, NamedTuple, cast

from psycopg.sql import SQL, Composable, Identifier
from psycopg.sql import Literal as Constant

from ...domain.errors import OnefoldError
from ...domain.event import flaw_of_text

PLACES = 12
"""Decimal places up to which a number is found in text: 24.9 also finds "24.90"."""

INDEXED = 200
"""Letters of a value that an index of a field holds; more could be too much for one entry."""

_STEP = re.compile(r'\.(?:(?P<name>[^.\[\]="\s]+)|(?P<quoted>"(?:[^"\\]|\\.)*"))(?P<each>(?:\[\])?)')
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d{1,3})?")
_LITERALS = ("true", "false", "null")


class BadField(OnefoldError, ValueError):
    """A field of events cannot be read from its text."""


class Step(NamedTuple):
    """A name on the way to a field; with `each`, its value is a list, and any element of it is meant."""

    name: str
    each: bool = False


@dataclass(frozen=True, slots=True)
class Path:
    """Where a field is: in `data` or `metadata`, and the names that lead there."""

    root: Literal["data", "metadata"]
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return self.root + "".join(f".{_shown(step.name)}{'[]' if step.each else ''}" for step in self.steps)

    @property
    def indexable(self) -> bool:
        """True where an event has at most one value there."""
        return not any(step.each for step in self.steps)

    def value(self) -> Composable:
        """Return the SQL of the beginning of the value as text, which an index of the field holds."""
        names = SQL(", ").join(Constant(step.name) for step in self.steps)
        return SQL('left({root} #>> ARRAY[{names}], {length}) COLLATE "C"').format(
            root=Identifier(self.root), names=names, length=Constant(INDEXED)
        )

    def jsonpath(self) -> str:
        """Return the path in the language of PostgreSQL."""
        return "$" + "".join(f".{json.dumps(step.name)}{'[*]' if step.each else ''}" for step in self.steps)


@dataclass(frozen=True, slots=True)
class Field:
    """A field that has one of some values; `literals` are texts of JSON."""

    path: Path
    literals: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.path}={self.literals[0]}"

    def jsonpath(self) -> str:
        """Return the condition in the language of PostgreSQL. In strict mode lists are not looked into unasked."""
        return f"strict ({self.condition()})"

    def condition(self) -> str:
        """Return the condition without its mode, to be joined with others."""
        path = self.path.jsonpath()
        return " || ".join(f"{path} == {literal}" for literal in self.literals)

    def texts(self) -> tuple[str, ...]:
        """Return what an index of the field holds of the values, empty where it cannot tell."""
        if "null" in self.literals:
            return ()
        texts = (json.loads(each) if each.startswith('"') else each for each in self.literals)
        return tuple(dict.fromkeys(text[:INDEXED] for text in texts))


def path_of(text: str) -> Path:
    """Return the path that a text names, such as `data.customer_id`; raises `BadField`."""
    path, rest = _path(text)
    if rest:
        raise _unreadable(text)
    return path


def field_of(text: str) -> Field:
    """Return the field that a text names with its value, such as `data.customer_id=c-1`; raises `BadField`.

    A value in quotes is that text. Without quotes it is the text, or a number of the same value, or the literal.
    """
    path, rest = _path(text)
    if not rest.startswith("="):
        raise _unreadable(text)
    value = rest[1:]
    if value.startswith('"'):
        try:
            found = json.loads(value)
        except ValueError as error:
            raise BadField(f"expected a text of JSON after = in {text!r}: {error}") from error
        return field(path, found)
    literals = [*_numbers(value)] if _NUMBER.fullmatch(value) else [value] if value in _LITERALS else []
    return Field(path, tuple(dict.fromkeys((_quoted(value), *literals))))


def field(path: Path | str, value: str | int | Decimal | bool | None) -> Field:
    """Return the field at a path with this value: exactly this text, or a number of this value, also as text."""
    where = path_of(path) if isinstance(path, str) else path
    match value:
        case None | bool():
            return Field(where, (json.dumps(value),))
        case str():
            return Field(where, (_quoted(value),))
        case int() | Decimal():
            if isinstance(value, Decimal) and not value.is_finite():
                raise BadField(f"expected a number for {where}, found {value}")
            return Field(where, tuple(_numbers(str(value))))
        case _:
            raise BadField(f"expected text, a number, true, false or null for {where}, found {value!r}")


def _path(text: str) -> tuple[Path, str]:
    root = next((each for each in ("data", "metadata") if text.startswith(f"{each}.")), None)
    if root is None:
        raise _unreadable(text)
    place = len(root)
    steps: list[Step] = []
    while found := _STEP.match(text, place):
        quoted = found["quoted"]
        try:
            name = found["name"] if quoted is None else json.loads(quoted)
        except ValueError as error:
            raise _unreadable(text) from error
        _require_storable(name, text)
        steps.append(Step(name, bool(found["each"])))
        place = found.end()
    if not steps:
        raise _unreadable(text)
    return Path(cast("Any", root), tuple(steps)), text[place:]


def _unreadable(text: str) -> BadField:
    return BadField(
        "expected a field such as data.customer_id=c-1, data.items[].product_id=p-1 or metadata.actor=ada, found "
        f"{text!r}"
    )


def _numbers(text: str) -> Iterator[str]:
    """Yield a number, and it as text with so many decimal places as it may have been written with."""
    number = Decimal(text)
    plain = f"{number:f}"
    yield plain
    whole, _, fraction = plain.partition(".")
    fraction = fraction.rstrip("0")
    yield _quoted(plain)
    for places in range(len(fraction), max(PLACES, len(fraction)) + 1):
        yield _quoted(f"{whole}.{fraction:0<{places}}" if places else whole)


def _quoted(value: str) -> str:
    _require_storable(value, value)
    return json.dumps(value)


def _require_storable(value: str, text: str) -> None:
    if flaw := flaw_of_text(value):
        raise BadField(f"{text!r} {flaw}, which no event has")


def _shown(name: str) -> str:
    return (
        name
        if _STEP.fullmatch(f".{name}") and not name.endswith("[]")
        else json.dumps(name, ensure_ascii=False)
    )

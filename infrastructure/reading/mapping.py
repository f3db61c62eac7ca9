"""Mappings: plain functions from rows to events, with the name and the format of their source."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from ...domain.errors import DeclarationError
from ...domain.event import Event, flaw_of_text
from ...domain.instant import ensure_aware
from .errors import MappingError, UnreadableValue
from .row import Row
from .rows import Format, Rows

LONGEST_STREAM = 500
"""Characters of a stream's name; an index entry of PostgreSQL holds about 2,700 bytes."""


class Fact:
    """An event that a row tells of.

    `key` is its identity within the source: the same key is the same event, in every file and on every day. `stream`
    is where it belongs (`Order.stream_of("4711")`), `occurred_at` an aware datetime. `derived` is true where the
    source does not say when it happened: a derived time that comes out otherwise another day contradicts nothing.
    `row` is where it was read. Raises `ValueError` for a fact that no log can keep.
    """

    __slots__ = ("derived", "event", "key", "occurred_at", "row", "stream")

    def __init__(
        self,
        key: str,
        stream: str,
        event: Event,
        occurred_at: datetime,
        *,
        derived: bool = False,
        row: Row | None = None,
    ) -> None:
        owner = event.aggregate_class
        if not key:
            raise ValueError("the key of a fact is empty; give what identifies the event in its source")
        if len(stream) > LONGEST_STREAM:
            raise ValueError(
                f"the stream's name has {len(stream)} characters, expected at most {LONGEST_STREAM}"
            )
        for part, text in (("key of a fact", f"{key}"), ("stream's name", stream)):
            if flaw := flaw_of_text(text):
                raise ValueError(f"the {part} {flaw}, which PostgreSQL cannot hold")
        if owner is not None and stream.partition("/")[0] != owner.category:
            raise ValueError(
                f"event {event.event_name} belongs to a stream {owner.category}/..., found {stream!r}; "
                f"use {owner.__name__}.stream_of(...)"
            )
        self.key = key
        self.stream = stream
        self.event = event
        self.occurred_at = ensure_aware("occurred_at", occurred_at).astimezone(UTC)
        self.derived = derived
        self.row = row

    def __repr__(self) -> str:
        return f"Fact({self.key!r}, {self.stream!r}, {self.event!r}, {self.occurred_at.isoformat()})"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A row that gives no events, and why."""

    row: Row
    reason: str


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A sound row that gives no events because another row that it belongs with is unreadable."""

    row: Row
    reason: str


Outcome = Fact | Unreadable | HeldBack
OUTCOMES = (Fact, Unreadable, HeldBack)
Function = Callable[[Rows], Iterable[Outcome]]


@dataclass(frozen=True, slots=True)
class Mapping:
    """A function from rows to events, with the name of its source and the format of its files.

    `source` is part of every event's identity: once events were read in under it, it must not change.
    """

    source: str
    function: Function
    format: Format

    def __call__(self, rows: Iterable[Row]) -> Iterator[Outcome]:
        """Return what the rows tell of, one by one; raises `TypeError` when the function gives anything else."""
        yield from _checked(self.function, self.function(rows if isinstance(rows, Rows) else Rows.of(rows)))


def reads(
    source: str,
    *,
    kind: Literal["csv", "jsonl"] | None = None,
    delimiter: str = ",",
    encoding: str = "utf-8",
    columns: tuple[str, ...] = (),
) -> Callable[[Function], Mapping]:
    """Declare a function from rows to outcomes as the mapping of `source`; for the format see `Format`.

    The function gets all rows, broken ones too (`row.fault`), and yields `Fact`, `Unreadable` or `HeldBack`.
    """
    if not source or not source.isprintable() or source != source.strip():
        raise DeclarationError(f"the name of a source must be plain text, found {source!r}")
    format = Format(kind=kind, delimiter=delimiter, encoding=encoding, columns=columns)  # noqa: A001

    def declare(function: Function) -> Mapping:
        return Mapping(source, function, format)

    return declare


def each(function: Callable[[Row], Iterable[Fact]]) -> Function:
    """Make a mapping's function of one that takes a single row.

    A row is taken whole or not at all: when the function raises `ValueError`, `KeyError`, an arithmetic error or
    pydantic's `ValidationError`, none of its facts count and the row is unreadable.
    """

    @wraps(function)
    def of_rows(rows: Rows) -> Iterator[Outcome]:
        for row in rows:
            if row.fault:
                yield Unreadable(row, row.fault)
                continue
            try:
                facts = list(_checked(function, function(row)))
            except (ValueError, KeyError, ArithmeticError) as error:
                yield Unreadable(row, reason_of(error))
                continue
            for fact in facts:
                if isinstance(fact, Fact) and fact.row is None:
                    fact.row = row
                yield fact

    return of_rows


def _checked(function: Callable[..., object], given: object) -> Iterator[Outcome]:
    name = getattr(function, "__name__", "the mapping")
    if not isinstance(given, Iterable):
        found = "None" if given is None else f"one {type(given).__name__}"
        raise TypeError(
            f"{name} must be a generator, or return a list of facts; it returned {found}. "
            "Write `yield Fact(...)` in it"
        )
    outcomes: Iterable[object] = given
    for outcome in outcomes:
        if not isinstance(outcome, OUTCOMES):
            raise TypeError(
                f"expected Fact, Unreadable or HeldBack from {name}, found {type(outcome).__name__}; "
                "write `yield Fact(...)` in it"
            )
        yield outcome


def reason_of(error: Exception) -> str:
    """Say in one line why a row could not be read, naming column or field where the error knows it."""
    if isinstance(error, ValidationError):
        return "; ".join(
            f"field {'.'.join(str(part) for part in detail['loc']) or '?'} of {error.title}: {detail['msg']}"
            for detail in error.errors(include_url=False, include_input=False, include_context=False)
        )
    if isinstance(error, KeyError):
        return f"{error.args[0] if error.args else '?'!r} is not known"
    text = " ".join(str(error).split())
    return (
        text
        if isinstance(error, UnreadableValue)
        else f"{text or 'no reason given'} ({type(error).__name__})"
    )


def load_mapping(reference: str) -> Mapping:
    """Return the mapping that `FILE.py:NAME` names.

    The file is run as Python, with its own folder importable. Raises `MappingError` saying what is wrong.
    """
    file, colon, name = reference.rpartition(":")
    if not colon or not file or not name.isidentifier():
        raise MappingError(
            f"expected a mapping as FILE.py:NAME, found {reference!r}; for example docs/examples/olist.py:mapping"
        )
    path = Path(file)
    if not path.is_file():
        raise MappingError(f"mapping {reference}: there is no file {file}; give the path of a Python file")
    module = _run(path, reference)
    found = getattr(module, name, None)
    if isinstance(found, Mapping):
        return found
    known = sorted(key for key, value in vars(module).items() if isinstance(value, Mapping))
    has = f"it has {', '.join(known)}" if known else "it has none; declare one with @reads('source')"
    if found is None:
        raise MappingError(f"mapping {reference}: {file} has nothing named {name}; of mappings {has}")
    raise MappingError(
        f"mapping {reference}: {name} is a {type(found).__name__}, not a mapping; of mappings {has}"
    )


def _run(path: Path, reference: str) -> object:
    place = path.resolve()
    # One name for one file, so that a file read twice declares its events under the same name.
    name = f"onefold_mapping_{hashlib.sha256(str(place).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, place)
    if spec is None or spec.loader is None:
        raise MappingError(f"mapping {reference}: {path} is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    folder = str(place.parent)
    if folder not in sys.path:
        sys.path.append(folder)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise MappingError(
            f"mapping {reference}: running {path} failed with {type(error).__name__}: {error}"
        ) from error
    return module

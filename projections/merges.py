"""Merges: types of fields that come to the same in whatever order, and however often, their values arrive.

Each is commutative, associative and idempotent, so that a row or an event that is made of them needs no order and no
ledger. A count and a sum are not among them: the order does not matter to them, but a value that comes twice counts
twice. Keep the keys of what was counted (`Grown`), or count under the ledger of a consumer.

    class Parcel(Row, key="parcel_id"):
        parcel_id: str
        places: Grown[str] = Grown[str]()
        heaviest: Highest[Decimal] = Highest[Decimal]()
        status: LastBy[int, str] = LastBy[int, str]()

    row.evolve(places=row.places.add(event.place), status=row.status.add(event.status, version=event.number))

They are frozen models, stored as JSON. Of values that are equal but written otherwise, such as 1.0 and 1.00, always the
same one is kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    field_serializer,
    model_validator,
)
from pydantic_core import to_json

from ..domain.errors import DeclarationError

T = TypeVar("T")
V = TypeVar("V")


class Merge(BaseModel, ABC):
    """What the types of merges have in common: a value without content, and `merge`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, ser_json_inf_nan="constants")

    @model_validator(mode="before")
    @classmethod
    def _of_a_type(cls, values: Any) -> Any:
        if cls.__pydantic_generic_metadata__["parameters"]:
            raise DeclarationError(
                f"expected {cls.__name__} with the types of its values, such as {cls.__name__}[int], found it without; "
                "what is read from JSON needs them"
            )
        return values

    def merge(self, other: Self) -> Self:
        """Return what both have come to; raises TypeError for another type, and for values that have no order."""
        if type(other) is not type(self):
            raise TypeError(f"expected {type(self).__name__}, found {type(other).__name__}")
        return self._merged(other)

    @abstractmethod
    def _merged(self, other: Any) -> Self: ...


class Highest(Merge, Generic[T]):
    """The highest of all values so far; `value` is None before any."""

    value: T | None = None

    def add(self, value: T) -> Self:
        """Return the higher of this and `value`."""
        return self.merge(type(self)(value=value))

    def _merged(self, other: Any) -> Self:
        if self.value is None or other.value is None:
            return self if other.value is None else other
        return self if (_compare(self.value, other.value) or _compare_texts(other, self)) >= 0 else other


class Lowest(Merge, Generic[T]):
    """The lowest of all values so far; `value` is None before any."""

    value: T | None = None

    def add(self, value: T) -> Self:
        """Return the lower of this and `value`."""
        return self.merge(type(self)(value=value))

    def _merged(self, other: Any) -> Self:
        if self.value is None or other.value is None:
            return self if other.value is None else other
        return self if (_compare(self.value, other.value) or _compare_texts(self, other)) <= 0 else other


class Grown(Merge, Generic[T]):
    """The set of all values so far, from which nothing is ever taken away; in JSON a list in order."""

    values: frozenset[T] = frozenset()

    def add(self, value: T) -> Self:
        """Return this with `value` in it."""
        return self.merge(type(self)(values=frozenset((value,))))

    def _merged(self, other: Any) -> Self:
        kept = {value: value for value in self.values}
        for value in other.values:
            twin = kept.setdefault(value, value)
            if twin is not value and _text(value) < _text(twin):
                del kept[twin]
                kept[value] = value
        return self.model_copy(update={"values": frozenset(kept)})

    @field_serializer("values", mode="wrap", when_used="json")
    def _in_order(self, values: frozenset[T], handler: SerializerFunctionWrapHandler) -> list[Any]:
        parts: list[Any] = handler(values)
        try:
            return sorted(parts)
        except TypeError:
            return sorted(parts, key=_text)


class LastBy(Merge, Generic[V, T]):
    """The value of the highest version so far; `version` and `value` are None before any.

    Versions are whole numbers, instants, or anything else that has an order. Of different values with one version the
    one whose JSON comes later in the alphabet is kept, whichever arrives first.
    """

    version: V | None = None
    value: T | None = None

    @model_validator(mode="after")
    def _has_a_version(self) -> Self:
        if self.version is None and self.value is not None:
            raise ValueError("expected a version with the value, found none")
        return self

    def add(self, value: T, version: V) -> Self:
        """Return the later of this and `value` at `version`."""
        return self.merge(type(self)(version=version, value=value))

    def _merged(self, other: Any) -> Self:
        if self.version is None or other.version is None:
            return self if other.version is None else other
        return self if (_compare(self.version, other.version) or _compare_texts(self, other)) >= 0 else other


def _compare(one: Any, other: Any) -> int:
    if one == other:
        return 0
    if one < other:
        return -1
    if one > other:
        return 1
    raise TypeError(f"expected values that have an order, found {one!r} and {other!r}")


def _compare_texts(one: Merge, other: Merge) -> int:
    mine, others = one.model_dump_json(), other.model_dump_json()
    return (mine > others) - (mine < others)


def _text(value: Any) -> bytes:
    return to_json(value)

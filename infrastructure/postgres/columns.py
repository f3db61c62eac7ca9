"""Columns of read models: the PostgreSQL type of each field, and how a column of values is sent.

Values go as binary arrays that are packed here in one go; psycopg's own array dumper takes several times as long.
The format is that of array_send: dimensions, a null flag, the element's type, length and lower bound, then the
elements, each with its length (PostgreSQL source, src/backend/utils/adt/arrayfuncs.c).
"""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from struct import Struct, pack
from types import NoneType
from typing import Annotated, Any, Literal, LiteralString, get_args, get_origin
from uuid import UUID

from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Dumper
from psycopg.pq import Format
from pydantic import (
    AwareDatetime,
    ConfigDict,
    FutureDate,
    FutureDatetime,
    PastDate,
    PastDatetime,
    TypeAdapter,
)
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo

from ...domain.instant import ensure_aware, microseconds
from ...projections.row import Row

_EPOCH_DAY = date(2000, 1, 1).toordinal()
# With its zone's offset a datetime can lie beyond what Python reads back in UTC.
_YEARS = (microseconds(datetime.min.replace(tzinfo=UTC)), microseconds(datetime.max.replace(tzinfo=UTC)))
_HEADER = Struct(">iiIii")
_NULL = pack(">i", -1)


class Packed:
    """A column of values as one binary array parameter."""

    __slots__ = ("array_oid", "data")

    def __init__(self, array_oid: int, data: bytes) -> None:
        self.array_oid = array_oid
        self.data = data


class _PackedDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Any) -> Buffer | None:
        data: bytes = obj.data
        return data


def _dumper_for(array_oid: int) -> type[_PackedDumper]:
    return type("PackedDumper", (_PackedDumper,), {"oid": array_oid})


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its SQL type, the type that its values are sent and read as, and the packer of a column."""

    name: str
    sql_type: LiteralString
    sent_as: LiteralString
    pack: Callable[[Sequence[Any]], Packed]
    read: Callable[[Any], Any] | None = None
    """From what psycopg gives back, other than None, to what the row model holds; None where it is the same."""


class _Memo(dict[Any, bytes]):
    """Elements of short values, length included; emptied when it holds too many. Threads may share one."""

    LIMIT = 200_000
    LONGEST = 64

    def __init__(self, encode: Callable[[Any], bytes]) -> None:
        self._encode = encode
        self[None] = _NULL

    def __missing__(self, value: Any) -> bytes:
        if value is None:
            # Another thread is emptying it.
            return _NULL
        body = self._encode(value)
        element = len(body).to_bytes(4, "big") + body
        if len(body) <= self.LONGEST:
            if len(self) >= self.LIMIT:
                self.clear()
                self[None] = _NULL
            self[value] = element
        return element


def _array(
    element_oid: int,
    array_oid: int,
    kinds: frozenset[type],
    encode: Callable[[Any], bytes],
    *,
    memo: bool = False,
) -> Callable[[Sequence[Any]], Packed]:
    """Return a packer for elements of any length, of the given exact types."""
    known = _Memo(encode)

    def packer(values: Sequence[Any]) -> Packed:
        nulls = _check(values, kinds)
        if memo:
            elements = [known[value] for value in values]
        else:
            elements = []
            for value in values:
                if value is None:
                    elements.append(_NULL)
                else:
                    body = encode(value)
                    elements.append(len(body).to_bytes(4, "big") + body)
        return _made(array_oid, _HEADER.pack(1, nulls, element_oid, len(values), 1) + b"".join(elements))

    return packer


def _fixed(
    element_oid: int,
    array_oid: int,
    kind: type,
    code: str,
    size: int,
    convert: Callable[[Any], Any] | None = None,
    bounds: tuple[int, int] | None = None,
) -> Callable[[Sequence[Any]], Packed]:
    """Return a packer for elements of `size` bytes that struct writes as `code`, converted ones within `bounds`."""
    kinds = frozenset({kind})
    element = Struct(f">i{code}").pack

    def packer(values: Sequence[Any]) -> Packed:
        nulls = _check(values, kinds)
        header = _HEADER.pack(1, nulls, element_oid, len(values), 1)
        if convert is not None:
            values = [None if value is None else convert(value) for value in values]
            if bounds is not None:
                _check_bounds(values, bounds)
        if nulls:
            elements = (_NULL if value is None else element(size, value) for value in values)
            return _made(array_oid, header + b"".join(elements))
        flat = [size] * (2 * len(values))
        flat[1::2] = values
        return _made(array_oid, header + pack(f">{('i' + code) * len(values)}", *flat))

    return packer


def _check(values: Sequence[Any], kinds: frozenset[type]) -> bool:
    """Tell whether a None is among the values; raise TypeError for a type that does not belong in the column."""
    found = set(map(type, values))
    nulls = NoneType in found
    if nulls:
        found.discard(NoneType)
    if not found <= kinds:
        wanted = " or ".join(sorted(kind.__name__ for kind in kinds))
        for value in values:
            if value is not None and type(value) not in kinds:
                raise TypeError(f"expected {wanted}, found {type(value).__name__} {value!r}")
    return nulls


def _check_bounds(values: Sequence[int | None], bounds: tuple[int, int]) -> None:
    known = [value for value in values if value is not None]
    if known and (min(known) < bounds[0] or max(known) > bounds[1]):
        raise ValueError("expected an instant of the years 1 to 9999 in UTC, found one beyond them")


def _made(array_oid: int, data: bytes) -> Packed:
    return _CLASSES[array_oid](array_oid, data)


_CLASSES: dict[int, type[Packed]] = {
    oid: type(f"Packed{oid}", (Packed,), {"__slots__": ()})
    for oid in (1000, 1007, 1009, 1016, 1022, 1182, 1185, 2951)
}


def register(target: AdaptContext) -> None:
    """Make a connection or a cursor accept packed columns as parameters."""
    for oid, cls in _CLASSES.items():
        target.adapters.register_dumper(cls, _dumper_for(oid))


def _day(value: date) -> int:
    return value.toordinal() - _EPOCH_DAY


_PACK_TEXT = _array(25, 1009, frozenset({str}), str.encode, memo=True)
_pack_microseconds = _fixed(1184, 1185, datetime, "q", 8, microseconds, _YEARS)


def _pack_instants(values: Sequence[Any]) -> Packed:
    try:
        return _pack_microseconds(values)
    except TypeError:
        for value in values:
            if type(value) is datetime:
                ensure_aware("the value", value)
        raise


_COLUMNS: dict[Any, tuple[LiteralString, LiteralString, Callable[[Sequence[Any]], Packed]]] = {
    str: ("text", "text", _PACK_TEXT),
    bool: ("boolean", "boolean", _fixed(16, 1000, bool, "?", 1)),
    int: ("bigint", "bigint", _fixed(20, 1016, int, "q", 8)),
    float: ("double precision", "double precision", _fixed(701, 1022, float, "d", 8)),
    Decimal: (
        "numeric",
        "text",
        _array(25, 1009, frozenset({Decimal}), lambda value: str(value).encode()),
    ),
    datetime: (
        "timestamptz",
        "timestamptz",
        _pack_instants,
    ),
    date: ("date", "date", _fixed(1082, 1182, date, "i", 4, _day)),
    UUID: ("uuid", "uuid", _array(2950, 2951, frozenset({UUID}), lambda value: value.bytes)),
}


# At run time these are classes of their own.
_CONSTRAINED: dict[Any, Any] = {
    AwareDatetime: datetime,
    PastDatetime: datetime,
    FutureDatetime: datetime,
    PastDate: date,
    FutureDate: date,
}


def _enum(value: enum.Enum) -> bytes:
    text: str = value.value
    return text.encode()


def _json_column(name: str, info: FieldInfo) -> Column:
    kind: Any = Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(kind, config=ConfigDict(ser_json_inf_nan="constants"))
    except PydanticUserError:
        # A model has its own configuration.
        adapter = TypeAdapter(kind)

    def packer(values: Sequence[Any]) -> Packed:
        return _PACK_TEXT(
            [
                None if value is None else adapter.dump_json(value, warnings="error").decode()
                for value in values
            ]
        )

    def read(text: str) -> Any:
        return adapter.validate_json(text, by_alias=False, by_name=True)

    return Column(name, "jsonb", "text", packer, read)


def columns_of(row: type[Row]) -> tuple[Column, ...]:
    """Return the columns of a row model, in the order of its fields."""
    return tuple(_column(name, info) for name, info in row.model_fields.items())


def _column(name: str, info: FieldInfo) -> Column:
    kind = _without_none(info.annotation)
    if get_origin(kind) is Literal and all(isinstance(value, str) for value in get_args(kind)):
        return Column(name, "text", "text", _PACK_TEXT)
    if (
        isinstance(kind, type)
        and issubclass(kind, enum.Enum)
        and all(isinstance(member.value, str) for member in kind)
    ):
        return Column(name, "text", "text", _array(25, 1009, frozenset({kind}), _enum), kind)
    # bool before int and datetime before date are told apart by exact type.
    known = _COLUMNS.get(_CONSTRAINED.get(kind, kind))
    if known is None:
        return _json_column(name, info)
    return Column(name, *known)


def _without_none(annotation: Any) -> Any:
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (typing.Union, types.UnionType):
        rest = [part for part in get_args(annotation) if part is not type(None)]
        if len(rest) == 1:
            return _without_none(rest[0])
    return annotation


UUID_BYTES = 16
_UUID_SIZE = UUID_BYTES.to_bytes(4, "big")


def pack_uuids(values: Sequence[bytes]) -> Packed:
    """Pack uuids that are given as 16 bytes each; raises ValueError for one of another length."""
    if not set(map(len, values)) <= {UUID_BYTES}:
        wrong = next(value for value in values if len(value) != UUID_BYTES)
        raise ValueError(f"expected {UUID_BYTES} bytes, found {len(wrong)} ({wrong[:32]!r})")
    header = _HEADER.pack(1, 0, 2950, len(values), 1)
    return _made(2951, _UUID_SIZE.join((header, *values)))


PACK_POSITION = _COLUMNS[int][2]
PACK_BOOLEAN = _COLUMNS[bool][2]

PACK_TEXT = _PACK_TEXT
pack_integers = _fixed(23, 1007, int, "i", 4)

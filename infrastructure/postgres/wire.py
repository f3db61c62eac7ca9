"""How records come off the wire: raw and fast, decoded only where a field is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
from psycopg.pq import Format

from ...domain.event import EventMeta
from ...projections.ports import Record

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_set = object.__setattr__
_new = object.__new__


def read_raw(connection: psycopg.Connection[Any]) -> None:
    """Make binary results of `connection` give instants as microseconds since 2000-01-01 UTC and uuids as bytes."""
    adapters = connection.adapters
    int8 = adapters.get_loader(adapters.types["int8"].oid, Format.BINARY)
    bytea = adapters.get_loader(adapters.types["bytea"].oid, Format.BINARY)
    if int8 is None or bytea is None:
        raise LookupError("psycopg has no binary loaders for int8 and bytea")
    adapters.register_loader("timestamptz", int8)
    adapters.register_loader("uuid", bytea)


def instant(microseconds: int) -> datetime:
    """Return the instant of a raw value."""
    return EPOCH + timedelta(microseconds=microseconds)


def raw_instant(value: datetime) -> int:
    """Return the raw value of an instant."""
    return (value - EPOCH) // timedelta(microseconds=1)


class StoredMeta(EventMeta):
    """The place of a stored event, read from its record when a field is asked for."""

    __slots__ = ("_record",)

    _record: Record

    def __getattr__(self, name: str) -> Any:
        read = _FIELDS.get(name)
        if read is None:
            raise AttributeError(name)
        value = read(self._record)
        _set(self, name, value)
        return value


_FIELDS: dict[str, Callable[[Record], Any]] = {
    "position": lambda record: record[0],
    "version": lambda record: record[1],
    "occurred_at": lambda record: instant(record[2]),
    "recorded_at": lambda record: instant(record[3]),
    "event_id": lambda record: UUID(bytes=bytes(record[4])),
    "stream": lambda record: record[6],
    "metadata": lambda record: {} if record[9] is None else json.loads(record[9]),
}


def meta_of(record: Record) -> EventMeta:
    """Return the place of the event that `record` holds."""
    meta: StoredMeta = _new(StoredMeta)
    _set(meta, "_record", record)
    return meta

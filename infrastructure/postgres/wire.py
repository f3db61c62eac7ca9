"""How records come off the wire: raw and fast, decoded only where a field is read."""

from __future__ import annotations

from psycopg.abc import AdaptContext
from psycopg.pq import Format

from ...domain.event import EventMeta
from ...projections.ports import Record

_tuple = tuple.__new__


def read_raw(target: AdaptContext) -> None:
    """Make binary results give instants as microseconds since 2000-01-01 UTC, and uuids as bytes."""
    adapters = target.adapters
    int8 = adapters.get_loader(adapters.types["int8"].oid, Format.BINARY)
    bytea = adapters.get_loader(adapters.types["bytea"].oid, Format.BINARY)
    if int8 is None or bytea is None:
        raise LookupError("psycopg has no binary loaders for int8 and bytea")
    adapters.register_loader("timestamptz", int8)
    adapters.register_loader("uuid", bytea)


def meta_of(record: Record) -> EventMeta:
    """Return the place of the event that `record` holds."""
    return _tuple(EventMeta, record)

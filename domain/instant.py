"""Instants: aware datetimes to the microsecond, and the one way a local time becomes one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from pydantic import AwareDatetime, GetCoreSchemaHandler
from pydantic_core import CoreSchema
from pydantic_core.core_schema import json_or_python_schema, no_info_after_validator_function

from .errors import OnefoldError


def has_whole_minutes(value: datetime) -> bool:
    """Tell whether the offset of an aware datetime can be written in JSON, which leaves its seconds out."""
    offset = value.utcoffset()
    return offset is None or not (offset.seconds % 60 or offset.microseconds)


def _writable(value: datetime) -> datetime:
    if value.tzinfo is UTC or has_whole_minutes(value):
        return value
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{value.isoformat()} lies outside the years 1 to 9999 in UTC") from None


class _Writable:
    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        aware = handler(source)
        # In JSON no offset has seconds: events that are read need no second look.
        return json_or_python_schema(aware, no_info_after_validator_function(_writable, aware))


Instant = Annotated[AwareDatetime, _Writable]
"""Type of a field that holds an instant; a datetime without a zone is refused.

An offset with seconds, as zones had before clocks were set by the hour, becomes UTC.
"""

Ambiguous = Literal["earlier", "later", "refuse"]
"""What to take for a local time that the clocks showed twice: the first, the second, or neither."""

Skipped = Literal["forward", "refuse"]
"""What to take for a local time that the clocks passed over: the reading of a clock not put forward, or nothing."""


class NaiveInstant(OnefoldError, ValueError):
    """A datetime without a zone stands where an instant is needed."""

    def __init__(self, name: str, value: datetime) -> None:
        super().__init__(
            f"{name} is {value.isoformat()} without a zone; give an aware datetime, "
            "or convert it with from_local(value, zone, ambiguous=...)"
        )


class UnclearLocalTime(OnefoldError, ValueError):
    """A local time that the clocks of its zone showed twice or never."""


def ensure_aware(name: str, value: datetime) -> datetime:
    """Return `value`; raise `NaiveInstant` naming `name` when it has no zone."""
    if value.tzinfo is None or value.utcoffset() is None:
        raise NaiveInstant(name, value)
    return value


def from_local(
    value: datetime, zone: str, *, ambiguous: Ambiguous = "refuse", skipped: Skipped = "refuse"
) -> datetime:
    """Return the UTC instant of a local time in `zone` (an IANA name).

    `ambiguous` says what a time is that came twice when clocks went back, `skipped` what one is that was left out
    when they went forward (02:30 is half an hour after 02:00, so 03:30 by the new time). Under "refuse" such a
    time raises `UnclearLocalTime`. An aware `value` is refused too: it needs no zone.
    """
    if value.tzinfo is not None:
        raise UnclearLocalTime(f"{value.isoformat()} already has a zone; give the local time without one")
    info = ZoneInfo(zone)
    first = value.replace(tzinfo=info, fold=0).astimezone(UTC)
    second = value.replace(tzinfo=info, fold=1).astimezone(UTC)
    if first == second:
        return first
    # PEP 495: in a gap fold=0 lies after fold=1, in an overlap before it.
    if first > second:
        if skipped == "forward":
            return first
        raise UnclearLocalTime(
            f"{value.isoformat()} never happened in {zone}: the clocks went forward over it; "
            "say skipped='forward' to read it by the clock before the change"
        )
    if ambiguous == "refuse":
        raise UnclearLocalTime(
            f"{value.isoformat()} happened twice in {zone}; say ambiguous='earlier' or 'later'"
        )
    return first if ambiguous == "earlier" else second


EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
"""The instant that `microseconds` counts from; PostgreSQL's."""

_MICROSECOND = timedelta(microseconds=1)


def microseconds(value: datetime) -> int:
    """Return the microseconds from 2000-01-01 UTC to `value`; TypeError for a datetime without a zone."""
    return (value - EPOCH) // _MICROSECOND


def instant(microseconds: int) -> datetime:
    """Return the instant that is `microseconds` after 2000-01-01 UTC."""
    return EPOCH + timedelta(microseconds=microseconds)

"""Points of a history: a version, a position, or an instant by a clock that is named."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from .errors import OnefoldError
from .event import EventMeta
from .instant import NaiveInstant, ensure_aware

Clock = Literal["occurred", "recorded"]
"""Which instant of an event is meant: when it happened, or when the database recorded it."""

_INSTANT = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?P<zone>[Zz]|[+-]\d\d:\d\d)?", re.ASCII
)
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_HIGHEST = 2**63 - 1
FORMS = "an instant with its zone (2026-01-01T00:00:00Z), a version (v7) or a position (@1234)"


class BadPoint(OnefoldError, ValueError):
    """What names a point of a history cannot be read, or names none or several."""


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a history; what is included is what is at it or before it.

    `kind` says what `value` is: a version of the stream, a position of the log, or an instant by the clock `occurred`
    or `recorded`. By the clock `occurred` an event may be included though one with a lower version is not.
    """

    kind: Literal["version", "position", "occurred", "recorded"]
    value: int | datetime

    def includes(self, meta: EventMeta) -> bool:
        """Tell whether the event that stands there is at this point or before it."""
        match self.kind:
            case "version":
                found: int | datetime | None = meta.version
            case "position":
                found = meta.position
            case "occurred":
                found = meta.occurred_at
            case "recorded":
                found = meta.recorded_at
        return found is not None and found <= self.value  # type: ignore[operator]

    def __str__(self) -> str:
        if isinstance(self.value, datetime):
            text = self.value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
            return f"{text} by the clock {self.kind}_at"
        return f"{self.kind} {self.value}"


def point(
    *,
    version: int | None = None,
    position: int | None = None,
    occurred: datetime | None = None,
    recorded: datetime | None = None,
) -> Point:
    """Return the point that the one argument names.

    Raises `BadPoint` for none or several, and `NaiveInstant` for an instant without a zone.
    """
    given = {
        name: value
        for name, value in (
            ("version", version), ("position", position), ("occurred", occurred), ("recorded", recorded)
        )
        if value is not None
    }  # fmt: skip
    if len(given) != 1:
        found = "none" if not given else " and ".join(given)
        raise BadPoint(f"expected one of version, position, occurred and recorded, found {found}")
    if isinstance(version, int):
        return Point("version", version)
    if isinstance(position, int):
        return Point("position", position)
    if occurred is not None:
        return Point("occurred", ensure_aware("occurred", occurred))
    assert recorded is not None
    return Point("recorded", ensure_aware("recorded", recorded))


def point_of(text: str, clock: Clock = "occurred", *, bare_version: bool = False) -> Point:
    """Return the point that a text names: `v7`, `@1234`, or an instant with its zone, by `clock`.

    With `bare_version`, digits alone are a version. Raises `BadPoint`, also for an instant without a zone.
    """
    number = text[1:] if text[:1] in ("v", "@") else text if bare_version else ""
    if number.isascii() and number.isdigit():
        if int(number) > _HIGHEST:
            raise BadPoint(f"expected a number below 2^63, found {text!r}")
        return Point("position" if text[0] == "@" else "version", int(number))
    if text.isascii() and text.isdigit():
        raise BadPoint(
            f"expected {FORMS}, found {text!r}; write v{text} for the version, @{text} for the position"
        )
    return Point(clock, instant_of(text))


def instant_of(text: str) -> datetime:
    """Return the instant that a text with a zone names, such as `2026-01-01T00:00:00Z`; raises `BadPoint`."""
    if _DAY.fullmatch(text):
        raise BadPoint(
            f"expected {FORMS}, found the day {text}; write an instant, such as {text}T00:00:00Z, "
            "where that day begins in UTC"
        )
    matched = _INSTANT.fullmatch(text)
    if matched is None:
        raise BadPoint(f"expected {FORMS}, found {text!r}")
    if not matched["zone"]:
        raise BadPoint(
            f"expected an instant with its zone, found {text} without one; write {text}Z for UTC, or "
            f"its offset, such as {text}+01:00"
        )
    try:
        found = datetime.fromisoformat(text.upper())
        found.astimezone(UTC)
    except (ValueError, OverflowError, NaiveInstant) as error:
        raise BadPoint(f"expected {FORMS}, found {text!r}: {error}") from error
    return found

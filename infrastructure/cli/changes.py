"""Changes and states as they are printed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from rich.console import Console
from rich.text import Text

from ...domain.change import ABSENT, Change
from ...domain.point import Point
from .document import rendered
from .output import is_unicode, plain

LONGEST = 400
"""Letters of a value that are shown in a report; documents have all of them."""


def presentable(value: Any) -> Any:
    """Return a plain value as a document can hold it: what JSON has no form for becomes text."""
    match value:
        case None | bool() | int() | str() | bytes() | Decimal() | UUID() | date() | Enum():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case Mapping():
            return {name: presentable(part) for name, part in value.items()}
        case list() | tuple():
            return [presentable(part) for part in value]
        case _:
            return str(value)


def change_document(change: Change) -> dict[str, Any]:
    """Return a change as a document; `before` is missing where the field was not there, `after` where it is gone."""
    found: dict[str, Any] = {"field": change.path}
    if change.before is not ABSENT:
        found["before"] = presentable(change.before)
    if change.after is not ABSENT:
        found["after"] = presentable(change.after)
    return found


def point_document(point: Point) -> dict[str, Any]:
    """Return a point as a document, with its clock where it is an instant."""
    if isinstance(point.value, datetime):
        return {"clock": point.kind, "instant": point.value}
    return {point.kind: point.value}


def shown(value: Any) -> str:
    """Return a plain value in one line, cut where it is long; what is not there is nothing."""
    if value is ABSENT:
        return "–"
    value = presentable(value)
    if isinstance(value, str):
        text = value or '""'
    elif isinstance(value, Decimal):
        text = f"{value:f}"
    else:
        text = rendered(value, ascii_only=False, indent=None)
        if isinstance(value, datetime | date):
            text = text.strip('"')
    text = plain(text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text):,} letters)"


def change_lines(console: Console, found: Iterable[Change]) -> Iterator[Text]:
    """Yield a line for each change: the field, what it was, and what it is."""
    arrow = "→" if is_unicode(console.encoding) else "->"
    for change in found:
        yield Text.assemble(
            ("~ ", "yellow"),
            (plain(change.path), "yellow"),
            f" {shown(change.before)} ",
            (arrow, "dim"),
            f" {shown(change.after)}",
        )

"""JSON documents keep every digit, and say instants in UTC."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.infrastructure.cli.document import Number, parsed, rendered

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda parts: st.lists(parts, max_size=4) | st.dictionaries(st.text(), parts, max_size=4),
    max_leaves=20,
)


@given(values, st.booleans(), st.sampled_from(["", None]))
def test_what_json_has_is_written_as_json_has_it(value: Any, ascii_only: bool, indent: str | None) -> None:
    assert json.loads(rendered(value, ascii_only=ascii_only, indent=indent)) == value


@given(values)
def test_indented_documents_look_as_the_standard_library_writes_them(value: Any) -> None:
    assert rendered(value) == json.dumps(value, indent=2)


@pytest.mark.parametrize(
    "text",
    ["9007199254740993", "-9223372036854775808", "0.10", "12345678901234567890.1234567890", "1E-7", "1e400"],
)
def test_a_number_that_was_read_is_written_digit_for_digit(text: str) -> None:
    assert rendered(parsed(f'{{"n": [{text}]}}'), indent=None) == f'{{"n": [{text}]}}'


def test_a_fraction_is_not_a_text() -> None:
    assert rendered([Number("1.50"), "1.50"], indent=None) == '[1.50, "1.50"]'


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    tags: tuple[str, ...]


def test_values_of_python_become_values_of_json() -> None:
    zone = timezone(timedelta(hours=-3))
    value = {
        "instant": datetime(2026, 3, 1, 21, 30, tzinfo=zone),
        "moment": datetime(2026, 3, 1, microsecond=5, tzinfo=UTC),
        "day": date(2026, 3, 1),
        "amount": Decimal("24.90"),
        "id": UUID(int=1),
        "path": Path("a/b"),
        "colour": Colour.RED,
        "raw": b"\x00\xff",
        "point": Point(2**60, ("a",)),
        "empty": [],
        "nothing": {},
    }
    assert json.loads(rendered(value)) == {
        "instant": "2026-03-02T00:30:00.000000Z",
        "moment": "2026-03-01T00:00:00.000005Z",
        "day": "2026-03-01",
        "amount": "24.90",
        "id": "00000000-0000-0000-0000-000000000001",
        "path": "a/b",
        "colour": "red",
        "raw": "00ff",
        "point": {"x": 2**60, "tags": ["a"]},
        "empty": [],
        "nothing": {},
    }


def test_what_json_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        rendered(float("nan"))

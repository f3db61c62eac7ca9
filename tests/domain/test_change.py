"""Changes say what differs, field by field and by value."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest

from onefold.domain.change import ABSENT, Change, changes, plain, same
from onefold.domain.money import Money

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Colour(Enum):
    RED = "red"


@dataclass
class Place:
    x: int
    tags: set[str]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Decimal("24.9"), Decimal("24.90")),
        (NOON, NOON.astimezone(timezone(timedelta(hours=2)))),
        ({"a": [1, {"b": Decimal(1)}]}, {"a": [1, {"b": Decimal("1.0")}]}),
        (float("nan"), float("nan")),
        (None, None),
    ],
)
def test_what_is_equal_by_value_is_no_change(before: Any, after: Any) -> None:
    assert changes({"field": before}, {"field": after}) == ()
    assert same(before, after)


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ({"a": 1}, {"a": 2}, [Change("a", 1, 2)]),
        ({"a": 1}, {"a": True}, [Change("a", 1, True)]),
        ({"a": "1"}, {"a": 1}, [Change("a", "1", 1)]),
        ({"a": None}, {"a": {"b": 1}}, [Change("a", None, {"b": 1})]),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}, [Change("a.c", 2, 3)]),
        ({"a": {}}, {"a": {"x y": 1}}, [Change('a["x y"]', ABSENT, 1)]),
        ({"a": {"k": 1}}, {"a": {}}, [Change("a.k", 1, ABSENT)]),
        ({"a": [1, 2]}, {"a": [1, 2, 3]}, [Change("a[2]", ABSENT, 3)]),
        ({"a": [1, 2, 3]}, {"a": [1, 3]}, [Change("a[1]", 2, ABSENT)]),
        ({"a": [1, 3]}, {"a": [0, 1, 3]}, [Change("a[0]", ABSENT, 0)]),
        ({"a": [{"n": 1}, {"n": 2}]}, {"a": [{"n": 1}, {"n": 3}]}, [Change("a[1].n", 2, 3)]),
        ({"a": []}, {"a": [1, 2]}, [Change("a[0]", ABSENT, 1), Change("a[1]", ABSENT, 2)]),
        ({"a": 1, "b": 2}, {"b": 2, "c": 3}, [Change("a", 1, ABSENT), Change("c", ABSENT, 3)]),
    ],
)
def test_what_differs_is_named_by_its_path(before: Any, after: Any, found: list[Change]) -> None:
    assert list(changes(before, after)) == found
    assert not same(before, after)


def test_values_become_plain_all_the_way_down() -> None:
    value = {Colour.RED: (Money.of("1.50", "EUR"), Place(1, {"b", "a"})), 5: frozenset({2}), NOON: b"x"}
    assert plain(value) == {
        "red": [{"amount": Decimal("1.50"), "currency": "EUR"}, {"x": 1, "tags": ["a", "b"]}],
        "5": [2],
        "2026-03-01T12:00:00+00:00": b"x",
    }
    assert repr(ABSENT) == "ABSENT"

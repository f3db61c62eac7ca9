"""The gap rule: which positions may be delivered when some numbers are missing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.projections.gaps import contiguous, deliverable


@pytest.mark.parametrize(
    ("after", "positions", "count"),
    [
        (0, [], 0),
        (7, [], 0),
        (0, [1], 1),
        (0, [2], 0),
        (0, [1, 2, 3], 3),
        (0, [1, 2, 4], 2),
        (0, [1, 3, 4], 1),
        (0, [2, 3, 4], 0),
        (10, [11, 12, 14, 15], 2),
        (2**53, [2**53 + 1, 2**53 + 2], 2),
        (2**53, [2**53 + 1, 2**53 + 3], 1),
        (2**31 - 1, [2**31, 2**31 + 1], 2),
    ],
)
def test_positions_count_as_contiguous_up_to_the_first_hole(
    after: int, positions: list[int], count: int
) -> None:
    assert contiguous(after, positions) == count


@pytest.mark.parametrize(
    ("what", "after", "positions", "settled", "count"),
    [
        ("an empty page", 0, [], 0, 0),
        ("no hole", 0, [1, 2, 3], 0, 3),
        ("a hole that may still be filled", 0, [1, 3], 0, 1),
        ("a hole right behind the cursor", 0, [2, 3], 0, 0),
        ("a hole that was rolled back", 0, [1, 3], 2, 2),
        ("a hole of which a part is settled", 0, [1, 4], 2, 1),
        ("a hole that is settled to its last number", 0, [1, 4], 3, 2),
        ("settled up to the event behind the hole", 0, [1, 4], 4, 2),
        ("settled far beyond the page", 0, [5, 9, 20], 100, 3),
        ("a settled hole, then an open one", 0, [1, 3, 5, 7], 4, 3),
        ("a settled hole, then events without a hole", 0, [1, 3, 4, 5, 6], 2, 5),
        ("the cursor is beyond what is settled", 10, [11, 13], 5, 1),
        ("the cursor stands in a settled hole", 3, [6, 7], 5, 2),
        ("numbers above 2**53", 2**53, [2**53 + 2, 2**53 + 4], 2**53 + 1, 1),
    ],
)
def test_a_hole_is_passed_over_only_when_every_number_in_it_is_settled(
    what: str, after: int, positions: list[int], settled: int, count: int
) -> None:
    assert deliverable(after, positions, settled) == count, what


def slow_contiguous(after: int, positions: list[int]) -> int:
    count = 0
    for position in positions:
        if position != after + count + 1:
            return count
        count += 1
    return count


def slow_deliverable(after: int, positions: list[int], settled: int) -> int:
    last = after
    for count, position in enumerate(positions):
        if any(number > settled for number in range(last + 1, position)):
            return count
        last = position
    return len(positions)


places = st.integers(min_value=0, max_value=40)


@given(after=places, more=st.sets(st.integers(min_value=1, max_value=60)))
def test_contiguous_agrees_with_counting_one_by_one(after: int, more: set[int]) -> None:
    positions = sorted(number for number in more if number > after)
    assert contiguous(after, positions) == slow_contiguous(after, positions)


@given(after=places, more=st.sets(st.integers(min_value=1, max_value=60)), settled=st.integers(0, 70))
def test_deliverable_agrees_with_looking_at_every_missing_number(
    after: int, more: set[int], settled: int
) -> None:
    positions = sorted(number for number in more if number > after)
    assert deliverable(after, positions, settled) == slow_deliverable(after, positions, settled)

"""Guards: what an event means to a row and to a checkpoint."""

from __future__ import annotations

import pytest

from onefold.projections.guards import Outcome, judge, may_move


@pytest.mark.parametrize(
    ("position", "applied", "outcome"),
    [
        (1, -1, Outcome.APPLIED),
        (1, 0, Outcome.APPLIED),
        (1, 1, Outcome.DUPLICATE),
        (1, 2, Outcome.DUPLICATE),
        (2, 1, Outcome.APPLIED),
        (9, 1, Outcome.APPLIED),
        (2**53 + 1, 2**53, Outcome.APPLIED),
        (2**53, 2**53 + 1, Outcome.DUPLICATE),
        (2**53 + 1, 2**53 + 1, Outcome.DUPLICATE),
    ],
)
def test_an_event_at_or_below_the_row_s_position_is_a_duplicate(
    position: int, applied: int, outcome: Outcome
) -> None:
    assert judge(position, applied) is outcome


@pytest.mark.parametrize(
    ("what", "stored", "expected", "upto", "may"),
    [
        ("forward from what was read", 3, 3, 9, True),
        ("to where it stands", 3, 3, 3, True),
        ("backward", 3, 3, 2, False),
        ("someone else went on", 5, 3, 9, False),
        ("someone set it back", 1, 3, 9, False),
        ("someone else is where this one wants to go", 9, 3, 9, False),
    ],
)
def test_a_checkpoint_moves_forward_and_only_from_where_it_was_read(
    what: str, stored: int, expected: int, upto: int, may: bool
) -> None:
    assert may_move(stored, expected, upto) is may, what

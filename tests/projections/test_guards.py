"""Guards: what an event means to a row."""

from __future__ import annotations

import pytest

from onefold.projections.guards import Outcome, judge


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

"""Guards: what an event means to a row. Pure decisions with a closed set of outcomes."""

from __future__ import annotations

from enum import Enum


class Outcome(Enum):
    """What became of an event."""

    APPLIED = "applied"
    DUPLICATE = "duplicate"


APPLIED, DUPLICATE = Outcome.APPLIED, Outcome.DUPLICATE


def judge(position: int, applied: int) -> Outcome:
    """Tell whether an event at `position` is new to a row whose last applied position is `applied`."""
    return APPLIED if position > applied else DUPLICATE

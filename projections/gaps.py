"""Gaps: whether a missing position may still be committed. Pure decisions; see decision record 002."""

from __future__ import annotations

from collections.abc import Sequence


def contiguous(after: int, positions: Sequence[int]) -> int:
    """Return how many of the rising `positions` follow `after` one by one, without a hole."""
    count = len(positions)
    if count == 0 or positions[-1] - after == count:
        return count
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if positions[middle] - after == middle + 1:
            low = middle + 1
        else:
            high = middle
    return low


def deliverable(after: int, positions: Sequence[int], settled: int) -> int:
    """Return how many of the rising `positions` may be delivered.

    A hole at or below `settled` was rolled back: every append that drew a number up to there has ended before
    the page was read. A hole above it ends the run.
    """
    count = contiguous(after, positions)
    if count == len(positions) or positions[count] > settled + 1:
        return count
    low, high = count, len(positions)
    while low < high:
        middle = (low + high) // 2
        if positions[middle] <= settled:
            low = middle + 1
        else:
            high = middle
    return low + contiguous(settled, positions[low:])

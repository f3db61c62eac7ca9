"""Policies: what a projection does about an event that its fold cannot take. Pure decisions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop before the failing event at the first failure; nothing is lost, a restart meets it again."""

    def delay(self, attempt: int) -> float | None:
        """Return the seconds to wait before the next try after `attempt` failed ones; None is the end."""
        return None


@dataclass(frozen=True, slots=True)
class Retry:
    """Try the failing event again, up to `attempts` times in all, each wait twice the last; then stop.

    `first` and `longest` are seconds.
    """

    attempts: int = 5
    first: float = 0.1
    longest: float = 30.0

    def delay(self, attempt: int) -> float | None:
        """Return the seconds to wait before the next try after `attempt` failed ones; None is the end."""
        if attempt >= self.attempts:
            return None
        # The exponent is bounded: 2.0 ** 1024 does not fit a float.
        return min(self.first * 2.0 ** min(attempt - 1, 60), self.longest)


Policy = Stop | Retry

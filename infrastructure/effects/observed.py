"""What a runner has seen: calls by what became of them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Literal

Became = Literal["done", "retried", "dead", "lost"]
BECAME: tuple[Became, ...] = ("done", "retried", "dead", "lost")


class Observed:
    """Counts of calls by effect, in this process, and who is told of the time of each. For any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, Became]] = Counter()
        self.on_call: Callable[[str, float], object] | None = None

    def count(self, effect: str, became: Became) -> None:
        """Note what became of a call."""
        with self._lock:
            self._counts[effect, became] += 1

    def tried(self, effect: str, seconds: float) -> None:
        """Note the time that a call took."""
        if self.on_call is not None:
            self.on_call(effect, seconds)

    def of(self, effect: str) -> dict[Became, int]:
        """Return the counts of one effect, every outcome named."""
        with self._lock:
            return {became: self._counts[effect, became] for became in BECAME}

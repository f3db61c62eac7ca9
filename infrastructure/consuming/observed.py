"""Observed: what one process has done with messages, for metrics."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...projections.guards import Outcome


@dataclass(slots=True)
class Observed:
    """What this process has done, for metrics; counts and seconds since its start."""

    outcomes: dict[Outcome, int] = field(default_factory=dict)
    claims: int = 0
    claim_seconds: float = 0.0
    batches: int = 0
    batch_seconds: float = 0.0
    on_claim: Callable[[int, float], None] | None = None
    on_batch: Callable[[float], None] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def count(self, counts: Mapping[Outcome, int]) -> None:
        """Add outcomes."""
        with self._lock:
            for outcome, number in counts.items():
                self.outcomes[outcome] = self.outcomes.get(outcome, 0) + number

    def claimed(self, keys: int, seconds: float) -> None:
        """Add a claim of `keys` keys."""
        with self._lock:
            self.claims += keys
            self.claim_seconds += seconds
        if self.on_claim is not None:
            self.on_claim(keys, seconds)

    def batched(self, seconds: float) -> None:
        """Add a batch, which took `seconds` to its commit."""
        with self._lock:
            self.batches += 1
            self.batch_seconds += seconds
        if self.on_batch is not None:
            self.on_batch(seconds)

"""Backoff: waits that double up to a limit, with jitter."""

from __future__ import annotations

import random


class Backoff:
    """Seconds to wait before the next try: `first`, twice that, and so on up to `longest`, each half random."""

    def __init__(self, first: float = 0.05, longest: float = 5.0) -> None:
        self._first = first
        self._longest = longest
        self._tries = 0

    def next(self) -> float:
        """Return the seconds to wait now."""
        wait = min(self._first * 2.0**self._tries, self._longest)
        self._tries = min(self._tries + 1, 30)
        return wait * random.uniform(0.5, 1.0)  # noqa: S311 - spreads retries, keeps no secret

    def reset(self) -> None:
        """Begin anew: the last try went well."""
        self._tries = 0

"""The hold: what a call knows of the lease that it is made under."""

from __future__ import annotations

import time


class Hold:
    """A lease as its holder knows it: until when it lasts at least, by a clock that nobody sets."""

    def __init__(self, lease: float, since: float | None = None) -> None:
        self.lease = lease
        self._until = (time.monotonic() if since is None else since) + lease

    @property
    def lasts(self) -> bool:
        """True while nobody else can have the task."""
        return time.monotonic() < self._until

    def renewed(self, since: float) -> None:
        """Note a renewal that was asked for at `since`."""
        self._until = since + self.lease

    def end(self) -> None:
        """Note that the call is over here: it was made, or the task is another's."""
        self._until = float("-inf")

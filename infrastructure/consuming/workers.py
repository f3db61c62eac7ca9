"""Workers: several consumptions of one consumer in one process, a thread each."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence

from ...projections.guards import Outcome
from .consumption import Consumption
from .failures import Interrupted


class Workers:
    """Runs consumptions side by side; when one cannot go on, all of them stop.

    `error` is what that one raised. `interrupted` tells whether the grace time ended before a worker had done what it
    had in hand.
    """

    def __init__(self, consumptions: Sequence[Consumption]) -> None:
        self.consumptions = tuple(consumptions)
        self.error: BaseException | None = None
        self.interrupted = False
        # Daemons: a process that is told twice to end, or whose time has passed, does not wait for a handler.
        self._threads = [
            threading.Thread(
                target=self._work, args=(each,), name=f"onefold-consume-{each.consumer.name}-{n}", daemon=True
            )
            for n, each in enumerate(self.consumptions, start=1)
        ]

    @property
    def going(self) -> bool:
        """True while a worker goes on."""
        return any(thread.is_alive() for thread in self._threads)

    @property
    def received(self) -> int:
        """Messages received so far, those that came again included."""
        return sum(each.intake.received for each in self.consumptions)

    @property
    def outcomes(self) -> dict[Outcome, int]:
        """Counts of outcomes so far, every one of them named."""
        found: Counter[Outcome] = Counter()
        for each in self.consumptions:
            found.update(dict(each.observed.outcomes))
        return {outcome: found[outcome] for outcome in Outcome}

    def start(self) -> None:
        """Start the workers."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Make every worker do what it has in hand, within its grace time, and end."""
        for each in self.consumptions:
            each.stop()

    def join(self, timeout: float) -> bool:
        """Wait until every worker has ended, for `timeout` seconds at most; true if they have."""
        until = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not self.going

    def _work(self, consumption: Consumption) -> None:
        try:
            if consumption.run().interrupted:
                self.interrupted = True
        except Interrupted:
            self.interrupted = True
        except (Exception, SystemExit) as error:  # noqa: BLE001 - told to who waits
            self.error = self.error or error
            self.stop()

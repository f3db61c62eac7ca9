"""Rounds, medians and ratios."""

from __future__ import annotations

import gc
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Contender = Callable[[], float]
"""Runs once and returns its figure (events per second, or milliseconds)."""


@dataclass
class Case:
    """One thing that every contender does; `higher_is_better` says which way the figures go."""

    name: str
    unit: str
    contenders: Mapping[str, Contender]
    higher_is_better: bool = True
    figures: dict[str, list[float]] = field(default_factory=dict)

    def round(self) -> None:
        """Run every contender once, in turn."""
        for name, contender in self.contenders.items():
            gc.collect()
            self.figures.setdefault(name, []).append(contender())

    def median(self, name: str) -> float:
        """Return the median figure of a contender."""
        return statistics.median(self.figures[name])

    def ratio(self, name: str, other: str) -> float:
        """Return how many times better `name` is than `other`, round by round, in the median."""
        pairs = zip(self.figures[name], self.figures[other], strict=True)
        return statistics.median(a / b if self.higher_is_better else b / a for a, b in pairs)


def rate_of_threads(threads: int, total: int, work: Callable[[int], Callable[[], object]]) -> float:
    """Return calls per second of `total` calls over `threads`; `work(i)` prepares the call of thread i."""
    ready = threading.Barrier(threads + 1)
    calls = [work(i) for i in range(threads)]
    failures: list[Exception] = []

    def run(call: Callable[[], object]) -> None:
        ready.wait()
        try:
            for _ in range(total // threads):
                call()
        except Exception as error:  # noqa: BLE001 - raised again by the caller
            failures.append(error)

    workers = [threading.Thread(target=run, args=(call,)) for call in calls]
    for worker in workers:
        worker.start()
    ready.wait()
    started = time.perf_counter()
    for worker in workers:
        worker.join()
    elapsed = time.perf_counter() - started
    if failures:
        raise failures[0]
    return total // threads * threads / elapsed


def milliseconds(call: Callable[[], object], times: int) -> float:
    """Return the milliseconds of one call, as the median of `times`."""
    durations = []
    for _ in range(times):
        started = time.perf_counter()
        call()
        durations.append(time.perf_counter() - started)
    return statistics.median(durations) * 1000

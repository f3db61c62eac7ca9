"""Metrics of effects: what a runner does, and what is open in its database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Self

import psycopg

from ..brokers.port import MissingExtra
from ..metrics import Glance, reached
from .observed import BECAME
from .runner import EffectRunner
from .status import EffectStatus, effects_status

try:
    from prometheus_client import Histogram, Metric
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector
except ImportError as error:
    raise MissingExtra(
        "metrics need the package prometheus-client, which is not installed; install it with: "
        "pip install 'onefold[metrics]'"
    ) from error

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the histogram, in seconds."""


class EffectMetrics(Collector):
    """What a runner of this process does, and what is open in the database for its effects.

    It counts from now on; give it the runner before that runs.
    """

    def __init__(self, runner: EffectRunner, url: str) -> None:
        self._runner = runner
        self._names = [each.name for each in runner.effects]
        self._glance = Glance(url, self._look)
        self._calls = Histogram(
            "onefold_effect_call_seconds",
            "Time of a call, failed ones included.",
            ["effect"],
            registry=None,
            buckets=BUCKETS,
        )
        runner.observed.on_call = lambda effect, seconds: self._calls.labels(effect).observe(seconds)

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        calls = CounterMetricFamily(
            "onefold_effect_calls",
            "Calls by what became of them, in this process.",
            labels=["effect", "outcome"],
        )
        for name in self._names:
            counts = self._runner.observed.of(name)
            for became in BECAME:
                calls.add_metric([name, became], counts[became])
        yield calls
        yield from self._calls.collect()
        yield from self._in_the_database()

    def close(self) -> None:
        """Close the connection to the database."""
        self._glance.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _look(self, connection: psycopg.Connection[Any]) -> tuple[EffectStatus, ...]:
        return effects_status(connection, self._names, others=False)

    def _in_the_database(self) -> Iterator[Metric]:
        found = self._glance.take()
        yield reached(found)
        gauges = {
            "pending": _gauge(
                "onefold_effect_pending_calls", "Calls that are due, or will be at their next try."
            ),
            "running": _gauge(
                "onefold_effect_running_calls", "Calls in the hands of a runner, of all processes."
            ),
            "dead": _gauge("onefold_effect_dead_letters", "Calls given up that nobody has dealt with."),
            "oldest": _gauge(
                "onefold_effect_oldest_due_seconds", "Time since the oldest call is due; 0 without any."
            ),
        }
        for each in found or ():
            gauges["pending"].add_metric([each.name], each.pending)
            gauges["running"].add_metric([each.name], each.running)
            gauges["dead"].add_metric([each.name], each.dead)
            gauges["oldest"].add_metric([each.name], each.oldest_seconds or 0.0)
        yield from gauges.values()


def _gauge(name: str, meaning: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, labels=["effect"])

"""Metrics of relays: what is published, what waits, and what is held back, as the database knows it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

import psycopg

from ..brokers.port import MissingExtra
from ..metrics import Glance, reached
from .status import RelayStatus, relays_status

try:
    from prometheus_client import Metric
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector
except ImportError as error:
    raise MissingExtra(
        "metrics need the package prometheus-client, which is not installed; install it with: "
        "pip install 'onefold[metrics]'"
    ) from error


class RelayMetrics(Collector):
    """All relays of a database, whoever runs them."""

    def __init__(self, url: str) -> None:
        self._glance = Glance(url, self._look)

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        found = self._glance.take()
        yield reached(found)
        published = CounterMetricFamily(
            "onefold_relay_published_messages",
            "Messages published since the relay was begun.",
            labels=["relay"],
        )
        gauges = {
            "waiting": _gauge(
                "onefold_relay_waiting_messages",
                "Messages of the outbox, or positions of the log, not published yet.",
            ),
            "age": _gauge(
                "onefold_relay_oldest_waiting_seconds", "Age of the oldest message that waits; 0 without any."
            ),
            "refused": _gauge("onefold_relay_dead_letters", "Messages that the broker refused for good."),
            "behind": _gauge("onefold_relay_held_messages", "Messages that wait behind a refused one."),
            "processes": _gauge("onefold_relay_processes", "Processes that have a segment."),
        }
        for each in found or ():
            published.add_metric([each.name], each.published)
            gauges["waiting"].add_metric(
                [each.name], (each.behind if each.waiting is None else each.waiting) or 0
            )
            gauges["age"].add_metric([each.name], each.waiting_seconds or 0.0)
            gauges["refused"].add_metric([each.name], each.held)
            gauges["behind"].add_metric([each.name], each.behind_held)
            gauges["processes"].add_metric([each.name], each.processes)
        yield published
        yield from gauges.values()

    def close(self) -> None:
        """Close the connection to the database."""
        self._glance.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _look(self, connection: psycopg.Connection[Any]) -> tuple[RelayStatus, ...]:
        return relays_status(connection)


def _gauge(name: str, meaning: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, labels=["relay"])

"""Metrics: what a process does, and what waits in its database, as Prometheus asks for it."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, Self, TypeVar

import psycopg

from ..domain.errors import OnefoldError
from ..projections.app import App
from ..projections.guards import Outcome
from .brokers.options import shown
from .brokers.port import MissingExtra
from .connection import connected, one_line
from .consumers import ConsumerStatus, consumers_status
from .consuming.consumption import Consumption
from .lag import Share, backlog, lag_messages, lag_seconds
from .status import Status
from .status import status as status_of

try:
    from prometheus_client import CollectorRegistry, Histogram, Metric, ProcessCollector, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector
except ImportError as error:
    raise MissingExtra(
        "metrics need the package prometheus-client, which is not installed; install it with: "
        "pip install 'onefold[metrics]'"
    ) from error

HOST = "127.0.0.1"

EACH = 1.0
"""Seconds between two questions to the database, however often the metrics are asked for."""

SHARE = 0.05
"""Share of the time that questions to the database may take; the pauses between them are longer if need be."""

PATIENCE = 2
"""Seconds after which a database that does not answer is left out of the metrics."""

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the histograms, in seconds."""

log = logging.getLogger("onefold.metrics")
T = TypeVar("T")


class MetricsUnavailable(OnefoldError):
    """The metrics cannot be served where they are asked for, as when the port is taken."""


@dataclass(frozen=True, slots=True)
class MetricsServer:
    """A server of metrics that listens."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """Where the metrics are."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/metrics"


@contextmanager
def serve(port: int, *collectors: Collector, host: str = HOST) -> Iterator[MetricsServer]:
    """Serve what the collectors tell, and the process's memory and CPU time, until the exit; port 0 takes a free one.

    Each server has a registry of its own. Raises `MetricsUnavailable` when it cannot listen.
    """
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    ProcessCollector(registry=registry)
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise MetricsUnavailable(
            f"expected to serve metrics on port {port} of {host}, found: {error.strerror or error}; "
            "choose another port, or 0 for a free one"
        ) from error
    try:
        yield MetricsServer(host, server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE)


class Glance(Generic[T]):
    """What was last seen in a database; looks again when that is old. For any number of threads."""

    def __init__(
        self,
        url: str,
        look: Callable[[psycopg.Connection[Any]], T],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = url
        self._look = look
        self._clock = clock
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[Any] | None = None
        self._seen: T | None = None
        self._due = -float("inf")

    def take(self) -> T | None:
        """Return what is there, None if the database does not answer."""
        with self._lock:
            if self._clock() < self._due:
                return self._seen
            started = self._clock()
            self._seen = self._ask()
            ended = self._clock()
            self._due = ended + max(EACH, (ended - started) / SHARE)
            return self._seen

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._let_go()

    def _ask(self) -> T | None:
        try:
            if self._connection is None:
                self._connection = connected(
                    self._url, application="onefold metrics", connect_timeout=PATIENCE
                )
                timeout = f"{PATIENCE}s"
                self._connection.execute("SELECT set_config('statement_timeout', %s, false)", (timeout,))
            return self._look(self._connection)
        except psycopg.Error as error:
            log.debug("metrics without the database: %s", one_line(error))
            self._let_go()
            return None

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()


class ConsumerMetrics(Collector):
    """What the consumptions of this process do, and what is open in the database for their consumers.

    It counts from now on; give it the consumptions before they run.
    """

    def __init__(self, consumptions: Sequence[Consumption], url: str) -> None:
        self._consumptions = tuple(consumptions)
        names = sorted({each.consumer.name for each in consumptions})
        self._names = names
        self._glance = Glance(url, lambda connection: consumers_status(connection, names))
        self._claims = Histogram(
            "onefold_claim_seconds",
            "Time of a claim of the keys of a batch in the ledger.",
            ["consumer"],
            registry=None,
            buckets=BUCKETS,
        )
        self._batches = Histogram(
            "onefold_batch_seconds",
            "Time of the transaction of a batch, up to its commit.",
            ["consumer"],
            registry=None,
            buckets=BUCKETS,
        )
        for each in self._consumptions:
            claims = self._claims.labels(each.consumer.name)
            batches = self._batches.labels(each.consumer.name)
            each.observed.on_claim = lambda _, seconds, claims=claims: claims.observe(seconds)
            each.observed.on_batch = batches.observe

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        outcomes = CounterMetricFamily(
            "onefold_outcomes",
            "Messages by what became of them, in this process.",
            labels=["consumer", "outcome"],
        )
        received = CounterMetricFamily(
            "onefold_received",
            "Messages received from the broker, repeated ones included.",
            labels=["consumer"],
        )
        for name in self._names:
            mine = self._of(name)
            counts: Counter[Outcome] = Counter()
            for each in mine:
                counts.update(dict(each.observed.outcomes))
            for outcome in Outcome:
                outcomes.add_metric([name, outcome.value], counts[outcome])
            received.add_metric([name], sum(each.intake.received for each in mine))
        yield outcomes
        yield received
        yield from self._claims.collect()
        yield from self._batches.collect()
        yield from self._waiting()
        yield from self._in_the_database()

    def close(self) -> None:
        """Close the connection to the database."""
        self._glance.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _of(self, name: str) -> list[Consumption]:
        return [each for each in self._consumptions if each.consumer.name == name]

    def _waiting(self) -> Iterator[Metric]:
        in_broker = _gauge("onefold_backlog_messages", "Messages that wait in the broker.")
        held = _gauge(
            "onefold_in_flight_messages", "Messages that this process has received and not done yet."
        )
        behind = _gauge("onefold_lag_messages", "Messages that are published and not done.")
        late = _gauge(
            "onefold_lag_seconds",
            "Time since the newest message that is done was published; 0 while none is left to do.",
        )
        for name in self._names:
            shares = [
                Share(shown(each.broker), each.intake.backlog, each.intake.in_flight, each.newest)
                for each in self._of(name)
            ]
            held.add_metric([name], sum(share.in_flight for share in shares))
            _add(in_broker, name, backlog(shares))
            _add(behind, name, lag_messages(shares))
            _add(late, name, lag_seconds(shares, datetime.now(UTC)))
        yield from (in_broker, held, behind, late)

    def _in_the_database(self) -> Iterator[Metric]:
        found = self._glance.take()
        yield reached(found)
        parked = _gauge("onefold_parked_messages", "Messages that came before their turn and wait for it.")
        oldest = _gauge("onefold_oldest_parked_seconds", "Age of the oldest parked message; 0 without any.")
        letters = _gauge("onefold_dead_letters", "Dead letters that nobody has dealt with.")
        workers = _gauge("onefold_workers", "Workers of the consumer that are alive, of all processes.")
        known: Sequence[ConsumerStatus] = found or ()
        for each in known:
            parked.add_metric([each.name], each.parked)
            oldest.add_metric([each.name], each.parked_seconds or 0.0)
            letters.add_metric([each.name], each.dead_letters)
            workers.add_metric([each.name], len(each.workers))
        yield from (parked, oldest, letters, workers)


class ProjectionMetrics(Collector):
    """How far the projections of an application are."""

    def __init__(self, app: App, url: str) -> None:
        self._glance = Glance(url, lambda connection: status_of(connection, app))

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        found: Status | None = self._glance.take()
        yield reached(found)
        names = ["projection"]
        position = _gauge("onefold_projection_position", "Position of the log last applied.", names)
        lag = _gauge("onefold_projection_lag_events", "Events of the log that are not applied.", names)
        late = _gauge("onefold_projection_lag_seconds", "Age of the oldest event that is not applied.", names)
        failed = _gauge(
            "onefold_projection_failed", "1 while the projection stands before an event that failed.", names
        )
        for each in () if found is None else found.projections:
            position.add_metric([each.name], each.position)
            lag.add_metric([each.name], each.lag.number)
            late.add_metric([each.name], each.lag_seconds)
            failed.add_metric([each.name], each.failure is not None)
        yield from (position, lag, late, failed)

    def close(self) -> None:
        """Close the connection to the database."""
        self._glance.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _gauge(name: str, meaning: str, labels: Sequence[str] = ("consumer",)) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, labels=labels)


def _add(gauge: GaugeMetricFamily, name: str, value: float | None) -> None:
    # What nobody can say is left out: 0 would be a statement.
    if value is not None:
        gauge.add_metric([name], value)


def reached(found: object) -> GaugeMetricFamily:
    """Return the gauge that says whether the database answered; `found` is None where it did not."""
    return GaugeMetricFamily(
        "onefold_database_up", "1 while the database answers.", value=float(found is not None)
    )

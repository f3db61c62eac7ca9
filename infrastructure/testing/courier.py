"""The courier: delivers messages to a consumer by hand, in this thread, and tells what became of each."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from copy import copy
from dataclasses import replace
from types import TracebackType
from typing import Self

import psycopg

from ...projections.consumer import Consumer
from ...projections.guards import Outcome
from ..brokers.memory import MemoryBroker
from ..brokers.port import Delivery
from ..connection import connected
from ..consuming.arrivals import Arrival, Reader
from ..consuming.dead_letters import list_parked
from ..consuming.processor import LARGEST
from ..consuming.session import Session
from ..consuming.waiting import Waiting
from ..postgres.migrate import migrate
from .messages import AnyMessage, deliveries

PATIENCE = 60.0
"""Seconds after which messages that other workers hold, or that wait for their next try, are given up."""

LOSSES = 20
"""Lost connections in a row after which the database is given up."""

PAUSE = 0.02


def delivered(consumer: Consumer, messages: Iterable[AnyMessage] | MemoryBroker, url: str) -> list[Outcome]:
    """Deliver messages to a consumer with its tables in the database at `url`; return what became of each delivery.

    The database is migrated if it needs to be. The messages are one batch, in which one that comes early is applied
    with the one before it. A broker is emptied: what it repeats, or delivers in another order, is in the result so. A
    failing function is tried again as its consumer declares, without the waits. Raises what psycopg raises when the
    database cannot be reached.
    """
    with connected(url) as connection:
        migrate(connection)
    with Courier(url, consumer) as courier:
        if not isinstance(messages, MemoryBroker):
            return courier.deliver(deliveries(messages))
        found: list[Outcome] = []
        while messages.unacknowledged(consumer.name):
            # Closing it frees what a lost acknowledgement would hold for a lease.
            with closing(messages.subscribe(consumer.name)) as subscription:
                while taken := subscription.receive(LARGEST, 0.0):
                    found += courier.deliver(taken)
                    subscription.acknowledge(taken)
        return found


class Courier:
    """One worker of a consumer, without a broker.

    `acknowledging` is called after the commit, where a broker would be told. `index` is the place, from 0, of the first
    delivery of those that are being delivered together.
    """

    def __init__(
        self, url: str, consumer: Consumer, *, acknowledging: Callable[[], object] = lambda: None
    ) -> None:
        self.index = 0
        self._url = url
        self._consumer = copy(consumer)
        self._consumer.retry = replace(consumer.retry, first=0.0, longest=0.0)
        self._acknowledging = acknowledging
        self._reader = Reader(self._consumer)
        self._todo: deque[Arrival] = deque()
        self._until = 0.0
        self._session = self._connected()

    def deliver(self, given: Sequence[Delivery], *, together: int = LARGEST) -> list[Outcome]:
        """Deliver so many together at a time, each batch in one transaction if it can be; return the outcomes.

        A message that fails is tried again after the others of its batch. A connection that is lost is made anew.
        """
        arrivals = [self._reader.arrival(delivery) for delivery in given]
        for self.index in range(0, len(arrivals), together):
            self._todo.extend(arrivals[self.index : self.index + together])
            self._until = time.monotonic() + PATIENCE
            self._work()
        return [arrival.outcome or Outcome.REJECTED for arrival in arrivals]

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What follows is told by the processor.

    def done(self, arrivals: Sequence[Arrival]) -> None:
        """Have decided arrivals acknowledged."""
        self._acknowledging()

    def again(self, arrival: Arrival, delay: float) -> None:
        """Try an arrival again, after the others."""
        self._todo.append(arrival)

    def back(self, arrival: Arrival) -> None:
        """Deliver again, in a moment, what another worker has in hand."""
        self._todo.append(arrival)
        self._pause()

    def _connected(self) -> Session:
        return Session(self._url, self._consumer, self._reader)

    def _work(self) -> None:
        losses = 0
        while True:
            try:
                self._session.processor.process(self._todo, self)
                self._settle()
            except (psycopg.OperationalError, psycopg.InternalError):
                losses += 1
                if losses > LOSSES:
                    raise
                self._session.close()
                self._session = self._connected()
            else:
                return

    def _settle(self) -> None:
        """Wait for parked messages that have failed, and wait for their next try."""
        waiting = Waiting(self._session.processor)
        connection = self._session.connection
        while any(parked.attempts for parked in list_parked(connection, consumer=self._consumer.name)):
            self._pause()
            waiting.look(now=True)

    def _pause(self) -> None:
        if time.monotonic() > self._until:
            raise TimeoutError(
                f"expected every message of consumer {self._consumer.name} to be decided within {PATIENCE:.0f} s, "
                "found some that others hold or that keep failing; look for transactions that do not end"
            )
        time.sleep(PAUSE)

"""Consumption: one consumer at work on one broker, with an intake beside it, through losses of either side."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import psycopg

from ...domain.errors import OnefoldError
from ...projections.consumer import Consumer
from ...projections.guards import Outcome
from ..backoff import Backoff
from ..brokers import Subscription, subscribe
from ..connection import one_line
from ..hint import RedisHint
from .arrivals import Arrival, Reader
from .housekeeping import Housekeeping
from .intake import BYTES, MESSAGES, Intake
from .notices import Notices
from .processor import LARGEST, Interrupted, Observed, Span
from .session import Session
from .waiting import Waiting

log = logging.getLogger("onefold.consumer")

BATCH = 1_000
"""Messages in one transaction unless told otherwise."""

TRANSACTION = 0.5
"""Seconds that a transaction should take at most: the batch is made smaller for slow functions."""

GRACE = 10.0
"""Seconds that a consumer has to end what it has in hand when it is told to stop."""

BACK = 1.0
"""Seconds after which the broker is asked to deliver again what another worker has in hand."""

RETRY = 2.0
"""Seconds between looks at what dead workers left."""

KNOWN = frozenset({Outcome.APPLIED, Outcome.DUPLICATE, Outcome.STALE})
"""Outcomes of messages whose content is the one that the ledger holds for their key."""

PASSING = (psycopg.OperationalError, psycopg.InternalError)


@dataclass(slots=True)
class Consumed:
    """What a consumption did: counts of outcomes, `received` messages, and why it ended before its time, if it did.

    `interrupted` is true when the grace time ended first: the batch in hand was rolled back.
    """

    outcomes: dict[Outcome, int] = field(default_factory=dict)
    received: int = 0
    failure: BaseException | None = None
    interrupted: bool = False


class Consumption:
    """Consumes what `broker` (a URL) delivers, by one worker; run several for more, in this process or in others.

    `batch` bounds the messages in one transaction, `messages` and `size` (bytes) those that are held undone. With
    `once` it ends at the end of the source, or when a broker has delivered nothing for `idle` seconds. `hint` is a URL
    of Redis, asked for known keys before the database is. `grace` is the time in seconds that `stop` gives to what
    is in hand.
    """

    def __init__(
        self,
        url: str,
        consumer: Consumer,
        broker: str,
        *,
        batch: int = BATCH,
        messages: int = MESSAGES,
        size: int = BYTES,
        once: bool = False,
        idle: float = 2.0,
        grace: float = GRACE,
        hint: str | None = None,
        span: Span | None = None,
        observed: Observed | None = None,
        event_log: str = "events",
        subscription: Callable[[], Subscription] | None = None,
        on_retention: Callable[[str], None] = lambda _: None,
    ) -> None:
        if not 0 < batch <= LARGEST:
            raise OnefoldError(f"expected a batch of 1 to {LARGEST:,} messages, found {batch}")
        self.consumer = consumer
        self.broker = broker
        self.observed = observed or Observed()
        self._url = url
        self._batch = batch
        self._limit = min(batch, 64)
        self._once = once
        self._grace = grace
        self._span = span
        self._log = event_log
        self._on_retention = on_retention
        self._reader = Reader(consumer)
        self._notices = Notices(consumer.name)
        self._hint = None if hint is None else RedisHint(hint, consumer.retention.ledger)
        self._stopping = threading.Event()
        self._deadline = float("inf")
        self._checked = False
        self._retries: list[tuple[float, int, Arrival]] = []
        self._numbers = itertools.count()
        self._session: Session | None = None
        self._waiting: Waiting | None = None
        self._reaped = 0.0
        self.newest: datetime | None = None
        self.intake = Intake(
            subscription or (lambda: subscribe(broker, consumer.name)),
            self._reader.arrival,
            name=consumer.name,
            messages=messages,
            size=size,
            check=self._check_retention,
            idle_end=idle if once else None,
        )

    def stop(self) -> None:
        """Finish what is in hand, within the grace time, and return from `run`; may be called from anywhere."""
        self._deadline = time.monotonic() + self._grace
        self._stopping.set()
        self.intake.stop()

    def run(self) -> Consumed:
        """Consume until `stop`, or to the end with `once`; return what was done.

        Lost connections, to the broker or to the database, are waited out. Raises what the broker says when it cannot
        be consumed (`BrokerMisconfigured`, `RetentionTooShort`, `ConsumerChanged`).
        """
        todo: deque[Arrival] = deque()
        backoff = Backoff(0.05, 5.0)
        housekeeping = Housekeeping(self._url, self)
        interrupted = False
        # Before anything is taken from the broker: what the database refuses is refused at once.
        self._open(backoff)
        self.intake.start()
        housekeeping.start()
        try:
            while not self._finished(todo):
                try:
                    self._step(todo)
                    backoff.reset()
                except PASSING as error:
                    log.warning("consumer %s: %s; trying again", self.consumer.name, one_line(error))
                    self._disconnect()
                    self._pause(backoff.next())
                    self._reopen(backoff)
        except Interrupted:
            interrupted = True
        finally:
            self._disconnect()
            housekeeping.stop()
            self.intake.stop()
            self.intake.abandon()
            if not self.intake.join(max(0.0, min(self._deadline - time.monotonic(), self._grace)) + 2.0):
                log.warning("consumer %s: the broker does not let go in time", self.consumer.name)
            if self._hint is not None:
                self._hint.close()
        failure = self.intake.failure
        if isinstance(failure, Exception):
            raise failure
        return Consumed(dict(self.observed.outcomes), self.intake.received, failure, interrupted)

    # What follows is told by the processor.

    def done(self, arrivals: Sequence[Arrival]) -> None:
        """Have decided arrivals acknowledged."""
        self.intake.done(arrivals)
        times = [at for arrival in arrivals if (at := arrival.delivery.published_at) is not None]
        if times:
            newest = max(times)
            self.newest = newest if self.newest is None else max(self.newest, newest)
        if self._hint is not None:
            self._hint.note(
                self.consumer.name,
                [
                    (arrival.item.key, arrival.item.fingerprint)
                    for arrival in arrivals
                    if arrival.item is not None and arrival.outcome in KNOWN
                ],
            )

    def again(self, arrival: Arrival, delay: float) -> None:
        """Keep an arrival for its next try."""
        heapq.heappush(self._retries, (time.monotonic() + delay, next(self._numbers), arrival))

    def back(self, arrival: Arrival) -> None:
        """Give an arrival back to the broker."""
        self.intake.back(arrival, BACK)

    def _finished(self, todo: deque[Arrival]) -> bool:
        if self._stopping.is_set():
            return not todo or time.monotonic() > self._deadline
        return self.intake.is_over and not todo and not self._retries and not self.intake.in_flight

    def _step(self, todo: deque[Arrival]) -> None:
        session = self._session
        assert session is not None
        assert self._waiting is not None
        if not todo:
            self._take(todo)
        if todo:
            started, number = time.monotonic(), len(todo)
            session.processor.process(todo, self, limit=self._limit)
            self._adapt(number, time.monotonic() - started)
        if time.monotonic() - self._reaped > RETRY:
            self._reaped = time.monotonic()
            self._waiting.look()

    def _take(self, todo: deque[Arrival]) -> None:
        now = time.monotonic()
        while self._retries and self._retries[0][0] <= now:
            arrival = heapq.heappop(self._retries)[2]
            if self.intake.is_current(arrival):
                todo.append(arrival)
        if self._stopping.is_set():
            return
        wait = min(0.2, max(0.0, self._retries[0][0] - now)) if self._retries else 0.2
        taken = self.intake.take(self._limit - len(todo), 0.0 if todo else wait)
        if taken and self._hint is not None:
            taken = self._without_known(taken)
        todo.extend(taken)

    def _without_known(self, arrivals: list[Arrival]) -> list[Arrival]:
        """Leave out duplicates that the hint knows; whatever it does not know goes to the database."""
        assert self._hint is not None
        assert self._session is not None
        keys = [arrival.item.key for arrival in arrivals if arrival.item is not None]
        known = self._hint.seen(self.consumer.name, keys)
        if not known:
            return arrivals
        rest: list[Arrival] = []
        hinted: list[Arrival] = []
        for arrival in arrivals:
            item = arrival.item
            same = item is not None and known.get(item.key) == item.fingerprint
            (hinted if same else rest).append(arrival)
        if hinted:
            self._session.processor.count_hinted(hinted)
            self.intake.done(hinted)
        return rest

    def _adapt(self, number: int, seconds: float) -> None:
        """Take fewer messages at a time when they take long, and more when they do not."""
        if seconds > TRANSACTION:
            self._limit = max(1, min(self._limit, number) // 2)
        elif number >= self._limit and seconds < TRANSACTION / 4:
            self._limit = min(self._batch, self._limit * 2)

    def _open(self, backoff: Backoff) -> None:
        while True:
            try:
                self._session = Session(
                    self._url,
                    self.consumer,
                    self._reader,
                    log=self._log,
                    observed=self.observed,
                    notices=self._notices,
                    span=self._span,
                    stopping=self._is_late,
                )
            except PASSING as error:
                if self._stopping.is_set():
                    raise
                log.warning("consumer %s: %s; trying again", self.consumer.name, one_line(error))
                self._pause(backoff.next())
            else:
                self._waiting = Waiting(self._session.processor)
                return

    def _reopen(self, backoff: Backoff) -> None:
        while self._session is None and not self._is_late():
            try:
                self._open(backoff)
            except PASSING:
                return
        if self._session is None:
            raise Interrupted

    def _disconnect(self) -> None:
        session, self._session, self._waiting = self._session, None, None
        if session is not None:
            session.close()

    def _is_late(self) -> bool:
        return self._stopping.is_set() and time.monotonic() > self._deadline

    def _pause(self, seconds: float) -> None:
        self._stopping.wait(seconds)

    def _check_retention(self, subscription: Subscription) -> None:
        """Refuse to consume when keys would be forgotten before the broker has done with their messages."""
        if self._checked or self.consumer.age == "received":
            return
        kept = subscription.retention()
        self.consumer.retention.refuse_if_short(self.consumer.name, kept)
        self._checked = True

"""Consumption: one consumer at work on one broker, with an intake beside it, through losses of either side."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from ...domain.errors import OnefoldError
from ...projections.consumer import Consumer
from ...projections.guards import Outcome
from ..brokers import Subscription, subscribe
from ..hint import RedisHint
from ..postgres.log import Announcer
from .arrivals import Reader
from .folding import Span
from .housekeeping import Housekeeping
from .intake import BYTES, MESSAGES, Intake
from .lane import Lane
from .observed import Observed
from .processor import LARGEST
from .session import Session

log = logging.getLogger("onefold.consumer")

BATCH = 1_000
"""Messages in one transaction unless told otherwise."""

FOR_FUNCTIONS = 2_000
"""Messages that are held undone at most for a function, unless told otherwise; folds are quicker, and hold more."""

GRACE = 10.0
"""Seconds that a consumer has to end what it has in hand when it is told to stop."""


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

    A worker has `lanes`, each a thread with a connection: messages of one sequence go to one lane. A function gets one
    unless told otherwise, a fold two. `batch` bounds the messages in one transaction, `messages` (2,000 for a function
    and 10,000 for a fold) and `size` (bytes) those that are held undone. With `once` it ends at the end of the source,
    or when a broker has delivered nothing for `idle` seconds. `hint` is a URL of Redis, asked for known keys before the
    database is. `grace` is the time in seconds that `stop` gives to what is in hand.
    """

    def __init__(
        self,
        url: str,
        consumer: Consumer,
        broker: str,
        *,
        batch: int = BATCH,
        lanes: int | None = None,
        messages: int | None = None,
        size: int = BYTES,
        once: bool = False,
        idle: float = 2.0,
        grace: float = GRACE,
        hint: str | None = None,
        span: Span | None = None,
        observed: Observed | None = None,
        event_log: str = "events",
        announcer: Announcer | None = None,
        subscription: Callable[[], Subscription] | None = None,
    ) -> None:
        if not 0 < batch <= LARGEST:
            raise OnefoldError(f"expected a batch of 1 to {LARGEST:,} messages, found {batch}")
        self.consumer = consumer
        self.broker = broker
        self.observed = observed or Observed()
        self._url = url
        self._grace = grace
        self._stopping = threading.Event()
        self._deadline = float("inf")
        self._checked = False
        self._hint = None if hint is None else RedisHint(hint, consumer.retention.ledger)
        reader = Reader(consumer)
        if lanes is None:
            # Folds are pure, so nobody sees that they run side by side; a function may share what it should not.
            lanes = 1 if consumer.fold is None else 2
        if messages is None:
            messages = FOR_FUNCTIONS if consumer.fold is None else MESSAGES
        if lanes < 1:
            raise OnefoldError(f"expected 1 lane or more, found {lanes}")
        self.intake = Intake(
            subscription or (lambda: subscribe(broker, consumer.name, database=url, types=consumer.types)),
            reader.arrivals,
            name=consumer.name,
            lanes=lanes,
            messages=messages,
            size=size,
            check=self._check_retention,
            idle_end=idle if once else None,
        )

        def session() -> Session:
            return Session(
                url,
                consumer,
                reader,
                log=event_log,
                announcer=announcer,
                observed=self.observed,
                span=span,
                stopping=self._is_late,
            )

        self._lanes = [
            Lane(number, session, self.intake, self._stopping, self._is_late, batch=batch, hint=self._hint)
            for number in range(lanes)
        ]

    @property
    def newest(self) -> datetime | None:
        """The broker's time of the newest message that is decided, None where it tells none."""
        times = [lane.newest for lane in self._lanes if lane.newest is not None]
        return max(times) if times else None

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
        housekeeping = Housekeeping(self._url, self)
        first, *others = self._lanes
        # Before anything is taken from the broker: what the database refuses is refused at once.
        first.open()
        threads = [
            threading.Thread(target=lane.run, name=f"onefold-lane-{self.consumer.name}", daemon=True)
            for lane in others
        ]
        self.intake.start()
        housekeeping.start()
        for thread in threads:
            thread.start()
        try:
            first.run()
            for thread in threads:
                thread.join(
                    max(0.0, self._deadline - time.monotonic()) + 1.0 if self._stopping.is_set() else None
                )
        finally:
            housekeeping.stop()
            self._stopping.set()
            self.intake.stop()
            self.intake.abandon()
            if not self.intake.join(max(0.0, min(self._deadline - time.monotonic(), self._grace)) + 2.0):
                log.warning("consumer %s: the broker does not let go in time", self.consumer.name)
            if self._hint is not None:
                self._hint.close()
        failure = next(
            (lane.failure for lane in self._lanes if lane.failure is not None), self.intake.failure
        )
        if isinstance(failure, Exception):
            raise failure
        interrupted = any(lane.interrupted for lane in self._lanes)
        return Consumed(dict(self.observed.outcomes), self.intake.received, failure, interrupted)

    def _is_late(self) -> bool:
        return self._stopping.is_set() and time.monotonic() > self._deadline

    def _check_retention(self, subscription: Subscription) -> None:
        """Refuse to consume when keys would be forgotten before the broker has done with their messages."""
        if self._checked or self.consumer.age == "received":
            return
        kept = subscription.retention()
        self.consumer.retention.refuse_if_short(self.consumer.name, kept)
        self._checked = True

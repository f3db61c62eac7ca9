"""Lanes: each a thread with a session, that processes the arrivals of its own sequences."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime

import psycopg

from ...projections.guards import Outcome
from ..backoff import Backoff
from ..connection import one_line
from ..hint import RedisHint
from ..throughput import seldom_collecting
from .arrivals import Arrival
from .failures import Interrupted, LedgerBehind
from .intake import Intake
from .session import Session
from .waiting import Waiting

log = logging.getLogger("onefold.consumer")

TRANSACTION = 0.5
"""Seconds that a transaction should take at most: the batch is made smaller for slow functions."""

FIRST = 64
"""Messages in the first batch; those that follow grow as long as they are quick."""

BACK = 1.0
"""Seconds after which the broker is asked to deliver again what another worker has in hand."""

LOOK = 0.2
"""Seconds between looks at what else is to be done while no message comes."""

KNOWN = frozenset({Outcome.APPLIED, Outcome.DUPLICATE, Outcome.STALE})
"""Outcomes of messages whose content is the one that the ledger holds for their key."""

PASSING = (psycopg.OperationalError, psycopg.InternalError, LedgerBehind)


class Lane:
    """Processes what the intake has for lane `number`, until `stopping` is set or the intake is over."""

    def __init__(
        self,
        number: int,
        connect: Callable[[], Session],
        intake: Intake,
        stopping: threading.Event,
        is_late: Callable[[], bool],
        *,
        batch: int,
        hint: RedisHint | None = None,
    ) -> None:
        self.newest: datetime | None = None
        self.failure: BaseException | None = None
        self.interrupted = False
        self._number = number
        self._connect = connect
        self._intake = intake
        self._stopping = stopping
        self._is_late = is_late
        self._batch = batch
        self._limit = min(batch, FIRST)
        self._hint = hint
        self._todo: deque[Arrival] = deque()
        self._retries: list[tuple[float, int, Arrival]] = []
        self._numbers = itertools.count()
        self._session: Session | None = None
        self._waiting: Waiting | None = None
        self._backoff = Backoff(0.05, 5.0)
        self._busy = False
        self._backlog = contextlib.ExitStack()

    def run(self) -> None:
        """Process; never raises, `failure` says why it ended if it did so before its time."""
        try:
            while not self._finished():
                try:
                    self._step()
                    self._backoff.reset()
                except PASSING as error:
                    log.warning("consumer %s: %s; trying again", self._intake.name, one_line(error))
                    self._disconnect()
                    self._stopping.wait(self._backoff.next())
        except Interrupted:
            self.interrupted = True
        except BaseException as error:  # noqa: BLE001 - raised again where the consumption ends
            self.failure = error
            self._intake.stop()
            self._stopping.set()
        finally:
            self._backlog.close()
            self._disconnect()

    def open(self) -> None:
        """Connect to the database, as often as it takes; raises what the database refuses for good."""
        while True:
            try:
                self._session = self._connect()
            except PASSING as error:
                if self._stopping.is_set():
                    raise Interrupted from error
                log.warning("consumer %s: %s; trying again", self._intake.name, one_line(error))
                self._stopping.wait(self._backoff.next())
            else:
                self._waiting = Waiting(self._session.processor)
                return

    def done(self, arrivals: Sequence[Arrival]) -> None:
        """Have decided arrivals acknowledged."""
        times = [at for arrival in arrivals if (at := arrival.delivery.published_at) is not None]
        if times:
            newest = max(times)
            self.newest = newest if self.newest is None else max(self.newest, newest)
        if self._hint is not None and self._session is not None:
            self._hint.note(
                self._hinted(self._session),
                [
                    (arrival.key, arrival.fingerprint)
                    for arrival in arrivals
                    if arrival.key and arrival.outcome in KNOWN
                ],
            )
        self._intake.done(arrivals)

    def again(self, arrival: Arrival, delay: float) -> None:
        """Keep an arrival for its next try."""
        heapq.heappush(self._retries, (time.monotonic() + delay, next(self._numbers), arrival))

    def back(self, arrival: Arrival) -> None:
        """Give an arrival back to the broker."""
        self._intake.back(arrival, BACK)

    def _finished(self) -> bool:
        if self._stopping.is_set():
            return not self._todo or self._is_late()
        return self._intake.is_over and not self._todo and not self._retries and not self._intake.in_flight

    def _step(self) -> None:
        if self._session is None:
            self.open()
        session, waiting, todo = self._session, self._waiting, self._todo
        assert session is not None
        assert waiting is not None
        if not todo:
            self._take(session)
        if todo:
            started, number = time.monotonic(), len(todo)
            if number >= FIRST and not self._busy:
                self._busy = True
                self._backlog.enter_context(seldom_collecting())
            session.processor.process(todo, self, limit=self._limit)
            self._adapt(number, time.monotonic() - started)
        elif self._busy:
            self._busy = False
            self._backlog.close()
        if self._number == 0:
            waiting.look()

    def _take(self, session: Session) -> None:
        now = time.monotonic()
        while self._retries and self._retries[0][0] <= now:
            arrival = heapq.heappop(self._retries)[2]
            # What another connection to the broker has brought is delivered again by this one.
            if self._intake.is_current(arrival):
                self._todo.append(arrival)
        if self._stopping.is_set():
            return
        wait = min(LOOK, max(0.0, self._retries[0][0] - now)) if self._retries else LOOK
        taken = self._intake.take(
            self._limit - len(self._todo), 0.0 if self._todo else wait, lane=self._number
        )
        if taken and self._hint is not None:
            taken = self._without_known(taken, session, self._hint)
        self._todo.extend(taken)

    def _without_known(self, arrivals: list[Arrival], session: Session, hint: RedisHint) -> list[Arrival]:
        """Leave out duplicates that the hint knows; whatever it does not know goes to the database."""
        keys = [arrival.key for arrival in arrivals if arrival.key]
        known = hint.seen(self._hinted(session), keys)
        if not known:
            return arrivals
        rest: list[Arrival] = []
        hinted: list[Arrival] = []
        for arrival in arrivals:
            same = bool(arrival.key) and known.get(arrival.key) == arrival.fingerprint
            (hinted if same else rest).append(arrival)
        if hinted:
            session.processor.count_hinted(hinted)
            self._intake.done(hinted)
        return rest

    def _hinted(self, session: Session) -> str:
        # What another database has committed, or this one before it was set back, is no hint for this one.
        return f"{session.database}:{self._intake.name}"

    def _adapt(self, number: int, seconds: float) -> None:
        """Take fewer messages at a time when they take long, and more when they do not."""
        if seconds > TRANSACTION:
            self._limit = max(1, min(self._limit, number) // 2)
        elif number >= self._limit and seconds < TRANSACTION / 2:
            # As many as would take that long; eight times as many at most, as the next ones may be slower.
            times = 2 if seconds <= 0 else min(8, max(2, int(TRANSACTION / 2 / seconds)))
            self._limit = min(self._batch, self._limit * times)

    def _disconnect(self) -> None:
        session, self._session, self._waiting = self._session, None, None
        if session is not None:
            session.close()

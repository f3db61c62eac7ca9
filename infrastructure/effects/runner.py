"""The runner: workers that make the calls of effects, until they are told to stop or nothing is due."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

import psycopg

from ...domain.errors import OnefoldError
from ...projections.effect import Effect
from ..backoff import Backoff
from ..connection import connected, one_line
from ..postgres.readmodel import worker_name
from ..wakeup import Wakeup
from .keeper import Keeper
from .maintenance import remove_old
from .observed import Observed
from .queue import Queue
from .tasks import CHANNEL
from .worker import Worker

log = logging.getLogger("onefold.effects")

POLL = 1.0
"""Seconds after which a worker looks for what is due, whether it was woken or not."""

UPKEEP = 60.0
"""Seconds between two removals of what is old."""


class EffectRunner:
    """Makes the calls of some effects, by `workers` threads with a connection each.

    Any number of runners may be at work, on any number of machines. `observed` counts what becomes of the calls.
    With `once` each worker ends when nothing is due, else when `stop` is called. A database that is lost is waited
    for; what was decided about a call in the meantime is told to it then.
    """

    def __init__(
        self,
        url: str,
        effects: Sequence[Effect],
        *,
        workers: int = 4,
        once: bool = False,
        observed: Observed | None = None,
    ) -> None:
        if not effects:
            raise OnefoldError("expected at least one effect to run, found none; declare one with @effect")
        if workers < 1:
            raise OnefoldError(f"expected 1 worker or more, found {workers}")
        self.effects = tuple(effects)
        self.observed = observed or Observed()
        self.error: BaseException | None = None
        self._url = url
        self._once = once
        self._stopping = threading.Event()
        self._wakeup = Wakeup(url, CHANNEL)
        self._keeper = Keeper(url, min(each.lease for each in effects))
        self._tidied = time.monotonic()
        # Daemons: a process that is told twice to end does not wait for a call.
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"onefold-effects-{number}", daemon=True)
            for number in range(1, workers + 1)
        ]

    @property
    def going(self) -> bool:
        """True while a worker goes on."""
        return any(thread.is_alive() for thread in self._threads)

    @property
    def in_hand(self) -> int:
        """How many calls are being made."""
        return self._keeper.in_hand

    def start(self) -> None:
        """Start the workers."""
        self._keeper.start()
        if not self._once:
            self._wakeup.__enter__()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Make every worker end with the call in hand."""
        self._stopping.set()
        self._wakeup.wake()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until every worker has ended, for `timeout` seconds at most; true if they have."""
        until = None if timeout is None else time.monotonic() + timeout
        for thread in self._threads:
            thread.join(None if until is None else max(0.0, until - time.monotonic()))
        if self.going:
            return False
        self._keeper.stop()
        if not self._once:
            self._wakeup.__exit__(None, None, None)
        return True

    def run(self) -> Observed:
        """Start, wait for the end, and return the counts; raises what made a worker end before its time."""
        self.start()
        self.join()
        if self.error is not None:
            raise self.error
        return self.observed

    def _run(self, number: int) -> None:
        try:
            self._keep_on(number)
        except BaseException as error:  # noqa: BLE001 - told to who waits
            self.error = self.error or error
            self.stop()

    def _keep_on(self, number: int) -> None:
        worker = Worker(self.effects, self._keeper, self.observed)
        backoff = Backoff()
        try:
            while worker.owes or not self._stopping.is_set():
                try:
                    with connected(
                        self._url, application="onefold effects", target_session_attrs="read-write"
                    ) as connection:
                        queue = Queue(connection, self.effects, f"{worker_name()}:{number}")
                        backoff.reset()
                        self._serve(worker, queue)
                    return
                except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                    log.warning("effects: the database does not answer: %s", one_line(error))
                self._stopping.wait(backoff.next())
        finally:
            worker.close()

    def _serve(self, worker: Worker, queue: Queue) -> None:
        while True:
            worker.finish(queue)
            if self._stopping.is_set():
                return
            seen = self._wakeup.count
            if worker.work(queue):
                continue
            if self._once:
                return
            self._tidy(queue)
            due = queue.next()
            self._wakeup.wait(seen, POLL if due is None else min(POLL, max(due, 0.005)))

    def _tidy(self, queue: Queue) -> None:
        now = time.monotonic()
        if now - self._tidied >= UPKEEP:
            self._tidied = now
            remove_old(queue.connection, slices=10)

"""The intake: the thread that owns the subscription. It receives, acknowledges, and keeps leases alive."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from ...domain.errors import OnefoldError
from ..backoff import Backoff
from ..brokers.port import BrokerLost, Delivery, Subscription
from ..connection import one_line
from .arrivals import Arrival

log = logging.getLogger("onefold.consumer")

BUSY, IDLE = 0.02, 0.25
"""Seconds that the broker is asked to wait for a message: while something is to be acknowledged soon, and else."""

MESSAGES = 10_000
"""Messages that are held undone at most."""

BYTES = 64 * 2**20
"""Bytes of bodies that are held undone, above which no more are taken."""

AT_ONCE = 1_000
"""Messages that are asked for at once at most."""

ASSUMED = 2**20
"""Bytes of a message before any was seen."""

ASK = 2.0
"""Seconds between questions for the broker's backlog."""


class Intake:
    """Receives for one consumer into a bounded buffer; `take` and the sink's methods are for another thread.

    What is in the buffer or in hand counts until it is settled. When the buffer is full the broker is only kept
    alive. When the broker is lost, what was received from it and is not in hand is dropped, as it is delivered again.
    """

    def __init__(
        self,
        subscribe: Callable[[], Subscription],
        read: Callable[[Sequence[Delivery]], list[Arrival]],
        *,
        name: str,
        lanes: int = 1,
        messages: int = MESSAGES,
        size: int = BYTES,
        check: Callable[[Subscription], None] = lambda _: None,
        idle_end: float | None = None,
    ) -> None:
        self._subscribe = subscribe
        self._read = read
        self.name = name
        self._messages = messages
        self._bytes = size
        self._check = check
        self._idle_end = idle_end
        self._lock = threading.Condition()
        self._ready: list[deque[Arrival]] = [deque() for _ in range(lanes)]
        self._held: set[Arrival] = set()
        self._held_bytes = 0
        self._average = float(ASSUMED)
        self._done: list[Sequence[Arrival]] = []
        self._back: list[tuple[Arrival, float]] = []
        self._stopping = False
        self._thread: threading.Thread | None = None
        self.backlog: int | None = None
        self.ended = False
        self.failure: BaseException | None = None
        self.received = 0
        self.lost = 0

    @property
    def in_flight(self) -> int:
        """Messages received and not settled."""
        return len(self._held)

    @property
    def is_over(self) -> bool:
        """True when nothing more will come: the source has ended, or the intake has failed or stopped."""
        return (
            self.ended
            or self.failure is not None
            or (self._thread is not None and not self._thread.is_alive())
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name=f"onefold-intake-{self.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Receive no more; what is ready is given back, what is in hand is settled until `join`."""
        with self._lock:
            self._stopping = True
            for ready in self._ready:
                self._back.extend((arrival, 0.0) for arrival in ready)
                ready.clear()
            self._lock.notify_all()

    def join(self, timeout: float) -> bool:
        """Wait until everything in hand is settled and the subscription is closed; false if it takes longer."""
        if self._thread is None:
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def abandon(self) -> None:
        """Let go of what is in hand, undone: the worker is gone."""
        with self._lock:
            settled = {arrival for arrival, _ in self._back}.union(*self._done)
            self._back.extend((arrival, 0.0) for arrival in self._held.difference(settled))

    def take(self, limit: int, timeout: float, *, lane: int = 0) -> list[Arrival]:
        """Return up to `limit` arrivals of a lane, waiting up to `timeout` seconds for the first."""
        ready = self._ready[lane]
        with self._lock:
            if not ready and not self._stopping and not self.is_over:
                self._lock.wait(timeout)
            return [ready.popleft() for _ in range(min(limit, len(ready)))]

    def is_current(self, arrival: Arrival) -> bool:
        """Tell whether the broker that the arrival came from is still the present one."""
        return arrival in self._held

    def done(self, arrivals: Sequence[Arrival]) -> None:
        """Have these acknowledged: their effects are committed."""
        with self._lock:
            self._done.append(arrivals)

    def back(self, arrival: Arrival, delay: float) -> None:
        """Have this one given back to the broker."""
        with self._lock:
            self._back.append((arrival, delay))

    def _run(self) -> None:
        backoff = Backoff(0.1, 10.0)
        try:
            while not self._stopping:
                try:
                    subscription = self._subscribe()
                except BrokerLost as error:
                    log.warning("consumer %s: %s; trying again", self.name, one_line(error))
                    self._pause(backoff.next())
                    continue
                try:
                    self._check(subscription)
                    backoff.reset()
                    self._serve(subscription)
                    return
                except BrokerLost as error:
                    log.warning("consumer %s: %s; connecting again", self.name, one_line(error))
                    self.lost += 1
                    self._forget()
                    self._pause(backoff.next())
                finally:
                    subscription.close()
        except Exception as error:
            self.failure = error
            self._forget()
            if not isinstance(error, OnefoldError):
                log.exception("consumer %s: the broker's side failed", self.name)
        finally:
            with self._lock:
                self._lock.notify_all()

    def _serve(self, subscription: Subscription) -> None:
        extended = asked = time.monotonic()
        heard = time.monotonic()
        ending = False
        while True:
            delay = self._settle(subscription)
            now = time.monotonic()
            if delay is not None:
                # What was given back is not heard of before its time.
                heard = max(heard, now + delay)
            lease = subscription.lease
            if lease is not None and now - extended > lease / 3:
                with self._lock:
                    held = list(self._held)
                subscription.extend([arrival.delivery for arrival in held])
                extended = now
            if now - asked > ASK:
                self.backlog = subscription.backlog()
                asked = now
            if self._stopping:
                with self._lock:
                    if not self._held:
                        return
                subscription.receive(0, BUSY)
                continue
            found = subscription.receive(0 if ending else self._room(), BUSY if self._held else IDLE)
            if found:
                heard = time.monotonic()
                self._enter(found)
                continue
            # Asked anew each time: what is in hand at the end of a source may be given back, and comes again.
            ending = subscription.ended
            if not subscription.joined:
                heard = time.monotonic()
            idle = self._idle_end is not None and time.monotonic() - heard > self._idle_end
            if not self._held and (ending or idle):
                self.ended = True
                return

    def _room(self) -> int:
        """Return how many messages may be taken now, judged by the size of those before."""
        left = self._bytes - self._held_bytes
        if left <= 0:
            return 0
        return min(self._messages - len(self._held), AT_ONCE, 1 + int(left / self._average))

    def _enter(self, found: Sequence[Delivery]) -> None:
        arrivals = self._read(found)
        with self._lock:
            self._held.update(arrivals)
            size = sum(len(delivery.body) for delivery in found)
            self._held_bytes += size
            self._average += (size / len(found) - self._average) / 4
            self.received += len(found)
            if self._stopping:
                self._back.extend((arrival, 0.0) for arrival in arrivals)
            else:
                self._spread(arrivals)
            self._lock.notify_all()

    def _spread(self, arrivals: Sequence[Arrival]) -> None:
        if len(self._ready) == 1:
            self._ready[0].extend(arrivals)
            return
        for arrival in arrivals:
            # Messages of one sequence, or of one key, must not run beside each other.
            self._ready[hash(arrival.sequence or arrival.key) % len(self._ready)].append(arrival)

    def _settle(self, subscription: Subscription) -> float | None:
        """Acknowledge and give back; return the seconds after which what was given back comes again, if any was."""
        with self._lock:
            held = self._held
            done = [arrival.delivery for arrivals in self._done for arrival in arrivals if arrival in held]
            back = [(arrival, delay) for arrival, delay in self._back if arrival in held]
            held.difference_update(*self._done, [arrival for arrival, _ in back])
            self._held_bytes -= sum([len(delivery.body) for delivery in done])
            self._held_bytes -= sum(len(arrival.delivery.body) for arrival, _ in back)
            self._done, self._back = [], []
            if not done and not back:
                return None
        if done:
            subscription.acknowledge(done)
        delays: dict[float, list[Delivery]] = {}
        for arrival, delay in back:
            delays.setdefault(delay, []).append(arrival.delivery)
        for delay, deliveries in delays.items():
            subscription.give_back(deliveries, delay)
        return max(delays, default=None)

    def _forget(self) -> None:
        """Drop everything: the broker delivers it again to the next subscription."""
        with self._lock:
            for ready in self._ready:
                ready.clear()
            self._held.clear()
            self._held_bytes = 0
            self._done, self._back = [], []

    def _pause(self, seconds: float) -> None:
        with self._lock:
            if not self._stopping:
                self._lock.wait(seconds)

"""Combining: callers that wait at the same time share one transaction.

A caller works for itself at once while fewer than `at_once` requests are in work. Who comes later waits; when a
leader is done, the first of those who wait leads them all. Nobody waits for company, and no thread is kept for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Request(Generic[T, R]):
    """One caller's work, and what became of it."""

    __slots__ = ("_latch", "error", "led", "result", "work")

    _latch: threading.Lock

    def __init__(self, work: T) -> None:
        self.work = work
        self.result: R | None = None
        self.error: BaseException | None = None
        self.led: list[Request[T, R]] = []

    def prepare_to_wait(self) -> None:
        """Arm the latch, before anyone can wake the caller."""
        self._latch = threading.Lock()
        self._latch.acquire()

    def wake(self) -> None:
        """Let the caller go on."""
        self._latch.release()

    def wait(self) -> None:
        """Wait until a leader is done with this request or hands the lead over."""
        self._latch.acquire()


class Combiner(Generic[T, R]):
    """Calls `together` for the requests of one or more callers; it sets the result or the error of each.

    A request that `together` leaves without either is done by its own caller with `alone`.
    """

    def __init__(
        self,
        together: Callable[[Sequence[Request[T, R]]], None],
        alone: Callable[[T], R],
        *,
        at_once: int = 1,
        most: int = 64,
    ) -> None:
        self._together = together
        self._alone = alone
        self._most = most
        self._mutex = threading.Lock()
        self._at_once = at_once
        self._in_work = 0
        self._waiting: list[Request[T, R]] = []

    def submit(self, work: T) -> R:
        """Have `work` done, together with others if there are any; return its result or raise its error."""
        request: Request[T, R] = Request(work)
        with self._mutex:
            leads = self._in_work < self._at_once
            if leads:
                self._in_work += 1
                request.led = [request]
            else:
                request.prepare_to_wait()
                self._waiting.append(request)
        if not leads:
            request.wait()
        if request.led:
            self._lead(request.led)
        if request.error is not None:
            raise request.error
        if request.result is None:
            return self._alone(work)
        return request.result

    def _lead(self, batch: list[Request[T, R]]) -> None:
        try:
            self._together(batch)
        finally:
            with self._mutex:
                following, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                self._in_work += len(following) - len(batch)
            if following:
                following[0].led = following
                following[0].wake()
            for request in batch[1:]:
                request.wake()

"""Throughput: how the interpreter is set while a backlog is worked off."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class _Setting(Generic[T]):
    """A setting of the whole process, changed for as long as anyone holds it, and put back when the last lets go."""

    def __init__(self, read: Callable[[], T], write: Callable[[T], object], value: T) -> None:
        self._read = read
        self._write = write
        self._value = value
        self._before = read()
        self._holders = 0
        self._mutex = threading.Lock()

    @contextmanager
    def held(self) -> Iterator[None]:
        with self._mutex:
            self._holders += 1
            if self._holders == 1:
                self._before = self._read()
                self._write(self._value)
        try:
            yield
        finally:
            with self._mutex:
                self._holders -= 1
                if self._holders == 0:
                    self._write(self._before)


_COLLECTION = _Setting(gc.get_threshold, lambda value: gc.set_threshold(*value), (500_000, 10, 100))
_SWITCHES = _Setting(sys.getswitchinterval, sys.setswitchinterval, 0.001)


@contextmanager
def seldom_collecting() -> Iterator[None]:
    """Collect garbage less often, for as long as anyone is inside.

    Working off a backlog makes many small objects that live long and hold no cycles, so looking at them again and
    again is most of what the collector does.
    """
    with _COLLECTION.held():
        yield


@contextmanager
def throughput() -> Iterator[None]:
    """Collect garbage less often and change threads more often, for as long as anyone is inside.

    The threads that read ahead and write behind need the interpreter briefly, but at once.
    """
    with _COLLECTION.held(), _SWITCHES.held():
        yield

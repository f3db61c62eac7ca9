"""Throughput: how the interpreter is set while a backlog is worked off."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_mutex = threading.Lock()
_users = 0
_before: tuple[tuple[int, int, int], float] = ((700, 10, 10), 0.005)


@contextmanager
def throughput() -> Iterator[None]:
    """Collect garbage less often and change threads more often, for as long as anyone is inside.

    Folding makes many small objects that live long and hold no cycles, so looking at them again and again is most of
    what the collector does; and the threads that read ahead and write behind need the interpreter briefly
    but at once. Both settings are of the whole process, and are put back when the last leaves.
    """
    global _users, _before
    with _mutex:
        _users += 1
        if _users == 1:
            _before = (gc.get_threshold(), sys.getswitchinterval())
            gc.set_threshold(50_000, 20, 100)
            sys.setswitchinterval(0.001)
    try:
        yield
    finally:
        with _mutex:
            _users -= 1
            if _users == 0:
                gc.set_threshold(*_before[0])
                sys.setswitchinterval(_before[1])

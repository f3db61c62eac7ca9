"""Faults: what happens to a consumer at the worst moment."""

from __future__ import annotations

import os
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from copy import copy
from typing import Any

from ...projections.consumer import Consumer, Effect
from ...projections.policies import Retry
from ..connection import connected
from .errors import ProvesNothing

PATIENCE = 60.0
"""Seconds that a process gets to its end."""

TRIES = 50

Hook = Callable[[], object]


class ToldToFail(Exception):
    """The failure that a test provokes."""


def nothing() -> None:
    """Do nothing."""


def hooked(consumer: Consumer, *, before: Hook = nothing, after: Hook = nothing) -> Consumer:
    """Return the consumer with calls before and after its effect; a call that raises fails the message."""

    def around(function: Effect) -> Effect:
        def called(first: Any, second: Any) -> Any:
            before()
            result = function(first, second)
            after()
            return result

        async def awaited(first: Any, second: Any) -> None:
            before()
            await function(first, second)
            after()

        return awaited if consumer.is_async else called

    made = copy(consumer)
    made.retry = Retry(attempts=TRIES)
    if consumer.effect is not None:
        made.effect = around(consumer.effect)
    if consumer.fold is not None:
        made.fold = copy(consumer.fold)
        made.fold.folds = {kind: around(fold) for kind, fold in consumer.fold.folds.items()}
    return made


def slowed(consumer: Consumer, pause: float) -> Consumer:
    """Return the consumer with a pause, in seconds, after each statement, in which others may come in between."""
    effect = consumer.effect
    if effect is None:
        return consumer

    def slow(tx: Any) -> None:
        inner = getattr(tx, "_transaction", tx)
        execute = inner.execute

        def executed(*arguments: Any, **more: Any) -> Any:
            cursor = execute(*arguments, **more)
            time.sleep(pause)
            return cursor

        inner.execute = executed

    def called(event: Any, tx: Any) -> Any:
        slow(tx)
        return effect(event, tx)

    made = copy(consumer)
    made.effect = called
    return made


def end_connections(url: str, consumer: Consumer) -> None:
    """End the connections of the consumer's workers, as a restart of the server does."""
    with connected(url) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name = %s",
            (f"onefold {consumer.name} consume",),
        )


def die() -> None:
    """End this process with SIGKILL."""
    os.kill(os.getpid(), signal.SIGKILL)


def in_child(work: Callable[[], object]) -> None:
    """Do `work` in a copy of this process, which may kill itself; raises `ProvesNothing` when it fails."""
    with tempfile.TemporaryFile() as words:
        with warnings.catch_warnings():
            # Later versions of Python warn of other threads; what they hold is not used by the child.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            code = 1
            try:
                work()
                code = 0
            except BaseException:  # noqa: BLE001 - nothing of the parent's may run in the child
                words.write(traceback.format_exc().encode(errors="backslashreplace"))
                words.flush()
            finally:
                os._exit(code)
        code = _ended(pid)
        if code not in (0, -signal.SIGKILL):
            words.seek(0)
            said = words.read().decode() or f"it ended with {code}"
            raise ProvesNothing(f"expected the process that is killed to work until then, found:\n{said}")


def _ended(pid: int) -> int:
    until = time.monotonic() + PATIENCE
    pause = 0.001
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise ProvesNothing(
                f"expected a copy of the test's process to end within {PATIENCE:.0f} s, found it at work; if what the "
                "function uses cannot be copied by fork, leave these cases out: exactly_once(..., processes=False)"
            )
        time.sleep(pause)
        pause = min(pause * 2, 0.02)

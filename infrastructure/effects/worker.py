"""The worker: takes one task after the other, makes its call outside of any transaction, and notes what came of it."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...projections.effect import (
    Dead,
    Done,
    Effect,
    Reconcile,
    Run,
    Wait,
    after,
    before,
    cause_of,
    reconciled,
)
from .call import AsyncCall, Call, Clients, Place
from .errors import LeaseLost
from .hold import Hold
from .keeper import Keeper
from .observed import Became, Observed
from .queue import Claimed, Queue, kept_result

log = logging.getLogger("onefold.effects")


@dataclass(frozen=True, slots=True)
class _Said:
    effect: Effect
    task: Claimed
    what: Done | Wait | Dead
    why: str = ""


class Worker:
    """One thread's part of a runner. What is decided of a call and not told to the database yet is kept until it is."""

    def __init__(self, effects: Sequence[Effect], keeper: Keeper, observed: Observed) -> None:
        self._effects = {each.name: each for each in effects}
        self._keeper = keeper
        self._observed = observed
        self._clients = Clients()
        self._loop: asyncio.Runner | None = None
        self._unsaid: _Said | None = None

    @property
    def owes(self) -> bool:
        """True while the database does not know yet what became of a call."""
        return self._unsaid is not None

    def work(self, queue: Queue) -> bool:
        """Make one call that is due; false if there is none."""
        self.finish(queue)
        since = time.monotonic()
        task = queue.claim()
        if task is None:
            return False
        effect = self._effects[task.effect]
        with self._keeper.holding(task, effect.lease, since) as hold:
            self._unsaid = self._decided(effect, task, hold, queue)
            self.finish(queue)
        return True

    def finish(self, queue: Queue) -> None:
        """Tell the database what was decided, if that is still to be done."""
        if self._unsaid is not None:
            self._say(queue, self._unsaid)
            self._unsaid = None

    def close(self) -> None:
        """Close the connections to the world outside."""
        self._clients.close()
        if self._loop is not None:
            self._loop.run(self._clients.aclose())
            self._loop.close()

    def _decided(self, effect: Effect, task: Claimed, hold: Hold, queue: Queue) -> _Said:
        step: Run | Reconcile | Done | Dead = before(effect, task.attempts - 1, task.age)
        place = Place(effect.name, task.attempts, task.happened, hold, self._clients)
        try:
            if isinstance(step, Reconcile):
                assert effect.reconcile is not None
                step = reconciled(effect, self._called(effect, effect.reconcile, task, place))
                if isinstance(step, Run) and not queue.again(task):
                    raise LeaseLost(effect.name, task.key)
            if isinstance(step, Run):
                began = time.perf_counter()
                try:
                    step = Done(self._called(effect, effect.function, task, place))
                finally:
                    self._observed.tried(effect.name, time.perf_counter() - began)
        except BaseException as error:
            log.debug("effect %s: key %s failed", effect.name, task.key, exc_info=True)
            return _Said(effect, task, after(effect, task.attempts, error), cause_of(error))
        return _Said(effect, task, step)

    def _called(
        self, effect: Effect, function: Callable[[Any, Any], Any], task: Claimed, place: Place
    ) -> Any:
        argument = task.argument(effect)
        context = contextvars.copy_context()
        if not effect.is_async:
            return context.run(function, argument, Call(place, task.call))
        if self._loop is None:
            self._loop = asyncio.Runner()
        return self._loop.run(function(argument, AsyncCall(place, task.call)), context=context)

    def _say(self, queue: Queue, said: _Said) -> None:
        effect, task, what = said.effect, said.task, said.what
        became: Became
        match what:
            case Done(result):
                became, heard = "done", queue.done(task, result, effect.keep)
                if note := kept_result(effect.name, result)[1]:
                    log.warning("effect %s: key %s: %s", effect.name, task.key, note)
            case Wait(seconds):
                delay = seconds * random.uniform(0.5, 1.0)  # noqa: S311 - spreads retries, keeps no secret
                became, heard = "retried", queue.wait(task, delay, said.why)
                log.warning(
                    "effect %s: key %s failed: %s. Attempt %d, next in %.1f s",
                    effect.name,
                    task.key,
                    said.why,
                    task.attempts,
                    delay,
                )
            case Dead(outcome, why):
                became, heard = "dead", queue.dead(task, what)
                log.warning("effect %s: key %s is a dead letter, %s: %s", effect.name, task.key, outcome, why)
        if not heard:
            log.warning(
                "effect %s: key %s: another runner had it by the end of attempt %d, and tells what became of it",
                effect.name,
                task.key,
                task.attempts,
            )
        self._observed.count(effect.name, became if heard else "lost")

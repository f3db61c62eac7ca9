"""The runner: the workers of several projections in one process, a thread each."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field

import psycopg

from ..domain.errors import OnefoldError
from ..projections.engine import PAGE, Progress
from ..projections.errors import FailedEvent, ProjectionFailed
from ..projections.projection import AnyProjection
from .connection import connected, one_line
from .postgres.errors import ReadModelChanged, ReadModelReplaced
from .postgres.log import channel_of
from .postgres.readmodel import prepare
from .wakeup import Wakeup
from .worker import Worker

log = logging.getLogger("onefold.runner")

LOOK = 2.0
"""Seconds between looks at whether a projection that needs a rebuild was rebuilt."""


@dataclass(slots=True)
class Run:
    """What the worker of one projection did in this process.

    `applied` and `duplicates` count events; a page that was folded twice because a connection was lost counts twice.
    `caught_up` tells, once a single run has ended, whether it reached the log's end. `failure` says why the worker
    gave up, `failed_event` at which event if it was one; `error` is the exception, `awaits_rebuild` true
    while it would go on after a rebuild.
    """

    projection: str
    position: int = 0
    applied: int = 0
    duplicates: int = 0
    held: bool = True
    waiting: bool = False
    failure: str | None = None
    failed_event: FailedEvent | None = None
    error: BaseException | None = field(default=None, repr=False)
    awaits_rebuild: bool = False
    _seen: Progress | None = field(default=None, repr=False)
    _counted: tuple[int, int] = field(default=(0, 0), repr=False)

    @property
    def caught_up(self) -> bool:
        """True when nothing was in the way of the log's end."""
        return self.failure is None and self.held and not self.waiting

    def note(self, progress: Progress) -> None:
        """Take over what a run of the engine has done so far."""
        if progress is not self._seen:
            self._seen, self._counted = progress, (0, 0)
        applied, duplicates = self._counted
        self.applied += progress.applied - applied
        self.duplicates += progress.duplicates - duplicates
        self.position = max(self.position, progress.position)
        self._counted = (progress.applied, progress.duplicates)


class Runner:
    """Runs projections side by side; one that fails ends alone, the others go on.

    One whose table was built by another row model or version waits for `onefold rebuild`, and then goes on.
    `on_end` is called with each run that has ended, in its own thread.
    """

    def __init__(
        self,
        url: str,
        projections: Iterable[AnyProjection],
        *,
        page: int = PAGE,
        on_end: Callable[[Run], None] | None = None,
    ) -> None:
        self._stack = ExitStack()
        self._url = url
        self._on_end = on_end
        self._stopping = threading.Event()
        self._wakeups: dict[str, Wakeup] = {}
        self._threads: list[threading.Thread] = []
        self._workers: list[tuple[Worker, Run]] = []
        for projection in projections:
            if projection.log not in self._wakeups:
                self._wakeups[projection.log] = Wakeup(url, channel_of(projection.log))
            run = Run(projection.name)
            worker = Worker(
                url, projection, page=page, on_page=run.note, wakeup=self._wakeups[projection.log]
            )
            self._workers.append((worker, run))

    @property
    def runs(self) -> list[Run]:
        """What each worker did so far."""
        return [run for _, run in self._workers]

    @property
    def owners(self) -> frozenset[str]:
        """The names of the workers, as checkpoints keep them."""
        return frozenset(worker.owner for worker, _ in self._workers)

    @property
    def going(self) -> bool:
        """True while a worker goes on."""
        return any(thread.is_alive() for thread in self._threads)

    def start(self, *, once: bool = False) -> None:
        """Start the workers; with `once` each ends at the log's present end, else when `stop` is called."""
        if not once:
            for wakeup in self._wakeups.values():
                self._stack.enter_context(wakeup)
        for worker, run in self._workers:
            # Daemons: a process that is told twice to end does not wait for a page.
            thread = threading.Thread(
                target=self._work, args=(worker, run, once), name=f"onefold-{run.projection}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Make every worker finish the page in hand and end."""
        self._stopping.set()
        for worker, _ in self._workers:
            worker.stop()

    def join(self) -> list[Run]:
        """Wait until every worker has ended, and return what they did."""
        for thread in self._threads:
            thread.join()
        self._stack.close()
        return self.runs

    def _work(self, worker: Worker, run: Run, once: bool) -> None:
        try:
            if once:
                done = worker.run_once()
                run.held, run.waiting = done.held, done.waiting
                run.applied, run.duplicates, run.position = done.applied, done.duplicates, done.position
            else:
                self._keep_up(worker, run)
        except ProjectionFailed as error:
            run.failure, run.failed_event, run.error = str(error), error.event, error
        except OnefoldError as error:
            run.failure, run.error = str(error), error
        except (Exception, SystemExit) as error:  # noqa: BLE001 - what ends one projection must not end the others
            run.failure = f"projection {run.projection}: {type(error).__name__}: {one_line(error)}"
            run.error = error
        if self._on_end is not None:
            self._on_end(run)

    def _keep_up(self, worker: Worker, run: Run) -> None:
        while not self._stopping.is_set():
            try:
                worker.run()
            except ReadModelReplaced:
                raise
            except ReadModelChanged as error:
                run.failure, run.awaits_rebuild = str(error), True
                log.warning(
                    "%s. It goes on after that; if newer code built the table, restart with that", error
                )
                if not self._rebuilt(worker.projection):
                    return
                log.info("projection %s: rebuilt, going on", run.projection)
                run.failure, run.awaits_rebuild = None, False

    def _rebuilt(self, projection: AnyProjection) -> bool:
        """Wait until the projection was rebuilt; false when asked to stop before."""
        while not self._stopping.wait(LOOK):
            with (
                contextlib.suppress(ReadModelChanged, psycopg.Error),
                connected(self._url) as connection,
            ):
                prepare(connection, projection)
                return True
        return False

"""Workers: keep a projection up with its log, through lost connections, rivals and failing events."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg

from ..projections.engine import PAGE, Engine, Progress
from ..projections.errors import ProjectionFailed
from ..projections.projection import AnyProjection
from .backoff import Backoff
from .connection import connected, one_line
from .postgres.columns import register
from .postgres.errors import Fenced, ReadModelChanged, ReadModelReplaced
from .postgres.pool import configure
from .postgres.reader import LogReader
from .postgres.readmodel import ReadModelStore, prepare, worker_name
from .throughput import throughput
from .wakeup import Wakeup

log = logging.getLogger("onefold.worker")

POLL = 0.1
"""Seconds between looks at the log when no wake-up comes."""

LINGER = 0.02
"""Seconds after the last event during which the log is looked at every `LINGER_STEP` seconds: writers send a
wake-up only every few milliseconds, so what follows one closely comes without."""

LINGER_STEP = 0.001

PASSING = (psycopg.OperationalError, psycopg.InternalError)
"""Errors that a new connection may not meet; InternalError is also that of a session that was ended for idling."""


class Worker:
    """Runs one projection; several workers of it may run, one works and the others stand by.

    `run_once` applies what is in the log and returns, `run` goes on until `stop` is called.
    """

    def __init__(
        self,
        url: str,
        projection: AnyProjection,
        *,
        page: int = PAGE,
        on_page: Callable[[Progress], None] | None = None,
        wakeup: Wakeup | None = None,
    ) -> None:
        self.projection = projection
        self.owner = worker_name()
        self._url = url
        self._page = page
        self._on_page = on_page
        self._wakeup = wakeup
        self._stopping = threading.Event()
        self._connections: list[psycopg.Connection[Any]] = []
        self._engine: Engine | None = None
        self._model: ReadModelStore | None = None
        self._trouble: Exception | None = None
        self._advanced = False
        self._away = False
        self._built_here = False

    def stop(self) -> None:
        """Make the worker finish the page in hand and return."""
        self._stopping.set()
        if self._wakeup is not None:
            self._wakeup.wake()

    def run_once(self, *, patience: float = 30.0) -> Progress:
        """Apply what is in the log now, and return what was done.

        Waits up to `patience` seconds for another worker's lease to end; `Progress.held` is false if it does
        not. Raises `ProjectionFailed` when the policy gives up on an event, and what was in the way to the last
        (a lost connection, an event that waits for its next try) when that lasts for `patience` seconds.
        """
        deadline = time.monotonic() + patience
        total = Progress(held=False)
        with self._closing():
            while True:
                progress = self._attempt()
                if progress is not None:
                    total.position = max(total.position, progress.position)
                    total.applied += progress.applied
                    total.duplicates += progress.duplicates
                    total.read += progress.read
                    total.held, total.waiting = progress.held, progress.waiting
                    if progress.held and not progress.waiting:
                        return total
                if self._stopping.is_set() or time.monotonic() > deadline:
                    if progress is None and self._trouble is not None and not self._stopping.is_set():
                        raise self._trouble
                    return total
                self._stopping.wait(0.02)

    def run(self) -> None:
        """Keep the projection up with its log until `stop` is called.

        Raises `ProjectionFailed` when the policy gives up on an event, `ReadModelChanged` when the table was built
        by other code, `ReadModelReplaced` when a rebuild has put another version in its place since.
        Lost connections and lost leases are waited out.
        """
        backoff = Backoff()
        seen = -1 if self._wakeup is None else self._wakeup.count
        active_until = 0.0
        pause = LINGER_STEP
        with self._closing():
            while not self._stopping.is_set():
                progress = self._attempt()
                if progress is None:
                    if self._advanced:
                        backoff.reset()
                        self._advanced = False
                    self._stopping.wait(backoff.next())
                    continue
                backoff.reset()
                now = time.monotonic()
                if not progress.held:
                    self._stopping.wait(min(1.0, self.projection.lease / 4))
                    continue
                if progress.read:
                    active_until = now + LINGER
                    pause = LINGER_STEP
                if progress.waiting:
                    seen = self._wait(seen, pause)
                    pause = min(2 * pause, POLL)
                elif now < active_until:
                    seen = self._wait(seen, LINGER_STEP)
                else:
                    seen = self._wait(seen, POLL)

    def rebuild(self, *, patience: float = 30.0) -> Progress:
        """Make the tables anew in place and apply the whole log; raises `Fenced` if another worker does not let go.

        Readers see them fill up; `rebuilding.Rebuild` builds beside the table that serves.

        Waits up to `patience` seconds for an append that is open in front of the log's end; `Progress.waiting` is
        true if it is still open then.
        """
        with self._closing():
            model = self._connected(rebuilding=True)[1]
            deadline = time.monotonic() + 2 * self.projection.lease
            while not model.claim_for_rebuild():
                if time.monotonic() > deadline or self._stopping.is_set():
                    raise Fenced(self.projection.name, 0)
                self._stopping.wait(0.1)
            model.reset()
            if self._engine is not None:
                self._engine.forget()
            engine = self._connected()[0]
            deadline = time.monotonic() + patience
            try:
                progress = engine.run(self._stopping.is_set)
                while progress.waiting and not self._stopping.is_set() and time.monotonic() < deadline:
                    self._stopping.wait(0.02)
                    more = engine.run(self._stopping.is_set)
                    more.applied += progress.applied
                    more.duplicates += progress.duplicates
                    more.read += progress.read
                    progress = more
                return progress
            except ProjectionFailed as error:
                model.note_failure(error.event)
                raise

    def _wait(self, seen: int, timeout: float) -> int:
        if self._wakeup is None:
            self._stopping.wait(timeout)
            return seen
        return self._wakeup.wait(seen, timeout)

    def _attempt(self) -> Progress | None:
        """Run the engine once; None when something passing was in the way and the next try may go well."""
        try:
            try:
                progress = self._connected()[0].run(self._stopping.is_set)
            except ProjectionFailed as error:
                self._failed(error)
            else:
                self._back()
                return progress
        except ReadModelChanged as error:
            if self._built_here:
                raise ReadModelReplaced(self.projection.name) from error
            raise
        except Fenced as error:
            log.warning("%s", error)
            return Progress(held=False)
        except PASSING as error:
            log.warning("projection %s: %s; trying again", self.projection.name, one_line(error))
            self._trouble = error
            self._away = True
            self._disconnect()
        return None

    def _back(self) -> None:
        if self._away:
            self._away = False
            log.info("projection %s: connected again", self.projection.name)

    def _note(self, progress: Progress) -> None:
        self._advanced = True
        self._back()
        if self._on_page is not None:
            self._on_page(progress)

    def _failed(self, error: ProjectionFailed) -> None:
        assert self._model is not None
        self._trouble = error
        attempts = self._model.note_failure(error.event)
        delay = self.projection.on_failure.delay(attempts)
        if delay is None:
            raise error
        cause = error if log.isEnabledFor(logging.DEBUG) else None
        log.warning("%s. Attempt %d, next in %.1f s", error, attempts, delay, exc_info=cause)
        self._stopping.wait(delay)

    def _connected(self, *, rebuilding: bool = False) -> tuple[Engine, ReadModelStore]:
        if self._engine is None or self._model is None:
            reader, writer, loader = (self._connect(role) for role in ("read", "write", "load"))
            with contextlib.suppress(*([ReadModelChanged] if rebuilding else [])):
                prepare(writer, self.projection)
                self._built_here = True
            log_reader = LogReader(reader, log=self.projection.log, registry=self.projection.registry)
            self._model = ReadModelStore(self.projection, writer, loader, log_reader, owner=self.owner)
            self._engine = Engine(
                self.projection,
                log_reader,
                self._model,
                page=self._page,
                on_page=self._note,
                backlog=throughput,
            )
        return self._engine, self._model

    def _connect(self, role: str) -> psycopg.Connection[Any]:
        connection = connected(
            self._url,
            application=f"onefold {self.projection.name} {role}",
            # With several hosts in the URL all connections must be to the one that can be written.
            target_session_attrs="read-write",
        )
        self._connections.append(connection)
        if role == "read":
            configure(connection)
        else:
            register(connection)
        return connection

    def _disconnect(self) -> None:
        self._engine = None
        self._model = None
        while self._connections:
            with contextlib.suppress(psycopg.Error):
                self._connections.pop().close()

    @contextlib.contextmanager
    def _closing(self) -> Any:
        try:
            yield
        finally:
            if self._model is not None:
                with contextlib.suppress(psycopg.Error):
                    self._model.release()
            self._disconnect()

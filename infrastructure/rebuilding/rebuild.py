"""A rebuild: the next version of a read model, beside the one that serves, from the first event to the swap."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier

from ...projections.bulk import ADVICE
from ...projections.engine import PAGE, Engine, Progress
from ...projections.errors import ProjectionFailed
from ...projections.projection import AnyProjection, Projection
from ..connection import connected
from ..postgres.columns import register
from ..postgres.errors import ReadModelChanged
from ..postgres.pool import configure
from ..postgres.reader import LogReader
from ..postgres.readmodel import MOVE, ReadModelStore, prepare, worker_name
from ..postgres.sql import statement
from ..postgres.table import READ, Table
from ..throughput import throughput
from .belongings import NEXT, carry_over, exists, require_movable
from .errors import RebuildRefused, RebuildRunning
from .loading import Loader, Part, Token, after_category
from .report import Report, Step
from .survey import Survey, horizon, survey
from .swapping import NEXT_SEGMENT, Swapper
from .verifying import Extent, Verifier

log = logging.getLogger("onefold.rebuild")

OPEN_APPENDS = 30.0
"""Seconds for which an append that is open in front of the log's end is waited for."""

PATIENCE = 600.0
"""Seconds for which a table that is in use is waited for, unless told otherwise."""

FOLLOWED = "SELECT position FROM onefold.checkpoints WHERE projection = %s AND segment = -1"


class Rebuild:
    """Builds the next version of one projection beside the serving one, and puts it in its place.

    The log is loaded in bulk up to a position that is settled, then followed in its order; `verify` says how much is
    compared with rows that are folded anew. `resume` goes on where a rebuild by the same code was broken off.
    `upto` stops at that position and leaves the version in schema read_next. `patience` is the time in seconds for
    which a serving table that others use is waited for. `on_step` is called with each step, from any thread.
    """

    def __init__(
        self,
        url: str,
        projection: AnyProjection,
        *,
        verify: Extent = "sample",
        resume: bool = False,
        upto: int | None = None,
        patience: float = PATIENCE,
        page: int = PAGE,
        on_step: Callable[[Step], None] | None = None,
    ) -> None:
        if not isinstance(projection, Projection):
            raise RebuildRefused(
                f"projection {projection.name}: expected a projection of rows, found a {type(projection).__name__}: "
                "its own statements name the tables that they write, so they cannot be led to others beside them; "
                f"rebuild it in place with `onefold rebuild {projection.name} --in-place`"
            )
        self.projection: Projection[Any] = projection
        self._url = url
        self._extent: Extent = verify
        self._resume = resume
        self._upto = upto
        self._patience = patience
        self._page = page
        self._on_step = on_step
        self._owner = worker_name()
        self._stopping = threading.Event()
        self._connections: list[psycopg.Connection[Any]] = []
        self._report = Report(projection.name)
        self._step = Step("load")
        self._mutex = threading.Lock()

    def stop(self) -> None:
        """Make the rebuild end after the page in hand; `Rebuild(resume=True)` goes on from there."""
        self._stopping.set()

    def run(self) -> Report:
        """Build, verify and swap; return what was done.

        Raises `RebuildBlocked` and `RebuildRunning` before anything was done, `ProjectionFailed` at an event that
        cannot be applied, `VerificationFailed`, `SwapBlocked`; `Fenced` when another rebuild took over. Whatever
        it raises, the version that serves is as it was.
        """
        self._report = Report(self.projection.name)
        try:
            self._open()
            self._start()
            try:
                self._build()
            except ProjectionFailed as error:
                # The engine, which follows the log, says what holds for a serving version.
                failed = ProjectionFailed(error.projection, error.event, advice=ADVICE)
                self._note(str(failed))
                raise failed from error.__cause__
            return self._report
        finally:
            self._close()

    def _build(self) -> None:
        phase = self._phase()
        if phase == "load" and self._timed("load", self._load):
            phase = "finish"
        if phase == "finish" and not self._stopping.is_set():
            self._timed("finish", self._finish)
            phase = "follow"
        if phase != "follow" or self._stopping.is_set():
            return
        if self._upto is None:
            self._timed("follow", self._follow)
        self._report.verified = self._timed("verify", self._verify)
        if self._upto is None and not self._stopping.is_set():
            self._report.swapped = self._timed("swap", self._swap)
        self._sum_up()

    def _open(self) -> None:
        self._control = self._connect("control")
        self._writer = self._connect("write")
        self._loader = self._connect("load")
        self._reader = self._connect("read")
        configure(self._reader)
        register(self._writer)
        register(self._loader)
        self._log_reader = LogReader(self._reader, log=self.projection.log, registry=self.projection.registry)
        self._model = ReadModelStore(
            self.projection,
            self._writer,
            self._loader,
            self._log_reader,
            owner=self._owner,
            segment=NEXT_SEGMENT,
            schema=NEXT,
        )
        self._engine = Engine(
            self.projection,
            self._log_reader,
            self._model,
            page=self._page,
            on_page=self._followed,
            backlog=throughput,
        )

    def _start(self) -> None:
        """Take the rebuild's lock, and begin anew or go on."""
        who = {"projection": self.projection.name}
        take_lock(self._control, self.projection.name)
        with contextlib.suppress(ReadModelChanged):
            prepare(self._writer, self.projection)
        require_movable(self._control, self.projection)
        state = self._state()
        self._report.resumed = (
            self._resume
            and state is not None
            and state[0] == self.projection.fingerprint()
            and exists(self._control, NEXT, self.projection.name)
        )
        with self._writer.transaction():
            if not self._report.resumed:
                discard(self._writer, self.projection.name)
                Table(self.projection, NEXT).create(self._writer, keyed=False)
                self._writer.execute(
                    statement("rebuild_begin"), {**who, "fingerprint": self.projection.fingerprint()}
                )
            claimed = self._writer.execute(
                statement("rebuild_claim"),
                {
                    **who,
                    "log": self.projection.log,
                    "fingerprint": self.projection.fingerprint(),
                    "owner": self._owner,
                    "lease": self.projection.lease,
                },
            ).fetchone()
        assert claimed is not None
        self._token = Token(self._owner, claimed[0])

    def _load(self) -> bool:
        found = self._survey()
        loader = Loader(
            self.projection,
            self._reader,
            self._writer,
            self._token,
            page=self._page,
            count=self._count,
            stop=self._stopping.is_set,
        )
        self._show(Step("load", self._loaded(), found.events))
        with throughput():
            if found.category is None:
                self._writer.execute(SQL("TRUNCATE {}").format(loader.table.name))
                reached, full = loader.load_keys(self._log_reader, found.upto)
                if full:
                    log.info(
                        "projection %s: more rows than are folded in memory; going on page by page",
                        self.projection.name,
                    )
            else:
                reached = found.upto
                for part in self._parts():
                    if not part.done and not loader.load_streams(part, found.upto):
                        return False
        self._report.applied = self._step.done
        if self._stopping.is_set():
            return False
        self._set_phase("finish", reached)
        return True

    def _survey(self) -> Survey:
        """Look over the log, or take what the rebuild that is resumed has found: its parts hold up to its position."""
        state = self._state()
        parts = self._parts()
        if state is not None and parts:
            return Survey(state[2], state[3], "")
        upto = horizon(self._reader, self.projection.log, patience=OPEN_APPENDS, stop=self._stopping.is_set)
        if self._upto is not None:
            if self._upto > upto:
                raise RebuildRefused(
                    f"projection {self.projection.name}: expected a position up to {upto}, the end of what is settled "
                    f"in log {self.projection.log}, found {self._upto}"
                )
            upto = self._upto
        found = survey(self._reader, self.projection, upto)
        who = {"projection": self.projection.name}
        with self._writer.transaction():
            self._writer.execute(statement("rebuild_loading"), {**who, "upto": upto, "total": found.events})
            if found.category is not None:
                bounds = {
                    "from_stream": f"{found.category}/",
                    "before_stream": after_category(found.category),
                }
                self._writer.execute(statement("rebuild_make_part"), {**who, **bounds, "part": 0})
        return found

    def _parts(self) -> list[Part]:
        found = self._control.execute(statement("rebuild_parts"), {"projection": self.projection.name})
        return [Part(*values) for values in found.fetchall()]

    def _finish(self) -> None:
        """Make what the bulk did without: the primary key, and what others have put on the serving table."""
        self._show(Step("finish"))
        state = self._state()
        assert state is not None
        upto = state[2]
        with self._writer.transaction():
            Table(self.projection, NEXT).add_key(self._writer)
            self._report.left_behind = tuple(carry_over(self._writer, self.projection))
            values = (self.projection.name, NEXT_SEGMENT, 0, self._token.number, upto, self.projection.lease)
            self._writer.execute(MOVE, values)
            self._set_phase("follow", upto)
        table = Identifier(NEXT, self.projection.name)
        self._writer.execute(SQL("VACUUM (ANALYZE) {}").format(table))

    def _follow(self) -> None:
        self._show(Step("follow"))
        deadline = time.monotonic() + OPEN_APPENDS
        while self._catch_up().waiting and not self._stopping.is_set() and time.monotonic() < deadline:
            time.sleep(0.02)

    def _catch_up(self) -> Progress:
        progress = self._engine.run(self._stopping.is_set)
        self._report.applied += progress.applied
        return progress

    def _followed(self, progress: Progress) -> None:
        self._show(Step("follow", progress.read))

    def _verify(self) -> int:
        found = self._position()
        if self._extent == "none":
            return 0
        category = survey(self._reader, self.projection, found).category
        self._show(Step("verify"))
        verifier = Verifier(
            self.projection,
            self._reader,
            self._loader,
            found,
            category,
            page=self._page,
            count=self._count,
        )
        return verifier.verify(self._extent)

    def _swap(self) -> bool:
        self._show(Step("swap"))

        def catch_up() -> int:
            self._catch_up()
            return self._position()

        def waiting(holders: list[str]) -> None:
            if holders:
                log.info(
                    "projection %s: the new version is ready, and waits for %s",
                    self.projection.name,
                    "; ".join(holders),
                )

        require_movable(self._control, self.projection)
        swapper = Swapper(self.projection, self._control, self._owner, stop=self._stopping.is_set)
        return swapper.swap(NEXT_SEGMENT, catch_up, patience=self._patience, waiting=waiting)

    def _sum_up(self) -> None:
        schema = READ if self._report.swapped else NEXT
        self._report.rows = Table(self.projection, schema).count(self._loader)
        segment = 0 if self._report.swapped else NEXT_SEGMENT
        found = self._control.execute(
            "SELECT position FROM onefold.checkpoints WHERE projection = %s AND segment = %s",
            (self.projection.name, segment),
        ).fetchone()
        self._report.position = 0 if found is None else found[0]

    def _position(self) -> int:
        found = self._control.execute(FOLLOWED, (self.projection.name,)).fetchone()
        return 0 if found is None else int(found[0])

    def _state(self) -> Any:
        return self._control.execute(
            statement("rebuild_state"), {"projection": self.projection.name}
        ).fetchone()

    def _phase(self) -> str:
        state = self._state()
        assert state is not None
        return str(state[1])

    def _loaded(self) -> int:
        found = self._control.execute(
            statement("rebuild_loaded"), {"projection": self.projection.name}
        ).fetchone()
        return 0 if found is None else int(found[0])

    def _set_phase(self, phase: str, upto: int) -> None:
        values = {"projection": self.projection.name, "phase": phase, "upto": upto}
        self._writer.execute(statement("rebuild_phase"), values)

    def _note(self, failure: str) -> None:
        with contextlib.suppress(psycopg.Error):
            values = {"projection": self.projection.name, "failure": failure.replace("\x00", "\\x00")}
            self._control.execute(statement("rebuild_fail"), values)

    def _timed(self, phase: str, work: Callable[[], Any]) -> Any:
        started = time.monotonic()
        try:
            return work()
        finally:
            self._report.seconds[phase] = time.monotonic() - started

    def _count(self, events: int) -> None:
        with self._mutex:
            step = self._step
            self._show(Step(step.phase, step.done + events, step.total))

    def _show(self, step: Step) -> None:
        self._step = step
        if self._on_step is not None:
            self._on_step(step)

    def _connect(self, role: str) -> psycopg.Connection[Any]:
        connection = connected(
            self._url,
            application=f"onefold rebuild {self.projection.name} {role}",
            target_session_attrs="read-write",
        )
        self._connections.append(connection)
        return connection

    def _close(self) -> None:
        while self._connections:
            with contextlib.suppress(psycopg.Error):
                self._connections.pop().close()


def discard(connection: psycopg.Connection[Any], name: str) -> None:
    """Drop what there is of a next version, in the transaction that is open on the connection."""
    connection.execute(SQL("DROP TABLE IF EXISTS {}").format(Identifier(NEXT, name)))
    connection.execute(statement("rebuild_discard"), {"projection": name})
    connection.execute(statement("rebuild_discard_checkpoint"), {"projection": name})


def take_lock(connection: psycopg.Connection[Any], name: str) -> None:
    """Take the lock that one rebuild of a projection holds at a time, until the connection is closed.

    Raises `RebuildRunning` when another one has it.
    """
    who = {"projection": name}
    locked = connection.execute(statement("rebuild_lock"), who).fetchone()
    if locked is None or not locked[0]:
        found = connection.execute(statement("rebuild_lock_holders"), who).fetchall()
        raise RebuildRunning(name, [pid for (pid,) in found])

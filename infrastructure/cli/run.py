"""`onefold run`: workers that keep projections up with their log."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Annotated, Any, Self

import psycopg
import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.logging import RichHandler
from rich.text import Text

from ...projections.app import App
from ...projections.engine import PAGE
from ..connection import connected, one_line
from ..runner import Run, Runner
from ..status import status as status_of
from .application import SHOP, load_app
from .database import writable
from .options import Application, AsJson
from .output import aside, cell, plain, report, sign, table, write_json
from .problems import PROBLEMS, WrongUse
from .status import overview

TICK = 0.05
SHOW_EVERY = 1.0
INTERRUPTED = 130
MOST = 1_000_000
"""Events of the largest page; all of a page is in memory."""

log = logging.getLogger("onefold.run")


def run(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROJECTIONS", help="Projections to run; all of the application when left out."
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Apply what is in the log now, and end.")] = False,
    page: Annotated[
        int,
        typer.Option(
            "--page", min=1, max=MOST, metavar="EVENTS", help="Events of one transaction in a backlog."
        ),
    ] = PAGE,
    stop_on_eof: Annotated[
        bool,
        typer.Option(
            "--stop-on-eof",
            help="Stop when standard input ends, and so with the program that wrote to it.",
        ),
    ] = False,
    app: Application = SHOP,
    json: AsJson = False,
) -> None:
    """Run projections until told to stop (Ctrl-C, SIGTERM), each in a thread of its own.

    Any number of these may run: one works on a projection, the others stand by and take over within seconds. A
    projection that fails ends alone; the others go on. One that needs a rebuild is taken up again after it. Exits
    with 1 when one has failed.
    """
    application = load_app(app)
    chosen = [application.projection(name) for name in dict.fromkeys(names or ())] or application.projections
    if not chosen:
        raise WrongUse(f"application {app} has no projections to run")
    console = aside()
    debug = bool(context.obj)
    with _logging(console, debug=debug), writable() as url, _stopping(stop_on_eof) as request:
        runner = Runner(url, chosen, page=page, on_end=_teller(once=once, debug=debug))
        part = App(aggregates=application.aggregates, projections=chosen)
        # What is loaded by now stays: the collector need not look at it again.
        gc.freeze()
        log.info("running %s", ", ".join(projection.name for projection in chosen))
        runner.start(once=once)
        try:
            _attend(runner, request, console, None if once or json else _Board(url, part, console))
        finally:
            if request.made:
                log.info("asked to stop: finishing the page in hand")
            runner.stop()
            runs = runner.join()
        _take_positions(runs, url, part)
    if json:
        write_json({"projections": [_document(each, once) for each in runs]})
    else:
        _show(report(), runs, once)
    if not all(_good(each, once) for each in runs):
        raise typer.Exit(PROBLEMS)


class _Request:
    """Whether this process was asked to stop; a plain flag, because signal handlers must not take locks."""

    def __init__(self) -> None:
        self.made = False

    def make(self, *_: object) -> None:
        if self.made:
            os._exit(INTERRUPTED)
        self.made = True


@contextmanager
def _stopping(stop_on_eof: bool) -> Iterator[_Request]:
    request = _Request()

    def handle(_number: int, _frame: FrameType | None) -> None:
        request.make()

    before = [(number, signal.signal(number, handle)) for number in (signal.SIGINT, signal.SIGTERM)]
    if stop_on_eof:
        threading.Thread(target=_await_eof, args=(request,), daemon=True).start()
    try:
        yield request
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _await_eof(request: _Request) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    request.made = True


def _attend(runner: Runner, request: _Request, console: Console, board: _Board | None) -> None:
    if board is None or not console.is_terminal:
        while runner.going and not request.made:
            time.sleep(TICK)
        return
    with board, Live(board.look(), console=console, transient=True, auto_refresh=False) as live:
        due = time.monotonic() + SHOW_EVERY
        while runner.going and not request.made:
            time.sleep(TICK)
            if time.monotonic() >= due:
                live.update(board.look(), refresh=True)
                due = time.monotonic() + SHOW_EVERY


class _Board:
    """What a terminal shows while projections run: the status, and how to stop."""

    def __init__(self, url: str, app: App, console: Console) -> None:
        self._console = console
        self._url = url
        self._app = app
        self._connection: psycopg.Connection[Any] | None = None

    def look(self) -> RenderableType:
        """Return the present status, or what is wrong with the connection."""
        try:
            if self._connection is None or self._connection.broken:
                self._connection = connected(self._url)
            shown = overview(self._console, status_of(self._connection, self._app))
        except psycopg.Error as error:
            shown = Text(f"the database does not answer: {one_line(error)}", "yellow")
        return Group(shown, Text("Ctrl-C finishes the page in hand and stops", "dim"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()


@contextmanager
def _logging(console: Console, *, debug: bool) -> Iterator[None]:
    handler: logging.Handler
    if console.is_terminal:
        handler = RichHandler(console=console, show_path=False, markup=False, log_time_format="%H:%M:%S")
    else:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    root = logging.getLogger("onefold")
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG if debug else logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


def _take_positions(runs: list[Run], url: str, part: App) -> None:
    """Where the projections stand, also those that found nothing to do."""
    with suppress(psycopg.Error), connected(url) as connection:
        standing = {each.name: each.position for each in status_of(connection, part).projections}
        for each in runs:
            each.position = standing[each.projection]


def _teller(*, once: bool, debug: bool) -> Callable[[Run], None] | None:
    """What to do when a run has ended: a single run tells its failures in its report, and only there."""
    if once and not debug:
        return None

    def tell(ended: Run) -> None:
        # A run that waits for a rebuild has said so already.
        if ended.failure is not None and not ended.awaits_rebuild:
            log.error("%s", ended.failure, exc_info=ended.error if debug else None)

    return tell


def _good(each: Run, once: bool) -> bool:
    return each.caught_up if once else each.failure is None


def _document(each: Run, once: bool) -> dict[str, Any]:
    failed = each.failed_event
    return {
        "projection": each.projection,
        "position": each.position,
        "applied": each.applied,
        "duplicates": each.duplicates,
        "caught_up": each.caught_up if once else None,
        "failure": each.failure,
        "failed_event": None if failed is None else failed._asdict(),
    }


def _show(console: Console, runs: list[Run], once: bool) -> None:
    rows = table("projection", "position", "applied", "outcome", right=("position", "applied"))
    for each in runs:
        rows.add_row(each.projection, cell(each.position), cell(each.applied), _outcome(each, once))
    console.print(rows)
    for each in runs:
        if each.failure is not None:
            console.print(sign(console, False), plain(each.failure))


def _outcome(each: Run, once: bool) -> Text:
    if each.awaits_rebuild:
        return Text("needs rebuild", "bold yellow")
    if each.failure is not None:
        return Text("failed", "bold red")
    if not once:
        return Text("stopped", "green")
    if not each.held:
        return Text("held by another worker", "yellow")
    if each.waiting:
        return Text("waits for an open append; see `onefold status`", "yellow")
    return Text("caught up", "green")

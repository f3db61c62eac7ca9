"""Attendance: what a command has in common that works until it is told to stop: signals, log, and a live board."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

import psycopg
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.logging import RichHandler
from rich.text import Text

from ..connection import connected, one_line
from .output import plain

TICK = 0.05
SHOW_EVERY = 1.0
INTERRUPTED = 130


class Request:
    """Whether this process was asked to stop; a plain flag, because signal handlers must not take locks."""

    def __init__(self) -> None:
        self.made = False

    def make(self, *_: object) -> None:
        """Ask it to stop; the second time ends the process at once."""
        if self.made:
            os._exit(INTERRUPTED)
        self.made = True


@contextmanager
def stopping(*, on_eof: bool = False) -> Iterator[Request]:
    """Yield what SIGINT and SIGTERM ask for, and with `on_eof` the end of standard input."""
    request = Request()

    def handle(_number: int, _frame: FrameType | None) -> None:
        request.make()

    before = [(number, signal.signal(number, handle)) for number in (signal.SIGINT, signal.SIGTERM)]
    if on_eof:
        threading.Thread(target=_await_eof, args=(request,), daemon=True).start()
    try:
        yield request
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _await_eof(request: Request) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    request.made = True


class _Lines(logging.Formatter):
    """Shows a record in one line, in which nothing can change the terminal; a traceback below it stays as it is."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - so the library calls it
        return plain(super().formatMessage(record))


@contextmanager
def log_shown(console: Console, *, debug: bool, quiet: str | None = None) -> Iterator[None]:
    """Show the product's log on standard error from INFO on, or from DEBUG on.

    Of the logger that `quiet` names only warnings are shown, unless it is to be DEBUG.
    """
    handler: logging.Handler
    if console.is_terminal:
        handler = RichHandler(console=console, show_path=False, markup=False, log_time_format="%H:%M:%S")
        handler.setFormatter(_Lines("%(message)s"))
    else:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_Lines("%(asctime)s %(levelname)s %(message)s"))
    root = logging.getLogger("onefold")
    levels = [(root, logging.DEBUG if debug else logging.INFO)]
    if quiet is not None and not debug:
        levels.append((logging.getLogger(quiet), logging.WARNING))
    before = [(logger, logger.level) for logger, _ in levels]
    root.addHandler(handler)
    for logger, level in levels:
        logger.setLevel(level)
    try:
        yield
    finally:
        root.removeHandler(handler)
        for logger, level in before:
            logger.setLevel(level)


class Board:
    """What a terminal shows while a command works: what `look` sees in the database, and how to stop."""

    def __init__(
        self, url: str, look: Callable[[psycopg.Connection[Any]], RenderableType], hint: str
    ) -> None:
        self._url = url
        self._look = look
        self._hint = hint
        self._connection: psycopg.Connection[Any] | None = None

    def look(self) -> RenderableType:
        """Return the present view, or what is wrong with the connection."""
        try:
            if self._connection is None or self._connection.broken:
                self._connection = connected(self._url)
            shown = self._look(self._connection)
        except psycopg.Error as error:
            shown = Text(f"the database does not answer: {one_line(error)}", "yellow")
        return Group(shown, Text(self._hint, "dim"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()


def attend(going: Callable[[], bool], request: Request, console: Console, board: Board | None) -> None:
    """Wait until the work has ended or is asked to; meanwhile show the board, if the console is a terminal."""
    if board is None or not console.is_terminal:
        while going() and not request.made:
            time.sleep(TICK)
        return
    with board, Live(board.look(), console=console, transient=True, auto_refresh=False) as live:
        due = time.monotonic() + SHOW_EVERY
        while going() and not request.made:
            time.sleep(TICK)
            if time.monotonic() >= due:
                live.update(board.look(), refresh=True)
                due = time.monotonic() + SHOW_EVERY

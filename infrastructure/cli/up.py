"""`onefold up`: all parts of an installation in one supervised tree of processes."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ..settings import DATABASE_URL
from ..supervision.configuration import FILE, Configuration, Member, load, members
from ..supervision.health import database_trouble, serving
from ..supervision.tree import Tree
from .attendance import log_shown, stopping
from .database import writable
from .options import AsJson
from .output import aside, plain, report, table, write_json
from .problems import PROBLEMS, USAGE

log = logging.getLogger("onefold.up")


def up(
    context: typer.Context,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", metavar="FILE", help=f"The configuration; {FILE} when left out."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Tell what would run, and end; nothing is started.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Run projections, consumers, relays, effects and process managers as one tree of processes.

    What runs is said in onefold.toml, or in variables ONEFOLD_UP_*. A process that ends is started again, after waits
    that grow. With `[health]`, /live and /ready are answered. When told to stop (Ctrl-C, SIGTERM) all end what is in
    hand; one that is not done after the grace time is killed, and this ends with 1.
    """
    configuration = load(file, os.environ)
    chosen = members(configuration)
    if check:
        _list(chosen, json)
        return
    with log_shown(aside(), debug=bool(context.obj)), writable() as url, stopping() as request:
        tree = Tree(chosen, _Teller().tell, {DATABASE_URL: url})
        with _health(configuration, url, tree):
            try:
                tree.run(lambda: request.made)
            finally:
                if request.made:
                    log.info("asked to stop: telling all to end what is in hand")
                late = tree.end(configuration.grace)
    if tree.wrong is not None:
        name, said = tree.wrong.member.name, tree.wrong.said
        sys.stderr.write(f"onefold: {name} cannot work as it is configured, all are stopped: {said}\n")
        raise typer.Exit(USAGE)
    if json:
        write_json({"killed": late})
    if late:
        sys.stderr.write(
            f"onefold: expected all to end within {configuration.grace:g} s, found {', '.join(late)} still at work and "
            "killed it; what was in hand is done again. Give more time with grace = SECONDS\n"
        )
        raise typer.Exit(PROBLEMS)


class _Teller:
    """Writes the lines of all processes, each with the name of its own, one at a time."""

    def __init__(self) -> None:
        self._turn = threading.Lock()

    def tell(self, name: str, line: str) -> None:
        with self._turn:
            sys.stdout.write(f"{name}: {plain(line)}\n")
            sys.stdout.flush()


@contextmanager
def _health(configuration: Configuration, url: str, tree: Tree) -> Iterator[None]:
    health = configuration.health
    if health.port is None:
        yield
        return

    def troubles() -> dict[str, str]:
        database = database_trouble(url)
        return {**({} if database is None else {"database": database}), **tree.troubles()}

    with serving(health.host, health.port, troubles) as port:
        log.info("health is served on http://%s:%d", health.host, port)
        yield


def _list(chosen: Sequence[Member], json: bool) -> None:
    if json:
        write_json([{"name": each.name, "runs": each.shown, "every": each.every} for each in chosen])
        return
    rows = table("name", "runs")
    for each in chosen:
        often = "" if each.every is None else f" (every {each.every:g} s)"
        rows.add_row(plain(each.name), plain(each.shown) + often)
    report().print(rows)

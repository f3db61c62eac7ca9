"""`onefold run`: workers that keep projections up with their log."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import psycopg
import typer
from rich.console import Console
from rich.text import Text

from ...projections.app import App
from ...projections.engine import PAGE
from ..connection import connected
from ..runner import Run, Runner
from ..status import status as status_of
from .application import SHOP, load_app
from .attendance import Board, attend, log_shown, stopping
from .database import writable
from .options import LOCAL, Application, AsJson, MetricsHost, MetricsPort
from .output import aside, cell, plain, report, sign, table, write_json
from .problems import PROBLEMS, WrongUse
from .status import overview

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
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = LOCAL,
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
    part = App(aggregates=application.aggregates, projections=chosen)
    with (
        log_shown(console, debug=debug),
        writable() as url,
        stopping(on_eof=stop_on_eof) as request,
        _metrics(metrics_host, metrics_port, url, part),
    ):
        runner = Runner(url, chosen, page=page, on_end=_teller(once=once, debug=debug))
        # What is loaded by now stays: the collector need not look at it again.
        gc.freeze()
        log.info("running %s", ", ".join(projection.name for projection in chosen))
        runner.start(once=once)
        try:
            attend(
                lambda: runner.going, request, console, None if once or json else _board(url, part, console)
            )
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


def _board(url: str, part: App, console: Console) -> Board:
    return Board(
        url,
        lambda connection: overview(console, status_of(connection, part)),
        "Ctrl-C finishes the page in hand and stops",
    )


@contextmanager
def _metrics(host: str, port: int | None, url: str, part: App) -> Iterator[None]:
    if port is None:
        yield
        return
    from ..metrics import ProjectionMetrics, serve

    with ProjectionMetrics(part, url) as metrics, serve(port, metrics, host=host) as server:
        log.info("metrics at %s", server.url)
        yield


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

"""`onefold process`: process managers at work on the log and their timeouts."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import psycopg
import typer
from rich.console import Console, Group, RenderableType

from ...projections.guards import FAILED_FOR_GOOD, Outcome
from ...projections.process import Process
from ...projections.retention import duration
from ..announcing import announcer
from ..consumers import consumers_status
from ..consuming.consumption import GRACE
from ..consuming.workers import Workers
from ..processes.running import BATCH, consumption
from ..processes.status import process_status
from .application import SHOP, load_app
from .attendance import Board, attend, log_shown, stopping
from .consume import MOST_WORKERS, SLACK
from .database import writable
from .options import LOCAL, Application, AsJson, MetricsHost, MetricsPort
from .output import aside, cell, counted, plain, report, sign, table, write_json
from .problems import PROBLEMS, WrongUse
from .status import overview_of_consumers
from .status_of_processes import overview_of_processes

MOST = 1_000
"""Messages of the largest transaction."""

log = logging.getLogger("onefold.process")


def process(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROCESSES", help="Process managers to run; all of the application when left out."
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Run all of the application, as without names.")
    ] = False,
    once: Annotated[
        bool, typer.Option("--once", help="End at the log's present end, when no timeout is due.")
    ] = False,
    batch: Annotated[
        int,
        typer.Option(
            "--batch", min=1, max=MOST, metavar="MESSAGES", help="Messages in one transaction at most."
        ),
    ] = BATCH,
    lanes: Annotated[
        int,
        typer.Option(
            "--lanes",
            min=1,
            max=MOST_WORKERS,
            metavar="N",
            help="Threads of a process manager, each with a connection, among which instances are divided.",
        ),
    ] = 1,
    grace: Annotated[
        float,
        typer.Option(
            "--grace", min=0, metavar="SECONDS", help="Time to end what is in hand when told to stop."
        ),
    ] = GRACE,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = LOCAL,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log duplicates and other messages without effect, too.")
    ] = False,
    app: Application = SHOP,
    json: AsJson = False,
) -> None:
    """Run process managers until told to stop (Ctrl-C, SIGTERM): events of the log and timeouts, each once.

    Any number of these may run: one works on a process manager, the others stand by and take over within seconds. When
    first run, a process manager begins where its declaration says, at the head of the log or at its start. What is not
    done within --grace when it is told to stop is rolled back and done later, and the exit code is 1; with --once,
    also when messages became dead letters.
    """
    application = load_app(app)
    chosen = [application.process(name) for name in dict.fromkeys(names or ())] or list(application.processes)
    if every and names:
        raise WrongUse(f"expected either --all or names, found --all and {', '.join(names)}; leave one out")
    if not chosen:
        raise WrongUse(f"application {app} has no process managers to run")
    console, debug = aside(), bool(context.obj)
    quiet = None if verbose else "onefold.consumer"
    with log_shown(console, debug=debug, quiet=quiet), writable() as url, stopping() as request:
        team = Workers(
            [
                consumption(
                    url,
                    each,
                    announcer=announcer(application),
                    once=once,
                    batch=batch,
                    lanes=lanes,
                    grace=grace,
                )
                for each in chosen
            ]
        )
        with _metrics(metrics_host, metrics_port, url, team):
            # What is loaded by now stays: the collector need not look at it again.
            gc.freeze()
            log.info("running %s", ", ".join(each.name for each in chosen))
            team.start()
            attend(lambda: team.going, request, console, None if once or json else _board(url, chosen))
            if request.made:
                log.info("asked to stop: ending what is in hand")
            team.stop()
            ended = team.join(grace + SLACK)
    late = not ended or team.interrupted
    if ended and team.error is not None:
        raise team.error
    if json:
        write_json(_document(team, chosen, late))
    else:
        _show(report(), team)
    if late:
        sys.stderr.write(
            f"onefold: expected the process managers to end within {duration(grace)}, found a message still in hand; "
            "its transaction is rolled back, and it is delivered again. Give it more time with --grace\n"
        )
    if not ended:
        # A method hangs; nothing would end its thread.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(PROBLEMS)
    if late or (once and any(team.outcomes[outcome] for outcome in FAILED_FOR_GOOD)):
        raise typer.Exit(PROBLEMS)


@contextmanager
def _metrics(host: str, port: int | None, url: str, team: Workers) -> Iterator[None]:
    if port is None:
        yield
        return
    from ..metrics import ConsumerMetrics, serve

    with ConsumerMetrics(team.consumptions, url) as metrics, serve(port, metrics, host=host) as server:
        log.info("metrics at %s", server.url)
        yield


def _board(url: str, chosen: Sequence[Process]) -> Board:
    console = aside()
    names = [each.name for each in chosen]

    def look(connection: psycopg.Connection[Any]) -> RenderableType:
        return Group(
            overview_of_consumers(console, consumers_status(connection, names)),
            overview_of_processes(console, process_status(connection, names)),
        )

    return Board(url, look, "Ctrl-C ends what is in hand and stops")


def _document(team: Workers, chosen: Sequence[Process], late: bool) -> dict[str, Any]:
    return {
        "processes": [
            {
                "process": each.name,
                "received": work.intake.received,
                "outcomes": {outcome.value: work.observed.outcomes.get(outcome, 0) for outcome in Outcome},
            }
            for each, work in zip(chosen, team.consumptions, strict=True)
        ],
        "interrupted": late,
    }


def _show(console: Console, team: Workers) -> None:
    rows = table("process", "outcome", "messages", right=("messages",))
    for work in team.consumptions:
        for outcome in Outcome:
            count = work.observed.outcomes.get(outcome, 0)
            if count or outcome is Outcome.APPLIED:
                rows.add_row(work.consumer.name, outcome.value, cell(count))
    console.print(rows)
    for work in team.consumptions:
        dead = sum(work.observed.outcomes.get(outcome, 0) for outcome in FAILED_FOR_GOOD)
        if dead:
            name = plain(work.consumer.name)
            console.print(
                sign(console, False),
                f"{counted(dead, 'dead letter')}; see `onefold dead-letters list --consumer {name}`",
            )

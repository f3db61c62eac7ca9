"""`onefold effects`: the calls to the world outside, made until told to stop."""

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
from rich.console import Console, RenderableType

from ...projections.effect import Effect
from ...projections.retention import duration
from ..effects.observed import BECAME
from ..effects.runner import EffectRunner
from ..effects.status import effects_status
from .application import SHOP, load_app
from .attendance import Board, attend, log_shown, stopping
from .database import writable
from .options import LOCAL, Application, AsJson, MetricsHost, MetricsPort
from .output import aside, cell, counted, report, sign, table, write_json
from .problems import PROBLEMS, WrongUse
from .status_of_effects import overview_of_effects

WORKERS = 4
MOST_WORKERS = 64
GRACE = 10.0

log = logging.getLogger("onefold.effects")


def effects(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="EFFECTS", help="Effects to make; all of the application when left out."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Make the calls that are due now, and end.")] = False,
    workers: Annotated[
        int,
        typer.Option("--workers", min=1, max=MOST_WORKERS, metavar="N", help="Calls made at the same time."),
    ] = WORKERS,
    grace: Annotated[
        float,
        typer.Option(
            "--grace", min=0, metavar="SECONDS", help="Time to end the calls in hand when told to stop."
        ),
    ] = GRACE,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = LOCAL,
    app: Application = SHOP,
    json: AsJson = False,
) -> None:
    """Make the calls of effects until told to stop (Ctrl-C, SIGTERM): requests, mails, files.

    Any number of these may run, on any number of machines. A call that fails, or whose process is killed, is made again
    with the same key, until it is given up and becomes a dead letter. When told to stop, the calls in hand are ended
    within --grace; what is not is made again once its lease has ended, and this ends with 1. With --once, also calls
    that became dead letters do.
    """
    application = load_app(app)
    chosen = [application.effect(name) for name in dict.fromkeys(names or ())] or list(application.effects)
    if not chosen:
        raise WrongUse(f"application {app} has no effects to make")
    console, debug = aside(), bool(context.obj)
    with log_shown(console, debug=debug), writable() as url, stopping() as request:
        runner = EffectRunner(url, chosen, workers=workers, once=once)
        with _metrics(metrics_host, metrics_port, url, runner):
            # What is loaded by now stays: the collector need not look at it again.
            gc.freeze()
            log.info("making %s", ", ".join(each.name for each in chosen))
            runner.start()
            attend(lambda: runner.going, request, console, None if once or json else _board(url, chosen))
            if request.made:
                log.info("asked to stop: ending the calls in hand")
                runner.stop()
            ended = runner.join(grace if request.made else None)
    if ended and runner.error is not None:
        raise runner.error
    if json:
        write_json(_document(runner, chosen, ended))
    else:
        _show(report(), runner, chosen)
    if not ended:
        sys.stderr.write(
            f"onefold: expected the calls in hand to end within {duration(grace)}, found {runner.in_hand} still being "
            "made; each is made again, with the same key, once its lease has ended. Give them more time with --grace\n"
        )
        # A call hangs; nothing would end its thread.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(PROBLEMS)
    if once and any(runner.observed.of(each.name)["dead"] for each in chosen):
        raise typer.Exit(PROBLEMS)


@contextmanager
def _metrics(host: str, port: int | None, url: str, runner: EffectRunner) -> Iterator[None]:
    if port is None:
        yield
        return
    from ..effects.metrics import EffectMetrics
    from ..metrics import serve

    with EffectMetrics(runner, url) as metrics, serve(port, metrics, host=host) as server:
        log.info("metrics at %s", server.url)
        yield


def _board(url: str, chosen: Sequence[Effect]) -> Board:
    console = aside()
    names = [each.name for each in chosen]

    def look(connection: psycopg.Connection[Any]) -> RenderableType:
        return overview_of_effects(console, effects_status(connection, names, others=False))

    return Board(url, look, "Ctrl-C ends the calls in hand and stops")


def _document(runner: EffectRunner, chosen: Sequence[Effect], ended: bool) -> dict[str, Any]:
    return {
        "effects": [{"effect": each.name, **runner.observed.of(each.name)} for each in chosen],
        "interrupted": not ended,
    }


def _show(console: Console, runner: EffectRunner, chosen: Sequence[Effect]) -> None:
    rows = table("effect", *BECAME, right=BECAME)
    for each in chosen:
        counts = runner.observed.of(each.name)
        rows.add_row(each.name, *(cell(counts[became]) for became in BECAME))
    console.print(rows)
    dead = sum(runner.observed.of(each.name)["dead"] for each in chosen)
    if dead:
        console.print(
            sign(console, False), f"{counted(dead, 'dead letter')}; see `onefold dead-letters list`"
        )

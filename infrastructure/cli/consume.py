"""`onefold consume`: a consumer at work on what a broker delivers."""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import psycopg
import typer
from rich.console import Console, RenderableType

from ...projections.consumer import Consumer
from ...projections.guards import FAILED_FOR_GOOD, Outcome
from ...projections.retention import duration
from ..announcing import announcer
from ..brokers import Subscription, subscribe
from ..brokers.options import shown
from ..consumers import consumers_status
from ..consuming.consumption import BATCH, GRACE, Consumption
from ..consuming.processor import LARGEST
from ..consuming.workers import Workers
from .application import SHOP, load_app
from .attendance import Board, attend, log_shown, stopping
from .database import writable
from .options import LOCAL, Application, AsJson, MetricsHost, MetricsPort
from .output import aside, cell, counted, plain, report, sign, table, write_json
from .problems import PROBLEMS, WrongUse
from .status import overview_of_consumers

if TYPE_CHECKING:
    from ..consuming.folding import Span

SLACK = 2.5
"""Seconds beyond the grace time in which connections are closed and leases given back."""

IDLE = 5.0
MOST_WORKERS = 64

log = logging.getLogger("onefold.consume")


def consume(
    context: typer.Context,
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="The broker: kafka:, amqp:, sqs:, pubsub:, redis: or file:, log: for the log of the database itself, "
            "or - for CloudEvents on standard input, one a line.",
        ),
    ],
    consumer: Annotated[
        str, typer.Option("--consumer", metavar="NAME", help="The consumer of the application.")
    ],
    once: Annotated[
        bool, typer.Option("--once", help="End when the broker has delivered nothing for a while (--idle).")
    ] = False,
    batch: Annotated[
        int,
        typer.Option(
            "--batch", min=1, max=LARGEST, metavar="MESSAGES", help="Messages in one transaction at most."
        ),
    ] = BATCH,
    workers: Annotated[
        int,
        typer.Option(
            "--workers", min=1, max=MOST_WORKERS, metavar="N", help="Workers side by side in this process."
        ),
    ] = 1,
    lanes: Annotated[
        int | None,
        typer.Option(
            "--lanes",
            min=1,
            max=MOST_WORKERS,
            metavar="N",
            help="Threads of a worker, each with a connection, among which sequences are divided; "
            "1 for a function and 2 for a fold when left out.",
        ),
    ] = None,
    buffer: Annotated[
        int | None,
        typer.Option(
            "--buffer",
            min=1,
            metavar="MESSAGES",
            help="Messages that a worker holds undone at most; 2,000 for a function and 10,000 for a fold when left "
            "out.",
        ),
    ] = None,
    grace: Annotated[
        float,
        typer.Option(
            "--grace", min=0, metavar="SECONDS", help="Time to end what is in hand when told to stop."
        ),
    ] = GRACE,
    idle: Annotated[
        float,
        typer.Option("--idle", min=0, metavar="SECONDS", help="With --once: how long nothing has to come."),
    ] = IDLE,
    hint: Annotated[
        str | None,
        typer.Option(
            "--hint", metavar="URL", help="A Redis that remembers keys, and saves questions to the database."
        ),
    ] = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = LOCAL,
    trace: Annotated[
        bool, typer.Option("--trace", help="Open a span of OpenTelemetry around each message.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log duplicates and other messages without effect, too.")
    ] = False,
    app: Application = SHOP,
    json: AsJson = False,
) -> None:
    """Consume messages until told to stop (Ctrl-C, SIGTERM), each with its effect in the database exactly once.

    Any number of these may run, on any number of machines. A message is acknowledged when its transaction is committed.
    When told to stop, the messages in hand are done or given back within --grace; what is not done by then is rolled
    back, delivered again later, and ends this with 1. With --once, also messages that became dead letters do.
    """
    application = load_app(app)
    chosen = application.consumer(consumer)
    if chosen.name in (each.name for each in application.processes):
        raise WrongUse(f"{chosen.name} is a process manager; run it with `onefold process {chosen.name}`")
    at_end = url.startswith(("-", "file:"))
    if at_end and workers > 1:
        raise WrongUse(
            f"expected one worker on a file, found {workers}: each would read all of it; leave out --workers"
        )
    span = _span(chosen.name, url) if trace else None
    console, debug = aside(), bool(context.obj)
    quiet = None if verbose else "onefold.consumer"
    with log_shown(console, debug=debug, quiet=quiet), writable() as database, stopping() as request:
        begun = _Beginning(chosen, url, workers, database)
        team = Workers(
            [
                Consumption(
                    database,
                    chosen,
                    url,
                    batch=batch,
                    lanes=lanes,
                    messages=buffer,
                    # A file ends by itself; a program that writes to standard input may take its time.
                    once=once and not at_end,
                    idle=idle,
                    grace=grace,
                    hint=hint,
                    span=span,
                    announcer=announcer(application),
                    subscription=begun.subscribe,
                )
                for _ in range(workers)
            ]
        )
        board = None if once or at_end or json else _board(database, chosen.name)
        with _metrics(metrics_host, metrics_port, database, team):
            # What is loaded by now stays: the collector need not look at it again.
            gc.freeze()
            team.start()
            attend(lambda: team.going, request, console, board)
            if request.made:
                log.info("asked to stop: ending what is in hand")
            team.stop()
            ended = team.join(grace + SLACK)
    late = not ended or team.interrupted
    if ended and team.error is not None:
        raise team.error
    if json:
        write_json(_document(team, chosen.name, url, late))
    else:
        _show(report(), team)
    if late:
        sys.stderr.write(
            f"onefold: expected consumer {chosen.name} to end within {duration(grace)}, found a message still in hand; "
            "its transaction is rolled back, and it is delivered again. Give it more time with --grace\n"
        )
    if not ended:
        # A handler hangs; nothing would end its threads.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(PROBLEMS)
    if late or ((once or at_end) and any(team.outcomes[outcome] for outcome in FAILED_FOR_GOOD)):
        raise typer.Exit(PROBLEMS)


class _Beginning:
    """Subscribes for each worker, and says so when the first has got through: URL and extra are right by then."""

    def __init__(self, consumer: Consumer, url: str, workers: int, database: str) -> None:
        self._consumer = consumer
        self._url = url
        self._workers = workers
        self._database = database
        self._said = threading.Event()

    def subscribe(self) -> Subscription:
        """Return a new subscription; raises as `brokers.subscribe` does."""
        consumer = self._consumer
        made = subscribe(self._url, consumer.name, database=self._database, types=consumer.types)
        if not self._said.is_set():
            self._said.set()
            log.info(
                "consuming %s by %s from %s",
                consumer.name,
                counted(self._workers, "worker"),
                shown(self._url),
            )
        return made


def _span(consumer: str, url: str) -> Span:
    from ..tracing import is_provided, spans

    made = spans(consumer, url)
    if not is_provided():
        raise WrongUse(
            "expected a provider of OpenTelemetry, to which --trace gives its spans, found none; set one when the "
            "application is imported, or start with opentelemetry-instrument"
        )
    return made


@contextmanager
def _metrics(host: str, port: int | None, database: str, team: Workers) -> Iterator[None]:
    if port is None:
        yield
        return
    from ..metrics import ConsumerMetrics, serve

    with ConsumerMetrics(team.consumptions, database) as metrics, serve(port, metrics, host=host) as server:
        log.info("metrics at %s", server.url)
        yield


def _board(database: str, name: str) -> Board:
    console = aside()

    def look(connection: psycopg.Connection[Any]) -> RenderableType:
        return overview_of_consumers(console, consumers_status(connection, [name]))

    return Board(database, look, "Ctrl-C ends the messages in hand and stops")


def _document(team: Workers, name: str, url: str, late: bool) -> dict[str, Any]:
    return {
        "consumer": name,
        "broker": shown(url),
        "workers": len(team.consumptions),
        "received": team.received,
        "outcomes": {outcome.value: count for outcome, count in team.outcomes.items()},
        "interrupted": late,
    }


def _show(console: Console, team: Workers) -> None:
    rows = table("outcome", "messages", right=("messages",))
    for outcome, count in team.outcomes.items():
        if count or outcome in (Outcome.APPLIED, Outcome.DUPLICATE):
            rows.add_row(outcome.value, cell(count))
    console.print(rows)
    dead = sum(team.outcomes[outcome] for outcome in FAILED_FOR_GOOD)
    name = plain(team.consumptions[0].consumer.name)
    if dead:
        console.print(
            sign(console, False),
            f"{counted(dead, 'dead letter')}; see `onefold dead-letters list --consumer {name}`",
        )
    if team.outcomes[Outcome.PARKED]:
        console.print(
            f"some messages came before their turn; `onefold parked list --consumer {name}` shows who still waits"
        )

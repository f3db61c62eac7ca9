"""`onefold relay`: what an application sends out, published to a broker."""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import psycopg
import typer
from rich.console import RenderableType

from ...domain.errors import DeclarationError
from ...projections.app import App
from ...projections.retention import duration
from ..brokers.options import shown
from ..connection import connected
from ..postgres.outbox import SLOTS
from ..relaying.errors import UnknownChannel
from ..relaying.registration import resegment as give_segments
from ..relaying.relay import BATCH, Relay
from ..relaying.segment import LEASE
from ..relaying.status import relays_status
from .application import SHOP, load_app
from .attendance import Board, attend, log_shown, stopping
from .database import writable
from .options import LOCAL, Application, AsJson, MetricsHost, MetricsPort
from .output import aside, counted, plain, report, sign, write_json
from .problems import PROBLEMS, WrongUse
from .status_of_relays import overview_of_relays

GRACE = 10.0

log = logging.getLogger("onefold.relay")


def relay(
    context: typer.Context,
    channel: Annotated[
        str | None,
        typer.Argument(
            metavar="CHANNEL", help="The channel to publish; the application's own when it has just one."
        ),
    ] = None,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="URL", help="The broker: kafka:, amqp:, sqs:, pubsub:, redis: or file:."
        ),
    ] = "",
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="NAME",
            help="The relay's name, where a channel has several; else the channel's.",
        ),
    ] = None,
    segments: Annotated[
        int | None,
        typer.Option(
            "--segments",
            min=1,
            max=SLOTS,
            metavar="N",
            help="Parts among which the processes of a new relay share; 4 when left out.",
        ),
    ] = None,
    resegment: Annotated[
        bool,
        typer.Option("--resegment", help="Give a relay that was begun this number of --segments, and end."),
    ] = False,
    from_head: Annotated[
        bool,
        typer.Option("--from-head", help="Begin a new relay behind the last message, not with the first."),
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Publish what is there now, and end.")] = False,
    batch: Annotated[
        int, typer.Option("--batch", min=1, max=10_000, metavar="MESSAGES", help="Messages at once at most.")
    ] = BATCH,
    lease: Annotated[
        float,
        typer.Option(
            "--lease",
            min=1,
            metavar="SECONDS",
            help="Time after which others take over from a process that says nothing.",
        ),
    ] = LEASE,
    grace: Annotated[
        float,
        typer.Option(
            "--grace", min=0, metavar="SECONDS", help="Time to end what is under way when told to stop."
        ),
    ] = GRACE,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = LOCAL,
    app: Application = SHOP,
    json: AsJson = False,
) -> None:
    """Publish a channel until told to stop (Ctrl-C, SIGTERM): in order for each key, at least once, with the same ids.

    Any number of these may run, on any number of machines; they share the segments of the channel. A message that the
    broker refuses for good becomes a dead letter, and what follows it in its key waits. With --once, that ends this
    with 1.
    """
    application = load_app(app)
    chosen = channel or only_channel(application)
    if resegment:
        _resegment(name or chosen, segments, json)
        return
    if not to:
        raise WrongUse(
            "expected the broker's URL, found none; give it with --to, such as --to file:messages.jsonl"
        )
    console, debug = aside(), bool(context.obj)
    with log_shown(console, debug=debug), writable() as url, stopping() as request:
        try:
            made = Relay(
                url,
                chosen,
                to,
                publications=application.publications,
                name=name,
                segments=segments,
                batch=batch,
                lease=lease,
                at_head=from_head,
                once=once,
            )
        except DeclarationError as error:
            raise WrongUse(str(error)) from error
        run = _Run(made)
        with _metrics(metrics_host, metrics_port, url):
            # What is loaded by now stays: the collector need not look at it again.
            gc.freeze()
            log.info("publishing %s to %s", chosen, shown(to))
            run.start()
            attend(lambda: run.going, request, console, None if once or json else _board(url, run.relay.name))
            if request.made:
                log.info("asked to stop: ending what is under way")
            ended = run.end(grace if request.made else None)
    if run.error is not None:
        raise run.error
    published, held = run.relay.published, run.relay.held
    if json:
        write_json({"relay": run.relay.name, "published": published, "held": held, "interrupted": not ended})
    else:
        out = report()
        out.print(sign(out, ended), f"published {counted(published, 'message')} of {plain(chosen)}")
        if held:
            out.print(
                sign(out, False), f"{counted(held, 'message')} held back; see `onefold dead-letters list`"
            )
    if not ended:
        sys.stderr.write(
            f"onefold: expected what is under way to be published within {duration(grace)}, found it still there; what "
            "was not noted goes out again, with the same ids. Give more time with --grace\n"
        )
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(PROBLEMS)
    if once and held:
        raise typer.Exit(PROBLEMS)


def only_channel(app: App) -> str:
    """Return the one channel of an application; raises `UnknownChannel` where it has none or several."""
    channels = sorted({each.channel for each in app.publications})
    if len(channels) == 1:
        return channels[0]
    found = (
        f"those of the application: {', '.join(channels)}"
        if channels
        else "an application that declares none"
    )
    raise UnknownChannel(
        f"expected the name of a channel, found none, and {found}; name one: onefold relay CHANNEL"
    )


class _Run:
    """A relay in a thread of its own, so that signals and the board are attended to beside it."""

    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="onefold-relay", daemon=True)

    @property
    def going(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def end(self, timeout: float | None) -> bool:
        if timeout is not None:
            self.relay.stop()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.relay.run()
        except Exception as error:  # noqa: BLE001 - is raised again where the command is
            self.error = error


def _resegment(name: str, segments: int | None, json: bool) -> None:
    if segments is None:
        raise WrongUse("expected the new number of segments, found none; give it with --segments")
    with writable() as url, connected(url, application="onefold relay") as connection:
        position = give_segments(connection, name, segments)
    if json:
        write_json({"relay": name, "segments": segments, "position": position})
        return
    out = report()
    out.print(
        sign(out, True),
        f"relay {plain(name)} has {counted(segments, 'segment')}, from position {position:,}; what was published "
        "beyond it goes out again, with the same ids",
    )


@contextmanager
def _metrics(host: str, port: int | None, url: str) -> Iterator[None]:
    if port is None:
        yield
        return
    from ..metrics import serve
    from ..relaying.metrics import RelayMetrics

    with RelayMetrics(url) as metrics, serve(port, metrics, host=host) as server:
        log.info("metrics at %s", server.url)
        yield


def _board(url: str, name: str) -> Board:
    console = aside()

    def look(connection: psycopg.Connection[object]) -> RenderableType:
        return overview_of_relays(console, [each for each in relays_status(connection) if each.name == name])

    return Board(url, look, "Ctrl-C ends what is under way and stops")

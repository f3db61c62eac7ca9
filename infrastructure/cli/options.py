"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Application = Annotated[
    str,
    typer.Option(
        "--app",
        envvar="ONEFOLD_APP",
        metavar="MODULE:NAME",
        help="The application: where its onefold.App is. Modules in the current folder are found.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a report.")]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        min=0,
        max=65535,
        metavar="PORT",
        help="Serve metrics for Prometheus on this port; 0 takes a free one, and tells it in the log.",
    ),
]
MetricsHost = Annotated[
    str, typer.Option("--metrics-host", metavar="ADDRESS", help="The address that metrics are served on.")
]
LOCAL = "127.0.0.1"
ForConsumer = Annotated[
    str | None, typer.Option("--consumer", metavar="NAME", help="Only what belongs to this consumer.")
]
ForSequence = Annotated[
    str | None, typer.Option("--sequence", metavar="TEXT", help="Only what belongs to this sequence.")
]
InLog = Annotated[str, typer.Option("--log", metavar="NAME", help="The log that it is in.")]
ByClock = Annotated[
    str,
    typer.Option(
        "--clock",
        metavar="CLOCK",
        help="Which instant of an event is meant: when it occurred, or when it was recorded.",
    ),
]

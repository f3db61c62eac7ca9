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

"""`onefold import-log`: an identical log made of an export."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from ..connection import connected
from ..exporting.importer import import_log as make_log
from .database import writable
from .options import AsJson, InLog
from .output import aside, counted, plain, progress, report, seconds, sign, write_json


def import_log(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An export, with its manifest beside it.")],
    log: InLog = "events",
    json: AsJson = False,
) -> None:
    """Make the log of an export, exactly, in a database whose log is empty; all of it or nothing.

    Positions, versions, ids, both times, data and metadata are those of the log that was exported. The checksum is
    verified first. Read models are made by `onefold run`.
    """
    started = time.monotonic()
    with (
        writable() as url,
        connected(url, application="onefold import-log") as connection,
        progress(aside(), wanted=not json) as bars,
    ):
        task = bars.add_task("importing", total=None)
        made = make_log(
            connection, file, log=log, progress=lambda events: bars.update(task, completed=events)
        )
    if json:
        write_json({"file": file, "log": log, "events": made.events, "last_position": made.last_position})
        return
    console = report()
    console.print(
        Text.assemble(
            sign(console, True),
            f" {counted(made.events, 'event')} of {plain(file)} in log {plain(log)}, in "
            f"{seconds(time.monotonic() - started)}",
        ),
        soft_wrap=True,
    )

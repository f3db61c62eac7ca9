"""`onefold export`: a log, or a part of it, as a file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from ..exporting.exporter import export as write_log
from ..exporting.manifest import manifest_file
from .database import readable
from .options import AsJson, InLog
from .output import aside, counted, plain, progress, report, seconds, sign, write_json
from .problems import WrongUse


def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write: .jsonl or .csv.")],
    kind: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="KIND", help="jsonl (CloudEvents) or csv; by the file's name if left out."
        ),
    ] = None,
    stream: Annotated[
        str | None, typer.Option("--stream", metavar="STREAM", help="Only this stream, such as order/4711.")
    ] = None,
    category: Annotated[
        str | None,
        typer.Option("--category", metavar="NAME", help="Only streams of this category, such as order."),
    ] = None,
    first: Annotated[int, typer.Option("--from", metavar="POSITION", min=1, help="The first position.")] = 1,
    last: Annotated[
        int | None,
        typer.Option("--to", metavar="POSITION", min=0, help="The last position; the log's end if left out."),
    ] = None,
    log: InLog = "events",
    json: AsJson = False,
) -> None:
    """Write the events of a log to a file, with a manifest and checksum beside it.

    A file that was broken off is gone on with by the same command. `onefold import-log` makes an identical log of it.
    """
    if stream is not None and category is not None:
        raise WrongUse("expected either --stream or --category, found both")
    started = time.monotonic()
    with readable() as connection, progress(aside(), wanted=not json) as bars:
        task = bars.add_task("exporting", total=None)

        def show(events: int, position: int) -> None:
            bars.update(task, description=f"{counted(events, 'event')}, position {position:,}")

        made = write_log(
            connection,
            file,
            kind=kind,
            log=log,
            stream=stream,
            category=category,
            first=first,
            last=last,
            progress=show,
        )
    if json:
        write_json({"file": file, "manifest": manifest_file(file), **made.model_dump()})
        return
    console = report()
    console.print(
        Text.assemble(
            sign(console, True),
            f" {counted(made.events, 'event')} in {plain(file)}, {made.bytes:,} bytes, in "
            f"{seconds(time.monotonic() - started)}",
        ),
        soft_wrap=True,
    )
    console.print(Text(f"SHA-256 {made.sha256}, in {plain(manifest_file(file).name)}", "dim"), soft_wrap=True)

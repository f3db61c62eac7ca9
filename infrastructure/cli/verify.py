"""`onefold verify`: whether a log is what was sealed, and what was done to it if it is not."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ..sealing.finding import Finding
from ..sealing.verifying import Verdict
from ..sealing.verifying import verify as compare
from .database import readable_url
from .options import AsJson, InLog
from .output import aside, counted, plain, progress, report, seconds, sign, write_json
from .problems import PROBLEMS, WrongUse

SHOWN = 100
"""Findings that a report shows; JSON has them all."""

_RANGE = re.compile(r"(\d*)\.\.(\d*)")


def verify(
    stream: Annotated[
        str | None,
        typer.Option(
            "--stream", metavar="STREAM", help="Only the ranges that hold this stream, such as order/4711."
        ),
    ] = None,
    positions: Annotated[
        str | None, typer.Option("--range", metavar="A..B", help="Only the ranges that hold these positions.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All of the log; so it is if nothing is chosen.")
    ] = False,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against", metavar="FILE", help="Compare with the seals that were handed out to this file."
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            "--key", metavar="PUBLIC", help="Each seal must be signed; the public Ed25519 key in PEM."
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option("--processes", min=1, metavar="N", help="Processes that hash; one for each processor."),
    ] = None,
    log: InLog = "events",
    json: AsJson = False,
) -> None:
    """Compare a log with its seals, and name every event that was altered, removed, inserted or moved.

    Without --against or --key, whoever may write everything in the database can also have made its seals anew. Exits
    with 1 when something was found.
    """
    if sum((stream is not None, positions is not None, everything)) > 1:
        raise WrongUse("expected one of --stream, --range and --all, found several")
    first, last = (1, None) if positions is None else _ends(positions)
    public_key = None if key is None else _public(key)
    started = time.monotonic()
    with readable_url() as url, progress(aside(), wanted=not json) as bars:
        task = bars.add_task("verifying", total=None)
        done = 0

        def show(events: int) -> None:
            nonlocal done
            done += events
            bars.update(task, description=f"{counted(done, 'event')} verified")

        verdict = compare(
            url,
            log=log,
            stream=stream,
            first=first,
            last=last,
            against=against,
            public_key=public_key,
            processes=processes,
            progress=show,
        )
    if json:
        write_json(_document(verdict))
    else:
        _show(verdict, time.monotonic() - started, proven=against is not None or key is not None)
    if not verdict.intact:
        raise typer.Exit(PROBLEMS)


def _ends(text: str) -> tuple[int, int | None]:
    found = _RANGE.fullmatch(text)
    if found is None:
        raise WrongUse(f"expected positions as A..B, A.. or ..B, found {text!r}")
    first, last = found[1], found[2]
    return int(first or 1), int(last) if last else None


def _public(file: Path) -> bytes:
    from ..sealing.signing import public_key_of

    return public_key_of(file)


def _document(verdict: Verdict) -> dict[str, object]:
    return {
        "intact": verdict.intact,
        "events": verdict.events,
        "seals": verdict.seals,
        "upto": verdict.upto,
        "unsealed": verdict.unsealed,
        "findings": [
            {
                "kind": each.kind.value,
                "position": each.position,
                "stream": each.stream,
                "version": each.version,
                "columns": each.columns,
                "seal": each.seal or None,
                "detail": each.detail or None,
            }
            for each in verdict.findings
        ],
    }


def _show(verdict: Verdict, took: float, *, proven: bool) -> None:
    console = report()
    for each in verdict.findings[:SHOWN]:
        _show_finding(console, each)
    if len(verdict.findings) > SHOWN:
        console.print(Text(f"… and {len(verdict.findings) - SHOWN:,} more; --json has them all", "dim"))
    what = f"{counted(verdict.events, 'event')} against {counted(verdict.seals, 'seal')}, up to position "
    what += f"{verdict.upto:,}, in {seconds(took)}"
    if verdict.intact:
        console.print(sign(console, True), f"{what}: as sealed", soft_wrap=True)
    else:
        console.print(
            sign(console, False), f"{what}: {counted(len(verdict.findings), 'finding')}", soft_wrap=True
        )
    if verdict.unsealed:
        console.print(
            Text(
                f"{counted(verdict.unsealed, 'event')} after that not sealed yet: nothing is proven of them.",
                "dim",
            ),
            soft_wrap=True,
        )
    if not proven:
        console.print(
            Text("Compared with seals of the same database only; see --against and --key.", "dim"),
            soft_wrap=True,
        )


def _show_finding(console: Console, each: Finding) -> None:
    words = [each.kind.value]
    if each.position is None and each.seal:
        words.append(f"{each.seal}")
    if each.position is not None:
        words.append(f"position {each.position:,}")
    if each.stream is not None:
        words.append(f"{plain(each.stream)} version {each.version}")
    text = f"{words[0]} {', '.join(words[1:])}"
    if each.columns:
        text += f" ({', '.join(each.columns)})"
    if each.detail:
        text += f": {plain(each.detail)}"
    console.print(sign(console, False), text, soft_wrap=True)

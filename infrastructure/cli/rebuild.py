"""`onefold rebuild`: a read model made anew, beside the one that serves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from ...domain.errors import OnefoldError
from ...projections.app import App
from ...projections.engine import Progress as Applied
from ...projections.projection import AnyProjection, Projection
from ..connection import connected
from ..postgres.errors import Fenced
from ..rebuilding.rebuild import PATIENCE, Rebuild
from ..rebuilding.report import Report, Step
from ..rebuilding.rows import rebuild_stream
from ..status import status as status_of
from ..worker import Worker
from .application import SHOP, load_app
from .attendance import log_shown
from .database import writable
from .options import Application, AsJson
from .output import aside, counted, plain, report, seconds, sign, write_json
from .problems import WrongUse

PHASES = {
    "load": "loading",
    "finish": "making keys and indexes",
    "follow": "following the log",
    "verify": "verifying",
    "swap": "swapping",
}


class Busy(OnefoldError):
    """A worker runs the projection and does not let go of it."""


class Verify(Enum):
    """How much of a new version is compared with rows that are folded anew."""

    SAMPLE = "sample"
    FULL = "full"
    NONE = "none"


def rebuild(
    context: typer.Context,
    projection: Annotated[str, typer.Argument(metavar="PROJECTION", help="The projection's name.")],
    verify: Annotated[
        Verify, typer.Option("--verify", help="How many rows are folded anew and compared before the swap.")
    ] = Verify.SAMPLE,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on where a rebuild was broken off. Only if the folds are the same as then.",
        ),
    ] = False,
    to_position: Annotated[
        int | None,
        typer.Option(
            "--to-position",
            min=0,
            metavar="POSITION",
            help="Build the version as of this position, and leave it in schema read_next.",
        ),
    ] = None,
    to_version: Annotated[
        int | None,
        typer.Option(
            "--to-version",
            min=0,
            metavar="VERSION",
            help="Only if the table is not of this declared version yet; the code must declare it.",
        ),
    ] = None,
    stream: Annotated[
        str | None,
        typer.Option(
            "--stream", metavar="CATEGORY/KEY", help="Fold only the rows anew that this stream leads to."
        ),
    ] = None,
    in_place: Annotated[
        bool,
        typer.Option("--in-place", help="Empty the serving table and fill it again, with workers stopped."),
    ] = False,
    wait: Annotated[
        float,
        typer.Option(
            "--wait", min=0, metavar="SECONDS", help="How long a table that is in use is waited for."
        ),
    ] = PATIENCE,
    app: Application = SHOP,
    json: AsJson = False,
) -> None:
    """Build a projection's table anew from the whole log, beside the one that serves, and put it in its place.

    Readers and workers go on meanwhile; the swap takes milliseconds. The version that served is kept until
    `onefold projections drop-old`, and `onefold projections rollback` goes back to it. A rebuild that is killed
    leaves the serving table as it was. Projections that write with SQL or handlers of their own are rebuilt in
    place: stop their workers before, readers see the tables fill up.
    """
    chosen = load_app(app).projection(projection)
    ways = {"--stream": stream is not None, "--in-place": in_place, "--to-position": to_position is not None}
    if sum(ways.values()) > 1:
        raise WrongUse(
            f"expected one of {', '.join(ways)}, found {' and '.join(w for w, on in ways.items() if on)}"
        )
    if to_version is not None and chosen.version != to_version:
        raise WrongUse(
            f"expected projection {projection} to declare version {to_version}, found {chosen.version} in {app}; "
            "deploy the code that has it first"
        )
    console = aside()
    started = time.monotonic()
    with log_shown(console, debug=bool(context.obj)), writable() as url:
        if to_version is not None and _is_built(url, chosen):
            _show_nothing_to_do(chosen, to_version, json)
            return
        with _bars(console, wanted=not json) as bars:
            if stream is not None:
                _rebuild_rows(url, chosen, stream, json)
                return
            if in_place or not isinstance(chosen, Projection):
                document = _rebuild_in_place(url, chosen, bars)
                text = f"rebuilt {projection} in place from {{}} up to position {{}} in {{}}"
            else:
                made = Rebuild(
                    url,
                    chosen,
                    verify=verify.value,
                    resume=resume,
                    upto=to_position,
                    patience=wait,
                    on_step=_shower(bars, projection),
                ).run()
                document = _document(made)
                text = f"rebuilt {projection} from {{}} up to position {{}} in {{}}"
        part = App(projections=[chosen])
        with connected(url) as connection:
            (after,) = status_of(connection, part).projections
    taken = time.monotonic() - started
    document |= {"lag_events": after.lag.number, "seconds": round(taken, 3)}
    if json:
        write_json(document)
        return
    out = report()
    applied, position = counted(document["applied"], "event"), f"{document['position']:,}"
    out.print(sign(out, True), text.format(applied, position, seconds(taken)))
    for line in _remarks(document):
        out.print(f"  {line}")


def _document(made: Report) -> dict[str, Any]:
    return {
        "projection": made.projection,
        "position": made.position,
        "applied": made.applied,
        "rows": made.rows,
        "verified": made.verified,
        "swapped": made.swapped,
        "resumed": made.resumed,
        "left_behind": list(made.left_behind),
        "phases": {phase: round(taken, 3) for phase, taken in made.seconds.items()},
    }


def _remarks(document: dict[str, Any]) -> Iterator[str]:
    name = document["projection"]
    if document.get("swapped"):
        yield (
            f"{counted(document['rows'], 'row')}, {document['verified']:,} of them verified; the version before "
            f"is kept until `onefold projections drop-old {name}`"
        )
    elif "swapped" in document:
        yield (
            f"{counted(document['rows'], 'row')} in read_next.{name}, which serves nobody until "
            f"`onefold rebuild {name} --resume`"
        )
    for statement in document.get("left_behind", ()):
        yield f"not made anew, as its column is gone: {plain(statement)}"


def _rebuild_rows(url: str, chosen: AnyProjection, stream: str, json: bool) -> None:
    if not isinstance(chosen, Projection):
        raise WrongUse(
            f"expected a projection of rows for --stream, found {chosen.name}, which writes with statements of "
            f"its own; rebuild all of it with `onefold rebuild {chosen.name}`"
        )
    mended = rebuild_stream(url, chosen, stream)
    keys = [", ".join(map(str, key)) for key in mended.keys]
    if json:
        write_json(
            {
                "projection": chosen.name,
                "stream": stream,
                "position": mended.position,
                "rows": keys,
                "changed": mended.changed,
            }
        )
        return
    console = report()
    text = (
        f"folded {counted(len(keys), 'row')} of {chosen.name} anew from {stream} up to position {mended.position:,}: "
        f"{mended.changed:,} changed"
    )
    console.print(sign(console, True), plain(text))


def _rebuild_in_place(url: str, chosen: AnyProjection, bars: Progress) -> dict[str, Any]:
    part = App(projections=[chosen])
    with connected(url) as connection:
        found = status_of(connection, part)
    (before,) = found.projections
    total = next(log.events.number for log in found.logs if log.name == chosen.log)
    task = bars.add_task(f"{chosen.name}: rebuilding in place", total=total)

    def show(done: Applied) -> None:
        bars.update(task, completed=done.read)

    try:
        done = Worker(url, chosen, on_page=show).rebuild()
    except Fenced as error:
        who = before.owner or "another worker"
        raise Busy(
            f"expected projection {chosen.name} to be free, found it run by {who}; "
            "stop that worker (`onefold run`) and rebuild again"
        ) from error
    with connected(url) as connection:
        (after,) = status_of(connection, part).projections
    return {"projection": chosen.name, "position": after.position, "applied": done.applied}


def _is_built(url: str, chosen: AnyProjection) -> bool:
    with connected(url) as connection:
        found = connection.execute(
            "SELECT fingerprint FROM onefold.checkpoints WHERE projection = %s AND segment = 0",
            (chosen.name,),
        ).fetchone()
    return found is not None and found[0] == chosen.fingerprint()


def _show_nothing_to_do(chosen: AnyProjection, version: int, json: bool) -> None:
    if json:
        write_json({"projection": chosen.name, "version": version, "swapped": False, "applied": 0})
        return
    console = report()
    console.print(sign(console, True), f"{chosen.name} is of version {version} already")


class _Rate(TextColumn):
    """Events a second."""

    def __init__(self) -> None:
        super().__init__("")

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None or task.total is None else f"{speed:,.0f}/s", "dim")


@contextmanager
def _bars(console: Console, *, wanted: bool) -> Iterator[Progress]:
    bars = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.percentage:>3.0f}%"),
        _Rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        expand=True,
        disable=not (wanted and console.is_terminal),
    )
    with bars:
        yield bars


def _shower(bars: Progress, name: str) -> Callable[[Step], None]:
    task = bars.add_task(f"{name}: looking over the log", total=None)
    shown = ""

    def show(step: Step) -> None:
        nonlocal shown
        if step.phase != shown:
            shown = step.phase
            bars.reset(task, total=step.total, description=f"{name}: {PHASES[shown]}")
        bars.update(task, total=step.total, completed=step.done)

    return show

"""`onefold rebuild`: a read model made anew."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from ...domain.errors import OnefoldError
from ...projections.app import App
from ...projections.engine import Progress
from ..connection import connected
from ..postgres.errors import Fenced
from ..status import status as status_of
from ..worker import Worker
from .application import SHOP, load_app
from .database import writable
from .options import Application, AsJson
from .output import aside, counted, progress, report, seconds, sign, write_json


class Busy(OnefoldError):
    """A worker runs the projection and does not let go of it."""


def rebuild(
    projection: Annotated[str, typer.Argument(metavar="PROJECTION", help="The projection's name.")],
    app: Application = SHOP,
    json: AsJson = False,
) -> None:
    """Make a projection's tables anew and fold the whole log into them.

    Plain: the tables are emptied first, and readers see them fill up. Stop the workers of this projection before;
    they may be started again at once, and go on where the rebuild has ended. One that waits for this rebuild goes
    on by itself.
    """
    chosen = load_app(app).projection(projection)
    part = App(projections=[chosen])
    started = time.monotonic()
    with writable() as url:
        with connected(url) as connection:
            found = status_of(connection, part)
        (before,) = found.projections
        total = next(log.events.number for log in found.logs if log.name == chosen.log)
        with progress(aside(), wanted=not json) as bars:
            task = bars.add_task(f"rebuilding {projection}", total=total)

            def show(done: Progress) -> None:
                bars.update(task, completed=done.read)

            try:
                done = Worker(url, chosen, on_page=show).rebuild()
            except Fenced as error:
                who = before.owner or "another worker"
                raise Busy(
                    f"expected projection {projection} to be free, found it run by {who}; "
                    "stop that worker (`onefold run`) and rebuild again"
                ) from error
        with connected(url) as connection:
            (after,) = status_of(connection, part).projections
    taken = time.monotonic() - started
    if json:
        write_json(
            {
                "projection": projection,
                "position": after.position,
                "applied": done.applied,
                "lag_events": after.lag.number,
                "seconds": round(taken, 3),
            }
        )
        return
    console = report()
    console.print(
        sign(console, True),
        f"rebuilt {projection} from {counted(done.applied, 'event')} up to position {after.position:,} "
        f"in {seconds(taken)}",
    )

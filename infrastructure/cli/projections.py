"""`onefold projections`: the versions of read models, and back to the one before."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from ...projections.projection import Projection
from ..rebuilding import versions
from ..rebuilding.rebuild import PATIENCE
from ..rebuilding.versions import Version, list_versions
from .application import SHOP, load_app
from .database import readable, writable
from .groups import Command, Group
from .options import Application, AsJson
from .output import aside, cell, fitted, plain, report, sign, table, write_json
from .problems import WrongUse

COLOURS = {"serving": "green", "next": "yellow", "before": "dim"}

group = typer.Typer(
    name="projections",
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Look at the versions of read models, go back to the one before a rebuild, or drop it.",
)
Name = Annotated[str, typer.Argument(metavar="PROJECTION", help="The projection's name.")]


@group.command("list", cls=Command)
def list_(app: Application = SHOP, json: AsJson = False) -> None:
    """List the versions of every projection in the database: the serving one, the next, and the one before.

    The code is "this" where the application's declaration built the version, and "other" where another one did.
    """
    known = {each.name: each.fingerprint() for each in load_app(app).projections}
    with readable() as connection:
        found = list_versions(connection)
    if json:
        write_json({"versions": [_document(each, known) for each in found]})
        return
    console = report()
    rows = table("projection", "version", "code", "position", "moved", "state", right=("position",))
    for each in found:
        rows.add_row(
            Text(plain(each.projection), "bold"),
            Text(each.role, COLOURS[each.role]),
            _code(each, known) or "–",
            cell(each.position),
            cell(each.moved_at),
            _state(each),
        )
    console.print(fitted(console, rows, "moved"))
    for each in found:
        if each.failure is not None:
            console.print(sign(console, False), plain(each.failure))


@group.command("drop-old", cls=Command)
def drop_old(
    projection: Name,
    next_: Annotated[
        bool,
        typer.Option(
            "--next", help="Drop the version instead that a broken-off rebuild has left in read_next."
        ),
    ] = False,
    json: AsJson = False,
) -> None:
    """Drop the version that served before the last rebuild; after that there is no way back to it."""
    with writable() as url:
        (versions.drop_next if next_ else versions.drop_old)(url, projection)
    if json:
        write_json({"projection": projection, "dropped": "next" if next_ else "before"})
        return
    console = report()
    console.print(
        sign(console, True),
        f"dropped the {'next version' if next_ else 'version before'} of {plain(projection)}",
    )


@group.command("rollback", cls=Command)
def rollback(
    projection: Name,
    wait: Annotated[
        float,
        typer.Option(
            "--wait", min=0, metavar="SECONDS", help="How long a table that is in use is waited for."
        ),
    ] = PATIENCE,
    app: Application = SHOP,
    json: AsJson = False,
) -> None:
    """Go back to the version that served before the last rebuild; the one that serves now is kept in its place.

    With the code that built it, it is brought to the log's end first. With other code it serves from where it was left,
    until workers of its own code bring it up.
    """
    chosen = load_app(app).projection(projection)
    if not isinstance(chosen, Projection):
        raise WrongUse(
            f"expected a projection of rows, found {projection}, which writes with statements of its own: "
            "it has one version"
        )
    console = aside()

    def waiting(holders: list[str]) -> None:
        if holders:
            console.print(Text(f"waiting for {plain('; '.join(holders))}", "dim"))

    with writable() as url:
        done = versions.rollback(url, chosen, patience=wait, waiting=waiting)
    if json:
        write_json({"projection": projection, "position": done.position, "caught_up": done.caught_up})
        return
    out = report()
    out.print(sign(out, True), f"{projection} is back at the version before, at position {done.position:,}")
    if not done.caught_up:
        out.print("  this code did not build it: start workers of the code that did, to bring it up")


def _document(each: Version, known: dict[str, str]) -> dict[str, Any]:
    return {
        "projection": each.projection,
        "role": each.role,
        "code": _code(each, known),
        "position": each.position,
        "moved_at": each.moved_at,
        "owner": each.owner,
        "phase": each.phase,
        "failure": each.failure,
        "there": each.there,
    }


def _code(each: Version, known: dict[str, str]) -> str | None:
    if each.projection not in known:
        return None
    return "this" if known[each.projection] == each.fingerprint else "other"


def _state(each: Version) -> str:
    if not each.there:
        return "its table is gone" if each.role != "serving" else ""
    if each.phase is not None:
        return "failed" if each.failure is not None else f"in phase {each.phase}"
    return ""

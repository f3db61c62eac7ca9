"""`onefold grant`: privileges of roles that audit, seal, or run the application."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from ..connection import connected
from ..sealing.access import Granted, Part, Privilege
from ..sealing.access import grant as give
from .database import writable
from .groups import Command, Group
from .options import AsJson
from .output import plain, report, sign, write_json
from .problems import PROBLEMS

Role = Annotated[str, typer.Argument(metavar="ROLE", help="The role; it must be there.")]
ReadModels = Annotated[
    bool, typer.Option("--read-models", help="Let it read the read models that there are now, too.")
]

group = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    help="Grant roles what they need: to audit, to seal, to run the application. None can change the log.",
)


@group.command("auditor", cls=Command)
def auditor(role: Role, read_models: ReadModels = False, json: AsJson = False) -> None:
    """Let a role read the logs, their hashes and seals, and nothing else.

    Exits with 1 when the role may do more by other grants, which are named.
    """
    _grant(Part.AUDITOR, role, read_models, json)


@group.command("sealer", cls=Command)
def sealer(role: Role, json: AsJson = False) -> None:
    """Let a role read the logs, and write hashes and seals.

    Exits with 1 when the role may do more by other grants, which are named.
    """
    _grant(Part.SEALER, role, False, json)


@group.command("application", cls=Command)
def application(role: Role, json: AsJson = False) -> None:
    """Let a role append, run projections, consumers and effects; not change or remove what is in a log or a seal.

    Exits with 1 when the role may do so by other grants, which are named.
    """
    _grant(Part.APPLICATION, role, False, json)


def _grant(part: Part, role: str, read_models: bool, json: bool) -> None:
    with writable() as url, connected(url, application="onefold grant") as connection:
        done = give(connection, part, role, read_models=read_models)
    if json:
        write_json(
            {
                "part": part.value,
                "role": role,
                "granted": [each._asdict() for each in done.granted],
                "beyond": [each._asdict() for each in done.beyond],
            }
        )
    else:
        _show(part, role, done)
    if done.beyond:
        raise typer.Exit(PROBLEMS)


def _show(part: Part, role: str, done: Granted) -> None:
    console = report()
    for each in done.granted:
        console.print(f"{each.may} on {_place(each)}", soft_wrap=True)
    for each in done.beyond:
        console.print(
            sign(console, False), f"{plain(role)} may do more: {each.may} on {_place(each)}", soft_wrap=True
        )
    if done.beyond:
        console.print(
            Text(
                "Revoke it from the role, the roles it is in, or PUBLIC. Owners and superusers may do anything.",
                "dim",
            ),
            soft_wrap=True,
        )
    else:
        console.print(sign(console, True), f"{plain(role)} has what it needs, and no more", soft_wrap=True)


def _place(privilege: Privilege) -> str:
    if not privilege.table:
        return f"schema {plain(privilege.schema)}"
    return f"{plain(privilege.schema)}.{plain(privilege.table)}"

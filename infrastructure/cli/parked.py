"""`onefold parked`: messages that came before their turn."""

from __future__ import annotations

from datetime import UTC, datetime

import typer
from rich.text import Text

from ..consuming.dead_letters import MANY, list_parked
from .database import readable
from .groups import Command, Group
from .options import AsJson, ForConsumer, ForSequence
from .output import cell, counted, fitted, plain, report, seconds, table, write_json

group = typer.Typer(
    name="parked",
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Look at messages that came before their turn and wait for it.",
)


@group.command("list", cls=Command)
def list_(consumer: ForConsumer = None, sequence: ForSequence = None, json: AsJson = False) -> None:
    """List messages that wait for their turn, in order: who waits, since when, and for what. Shows no payload."""
    with readable() as connection:
        found = list_parked(connection, consumer=consumer, sequence=sequence)
    if json:
        write_json({"parked": found, "complete": len(found) < MANY})
        return
    console, now = report(), datetime.now(UTC)
    rows = table(
        "consumer",
        "sequence",
        "version",
        "type",
        "waits since",
        "tries",
        "for",
        "message",
        "from",
        right=("version", "tries"),
    )
    for each in found:
        rows.add_row(
            Text(plain(each.consumer), "bold"),
            plain(each.sequence),
            "–" if each.version is None else str(each.version),
            plain(each.type),
            seconds(max(0.0, (now - each.parked_at).total_seconds())),
            cell(each.attempts),
            plain(each.error or each.reason),
            plain(each.message_id),
            plain(each.place),
        )
    if found:
        console.print(fitted(console, rows, "from", "message", "tries", "type"))
    more = " or more" if len(found) == MANY else ""
    console.print(Text(f"{counted(len(found), 'message')}{more} parked", "dim"))

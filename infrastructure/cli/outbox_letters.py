"""Messages that a broker refused, as `onefold dead-letters` shows them and deals with them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import psycopg
from rich.console import Console, RenderableType
from rich.text import Text

from ..relaying.dead_letters import (
    HeldMessage,
    HeldMessageError,
    discard,
    list_held,
    message_of,
    retry,
)
from .effect_letters import Dealt
from .output import cell, fitted, plain, report, table, write_json

PREFIX = "outbox:"


def of_numbers(connection: psycopg.Connection[Any], numbers: Sequence[int]) -> list[HeldMessage]:
    """Return the messages of these numbers; raises `HeldMessageError` naming those that are none."""
    found = list_held(connection, ids=numbers, resolved=True)
    if missing := sorted(set(numbers) - {each.id for each in found}):
        names = ", ".join(f"{PREFIX}{each}" for each in missing)
        raise HeldMessageError(
            f"expected dead letters, found {names}; `onefold dead-letters list --resolved` shows those there are"
        )
    return found


def listing(console: Console, found: Sequence[HeldMessage]) -> RenderableType:
    """Return messages as a table that the console has room for."""
    names = ("id", "relay", "key", "type", "refused", "attempts", "behind", "cause", "message", "resolution")
    rows = table(*names, right=("attempts", "behind"))
    for each in found:
        rows.add_row(
            Text(f"{PREFIX}{each.id}", "bold"),
            plain(each.relay),
            plain(each.key),
            plain(each.type),
            cell(each.held_at),
            cell(each.attempts),
            cell(each.behind),
            plain(each.cause or ""),
            plain(each.message_id),
            _became(each),
        )
    return fitted(console, rows, "resolution", "message", "attempts", "type", "refused")


def document(found: Sequence[HeldMessage]) -> list[dict[str, Any]]:
    """Return messages as values that JSON holds, with the ids by which commands take them."""
    return [{**asdict(each), "id": f"{PREFIX}{each.id}"} for each in found]


def show(connection: psycopg.Connection[Any], number: int, json: bool) -> None:
    """Print all that is known of a message, as it is to go out; raises `HeldMessageError`."""
    found = of_numbers(connection, [number])[0]
    body, headers = message_of(connection, number)
    try:
        text: str | None = body.decode()
    except UnicodeDecodeError:
        text = None
    packed = base64.b64encode(body).decode()
    if json:
        kept = {"body_base64": packed} if text is None else {"body": text}
        write_json({**document([found])[0], "headers": headers, **kept})
        return
    console = report()
    lines = table("", "")
    lines.show_header = False
    facts: list[tuple[str, object]] = [
        ("dead letter", f"{PREFIX}{number}"),
        ("relay", found.relay),
        ("key", found.key),
        ("cause", found.cause),
        ("attempts", found.attempts),
        ("waiting behind it", found.behind),
        ("type", found.type),
        ("message", found.message_id),
        ("position", found.position),
        ("refused", found.held_at),
        ("another try", _became(found)),
    ]
    for name, value in facts:
        lines.add_row(Text(name, "dim"), cell(value))
    for name, header in headers.items():
        lines.add_row(Text(f"header {plain(name)}", "dim"), plain(header))
    console.print(lines)
    console.print()
    console.print(Text(f"body, {len(body):,} bytes{', as base64' if text is None else ''}", "dim"))
    console.print(Text(packed if text is None else plain(text)), soft_wrap=True)


def retry_all(connection: psycopg.Connection[Any], numbers: Sequence[int]) -> list[Dealt]:
    """Ask the relays for another try of messages, and of those that wait behind them."""
    return [_dealt(each, "due again", lambda each=each: retry(connection, each)) for each in numbers]


def discard_all(connection: psycopg.Connection[Any], numbers: Sequence[int], by: str) -> list[Dealt]:
    """Give messages up for good; those behind them go out."""
    return [_dealt(each, "discarded", lambda each=each: discard(connection, each, by)) for each in numbers]


def _became(found: HeldMessage) -> str:
    if found.resolution is not None:
        return found.resolution if found.resolved_by is None else f"{found.resolution} by {found.resolved_by}"
    return "–" if found.asked_at is None else "asked for"


def _dealt(number: int, became: str, deal: Any) -> Dealt:
    try:
        deal()
    except HeldMessageError as error:
        return Dealt(f"{PREFIX}{number}", "left", str(error))
    return Dealt(f"{PREFIX}{number}", became)

"""Calls of effects that were given up, as `onefold dead-letters` shows them and deals with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import psycopg
from rich.console import Console, RenderableType
from rich.text import Text

from ..effects.dead_letters import (
    EffectLetter,
    EffectLetterError,
    content_of,
    discard,
    list_effect_letters,
    retry,
)
from .document import parsed
from .output import cell, fitted, plain, report, table, write_json

PREFIX = "effect:"


class Dealt(NamedTuple):
    """What became of a call: due again, discarded, or left as it is, and then why."""

    id: str
    became: str
    why: str = ""


def of_numbers(connection: psycopg.Connection[Any], numbers: Sequence[int]) -> list[EffectLetter]:
    """Return the calls of these numbers; raises `EffectLetterError` naming those that are none."""
    found = list_effect_letters(connection, ids=numbers, resolved=True)
    if missing := sorted(set(numbers) - {each.id for each in found}):
        names = ", ".join(f"{PREFIX}{each}" for each in missing)
        raise EffectLetterError(
            f"expected dead letters, found {names}; `onefold dead-letters list --resolved` shows those there are"
        )
    return found


def listing(console: Console, found: Sequence[EffectLetter]) -> RenderableType:
    """Return calls as a table that the console has room for."""
    rows = table(
        "id",
        "effect",
        "outcome",
        "stream",
        "died",
        "attempts",
        "cause",
        "key",
        "resolution",
        right=("attempts",),
    )
    for each in found:
        rows.add_row(
            Text(f"{PREFIX}{each.id}", "bold"),
            plain(each.effect),
            each.outcome,
            cell(each.stream),
            cell(each.dead_at),
            cell(each.attempts),
            plain(each.cause),
            plain(each.key),
            "–" if each.resolution is None else f"{each.resolution} by {plain(each.resolved_by or '')}",
        )
    return fitted(console, rows, "resolution", "key", "attempts", "stream", "died")


def document(found: Sequence[EffectLetter]) -> list[dict[str, Any]]:
    """Return calls as values that JSON holds, with the ids by which commands take them."""
    return [{**asdict(each), "id": f"{PREFIX}{each.id}"} for each in found]


def show(connection: psycopg.Connection[Any], number: int, json: bool) -> None:
    """Print all that is known of a call, also what its function is called with; raises `EffectLetterError`."""
    found = of_numbers(connection, [number])[0]
    data, metadata = content_of(connection, number)
    if json:
        told = None if metadata is None else parsed(metadata)
        write_json({**document([found])[0], "data": parsed(data), "metadata": told})
        return
    console = report()
    lines = table("", "")
    lines.show_header = False
    facts: list[tuple[str, object]] = [
        ("dead letter", f"{PREFIX}{number}"),
        ("effect", found.effect),
        ("outcome", found.outcome),
        ("cause", found.cause),
        ("attempts", found.attempts),
        ("key", found.key),
        ("key of the call", found.call),
        ("event", found.type),
        ("stream", found.stream),
        ("version", None if found.version is None else str(found.version)),
        ("asked for", found.asked_at),
        ("first try", found.first_try_at),
        ("died", found.dead_at),
    ]
    if found.resolution is not None:
        facts.append(("resolved", f"{found.resolution} by {found.resolved_by}"))
    for name, value in facts:
        lines.add_row(Text(name, "dim"), cell(value))
    console.print(lines)
    console.print()
    console.print(Text("data", "dim"))
    console.print(Text(plain(data)), soft_wrap=True)


def retry_all(
    connection: psycopg.Connection[Any], numbers: Sequence[int], by: str, *, even_expired: bool
) -> list[Dealt]:
    """Make calls due again, as far as that may be."""
    return [
        _dealt(each, "due again", lambda each=each: retry(connection, each, by, even_expired=even_expired))
        for each in numbers
    ]


def discard_all(connection: psycopg.Connection[Any], numbers: Sequence[int], by: str) -> list[Dealt]:
    """Give calls up for good."""
    return [_dealt(each, "discarded", lambda each=each: discard(connection, each, by)) for each in numbers]


def _dealt(number: int, became: str, deal: Any) -> Dealt:
    try:
        deal()
    except EffectLetterError as error:
        return Dealt(f"{PREFIX}{number}", "left", str(error))
    return Dealt(f"{PREFIX}{number}", became)

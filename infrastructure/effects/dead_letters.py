"""Dead letters of effects: calls that were given up, and what an operator does about them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row

from ...domain.errors import OnefoldError
from ..postgres.sql import statement
from .maintenance import DISCARDED

MANY = 10_000
"""Dead letters in one listing at most."""

HIGHEST = 2**63 - 1


class EffectLetterError(OnefoldError):
    """What is asked for cannot be done about a call that was given up, or there is none of this number."""


@dataclass(frozen=True, slots=True)
class EffectLetter:
    """A call that was given up, without what its function is called with.

    `outcome` is `dead_lettered`, `rejected`, `expired` (it may have taken effect, and its key is forgotten) or
    `key_conflict` (its key stands for other content). `call` is the key that the world outside was given.
    """

    id: int
    effect: str
    outcome: str
    cause: str
    attempts: int
    key: str
    call: str
    type: str | None
    stream: str | None
    version: int | None
    asked_at: datetime
    first_try_at: datetime | None
    dead_at: datetime
    resolution: str | None
    resolved_by: str | None


def list_effect_letters(
    connection: psycopg.Connection[Any],
    *,
    effect: str | None = None,
    ids: Iterable[int] | None = None,
    resolved: bool = False,
    limit: int = MANY,
) -> list[EffectLetter]:
    """Return calls that were given up, by effect and number; with `resolved` also those discarded."""
    values = {
        "effect": effect,
        "ids": None if ids is None else [each for each in ids if 0 < each <= HIGHEST],
        "resolved": resolved,
        "limit": limit,
    }
    with connection.cursor(row_factory=class_row(EffectLetter)) as cursor:
        return cursor.execute(statement("effect_letters"), values).fetchall()


def content_of(connection: psycopg.Connection[Any], letter: int) -> tuple[str, str | None]:
    """Return data and metadata of a call that was given up, as JSON; raises `EffectLetterError`."""
    row = connection.execute(statement("effect_content"), (letter,)).fetchone()
    if row is None:
        raise _gone(letter)
    return row[0], row[1]


def retry(connection: psycopg.Connection[Any], letter: int, by: str, *, even_expired: bool = False) -> None:
    """Make a call due again, with the same key and as many tries as at first, on the word of `by`.

    An `expired` one only with `even_expired`, which says that no try of it has had an effect. One of `key_conflict`
    never. Raises `EffectLetterError`.
    """
    found = _open(connection, letter)
    if found.outcome == "key_conflict":
        raise EffectLetterError(
            f"effect:{letter}: expected a call that can be made, found one whose key stands for other content; ask for "
            "it with a key of its own, and discard this one"
        )
    if found.outcome == "expired" and not even_expired:
        raise EffectLetterError(
            f"effect:{letter}: expected a call whose key is known, found one that may have taken effect before it was "
            "forgotten; say that it has not (--even-expired), or discard it"
        )
    fresh = found.outcome == "expired"
    # As it was looked at: another operator may have been here, and the call have died anew.
    values = {"id": letter, "by": by, "fresh": fresh, "outcome": found.outcome}
    if connection.execute(statement("effect_retry"), values).rowcount != 1:
        raise _gone(letter)
    connection.execute(statement("effect_wake"))


def discard(connection: psycopg.Connection[Any], letter: int, by: str) -> None:
    """Give a call up for good, on the word of `by`; its record stays for 30 days, its key is known for ever.

    Raises `EffectLetterError`.
    """
    values = {"id": letter, "by": by, "keep": DISCARDED}
    if connection.execute(statement("effect_discard"), values).rowcount != 1:
        raise _gone(letter)


def _open(connection: psycopg.Connection[Any], letter: int) -> EffectLetter:
    found = list_effect_letters(connection, ids=[letter])
    if not found:
        raise _gone(letter)
    return found[0]


def _gone(letter: int) -> EffectLetterError:
    return EffectLetterError(
        f"expected the number of a dead letter of an effect that is open, found {letter}; list those there are"
    )

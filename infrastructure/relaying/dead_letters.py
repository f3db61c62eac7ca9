"""Dead letters of the outbox: messages that the broker refused for good, and what is done about them.

The relay itself publishes what is asked for: it alone may, in the order of their sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row

from ...domain.errors import OnefoldError
from ..postgres.sql import statement

HIGHEST = 2**63 - 1


class HeldMessageError(OnefoldError):
    """A message that is to be dealt with is not held back any more, or never was."""


@dataclass(frozen=True, slots=True)
class HeldMessage:
    """A message that was refused: why (`cause`), how often, and how many of its key wait `behind` it.

    `asked_at` is when another try was asked for that was not made yet.
    """

    id: int
    relay: str
    key: str
    message_id: str
    type: str
    cause: str | None
    attempts: int
    held_at: datetime
    asked_at: datetime | None
    resolved_at: datetime | None
    resolution: str | None
    resolved_by: str | None
    position: int
    behind: int


def list_held(
    connection: psycopg.Connection[Any],
    *,
    ids: Sequence[int] | None = None,
    relay: str | None = None,
    resolved: bool = False,
    limit: int = 10_000,
) -> list[HeldMessage]:
    """Return the messages that were refused, the oldest first; with `resolved` also those that were dealt with."""
    numbers = None if ids is None else [each for each in ids if 0 < each <= HIGHEST]
    values = {"ids": numbers, "relay": relay, "resolved": resolved, "limit": limit}
    with connection.cursor(row_factory=class_row(HeldMessage)) as cursor:
        return cursor.execute(statement("relay_letters"), values).fetchall()


def message_of(connection: psycopg.Connection[Any], held: int) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of a held message as they are to go out; raises `HeldMessageError`."""
    row = connection.execute(statement("relay_letter_message"), (held,)).fetchone()
    if row is None:
        raise HeldMessageError(f"expected a held message, found none with the number {held}")
    return bytes(row[0]), row[1]


def retry(connection: psycopg.Connection[Any], held: int) -> None:
    """Ask its relay for another try of a message, and then of those behind it; raises `HeldMessageError`."""
    if connection.execute(statement("relay_ask"), (held,)).rowcount != 1:
        raise _gone(held)


def discard(connection: psycopg.Connection[Any], held: int, who: str) -> None:
    """Give a message up; those behind it go out. Raises `HeldMessageError`."""
    if connection.execute(statement("relay_discard"), {"id": held, "who": who}).fetchone() is None:
        raise _gone(held)


def _gone(held: int) -> HeldMessageError:
    return HeldMessageError(
        f"expected a message that is held back, found none with the number {held}; it was published or discarded "
        "meanwhile, or never was"
    )

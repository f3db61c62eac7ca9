"""Seals as the database keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from ...domain.merkle import Peaks
from ...domain.seal import Seal
from ..postgres.sql import statement

ALL = 2**63 - 1


@dataclass(frozen=True, slots=True)
class StoredSeal:
    """A seal with what is kept beside its statement; nothing of it need fit together."""

    seal: Seal
    hash: bytes
    public_key: bytes | None
    signature: bytes | None
    peaks: bytes

    @property
    def tree(self) -> Peaks | None:
        """The tree whose root the seal holds, None if what is kept of it has another root."""
        try:
            tree = Peaks.of(self.seal.size, self.peaks)
        except ValueError:
            return None
        return tree if tree.root == self.seal.root else None


def last_seal(connection: psycopg.Connection[Any], log: str) -> StoredSeal | None:
    """Return the last seal of a log, None if there is none."""
    with connection.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute(statement("seal_last"), {"log": log}).fetchone()
    return None if row is None else _stored(row)


def seals(
    connection: psycopg.Connection[Any], log: str, *, after: int = 0, upto: int = ALL
) -> list[StoredSeal]:
    """Return the seals of a log with numbers above `after` and up to `upto`, in order."""
    with connection.cursor(row_factory=tuple_row) as cursor:
        rows = cursor.execute(statement("seal_list"), {"log": log, "after": after, "upto": upto})
        return [_stored(row) for row in rows]


def marks(connection: psycopg.Connection[Any], log: str, number: int) -> bytes | None:
    """Return the marks of a seal, None if there is no such seal."""
    with connection.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute(statement("seal_marks"), {"log": log, "number": number}).fetchone()
    return None if row is None else row[0]


def _stored(row: Sequence[Any]) -> StoredSeal:
    return StoredSeal(Seal(*row[:10]), *row[10:])

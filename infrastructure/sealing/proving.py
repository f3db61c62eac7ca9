"""Proofs that can be checked without the database: of an event in a seal, and of one seal continuing another."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import tuple_row
from psycopg.sql import Identifier

from ...domain.content import COLUMNS, FIRST, content_hash, event_hash, fields_of
from ...domain.merkle import Peaks, consistency_proof, includes, inclusion_proof
from ...domain.seal import Seal
from ..history import require_log
from ..postgres.sql import statement
from .contents import Contents
from .errors import NotSealed, SealRefused
from .stored import StoredSeal, last_seal, seals

POSITIONS_AT_ONCE = 20_000

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_YEARS = (datetime.min.replace(tzinfo=UTC) - _EPOCH, datetime.max.replace(tzinfo=UTC) - _EPOCH)


def prove_event(
    connection: psycopg.Connection[Any], position: int, *, log: str = "events", number: int | None = None
) -> dict[str, Any]:
    """Return the proof that the event at a position stands in a seal, the last one unless a number is given.

    It holds the event with all its columns, the hash of its stream's previous event, the number of its leaf, the audit
    path (RFC 6962) and the seal, as values of JSON: hashes in hex. Raises `UnknownLog`, `NotSealed`, and `SealRefused`
    if the event, its hash or the seal were altered, so that there is no proof.
    """
    require_log(connection, log)
    seal = _seal(connection, log, number)
    mine = _seal_of(connection, log, position)
    if mine is None or mine.seal.number > seal.seal.number:
        raise NotSealed(
            f"expected position {position} in a seal up to number {seal.seal.number}, found "
            f"{'none' if mine is None else f'seal {mine.seal.number}'}; run `onefold seal`, or name a later one"
        )
    content = dict(Contents(connection, log).at([position])).get(position)
    row = _hash_row(connection, log, position)
    if content is None or row is None:
        raise NotSealed(
            f"expected an event at position {position}, found none; run `onefold verify` if there was one"
        )
    previous, leaf, before = row
    index = mine.seal.size - mine.seal.events + before
    hashes = _Hashes(connection, log)
    path = hashes.prove(lambda subtree: inclusion_proof(index, seal.seal.size, subtree), seal.seal)
    if event_hash(previous, content_hash(content)) != leaf or not includes(
        leaf, index, seal.seal.size, path, seal.seal.root
    ):
        raise SealRefused(
            f"expected the event at position {position} as it was sealed, found that it or its proof "
            "was altered; run `onefold verify`"
        )
    return {
        "proves": "inclusion",
        "event": _event(fields_of(content)),
        "previous": previous.hex(),
        "leaf": index,
        "path": [step.hex() for step in path],
        "seal": _told(seal),
    }


def prove_continuation(
    connection: psycopg.Connection[Any], first: int, *, log: str = "events", number: int | None = None
) -> dict[str, Any]:
    """Return the proof that one seal, the last one unless a number is given, speaks of all that seal `first` spoke of.

    Raises `UnknownLog`, and `NotSealed` for a seal that is not there or comes before the first.
    """
    require_log(connection, log)
    earlier, later = _seal(connection, log, first), _seal(connection, log, number)
    if earlier.seal.number > later.seal.number:
        raise NotSealed(
            f"expected a seal from number {first} on, found {later.seal.number}; name them the other way round"
        )
    sizes = earlier.seal.size, later.seal.size
    path = _Hashes(connection, log).prove(lambda subtree: consistency_proof(*sizes, subtree), later.seal)
    return {
        "proves": "consistency",
        "first": _told(earlier),
        "path": [step.hex() for step in path],
        "seal": _told(later),
    }


class _Hashes:
    """The hashes of a log in order, from which the roots of subtrees are made in one pass."""

    def __init__(self, connection: psycopg.Connection[Any], log: str) -> None:
        self._connection = connection
        self._query = statement("seal_leaves", hashes=Identifier("onefold", f"{log}_hashes"))

    def prove(self, proof: Any, seal: Seal) -> list[bytes]:
        """Return what `proof` makes of subtrees of the tree of a seal."""
        wanted: list[tuple[int, int]] = []

        def note(start: int, end: int) -> bytes:
            wanted.append((start, end))
            return b""

        proof(note)
        roots = self._roots(sorted(wanted), seal)
        path: list[bytes] = proof(lambda start, end: roots[start, end])
        return path

    def _roots(self, wanted: Sequence[tuple[int, int]], seal: Seal) -> dict[tuple[int, int], bytes]:
        """Return the root of each subtree; they lie one after the other."""
        trees = {each: Peaks() for each in wanted}
        at, position = 0, 0
        while position < seal.last:
            with self._connection.cursor(row_factory=tuple_row, binary=True) as cursor:
                upto = min(position + POSITIONS_AT_ONCE, seal.last)
                row = cursor.execute(self._query, {"first": position + 1, "last": upto}).fetchone()
            joined = b"" if row is None or row[0] is None else row[0]
            leaves = [joined[start : start + 32] for start in range(0, len(joined), 32)]
            for (start, end), tree in trees.items():
                if start < at + len(leaves) and end > at:
                    trees[start, end] = tree.extended(leaves[max(start - at, 0) : end - at])
            at, position = at + len(leaves), upto
        return {each: tree.root for each, tree in trees.items()}


def _seal(connection: psycopg.Connection[Any], log: str, number: int | None) -> StoredSeal:
    if number is None:
        found = last_seal(connection, log)
    else:
        found = next(iter(seals(connection, log, after=number - 1, upto=number)), None)
    if found is None:
        wanted = "a seal" if number is None else f"seal {number}"
        raise NotSealed(f"expected {wanted} of log {log}, found none; seal with `onefold seal`")
    return found


def _seal_of(connection: psycopg.Connection[Any], log: str, position: int) -> StoredSeal | None:
    with connection.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute(statement("seal_of_position"), {"log": log, "position": position}).fetchone()
    return None if row is None else _seal(connection, log, row[0])


def _hash_row(
    connection: psycopg.Connection[Any], log: str, position: int
) -> tuple[bytes, bytes, int] | None:
    """Return the hash of the event before it in its stream, its own, and how many stand before it in its range."""
    hashes = Identifier("onefold", f"{log}_hashes")
    with connection.cursor(row_factory=tuple_row) as cursor:
        values = {"log": log, "position": position}
        row = cursor.execute(statement("seal_hash_of", hashes=hashes), values).fetchone()
    return None if row is None else (row[0] or FIRST, row[1], row[2])


def _told(stored: StoredSeal) -> dict[str, Any]:
    return {
        **stored.seal.fields(),
        "hash": stored.seal.hash.hex(),
        "public_key": None if stored.public_key is None else stored.public_key.hex(),
        "signature": None if stored.signature is None else stored.signature.hex(),
    }


def _event(fields: Sequence[bytes | None]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for name, value in zip(COLUMNS, fields, strict=True):
        if value is None:
            told[name] = None
        elif name in ("position", "version", "schema_version"):
            told[name] = int.from_bytes(value, "big", signed=True)
        elif name in ("occurred_at", "recorded_at"):
            told[name] = _instant(int.from_bytes(value, "big", signed=True))
        elif name == "event_id":
            told[name] = str(UUID(bytes=value))
        elif name in ("data", "metadata"):
            told[name] = value[1:].decode()
        elif name == "raw":
            told[name] = base64.b64encode(value).decode()
        else:
            told[name] = value.decode()
    return told


def _instant(microseconds: int) -> str | int:
    """Return an instant in ISO 8601, or microseconds since 2000 where it has no such form."""
    low, high = (edge // timedelta(microseconds=1) for edge in _YEARS)
    if not low <= microseconds <= high:
        return microseconds
    text = (_EPOCH + timedelta(microseconds=microseconds)).isoformat(timespec="microseconds")
    return text.replace("+00:00", "Z")

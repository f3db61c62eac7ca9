"""Verifying one sealed range against its seal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from struct import Struct
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import tuple_row
from psycopg.sql import Identifier

from ...domain.content import FIRST, checks_of, columns_apart, content_hash, event_hash, fields_of
from ...domain.merkle import Peaks
from ...domain.seal import Seal, marked, marks_of
from ..postgres.sql import statement
from .contents import Contents
from .finding import Finding, Kind

KNOWN_HASHES = 400_000
"""Hashes that are remembered for the events that follow; others are looked up."""

ALTERED = "the hash was altered"

_ROW = Struct(">qq32s")


@dataclass(slots=True)
class RangeResult:
    """What became of a range: how many events stand in it, what was found, and the tree up to its end if it fits."""

    events: int
    findings: list[Finding] = field(default_factory=list)
    tree: Peaks | None = None


class _Kept(NamedTuple):
    previous: int
    version: int
    stream: str
    hash: bytes
    checks: bytes


class RangeVerifier:
    """Verifies ranges of one log, in order, on a connection of its own that sees one snapshot."""

    def __init__(self, connection: psycopg.Connection[Any], log: str, *, hashes: bool = True) -> None:
        self._connection = connection
        self._contents = Contents(connection, log)
        self._log = Identifier("onefold", log)
        self._hashes = Identifier("onefold", f"{log}_hashes")
        self._has_hashes = hashes
        self._known: dict[int, bytes] = {}

    def verify(self, seal: Seal, marks: bytes | None, before: Peaks | None) -> RangeResult:
        """Compare what stands in a range with its seal.

        `marks` are those that the seal tells the hash of, None if they are lost. `before` is the tree up to the range,
        None if it is not known; then the root cannot be compared.
        """
        contents = [
            (position, content_hash(content))
            for position, content in self._contents.between(seal.first, seal.last)
        ]
        rows = self._rows(seal)
        positions = [position for position, _ in contents]
        if positions == [row[0] for row in rows] and marks == marks_of(contents):
            hashes = self._chained(contents, rows)
            tree = None if before is None else before.extended(hashes)
            if hashes == [row[2] for row in rows] and tree is not None and self._fits(tree, seal):
                self._remember(rows)
                return RangeResult(len(contents), tree=tree)
        return self._diagnose(seal, marks, before, dict(contents))

    def _rows(self, seal: Seal) -> list[tuple[int, int, bytes]]:
        if not self._has_hashes:
            return []
        with self._connection.cursor(row_factory=tuple_row, binary=True) as cursor:
            values = {"first": seal.first, "last": seal.last}
            row = cursor.execute(statement("seal_hashes", hashes=self._hashes), values).fetchone()
        # A hash of another length is refused by the table; one that got in leads to a diagnosis.
        joined = b"" if row is None or row[0] is None else row[0]
        return list(_ROW.iter_unpack(joined)) if len(joined) % _ROW.size == 0 else []

    def _chained(self, contents: list[tuple[int, bytes]], rows: list[tuple[int, int, bytes]]) -> list[bytes]:
        """Return the hash of each event, made of what is kept of the event before it."""
        known = {row[0]: row[2] for row in rows}
        self._look_up(row[1] for row in rows if row[1] and row[1] not in known)
        earlier = self._known
        hashes: list[bytes] = []
        for (_, content), (_, previous, _) in zip(contents, rows, strict=True):
            before = (known.get(previous) or earlier.get(previous, b"")) if previous else FIRST
            hashes.append(sha256(b"\0" + before + content).digest())
        return hashes

    def _look_up(self, positions: Iterable[int]) -> None:
        missing = [position for position in positions if position not in self._known]
        if not missing:
            return
        with self._connection.cursor(row_factory=tuple_row) as cursor:
            found = cursor.execute(statement("seal_hashes_at", hashes=self._hashes), {"positions": missing})
            self._known.update(found)

    def _remember(self, rows: list[tuple[int, int, bytes]]) -> None:
        if len(self._known) > KNOWN_HASHES:
            self._known.clear()
        self._known.update((row[0], row[2]) for row in rows)

    def _fits(self, tree: Peaks, seal: Seal) -> bool:
        return tree.size == seal.size and tree.root == seal.root

    def _diagnose(
        self, seal: Seal, marks: bytes | None, before: Peaks | None, found: dict[int, bytes]
    ) -> RangeResult:
        """Find out what of the range is not as it was sealed."""
        kept = self._kept(seal)
        expected = None if marks is None else marked(marks)
        self._look_up(row.previous for row in kept.values() if row.previous and row.previous not in kept)
        there = set(kept if expected is None else expected)
        # If the hashes that are kept lead to the root, they are those that were sealed.
        sure = (
            self._tree(seal, before, [kept[each].hash if each in kept else None for each in sorted(there)])
            is not None
        )
        findings: list[Finding] = []
        leaves: list[bytes | None] = []
        for position in sorted({*found, *kept, *(expected or ())}):
            row, content = kept.get(position), found.get(position)
            finding: Finding | None
            if position not in there:
                finding = self._strange(seal, position, row, content)
            else:
                mark = None if expected is None else expected[position]
                finding, leaf = self._compared(seal, position, kept, content, mark, sure)
                leaves.append(leaf)
            if finding is not None:
                findings.append(finding)
        tree = self._tree(seal, before, leaves)
        if not findings and tree is None:
            findings.append(Finding(Kind.SEAL, seal.number, detail=self._unexplained(before)))
        self._known.clear()
        return RangeResult(len(found), self._named(findings, kept), tree)

    def _strange(self, seal: Seal, position: int, row: _Kept | None, content: bytes | None) -> Finding:
        """Return the finding of a position at which nothing was sealed."""
        if content is not None:
            return Finding(Kind.INSERTED, seal.number, position)
        assert row is not None
        return Finding(
            Kind.HASH, seal.number, position, row.stream, row.version, detail="the hash was inserted"
        )

    def _compared(
        self,
        seal: Seal,
        position: int,
        kept: dict[int, _Kept],
        content: bytes | None,
        mark: bytes | None,
        sure: bool,
    ) -> tuple[Finding | None, bytes | None]:
        """Return what is wrong with a position at which an event was sealed, and the hash of that event, if known."""
        row = kept.get(position)
        if row is None:
            if content is None:
                detail = "its hash was removed too, so its stream is not known"
                return Finding(Kind.REMOVED, seal.number, position, detail=detail), None
            if content[:8] != mark:
                return Finding(Kind.ALTERED, seal.number, position, detail="its hash was removed"), None
            if self._has_hashes:
                return Finding(Kind.HASH, seal.number, position, detail="the hash was removed"), None
            return None, None
        about = Finding(Kind.ALTERED, seal.number, position, row.stream, row.version)
        if content is None:
            return replace(about, kind=Kind.REMOVED), row.hash
        hashed = self._hash(row, content, kept)
        if mark is not None and content[:8] != mark:
            return (
                replace(about, detail="its hash was recomputed") if hashed == row.hash else about
            ), row.hash
        if hashed is None or hashed == row.hash:
            return None, row.hash
        if mark is None:
            return about, row.hash
        if sure:
            # What it was made of was altered: the hash of an event in another range, or which event that is.
            return (
                None if self._is_previous(row) else replace(about, kind=Kind.HASH, detail=ALTERED)
            ), row.hash
        # What follows is compared with the hash that this event has.
        kept[position] = row._replace(hash=hashed)
        return replace(about, kind=Kind.HASH, detail=ALTERED), hashed

    def _is_previous(self, row: _Kept) -> bool:
        """Tell whether the event that the row names as the one before it in its stream is that one."""
        with self._connection.cursor(row_factory=tuple_row) as cursor:
            values = {"first": row.previous, "last": row.previous}
            found = cursor.execute(statement("seal_kept", hashes=self._hashes), values).fetchone()
        return found is not None and (found[3], found[2]) == (row.stream, row.version - 1)

    def _unexplained(self, before: Peaks | None) -> str:
        if before is None:
            return "the root cannot be compared: the tree up to the range is not known"
        if not self._has_hashes:
            return "the root cannot be compared: the database has no hashes of this log"
        return "the root is not that of the hashes: they were recomputed, after an earlier event was changed"

    def _hash(self, row: _Kept, content: bytes, kept: dict[int, _Kept]) -> bytes | None:
        if not row.previous:
            return event_hash(FIRST, content)
        inside = kept.get(row.previous)
        before = self._known.get(row.previous) if inside is None else inside.hash
        return None if before is None else event_hash(before, content)

    def _tree(self, seal: Seal, before: Peaks | None, leaves: list[bytes | None]) -> Peaks | None:
        hashes = [leaf for leaf in leaves if leaf is not None]
        if before is None or len(hashes) < len(leaves):
            return None
        tree = before.extended(hashes)
        return tree if self._fits(tree, seal) else None

    def _kept(self, seal: Seal) -> dict[int, _Kept]:
        if not self._has_hashes:
            return {}
        with self._connection.cursor(row_factory=tuple_row) as cursor:
            values = {"first": seal.first, "last": seal.last}
            rows = cursor.execute(statement("seal_kept", hashes=self._hashes), values)
            return {position: _Kept(*rest) for position, *rest in rows}

    def _named(self, findings: list[Finding], kept: dict[int, _Kept]) -> list[Finding]:
        """Return the findings with what the events at hand tell: stream and version, and which column was altered."""
        there = {each.position for each in findings if each.kind in (Kind.ALTERED, Kind.INSERTED)}
        contents = self._contents.at(sorted(position for position in there if position is not None))
        present = {position: fields_of(content) for position, content in contents}
        named: list[Finding] = []
        for each in findings:
            position = each.position or 0
            fields = present.get(position)
            if fields is None:
                named.append(each)
                continue
            stream = (fields[6] or b"").decode(errors="replace")
            version = int.from_bytes(fields[1] or b"", "big", signed=True)
            row = kept.get(position)
            if row is None or each.kind is Kind.INSERTED:
                named.append(replace(each, stream=stream, version=version))
                continue
            stands = None if (row.stream, row.version) == (stream, version) else (stream, version)
            named.append(replace(each, columns=columns_apart(row.checks, checks_of(fields)), stands=stands))
        return named

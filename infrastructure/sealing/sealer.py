"""The sealer: hashes the events of a log behind its writers, and seals the ranges that are closed.

A range is closed when each hole in it was rolled back for good (`postgres.horizon`): no event can come to stand there.
Hashes and seal of a range are written in one transaction; the log is only read, and no writer waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from struct import pack
from typing import Any, NamedTuple, Protocol

import psycopg
from psycopg.rows import tuple_row
from psycopg.sql import Identifier

from ...domain.content import FIRST, checks_of, content_hash, event_hash, fields_of
from ...domain.merkle import Peaks
from ...domain.seal import BEGINNING, Seal, marks_of
from ..history import require_log
from ..postgres.horizon import Horizon
from ..postgres.sql import statement
from .contents import Contents
from .errors import HandedOutDiffers, SealRefused
from .handed import Handing, line_of
from .stored import StoredSeal, last_seal, marks, seals

EVENTS_AT_ONCE = 10_000
"""Events that one seal speaks of at most."""

KNOWN_STREAMS = 200_000
"""Streams whose last event is remembered between two ranges; that of others is looked up."""

SEALS_AT_ONCE = 100

Report = Callable[[Seal], None]


class Signs(Protocol):
    """What a signer has."""

    public_key: bytes

    def sign(self, statement: bytes) -> bytes:
        """Return the signature of a statement."""
        ...


@dataclass(frozen=True, slots=True)
class Sealed:
    """What a run of the sealer did.

    `upto` is the last position that is sealed now. `waiting` tells that an append which is still open kept it from
    going on, `busy` that another sealer is at this log, so that nothing was done.
    """

    seals: int = 0
    events: int = 0
    handed_out: int = 0
    upto: int = 0
    waiting: bool = False
    busy: bool = False


class _Event(NamedTuple):
    position: int
    version: int
    stream: bytes
    content: bytes
    checks: bytes


class _Last(NamedTuple):
    version: int
    position: int
    hash: bytes


class Sealer:
    """Seals one log on a connection of its own, which is in autocommit mode.

    `to` is the file that seals are handed out to, `signer` what signs them. Not for several threads at once. Raises
    `UnknownLog`; its methods raise `SealRefused` and `HandedOutDiffers` when what is there does not fit together, and
    `SealFileError`.
    """

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        *,
        log: str = "events",
        to: Path | None = None,
        signer: Signs | None = None,
        events_at_once: int = EVENTS_AT_ONCE,
    ) -> None:
        require_log(connection, log)
        self._connection = connection
        self._log = log
        self._signer = signer
        self._handing = None if to is None else Handing(to)
        self._file = to
        self._handed: int | None = None
        self._events_at_once = events_at_once
        self._names = {"log": Identifier("onefold", log), "hashes": Identifier("onefold", f"{log}_hashes")}
        self._horizon = Horizon("onefold", log)
        self._contents = Contents(connection, log)
        self._known: dict[bytes, _Last] = {}
        with connection.cursor(row_factory=tuple_row) as cursor:
            cursor.execute("SELECT to_regclass(format('onefold.%%I', %s::text)) IS NULL", (f"{log}_hashes",))
            if cursor.fetchone() == (True,):
                cursor.execute("SELECT onefold.create_hashes(%s)", (log,))

    def run(self, *, patience: float = 0.0, progress: Report = lambda _seal: None) -> Sealed:
        """Seal what stands in the log now and is closed, and hand out what is not handed out yet.

        An append that is open in front of some of it is waited for, `patience` seconds at most.
        """
        with _alone(self._connection, self._log) as alone:
            if not alone:
                return Sealed(busy=True)
            handed = self._hand_out()
            settled = self._horizon.settle(self._connection)
            # Writers go on meanwhile; what they append is for the next run.
            target, deadline = self._head(), time.monotonic() + patience
            made = events = 0
            while True:
                for seal in self._seal_upto(settled, target):
                    made, events = made + 1, events + seal.events
                    handed += self._hand_out()
                    progress(seal)
                last = last_seal(self._connection, self._log)
                upto = 0 if last is None else last.seal.last
                if upto >= target or time.monotonic() > deadline:
                    return Sealed(made, events, handed, upto, waiting=upto < target)
                time.sleep(0.02)
                settled = self._horizon.settle(self._connection)

    def _head(self) -> int:
        with self._connection.cursor(row_factory=tuple_row) as cursor:
            row = cursor.execute(statement("head", log=self._names["log"])).fetchone()
        assert row is not None
        return int(row[0])

    def _seal_upto(self, settled: int, target: int) -> Iterator[Seal]:
        try:
            while (seal := self._seal_range(settled, target)) is not None:
                yield seal
        except BaseException:
            # What was remembered may have been rolled back.
            self._known.clear()
            raise

    def _seal_range(self, settled: int, target: int) -> Seal | None:
        connection = self._connection
        with connection.transaction():
            before = last_seal(connection, self._log)
            after = 0 if before is None else before.seal.last
            last = self._end(after, settled, target)
            if last is None:
                return None
            tree = self._tree(before)
            first = after + 1
            events = list(self._read(first, last))
            leaves = self._write_hashes(events)
            marked = marks_of((event.position, event.content) for event in events)
            tree = tree.extended(leaves)
            seal = Seal(
                self._log,
                1 if before is None else before.seal.number + 1,
                first,
                last,
                len(events),
                tree.size,
                tree.root,
                sha256(marked).digest(),
                BEGINNING if before is None else before.seal.hash,
                self._now(),
            )
            self._write(seal, tree, marked)
        return seal

    def _end(self, after: int, settled: int, target: int) -> int | None:
        """Return where the range ends that begins after a position, None if nothing is closed there."""
        with self._connection.cursor(row_factory=tuple_row) as cursor:
            values = {
                "after": after,
                "settled": max(after, settled),
                "target": target,
                "limit": self._events_at_once,
            }
            row = cursor.execute(statement("seal_upto", log=self._names["log"]), values).fetchone()
        assert row is not None
        last: int | None = row[0]
        return last

    def _tree(self, before: StoredSeal | None) -> Peaks:
        if before is None:
            return Peaks()
        tree = before.tree
        if tree is None or before.hash != before.seal.hash:
            raise SealRefused(
                f"expected seal {before.seal.number} of log {self._log} as it was made, found it altered; nothing is "
                "sealed on top of it: run `onefold verify`, with --against if seals were handed out"
            )
        return tree

    def _read(self, first: int, last: int) -> Iterator[_Event]:
        for position, content in self._contents.between(first, last):
            fields = fields_of(content)
            version, stream = fields[1], fields[6]
            assert version is not None
            assert stream is not None
            yield _Event(
                position, int.from_bytes(version, "big"), stream, content_hash(content), checks_of(fields)
            )

    def _write_hashes(self, events: list[_Event]) -> list[bytes]:
        known = self._known
        self._look_up(events)
        leaves: list[bytes] = []
        rows = [b"PGCOPY\n\xff\r\n\0" + bytes(8)]
        for position, version, stream, content, checks in events:
            last = known.get(stream)
            if last is None or last.version != version - 1:
                if version > 1 or last is not None:
                    self._refuse(position, version, stream)
                before, hash_before = b"\xff\xff\xff\xff", FIRST
            else:
                before, hash_before = pack(">iq", 8, last.position), last.hash
            leaf = event_hash(hash_before, content)
            known[stream] = _Last(version, position, leaf)
            leaves.append(leaf)
            rows.append(
                b"".join(
                    (
                        pack(">hiq", 6, 8, position),
                        before,
                        pack(">iqi", 8, version, len(stream)),
                        stream,
                        b"\0\0\0\x20",
                        leaf,
                        pack(">i", len(checks)),
                        checks,
                    )
                )
            )
        rows.append(b"\xff\xff")
        with (
            self._connection.cursor() as cursor,
            cursor.copy(statement("seal_copy_hashes", hashes=self._names["hashes"])) as copy,
        ):
            copy.write(b"".join(rows))
        if len(known) > KNOWN_STREAMS:
            known.clear()
        return leaves

    def _look_up(self, events: Iterable[_Event]) -> None:
        """Get the last sealed event of streams that are not remembered."""
        known = self._known
        first: dict[bytes, int] = {}
        for event in events:
            if event.stream not in known:
                first.setdefault(event.stream, event.version)
        if not first:
            return
        values = {
            "streams": [stream.decode() for stream in first],
            "versions": [version - 1 for version in first.values()],
        }
        with self._connection.cursor(row_factory=tuple_row) as cursor:
            for stream, version, position, leaf in cursor.execute(
                statement("seal_previous", **self._names), values
            ):
                known[stream.encode()] = _Last(version, position, leaf)

    def _refuse(self, position: int, version: int, stream: bytes) -> None:
        raise SealRefused(
            f"expected version {version - 1} of stream {stream.decode()} before version {version} at position "
            f"{position}, found none with a hash: an event was removed or renumbered. Nothing was sealed; run "
            "`onefold verify`, and look at the backups"
        )

    def _now(self) -> datetime:
        with self._connection.cursor(row_factory=tuple_row) as cursor:
            row = cursor.execute("SELECT clock_timestamp()").fetchone()
        assert row is not None
        now: datetime = row[0]
        return now

    def _write(self, seal: Seal, tree: Peaks, marked: bytes) -> None:
        signer = self._signer
        values = {
            "log": seal.log,
            "number": seal.number,
            "first": seal.first,
            "last": seal.last,
            "events": seal.events,
            "size": seal.size,
            "root": seal.root,
            "marks_hash": seal.marks,
            "previous": seal.previous,
            "sealed_at": seal.sealed_at,
            "hash": seal.hash,
            "public_key": None if signer is None else signer.public_key,
            "signature": None if signer is None else signer.sign(seal.statement()),
            "peaks": bytes(tree),
            "marks": marked,
        }
        self._connection.execute(statement("seal_write"), values)

    def _hand_out(self) -> int:
        """Append the seals to the file that it does not have yet; return how many."""
        handing = self._handing
        if handing is None:
            return 0
        if self._handed is None:
            self._handed = self._require_same(handing)
        count = 0
        while missing := seals(
            self._connection, self._log, after=self._handed, upto=self._handed + SEALS_AT_ONCE
        ):
            for each in missing:
                marked = marks(self._connection, self._log, each.seal.number)
                if (
                    marked is None
                    or each.hash != each.seal.hash
                    or sha256(marked).digest() != each.seal.marks
                ):
                    raise HandedOutDiffers(
                        f"expected seal {each.seal.number} of log {self._log} as it was made, found it altered; "
                        "it is not handed out: run `onefold verify`"
                    )
                handing.append(line_of(each.seal, each.public_key, each.signature, marked))
                self._handed = each.seal.number
                count += 1
        return count

    def _require_same(self, handing: Handing) -> int:
        last = handing.last()
        if last is None:
            return 0
        number = last.seal.number
        found = seals(self._connection, self._log, after=number - 1, upto=number)
        if not found or found[0].seal.hash != last.seal.hash:
            state = "found another" if found else "found none"
            raise HandedOutDiffers(
                f"expected seal {number} of log {self._log} as it was handed out to {self._file}, {state} in the "
                f"database: it was altered, or the file is of another database. Nothing was sealed; run "
                f"`onefold verify --against {self._file}`"
            )
        return number


@contextmanager
def _alone(connection: psycopg.Connection[Any], log: str) -> Iterator[bool]:
    """Hold the lock of the log's sealer."""
    with connection.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute(statement("seal_lock"), {"log": log}).fetchone()
    if row != (True,):
        yield False
        return
    try:
        yield True
    finally:
        if not connection.closed:
            connection.execute(statement("seal_unlock"), {"log": log})

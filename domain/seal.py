"""Seals: what is said of a closed range of positions, once and for all."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from struct import Struct
from typing import Any

DOMAIN = b"onefold seal 1\n"
"""What the hashed and signed bytes begin with, so that they can be mistaken for nothing else."""

BEGINNING = bytes(32)
"""Stands for the hash of the seal before the first."""

_MARK = Struct(">q8s")


@dataclass(frozen=True, slots=True)
class Seal:
    """The seal of the positions `first` to `last` of a log, which are closed: no event can come to stand there.

    `events` stand in the range, `size` from the beginning of the log to its end. `root` is that of the Merkle tree over
    the hashes of all these `size` events. `marks` is the hash of the range's marks (`marks_of`), `previous` that of the
    seal before. Numbers go from 1 without holes.
    """

    log: str
    number: int
    first: int
    last: int
    events: int
    size: int
    root: bytes
    marks: bytes
    previous: bytes
    sealed_at: datetime

    def statement(self) -> bytes:
        """Return what is hashed and signed: a line that names the form, and canonical JSON."""
        return DOMAIN + json.dumps(self.fields(), sort_keys=True, separators=(",", ":")).encode()

    @property
    def hash(self) -> bytes:
        """SHA-256 of the statement."""
        return sha256(self.statement()).digest()

    def fields(self) -> dict[str, int | str]:
        """Return the seal as values of JSON: hashes in hex, the instant in ISO 8601."""
        instant = self.sealed_at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        return {
            "log": self.log,
            "number": self.number,
            "first": self.first,
            "last": self.last,
            "events": self.events,
            "size": self.size,
            "root": self.root.hex(),
            "marks": self.marks.hex(),
            "previous": self.previous.hex(),
            "sealed_at": instant,
        }

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Seal:
        """Return the seal that `fields` gave; raises ValueError for values that make none."""
        try:
            made = cls(
                str(fields["log"]),
                int(fields["number"]),
                int(fields["first"]),
                int(fields["last"]),
                int(fields["events"]),
                int(fields["size"]),
                bytes.fromhex(fields["root"]),
                bytes.fromhex(fields["marks"]),
                bytes.fromhex(fields["previous"]),
                datetime.fromisoformat(fields["sealed_at"]),
            )
            made.statement()
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"expected the fields of a seal: {error!r}") from error
        return made

    def follows(self, before: Seal | None) -> bool:
        """Tell whether this is the seal after `before`, the first one if there is none: a chain without a hole."""
        if before is None:
            return (self.number, self.first, self.previous) == (1, 1, BEGINNING) and self.size == self.events
        return (
            self.log == before.log
            and self.number == before.number + 1
            and self.first == before.last + 1
            and self.size == before.size + self.events
            and self.previous == before.hash
        )


def marks_of(contents: Iterable[tuple[int, bytes]]) -> bytes:
    """Return the marks of a range: for each event where it stands, and what it says.

    Each is 16 bytes: the position, and the beginning of the hash of the content. By them an altered event is named even
    if every hash after it was recomputed.
    """
    return b"".join([_MARK.pack(position, content[:8]) for position, content in contents])


def marked(marks: bytes) -> dict[int, bytes]:
    """Return the beginning of the content's hash by position; raises ValueError for what are no marks."""
    if len(marks) % _MARK.size:
        raise ValueError(f"expected marks of {_MARK.size} bytes each, found {len(marks)} bytes")
    return dict(_MARK.iter_unpack(marks))

"""What a verification finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What was done: to an event, to the table of hashes, or to the seals."""

    ALTERED = "altered"
    REMOVED = "removed"
    INSERTED = "inserted"
    MOVED = "moved"
    HASH = "hash"
    SEAL = "seal"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it was sealed.

    `position`, `stream` and `version` name the event, as it was sealed where that is known; `columns` are those that
    differ, if it can be told. `seal` is the number of the seal, 0 where none speaks of it. `stands` is the stream and
    version of the event that stands in its place now, where that is another one. `detail` says the rest.
    """

    kind: Kind
    seal: int
    position: int | None = None
    stream: str | None = None
    version: int | None = None
    columns: tuple[str, ...] = ()
    stands: tuple[str, int] | None = None
    detail: str = ""

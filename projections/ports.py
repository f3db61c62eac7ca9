"""Ports: what the engine needs from a log and from the place where read models are kept."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..domain.event import Event

Record = tuple[int, int, int, int, bytes, int, str, str, str | None, str | None]
"""One stored event as it comes off the wire: position, version, occurred_at and recorded_at (microseconds
since 2000-01-01 UTC), event id, schema version, stream, type, data and metadata (JSON text). Data is None
where it is not JSON, or where the reader was not asked for events of that type."""


@dataclass(frozen=True, slots=True)
class Page:
    """A run of the log without a missing event.

    `records` follow `after` in rising position, and nothing that belongs between `after` and `upto` is missing or
    can still appear. `waiting` is true when events beyond are there but an earlier one may still be committed.
    """

    after: int
    upto: int
    records: Sequence[Record]
    waiting: bool = False


class LogReader(Protocol):
    """Reads a log in the order of positions, skipping nothing that commits late."""

    def read(self, after: int, limit: int, types: Collection[str] | None = None) -> Page:
        """Return up to `limit` events after position `after`, with data only for `types` (all when None)."""
        ...

    def prefetch(self, after: int, limit: int, types: Collection[str] | None = None) -> None:
        """Ask for a page before it is read; may run in another thread, though not beside a read."""
        ...

    def event(self, record: Record) -> Event:
        """Return the decoded event of a record; raises when its type is unknown or its data does not fit."""
        ...


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a projection is: `position`, and the `token` that fences whoever held it before."""

    position: int
    token: int


Key = tuple[Any, ...]
Kept = tuple[int, Any]
"""Position last applied, and the row model (None: no row)."""


class ReadModel(Protocol):
    """Keeps one projection's rows and checkpoint, and changes both in one transaction."""

    def claim(self) -> Checkpoint | None:
        """Take or renew the lease; None while another worker holds it."""
        ...

    def load(self, keys: Collection[Key]) -> Mapping[Key, Kept]:
        """Return the stored rows of these keys; keys without a row are left out."""
        ...

    def pack(self, changes: Mapping[Key, Kept]) -> Any:
        """Return the changed rows (a None row is removed) made ready for `write`; no input or output.

        Raises `RowRefused` when a value does not fit its column.
        """
        ...

    def write(self, packed: Any, at: Checkpoint, upto: int) -> Checkpoint:
        """Write packed rows and move the checkpoint from `at` to `upto`, in one transaction.

        Raises `Fenced` when the checkpoint is no longer `at`, `RowRefused` when the database refuses a value.
        """
        ...

    def handle(self, page: Page, at: Checkpoint) -> Checkpoint:
        """Run the projection's own statements or handlers over a page, and move the checkpoint, in one transaction."""
        ...

    def release(self) -> None:
        """Give the lease up, so that another worker may take it at once."""
        ...

"""An event on its way to a file or from one: every column as text, so that nothing is rounded."""

from __future__ import annotations

from typing import NamedTuple


class Stored(NamedTuple):
    """An event with all that its log keeps of it.

    Instants are texts of RFC 3339 in UTC to the microsecond, `data` and `metadata` JSON as PostgreSQL writes it.
    """

    position: int
    version: int
    occurred_at: str
    recorded_at: str
    event_id: str
    schema_version: int
    stream: str
    type: str
    data: str | None
    raw: bytes | None
    metadata: str | None

    @property
    def place(self) -> str:
        """Where it stands, for messages."""
        return f"version {self.version} of {self.stream} (position {self.position})"

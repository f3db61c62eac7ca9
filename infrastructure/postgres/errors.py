"""Errors of the log and of what is kept beside it."""

from __future__ import annotations

from uuid import UUID

from ...domain.errors import OnefoldError


class VersionConflict(OnefoldError):
    """Someone else appended to the stream: its version is not the expected one. Nothing was written.

    Attributes: `stream`, `expected` (the version before the append) and `found` (None where it could not be read).
    """

    def __init__(self, stream: str, expected: int, found: int | None) -> None:
        self.stream = stream
        self.expected = expected
        self.found = found
        present = "another" if found is None else str(found)
        super().__init__(
            f"stream {stream}: expected version {expected}, found {present}; nothing was written. "
            "Load the aggregate again and repeat the command"
        )


class DuplicateEventId(OnefoldError):
    """An event with this id, but another place, is in the log. Nothing was written."""

    def __init__(self, event_id: UUID, stream: str) -> None:
        self.event_id = event_id
        super().__init__(
            f"event id {event_id} for stream {stream} is already in the log; nothing was written"
        )


class AggregateNotFound(OnefoldError, KeyError):
    """The stream of the aggregate has no events."""

    def __init__(self, stream: str, at: str = "") -> None:
        self.stream = stream
        super().__init__(f"stream {stream} has no events{at}")

    def __str__(self) -> str:
        return str(self.args[0])


class Fenced(OnefoldError):
    """Another worker took the projection over; this one has written nothing and must start anew."""

    def __init__(self, projection: str, expected: int) -> None:
        super().__init__(
            f"projection {projection} was taken over by another worker: the checkpoint is no longer at "
            f"position {expected} under this worker's lease; nothing was written"
        )


class BrokenTransaction(OnefoldError):
    """A handler returned without an error, and left the engine's transaction failed or ended."""

    def __init__(self) -> None:
        super().__init__(
            "expected the transaction to be open after the handler, found it failed or ended: a handler must not "
            "swallow an error of the database (use connection.transaction() around what may fail), and must "
            "neither commit nor roll back"
        )


class ReadModelChanged(OnefoldError):
    """The table of a projection was built by another shape or version of it."""

    def __init__(self, projection: str, reason: str | None = None) -> None:
        super().__init__(
            reason
            or f"projection {projection}: its row model, version or SQL is not the one that built table "
            f"read.{projection}; run `onefold rebuild {projection}`"
        )


class ReadModelReplaced(ReadModelChanged):
    """The table that a worker kept up was replaced by another version, which its code does not know."""

    def __init__(self, projection: str) -> None:
        super().__init__(
            projection,
            f"projection {projection}: expected the version in read.{projection} that this code has built, found that "
            "a rebuild by other code, or a rollback, has put another one in its place; this worker ends: start the "
            f"code of that version, or go back with `onefold projections rollback {projection}`",
        )

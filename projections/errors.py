"""Errors of projections."""

from __future__ import annotations

from typing import NamedTuple

from ..domain.errors import OnefoldError

ADVICE = "Events before it are applied; mend the fold or its row model and run again"


class FailedEvent(NamedTuple):
    """The event that a projection failed at, and why."""

    type_name: str
    stream: str
    version: int
    position: int
    reason: str


class Failure(NamedTuple):
    """An event that failed, and the exception that it failed with."""

    event: FailedEvent
    cause: BaseException

    @property
    def position(self) -> int:
        """The event's position."""
        return self.event.position


class ProjectionFailed(OnefoldError):
    """A projection stopped before an event that it cannot apply; everything before it is applied.

    Attributes: `projection` and `event` (type, stream, version, position, reason). `__cause__` is the exception
    that the fold, the handler or the database raised.
    """

    def __init__(self, projection: str, event: FailedEvent, *, advice: str = ADVICE) -> None:
        self.projection = projection
        self.event = event
        super().__init__(
            f"projection {projection} failed at event {event.type_name} "
            f"(stream {event.stream}, version {event.version}, position {event.position}): "
            f"{event.reason.rstrip('.')}. {advice}"
        )


class RowRefused(OnefoldError):
    """The database, or the type of a column, refuses what a page wrote; the page was rolled back."""

    def __init__(self, reason: BaseException) -> None:
        self.reason = reason
        super().__init__(str(reason))


class HandlerFailed(RowRefused):
    """A handler raised; the page was rolled back."""

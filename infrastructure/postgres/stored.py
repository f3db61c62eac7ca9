"""Stored events of the `eventsourcing` library, with what the log knows of them beyond the library."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from eventsourcing.persistence import Notification, StoredEvent

from ...domain.event import EventMeta


@dataclass(frozen=True)
class EncodedEvent(StoredEvent):
    """An Onefold event on its way into the log.

    `topic` is the event's name. `faithful` says that `state` is JSON whose value its event class restores, so that
    it is kept as JSON without a further look.
    """

    schema_version: int
    event_id: UUID | None
    occurred_at: datetime | None
    faithful: bool


@dataclass(frozen=True, eq=False)
class RecordedEvent(StoredEvent):
    """An event as it came from the log; equal to a plain stored event with the same content."""

    schema_version: int
    meta: EventMeta

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoredEvent) and _content(self) == _content(other)

    def __hash__(self) -> int:
        return hash(_content(self))


@dataclass(frozen=True, eq=False)
class RecordedNotification(Notification):
    """A notification as it came from the log; equal to a plain notification with the same content."""

    schema_version: int
    meta: EventMeta

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Notification) and self.id == other.id and _content(self) == _content(other)

    def __hash__(self) -> int:
        return hash((self.id, *_content(self)))


def _content(event: StoredEvent) -> tuple[UUID | str, int, str, bytes]:
    return event.originator_id, event.originator_version, event.topic, event.state

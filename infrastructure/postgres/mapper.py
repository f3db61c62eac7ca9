"""The mapper: Onefold's events and snapshots for the `eventsourcing` library, and everything else as it does itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Self, cast

from eventsourcing import persistence, utils
from eventsourcing.domain import DomainEventProtocol, TAggregateID
from eventsourcing.persistence import EventStore, MapperDeserialisationError, Notification, StoredEvent

from ...domain.aggregate import Aggregate, SnapshotCodec
from ...domain.event import Event, EventMeta, encode
from ...domain.registry import Registry
from ...domain.registry import registry as shared_registry
from .stored import EncodedEvent, RecordedEvent, RecordedNotification

SNAPSHOT = "onefold.snapshot"
"""Type under which the snapshots of Onefold's aggregates are kept."""


class AggregateSnapshot:
    """The state of an Onefold aggregate at a version, for an application of the library.

    Set it as the application's `snapshot_class`. A snapshot that does not fit the code is ignored when it is read.
    """

    def __init__(
        self, originator_id: str, originator_version: int, category: str, fingerprint: str, state: str
    ) -> None:
        self.originator_id = originator_id
        self.originator_version = originator_version
        self.category = category
        self.fingerprint = fingerprint
        self.state = state

    @classmethod
    def take(cls, aggregate: Aggregate) -> Self:
        """Return the snapshot of an aggregate as it is now."""
        codec = _codec(type(aggregate))
        return cls(
            aggregate.id, aggregate.version, aggregate.category, codec.fingerprint, codec.encode(aggregate)
        )

    def restore(self) -> Aggregate | None:
        """Return the aggregate, or None when no aggregate class of this category has the snapshot's shape."""
        for aggregate_class in _classes(self.category):
            codec = _codec(aggregate_class)
            if codec.fingerprint == self.fingerprint:
                try:
                    return codec.decode(self.originator_id, self.originator_version, self.state)
                except ValueError:
                    return None
        return None

    def mutate(self, aggregate: Aggregate | None) -> Aggregate | None:
        """Return the aggregate that the snapshot was taken of; `aggregate`, the state before, does not matter."""
        return self.restore() or aggregate


class SnapshotStore(EventStore[TAggregateID]):
    """The library's store of snapshots, which leaves out those of Onefold's aggregates that do not fit the code."""

    def get(
        self,
        originator_id: TAggregateID,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Iterator[DomainEventProtocol[TAggregateID]]:
        """Iterate over the snapshots of an aggregate; a limit counts those too that are left out."""
        return filter(_fits, super().get(originator_id, gt=gt, lte=lte, desc=desc, limit=limit))


class Mapper(persistence.Mapper[TAggregateID]):
    """Writes an Onefold event under its name and schema version and reads it through the registry.

    Compression and encryption apply to it as to any event; its data is JSON in the log when neither is set.
    """

    registry: Registry = shared_registry

    def to_stored_event(self, domain_event: DomainEventProtocol[TAggregateID]) -> StoredEvent:
        """Return the event as it is stored."""
        given: object = domain_event
        if isinstance(given, AggregateSnapshot):
            document = {
                "category": given.category,
                "fingerprint": given.fingerprint,
                "state": json.loads(given.state),
            }
            state = self._close(json.dumps(document, ensure_ascii=False).encode())
            return StoredEvent(given.originator_id, given.originator_version, SNAPSHOT, state)
        if isinstance(given, Event):
            meta = given.meta
            return EncodedEvent(
                meta.stream,
                meta.version,
                given.event_name,
                self._close(encode(given).encode()),
                given.schema_version,
                meta.event_id,
                meta.occurred_at,
                faithful=self.compressor is None and self.cipher is None,
            )
        return super().to_stored_event(domain_event)

    def to_domain_event(self, stored_event: StoredEvent) -> DomainEventProtocol[TAggregateID]:
        """Return the event that was stored; raises `UnknownEventType` for a name that no class is registered for."""
        topic = stored_event.topic
        # A topic of the library is an import path, or was registered with it; a name is never imported.
        if ":" in topic or topic in utils._topic_cache:
            return super().to_domain_event(stored_event)
        found: object
        if topic == SNAPSHOT:
            found = self._snapshot(stored_event)
        else:
            schema_version, meta = _place(stored_event)
            found = self.registry.decode(topic, schema_version, self._open(stored_event), meta)
        return cast("DomainEventProtocol[TAggregateID]", found)

    def _snapshot(self, stored_event: StoredEvent) -> AggregateSnapshot:
        document = json.loads(self._open(stored_event))
        return AggregateSnapshot(
            str(stored_event.originator_id),
            stored_event.originator_version,
            document["category"],
            document["fingerprint"],
            json.dumps(document["state"]),
        )

    def _close(self, state: bytes) -> bytes:
        if self.compressor is not None:
            state = self.compressor.compress(state)
        return state if self.cipher is None else self.cipher.encrypt(state)

    def _open(self, stored_event: StoredEvent) -> bytes:
        state = stored_event.state
        try:
            if self.cipher is not None:
                state = self.cipher.decrypt(state)
            return state if self.compressor is None else self.compressor.decompress(state)
        except Exception as error:
            raise MapperDeserialisationError(
                f"event {stored_event.topic!r} of {stored_event.originator_id} at version "
                f"{stored_event.originator_version} cannot be decrypted or decompressed: {error}; "
                "expected the CIPHER_KEY and the compressor that it was written with"
            ) from error


def _place(stored_event: StoredEvent) -> tuple[int, EventMeta]:
    if isinstance(stored_event, (RecordedEvent, RecordedNotification)):
        return stored_event.schema_version, stored_event.meta
    position = stored_event.id if isinstance(stored_event, Notification) else 0
    version = stored_event.schema_version if isinstance(stored_event, EncodedEvent) else 1
    return version, EventMeta(str(stored_event.originator_id), stored_event.originator_version, position)


def _fits(event: object) -> bool:
    return not isinstance(event, AggregateSnapshot) or event.restore() is not None


@cache
def _codec(aggregate_class: type[Aggregate]) -> SnapshotCodec[Aggregate]:
    return SnapshotCodec(aggregate_class)


def _classes(category: str) -> Iterator[type[Aggregate]]:
    waiting: list[type[Aggregate]] = [Aggregate]
    while waiting:
        aggregate_class = waiting.pop()
        waiting += aggregate_class.__subclasses__()
        if aggregate_class.category == category:
            yield aggregate_class

"""Histories of aggregates: what each event changed, and the state as of a point."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from pydantic_core import from_json

from ...domain.aggregate import Aggregate
from ...domain.change import Change
from ...domain.errors import OnefoldError
from ...domain.event import Event, EventMeta
from ...domain.past import Past, Watch, past
from ...domain.point import Point
from ...domain.registry import Registry
from ...domain.registry import registry as shared_registry
from ...projections.app import App
from ..history import RecordedEvent, history
from ..postgres.errors import AggregateNotFound

A = TypeVar("A", bound=Aggregate)


class UnknownCategory(OnefoldError, LookupError):
    """A stream is of a category that no aggregate of the application has, so its events cannot be folded."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An event of a history, and what it changed in the state of its aggregate.

    `changes` is empty for an event that changed nothing. Where it is not known what was changed, `unknown` says why.
    """

    event: RecordedEvent
    changes: tuple[Change, ...] = ()
    unknown: str = ""


def meta_of(event: RecordedEvent) -> EventMeta:
    """Return where and when a recorded event stands."""
    return EventMeta(
        event.stream,
        event.version,
        event.position,
        occurred_at=event.occurred_at,
        recorded_at=event.recorded_at,
        event_id=event.event_id,
        metadata=None if event.metadata is None else _mapping(event.metadata),
    )


def decoded(event: RecordedEvent, registry: Registry = shared_registry) -> Event:
    """Return the event of its class, upcast; raises `UnknownEventType` or `UndecodableEvent`."""
    return registry.decode(event.type, event.schema_version, event.data, meta_of(event))


def aggregate_of(app: App, stream: str) -> type[Aggregate]:
    """Return the aggregate class of a stream by its category; raises `UnknownCategory`, listing those there are."""
    category = stream.partition("/")[0]
    for aggregate_class in app.aggregates:
        if aggregate_class.category == category:
            return aggregate_class
    known = ", ".join(each.category for each in app.aggregates) or "(none)"
    raise UnknownCategory(
        f"expected a stream of one of the categories {known} of the application, found {stream!r}; "
        "name the application that declares its aggregate, as with --app"
    )


def entries(
    events: Iterable[RecordedEvent],
    aggregate_class: type[Aggregate] | None,
    registry: Registry = shared_registry,
) -> Iterator[Entry]:
    """Return the events of one stream, in order and from its first, each with what it changed.

    From an event on that cannot be decoded or folded, and without an aggregate class, changes are not known.
    """
    aggregate: Aggregate | None = None
    watch = Watch()
    unknown = "" if aggregate_class is not None else "no aggregate of the application has this category"
    for event in events:
        if unknown or aggregate_class is None:
            yield Entry(event, unknown=unknown)
            continue
        if aggregate is None:
            aggregate = aggregate_class.blank(event.stream)
            watch.changes(aggregate)
        try:
            aggregate.follow(decoded(event, registry))
        except Exception as error:  # noqa: BLE001 - whatever a fold of the application raises ends what is known
            unknown = f"since version {event.version} the state is not known: {error}"
            yield Entry(event, unknown=unknown)
            continue
        yield Entry(event, watch.changes(aggregate))


def as_of(
    connection: psycopg.Connection[Any],
    aggregate_class: type[A],
    stream: str,
    point: Point,
    *,
    log: str = "events",
    registry: Registry = shared_registry,
) -> Past[A]:
    """Return the aggregate of a stream as of a point.

    Raises `AggregateNotFound` when the stream has no event by then, or fewer than the version that is asked for, and
    `UnknownEventType` or `UndecodableEvent`.
    """
    events = (decoded(event, registry) for event in history(connection, stream, log=log))
    found = past(aggregate_class, stream, events, point)
    if not found.of:
        raise AggregateNotFound(stream)
    if not found.events:
        raise AggregateNotFound(stream, f" as of {point}; it has {found.of} later")
    if point.kind == "version" and found.version != point.value:
        raise AggregateNotFound(stream, f" at version {point.value}: its last version is {found.version}")
    return found


def _mapping(text: str) -> dict[str, Any]:
    found = from_json(text)
    return found if isinstance(found, dict) else {"metadata": found}

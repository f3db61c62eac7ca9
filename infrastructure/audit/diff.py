"""Differences between the states of an aggregate at two points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from ...domain.aggregate import Aggregate
from ...domain.change import Change, changes
from ...domain.past import past, state_of
from ...domain.point import Point
from ...domain.registry import Registry
from ...domain.registry import registry as shared_registry
from ..history import RecordedEvent, history
from ..postgres.errors import AggregateNotFound
from .history import decoded, meta_of


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a difference: its point, the highest version that it includes (0 for none), and how many events."""

    point: Point
    version: int
    events: int


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs between the states of a stream at two points, and the events that only one of them includes.

    `added` are those that only the later side has, `removed` those that only the earlier has.
    """

    stream: str
    earlier: Side
    later: Side
    changes: tuple[Change, ...]
    added: tuple[RecordedEvent, ...]
    removed: tuple[RecordedEvent, ...]


def difference(
    connection: psycopg.Connection[Any],
    aggregate_class: type[Aggregate],
    stream: str,
    earlier: Point,
    later: Point,
    *,
    log: str = "events",
    registry: Registry = shared_registry,
) -> Difference:
    """Return what differs between two points of a stream; before its first event the state is that of a new aggregate.

    Raises `AggregateNotFound` for a stream without events, and for a version that it does not have.
    """
    recorded = list(history(connection, stream, log=log))
    if not recorded:
        raise AggregateNotFound(stream)
    events = [decoded(event, registry) for event in recorded]
    for point in (earlier, later):
        if point.kind == "version" and point.value > recorded[-1].version:  # type: ignore[operator]
            raise AggregateNotFound(
                stream, f" at version {point.value}: its last version is {recorded[-1].version}"
            )
    old = past(aggregate_class, stream, events, earlier)
    new = past(aggregate_class, stream, events, later)
    of_old, of_new = ({e.version for e in recorded if each.includes(meta_of(e))} for each in (earlier, later))
    return Difference(
        stream,
        Side(earlier, old.version, old.events),
        Side(later, new.version, new.events),
        changes(state_of(old.aggregate), state_of(new.aggregate)),
        tuple(event for event in recorded if event.version in of_new - of_old),
        tuple(event for event in recorded if event.version in of_old - of_new),
    )

"""Onefold: event-sourced aggregates on PostgreSQL, each event folded once."""

from .domain.aggregate import Aggregate, applies
from .domain.errors import CommandRefused, IllegalTransition, OnefoldError
from .domain.event import Event, EventMeta
from .domain.instant import Instant, from_local
from .domain.lifecycle import Lifecycle, Transition, Verdict
from .domain.money import Money
from .domain.registry import Registry, registry
from .infrastructure.postgres.errors import AggregateNotFound, VersionConflict
from .infrastructure.store import NotCaughtUp, Store, connect
from .projections.app import App
from .projections.errors import ProjectionFailed
from .projections.policies import Retry, Stop
from .projections.projection import Handler, Projection, SqlProjection, projection
from .projections.row import Row

__all__ = [
    "Aggregate",
    "AggregateNotFound",
    "App",
    "CommandRefused",
    "Event",
    "EventMeta",
    "Handler",
    "IllegalTransition",
    "Instant",
    "Lifecycle",
    "Money",
    "NotCaughtUp",
    "OnefoldError",
    "Projection",
    "ProjectionFailed",
    "Registry",
    "Retry",
    "Row",
    "SqlProjection",
    "Stop",
    "Store",
    "Transition",
    "Verdict",
    "VersionConflict",
    "applies",
    "connect",
    "from_local",
    "projection",
    "registry",
]

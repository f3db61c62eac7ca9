"""Onefold: event-sourced aggregates on PostgreSQL, each event folded once."""

from importlib import import_module
from typing import TYPE_CHECKING

from .domain.aggregate import Aggregate, applies
from .domain.errors import CommandRefused, IllegalTransition, OnefoldError
from .domain.event import Event, EventMeta
from .domain.instant import Instant, from_local
from .domain.lifecycle import Lifecycle, Transition, Verdict
from .domain.money import Money
from .domain.registry import Registry, registry
from .projections.app import App
from .projections.consumer import Consumer, Rejected, consumer
from .projections.effect import Again, Done, Effect, effect
from .projections.errors import ProjectionFailed
from .projections.message import Message
from .projections.policies import Retry, Stop
from .projections.process import ProcessManager, process_manager, reacts, timeout
from .projections.projection import Handler, Projection, SqlProjection, projection
from .projections.publication import Publication, publish
from .projections.retention import Retention
from .projections.row import Row

if TYPE_CHECKING:
    from .infrastructure.consuming.transaction import AsyncTransaction, Transaction
    from .infrastructure.effects.call import AsyncCall, Call
    from .infrastructure.effects.tasks import perform
    from .infrastructure.postgres.errors import AggregateNotFound, VersionConflict
    from .infrastructure.store import NotCaughtUp, Store, connect
else:
    # A module that only declares events or projections does not load the database's client.
    _LATER = {
        "AggregateNotFound": "onefold.infrastructure.postgres.errors",
        "AsyncCall": "onefold.infrastructure.effects.call",
        "AsyncTransaction": "onefold.infrastructure.consuming.transaction",
        "Call": "onefold.infrastructure.effects.call",
        "NotCaughtUp": "onefold.infrastructure.store",
        "Store": "onefold.infrastructure.store",
        "Transaction": "onefold.infrastructure.consuming.transaction",
        "VersionConflict": "onefold.infrastructure.postgres.errors",
        "connect": "onefold.infrastructure.store",
        "perform": "onefold.infrastructure.effects.tasks",
    }

    def __getattr__(name):
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_LATER[name]), name)
        return found

    def __dir__():
        return sorted({*globals(), *_LATER})


__all__ = [
    "Again",
    "Aggregate",
    "AggregateNotFound",
    "App",
    "AsyncCall",
    "AsyncTransaction",
    "Call",
    "CommandRefused",
    "Consumer",
    "Done",
    "Effect",
    "Event",
    "EventMeta",
    "Handler",
    "IllegalTransition",
    "Instant",
    "Lifecycle",
    "Message",
    "Money",
    "NotCaughtUp",
    "OnefoldError",
    "ProcessManager",
    "Projection",
    "ProjectionFailed",
    "Publication",
    "Registry",
    "Rejected",
    "Retention",
    "Retry",
    "Row",
    "SqlProjection",
    "Stop",
    "Store",
    "Transaction",
    "Transition",
    "Verdict",
    "VersionConflict",
    "applies",
    "connect",
    "consumer",
    "effect",
    "from_local",
    "perform",
    "process_manager",
    "projection",
    "publish",
    "reacts",
    "registry",
    "timeout",
]

"""Testing: what shows that a consumer has the effect of each message once, for pytest."""

from __future__ import annotations

from .infrastructure.brokers.memory import MemoryBroker
from .infrastructure.testing.courier import delivered
from .infrastructure.testing.errors import NotExactlyOnce, ProvesNothing
from .infrastructure.testing.exactly_once import exactly_once
from .projections.guards import Outcome

__all__ = ["MemoryBroker", "NotExactlyOnce", "Outcome", "ProvesNothing", "delivered", "exactly_once"]

"""Calls that are made without a database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from onefold import AsyncCall, Call
from onefold.infrastructure.effects.call import Clients, Place
from onefold.infrastructure.effects.hold import Hold

KEY = UUID("6f1d3c58-5c3e-5b7a-9f57-0a8f0f6f3a11")
AT = datetime(2026, 3, 2, 12, 30, 5, 250_000, tzinfo=UTC)


@contextmanager
def calling(lease: float = 5.0, kind: Any = Call, attempt: int = 1) -> Iterator[Call]:
    clients = Clients()
    yield kind(Place("tell", attempt, AT, Hold(lease), clients), KEY)
    clients.close()


def async_call(clients: Clients, lease: float = 5.0) -> AsyncCall:
    return AsyncCall(Place("tell", 1, AT, Hold(lease), clients), KEY)

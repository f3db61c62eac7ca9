"""Messages: events as they arrive from a broker, in the terms of CloudEvents 1.0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(slots=True)
class Message:
    """One message, whatever brought it.

    The fields are the context attributes of CloudEvents 1.0 by their own names. `data` is the JSON value, with every
    number that is not an integer as Decimal, or bytes where the content is not JSON, or None. `extensions` holds all
    other attributes, also those nobody here knows. The product reads `idempotencykey` (the business key),
    `sequence` (the version within its subject, a whole number from 1), `partitionkey`, `correlationid`,
    `causationid`, `schemaversion`, `traceparent` and `tracestate` among them.
    """

    id: str
    source: str
    type: str
    data: Any = None
    subject: str | None = None
    time: datetime | None = None
    datacontenttype: str | None = None
    dataschema: str | None = None
    extensions: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)

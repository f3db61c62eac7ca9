"""Messages of tests, as a broker would deliver them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from ...domain.errors import DeclarationError
from ...projections.message import Message
from ..brokers.envelope import read, write
from ..brokers.port import Delivery, Outgoing

AnyMessage = Message | Outgoing | Mapping[str, Any]
"""A message; or its attributes by name and its `data`, of which `type` must be there; or body and headers as sent."""


def deliveries(messages: Iterable[AnyMessage]) -> list[Delivery]:
    """Return messages as deliveries; raises `DeclarationError` or `BadEnvelope`."""
    return [_delivery(message, number) for number, message in enumerate(messages, start=1)]


def in_new_envelope(delivery: Delivery) -> Delivery:
    """Return what a producer sends that sends the same again under a new id."""
    message = read(delivery)
    outgoing = write(replace(message, id=_another(message.id)))
    return replace(delivery, body=outgoing.body, headers=outgoing.headers)


def _delivery(message: AnyMessage, number: int) -> Delivery:
    if isinstance(message, Mapping):
        message = _message(message, number)
    if isinstance(message, Message):
        message = write(message)
    headers = {name.lower(): value for name, value in message.headers.items()}
    return Delivery(message.body, headers, f"message {number}", message.key, datetime.now(UTC))


def _message(given: Mapping[str, Any], number: int) -> Message:
    attributes = {name: value for name, value in given.items() if name != "specversion"}
    if "type" not in attributes:
        raise DeclarationError(
            f"message {number}: expected the attributes of a CloudEvent with `type` among them, "
            f"found {', '.join(attributes) or 'none'}"
        )
    take = attributes.pop
    time = take("time", None)
    return Message(
        take("id", str(number)),
        take("source", "/test"),
        take("type"),
        take("data", None),
        take("subject", None),
        datetime.fromisoformat(time) if isinstance(time, str) else time,
        take("datacontenttype", None),
        take("dataschema", None),
        attributes,
    )


def _another(identity: str) -> str:
    """Return another id of the same kind: a UUIDv7 stays one, of the same time."""
    try:
        return str(UUID(int=UUID(identity).int ^ 1))
    except ValueError:
        return f"{identity}-again"

"""Messages of AMQP 0.9.1: properties and a table of headers in, headers of text out, and back."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from pika.spec import Basic, BasicProperties

from .port import Delivery, Outgoing

KEY: Final = "onefold-key"
"""Header that carries the key of an `Outgoing`."""

_COUNTS = ("x-delivery-count", "x-acquired-count")
_MILLISECONDS = 10**11  # as seconds it would be the year 5138
PROPERTIES: Final = {
    "content-type": "content_type",
    "content-encoding": "content_encoding",
    "amqp-message-id": "message_id",
    "amqp-correlation-id": "correlation_id",
    "amqp-type": "type",
    "amqp-app-id": "app_id",
    "amqp-reply-to": "reply_to",
}


def delivery(queue: str, method: Basic.Deliver, properties: BasicProperties, body: bytes) -> Delivery:
    """Return a message as a delivery, whose `handle` is the delivery tag.

    Headers are those of its table, and the properties `content-type`, `content-encoding` and, after `amqp-`,
    `message-id`, `correlation-id`, `type`, `app-id` and `reply-to`. Values that are not text become it: numbers and
    truths as in JSON, instants in RFC 3339, bytes in base64, tables and lists as JSON.
    """
    table: Mapping[str, Any] = properties.headers or {}
    headers = {
        name.lower(): _text(value)
        for name, value in table.items()
        if value is not None and name not in _COUNTS
    }
    for name, attribute in PROPERTIES.items():
        value = getattr(properties, attribute)
        if value is not None:
            headers[name] = _text(value)
    tag = int(method.delivery_tag or 0)
    count = table.get(_COUNTS[0])
    return Delivery(
        body,
        headers,
        f"{queue}@{properties.message_id}" if properties.message_id else f"{queue}#{tag}",
        key=headers.pop(KEY, None),
        published_at=_instant(table.get("timestamp_in_ms"), properties.timestamp),
        attempt=int(count) + 1 if isinstance(count, int) else 1 + bool(method.redelivered),
        handle=tag,
    )


def _text(value: Any) -> str:
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(int(value))  # pika's own integers end in L
        case bytes():
            return base64.b64encode(value).decode()
        case datetime():
            aware = value if value.tzinfo else value.replace(tzinfo=UTC)
            return aware.isoformat().replace("+00:00", "Z")
        case Decimal() | float():
            return str(value)
        case _:
            return json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {str(name): _plain(part) for name, part in value.items()}
        case list():
            return [_plain(part) for part in value]
        case None | bool() | str() | float():
            return value
        case int():
            return int(value)
        case _:
            return _text(value)


def _instant(milliseconds: Any, seconds: Any) -> datetime | None:
    """When the broker took a message: its own stamp in milliseconds if it sets one, else the producer's."""
    for value, unit in ((milliseconds, 1000), (seconds, 1)):
        if isinstance(value, int):
            stamp = int(value) / (1000 if value >= _MILLISECONDS else unit)
            with contextlib.suppress(ValueError, OverflowError, OSError):
                return datetime.fromtimestamp(stamp, UTC)
    return None


def properties_of(message: Outgoing) -> BasicProperties:
    """Return the properties of an outgoing message, which make it persistent and stamp it with the time."""
    headers: dict[str, Any] = dict(message.headers)
    named = {PROPERTIES[name]: headers.pop(name) for name in PROPERTIES if name in headers}
    if message.key is not None:
        headers[KEY] = message.key
    return BasicProperties(
        headers=headers, delivery_mode=2, timestamp=int(datetime.now(UTC).timestamp()), **named
    )

"""Entries of Redis streams: fields in, a body and headers out, and back."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from .port import BrokerMisconfigured, Delivery, Outgoing

BODY: Final = "body"
"""Field that holds the body of a message."""
KEY: Final = "onefold-key"
"""Field that carries the key of an `Outgoing`."""

_DATA = "data"
_PREFIXES = ("ce-", "ce_", "cloudevents:", "cloudevents_")
_ATTRIBUTE = re.compile(r"[a-z0-9]+")
# Before 1973 and after 9999 an id is no time: its producer counts.
_FIRST_MILLISECOND, _LAST_MILLISECOND = 10**11, 253402300799999


def delivery(stream: str, entry: bytes, fields: Mapping[bytes, bytes], attempt: int | None) -> Delivery:
    """Return an entry as a delivery; `handle` is (stream, id).

    The body is field `body`, or else `data`, and all other fields are headers. An event whose attributes are fields
    without a prefix (`specversion`, `id`, …) gets headers with `ce-`. Any other entry becomes a JSON object of all its
    fields.
    """
    named = {_text(name).lower(): value for name, value in fields.items()}
    key = named.pop(KEY, None)
    plain = BODY not in named and "specversion" in named
    if BODY in named:
        body = named.pop(BODY)
        headers = {name: _text(value) for name, value in named.items()}
    elif _DATA in named or plain or any(name.startswith(_PREFIXES) for name in named):
        body = named.pop(_DATA, b"")
        headers = {name: _text(value) for name, value in named.items()}
        if plain:
            headers = _prefixed(headers)
    else:
        body = json.dumps(
            {_text(name): _text(value) for name, value in fields.items()}, ensure_ascii=False
        ).encode()
        headers = {"content-type": "application/json"}
    where = entry.decode()
    return Delivery(
        body,
        headers,
        f"{stream}@{where}",
        key=None if key is None else _text(key),
        published_at=_instant(where),
        attempt=attempt,
        handle=(stream, entry),
    )


def fields_of(message: Outgoing) -> dict[str, bytes | str]:
    """Return the fields of an outgoing message; raises `BrokerMisconfigured` for headers named as our own fields."""
    taken = {BODY, KEY}.intersection(name.lower() for name in message.headers)
    if taken:
        raise BrokerMisconfigured(
            f"expected headers with other names than {BODY} and {KEY}, found {min(taken)!r}; rename the header"
        )
    fields: dict[str, bytes | str] = {BODY: message.body, **message.headers}
    if message.key is not None:
        fields[KEY] = message.key
    return fields


def _prefixed(attributes: Mapping[str, str]) -> dict[str, str]:
    headers = {
        f"ce-{name}" if _ATTRIBUTE.fullmatch(name) else name: text for name, text in attributes.items()
    }
    headers["content-type"] = headers.pop(
        "ce-datacontenttype", headers.get("content-type", "application/json")
    )
    return headers


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


def _instant(entry: str) -> datetime | None:
    millisecond = int(entry.partition("-")[0])
    if not _FIRST_MILLISECOND <= millisecond <= _LAST_MILLISECOND:
        return None
    return datetime.fromtimestamp(millisecond // 1000, UTC).replace(microsecond=millisecond % 1000 * 1000)

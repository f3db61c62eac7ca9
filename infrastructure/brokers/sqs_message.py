"""What a message looks like in SQS: text and up to ten attributes, and in a FIFO queue a group and an identity."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from .port import Outgoing

if TYPE_CHECKING:
    from mypy_boto3_sqs.type_defs import MessageAttributeValueTypeDef

# What SQS takes as text is what XML 1.0 does.
_TEXT: Final = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")
_IDENTITY: Final = re.compile(r"[!-~]{1,128}")
_ATTRIBUTE: Final = re.compile(
    r"(?!(?:aws|amazon|onefold)[.-])[a-z0-9_-]+(?:\.[a-z0-9_-]+)*", re.ASCII | re.IGNORECASE
)
_ATTRIBUTES: Final = 10
_ENCODING: Final = "onefold-encoding"
_MORE: Final = "onefold-headers"
_EMPTY: Final = "-"
_STRUCTURED: Final = "application/cloudevents+json"


def read(text: str, attributes: Mapping[str, Any]) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of what SQS delivered. What does not read as `write` writes it is left as it is."""
    headers: dict[str, str] = {}
    for name, value in attributes.items():
        if "BinaryValue" in value:
            raw: bytes = value["BinaryValue"]
            try:
                headers[name.lower()] = raw.decode()
            except UnicodeDecodeError:
                headers[name.lower()] = base64.b64encode(raw).decode()
        else:
            headers[name.lower()] = value.get("StringValue", "")
    body = text.encode("utf-8", "surrogatepass")
    if headers.get(_ENCODING) == "base64":
        try:
            body = b"" if text == _EMPTY else base64.b64decode(text, validate=True)
            del headers[_ENCODING]
        except (binascii.Error, ValueError):
            pass
    return body, _unpacked(headers)


def _unpacked(headers: dict[str, str]) -> dict[str, str]:
    try:
        more = json.loads(headers[_MORE])
    except (KeyError, ValueError):
        return headers
    if not isinstance(more, dict) or not all(isinstance(value, str) for value in more.values()):
        return headers
    del headers[_MORE]
    return headers | {name.lower(): value for name, value in more.items()}


def write(message: Outgoing) -> tuple[str, dict[str, MessageAttributeValueTypeDef]]:
    """Return text and attributes that SQS takes."""
    fit: dict[str, str] = {}
    more: dict[str, str] = {}
    for name, value in message.headers.items():
        fits = len(name) <= 256 and _ATTRIBUTE.fullmatch(name) and _TEXT.fullmatch(value)
        (fit if fits else more)[name] = value
    try:
        text = message.body.decode()
    except UnicodeDecodeError:
        text = ""
    if not _TEXT.fullmatch(text):
        text = base64.b64encode(message.body).decode() or _EMPTY
        fit = {_ENCODING: "base64"} | fit
    room = _ATTRIBUTES if len(fit) <= _ATTRIBUTES and not more else _ATTRIBUTES - 1
    for name in list(fit)[room:]:
        more[name] = fit.pop(name)
    if more:
        fit[_MORE] = json.dumps(more)
    return text, {name: {"DataType": "String", "StringValue": value} for name, value in fit.items()}


def group_of(key: str) -> str:
    """Return the message group of a key: the key, or its hash where SQS does not take it as it is."""
    return key if _IDENTITY.fullmatch(key) else "sha256-" + hashlib.sha256(key.encode()).hexdigest()


def identity_of(message: Outgoing) -> str:
    """Return by what a FIFO queue tells that it has a message already.

    Only what has an identity can be recognised: two equal bodies without one are two messages.
    """
    for prefix in ("ce-", "ce_"):
        source, number = message.headers.get(f"{prefix}source"), message.headers.get(f"{prefix}id")
        if source and number:
            return hashlib.sha256(json.dumps([source, number]).encode()).hexdigest()
    if message.headers.get("content-type", "").lower().startswith(_STRUCTURED):
        return hashlib.sha256(message.body).hexdigest()
    return uuid.uuid4().hex

"""Fingerprints and keys: 16 bytes each, equal for what is equal by value."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from hashlib import blake2b
from itertools import chain
from json import JSONEncoder
from typing import Any, cast
from uuid import UUID

import msgspec

from ..domain.errors import OnefoldError
from ..domain.event import flaw_of_text
from .message import Message

# A text in JSON that is a decimal number: amounts are written as text where numbers would lose digits. A quote behind a
# backslash is a letter of a longer text, and a text before a colon is a key.
_DECIMAL_TEXT = re.compile(rb'(?<!\\)"(-?)([0-9]+)\.([0-9]*)"(?!:)')
_UUID_TEXT = re.compile(r"[0-9a-fA-F]{8}(-?)(?:[0-9a-fA-F]{4}\1){3}[0-9a-fA-F]{12}")
_UUID_LETTERS = 36
_NAN = float("nan")
# Digits of a whole number; Python reads and writes no longer ones as JSON.
_LONGEST = 4300


class KeyMissing(OnefoldError, ValueError):
    """A message has no idempotency key, or one that cannot be a key."""


def fingerprint(message: Message) -> bytes:
    """Return 16 bytes that are the same for messages of equal type, subject and data.

    Data are compared by value: 24.9 equals 24.90, also where both are text, and the order of the keys of an object
    does not matter; a number differs from its text. What a redelivery may change is left out: id, source, time and
    extensions.
    """
    data = message.data
    kind, subject = message.type, message.subject or ""
    head = f"{len(kind)}:{kind}{len(subject)}:{subject}".encode(errors="surrogatepass")
    if type(data) is dict and _PLAIN.issuperset(map(type, data.values())):
        # The other way writes the same, in several times as long.
        content = _quickly(data)
        if b"." in content:
            content = _DECIMAL_TEXT.sub(_normal, content)
    else:
        content = b"\x00" + data if isinstance(data, bytes) else _canonical(data)
    return blake2b(head + content, digest_size=16).digest()


def fingerprints(messages: Sequence[Message]) -> list[bytes]:
    """Return the fingerprint of each message."""
    data = [message.data for message in messages]
    if not {dict}.issuperset(map(type, data)) or not _PLAIN.issuperset(
        map(type, chain.from_iterable(map(dict.values, data)))
    ):
        return [fingerprint(message) for message in messages]
    contents = [
        _DECIMAL_TEXT.sub(_normal, content) if b"." in content else content for content in map(_quickly, data)
    ]
    heads = [
        f"{len(message.type)}:{message.type}{len(subject)}:{subject}".encode(errors="surrogatepass")
        for message in messages
        for subject in (message.subject or "",)
    ]
    return [
        blake2b(head + content, digest_size=16).digest()
        for head, content in zip(heads, contents, strict=True)
    ]


def _canonical(data: Any) -> bytes:
    """Return JSON that is the same for what is equal by value."""
    return _DECIMAL_TEXT.sub(_normal, _encode(data).encode())


def digest_of(key: object) -> bytes:
    """Return the 16 bytes that stand for an idempotency key in the ledger.

    A key is text, a whole number, a UUID, or a tuple of these; text is compared letter by letter, and may be of any
    length; a number or a UUID is the same key as its text. Raises `KeyMissing` for anything else, for empty text and
    for text that holds NUL or a lone surrogate.
    """
    # A tuple is never the same key as a text that looks like one.
    kind = b"parts" if isinstance(key, tuple) else b""
    return blake2b(text_of(key).encode(), digest_size=16, person=kind).digest()


def time_ordered(key: object) -> bytes:
    """Return the 16 bytes of a key that is a UUIDv7; raises `KeyMissing` for another."""
    text = key if type(key) is str else text_of(key)
    # Python reads more than this as a UUID, such as a sign in front, and leaves out spaces.
    marked = len(text) == _UUID_LETTERS and text[8:24:5] == "----"
    try:
        found = bytes.fromhex(text.replace("-", "")) if marked or _UUID_TEXT.fullmatch(text) else b""
    except ValueError:
        found = b""
    if len(found) != 16 or found[6] >> 4 != 7 or found[8] >> 6 != 2:
        text_of(key)
        raise KeyMissing(
            f"expected a UUIDv7 as key, found {shown(key)}; a ledger of time-ordered keys takes no other "
            '(declare ledger="any" for keys of any kind)'
        )
    return found


def digests_of(keys: Sequence[object], *, timed: bool) -> list[bytes]:
    """Return what `time_ordered` or `digest_of` returns of each key; raises `KeyMissing` for the first without."""
    if not timed:
        return [digest_of(key) for key in keys]
    texts = cast("Sequence[str]", keys)
    if {str}.issuperset(map(type, keys)) and {_UUID_LETTERS}.issuperset(map(len, texts)):
        try:
            found = [bytes.fromhex(text.replace("-", "")) for text in texts]
        except ValueError:
            found = []
        # As in `time_ordered`, of all together.
        if (
            found
            and {"----"}.issuperset([text[8:24:5] for text in texts])
            and {16}.issuperset(map(len, found))
            and {0x70}.issuperset([each[6] & 0xF0 for each in found])
            and {0x80}.issuperset([each[8] & 0xC0 for each in found])
        ):
            return found
    return [time_ordered(key) for key in keys]


def text_of(key: object) -> str:
    """Return a key as text, different for different keys of one kind."""
    if type(key) is str and key and key.isascii() and "\x00" not in key:
        return key
    match key:
        case str():
            text = key
        case bool() | None:
            text = ""
        case int() | UUID():
            text = str(key)
        case tuple():
            # Lengths in front, so that ("a", "bc") and ("ab", "c") differ, and a sign of what is a tuple itself.
            parts = [(text_of(part), ";" if isinstance(part, tuple) else ":") for part in key]
            text = "".join(f"{len(part)}{sign}{part}" for part, sign in parts)
        case _:
            text = ""
    if not text:
        raise KeyMissing(
            f"expected an idempotency key (text, whole number, UUID, or a tuple of these), found {shown(key)}"
        )
    if flaw := flaw_of_text(text):
        raise KeyMissing(f"the idempotency key {shown(key)} {flaw}")
    return text


def shown(value: object) -> str:
    """Return the beginning of what Python shows of a value, at most 80 letters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _normal(match: re.Match[bytes]) -> bytes:
    sign, whole, part = match.groups()
    whole, part = whole.lstrip(b"0") or b"0", part.rstrip(b"0")
    number = whole + b"." + part if part else whole
    return b'"%b%b"' % (sign if number != b"0" else b"", number)


def _number(value: object) -> Any:
    if isinstance(value, Decimal):
        sign, digits, exponent = value.as_tuple()
        assert isinstance(exponent, int)
        text = "".join(map(str, digits)).lstrip("0")
        stripped = text.rstrip("0")
        exponent += len(text) - len(stripped)
        if not stripped:
            return 0
        if 0 <= exponent <= _LONGEST - len(stripped):
            return int(stripped) * 10**exponent * (-1 if sign else 1)
        # No message holds NaN, so nothing else is written like this.
        return [_NAN, f"{'-' if sign else ''}{stripped}e{exponent}"]
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"expected a JSON value, found {type(value).__name__}")


_PLAIN = frozenset({str, int, bool, type(None)})
_quickly = msgspec.json.Encoder(order="sorted").encode
_encode = JSONEncoder(sort_keys=True, separators=(",", ":"), default=_number, ensure_ascii=False).encode

"""The canonical content of a stored event, and its hash.

The content is the eleven columns of the log in their order, each as four bytes of length and its value, big-endian; a
column without a value is the length -1 and nothing. Numbers are 8 bytes (the schema version 4), instants 8 bytes of
microseconds since 2000-01-01 UTC, the id its 16 bytes, texts UTF-8. `data` and `metadata` are a byte 1 and their
canonical JSON. That is what PostgreSQL sends for a row in binary COPY; it is the definition here that counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from hashlib import sha256
from struct import Struct
from typing import Any
from zlib import crc32

COLUMNS = (
    "position",
    "version",
    "occurred_at",
    "recorded_at",
    "event_id",
    "schema_version",
    "stream",
    "type",
    "data",
    "raw",
    "metadata",
)

DOMAIN = b"onefold event 1\n"
"""What the hashed bytes begin with, so that they can be mistaken for nothing else that is hashed."""

FIRST = bytes(32)
"""Stands for the hash of the event before the first of a stream."""

JSON = b"\1"
"""What the JSON of a content begins with: the version of its form."""

_LENGTH = Struct(">i")
_CHECKS = Struct(f">{len(COLUMNS)}I")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_ESCAPED = re.compile(r'["\\\x00-\x1f]')

Fields = Sequence[bytes | None]
"""The columns of an event, in order."""


def content_hash(content: bytes) -> bytes:
    """Return the hash of an event's content by itself."""
    return sha256(DOMAIN + content).digest()


def event_hash(previous: bytes, content: bytes) -> bytes:
    """Return the hash of an event: over that of its stream's previous event and that of its own content.

    `previous` is `FIRST` for the first event of a stream, `content` what `content_hash` gave. It is the hash of a leaf
    of RFC 6962 that holds both.
    """
    return sha256(b"\0" + previous + content).digest()


def joined(fields: Fields) -> bytes:
    """Return the content of an event with these columns."""
    return b"".join(
        b"\xff\xff\xff\xff" if each is None else _LENGTH.pack(len(each)) + each for each in fields
    )


def fields_of(content: bytes) -> list[bytes | None]:
    """Return the columns of a content; raises ValueError for bytes that are none."""
    found: list[bytes | None] = []
    at, end = 0, len(content)
    while at + 4 <= end:
        (length,) = _LENGTH.unpack_from(content, at)
        at += 4
        if length < 0:
            found.append(None)
        else:
            found.append(content[at : at + length])
            at += length
    if at != end or len(found) != len(COLUMNS):
        raise ValueError(
            f"expected the {len(COLUMNS)} columns of an event, found {len(found)} and byte {at} of {end}"
        )
    return found


def checks_of(fields: Fields) -> bytes:
    """Return a short check of each column: it tells which one was altered, and proves nothing."""
    return _CHECKS.pack(*[0xFFFFFFFF if each is None else crc32(each) for each in fields])


def columns_apart(one: bytes, other: bytes) -> tuple[str, ...]:
    """Return the columns whose checks differ; all of them where one is no check."""
    if len(one) != _CHECKS.size or len(other) != _CHECKS.size:
        return COLUMNS
    pairs = zip(COLUMNS, _CHECKS.unpack(one), _CHECKS.unpack(other), strict=True)
    return tuple(name for name, a, b in pairs if a != b)


def canonical_json(text: str) -> str:
    """Return JSON in its canonical form.

    Objects have each name once, the last value counting, ordered by length in UTF-8 and then by bytes; after commas
    and colons stands one blank. Numbers have all their digits and no exponent. Only quotes, backslashes and control
    characters are escaped. Raises ValueError for what is no JSON.
    """
    return "".join(_written(json.loads(text, parse_float=Decimal, parse_int=Decimal)))


def _written(value: Any) -> Iterable[str]:
    match value:
        case dict():
            names = sorted(value, key=lambda name: (len(name.encode()), name.encode()))
            yield "{"
            for number, name in enumerate(names):
                yield f"{', ' if number else ''}{_text(name)}: "
                yield from _written(value[name])
            yield "}"
        case list():
            yield "["
            for number, each in enumerate(value):
                if number:
                    yield ", "
                yield from _written(each)
            yield "]"
        case str():
            yield _text(value)
        case Decimal():
            # Their numbers know no minus zero.
            yield format(abs(value) if value == 0 else value, "f")
        case None:
            yield "null"
        case _:
            yield "true" if value else "false"


def _text(value: str) -> str:
    escaped = _ESCAPED.sub(lambda found: _ESCAPES.get(found[0]) or f"\\u{ord(found[0]):04x}", value)
    return f'"{escaped}"'

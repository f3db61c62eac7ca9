"""Keys of requests: what `Idempotency-Key` says, whose it is, and what the request was."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from decimal import Decimal
from hashlib import blake2b
from typing import Any, NamedTuple, Never

import http_sf

from ...domain.errors import OnefoldError
from ...projections.fingerprint import fingerprint
from ...projections.message import Message

HEADER = "Idempotency-Key"

_BARE = re.compile(rb"[!#-+\--\[\]-~]+")


class BadKey(OnefoldError, ValueError):
    """A request has an `Idempotency-Key` that cannot be read."""


class Identity(NamedTuple):
    """A request in 16 bytes each: `key` says which one it is, `fingerprint` what it asks for."""

    key: bytes
    fingerprint: bytes


def key_of(lines: Sequence[bytes], *, compat: bool = False) -> str | None:
    """Return the key that the lines of the header give, None where there are none.

    The value is a String of RFC 9651, without parameters: `"8e03978e-40d5-43e8"`. With `compat`, visible ASCII
    without quote, comma or backslash is a key as well, the same as the String of these letters. Raises `BadKey`.
    """
    if not lines:
        return None
    value = b", ".join(lines).strip(b" \t")
    if compat and _BARE.fullmatch(value):
        return value.decode("ascii")
    try:
        found: Any = http_sf.parse(value, tltype="item")
        key, parameters = found
    except (ValueError, ArithmeticError) as error:
        raise BadKey(_expected(f"{_shown(value)} ({error})")) from error
    if type(key) is not str:
        raise BadKey(_expected(f"{_shown(value)}, which is another type"))
    if parameters:
        raise BadKey(_expected(f"{_shown(value)}, which has parameters"))
    if not key:
        raise BadKey(_expected("an empty one"))
    return key


def identity(
    service: str,
    principal: str | None,
    method: str,
    path: str,
    query: bytes,
    key: str,
    content_type: str,
    body: bytes,
) -> Identity:
    """Return which request this is, and what it asks for.

    Which: service, principal (None: nobody), method, path and key. What: method, path, query and body, by value where
    that is JSON: 24.9 equals 24.90, and the order of members does not matter.
    """
    digest = blake2b(digest_size=16)
    for part in (service, "" if principal is None else f"={principal}", method, path, key):
        text = part.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(text))
        digest.update(text)
    return Identity(digest.digest(), _fingerprint(f"{method} {path}", query, content_type, body))


def _fingerprint(target: str, query: bytes, content_type: str, body: bytes) -> bytes:
    subject = query.decode("latin-1")
    kind = content_type.partition(";")[0].strip().lower()
    if body and (kind == "application/json" or kind.endswith("+json")):
        try:
            value = json.loads(
                body, parse_float=Decimal, parse_constant=_constant, object_pairs_hook=_distinct
            )
            return fingerprint(Message("", "", target, {"json": value}, subject))
        except (ValueError, ArithmeticError, RecursionError):
            # Not JSON after all, or with numbers that nobody can hold: the bytes say what it is.
            pass
    return fingerprint(Message("", "", target, body, subject))


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a member stands twice")
    return found


def _constant(text: str) -> Never:
    raise ValueError(f"{text} is no JSON")


def _expected(found: str) -> str:
    return (
        f"expected one {HEADER} that is a String of RFC 9651 with a letter or more in it, found {found}; "
        f'send text of ASCII in quotes, such as {HEADER}: "8e03978e-40d5-43e8-bc93-6894a57f9324"'
    )


def _shown(value: bytes) -> str:
    text = value.decode("latin-1")
    return repr(text if len(text) <= 80 else f"{text[:77]}...")

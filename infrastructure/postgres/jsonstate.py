"""Which states of events PostgreSQL's jsonb keeps: JSON that comes back the same in value and type."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any, NamedTuple

LARGEST = 100_000_000
"""Bytes of JSON beyond which a state is kept as it is; jsonb holds less than 256 MiB."""
DEEPEST = 500
"""Levels of nesting beyond which a state is kept as it is; the server's stack ends somewhere above 5,000."""

_LONGEST_NUMBER = 1000
_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]')


class JsonState(NamedTuple):
    """A state that jsonb keeps: its JSON text, and the value that the text stands for."""

    text: str
    value: Any


class _Unfaithful(ValueError):
    pass


def json_of(state: bytes) -> JsonState | None:
    """Return `state` as JSON, or None when it is no object or array, or jsonb would refuse it or change its value.

    Refused are NUL characters and lone surrogates. Changed are floats written with a positive exponent (1e16 comes
    back as an integer) and negative zero; duplicate keys are lost. White space and the order of keys are not kept.
    """
    if len(state) > LARGEST:
        return None
    try:
        text = state.decode("utf-8")
        value = _decoder.decode(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, (dict, list)):
        return None
    if "\\u" in text and _refused(text):
        return None
    if text.count("[") + text.count("{") > DEEPEST and _depth(text) > DEEPEST:
        return None
    return JsonState(text, value)


def timestamp_of(value: Any) -> datetime | None:
    """Return the aware instant under "timestamp" in a decoded state, as `eventsourcing` writes it, or None."""
    if not isinstance(value, dict):
        return None
    stamp = value.get("timestamp")
    if isinstance(stamp, dict) and stamp.keys() == {"_type_", "_data_"} and stamp["_type_"] == "datetime_iso":
        stamp = stamp["_data_"]
    if not isinstance(stamp, str):
        return None
    try:
        instant = datetime.fromisoformat(stamp)
    except ValueError:
        return None
    # At the ends of the calendar the instant has no date in UTC, and could not be read again.
    return None if instant.utcoffset() is None or not 1 < instant.year < 9999 else instant


def _refused(text: str) -> bool:
    # What follows an escaped backslash is no escape.
    escapes = text.replace("\\\\", "_")
    return "\\u0000" in escapes or _SURROGATE.search(_PAIR.sub("", escapes)) is not None


def _depth(text: str) -> int:
    depth = deepest = 0
    for match in _BRACKETS.finditer(text):
        if match[0] in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif match[0] in "]}":
            depth -= 1
    return deepest


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _Unfaithful("a key is given twice")
    return value


def _float(token: str) -> float:
    mantissa, exponent, digits = token.lower().partition("e")
    # jsonb keeps the digits as written, without an exponent: they must still look like a float.
    if exponent and not digits.startswith("-"):
        raise _Unfaithful("a float comes back as an integer")
    if len(mantissa) > _LONGEST_NUMBER or (exponent and int(digits) < -_LONGEST_NUMBER):
        raise _Unfaithful("a number has too many digits")
    if token.startswith("-") and not mantissa.strip("-0."):
        raise _Unfaithful("negative zero comes back as zero")
    return float(token)


def _constant(token: str) -> float:
    raise _Unfaithful(f"{token} is not JSON")


_decoder = json.JSONDecoder(parse_float=_float, parse_constant=_constant, object_pairs_hook=_distinct)

"""The canonical content of an event: its bytes, its hash, its JSON."""

from __future__ import annotations

import hashlib

import pytest

from onefold.domain.content import (
    COLUMNS,
    FIRST,
    canonical_json,
    checks_of,
    columns_apart,
    content_hash,
    event_hash,
    fields_of,
    joined,
)

FIELDS = [
    (7).to_bytes(8, "big"),
    (1).to_bytes(8, "big"),
    (825_597_000_000_000).to_bytes(8, "big"),
    (825_597_000_000_001).to_bytes(8, "big"),
    bytes(range(16)),
    (1).to_bytes(4, "big"),
    b"order/4711",
    b"order.placed",
    b'\1{"total": 24.90}',
    None,
    None,
]


def test_a_content_is_each_column_with_its_length() -> None:
    content = joined(FIELDS)
    assert content.startswith(b"\0\0\0\x08" + bytes(7) + b"\x07")
    assert content.endswith(b'\0\0\0\x11\1{"total": 24.90}' + b"\xff" * 8)
    assert fields_of(content) == FIELDS


@pytest.mark.parametrize("broken", [b"", joined(FIELDS)[:-1], joined(FIELDS) + b"\0", joined(FIELDS[:-1])])
def test_bytes_that_are_no_content_are_refused(broken: bytes) -> None:
    with pytest.raises(ValueError, match="expected the 11 columns of an event"):
        fields_of(broken)


def test_an_event_is_hashed_as_a_leaf_over_the_event_before_and_its_content() -> None:
    content = hashlib.sha256(b"onefold event 1\n" + joined(FIELDS)).digest()
    assert content_hash(joined(FIELDS)) == content
    assert event_hash(FIRST, content) == hashlib.sha256(bytes(33) + content).digest()


@pytest.mark.parametrize("number", range(len(COLUMNS)))
def test_the_checks_tell_which_column_differs(number: int) -> None:
    other = list(FIELDS)
    other[number] = b"another"
    assert columns_apart(checks_of(FIELDS), checks_of(other)) == (COLUMNS[number],)
    assert columns_apart(checks_of(FIELDS), checks_of(FIELDS)) == ()


def test_checks_that_are_none_tell_nothing() -> None:
    assert columns_apart(checks_of(FIELDS), b"") == COLUMNS
    assert columns_apart(b"", checks_of(FIELDS)) == COLUMNS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"bb":1,"a":2,"b":3,"a":4}', '{"a": 4, "b": 3, "bb": 1}'),
        ('{"ä": 1, "z": 2, "zz": 3, "a": 4}', '{"a": 4, "z": 2, "zz": 3, "ä": 1}'),
        ("[1,[],{}, null,true ,false]", "[1, [], {}, null, true, false]"),
        ("[24.90,1e2,-0,-0.0,1.50e1,1E-7,0.5]", "[24.90, 100, 0, 0.0, 15.0, 0.0000001, 0.5]"),
        (r'"\u0041\/\"\\\b\f\n\r\t\u0001\u007f\u20ac"', '"A/\\"\\\\\\b\\f\\n\\r\\t\\u0001\x7f€"'),
        ("12345678901234567890123", "12345678901234567890123"),
    ],
)
def test_json_has_one_form(text: str, expected: str) -> None:
    assert canonical_json(text) == expected
    assert canonical_json(expected) == expected


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(ValueError, match="Expecting"):
        canonical_json("{")

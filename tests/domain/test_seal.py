"""Seals: their statement, their chain, their marks."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest

from onefold.domain.seal import BEGINNING, Seal, marked, marks_of

AT = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
SEAL = Seal("events", 1, 1, 9, 7, 7, b"r" * 32, b"m" * 32, BEGINNING, AT)
NEXT = Seal("events", 2, 10, 12, 3, 10, b"s" * 32, b"n" * 32, SEAL.hash, AT)


def test_a_statement_is_a_line_that_names_its_form_and_canonical_json() -> None:
    assert SEAL.statement() == (
        b'onefold seal 1\n{"events":7,"first":1,"last":9,"log":"events","marks":"'
        + b"6d" * 32
        + b'","number":1,'
        b'"previous":"'
        + b"00" * 32
        + b'","root":"'
        + b"72" * 32
        + b'","sealed_at":"2026-03-01T12:30:00.000000Z",'
        b'"size":7}'
    )
    assert SEAL.hash == hashlib.sha256(SEAL.statement()).digest()


def test_a_seal_is_the_same_whatever_zone_its_instant_is_told_in() -> None:
    assert replace(SEAL, sealed_at=AT.astimezone(timezone(timedelta(hours=2)))).hash == SEAL.hash


def test_the_fields_of_a_seal_make_it_again() -> None:
    assert Seal.of(SEAL.fields()) == SEAL
    with pytest.raises(ValueError, match="expected the fields of a seal"):
        Seal.of({"log": "events"})
    with pytest.raises(ValueError, match="hexadecimal"):
        Seal.of(SEAL.fields() | {"root": "x"})


@pytest.mark.parametrize(
    "change",
    [
        {"log": "others"},
        {"number": 3},
        {"first": 11},
        {"events": 4},
        {"size": 11},
        {"previous": BEGINNING},
    ],
)
def test_a_seal_follows_the_one_before_or_the_chain_is_broken(change: dict[str, object]) -> None:
    assert SEAL.follows(None)
    assert NEXT.follows(SEAL)
    assert not NEXT.follows(None)
    assert not replace(NEXT, **change).follows(SEAL)  # type: ignore[arg-type]
    assert not NEXT.follows(replace(SEAL, root=b"x" * 32))


def test_marks_tell_what_stood_where() -> None:
    marks = marks_of([(5, b"a" * 32), (2**40, b"b" * 32)])
    assert marks == (5).to_bytes(8, "big") + b"a" * 8 + (2**40).to_bytes(8, "big") + b"b" * 8
    assert marked(marks) == {5: b"a" * 8, 2**40: b"b" * 8}
    with pytest.raises(ValueError, match="expected marks of 16 bytes each, found 33 bytes"):
        marked(marks + b"x")

"""What `Idempotency-Key` says, and which requests are the same (C47)."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import http_sf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.infrastructure.http.key import BadKey, Identity, identity, key_of

printable = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1)


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (b'"8e03978e-40d5"', "8e03978e-40d5"),
        (b'  "a"\t', "a"),
        (rb'"a\"b\\c"', r"a\"b\c".replace('\\"', '"')),
        (b'"a b, c"', "a b, c"),
    ],
)
def test_a_key_is_a_string_of_rfc_9651(value: bytes, key: str) -> None:
    assert key_of([value]) == key
    assert key_of([value], compat=True) == key


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b'""',
        b"8e03978e-40d5",
        b"42",
        b"?1",
        b":YQ==:",
        b'%"a"',
        b"@1659578233",
        b'"a',
        b'a"',
        b'"a" "b"',
        b'"a";x=1',
        b'"a";x',
        b'("a")',
        b'"\xc3\xa9"',
        b'"a\x7f"',
        b'"a\tb"',
        rb'"a\b"',
        b"'a'",
    ],
)
def test_anything_else_is_malformed(value: bytes) -> None:
    with pytest.raises(BadKey, match="expected one Idempotency-Key that is a String"):
        key_of([value])


def test_two_lines_of_the_header_are_no_key() -> None:
    with pytest.raises(BadKey):
        key_of([b'"a"', b'"b"'])
    with pytest.raises(BadKey):
        key_of([b"a", b"b"], compat=True)


def test_no_line_is_no_key() -> None:
    assert key_of([]) is None


@pytest.mark.parametrize("value", [b"8e03978e-40d5", b"42", b"'a'", b"a;x=1", b"?1"])
def test_compat_takes_what_has_no_quotes(value: bytes) -> None:
    assert key_of([value], compat=True) == value.decode() == key_of([b'"' + value + b'"'])


@pytest.mark.parametrize("value", [b"", b'""', b"a b", b"a,b", b'a"b', rb"a\b", b"\xe9", b'"a" b'])
def test_compat_does_not_take_what_may_be_several_or_broken(value: bytes) -> None:
    with pytest.raises(BadKey):
        key_of([value], compat=True)


@given(printable)
def test_every_text_of_printable_ascii_can_be_a_key(text: str) -> None:
    assert key_of([http_sf.ser(text).encode()]) == text


@given(st.binary(max_size=40))
def test_no_bytes_do_worse_than_be_malformed(value: bytes) -> None:
    for compat in (False, True):
        with contextlib.suppress(BadKey):
            found = key_of([value], compat=compat)
            assert found is not None
            assert re.fullmatch(r"[ -~]+", found)


def asked(**changes: Any) -> Identity:
    given: dict[str, Any] = {
        "service": "shop",
        "principal": "ana",
        "method": "POST",
        "path": "/orders",
        "query": b"a=1",
        "key": "k",
        "content_type": "application/json",
        "body": b'{"a": 1}',
    }
    return identity(**{**given, **changes})


@pytest.mark.parametrize(
    "change",
    [
        {"service": "other"},
        {"principal": "bob"},
        {"principal": None},
        {"principal": ""},
        {"method": "PATCH"},
        {"path": "/orders/1"},
        {"key": "K"},
    ],
    ids=str,
)
def test_c47_scope_is_service_principal_method_path_and_key(change: dict[str, Any]) -> None:
    assert asked(**change).key != asked().key


def test_nobody_is_not_somebody_without_a_name() -> None:
    assert asked(principal=None).key != asked(principal="").key


def test_no_parts_of_a_scope_run_into_each_other() -> None:
    assert asked(path="/a", key="bc").key != asked(path="/ab", key="c").key


@pytest.mark.parametrize(
    "change",
    [{"query": b""}, {"body": b'{"a": 2}'}, {"body": b'{"a": "1"}'}, {"body": b""}, {"body": b"{"}],
    ids=str,
)
def test_another_query_or_body_is_the_same_request_with_another_fingerprint(change: dict[str, Any]) -> None:
    other = asked(**change)
    assert other.key == asked().key
    assert other.fingerprint != asked().fingerprint


@pytest.mark.parametrize(
    "body",
    [b'{"b": [24.90], "a": 1}', b'{"a":1.0,"b":[2.49e1]}', b' {"a": 1, "b": [24.9]}\n'],
)
def test_json_is_compared_by_value(body: bytes) -> None:
    first = asked(body=b'{"a": 1, "b": [24.9]}')
    assert asked(body=body) == first
    assert asked(body=body, content_type="application/vnd.shop+json; charset=utf-8") == first


def test_what_is_no_json_is_compared_by_its_bytes() -> None:
    assert asked(content_type="text/plain") != asked(content_type="text/plain", body=b'{"a":1}')
    assert asked(content_type="text/plain").fingerprint != asked().fingerprint


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": 1, "a": 2}',
        b"NaN",
        b"[" * 100_000,
        b'{"a": 1e99999999999999999999}',
        b"\xff\xfe",
        b'"\\ud800"',
        b"9" * 5_000,
    ],
    ids=lambda body: repr(body[:20]),
)
def test_json_that_nobody_can_hold_is_compared_by_its_bytes(body: bytes) -> None:
    assert asked(body=body) == asked(body=body)
    assert asked(body=body).fingerprint != asked(body=body + b" ").fingerprint


def test_a_path_may_hold_what_no_text_can() -> None:
    assert asked(path="/\ud800\x00") != asked(path="/")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5))
def test_json_has_the_same_fingerprint_however_it_is_written(value: Any) -> None:
    first = asked(body=json.dumps(value).encode())
    assert asked(body=json.dumps(value, indent=2, ensure_ascii=False).encode()) == first

"""States that jsonb keeps in value and type, and states that must be kept as bytes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from eventsourcing.persistence import StoredEvent
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onefold.infrastructure.postgres.jsonstate import DEEPEST, LARGEST, json_of, timestamp_of

KEPT = [
    b"{}",
    b"[]",
    b' {"a" : 1 } ',
    b'{"a":1.0,"b":1.10,"c":-0.001,"d":1e-7,"e":2.5E-3,"f":-0,"g":0e-5}',
    b'{"a":123456789012345678901234567890,"b":9007199254740993}',
    b'{"a":true,"b":false,"c":null,"d":"","e":"\\u00e9\\ud83d\\ude00/\\/"}',
    '{"é":"😀\U0010ffff"}'.encode(),
    b'{"a":"\\\\ud83d\\\\ude00"}',
    b'{"":{"":[[[]]]}}',
    b'{"a":"\\\\u0000"}',
    b'{"a":["' + b"[" * 600 + b'"]}',
    b"[" + b"[1]," * 600 + b"[1]]",
]
NOT_KEPT = {
    "no JSON": b"state1",
    "nothing": b"",
    "a scalar": b"1.50",
    "text": b'"text"',
    "null": b"null",
    "bytes": bytes(range(256)),
    "a byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": "{}".encode("utf-16"),
    "not UTF-8": b'{"a":"\xff"}',
    "a NUL character": b'{"a":"\\u0000"}',
    "a NUL character in a key": b'{"\\u0000":1}',
    "a lone surrogate": b'{"a":"\\ud83d"}',
    "a lone low surrogate": b'{"a":"\\uDE00 \\ud83d\\ude00"}',
    "surrogates in the wrong order": b'{"a":"\\ude00\\ud83d"}',
    "lone surrogates around a backslash": b'{"a":"\\ud83d\\\\\\ude00"}',
    "a control character": b'{"a":"\x01"}',
    "a key twice": b'{"a":1,"a":2}',
    "a key twice, inside": b'[{"b":{"a":1,"a":1}}]',
    "a large float": b'{"a":1e16}',
    "a float with an exponent": b'{"a":1.5E+300}',
    "a float with an exponent without sign": b'{"a":1.2345e2}',
    "negative zero": b'{"a":-0.0}',
    "small negative zero": b'{"a":-0e-3}',
    "infinity": b'{"a":Infinity}',
    "no number": b'{"a":NaN}',
    "a float of many digits": b'{"a":0.' + b"1" * 20_000 + b"}",
    "a tiny float": b'{"a":1e-20000}',
    "an integer of many digits": b'{"a":' + b"1" * 5_000 + b"}",
    "too deep": b"[" * (DEEPEST + 1) + b"]" * (DEEPEST + 1),
    "far too deep": b"[" * 100_000 + b"]" * 100_000,
    "a trailing comma": b'{"a":1,}',
    "a comment": b"{} // no",
}


@pytest.mark.parametrize("state", KEPT, ids=lambda state: state[:40].decode())
def test_json_comes_back_the_same_in_value_and_type(state: bytes, recorder: Any, connection: Any) -> None:
    stored = StoredEvent(uuid4(), 1, "a:B", state)
    recorder.insert_events([stored])
    (back,) = recorder.select_events(stored.originator_id)
    assert _typed(json.loads(back.state)) == _typed(json.loads(state))
    assert connection.execute("SELECT raw FROM onefold.stored_events").fetchall() == [(None,)]


@pytest.mark.parametrize("state", NOT_KEPT.values(), ids=NOT_KEPT.keys())
def test_what_jsonb_would_change_is_kept_as_bytes(state: bytes, recorder: Any) -> None:
    assert json_of(state) is None
    stored = StoredEvent(uuid4(), 1, "a:B", state)
    recorder.insert_events([stored])
    assert recorder.select_events(stored.originator_id) == [stored]


def test_nesting_is_kept_as_json_down_to_its_bound(recorder: Any, connection: Any) -> None:
    state = b"[" * DEEPEST + b"]" * DEEPEST
    stored = StoredEvent(uuid4(), 1, "a:B", state)
    recorder.insert_events([stored])
    assert recorder.select_events(stored.originator_id) == [stored]
    assert connection.execute("SELECT raw FROM onefold.stored_events").fetchall() == [(None,)]


def test_a_state_that_jsonb_has_no_room_for_is_kept_as_bytes() -> None:
    assert json_of(b"[" + b" " * LARGEST + b"]") is None


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.text(alphabet=st.characters(categories=["Cs"]), max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=VALUES, ascii_only=st.booleans())
def test_any_json_comes_back_the_same(recorder: Any, value: Any, ascii_only: bool) -> None:
    state = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    stored = StoredEvent(uuid4(), 1, "a:B", state)
    recorder.insert_events([stored])
    (back,) = recorder.select_events(stored.originator_id)
    if json_of(state) is None:
        assert back.state == state
    else:
        assert _typed(json.loads(back.state)) == _typed(json.loads(state))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(state=st.binary() | st.text(alphabet='{}[]",:0123456789.eE+-\\u \n').map(str.encode))
def test_any_bytes_come_back(recorder: Any, state: bytes) -> None:
    stored = StoredEvent(uuid4(), 1, "a:B", state)
    recorder.insert_events([stored])
    (back,) = recorder.select_events(stored.originator_id)
    if json_of(state) is None:
        assert back.state == state
    else:
        assert _typed(json.loads(back.state)) == _typed(json.loads(state))


@pytest.mark.parametrize(
    "stamp",
    [
        {"_type_": "datetime_iso", "_data_": "2024-01-02T03:04:05.000006+00:00"},
        "2024-01-02T03:04:05.000006Z",
        "2024-01-02T05:04:05.000006+02:00",
    ],
)
def test_the_timestamp_of_a_state_is_read(stamp: Any) -> None:
    assert timestamp_of({"timestamp": stamp}) == datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=UTC)


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        {"timestamp": 1},
        {"timestamp": None},
        {"timestamp": "yesterday"},
        {"timestamp": "2024-01-02T03:04:05"},
        {"timestamp": "0001-01-01T00:00:00+14:00"},
        {"timestamp": "9999-12-31T23:59:59-14:00"},
        {"timestamp": {"_type_": "date", "_data_": "2024-01-02"}},
        {"timestamp": {"_type_": "datetime_iso", "_data_": 1}},
        {"timestamp": {"_type_": "datetime_iso"}},
    ],
)
def test_a_timestamp_that_is_not_certain_is_not_taken(value: Any) -> None:
    assert timestamp_of(value) is None


def _typed(value: Any) -> Any:
    """The value with its types spelled out, so that 1 differs from 1.0 and from True, and 0.0 from -0.0."""
    match value:
        case dict():
            return {key: _typed(part) for key, part in value.items()}
        case list():
            return [_typed(part) for part in value]
        case _:
            return type(value), repr(value)

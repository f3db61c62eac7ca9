"""Envelopes: what is read is what was written, in both modes; what no database could keep is refused by name."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from cloudevents.core.bindings import amqp as sdk_amqp
from cloudevents.core.bindings import kafka as sdk_kafka
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.domain.event import DIGITS, LEVELS
from onefold.infrastructure.brokers import Delivery, Outgoing, envelope
from onefold.infrastructure.brokers.envelope import PREFIXES, STRUCTURED, BadEnvelope, read, write
from onefold.projections.message import Message

LEAST: dict[str, Any] = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}


def structured(body: bytes | str, content_type: str = STRUCTURED) -> Delivery:
    return Delivery(
        body if isinstance(body, bytes) else body.encode(), {"content-type": content_type}, "here"
    )


def event(**members: Any) -> Delivery:
    return structured(json.dumps({**LEAST, **members}))


def binary(body: bytes = b"", **headers: str) -> Delivery:
    names = {name.replace("content_type", "content-type"): value for name, value in headers.items()}
    return Delivery(
        body, {"ce_specversion": "1.0", "ce_id": "1", "ce_source": "/s", "ce_type": "t"} | names, "here"
    )


def delivered(message: Outgoing) -> Delivery:
    """As an adapter hands it over: names of headers in lower case."""
    return Delivery(message.body, {name.lower(): value for name, value in message.headers.items()}, "here")


# -- reading


def test_a_structured_event_becomes_a_message() -> None:
    message = read(
        event(
            subject="account/1",
            time="2026-01-31T12:00:00.123456+01:00",
            datacontenttype="application/json",
            dataschema="https://schemas.example/1",
            idempotencykey="pay-1",
            sequence=3,
            flagged=True,
            data={"amount": 24.90, "lines": [1, None]},
        )
    )
    assert message == Message(
        "1",
        "/s",
        "t",
        {"amount": Decimal("24.9"), "lines": [1, None]},
        "account/1",
        datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=timezone(timedelta(hours=1))),
        "application/json",
        "https://schemas.example/1",
        {"idempotencykey": "pay-1", "sequence": 3, "flagged": True},
    )
    assert message.extensions["flagged"] is True


@pytest.mark.parametrize("prefix", ["ce_", "ce-", "cloudevents:", "cloudevents_"])
def test_a_binary_event_becomes_a_message_by_any_prefix(prefix: str) -> None:
    headers = {f"{prefix}{name}": value for name, value in LEAST.items()}
    headers |= {f"{prefix}sequence": "3", "content-type": "application/json", "unrelated": "x"}
    message = read(Delivery(b'{"amount": 24.90}', headers, "here"))
    assert message == Message(
        "1",
        "/s",
        "t",
        {"amount": Decimal("24.90")},
        datacontenttype="application/json",
        extensions={"sequence": "3"},
    )


@pytest.mark.parametrize("name", ["content-type", "content_type"])
def test_the_content_type_is_found_by_both_its_names(name: str) -> None:
    assert read(Delivery(json.dumps(LEAST).encode(), {name: STRUCTURED}, "here")).id == "1"


@pytest.mark.parametrize(
    "content_type", [f"{STRUCTURED}; charset=utf-8", "application/CloudEvents+JSON;charset=UTF-8"]
)
def test_parameters_of_the_content_type_do_not_matter(content_type: str) -> None:
    assert read(structured(json.dumps(LEAST), content_type)).id == "1"


def test_an_event_whose_content_type_got_lost_is_read_by_its_specversion() -> None:
    assert read(Delivery(json.dumps(LEAST).encode(), {}, "here")).id == "1"
    assert read(structured(json.dumps(LEAST), "application/json")).id == "1"


@pytest.mark.parametrize("field", ["id", "source", "type", "specversion"])
@pytest.mark.parametrize("value", [None, "", 5, ["x"]])
def test_an_attribute_that_is_required_is_never_invented(field: str, value: Any) -> None:
    with pytest.raises(BadEnvelope, match="expected") as caught:
        read(event(**{field: value}))
    assert caught.value.field == field
    without = {name: member for name, member in LEAST.items() if name != field}
    with pytest.raises(BadEnvelope, match="found nothing") as caught:
        read(structured(json.dumps(without)))
    assert caught.value.field == field


@pytest.mark.parametrize("field", ["id", "source", "type", "specversion"])
def test_a_header_that_is_required_is_never_invented(field: str) -> None:
    whole = binary()
    for headers in (
        {name: value for name, value in whole.headers.items() if name != f"ce_{field}"},
        {**whole.headers, f"ce_{field}": ""},
    ):
        with pytest.raises(BadEnvelope) as caught:
            read(Delivery(b"", headers, "here"))
        assert caught.value.field == field


@pytest.mark.parametrize("version", ["0.3", "1.1", "1", 1.0])
def test_another_version_of_the_specification_is_refused(version: Any) -> None:
    with pytest.raises(BadEnvelope, match=r"specversion: expected '1\.0'"):
        read(event(specversion=version))


def test_a_batch_is_refused() -> None:
    with pytest.raises(BadEnvelope, match="found a batch; send each event as a message"):
        read(structured(json.dumps([LEAST]), "application/cloudevents-batch+json"))


def test_another_format_of_events_is_refused() -> None:
    with pytest.raises(BadEnvelope, match="avro"):
        read(structured(b"\x00", "application/cloudevents+avro"))


@pytest.mark.parametrize(
    ("body", "field", "reason"),
    [
        (b"", "the event", "expected JSON"),
        (b"{", "the event", "expected JSON"),
        (b"[]", "the event", "expected a JSON object, found a list"),
        (b"5", "the event", "expected a JSON object, found a number"),
        (b"\xff", "the event", "UTF-8"),
        ("\ufeff{}".encode(), "the event", "expected JSON"),
        (b'{"a": 1, "b": {"a": 1, "a": 2}}', "'a'", "found more than once"),
        (b'{"a": NaN}', "a number", "found NaN"),
        (b'{"a": -Infinity}', "a number", "found -Infinity"),
        (b'{"a": 1e99999}', "a number", "digits"),
        (b'{"a": 1e-99999}', "a number", "digits"),
        (b'{"a": 1e99999999999999999999}', "the event", "digits"),
        (b'{"a": ' + b"9" * 5000 + b"}", "the event", "digits"),
        (b'{"data": {"b": [' + b"9" * (DIGITS + 1) + b"]}}", "data.b[0]", "digits"),
        (b'{"data": {"b": ["\\u0000"]}}', "data.b[0]", "contains a NUL character"),
        (b'{"data": {"b\\u0000": 1}}', "key 'b\\x00' of data", "contains a NUL character"),
        (b'{"data": "\\ud800"}', "data", "contains a lone surrogate"),
        (b'{"id": "\\uDFFF"}', "id", "contains a lone surrogate"),
        (b'{"other": "\\u0000"}', "other", "contains a NUL character"),
        (b'{"a": "\x00"}', "the event", "control character"),
        (b'{"a": ' + b"[" * 100_000, "the event", "levels"),
        (b'{"data": ' + b"[" * (LEVELS + 1) + b"]" * (LEVELS + 1) + b"}", "data" + "[0]" * 25, "levels"),
    ],
)
def test_json_that_no_database_keeps_is_refused_by_name(body: bytes, field: str, reason: str) -> None:
    with pytest.raises(BadEnvelope) as caught:
        read(structured(body))
    assert caught.value.field.startswith(field)
    assert reason.lower() in caught.value.reason.lower()


def test_what_is_at_the_limits_is_read() -> None:
    deep: Any = "x"
    for _ in range(LEVELS):
        deep = [deep]
    assert read(event(data=deep)).data == deep
    assert read(event(data=10**DIGITS - 1)).data == 10**DIGITS - 1
    assert read(event(data="[" * 1000)).data == "[" * 1000
    assert read(event(data="9" * 9000)).data == "9" * 9000
    assert (
        read(
            structured(b'{"specversion":"1.0","id":"1","source":"/","type":"t","data":"\\ud83c\\udf89"}')
        ).data
        == "🎉"
    )
    assert (
        read(structured(b'{"specversion":"1.0","id":"1","source":"/","type":"t","data":"\\\\u0000"}')).data
        == "\\u0000"
    )


def test_numbers_are_exact() -> None:
    text = '{"a": 0.1, "b": 24.90, "c": 1E2, "d": 12345678901234567890.123456789, "e": 3}'
    data = read(structured(json.dumps(LEAST)[:-1] + f', "data": {text}}}')).data
    assert data == {
        "a": Decimal("0.1"),
        "b": Decimal("24.9"),
        "c": Decimal(100),
        "d": Decimal("12345678901234567890.123456789"),
        "e": 3,
    }
    assert type(data["e"]) is int


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31t12:00:00.5z", datetime(2026, 1, 31, 12, 0, 0, 500_000, tzinfo=UTC)),
        ("2026-01-31T12:00:00.123456789Z", datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)),
        ("2026-01-31 12:00:00-05:30", datetime(2026, 1, 31, 17, 30, tzinfo=UTC)),
        ("0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
    ],
)
def test_time_is_an_instant(text: str, instant: datetime) -> None:
    for message in (read(event(time=text)), read(binary(ce_time=text))):
        assert message.time == instant
        assert message.time is not None
        assert message.time.utcoffset() is not None


@pytest.mark.parametrize(
    "text",
    [
        "", "now", "2026-01-31", "2026-01-31T12:00:00", "2026-02-30T12:00:00Z", "2026-01-31T24:00:00Z",
        "2026-01-31T12:00:60Z", "20260131T120000Z", "2026-W05-1T12:00:00Z", "2026-01-31T12:00:00+25:00",
        "2026-01-31T12:00:00+01", "0000-01-01T00:00:00Z", "0001-01-01T00:00:00+01:00", "٢٠٢٦-01-31T12:00:00Z",
        1769860800, True,
    ],
)  # fmt: skip
def test_a_time_that_is_no_instant_is_refused(text: Any) -> None:
    with pytest.raises(BadEnvelope, match="time: expected an instant by RFC 3339"):
        read(event(time=text))


@pytest.mark.parametrize("name", ["partition_key", "Subject", "a-b", "é", "", "x y"])
def test_an_attribute_of_another_alphabet_is_refused(name: str) -> None:
    with pytest.raises(BadEnvelope, match="lower-case ASCII letters and digits"):
        read(event(**{name: "x"}))


@pytest.mark.parametrize("value", [1.5, [1], {"a": 1}, 2**63])
def test_an_extension_of_no_type_of_attributes_is_refused(value: Any) -> None:
    with pytest.raises(BadEnvelope, match="thing: expected text"):
        read(event(thing=value))


def test_null_is_as_if_the_attribute_were_not_there() -> None:
    message = read(event(subject=None, time=None, thing=None, data=None))
    assert message == Message("1", "/s", "t")


@pytest.mark.parametrize("field", ["subject", "datacontenttype", "dataschema"])
def test_an_optional_attribute_is_not_empty(field: str) -> None:
    with pytest.raises(BadEnvelope, match=f"{field}: expected text that is not empty"):
        read(event(**{field: ""}))


def test_bytes_come_in_base64() -> None:
    assert read(event(data_base64="AAH/")).data == b"\x00\x01\xff"
    for wrong in ("AAH", "%%%%", 5, ["AAH/"], "é"):
        with pytest.raises(BadEnvelope, match="data_base64: expected text in base64"):
            read(event(data_base64=wrong))
    with pytest.raises(BadEnvelope, match="found both"):
        read(event(data=1, data_base64="AAH/"))


@pytest.mark.parametrize(
    ("content_type", "body", "data"),
    [
        ("", b'{"a": 1}', {"a": 1}),
        ("application/json", b"[1]", [1]),
        ("application/vnd.example+json; charset=UTF-8", b"1.50", Decimal("1.5")),
        ("text/plain", "é".encode(), "é"),
        ("text/plain; charset=iso-8859-1", b"\xe9", "é"),
        ("application/octet-stream", b"\x00\xff", b"\x00\xff"),
        ("application/xml", b"<a/>", b"<a/>"),
        ("application/json", b"", None),
        ("text/plain", b"", None),
    ],
)
def test_binary_content_is_read_by_its_type(content_type: str, body: bytes, data: Any) -> None:
    message = read(binary(body, content_type=content_type))
    assert message.data == data
    assert message.datacontenttype == (content_type or None)


@pytest.mark.parametrize(
    ("content_type", "body", "field"),
    [
        ("application/json", b"{", "data"),
        ("", b"plain", "data"),
        ("application/json; charset=utf-16", b"{}", "content-type"),
        ("text/plain", b"\xff", "data"),
        ("text/plain; charset=nonsense", b"x", "data"),
        ("text/plain; charset=hex", b"00", "data"),
        ("text/plain", b"\x00", "data"),
        ("application/json", b'{"a": ["\\u0000"]}', "data.a[0]"),
    ],
)
def test_binary_content_that_is_not_of_its_type_is_refused(
    content_type: str, body: bytes, field: str
) -> None:
    with pytest.raises(BadEnvelope) as caught:
        read(binary(body, content_type=content_type))
    assert caught.value.field == field


def test_headers_that_no_database_keeps_are_refused_by_name() -> None:
    with pytest.raises(BadEnvelope, match="thing: contains a NUL"):
        read(binary(ce_thing="\x00"))
    with pytest.raises(BadEnvelope, match="id: contains a lone surrogate"):
        read(binary(ce_id="\ud800"))


def test_headers_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(BadEnvelope, match="found two with different values"):
        read(Delivery(b"", {**binary().headers, "ce-id": "2"}, "here"))
    with pytest.raises(BadEnvelope, match="datacontenttype: expected the same as content-type"):
        read(binary(b"1", content_type="application/json", ce_datacontenttype="text/plain"))


def test_what_is_no_event_at_all_is_refused() -> None:
    with pytest.raises(BadEnvelope, match="specversion"):
        read(Delivery(b"hello", {"content-type": "text/plain"}, "here"))
    with pytest.raises(BadEnvelope, match=r"expected '1\.0', found nothing"):
        read(Delivery(b'{"a": 1}', {}, "here"))


# -- writing


def message(**fields: Any) -> Message:
    return Message(**{"id": "1", "source": "/s", "type": "t", **fields})


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"id": ""}, "id"),
        ({"source": None}, "source"),
        ({"type": 5}, "type"),
        ({"subject": ""}, "subject"),
        ({"subject": "\x00"}, "subject"),
        ({"time": datetime(2026, 1, 1)}, "time"),  # noqa: DTZ001
        ({"extensions": {"Thing": 1}}, "'Thing'"),
        ({"extensions": {"thing": 1.5}}, "thing"),
        ({"extensions": {"thing": 2**31}}, "thing"),
        ({"extensions": {"thing": "\ud800"}}, "thing"),
        ({"extensions": {"data": "x"}}, "data"),
        ({"extensions": {"specversion": "1.0"}}, "specversion"),
        ({"data": math.nan}, "data"),
        ({"data": {"a": [Decimal("Infinity")]}}, "data.a[0]"),
        ({"data": {"a": "\x00"}}, "data.a"),
        ({"data": {1: "x"}}, "data"),
        ({"data": {"\x00": "x"}}, "a key of data"),
        ({"data": {"a": object()}}, "data.a"),
        ({"data": {"a": b"x"}}, "data.a"),
        ({"data": Decimal("1e9999")}, "data"),
        ({"data": 10**DIGITS}, "data"),
        ({"data": b"{}", "datacontenttype": "application/json"}, "data"),
    ],
)
@pytest.mark.parametrize("mode", [True, False])
def test_what_could_not_be_read_is_not_written(fields: dict[str, Any], field: str, mode: bool) -> None:
    with pytest.raises(BadEnvelope) as caught:
        write(message(**fields), structured=mode)
    assert caught.value.field == field


@pytest.mark.parametrize("mode", [True, False])
def test_what_nests_too_deep_is_not_written(mode: bool) -> None:
    deep: Any = "x"
    for _ in range(LEVELS):
        deep = [deep]
    assert read(delivered(write(message(data=deep), structured=mode))).data == deep
    with pytest.raises(BadEnvelope, match="levels"):
        write(message(data={"a": deep}), structured=mode)


def test_bytes_without_a_type_are_not_written_where_nothing_says_what_they_are() -> None:
    with pytest.raises(BadEnvelope, match="datacontenttype: expected one"):
        write(message(data=b"x"), structured=False)
    with pytest.raises(BadEnvelope, match="expected text or bytes"):
        write(message(data={}, datacontenttype="text/plain"), structured=False)
    with pytest.raises(BadEnvelope, match="fits us-ascii"):
        write(message(data="é", datacontenttype="text/plain; charset=us-ascii"), structured=False)


def test_the_key_is_the_partition_key_or_the_subject() -> None:
    assert write(message(subject="account/1", extensions={"partitionkey": "p"})).key == "p"
    assert write(message(subject="account/1")).key == "account/1"
    assert write(message()).key is None


def test_an_offset_with_seconds_is_written_in_utc() -> None:
    old = datetime(1890, 1, 1, tzinfo=timezone(timedelta(minutes=53, seconds=28)))
    assert read(delivered(write(message(time=old)))).time == old


# -- round trips

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=12)
NUMBERS = (
    st.integers(-(10**30), 10**30)
    | st.decimals(allow_nan=False, allow_infinity=False).filter(lambda value: abs(value.adjusted()) < 1000)
    | st.floats(allow_nan=False, allow_infinity=False)
)
JSON = st.recursive(
    st.none() | st.booleans() | TEXT | NUMBERS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
CONTENT = (
    st.tuples(JSON, st.sampled_from([None, "application/json", "application/x+json; charset=utf-8"]))
    | st.tuples(TEXT, st.sampled_from(["text/plain", "text/csv; charset=utf-8"]))
    | st.tuples(
        st.binary(min_size=1, max_size=20), st.sampled_from(["application/octet-stream", "image/png"])
    )
    | st.tuples(st.none(), st.none() | st.just("text/plain"))
)
NAMES = st.from_regex(r"[a-z0-9]{1,20}", fullmatch=True).filter(
    lambda name: (
        name not in ("specversion", "id", "source", "type", "subject", "time", "data")
        and name not in ("datacontenttype", "dataschema")
    )
)
INSTANTS = st.datetimes(
    min_value=datetime(1, 1, 2),  # noqa: DTZ001
    max_value=datetime(9999, 12, 30),  # noqa: DTZ001
    timezones=st.builds(
        lambda minutes: timezone(timedelta(minutes=minutes)), st.integers(-23 * 60 - 59, 23 * 60 + 59)
    ),
)
INTEGERS = st.integers(-(2**31), 2**31 - 1)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    data, content_type = draw(CONTENT)
    return Message(
        draw(TEXT),
        draw(TEXT),
        draw(TEXT),
        data,
        draw(st.none() | TEXT),
        draw(st.none() | INSTANTS),
        content_type,
        draw(st.none() | TEXT),
        draw(st.dictionaries(NAMES, TEXT | st.just("") | st.booleans() | INTEGERS, max_size=4)),
    )


def exact(value: Any) -> Any:
    """As JSON is read: floats are decimals."""
    match value:
        case float():
            return Decimal(repr(value))
        case list():
            return [exact(part) for part in value]
        case dict():
            return {name: exact(part) for name, part in value.items()}
        case _:
            return value


def as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@given(messages())
def test_what_is_written_structured_is_read_again(written: Message) -> None:
    found = read(delivered(write(written)))
    written.data = exact(written.data)
    assert found == written
    for name, value in written.extensions.items():
        assert type(found.extensions[name]) is type(value)


@pytest.mark.parametrize("prefix", sorted({*PREFIXES.values(), "cloudEvents:"}))
@given(written=messages())
def test_what_is_written_in_binary_mode_is_read_again(prefix: str, written: Message) -> None:
    outgoing = write(written, structured=False, prefix=prefix)
    assert all(name.startswith(prefix) or name == "content-type" for name in outgoing.headers)
    found = read(delivered(outgoing))
    written.data = exact(written.data)
    written.extensions = {name: as_text(value) for name, value in written.extensions.items()}
    assert found == written


# -- two readers

MEMBERS = (
    "specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema", "data", "data_base64",
    "sequence", "idempotencykey", "schemaversion", "traceparent", "flagged", "Bad",
)  # fmt: skip
TIMES = (
    "2026-01-31T12:00:00Z", "2026-01-31t12:00:00z", "2026-01-31 12:00:00Z", "2026-02-31T12:00:00Z", "2026-W05-6T12:00Z",
    "2026-W05-6T12:00:00Z", "2026-01-31T12:00:00.9999999Z", "2026-01-31T12:00:00+01:00", "2026-01-31T12:00:00",
    "2026-01-31T24:00:00Z", "2026-01-31T12:00:60Z", "2026-01-31T12-00-00Z", "2026-01-31T12:0\u0660:00Z",
    "0001-01-01T00:00:00Z",
)  # fmt: skip
RAW = (
    "null", "true", "1", "0", "-0", "1.0", "1e2", "24.90", "9223372036854775808", "NaN", "1e99999", '""', '"1.0"',
    '"x"', '"a\\"b"', '"a\\\\"', '"a\\u0000"', '"\\ud800"', '"\\u00e9"', '"\u00e9\U0001f600"', '"a\\nb"',
    '"a: \\"b\\": c"', "'x'", "[]", '[1,"x",{"y":"z"}]', "{}", '{"a":1}', '{"a":"1","a":"1"}',
    '{"a":{"b":null,"b":null}}',
    '{"a" :"1"}', '{"a":[{}]}',
)  # fmt: skip
GAPS = st.sampled_from(["", "", "", " ", "\n", "\t"])


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """JSON, or nearly so, that is an event, or nearly so."""
    common = [(name, json.dumps(value)) for name, value in LEAST.items()]
    times = st.tuples(st.just("time"), st.sampled_from(TIMES).map(json.dumps))
    pairs = draw(st.lists(st.tuples(st.sampled_from(MEMBERS), st.sampled_from(RAW)) | times, max_size=4))
    given = draw(st.permutations([*common, *pairs]))
    if draw(st.integers(0, 9)) == 0:
        given = given[1:]
    members = []
    for name, value in given:
        before, between, after = draw(GAPS), draw(GAPS), draw(GAPS)
        members.append(f'{before}"{name}"{between}:{after}{value}')
    return ("{" + ",".join(members) + "}").encode()


def outcome(body: bytes) -> tuple[str, Message | None]:
    try:
        return "", read(structured(body))
    except BadEnvelope as error:
        return str(error), None


@settings(max_examples=500, deadline=None)
@given(bodies())
def test_the_quick_reader_reads_what_the_careful_one_reads(body: bytes) -> None:
    quickly = outcome(body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(envelope, "_plainly", lambda _: None)
        patch.setattr(envelope, "_quickly", lambda _: envelope._UNREAD)
        carefully = outcome(body)
    assert quickly == carefully
    if quickly[1] is not None and carefully[1] is not None:
        assert repr(quickly[1].data) == repr(carefully[1].data)
        assert {name: repr(value) for name, value in quickly[1].extensions.items()} == {
            name: repr(value) for name, value in carefully[1].extensions.items()
        }


# -- against the SDK of CloudEvents


def of_sdk(message: Message) -> CloudEvent:
    attributes: dict[str, Any] = {
        "id": message.id,
        "source": message.source,
        "type": message.type,
        "specversion": "1.0",
        "time": message.time,
        "subject": message.subject,
        "datacontenttype": message.datacontenttype,
        "dataschema": message.dataschema,
        **message.extensions,
    }
    return CloudEvent({name: value for name, value in attributes.items() if value is not None}, message.data)


PLAIN = st.recursive(
    st.none() | st.booleans() | TEXT | st.integers(-(10**15), 10**15),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def common(draw: st.DrawFn) -> Message:
    """Messages in what the SDK has as well: data are objects, and there is always a time."""
    return Message(
        draw(TEXT),
        draw(TEXT),
        draw(TEXT),
        draw(st.dictionaries(TEXT, PLAIN, min_size=1, max_size=3)),
        draw(st.none() | TEXT),
        # The SDK writes offsets of every length, RFC 3339 knows hours and minutes.
        draw(INSTANTS),
        "application/json",
        draw(st.none() | st.just("https://schemas.example/1")),
        draw(st.dictionaries(NAMES, TEXT, max_size=3)),
    )


@given(common())
def test_what_the_sdk_writes_is_read(message: Message) -> None:
    kafka = sdk_kafka.to_structured_event(of_sdk(message))
    assert read(Delivery(kafka.value, _text(kafka.headers), "here")) == message
    kafka = sdk_kafka.to_binary_event(of_sdk(message))
    assert read(Delivery(kafka.value, _text(kafka.headers), "here")) == message


@given(common())
def test_what_is_written_is_read_by_the_sdk(message: Message) -> None:
    for outgoing in (write(message), write(message, structured=False)):
        headers = {name: value.encode() for name, value in outgoing.headers.items()}
        found = sdk_kafka.from_kafka_event(sdk_kafka.KafkaMessage(headers, None, outgoing.body))
        assert found.get_attributes() == of_sdk(message).get_attributes()
        assert found.get_data() == message.data
    outgoing = write(message, structured=False, prefix=PREFIXES["amqp"])
    properties = {name: value for name, value in outgoing.headers.items() if name != "content-type"}
    amqp = sdk_amqp.AMQPMessage({"content-type": outgoing.headers["content-type"]}, properties, outgoing.body)
    assert sdk_amqp.from_amqp_event(amqp).get_attributes() == of_sdk(message).get_attributes()


def _text(headers: dict[str, bytes]) -> dict[str, str]:
    return {name.lower(): value.decode() for name, value in headers.items()}

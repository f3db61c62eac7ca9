"""Envelopes: CloudEvents 1.0 as they travel, in structured and in binary mode, and `Message`, what they are here."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from email.message import Message as Mail
from functools import lru_cache
from itertools import chain
from json import JSONDecodeError, JSONDecoder
from json.encoder import encode_basestring
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, Never, cast

import msgspec

from ...domain.errors import OnefoldError
from ...domain.event import DIGITS, LEVELS, flaw_of_text
from ...domain.instant import has_whole_minutes
from ...projections.message import Message
from .port import Delivery, Outgoing

STRUCTURED: Final = "application/cloudevents+json"
PREFIXES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "kafka": "ce_",
        "amqp": "cloudEvents_",
        "amqps": "cloudEvents_",
        "sqs": "ce-",
        "pubsub": "ce-",
        "redis": "ce-",
        "rediss": "ce-",
        "memory": "ce-",
    }
)
"""What the headers of attributes begin with in binary mode, by the scheme of the broker's URL."""

_READ_PREFIXES: Final = ("ce_", "ce-", "cloudevents:", "cloudevents_")
_NAME: Final = re.compile(r"[a-z0-9]+")
_TIME: Final = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d+)?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)", re.ASCII
)
_ESCAPES: Final = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")
_DIGITS_ONLY: Final = bytes(48 if 48 <= byte <= 57 else 32 for byte in range(256))
_LONG_NUMBER: Final = b"0" * (DIGITS + 1)
_TOO_LARGE: Final = 10**DIGITS
_INTEGER: Final = 2**31
_LONG: Final = 2**63
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_UTC_SECONDS: Final = 20
_RESERVED: Final = frozenset(
    {
        "specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema", "data",
        "data_base64",
    }
)  # fmt: skip


class BadEnvelope(OnefoldError, ValueError):
    """What came, or is to go, is no CloudEvent 1.0, or holds what cannot be kept.

    `field` names the attribute, header or part of the data, `reason` says what was expected of it and what was found.
    """

    def __init__(self, field: str, reason: str) -> None:
        self.field = field
        self.reason = reason
        super().__init__(f"not a CloudEvent that can be handled: {field}: {reason}; correct its producer")


def read(delivery: Delivery) -> Message:
    """Return the message in a delivery, in whichever mode it came; raises `BadEnvelope`.

    It is structured when its content type says so, or when no header is an attribute and its body is a JSON object
    with `specversion`. Otherwise the attributes are the headers that begin with `ce_`, `ce-`, `cloudEvents:` or
    `cloudEvents_`, and stay text. Numbers in JSON are int or Decimal, unchanged in value. In binary mode JSON is
    what is called so or not called anything, `text/*` becomes str, all else stays bytes, and an empty body is None.
    Fractions of `time` beyond the microsecond are cut off.
    """
    headers = delivery.headers
    content_type = headers.get("content-type") or headers.get("content_type") or ""
    if content_type == STRUCTURED:
        return _plainly(delivery.body) or _structured(delivery.body)
    kind = _media_type(content_type)
    if kind == STRUCTURED:
        if (charset := _charset(content_type)) not in ("utf-8", "utf8", "us-ascii"):
            raise BadEnvelope("content-type", f"expected charset utf-8, found {charset!r}")
        return _plainly(delivery.body) or _structured(delivery.body)
    if kind.startswith("application/cloudevents"):
        what = "a batch" if kind.startswith("application/cloudevents-batch") else repr(kind)
        raise BadEnvelope(
            "content-type",
            f"expected one event as {STRUCTURED} or in binary mode, found {what}; send each event as a message",
        )
    attributes = _attributes_of(headers)
    if not attributes:
        if not kind or _is_json(kind):
            return _plainly(delivery.body) or _structured(delivery.body)
        raise BadEnvelope(
            "specversion",
            f"expected it in a header such as ce_specversion, found none (content-type {kind!r})",
        )
    if content_type:
        said = attributes.setdefault("datacontenttype", content_type)
        if said != content_type:
            raise BadEnvelope(
                "datacontenttype", f"expected the same as content-type {content_type!r}, found {said!r}"
            )
    return _message(attributes, _content(delivery.body, attributes.get("datacontenttype")))


def read_plain(bodies: Sequence[bytes]) -> list[Message] | None:
    """Return the messages of events that are structured, short and plain; None when one of them needs a closer look.

    Whether it does is asked of all at once, which takes a fraction of the time. What comes is what `read` returns.
    """
    text = b"".join(bodies)
    if b"\\" in text or max(map(len, bodies), default=0) > DIGITS:
        return None
    try:
        found = list(map(_DECODE_PLAIN, bodies))
        times = [each.time for each in found]
        instants = {
            time: None
            if time is None
            else datetime.fromisoformat(time)
            if _is_usual(time)
            else _instant(time)
            for time in set(times)
        }
    except (msgspec.MsgspecError, ArithmeticError, ValueError, RecursionError):
        return None
    data = [each.data for each in found]
    if not {dict}.issuperset(map(type, data)):
        return None
    kinds = [*map(type, chain.from_iterable(map(dict.values, data)))]
    sequences = [each.sequence for each in found]
    texts = [*map(type, sequences)].count(str)
    if not _FLAT.issuperset(kinds) or texts + sequences.count(None) < len(found):
        return None
    optional = ([each.subject for each in found], times, [each.datacontenttype for each in found])
    schemas = [each.dataschema for each in found]
    missing = sum(column.count(None) for column in (*optional, schemas))
    # As in `_plainly`, of all together: no event has fewer quotes than it must have.
    quotes = 34 * len(found) - 4 * missing + 4 * texts + 2 * (len(kinds) + kinds.count(str))
    extensions: list[Any] = [_NOTHING if value is None else {"sequence": value} for value in sequences]
    if left := text.count(b'"') - quotes:
        for place, each in enumerate(found):
            extensions[place] = more = _texts_in(each)
            left -= 4 * (len(more) - len({"sequence"} & more.keys()))
        if left:
            return None
    return [
        Message(
            each.id, each.source, each.type, each.data, subject, instants[time], content_type, schema, more
        )
        for each, subject, time, content_type, schema, more in zip(
            found, *optional, schemas, extensions, strict=True
        )
    ]


def _texts_in(found: _Plain) -> dict[str, str]:
    """Return the extensions that are text."""
    values = ((name, getattr(found, name)) for name in _EXTENSIONS)
    return {name: value for name, value in values if type(value) is str}


def write(message: Message, *, structured: bool = True, prefix: str = "ce_") -> Outgoing:
    """Return a message as it travels: its body, headers and partition key; raises `BadEnvelope`.

    In binary mode the names of headers begin with `prefix`, the broker's own of `PREFIXES`, and extensions become
    text. The key is the extension `partitionkey`, or else the subject. What `read` would refuse is refused.
    """
    attributes: dict[str, Any] = {
        "specversion": "1.0",
        "id": message.id,
        "source": message.source,
        "type": message.type,
        "subject": message.subject,
        "time": None if message.time is None else _text_of_time(message.time),
        "datacontenttype": message.datacontenttype,
        "dataschema": message.dataschema,
    }
    for name in _RESERVED.intersection(message.extensions):
        raise BadEnvelope(name, "expected an extension, found the name of a field of Message; set that field")
    attributes.update(message.extensions)
    _message(dict(attributes), None)
    for name, value in attributes.items():
        if type(value) is str and (flaw := flaw_of_text(value)):
            raise BadEnvelope(name, flaw)
        if type(value) is int and not -_INTEGER <= value < _INTEGER:
            raise BadEnvelope(name, f"expected a whole number of 32 bits, found {value}; give it as text")
    key = message.extensions.get("partitionkey", message.subject)
    key = None if key is None else _text_of(key)
    kind = _media_type(message.datacontenttype or "")
    if isinstance(message.data, bytes) and _is_json(kind):
        raise BadEnvelope("data", f"expected a JSON value, as datacontenttype {kind!r} says, found bytes")
    if structured:
        members = {name: value for name, value in attributes.items() if value is not None}
        if isinstance(message.data, bytes):
            members["data_base64"] = b64encode(message.data).decode()
        elif message.data is not None:
            members["data"] = message.data
        body = _members(members).encode()
        return Outgoing(body, {"content-type": STRUCTURED}, key)
    headers = {f"{prefix}{name}": _text_of(value) for name, value in attributes.items() if value is not None}
    if message.datacontenttype is not None:
        headers["content-type"] = headers.pop(f"{prefix}datacontenttype")
    return Outgoing(_body(message.data, message.datacontenttype, kind), headers, key)


def _structured(body: bytes) -> Message:
    members = _json(body, "the event")
    if type(members) is not dict:
        raise BadEnvelope("the event", f"expected a JSON object, found {_kind_of(members)}")
    data = members.pop("data", None)
    packed = members.pop("data_base64", None)
    if packed is not None:
        if data is not None:
            raise BadEnvelope("data_base64", "expected either data or data_base64, found both")
        try:
            data = b64decode(packed, validate=True)
        except (ValueError, TypeError) as error:
            raise BadEnvelope(
                "data_base64", f"expected text in base64, found what is not: {error}"
            ) from error
    return _message(members, data)


_Text = Annotated[str, msgspec.Meta(min_length=1)]


class _Plain(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """An event with the attributes that the product reads, and no others."""

    specversion: Literal["1.0"]
    id: _Text
    source: _Text
    type: _Text
    subject: _Text | None = None
    time: _Text | None = None
    datacontenttype: _Text | None = None
    dataschema: _Text | None = None
    data: Any = None
    sequence: Any = None
    idempotencykey: Any = None
    partitionkey: Any = None
    correlationid: Any = None
    causationid: Any = None
    schemaversion: Any = None
    traceparent: Any = None
    tracestate: Any = None


def _plainly(body: bytes) -> Message | None:
    """Return the message of a short and plain event, None where it needs a closer look; several times as fast."""
    if len(body) > DIGITS or b"\\" in body:
        return None
    try:
        found = _DECODE_PLAIN(body)
        time = found.time
        if time is None:
            at = None
        else:
            at = datetime.fromisoformat(time) if _is_usual(time) else _instant(time)
    except (msgspec.MsgspecError, ArithmeticError, ValueError, RecursionError):
        return None
    data, subject, sequence = found.data, found.subject, found.sequence
    content_type, schema = found.datacontenttype, found.dataschema
    # Nothing is escaped, so there are two quotes for each name and each text. More are there if a name stands twice in
    # its object, or for a null.
    quotes = 32 - 4 * (subject, time, content_type, schema).count(None)
    if type(data) is dict and _FLAT.issuperset(kinds := [*map(type, data.values())]):
        quotes += 2 + 2 * (len(kinds) + kinds.count(str))
    elif data is not None:
        if _is_deep_text(body):
            return None
        quotes += 2 + _quotes_in(data)
    extensions: Mapping[str, Any] | None = _NOTHING
    if sequence is not None and _is_extension(sequence):
        extensions = {"sequence": sequence}
        quotes += 4 if type(sequence) is str else 2
    if missing := body.count(b'"') - quotes:
        extensions = _more_extensions(found, missing)
    if extensions is None:
        return None
    return Message(found.id, found.source, found.type, data, subject, at, content_type, schema, extensions)


def _more_extensions(found: _Plain, quotes: int) -> Mapping[str, Any] | None:
    """Return all extensions, None unless `quotes` is how many the others have than `sequence`."""
    extensions = {}
    for name in _EXTENSIONS:
        value = getattr(found, name)
        if value is not None and _is_extension(value):
            extensions[name] = value
            quotes -= (name != "sequence") * (4 if type(value) is str else 2)
    return None if quotes else extensions


def _message(attributes: dict[str, Any], data: Any) -> Message:
    """Make a message of attributes, which are used up."""
    take = attributes.pop
    version = take("specversion", None)
    if version != "1.0":
        raise BadEnvelope("specversion", f"expected '1.0', found {_shown(version)}")
    identity, source, kind = take("id", None), take("source", None), take("type", None)
    if not (identity and source and kind and type(identity) is type(source) is type(kind) is str):
        for name, value in (("id", identity), ("source", source), ("type", kind)):
            if type(value) is not str or not value:
                raise BadEnvelope(name, f"expected text that is not empty, found {_shown(value)}")
    subject = take("subject", None)
    content_type, schema = take("datacontenttype", None), take("dataschema", None)
    if subject is not None or content_type is not None or schema is not None:
        optional = (("subject", subject), ("datacontenttype", content_type), ("dataschema", schema))
        for name, value in optional:
            if value is not None and (type(value) is not str or not value):
                raise BadEnvelope(name, f"expected text that is not empty, or nothing, found {_shown(value)}")
    time = take("time", None)
    return Message(
        identity,
        source,
        kind,
        data,
        subject,
        None if time is None else _instant(time),
        content_type,
        schema,
        _extensions(attributes) if attributes else _NOTHING,
    )


def _extensions(attributes: dict[str, Any]) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for name, value in attributes.items():
        if not _is_name(name):
            raise BadEnvelope(
                repr(name), "expected the name of an attribute, of lower-case ASCII letters and digits"
            )
        if _is_extension(value):
            found[name] = value
        elif value is not None:
            raise BadEnvelope(
                name, f"expected text, true, false or a whole number of 64 bits, found {_kind_of(value)}"
            )
    return found


def _is_extension(value: Any) -> bool:
    kind = type(value)
    return kind is str or kind is bool or (kind is int and -_LONG <= value < _LONG)


@lru_cache(maxsize=1024)
def _is_name(name: str) -> bool:
    return name != "data" and _NAME.fullmatch(name) is not None


def _attributes_of(headers: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for header, value in headers.items():
        name = _attribute_of(header)
        if name is not None:
            if flaw := flaw_of_text(value):
                raise BadEnvelope(name, flaw)
            if found.setdefault(name, value) != value:
                raise BadEnvelope(name, "expected one header, found two with different values")
    return found


@lru_cache(maxsize=1024)
def _attribute_of(header: str) -> str | None:
    for prefix in _READ_PREFIXES:
        if header.startswith(prefix):
            return header[len(prefix) :]
    return None


def _instant(value: Any) -> datetime:
    try:
        # The month and day are checked by the reader; its own grammar is wider than RFC 3339.
        if type(value) is str and _TIME.fullmatch(value):
            found = datetime.fromisoformat(value.upper())
            if 1 < found.year < 9999:
                return found
            found.astimezone(UTC)
            return found
    except (ValueError, OverflowError):
        pass
    raise BadEnvelope(
        "time", f"expected an instant by RFC 3339, such as 2026-01-31T12:00:00Z, found {_shown(value)}"
    )


def _is_usual(time: str) -> bool:
    """Tell whether a text has the marks of seconds in UTC, between which the reader takes digits alone."""
    return time[4::3] == "--T::Z" and len(time) == _UTC_SECONDS


def _text_of_time(value: datetime) -> str:
    if value.tzinfo is None or value.utcoffset() is None:
        raise BadEnvelope("time", f"expected a datetime with a zone, found {value.isoformat()} without one")
    return (value if has_whole_minutes(value) else value.astimezone(UTC)).isoformat()


def _content(body: bytes, content_type: str | None) -> Any:
    if not body:
        return None
    kind = _media_type(content_type or "")
    if not kind or _is_json(kind):
        charset = _charset(content_type or "")
        if charset not in ("utf-8", "utf8", "us-ascii"):
            raise BadEnvelope("content-type", f"expected JSON in utf-8, found charset {charset!r}")
        return _json(body, "data")
    if not kind.startswith("text/"):
        return body
    charset = _charset(content_type or "")
    try:
        text = body.decode(charset)
    except (UnicodeError, LookupError) as error:
        raise BadEnvelope("data", f"expected text in {charset}, found what is not: {error}") from error
    if flaw := flaw_of_text(text):
        raise BadEnvelope("data", flaw)
    return text


def _body(data: Any, content_type: str | None, kind: str) -> bytes:
    """Return data as the body of a message in binary mode."""
    if data is None:
        return b""
    if isinstance(data, bytes):
        if not kind:
            raise BadEnvelope("datacontenttype", "expected one that says what the bytes are, found none")
        return data
    if not kind or _is_json(kind):
        return _text_of_json(data, "data").encode()
    if not isinstance(data, str):
        raise BadEnvelope("data", f"expected text or bytes, as {kind!r} is no JSON, found {_kind_of(data)}")
    if flaw := flaw_of_text(data):
        raise BadEnvelope("data", flaw)
    charset = _charset(content_type or "") if kind.startswith("text/") else "utf-8"
    try:
        return data.encode(charset)
    except (UnicodeError, LookupError) as error:
        raise BadEnvelope("data", f"expected text that fits {charset}: {error}") from error


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _is_json(kind: str) -> bool:
    return kind in ("application/json", "text/json") or kind.endswith("+json")


def _charset(content_type: str) -> str:
    mail = Mail()
    mail["content-type"] = content_type
    return (mail.get_content_charset() if ";" in content_type else None) or "utf-8"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BadEnvelope(_shown(twice), "expected once in its JSON object, found more than once")
    return found


def _decimal(text: str) -> Decimal:
    value = Decimal(text)
    if len(text) > DIGITS or ("e" in text or "E" in text):
        _require_short(value, "a number")
    return value


def _require_short(value: Decimal, path: str) -> None:
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)
    if max(value.adjusted(), -exponent) >= DIGITS:
        raise BadEnvelope(path, f"expected up to {DIGITS} digits, found more when it is written out")


def _constant(text: str) -> Never:
    raise BadEnvelope("a number", f"expected what JSON can hold, found {text}")


_DECODE: Final = JSONDecoder(object_pairs_hook=_object, parse_float=_decimal, parse_constant=_constant).decode


_QUICK: Final = msgspec.json.Decoder(float_hook=_decimal).decode
_DECODE_PLAIN: Final = msgspec.json.Decoder(_Plain, float_hook=_decimal).decode
_FLAT: Final = frozenset({str, int, bool, type(None), Decimal})
_EXTENSIONS: Final = tuple(name for name in _Plain.__struct_fields__ if name not in _RESERVED)
_UNREAD: Final = object()


def _is_deep_text(body: bytes) -> bool:
    """Tell whether JSON may be nested too deep."""
    return len(body) > 2 * LEVELS and body.count(b"[") + body.count(b"{") > LEVELS


def _quickly(body: bytes) -> Any:
    """Return the value of short and plain JSON, `_UNREAD` where it needs a closer look; several times as fast."""
    if len(body) > DIGITS or b"\\u" in body:
        return _UNREAD
    if _is_deep_text(body):
        return _UNREAD
    try:
        value = _QUICK(body)
    except (msgspec.MsgspecError, ArithmeticError, ValueError):
        return _UNREAD
    # As many quotes as names and texts have: no name stands twice in its object.
    return value if body.count(b'"') == _quotes_in(value) else _UNREAD


def _quotes_in(value: Any) -> int:
    """Return how many quotes a JSON value is written with, where none is written as a number."""
    kind = type(value)
    if kind is str:
        return 2 + cast("int", value.count('"'))
    if kind is dict:
        return sum(map(_quotes_in, value)) + sum(map(_quotes_in, value.values()))
    return sum(map(_quotes_in, value)) if kind is list else 0


def _json(body: bytes, path: str) -> Any:
    value = _quickly(body)
    if value is not _UNREAD:
        return value
    try:
        text = body.decode()
        value = _DECODE(text)
    except UnicodeDecodeError as error:
        raise BadEnvelope(path, f"expected JSON in UTF-8, found other bytes at {error.start}") from error
    except JSONDecodeError as error:
        raise BadEnvelope(
            path, f"expected JSON, found an error at character {error.pos}: {error.msg}"
        ) from error
    except RecursionError as error:
        raise BadEnvelope(path, f"expected up to {LEVELS} levels, found more") from error
    except InvalidOperation as error:
        raise BadEnvelope(path, f"expected numbers of up to {DIGITS} digits, found a larger one") from error
    except BadEnvelope:
        raise
    except ValueError as error:
        raise BadEnvelope(
            path, f"expected whole numbers of up to {DIGITS} digits, found a longer one"
        ) from error
    # Only an escape brings in what bytes in UTF-8 cannot hold, and only a long text nests deep or counts far.
    if (
        ("\\u" in text and _ESCAPES.search(text))
        or (len(text) > 2 * LEVELS and text.count("[") + text.count("{") > LEVELS and _is_deep(value))
        or (len(text) > DIGITS and _LONG_NUMBER in body.translate(_DIGITS_ONLY))
    ):
        level = int(path == "data")
        _require_storable(value, path if level else "", level)
    return value


def _is_deep(value: Any) -> bool:
    """Tell whether a JSON value may be nested too deep: whether it has `LEVELS` levels or more."""
    parts = [value]
    for _ in range(LEVELS):
        parts = [
            inner
            for part in parts
            for inner in (part.values() if type(part) is dict else part)
            if type(inner) is dict or type(inner) is list
        ]
        if not parts:
            return False
    return True


def _require_storable(value: Any, path: str, level: int) -> None:
    """Raise `BadEnvelope` for the first part of a JSON value that the database could not keep."""
    kind = type(value)
    if kind is str:
        if flaw := flaw_of_text(value):
            raise BadEnvelope(path, flaw)
    elif kind is int:
        if not -_TOO_LARGE < value < _TOO_LARGE:
            raise BadEnvelope(path, f"expected a whole number of up to {DIGITS} digits, found a longer one")
    elif kind is list or kind is dict:
        # The event itself is level 0, its data level 1.
        if level > LEVELS:
            raise BadEnvelope(f"{path[:80]}...", f"expected up to {LEVELS} levels, found more")
        if kind is list:
            for index, part in enumerate(value):
                _require_storable(part, f"{path}[{index}]", level + 1)
        else:
            for name, part in value.items():
                if flaw := flaw_of_text(name):
                    raise BadEnvelope(f"key {name!r} of {path or 'the event'}", flaw)
                _require_storable(part, f"{path}.{name}" if path else name, level + 1)


def _members(members: Mapping[str, Any]) -> str:
    return (
        "{"
        + ",".join(
            f"{encode_basestring(name)}:{_text_of_json(value, name)}" for name, value in members.items()
        )
        + "}"
    )


def _text_of_json(value: Any, path: str, level: int = 1) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            if flaw := flaw_of_text(value):
                raise BadEnvelope(path, flaw)
            return encode_basestring(value)
        case int():
            _require_storable(int(value), path, level)
            return int.__repr__(value)
        case float() | Decimal():
            number = Decimal(repr(value)) if isinstance(value, float) else value
            if not number.is_finite():
                raise BadEnvelope(path, f"expected what JSON can hold, found {value}")
            _require_short(number, path)
            return str(number)
        case list() | tuple() | dict() if level > LEVELS:
            raise BadEnvelope(f"{path[:80]}...", f"expected up to {LEVELS} levels, found more")
        case list() | tuple():
            parts = (_text_of_json(part, f"{path}[{index}]", level + 1) for index, part in enumerate(value))
            return f"[{','.join(parts)}]"
        case dict():
            members: list[str] = []
            for name, part in value.items():
                if not isinstance(name, str):
                    raise BadEnvelope(path, f"expected keys that are text, found {name!r}")
                members.append(
                    f"{_text_of_json(name, f'a key of {path}')}:{_text_of_json(part, f'{path}.{name}', level + 1)}"
                )
            return "{" + ",".join(members) + "}"
        case _:
            raise BadEnvelope(path, f"expected a JSON value, found {type(value).__name__}")


def _text_of(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _kind_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | Decimal():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case dict():
            return "an object"
        case _:
            return f"a {type(value).__name__}"

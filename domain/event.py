"""Events: immutable, named and versioned facts."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar, cast, get_args, get_origin
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict
from pydantic_core import PydanticSerializationError, from_json, to_json

from .errors import DeclarationError, UnstorableValue
from .instant import has_whole_minutes, instant, microseconds

if TYPE_CHECKING:
    from .aggregate import Aggregate
    from .registry import Registry

NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")
_set = object.__setattr__
_new = object.__new__
_tuple = tuple.__new__
E = TypeVar("E", bound="Event")
_OPEN = frozenset({Any, object, dict, list, tuple, set, frozenset})
_PLAIN_KEYS: frozenset[Any] = frozenset({str, int, float, Decimal, UUID, date, AwareDatetime})
LEVELS = 150
"""How deep lists and mappings may be nested in a field; readers of JSON give up at about 200 levels."""
DIGITS = 4000
"""How many digits a whole number may have; readers of JSON give up at 4,300."""
_TOO_LARGE = 10**DIGITS
_NESTING = (list, tuple, set, frozenset, dict, BaseModel, Mapping)
_SINGLE = frozenset({str, int, float, bool, type(None), Decimal, datetime})
RESERVED = frozenset({"meta", "originator_id", "originator_version", "timestamp"})


class EventMeta(tuple[Any, ...]):
    """Where and when an event stands in the log; immutable.

    `stream` is `category/id`, `version` the number within the stream (from 1), `position` the number in
    the log (0 until it is stored), `occurred_at` when it happened, `recorded_at` the database's clock at
    the append, `event_id` its identity, `metadata` what the writer added (actor, correlation, causation,
    tenant and more). Instants are aware; those that are not known yet are None.

    It is kept as a stored event comes off the wire (position, version, both instants in microseconds since
    2000-01-01 UTC, id, schema version, stream, type, data, metadata as JSON), and decoded where it is read.
    """

    __slots__ = ()

    def __new__(
        cls,
        stream: str,
        version: int,
        position: int = 0,
        *,
        occurred_at: datetime | None = None,
        recorded_at: datetime | None = None,
        event_id: UUID | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Self:
        return tuple.__new__(
            cls,
            (
                position,
                version,
                None if occurred_at is None else microseconds(occurred_at),
                None if recorded_at is None else microseconds(recorded_at),
                None if event_id is None else event_id.bytes,
                0,
                stream,
                "",
                None,
                to_json(metadata).decode() if metadata else None,
            ),
        )

    position: int = property(itemgetter(0))  # type: ignore[assignment]
    version: int = property(itemgetter(1))  # type: ignore[assignment]
    stream: str = property(itemgetter(6))  # type: ignore[assignment]

    @property
    def occurred_at(self) -> datetime | None:
        """When the event happened, to the microsecond."""
        value: int | None = self[2]
        return None if value is None else instant(value)

    @property
    def recorded_at(self) -> datetime | None:
        """The database's clock at the append."""
        value: int | None = self[3]
        return None if value is None else instant(value)

    @property
    def event_id(self) -> UUID | None:
        """The event's identity."""
        value: bytes | None = self[4]
        return None if value is None else UUID(bytes=bytes(value))

    @property
    def metadata(self) -> dict[str, Any]:
        """What the writer added; empty if nothing."""
        return {} if self[9] is None else cast("dict[str, Any]", from_json(self[9]))

    def __repr__(self) -> str:
        return (
            f"EventMeta({self.stream!r}, {self.version}, {self.position}, occurred_at={self.occurred_at!r})"
        )

    @property
    def category(self) -> str:
        """The part of the stream before the first slash: the kind of aggregate."""
        return self.stream.partition("/")[0]

    @property
    def key(self) -> str:
        """The part of the stream after the first slash: the aggregate's own id."""
        return self.stream.partition("/")[2]

    @property
    def happened(self) -> datetime:
        """`occurred_at`; raises `UnstorableValue` for an event that was given none and is not stored yet."""
        value: int | None = self[2]
        if value is None:
            raise UnstorableValue(
                f"{self.stream} version {self.version}", "occurred_at", "is not set: emit the event with at="
            )
        return instant(value)


class Event(BaseModel):
    """A fact, as a frozen pydantic model; subclasses give it a stable name and a schema version.

        class Placed(Event, name="order.placed", version=2): ...

    `name` is what the database keeps, `version` the schema version (1 when left out). The fields are the
    event's data. `event.meta` says where and when the event stands once an aggregate or the log has bound
    it. Two events are equal when their data are, whatever their place.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, ser_json_inf_nan="constants")
    __slots__ = ("_meta",)

    event_name: ClassVar[str] = ""
    schema_version: ClassVar[int] = 1
    aggregate_class: ClassVar[type[Aggregate] | None] = None
    open_fields: ClassVar[bool] = False
    """Whether a field takes values or keys of any type, which must be looked at one by one before they are stored."""

    if TYPE_CHECKING:

        def __init_subclass__(
            cls, *, name: str = ..., version: int = ..., registry: Registry | None = ..., **config: Any
        ) -> None: ...

    else:

        def __init_subclass__(cls, **_: Any) -> None:
            super().__init_subclass__()

    @classmethod
    def __pydantic_init_subclass__(
        cls, *, name: str = "", version: int = 1, registry: Registry | None = None, **unknown: Any
    ) -> None:
        # pydantic has taken what is its own configuration, and lets the rest pass.
        if unknown:
            raise DeclarationError(
                f"{cls.__qualname__}: expected name, version, registry or a setting of pydantic, found "
                f"{', '.join(unknown)}; correct or remove it"
            )
        clash = RESERVED & set(cls.model_fields)
        if clash:
            raise DeclarationError(
                f"{cls.__qualname__}: field name {min(clash)!r} is taken by Event; rename it"
            )
        for field, info in cls.model_fields.items():
            leaves = set(_leaves(info.annotation, set()))
            cls.open_fields = cls.open_fields or not leaves.isdisjoint(_OPEN)
            if datetime in leaves:
                raise DeclarationError(
                    f"{cls.__qualname__}.{field} is a plain datetime; declare it as Instant, "
                    "so that a value without a zone is refused"
                )
        if not name:
            cls.event_name = ""
            return
        if not NAME.fullmatch(name):
            raise DeclarationError(
                f"{cls.__qualname__}: event name {name!r} must be lower-case words joined by dots, "
                "such as 'order.placed'"
            )
        if version < 1:
            raise DeclarationError(f"{cls.__qualname__}: schema version must be 1 or more, found {version}")
        cls.event_name = name
        cls.schema_version = version
        if registry is None:
            from .registry import registry as shared

            registry = shared
        registry.register(cls)

    @property
    def meta(self) -> EventMeta:
        """Where and when the event stands; raises `UnboundEvent` before an aggregate or the log bound it."""
        try:
            return self._meta  # type: ignore[attr-defined,no-any-return]
        except AttributeError:
            raise UnboundEvent(
                f"{type(self).__qualname__} belongs to no stream yet; emit it from an aggregate, "
                "or bind it with bound(EventMeta(...))"
            ) from None

    def bound(self, meta: EventMeta) -> Self:
        """Return an equal event that stands at `meta`."""
        twin = _new(self.__class__)
        _set(twin, "__dict__", self.__dict__)
        _set(twin, "__pydantic_fields_set__", self.__pydantic_fields_set__)
        _set(twin, "__pydantic_extra__", None)
        _set(twin, "__pydantic_private__", None)
        _set(twin, "_meta", meta)
        return twin

    @property
    def originator_id(self) -> str:
        """The stream; the name that `eventsourcing` uses."""
        return self.meta.stream

    @property
    def originator_version(self) -> int:
        """The version; the name that `eventsourcing` uses."""
        return self.meta.version

    @property
    def timestamp(self) -> datetime | None:
        """When the event happened; the name that `eventsourcing` uses."""
        return self.meta.occurred_at

    def mutate(self, aggregate: Any) -> Any:
        """Return the aggregate after this event (made new from None); the fold that `eventsourcing` calls."""
        if aggregate is None:
            if self.aggregate_class is None:
                raise DeclarationError(f"{type(self).__qualname__} belongs to no aggregate class")
            aggregate = self.aggregate_class.blank(self.meta.stream)
        aggregate.follow(self)
        return aggregate


class UnboundEvent(DeclarationError, AttributeError):
    """`meta` of an event was read before the event belonged to a stream."""


def placed(stream: str, version: int, occurred: int | None) -> EventMeta:
    """Return the place of an event that is not stored yet; `occurred` in microseconds since 2000-01-01 UTC."""
    return _tuple(EventMeta, (0, version, occurred, None, None, 0, stream, "", None, None))


def at(event: E, record: tuple[Any, ...]) -> E:
    """Return `event`, fresh from decoding, bound to the place that its stored record names."""
    _set(event, "_meta", _tuple(EventMeta, record))
    return event


def encode(event: Event) -> str:
    """Return the event's data as JSON text that PostgreSQL's jsonb keeps unchanged in value.

    Raises `UnstorableValue`, naming the field, for NUL characters, lone surrogates, NaN and Infinity, and for what
    could not be read again: keys that are the same in JSON, more than `LEVELS` levels or `DIGITS` digits.
    """
    try:
        text = event.__pydantic_serializer__.to_json(event).decode()
    except PydanticSerializationError as error:
        reject_unstorable(event)
        raise UnstorableValue(
            type(event).__qualname__, "?", f"cannot be written as JSON ({error})"
        ) from error
    if event.open_fields or "\\u0000" in text or "NaN" in text or "Infinity" in text:
        reject_unstorable(event)
        # What is no model, text or collection may still have been written with a NUL; six letters are no NUL.
        if "\\u0000" in text:
            for path, reason in _flaws("", from_json(text)):
                raise UnstorableValue(type(event).__qualname__, path.removeprefix("."), reason)
    if len(text) > DIGITS or (len(text) > 2 * LEVELS and text.count("[") + text.count("{") > LEVELS):
        _require_readable(event, text)
    return text


def _require_readable(event: Event, text: str) -> None:
    try:
        from_json(text)
    except ValueError as error:
        reject_unstorable(event)
        raise UnstorableValue(
            type(event).__qualname__, "?", f"could not be read again as JSON ({error})"
        ) from error


def reject_unstorable(event: Event) -> None:
    """Raise `UnstorableValue` for the first value of the event that JSON in PostgreSQL cannot hold."""
    for field, value in event.__dict__.items():
        for path, reason in _flaws(field, value):
            raise UnstorableValue(type(event).__qualname__, path, reason)


def reject_unstorable_metadata(metadata: object) -> None:
    """Raise `UnstorableValue` for what is no mapping, or the first value that JSON in PostgreSQL cannot hold."""
    if not isinstance(metadata, Mapping):
        raise UnstorableValue("metadata", "metadata", f"is a {type(metadata).__name__}; give a mapping")
    for path, reason in _flaws("metadata", metadata):
        raise UnstorableValue("metadata", path, reason)


def flaw_of_text(value: str) -> str:
    """Return why PostgreSQL cannot hold this text, empty if it can."""
    if "\x00" in value:
        return "contains a NUL character"
    if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
        return "contains a lone surrogate"
    return ""


def _flaws(path: str, value: object, level: int = 1) -> Iterator[tuple[str, str]]:
    if type(value) in _SINGLE or not isinstance(value, _NESTING):
        if flaw := _flaw_of_value(value):
            yield path, flaw
    elif level > LEVELS:
        # The path is as long as the way to this value.
        yield f"{path[:80]}...", f"is nested deeper than {LEVELS} levels"
    elif isinstance(value, list | tuple | set | frozenset):
        for index, part in enumerate(value):
            if type(part) not in _SINGLE or _flaw_of_value(part):
                yield from _flaws(f"{path}[{index}]", part, level + 1)
    elif isinstance(value, BaseModel):
        for name, part in value.__dict__.items():
            yield from _flaws(f"{path}.{name}", part, level + 1)
    else:
        yield from _flaws_of_mapping(path, value, level)


def _flaws_of_mapping(path: str, value: Mapping[Any, object], level: int) -> Iterator[tuple[str, str]]:
    plain = True
    for key, part in value.items():
        if type(key) is not str:
            plain = False
            if isinstance(key, int) and abs(key) >= _TOO_LARGE:
                # Python does not write it out either.
                yield f"a key of {path}", _flaw_of_value(key)
            yield from _flaws(f"key {key!r} of {path}", key)
        elif flaw := flaw_of_text(key):
            yield f"key {key!r} of {path}", flaw
        if type(part) not in _SINGLE or _flaw_of_value(part):
            yield from _flaws(f"{path}.{key}", part, level + 1)
    if not plain:
        yield from ((path, flaw) for flaw in _same_in_json(value))


def _flaw_of_value(value: object) -> str:
    match value:
        case str():
            return flaw_of_text(value)
        case None | bool():
            return ""
        case int() if abs(value) >= _TOO_LARGE:
            return f"has more than {DIGITS} digits, which could not be read again"
        case float() if not math.isfinite(value):
            return f"is {value}, which JSON cannot hold"
        case Decimal() if not value.is_finite():
            return f"is {value}, which JSON cannot hold"
        case datetime() if value.utcoffset() is None:
            return "is a datetime without a zone"
        case datetime() if not has_whole_minutes(value):
            return "is a datetime whose offset has seconds, which JSON leaves out; give it in UTC"
        case _:
            return ""


def _same_in_json(keys: Iterable[object]) -> Iterator[str]:
    """Yield what is wrong with keys that are told apart in Python but not in JSON."""
    known: dict[str, object] = {}
    for key in keys:
        try:
            (text,) = from_json(to_json({key: None}))
        except ValueError:
            # The field has a way of its own to write this key.
            continue
        if text in known:
            yield f"has the keys {known[text]!r} and {key!r}, which are the same in JSON"
        known[text] = key


def _leaves(annotation: Any, seen: set[Any]) -> Iterator[Any]:
    """Yield the types that an annotation is made of, also those inside of models."""
    if hasattr(annotation, "__metadata__"):
        annotation = annotation.__origin__
    arguments = get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation not in seen:
        seen.add(annotation)
        for info in annotation.model_fields.values():
            yield from _leaves(info.annotation, seen)
    elif not arguments and isinstance(annotation, Hashable):
        yield annotation
    for argument in arguments:
        yield from _leaves(argument, seen)
    kind = get_origin(annotation) or annotation
    if (
        isinstance(kind, type)
        and issubclass(kind, Mapping)
        and not (arguments and _is_plain_key(arguments[0]))
    ):
        yield dict


def _is_plain_key(annotation: Any) -> bool:
    """Tell whether different keys of this type are always different in JSON."""
    if hasattr(annotation, "__metadata__"):
        annotation = annotation.__origin__
    if get_origin(annotation) is Literal:
        return all(type(value) is str for value in get_args(annotation))
    return isinstance(annotation, Hashable) and annotation in _PLAIN_KEYS

"""Aggregates: consistency boundaries whose state is a fold of their own events."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, cast, get_type_hints

from eventsourcing.domain import BaseAggregate, MetaAggregate
from pydantic import BaseModel, ConfigDict, create_model
from pydantic_core import to_json

from .errors import DeclarationError, UnstorableValue
from .event import Event, flaw_of_text, placed
from .instant import ensure_aware, instant, microseconds
from .lifecycle import Lifecycle

E = TypeVar("E", bound=Event)
A = TypeVar("A", bound="Aggregate")


class applies(Generic[E]):  # noqa: N801 - reads as a decorator
    """Mark a method of an aggregate as the fold of an event class: `@applies(Placed)`."""

    def __init__(self, event_class: type[E]) -> None:
        self.event_class = event_class

    def __call__(self, method: Callable[[A, E], None]) -> Callable[[A, E], None]:
        method.__onefold_applies__ = self.event_class  # type: ignore[attr-defined]
        return method


class AggregateType(MetaAggregate["Aggregate"]):
    """Metaclass that says how an aggregate comes into being."""

    def __call__(cls, *_: Any, **__: Any) -> Any:
        raise TypeError(
            f"{cls.__name__} is made by its own commands or by {cls.__name__}.blank(stream), "
            "not by calling the class"
        )


class Aggregate(BaseAggregate[str], metaclass=AggregateType):
    """A consistency boundary on top of `eventsourcing`'s aggregate, with pydantic events.

        class Order(Aggregate, category="order"):
            class Placed(Event, name="order.placed"):
                customer_id: str

            customer_id: str = ""

            @applies(Placed)
            def _placed(self, event: Placed) -> None:
                self.customer_id = event.customer_id

    State is declared as annotated fields with defaults. Event classes are nested. With a class attribute
    `lifecycle`, `status` follows it. `id` is the whole stream (`order/4711`), `key` the part after the slash.
    """

    category: ClassVar[str] = ""
    lifecycle: ClassVar[Lifecycle] = Lifecycle(("",), ())
    snapshot_version: ClassVar[int] = 1

    events: ClassVar[tuple[type[Event], ...]] = ()
    _folds: ClassVar[dict[type[Event], Callable[[Any, Any], None]]] = {}

    if TYPE_CHECKING:
        # Not annotated for real: the library makes a field of the state of every annotation.
        _status: str
        _first: int | None
        _last: int | None

    def __init_subclass__(cls, *, category: str = "") -> None:
        super().__init_subclass__()
        if category:
            if "/" in category or not category.isprintable() or category != category.strip():
                raise DeclarationError(
                    f"{cls.__name__}: category {category!r} must be plain text without a slash"
                )
            cls.category = category
        nested = tuple(
            value
            for value in vars(cls).values()
            if isinstance(value, type) and issubclass(value, Event) and value.event_name
        )
        cls.events = (*cls.events, *nested)
        for event_class in nested:
            event_class.aggregate_class = cls
        folds = dict(cls._folds)
        for value in vars(cls).values():
            applied: type[Event] | None = getattr(value, "__onefold_applies__", None)
            if applied is not None:
                folds[applied] = value
        cls._folds = folds

    @staticmethod
    def create_id(*_: Any, **__: Any) -> str:
        """Not used: a stream is named by its aggregate's key."""
        raise TypeError("an Onefold aggregate is named by its key, not by create_id()")

    @classmethod
    def stream_of(cls, key: str) -> str:
        """Return the stream of the aggregate with this key: `category/key`."""
        if not cls.category:
            raise DeclarationError(
                f"{cls.__name__} has no category; declare class {cls.__name__}(Aggregate, category=...)"
            )
        if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be unchecked
            raise TypeError(f"key of a {cls.category} must be text, found {type(key).__name__} {key!r}")
        flaw = flaw_of_text(key)
        if not key or flaw:
            raise UnstorableValue(cls.category, "key", flaw or "is empty")
        return f"{cls.category}/{key}"

    @classmethod
    def blank(cls, stream: str) -> Self:
        """Return the aggregate of `stream` before its first event, at version 0."""
        self = cls.__new__(cls)
        self.__init__()  # type: ignore[misc]
        self._id = stream
        self._version = 0
        self._first = None
        self._last = None
        self._pending_events = []
        self._status = cls.lifecycle.initial
        return self

    @classmethod
    def new(cls, key: str) -> Self:
        """Return the aggregate with this key before its first event."""
        return cls.blank(cls.stream_of(key))

    def __repr__(self) -> str:
        state = [f"{name}={getattr(self, name)!r}" for name in getattr(self, "__dataclass_fields__", ())]
        status = [f"status={self._status!r}"] if self._status else []
        parts = [repr(self._id), f"version={self._version}", *status, *state]
        return f"{type(self).__name__}({', '.join(parts)})"

    @property
    def key(self) -> str:
        """The aggregate's own id: the part of its stream after the first slash."""
        return self.id.partition("/")[2]

    @property
    def created_on(self) -> datetime | None:  # type: ignore[override]
        """When the first event happened; None while that is not known."""
        return None if self._first is None else instant(self._first)

    @property  # type: ignore[misc]
    def modified_on(self) -> datetime | None:  # type: ignore[override]
        """When the last event happened; None while that is not known."""
        return None if self._last is None else instant(self._last)

    @property
    def status(self) -> str:
        """The state in the lifecycle; empty for an aggregate without one."""
        return self._status

    def emit(self, event: Event, *, at: datetime | None = None) -> None:
        """Decide: add `event` as the next of the stream if the lifecycle allows it, and fold it.

        `at` is when it happened; left out, the store takes the instant of recording. Raises
        `IllegalTransition` (naming state and command) and changes nothing when it is not possible now.
        """
        self.lifecycle.require(self.id, self._status, type(event))
        self.record(event, at=at)

    def record(self, event: Event, *, at: datetime | None = None) -> None:
        """Add a fact that has happened outside, whatever the lifecycle says, and fold it."""
        if type(event) not in self.events:
            raise DeclarationError(f"{type(event).__qualname__} is not an event of {type(self).__name__}")
        happened = None if at is None else microseconds(ensure_aware("at", at))
        bound = event.bound(placed(self._id, self._version + 1, happened))
        self.follow(bound)
        self._pending_events.append(bound)  # type: ignore[arg-type]

    def follow(self, event: Event) -> None:
        """Fold the next event of the stream; raises `OutOfSequence` when it is not the next."""
        meta = event.meta
        if meta.version != self._version + 1 or meta.stream != self._id:
            raise OutOfSequence(
                f"expected version {self._version + 1} of {self._id}, "
                f"found version {meta.version} of {meta.stream}"
            )
        fold = self._folds.get(type(event))
        if fold is not None:
            fold(self, event)
        self._status = self.lifecycle.advance(self._status, type(event))
        self._version = meta.version
        if meta[2] is not None:
            self._last = meta[2]
            if self._version == 1:
                self._first = meta[2]

    @property
    def pending(self) -> Sequence[Event]:
        """The events that were emitted and not saved yet."""
        return cast("Sequence[Event]", tuple(self._pending_events))

    def saved(self, stored: Sequence[Event]) -> None:
        """Take note that the first pending events were stored, as `stored`."""
        del self._pending_events[: len(stored)]
        if stored:
            self._last = stored[-1].meta[2]
            if stored[0].meta.version == 1:
                self._first = stored[0].meta[2]


class OutOfSequence(DeclarationError):
    """An event was folded into an aggregate whose next event it is not."""


class _Document(BaseModel):
    status: str
    first: int | None
    last: int | None
    state: dict[str, Any]


class SnapshotCodec(Generic[A]):
    """How the state of an aggregate class is written as JSON and read again.

    `fingerprint` changes with the fields, their types and `snapshot_version`, so that a snapshot of other
    code is told apart.
    """

    def __init__(self, aggregate_class: type[A]) -> None:
        self._class = aggregate_class
        hints = get_type_hints(aggregate_class, include_extras=True)
        names = getattr(aggregate_class, "__dataclass_fields__", {})
        fields: dict[str, Any] = {name: (hints[name], ...) for name in names}
        self._model = create_model("Snapshot", __config__=ConfigDict(extra="forbid", strict=False), **fields)
        shape = json.dumps(self._model.model_json_schema(), sort_keys=True)
        text = f"{aggregate_class.category}:{aggregate_class.snapshot_version}:{shape}"
        self.fingerprint = hashlib.sha256(text.encode()).hexdigest()[:32]

    def encode(self, aggregate: A) -> str:
        """Return the state as JSON text; the stream and version are kept beside it."""
        state = {name: getattr(aggregate, name) for name in self._model.model_fields}
        document = _Document(
            status=aggregate.status,
            first=aggregate._first,
            last=aggregate._last,
            state=self._model.model_construct(**state).model_dump(mode="json"),
        )
        return document.model_dump_json()

    def decode(self, stream: str, version: int, text: str) -> A:
        """Return the aggregate at `version`; raises ValueError when the text does not fit the class."""
        document = _Document.model_validate_json(text)
        body = self._model.model_validate_json(to_json(document.state))
        aggregate = self._class.blank(stream)
        for name in self._model.model_fields:
            setattr(aggregate, name, getattr(body, name))
        aggregate._version = version
        aggregate._status = document.status
        aggregate._first = document.first
        aggregate._last = document.last
        return aggregate

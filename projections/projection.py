"""Projections: read models as pure folds over the log, and the two kinds for what a fold cannot say."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Generic, Literal, TypedDict, TypeVar, Unpack, overload

from ..domain.errors import DeclarationError, OnefoldError
from ..domain.event import Event
from ..domain.registry import Registry
from ..domain.registry import registry as shared_registry
from .policies import Policy, Stop
from .ports import Key
from .row import Row

R = TypeVar("R", bound=Row)
E = TypeVar("E", bound=Event)
E2 = TypeVar("E2", bound=Event)
Fold = Callable[[R | None, E], R | None]
KeyOf = Callable[[Any], Any]
NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")


class Options(TypedDict, total=False):
    """What can be said of every projection beside what is its own.

    `log` is the log that it reads ("events"). `version` is raised by hand when folds change so that the read model
    must be built anew (1). `on_failure` says what to do about an event that cannot be applied (`Stop()`). `lease` is
    the time in seconds after which a worker that shows no sign of life is replaced (5; 30 for handlers).
    `registry` knows the event classes (the shared one). `unknown` says what to do about an event whose type nobody
    knows: "stop", as newer code may have written it and the projection ought to have folded it, or "pass" where a
    log is shared with applications whose events are none of this one's business ("stop").
    """

    log: str
    version: int
    on_failure: Policy
    lease: float
    registry: Registry
    unknown: Literal["stop", "pass"]


class ProjectionKeyError(OnefoldError, ValueError):
    """The key of a row does not fit the key fields of its row model, or is not the one of its event."""


class BaseProjection(ABC):
    """What every projection has: a stable `name`, the events that it reads, and its `Options`."""

    def __init__(self, name: str, **options: Unpack[Options]) -> None:
        if not NAME.fullmatch(name):
            raise DeclarationError(
                f"projection name {name!r} must be lower-case letters, digits and underscores, at most 41"
            )
        self.name = name
        self.log = options.get("log", "events")
        self.version = options.get("version", 1)
        self.on_failure = options.get("on_failure", Stop())
        self.lease = options.get("lease", 5.0)
        self.registry = options.get("registry", shared_registry)
        self.unknown = options.get("unknown", "stop")
        if self.lease <= 0:
            raise DeclarationError(
                f"projection {name}: lease must be more than 0 seconds, found {self.lease}"
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @abstractmethod
    def event_classes(self) -> frozenset[type[Event]] | None:
        """Return the event classes that the projection reads, None for every event."""

    def types(self) -> frozenset[str] | None:
        """Return the stored names of the events that the projection reads, None for every event."""
        classes = self.event_classes()
        if classes is None:
            return None
        return frozenset(name for cls in classes for name in self.registry.names_read_as(cls))

    def fingerprint(self) -> str:
        """Return text that changes when the read model's shape, or the declared version, changes."""
        return f"{self.version}"


class Projection(BaseProjection, Generic[R]):
    """A read model as folds `(row or None, event) -> row or None`, one per event class.

        order_summary = Projection("order_summary", OrderSummary)

        @order_summary.on(Order.Placed)
        def placed(row: OrderSummary | None, event: Order.Placed) -> OrderSummary | None: ...

    `row` gives table `read.<name>`. `key` derives the row's key from an event (a value, or a tuple for several
    key fields, or None when the event concerns no row); left out it is the part of the stream after the slash.
    A fold that returns None removes the row. Folds are pure: no clock, no database, no change of their arguments.
    """

    def __init__(
        self,
        name: str,
        row: type[R],
        *,
        key: KeyOf | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(name, **options)
        if not row.key_fields:
            raise DeclarationError(f"projection {name}: {row.__name__} has no key; declare it with key=...")
        if key is None and len(row.key_fields) != 1:
            raise DeclarationError(
                f"projection {name}: a key of several fields needs key=, from event to tuple"
            )
        self.row = row
        self.key = key
        self.folds: dict[type[Event], Fold[R, Any]] = {}

    @overload
    def on(self, one: type[E], /) -> Callable[[Fold[R, E]], Fold[R, E]]: ...

    @overload
    def on(self, one: type[E], two: type[E2], /) -> Callable[[Fold[R, E | E2]], Fold[R, E | E2]]: ...

    @overload
    def on(self, *event_classes: type[E]) -> Callable[[Fold[R, E]], Fold[R, E]]: ...

    def on(self, *event_classes: type[Event]) -> Callable[[Fold[R, Any]], Fold[R, Any]]:
        """Declare the fold of these event classes."""
        if not event_classes:
            raise DeclarationError(f"projection {self.name}: on() needs at least one event class")

        def declare(fold: Fold[R, Any]) -> Fold[R, Any]:
            _enter(self.name, "fold", self.folds, event_classes, fold)
            return fold

        return declare

    def event_classes(self) -> frozenset[type[Event]] | None:
        return frozenset(self.folds)

    def key_of(self, event: Event) -> Key | None:
        """Return the key of the row that an event concerns, None for no row."""
        if self.key is None:
            return (event.meta.key,)
        key = self.key(event)
        return None if key is None else self.checked_key(key if isinstance(key, tuple) else (key,))

    def checked_key(self, key: Key) -> Key:
        """Return a key that has a value for every key field; raises `ProjectionKeyError` for another."""
        fields = self.row.key_fields
        if len(key) != len(fields) or not _hashable(key):
            raise ProjectionKeyError(
                f"projection {self.name}: expected a key of ({', '.join(fields)}), found {key!r}"
            )
        for part in key:
            if part != part:
                raise ProjectionKeyError(
                    f"projection {self.name}: expected a key that equals itself, found {key!r}; "
                    "PostgreSQL holds all NaN for one key, Python for many: leave the event out, or give it another key"
                )
        return key

    def fold(self, events: Iterable[Event]) -> dict[Key, R]:
        """Return the rows that these events give, folded in memory: for tests, and to verify a table."""
        rows: dict[Key, R] = {}
        for event in events:
            fold = self.folds.get(type(event))
            key = self.key_of(event) if fold is not None else None
            if fold is None or key is None:
                continue
            row = fold(rows.get(key), event)
            if row is not None:
                rows[key] = self._checked_row(key, row)
            else:
                rows.pop(key, None)
        return rows

    def _checked_row(self, key: Key, row: R) -> R:
        if type(row) is not self.row:
            raise TypeError(
                f"projection {self.name}: expected {self.row.__name__} or None from the fold, "
                f"found {type(row).__name__}"
            )
        found = tuple(getattr(row, name) for name in self.row.key_fields)
        if found != key:
            raise ProjectionKeyError(
                f"projection {self.name}: the event leads to the row {key!r}, the fold returned the row {found!r}"
            )
        return row

    def fingerprint(self) -> str:
        shape = json.dumps(self.row.model_json_schema(), sort_keys=True)
        text = f"{self.version}:{self.log}:{','.join(self.row.key_fields)}:{shape}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def projection(
    name: str,
    row: type[R],
    *,
    events: Iterable[type[Event]],
    key: KeyOf | None = None,
    **options: Unpack[Options],
) -> Callable[[Fold[R, Any]], Projection[R]]:
    """Make a projection of one plain function that folds all of `events`; see `Projection`."""

    def declare(fold: Fold[R, Any]) -> Projection[R]:
        made = Projection(name, row, key=key, **options)
        made.on(*events)(fold)
        return made

    return declare


class SqlProjection(BaseProjection):
    """A read model kept by SQL statements over a run of the log.

    `tables` are made by `create` (run once, and again after `drop`), `statements` are run in order for each page
    with the parameters `after` and `upto`: the events in question have `position > %(after)s` and
    `position <= %(upto)s`. They must give the same for any cut into pages.
    """

    def __init__(
        self,
        name: str,
        *,
        tables: Iterable[str],
        create: str,
        statements: Iterable[str],
        events: Iterable[type[Event]] | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(name, **options)
        self.tables = tuple(tables)
        self.create = create
        self.statements = tuple(statements)
        self._events = None if events is None else frozenset(events)

    def event_classes(self) -> frozenset[type[Event]] | None:
        return self._events

    def fingerprint(self) -> str:
        # The statements read the data as it is stored, so another schema version of an event is another read model.
        stored = sorted(
            [name, event_class.schema_version]
            for event_class in self._events or ()
            for name in self.registry.names_read_as(event_class)
        )
        text = json.dumps([self.version, self.log, self.tables, self.create, self.statements, stored])
        return hashlib.sha256(text.encode()).hexdigest()[:32]


class Handler(BaseProjection):
    """A projection as handlers `(event, connection)` that write what they like in the engine's transaction.

    A page of events and the checkpoint are one transaction; an exception rolls the page back.
    """

    def __init__(
        self,
        name: str,
        *,
        create: str = "",
        tables: Iterable[str] = (),
        **options: Unpack[Options],
    ) -> None:
        options.setdefault("lease", 30.0)
        super().__init__(name, **options)
        self.create = create
        self.tables = tuple(tables)
        self.handlers: dict[type[Event], Callable[[Any, Any], None]] = {}

    def on(self, *event_classes: type[E]) -> Callable[[Callable[[E, Any], None]], Callable[[E, Any], None]]:
        """Declare the handler of these event classes."""

        def declare(handler: Callable[[E, Any], None]) -> Callable[[E, Any], None]:
            _enter(self.name, "handler", self.handlers, event_classes, handler)
            return handler

        return declare

    def event_classes(self) -> frozenset[type[Event]] | None:
        return frozenset(self.handlers)

    def fingerprint(self) -> str:
        text = json.dumps([self.version, self.log, self.tables, self.create])
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def _hashable(key: Key) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True


def _enter(
    projection: str,
    what: str,
    functions: dict[type[Event], Any],
    event_classes: Iterable[type[Event]],
    function: Callable[..., Any],
) -> None:
    if inspect.iscoroutinefunction(function):
        raise DeclarationError(f"projection {projection}: a {what} must be a plain function")
    for event_class in event_classes:
        if event_class in functions:
            raise DeclarationError(f"projection {projection}: a second {what} of {event_class.__qualname__}")
        functions[event_class] = function


AnyProjection = Projection[Any] | SqlProjection | Handler

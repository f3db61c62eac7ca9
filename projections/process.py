"""Process managers: aggregates that answer events of others with commands, and their own events, in one transaction."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, Self, TypeVar, cast
from uuid import UUID

from pydantic_core import from_json

from ..domain.aggregate import Aggregate
from ..domain.errors import DeclarationError
from ..domain.event import Event, EventMeta
from ..domain.instant import ensure_aware
from ..domain.registry import Registry
from ..domain.registry import registry as shared_registry
from .consumer import Consumer, MessageRefused, Rejected
from .message import Message
from .policies import Retry
from .projection import NAME

TIMEOUT = "onefold.timeout"
"""Type of the messages by which timeouts are delivered."""

INSTANCE = "instance"
"""Extension of a message that says to which instance it goes."""

E = TypeVar("E", bound=Event)
P = TypeVar("P", bound="ProcessManager")
F = TypeVar("F", bound=Callable[..., None])

Begin = Literal["head", "start"]


class Taken(NamedTuple):
    """What the database says of a message that an instance is to take.

    `behind` is the dead letter that it waits behind, `fresh` is false where it was taken before, or is a timeout that
    was forgotten or set anew; `now` is the database's clock.
    """

    behind: int | None
    fresh: bool
    now: datetime


class Records(Protocol):
    """What is kept beside the streams of process managers, in the transaction of a message."""

    def take_event(self, process: str, instance: str, message: str, position: int) -> Taken:
        """Take an event of the log for an instance."""
        ...

    def take_timeout(self, process: str, instance: str, message: str) -> Taken:
        """Take a timeout of an instance."""
        ...

    def set_timeout(self, process: str, instance: str, name: str, due: datetime) -> None:
        """Set a timeout, in the place of one of the same name."""
        ...

    def forget_timeout(self, process: str, instance: str, name: str) -> None:
        """Forget a timeout, if it is set."""
        ...


class Transacting(Protocol):
    """The part of a transaction that a process manager needs by itself."""

    @property
    def processes(self) -> Records:
        """What is kept beside the streams."""
        ...

    def find(self, aggregate_class: type[Any], key: str) -> Any:
        """Return the aggregate with this key, None if its stream has no events."""
        ...

    def save(self, aggregate: Aggregate) -> object:
        """Append what the aggregate decided."""
        ...


def key_of(event: Event) -> str:
    """Return the key of the aggregate that an event belongs to."""
    return event.meta.key


class reacts(Generic[E]):  # noqa: N801 - reads as a decorator
    """Mark a method `(self, event, tx)` of a process manager as its answer to events: `@reacts(Order.Placed)`.

    `by` finds the instance that an event goes to: its key, or None where it goes to none (the key of the event's
    aggregate).
    """

    def __init__(self, *event_classes: type[E], by: Callable[[E], str | None] = key_of) -> None:
        self.event_classes = event_classes
        self.by = by

    def __call__(self, method: F) -> F:
        method.__onefold_reacts__ = self  # type: ignore[attr-defined]
        return method


class timeout:  # noqa: N801 - reads as a decorator
    """Mark a method `(self, tx)` of a process manager as what is done when its timeout of this name is due."""

    def __init__(self, name: str) -> None:
        if not NAME.fullmatch(name):
            raise DeclarationError(
                f"timeout {name!r} must be lower-case letters, digits and underscores, at most 41"
            )
        self.name = name

    def __call__(self, method: F) -> F:
        method.__onefold_timeout__ = self.name  # type: ignore[attr-defined]
        return method


class ProcessManager(Aggregate):
    """An aggregate that answers events of others; declare it with `process_manager`.

        @process_manager("order_payment")
        class OrderPayment(ProcessManager, category="order_payment"):
            class Reserved(Event, name="order_payment.reserved"): ...

            @reacts(Order.Placed)
            def placed(self, event: Order.Placed, tx: Transaction) -> None: ...

            @timeout("payment")
            def overdue(self, tx: Transaction) -> None: ...

    An instance is found by the key that `reacts(by=...)` gives, and has a stream of its own; before its first event it
    is blank (version 0). In a method `tx` gets and saves other aggregates and publishes messages, `self.emit` decides
    the instance's own events, `self.timeout` and `self.forget` set timeouts. All of it, and the fact that the event
    was taken, is committed together, once.
    """

    if TYPE_CHECKING:
        _now: datetime | None
        _timeouts: dict[str, datetime | None]

    @classmethod
    def blank(cls, stream: str) -> Self:
        """Return the instance of `stream` before its first event."""
        self = super().blank(stream)
        self._now = None
        self._timeouts = {}
        return self

    @property
    def now(self) -> datetime:
        """The database's clock when the event or timeout was taken; a test sets it."""
        if self._now is None:
            raise DeclarationError(
                f"{self.id}: expected to be at work on an event or a timeout, found it idle, without an instant that "
                "is now; set `now` where a method is called by hand"
            )
        return self._now

    @now.setter
    def now(self, instant: datetime) -> None:
        self._now = ensure_aware("now", instant)

    @property
    def timeouts(self) -> Mapping[str, datetime | None]:
        """The timeouts that are to be set, each with when it is due, or forgotten (None); not saved yet."""
        return MappingProxyType(self._timeouts)

    def timeout(self, name: str, *, at: datetime | None = None, after: timedelta | None = None) -> None:
        """Have the timeout `name` called at an instant, or `after` a time from now, by the database's clock.

        One of this name that is set already is set anew. It is called once, late if no worker runs by then.
        """
        self._require_timeout(name)
        if (at is None) == (after is None):
            raise DeclarationError(
                f"timeout {name!r} of {self.id}: expected either at=, an instant, or after=, a time"
            )
        self._timeouts[name] = (
            self.now + after if after is not None else ensure_aware("at", cast("datetime", at))
        )

    def forget(self, name: str) -> None:
        """Have the timeout `name` not called; nothing happens if it is not set."""
        self._require_timeout(name)
        self._timeouts[name] = None

    def _require_timeout(self, name: str) -> None:
        known = process_of(type(self)).timeouts
        if name not in known:
            names = ", ".join(sorted(known)) or "none"
            raise DeclarationError(
                f"{type(self).__name__} has no timeout {name!r}; declared with @timeout are: {names}"
            )


class Process:
    """What is declared of a process manager; made by `process_manager`, found by `process_of`.

    `consumer` is the consumer as which it runs: ledger, retries, dead letters and outcomes are those of this name.
    """

    def __init__(
        self,
        manager: type[ProcessManager],
        name: str,
        *,
        retry: Retry,
        begin: Begin,
        log: str,
        registry: Registry,
    ) -> None:
        if not manager.category:
            raise DeclarationError(
                f"process manager {name}: expected a category, its streams' name; declare "
                f"class {manager.__name__}(ProcessManager, category=...)"
            )
        if begin not in ("head", "start"):
            raise DeclarationError(
                f'process manager {name}: begin must be "head" (events from its first start on) or "start" (the '
                f"whole log), found {begin!r}"
            )
        self.name = name
        self.manager = manager
        self.begin: Begin = begin
        self.log = log
        self.registry = registry
        self.reactions: dict[type[Event], tuple[str, Callable[[Any], str | None]]] = {}
        self.timeouts: dict[str, str] = {}
        self._collect()
        self.consumer = Consumer(
            name,
            ordering="unordered",
            effect=self.handle,
            sequence=self._sequence,
            # What comes again is told by its position, or by the timeout's id, for ever.
            age="received",
            retry=retry,
            registry=registry,
        )
        self._by_name = {
            stored: event_class
            for event_class in self.reactions
            for stored in registry.names_read_as(event_class)
        }

    def __repr__(self) -> str:
        return f"Process({self.name!r}, {self.manager.__name__})"

    @property
    def types(self) -> frozenset[str]:
        """The stored names of the events that it answers."""
        return frozenset(self._by_name)

    def instance_of(self, event: Event) -> str | None:
        """Return the key of the instance that an event goes to, None if it goes to none.

        Raises what the user's function raises, and `MessageRefused` where it returns something else than text.
        """
        found: Any = self.reactions[type(event)][1](event)
        if found is None:
            return None
        if not isinstance(found, str):
            raise MessageRefused(
                f"expected the key of an instance of {self.name} (text, or None for no instance), found a "
                f"{type(found).__name__}"
            )
        # Also refuses what no stream can be named.
        self.manager.stream_of(found)
        return found

    def handle(self, message: Message, tx: Any) -> None:
        """Take one event or timeout in the transaction of its message."""
        work: Transacting = tx
        if message.type == TIMEOUT:
            self._fire(message, work, tx)
        else:
            self._answer(message, work, tx)

    def _answer(self, message: Message, work: Transacting, tx: Any) -> None:
        event = self._event(message)
        key = self.instance_of(event)
        if key is None:
            return
        taken = work.processes.take_event(self.name, key, message.id, event.meta.position)
        if not self._is_fresh(taken, key):
            return
        instance = self._found(work, key, taken.now)
        getattr(instance, self.reactions[type(event)][0])(event, tx)
        self._save(instance, work)

    def _fire(self, message: Message, work: Transacting, tx: Any) -> None:
        key, name = message.data["instance"], message.data["name"]
        taken = work.processes.take_timeout(self.name, key, message.id)
        if not self._is_fresh(taken, key):
            return
        method = self.timeouts.get(name)
        if method is None:
            raise Rejected(
                f"expected a timeout that {self.manager.__name__} declares, found {name!r}, which it has no more; "
                "declare it again, or discard this dead letter"
            )
        instance = self._found(work, key, taken.now)
        getattr(instance, method)(tx)
        self._save(instance, work)

    def _is_fresh(self, taken: Taken, key: str) -> bool:
        if taken.behind is not None:
            raise Rejected(
                f"it waits behind dead letter {taken.behind} of the same instance, {key}; deal with that one, and "
                "retry this one after it"
            )
        return taken.fresh

    def _found(self, work: Transacting, key: str, now: datetime) -> ProcessManager:
        instance: ProcessManager = work.find(self.manager, key) or self.manager.new(key)
        instance.now = now
        return instance

    def _save(self, instance: ProcessManager, work: Transacting) -> None:
        work.save(instance)
        for name, due in instance.timeouts.items():
            if due is None:
                work.processes.forget_timeout(self.name, instance.key, name)
            else:
                work.processes.set_timeout(self.name, instance.key, name, due)

    def _sequence(self, message: Message) -> str | None:
        # Left out where the instance could not be told: then what is wrong is said here.
        given = message.extensions.get(INSTANCE)
        return given if isinstance(given, str) else self.instance_of(self._event(message))

    def _event(self, message: Message) -> Event:
        place = message.extensions.get("position")
        if message.type not in self._by_name or message.subject is None or place is None:
            raise MessageRefused(
                f"expected an event of the log that {self.name} answers, or a timeout, found type {message.type!r}; "
                f"run it with `onefold process {self.name}`"
            )
        extensions = message.extensions
        meta = EventMeta(
            message.subject,
            int(extensions["sequence"]),
            int(place),
            occurred_at=message.time,
            recorded_at=datetime.fromisoformat(extensions["recordedtime"]),
            event_id=UUID(message.id),
            metadata=from_json(extensions["metadata"]) if "metadata" in extensions else None,
        )
        schema_version = int(extensions.get("schemaversion", 1))
        read = self.registry.reader(message.type, schema_version)
        if read is None:
            raise MessageRefused(
                f"no event class is registered for type {message.type!r} schema version {schema_version}; "
                "register the class, or an upcast from this schema version"
            )
        return read(message.data).bound(meta)

    def _collect(self) -> None:
        for attribute in dir(self.manager):
            method = inspect.getattr_static(self.manager, attribute)
            reaction: reacts[Any] | None = getattr(method, "__onefold_reacts__", None)
            timer: str | None = getattr(method, "__onefold_timeout__", None)
            if (reaction is not None or timer is not None) and inspect.iscoroutinefunction(method):
                raise DeclarationError(
                    f"process manager {self.name}: {attribute} must be a plain function, found an async one"
                )
            if reaction is not None:
                self._add_reaction(attribute, reaction)
            if timer is not None:
                if timer in self.timeouts:
                    raise DeclarationError(
                        f"process manager {self.name}: a second method of timeout {timer!r}"
                    )
                self.timeouts[timer] = attribute
        if not self.reactions:
            raise DeclarationError(
                f"process manager {self.name}: expected a method with @reacts, found none; it would never begin"
            )

    def _add_reaction(self, attribute: str, reaction: reacts[Any]) -> None:
        if not reaction.event_classes:
            raise DeclarationError(
                f"process manager {self.name}: @reacts of {attribute} names no event class; name those it answers"
            )
        for event_class in cast("Iterable[Any]", reaction.event_classes):
            if not (
                isinstance(event_class, type) and issubclass(event_class, Event) and event_class.event_name
            ):
                raise DeclarationError(
                    f"process manager {self.name}: expected event classes with a name in @reacts of {attribute}, "
                    f"found {event_class!r}"
                )
            if event_class in self.reactions:
                raise DeclarationError(
                    f"process manager {self.name}: a second answer to {event_class.__qualname__}; join the two"
                )
            if not self.registry.knows(event_class.event_name):
                raise DeclarationError(
                    f"process manager {self.name}: {event_class.event_name!r} is not in its registry; give it the "
                    "one of the event class with registry="
                )
            self.reactions[event_class] = (attribute, reaction.by)


def process_manager(
    name: str,
    *,
    retry: Retry | None = None,
    begin: Begin = "head",
    log: str = "events",
    registry: Registry = shared_registry,
) -> Callable[[type[P]], type[P]]:
    """Declare a class as the process manager `name`; see `ProcessManager`. Give it to `App(processes=...)`.

    `name` is that of its consumer, of its timeouts, and of its place in the log. `begin` says which events it takes
    when it is started for the first time: those that are committed from then on ("head"), or all that the log has
    ("start"). `retry` is for methods that fail (`Retry()`): an event that fails for good is a dead letter, and so is
    what follows for the same instance.
    """

    def declare(manager: type[P]) -> type[P]:
        made = Process(
            manager,
            name,
            retry=Retry() if retry is None else retry,
            begin=begin,
            log=log,
            registry=registry,
        )
        manager.__onefold_process__ = made  # type: ignore[attr-defined]
        return manager

    return declare


def process_of(manager: type[ProcessManager]) -> Process:
    """Return what is declared of a process manager; raises `DeclarationError` for a class that is none."""
    found: Any = vars(manager).get("__onefold_process__")
    if not isinstance(found, Process):
        raise DeclarationError(
            f"expected a process manager, found {manager!r}; declare it with @process_manager(name)"
        )
    return found

"""Consumers: what a team declares about the messages that a broker delivers to it, on a plain function."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import reduce
from operator import attrgetter
from typing import Any, Literal, TypedDict, TypeVar, Unpack, cast

from ..domain.errors import DeclarationError, OnefoldError
from ..domain.event import Event
from ..domain.instant import microseconds
from ..domain.lifecycle import Lifecycle
from ..domain.registry import Registry
from ..domain.registry import registry as shared_registry
from .guards import OnGap, Ordering, Rule
from .message import Message
from .policies import Retry
from .projection import NAME, Projection
from .retention import Retention

Effect = Callable[[Any, Any], Any]
"""A function `(event, tx)`, plain or async; what it returns is ignored."""

Part = Callable[[Message], Any] | str
"""A function of the message, or where to look: an attribute (`subject`, or an extension such as `sequence`), or a
field of the data (`data.payment_id`)."""

LONGEST_SEQUENCE = 1_000
"""Bytes of the name of a sequence, which is the key of an index."""

F = TypeVar("F", bound=Effect)
_ATTRIBUTES = frozenset({"id", "source", "type", "subject", "time", "datacontenttype", "dataschema"})
_PATH = re.compile(r"[a-z][a-z0-9_]*(\.\w+)*")


class Rejected(OnefoldError):
    """Raised by a handler to refuse a message for good: it becomes a dead letter at once, without another try."""


class MessageRefused(OnefoldError, ValueError):
    """A message lacks what its consumer needs of it, or its data does not fit; it becomes a dead letter."""


class ConsumerOptions(TypedDict, total=False):
    """What can be said of a consumer beside its name and its ordering.

    `key` finds the idempotency key (the extension `idempotencykey`, else source and id together). `sequence` finds
    what the order is of ("subject"), `version` the number of the message in it: a whole number, for a snapshot also
    an instant. `on_gap` says what to do about a message that comes before its turn: "park" it until its turn, or
    "reject" it ("park"). `lifecycle` guards typed events by the state of their sequence.

    `ledger` is the kind of keys: "any", or "time" for UUIDv7 ("any"). `retention` says how long keys are remembered,
    and against what (`Retention()`). `age` finds how old a message is: "time" by the CloudEvents attribute, or the
    broker's clock where it has none; "published" by the broker's clock; "received" promises that the broker never
    delivers what is older than the ledger ("time").

    `retry` is for handlers that fail (`Retry()`). A parked message is reported after `gap_report` seconds (60), and
    becomes a dead letter after `gap_deadline` seconds (86,400). `unknown` is for messages of types that the function
    does not take: "reject", or "pass", which decides them without an effect ("reject"). `events` names the event
    classes where the function's annotation does not. `savepoint` runs each message in a savepoint, so that one that
    fails costs the others nothing; without it a batch that fails is run again in parts (False). `registry` knows the
    event classes (the shared one).
    """

    key: Part
    sequence: Part
    version: Part
    on_gap: OnGap
    lifecycle: Lifecycle
    ledger: Literal["any", "time"]
    retention: Retention
    retry: Retry
    gap_report: float
    gap_deadline: float
    unknown: Literal["reject", "pass"]
    events: Iterable[type[Event]]
    savepoint: bool
    age: Literal["time", "published", "received"]
    registry: Registry


class Consumer:
    """A named consumer: its function, or the projection that it folds into, and what is declared of its messages.

    It may be called like the function itself.
    """

    def __init__(
        self,
        name: str,
        *,
        ordering: Ordering,
        effect: Effect | None = None,
        fold: Projection[Any] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        if not NAME.fullmatch(name):
            raise DeclarationError(
                f"consumer name {name!r} must be lower-case letters, digits and underscores, at most 41"
            )
        if (effect is None) == (fold is None):
            raise DeclarationError(f"consumer {name}: expected either a function or fold=, a projection")
        self.name = name
        self.effect = effect
        self.fold = fold
        self.rule = Rule(ordering, options.get("on_gap", "park"))
        self.lifecycle = options.get("lifecycle")
        self.ledger: Literal["any", "time"] = options.get("ledger", "any")
        self.retention = options.get("retention", Retention())
        self.retry = options.get("retry", Retry())
        self.gap_report = options.get("gap_report", 60.0)
        self.gap_deadline = options.get("gap_deadline", 86_400.0)
        self.unknown = options.get("unknown", "reject")
        self.savepoint = options.get("savepoint", False)
        self.age = options.get("age", "time")
        self.registry = options.get("registry", shared_registry)
        self.is_async = effect is not None and inspect.iscoroutinefunction(effect)
        self._key = _finder(name, "key", options.get("key"))
        self._version = _finder(name, "version", options.get("version"))
        # Without an order nothing is of one sequence, unless the declaration or a lifecycle says so.
        ordered = ordering != "unordered" or self.lifecycle is not None or "sequence" in options
        self._sequence = _finder(name, "sequence", options.get("sequence", "subject" if ordered else None))
        self.takes, self.model = self._taken(options.get("events"))
        self._types = {
            stored: event_class
            for event_class in self.takes
            for stored in self.registry.names_read_as(event_class)
        }
        self._check()

    def __repr__(self) -> str:
        return f"Consumer({self.name!r}, ordering={self.rule.ordering!r})"

    def __call__(self, event: Any, tx: Any) -> Any:
        if self.effect is None:
            raise DeclarationError(f"consumer {self.name} folds into a projection and cannot be called")
        return self.effect(event, tx)

    @property
    def ordered(self) -> bool:
        """True when its messages belong to sequences."""
        return self._sequence is not None

    def key_of(self, message: Message) -> Any:
        """Return the idempotency key of a message, as declared."""
        if self._key is not None:
            return self._key(message)
        given = message.extensions.get("idempotencykey")
        return (message.source, message.id) if given is None else given

    def sequence_of(self, message: Message) -> str | None:
        """Return what the message's order is of, None without an order; raises `MessageRefused`."""
        if self._sequence is None:
            return None
        found = self._sequence(message)
        if isinstance(found, int) and not isinstance(found, bool):
            found = str(found)
        if not isinstance(found, str) or not found:
            raise MessageRefused(f"expected a sequence (text), found {found!r}")
        if len(found.encode()) > LONGEST_SEQUENCE:
            raise MessageRefused(
                f"expected a sequence of at most {LONGEST_SEQUENCE} bytes, found {found[:60]!r}..."
            )
        return found

    def version_of(self, message: Message) -> int | None:
        """Return the message's number in its sequence, None if the consumer declares none; raises `MessageRefused`."""
        if self._version is None:
            return None
        found = self._version(message)
        if type(found) is str and found.isascii() and found.isdigit() and len(found) < 20:
            found = int(found)
        if isinstance(found, datetime) and self.rule.ordering == "snapshot" and found.tzinfo is not None:
            found = microseconds(found)
        if type(found) is not int or not 0 < found < 2**63:
            raise MessageRefused(f"expected a version (a whole number from 1), found {found!r}")
        return found

    def event_class_of(self, message: Message) -> type[Event] | None:
        """Return the event class that a message's type leads to, None for a type that the function does not take."""
        return self._types.get(message.type)

    def _taken(self, given: Iterable[type[Event]] | None) -> tuple[tuple[type[Event], ...], Any]:
        """Return the event classes that the effect takes, or the model (Message: the message itself)."""
        if given is not None:
            return tuple(given), None
        if self.fold is not None:
            return tuple(self.fold.folds), None
        assert self.effect is not None
        annotation = _first_annotation(self.name, self.effect)
        kinds = typing.get_args(annotation) if typing.get_origin(annotation) in _UNIONS else (annotation,)
        if annotation in (inspect.Parameter.empty, Any, Message):
            return (), Message
        events = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Event)]
        if len(events) != len(kinds):
            raise DeclarationError(
                f"consumer {self.name}: expected the first parameter to be annotated with an event class, a union of "
                f"event classes, or Message, found {annotation!r}"
            )
        return tuple(events), None

    def _check(self) -> None:
        name, ordering = self.name, self.rule.ordering
        if ordering not in ("delta", "snapshot", "unordered"):
            raise DeclarationError(
                f'consumer {name}: ordering must be "delta" (each message adds), "snapshot" (each message sets) or '
                f'"unordered" (any order gives the same), found {ordering!r}'
            )
        if self.rule.on_gap not in ("park", "reject"):
            raise DeclarationError(
                f'consumer {name}: on_gap must be "park" or "reject", found {self.rule.on_gap!r}'
            )
        if self.ledger not in ("any", "time"):
            raise DeclarationError(f'consumer {name}: ledger must be "any" or "time", found {self.ledger!r}')
        if ordering != "unordered" and self._version is None:
            raise DeclarationError(
                f"consumer {name}: a {ordering} consumer needs version=, or a late message could not be told from an "
                'early one; name where it stands (such as version="sequence"), or declare ordering="unordered" if '
                "any order of its messages gives the same"
            )
        if ordering == "unordered" and self._version is not None:
            raise DeclarationError(f'consumer {name}: version= has no meaning with ordering="unordered"')
        if self.lifecycle is not None and self.model is not None:
            raise DeclarationError(
                f"consumer {name}: a lifecycle guards event classes; annotate the function with them"
            )
        if self.fold is not None and ordering == "unordered":
            raise DeclarationError(
                f"consumer {name}: a fold needs an order; declare it with ordering= and version="
            )
        if self.fold is not None and self.fold.key is not None:
            raise DeclarationError(
                f"consumer {name}: expected a projection keyed by the sequence, found {self.fold!r} with a key of its "
                "own, which two sequences could change at once; write such rows with SQL in a function (event, tx)"
            )
        if self.fold is not None and self.is_async:
            raise DeclarationError(f"consumer {name}: a fold is a plain function")
        for option, seconds in (("gap_report", self.gap_report), ("gap_deadline", self.gap_deadline)):
            if seconds <= 0:
                raise DeclarationError(
                    f"consumer {name}: {option} must be more than 0 seconds, found {seconds}"
                )


def consumer(
    name: str, *, ordering: Ordering, **options: Unpack[ConsumerOptions]
) -> Callable[[Effect], Consumer]:
    """Make a consumer of a function `(event, tx)`; see `ConsumerOptions`.

        @consumer("payments", ordering="delta", key="data.payment_id", version="sequence")
        def payments(event: Received, tx: Transaction) -> None: ...

    `ordering` says what the messages are: "delta" (each adds to what was before), "snapshot" (each sets it anew), or
    "unordered" (any order gives the same).
    """

    def declare(effect: Effect) -> Consumer:
        return Consumer(name, ordering=ordering, effect=effect, **options)

    return declare


_UNIONS = (typing.Union, types.UnionType)


def _first_annotation(name: str, effect: Effect) -> Any:
    parameters = list(inspect.signature(effect).parameters.values())
    if len(parameters) < 2:
        raise DeclarationError(
            f"consumer {name}: expected a function of (event, tx), found {len(parameters)} parameters"
        )
    annotation = parameters[0].annotation
    if not isinstance(annotation, str):
        return annotation
    names = dict(getattr(effect, "__globals__", {}))
    # A function that was declared inside of another sees that one's classes.
    closure = inspect.getclosurevars(effect) if inspect.isfunction(effect) else None
    if closure is not None:
        names |= closure.nonlocals
    try:
        return eval(annotation, names)  # noqa: S307 - the annotation is the program's own
    except (NameError, AttributeError, TypeError) as error:
        raise DeclarationError(
            f"consumer {name}: the annotation {annotation!r} cannot be read ({error}); "
            "name the event classes with events="
        ) from error


def _finder(consumer: str, option: str, part: Part | None) -> Callable[[Message], Any] | None:
    if part is None or not isinstance(part, str):
        return part
    if not _PATH.fullmatch(part):
        raise DeclarationError(
            f"consumer {consumer}: {option} must be a function of the message, or a path such as "
            f"'subject', 'sequence' or 'data.payment_id', found {part!r}"
        )
    first, *rest = part.split(".")
    if first == "data" and rest:
        if len(rest) == 1:
            (only,) = rest
            return lambda message: message.data.get(only) if type(message.data) is dict else None
        return lambda message: reduce(_within, rest, message.data)
    if rest:
        raise DeclarationError(f"consumer {consumer}: {option} looks into data only, found {part!r}")
    if first in _ATTRIBUTES:
        return cast("Callable[[Message], Any]", attrgetter(first))
    return lambda message: message.extensions.get(first)


def _within(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None

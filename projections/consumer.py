"""Consumers: what a team declares about the messages that a broker delivers to it, on a plain function."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial, reduce
from operator import attrgetter
from typing import Any, Literal, TypedDict, TypeVar, Unpack, cast

from ..domain.errors import DeclarationError, OnefoldError
from ..domain.event import Event, flaw_of_text
from ..domain.instant import microseconds
from ..domain.lifecycle import Lifecycle
from ..domain.registry import Registry
from ..domain.registry import registry as shared_registry
from .fingerprint import shown
from .guards import Begins, OnGap, Ordering, Rule
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

_DIGITS = 19
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
    and against what (`Retention()`). `age` finds how old a message is: "time" by the CloudEvents attribute or the
    broker's clock, whichever is earlier; "published" by the broker's clock; "received" promises that the broker never
    delivers what is older than the ledger ("time").

    `retry` is for handlers that fail (`Retry()`). A parked message is reported after `gap_report` seconds (60), and
    becomes a dead letter after `gap_deadline` seconds (86,400). `unknown` is for messages of types that the function
    does not take: "reject", or "pass", which decides them without an effect ("reject"). `events` names the event
    classes where the function's annotation does not. `registry` knows the event classes (the shared one).

    `begins` says of delta messages which version a sequence begins with: "first" is version 1; with "first-seen" it is
    the lowest one in the first batch that has any, for a topic that is joined in the middle ("first").
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
    age: Literal["time", "published", "received"]
    registry: Registry
    begins: Begins


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
        self.rule = Rule(ordering, options.get("on_gap", "park"), options.get("begins", "first"))
        self.lifecycle = options.get("lifecycle")
        self.ledger: Literal["any", "time"] = options.get("ledger", "any")
        self.retention = options.get("retention", Retention())
        self.retry = options.get("retry", Retry())
        self.gap_report = options.get("gap_report", 60.0)
        self.gap_deadline = options.get("gap_deadline", 86_400.0)
        self.unknown = options.get("unknown", "reject")
        self.age = options.get("age", "time")
        self.registry = options.get("registry", shared_registry)
        self.is_async = effect is not None and _is_async(effect)
        self._key = _finder(name, "key", options.get("key"))
        self._version = _finder(name, "version", options.get("version"))
        # Without an order nothing is of one sequence, unless the declaration or a lifecycle says so.
        ordered = ordering != "unordered" or self.lifecycle is not None or "sequence" in options
        self._sequence = _finder(name, "sequence", options.get("sequence", "subject" if ordered else None))
        self.takes = self._taken(options.get("events"))
        self.model = None if self.takes else Message
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

    @property
    def types(self) -> frozenset[str] | None:
        """The names, own and old, of the events that it takes; None for one that takes any message."""
        return frozenset(self._types) if self.takes else None

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
        if (
            type(found) is str
            and found.isascii()
            and "\x00" not in found
            and 0 < len(found) <= LONGEST_SEQUENCE
        ):
            return found
        if isinstance(found, int) and not isinstance(found, bool):
            found = str(found)
        if not isinstance(found, str) or not found:
            raise MessageRefused(f"expected a sequence (text), found {shown(found)}")
        if flaw := flaw_of_text(found):
            raise MessageRefused(f"the sequence {shown(found)} {flaw}")
        if len(found.encode()) > LONGEST_SEQUENCE:
            raise MessageRefused(
                f"expected a sequence of at most {LONGEST_SEQUENCE} bytes, found {shown(found)}"
            )
        return found

    def version_of(self, message: Message) -> int | None:
        """Return the message's number in its sequence, None if the consumer declares none; raises `MessageRefused`."""
        if self._version is None:
            return None
        found = version = self._version(message)
        if type(found) is str and found.isascii() and found.isdigit() and len(found) < 20:
            version = int(found)
            if 0 < version < 2**63:
                return version
        dated = self.rule.ordering == "snapshot"
        if isinstance(found, datetime) and dated and found.tzinfo is not None:
            version = microseconds(found)
        if type(version) is not int or not 0 < version < 2**63:
            expected = "a whole number from 1" + (", or an instant after 2000 with its zone" if dated else "")
            raise MessageRefused(f"expected a version ({expected}), found {shown(found)}")
        return version

    def places_of(self, messages: Sequence[Message]) -> tuple[list[str | None], list[int | None]]:
        """Return what `sequence_of` and `version_of` return of each message; raises `MessageRefused`."""
        sequences: list[Any] = [None] * len(messages)
        versions: list[Any] = [None] * len(messages)
        if self._sequence is not None:
            sequences = [*map(self._sequence, messages)]
            if not _are_plain(sequences, LONGEST_SEQUENCE):
                sequences = [self.sequence_of(message) for message in messages]
        if self._version is not None:
            found = [*map(self._version, messages)]
            if _are_plain(found, _DIGITS) and "".join(found).isdigit():
                versions = [*map(int, found)]
            if not found or versions[0] is None or not 0 < min(versions) <= max(versions) < 2**63:
                versions = [self.version_of(message) for message in messages]
        return sequences, versions

    def event_class_of(self, message: Message) -> type[Event] | None:
        """Return the event class that a message's type leads to, None for a type that the function does not take."""
        return self._types.get(message.type)

    def _taken(self, given: Iterable[type[Event]] | None) -> tuple[type[Event], ...]:
        """Return the event classes that the effect takes, none if it takes the message itself."""
        kinds: list[Any] = [] if given is None else list(given)
        if given is not None and not kinds:
            raise DeclarationError(f"consumer {self.name}: expected at least one event class in events=")
        if self.effect is not None:
            annotation = _first_annotation(self.name, self.effect)
            if given is None:
                kinds = list(_kinds(self.name, self.effect, annotation))
                if len(kinds) == 1 and kinds[0] in (inspect.Parameter.empty, Any, Message):
                    return ()
        else:
            assert self.fold is not None
            kinds = kinds or list(self.fold.folds)
            if not kinds or not self.fold.folds.keys() >= set(kinds):
                raise DeclarationError(
                    f"consumer {self.name}: expected {self.fold!r} to have a fold of each event class, "
                    f"found {len(self.fold.folds)}"
                )
        for kind in kinds:
            # A base of events leads to no message: only a class with a name of its own does.
            if not (isinstance(kind, type) and issubclass(kind, Event) and kind.event_name):
                raise DeclarationError(
                    f"consumer {self.name}: expected the first parameter to be annotated with an event class that has "
                    f"a name, a union of such classes, or Message, or events= to name such classes, found {kind!r}"
                )
            if not self.registry.knows(kind.event_name):
                raise DeclarationError(
                    f"consumer {self.name}: {kind.event_name!r} is not in the registry of the consumer; "
                    "give it the one of the event class with registry="
                )
        return tuple(kinds)

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
        if self.rule.begins not in ("first", "first-seen"):
            raise DeclarationError(
                f'consumer {name}: begins must be "first" or "first-seen", found {self.rule.begins!r}'
            )
        if self.rule.begins != "first" and ordering != "delta":
            raise DeclarationError(
                f"consumer {name}: begins= has a meaning for delta messages only, whose versions have no holes"
            )
        if self.ledger not in ("any", "time"):
            raise DeclarationError(f'consumer {name}: ledger must be "any" or "time", found {self.ledger!r}')
        if self.unknown not in ("reject", "pass"):
            raise DeclarationError(
                f'consumer {name}: unknown must be "reject" or "pass", found {self.unknown!r}'
            )
        if self.age not in ("time", "published", "received"):
            raise DeclarationError(
                f'consumer {name}: age must be "time", "published" or "received", found {self.age!r}'
            )
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


def _is_async(effect: Any) -> bool:
    return inspect.iscoroutinefunction(effect) or inspect.iscoroutinefunction(type(effect).__call__)


def _first_annotation(name: str, effect: Effect) -> Any:
    try:
        signature = inspect.signature(effect)
        signature.bind(None, None)
    except (TypeError, ValueError) as error:
        raise DeclarationError(
            f"consumer {name}: expected a function of (event, tx), found {shown(effect)} ({error})"
        ) from error
    return next(iter(signature.parameters.values())).annotation


def _kinds(name: str, effect: Effect, annotation: Any) -> Iterator[Any]:
    """Yield the members of an annotation: those of a union, of an alias, and of text that names them."""
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, _names(effect))  # noqa: S307 - the annotation is the program's own
            # A name in quotes, where all annotations are text already.
            if isinstance(annotation, str):
                annotation = eval(annotation, _names(effect))  # noqa: S307
        except Exception as error:
            raise DeclarationError(
                f"consumer {name}: the annotation {annotation!r} cannot be read ({error}); "
                "name the event classes with events="
            ) from error
    annotation = getattr(annotation, "__value__", annotation)
    if typing.get_origin(annotation) in _UNIONS:
        for part in typing.get_args(annotation):
            yield from _kinds(name, effect, part)
    else:
        yield annotation


def _names(effect: Any) -> dict[str, Any]:
    """Return what the annotations of a function can name."""
    while isinstance(effect, partial):
        effect = effect.func
    effect = inspect.unwrap(effect)
    if not inspect.isroutine(effect):
        effect = type(effect).__call__
    function: Any = getattr(effect, "__func__", effect)
    names = dict(function.__globals__)
    # A function inside of another sees what it uses of that one; what is not assigned yet it cannot see.
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):
            names[variable] = cell.cell_contents
    return names


def _are_plain(found: Sequence[Any], longest: int) -> bool:
    """Tell whether all of these are text that is not empty, in ASCII, without NUL, of `longest` letters at most."""
    if not {str}.issuperset(map(type, found)):
        return False
    sizes = [*map(len, found)]
    text = "".join(found)
    return (
        min(sizes, default=0) > 0
        and max(sizes, default=0) <= longest
        and text.isascii()
        and "\x00" not in text
    )


def _finder(consumer: str, option: str, part: Any) -> Callable[[Message], Any] | None:
    if part is None:
        return None
    # The data as a whole are no part.
    if not (callable(part) or (isinstance(part, str) and part != "data" and _PATH.fullmatch(part))):
        raise DeclarationError(
            f"consumer {consumer}: {option} must be a function of the message, or a path such as "
            f"'subject', 'sequence' or 'data.payment_id', found {part!r}"
        )
    if not isinstance(part, str):
        return cast("Callable[[Message], Any]", part)
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

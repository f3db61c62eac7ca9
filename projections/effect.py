"""Effects: calls to the world outside that a declaration asks for, on a plain function, and what to do about each."""

from __future__ import annotations

import inspect
import math
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, NamedTuple, TypedDict, Unpack, cast
from uuid import UUID, uuid5

from pydantic import BaseModel

from ..domain.errors import DeclarationError, OnefoldError
from ..domain.event import Event, flaw_of_text
from ..domain.registry import Registry
from ..domain.registry import registry as shared_registry
from .consumer import Rejected, _is_async, _names
from .fingerprint import shown
from .policies import Retry
from .projection import NAME

Function = Callable[[Any, Any], Any]
"""A function `(event, call)`, plain or async; what it returns is kept as the result."""

NAMESPACE = UUID("5d2ad2b6-3c55-5b0e-8b70-6f2a1c8d9e04")
"""Namespace of the keys of calls (RFC 9562, UUIDv5)."""

LONGEST_KEY = 1_000
"""Bytes of a key."""

RETRY = Retry(attempts=12, first=1.0, longest=600.0)
"""How a call is tried again unless it is declared otherwise: for about half an hour."""

LEASE = 30.0
KEEP = timedelta(days=30)


class UnknownEffect(OnefoldError, LookupError):
    """An effect is named that the application does not have."""


class EffectKeyError(OnefoldError, ValueError):
    """What is to be the key of an effect cannot be one."""


class EffectConflict(Rejected):
    """A key of an effect was given again with other content: neither the same call nor a new one.

    As a `Rejected` it makes the message of a consumer a dead letter at once.
    """


@dataclass(frozen=True, slots=True)
class Done:
    """The answer of `reconcile`: the call has had its effect; `result` is kept as the function's would be."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class Again:
    """The answer of `reconcile`: the call has had no effect, and is to be made."""


class EffectOptions(TypedDict, total=False):
    """What can be said of an effect beside its name.

    `on` names the event classes that ask for it; left out, only `perform` does. `key` finds of an event what the call
    is made once for (the event itself), or None where the event asks for nothing.

    `retry` is for calls that fail (`RETRY`: 12 tries within half an hour). `lease` is the time in seconds after which
    a runner that shows no sign of life is replaced, and the longest time-out of a request (30).

    `keeps` says how long the other side remembers a key; None says for ever, or that repeats are harmless (None). A
    call whose first try is older is not simply made again: `reconcile(event, call)`, a function as the effect's own,
    is asked first and returns `Done(result)`, `Again()`, or None where it cannot tell. `keep` is how long a task is
    kept that is done (30 days); its key, if it was given by hand, is known for ever. `registry` knows the event
    classes (the shared one).
    """

    on: type[Event] | Iterable[type[Event]]
    key: Callable[[Any], str | None]
    retry: Retry
    lease: float
    keeps: timedelta | None
    keep: timedelta
    reconcile: Function
    registry: Registry


class Effect:
    """A named effect: its function, and what is declared of it. It may be called like the function itself."""

    def __init__(self, name: str, function: Function, **options: Unpack[EffectOptions]) -> None:
        if not NAME.fullmatch(name):
            raise DeclarationError(
                f"effect name {name!r} must be lower-case letters, digits and underscores, at most 41"
            )
        self.name = name
        self.function = function
        self.retry = options.get("retry", RETRY)
        self.lease = options.get("lease", LEASE)
        keeps = options.get("keeps")
        self.keeps = None if keeps is None else keeps.total_seconds()
        self.keep = options.get("keep", KEEP).total_seconds()
        self.reconcile = options.get("reconcile")
        self.registry = options.get("registry", shared_registry)
        self.is_async = _is_async(function)
        self._key = options.get("key")
        self.on = self._events(options.get("on"))
        annotation = _annotation(name, function)
        self.model = (
            annotation
            if isinstance(annotation, type)
            and issubclass(annotation, BaseModel)
            and not issubclass(annotation, Event)
            else None
        )
        self._check()

    def __repr__(self) -> str:
        return f"Effect({self.name!r})"

    def __call__(self, event: Any, call: Any) -> Any:
        return self.function(event, call)

    def takes(self, event_class: type[Event]) -> bool:
        """Tell whether events of this class ask for the effect."""
        return issubclass(event_class, self.on)

    def key_of(self, event: Event) -> str | None:
        """Return the declared key of a stored event, None where it asks for nothing; raises `EffectKeyError`.

        Without a declared key it is the event's id: see `has_own_keys`.
        """
        if self._key is None:
            return str(event.meta.event_id)
        found = self._key(event)
        return None if found is None else checked_key(self.name, found)

    @property
    def has_own_keys(self) -> bool:
        """True when events are told apart by a declared key, so that two of them may stand for one call."""
        return self._key is not None

    def _events(self, given: type[Event] | Iterable[type[Event]] | None) -> tuple[type[Event], ...]:
        if given is None:
            return ()
        kinds: list[Any] = [given] if isinstance(given, type) else list(given)
        if not kinds:
            raise DeclarationError(f"effect {self.name}: expected at least one event class in on=")
        for kind in kinds:
            if not (isinstance(kind, type) and issubclass(kind, Event)):
                raise DeclarationError(
                    f"effect {self.name}: expected event classes in on=, found {shown(kind)}"
                )
        return tuple(kinds)

    def _check(self) -> None:
        name = self.name
        # Written so that NaN is refused too.
        if not 0 < self.lease < math.inf:
            raise DeclarationError(f"effect {name}: lease must be more than 0 seconds, found {self.lease}")
        if self._key is not None and not self.on:
            raise DeclarationError(f"effect {name}: key= is of events; name them with on=")
        if self.keeps is not None and self.keeps <= self.lease:
            raise DeclarationError(
                f"effect {name}: keeps must be longer than the lease of {self.lease:g} s, or no call could be tried "
                f"again, found {self.keeps:g} s"
            )
        if self.keep <= 0:
            raise DeclarationError(f"effect {name}: keep must be more than 0 seconds, found {self.keep:g}")
        if self.reconcile is not None:
            if self.keeps is None:
                raise DeclarationError(f"effect {name}: reconcile= is asked after keeps=, which is missing")
            if _is_async(self.reconcile) != self.is_async:
                raise DeclarationError(
                    f"effect {name}: expected reconcile= to be {'async' if self.is_async else 'plain'} like the "
                    "function, found the other kind"
                )


def effect(name: str, **options: Unpack[EffectOptions]) -> Callable[[Function], Effect]:
    """Make an effect of a function `(event, call)`; see `EffectOptions`.

        @effect("send_receipt", on=Order.Shipped)
        def send_receipt(event: Order.Shipped, call: Call) -> None: ...

    Give it to `App(effects=...)`; `onefold effects` makes the calls.
    """

    def declare(function: Function) -> Effect:
        return Effect(name, function, **options)

    return declare


def checked_key(effect: str, key: Any) -> str:
    """Return what can be a key: text that is not empty; raises `EffectKeyError`."""
    if not isinstance(key, str) or not key:
        raise EffectKeyError(f"effect {effect}: expected text that is not empty as a key, found {shown(key)}")
    if flaw := flaw_of_text(key):
        raise EffectKeyError(f"effect {effect}: the key {shown(key)} {flaw}; give one without it")
    if len(key.encode()) > LONGEST_KEY:
        raise EffectKeyError(
            f"effect {effect}: expected a key of at most {LONGEST_KEY:,} bytes, found {len(key.encode()):,}; "
            "give a digest of it"
        )
    return key


def call_of(effect: str, key: str, *, of_event: bool = False) -> UUID:
    """Return the key that the world outside gets with every try of a call: the same in every process and release.

    `of_event` tells the id of an event from a key that was given, which may be the same text.
    """
    return uuid5(NAMESPACE, f"{effect}\x1f{'event' if of_event else 'key'}\x1f{key}")


def step_of(call: UUID, name: str) -> UUID:
    """Return the key of a named step of a call."""
    return uuid5(call, name)


class Run(NamedTuple):
    """Make the call."""


class Reconcile(NamedTuple):
    """Ask whether an earlier try has had its effect, before the call is made again."""


class Wait(NamedTuple):
    """Try again after so many seconds, which a runner may shorten at random."""

    seconds: float


class Dead(NamedTuple):
    """Give the call up: it becomes a dead letter of this outcome."""

    outcome: Literal["dead_lettered", "rejected", "expired"]
    why: str


def before(effect: Effect, attempts: int, age: float | None) -> Run | Reconcile | Dead:
    """Decide what to do with a task that is due.

    `attempts` counts the tries before this one, each of which was counted when it began, so also those whose process
    was killed. `age` is the time in seconds since the first of them, None where there was none.
    """
    if attempts == 0 and age is None:
        return Run()
    if attempts and effect.retry.delay(attempts) is None:
        return Dead(
            "dead_lettered",
            f"its runner was gone before try {attempts} of {effect.retry.attempts} had ended; see what ends the "
            "process, then retry it",
        )
    # Whether the last try has reached the other side nobody knows; the key must be known until this one has.
    if effect.keeps is None or age is None or age + effect.lease < effect.keeps:
        return Run()
    if effect.reconcile is not None:
        return Reconcile()
    return Dead(
        "expired",
        f"its first try was {age:,.0f} s ago, and its key is known for {effect.keeps:,.0f} s: made again, it could "
        "take effect twice; find out whether it has, then discard it, or retry it with --even-expired",
    )


def after(effect: Effect, attempts: int, error: BaseException) -> Wait | Dead:
    """Decide what to do about a failed try, the `attempts`-th."""
    text = cause_of(error)
    if isinstance(error, Rejected):
        return Dead("rejected", text)
    delay = effect.retry.delay(attempts)
    return Dead("dead_lettered", text) if delay is None else Wait(delay)


def reconciled(effect: Effect, answer: object) -> Done | Run | Dead:
    """Decide by the answer of `reconcile`."""
    match answer:
        case Done():
            return answer
        case Again():
            return Run()
        case None:
            return Dead(
                "expired",
                "its first try is older than its key is known, and reconcile could not tell whether it took effect; "
                "find out, then discard it, or retry it with --even-expired",
            )
        case _:
            return Dead(
                "expired",
                f"expected Done, Again or None from reconcile of effect {effect.name}, found {shown(answer)}; mend "
                "it, then retry this",
            )


def cause_of(error: BaseException) -> str:
    """Return the type and the text of an error, at most 2,000 letters, as a database can hold it."""
    try:
        said = str(error)
    except Exception as second:  # noqa: BLE001 - one that cannot be shown is a cause all the same
        said = f"its text cannot be made ({type(second).__name__})"
    text = f"{type(error).__name__}: {said}".removesuffix(": ")
    clean = text.replace("\x00", "\\x00").encode(errors="backslashreplace").decode()
    return clean if len(clean) <= 2_000 else f"{clean[:1_997]}..."


def _annotation(name: str, function: Function) -> Any:
    """Return the annotation of the first parameter, read if it is text."""
    try:
        signature = inspect.signature(function)
        signature.bind(None, None)
    except (TypeError, ValueError) as error:
        raise DeclarationError(
            f"effect {name}: expected a function of (event, call), found {shown(function)} ({error})"
        ) from error
    annotation: Any = next(iter(signature.parameters.values())).annotation
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, _names(function))  # noqa: S307 - the annotation is the program's own
        except Exception as error:
            raise DeclarationError(
                f"effect {name}: the annotation {annotation!r} of its first parameter cannot be read ({error}); "
                "name what is known where the function is declared"
            ) from error
    return cast("Any", typing.get_origin(annotation) or annotation)

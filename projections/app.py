"""Applications: which aggregates, read models, consumers and what else belong together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from ..domain.aggregate import Aggregate
from ..domain.errors import DeclarationError, OnefoldError
from .consumer import Consumer
from .effect import Effect, UnknownEffect
from .process import Process, ProcessManager, process_of
from .projection import AnyProjection
from .publication import Publication

N = TypeVar("N", Consumer, AnyProjection, Effect, Process)


class UnknownProjection(OnefoldError, LookupError):
    """A projection is named that the application does not have."""


class UnknownConsumer(OnefoldError, LookupError):
    """A consumer is named that the application does not have."""


class UnknownProcess(OnefoldError, LookupError):
    """A process manager is named that the application does not have."""


class App:
    """The aggregates, projections, consumers, process managers, publications and effects of one application.

    Process managers are among its aggregates and consumers. `onefold --app module:app` finds it by import.
    """

    def __init__(
        self,
        *,
        aggregates: Iterable[type[Aggregate]] = (),
        projections: Iterable[AnyProjection] = (),
        consumers: Iterable[Consumer] = (),
        publications: Iterable[Publication] = (),
        effects: Iterable[Effect] = (),
        processes: Iterable[type[ProcessManager]] = (),
    ) -> None:
        self.processes = tuple(process_of(manager) for manager in processes)
        managers = (process.manager for process in self.processes)
        self.aggregates = (*aggregates, *managers)
        self.projections = tuple(projections)
        self.consumers = (*consumers, *(process.consumer for process in self.processes))
        self.publications = tuple(publications)
        self.effects = tuple(effects)
        folded = [consumer.fold.name for consumer in self.consumers if consumer.fold is not None]
        for what, names in (
            ("category", [aggregate.category for aggregate in self.aggregates]),
            ("projection", [*(projection.name for projection in self.projections), *folded]),
            ("consumer", [consumer.name for consumer in self.consumers]),
            ("effect", [effect.name for effect in self.effects]),
        ):
            for name in names:
                if names.count(name) > 1:
                    raise DeclarationError(f"{what} {name!r} stands twice in the application")
        sources: dict[str, str] = {}
        for each in self.publications:
            if (other := sources.setdefault(each.channel, each.via)) != each.via:
                raise DeclarationError(
                    f"channel {each.channel!r} is published via both {other!r} and {each.via!r}; a relay reads one: "
                    "give all publications of the channel the same, or another channel"
                )

    def __repr__(self) -> str:
        aggregates = ", ".join(aggregate.__name__ for aggregate in self.aggregates)
        projections = ", ".join(projection.name for projection in self.projections)
        consumers = ", ".join(consumer.name for consumer in self.consumers)
        publications = ", ".join(map(repr, self.publications))
        effects = ", ".join(effect.name for effect in self.effects)
        processes = ", ".join(process.name for process in self.processes)
        return (
            f"App(aggregates=[{aggregates}], projections=[{projections}], consumers=[{consumers}], "
            f"publications=[{publications}], effects=[{effects}], processes=[{processes}])"
        )

    def consumer(self, which: str | Consumer) -> Consumer:
        """Return the consumer of this name, or the given one if it is the application's.

        Raises `UnknownConsumer` listing those there are.
        """
        return _found("consumer", self.consumers, which, UnknownConsumer)

    def effect(self, which: str | Effect) -> Effect:
        """Return the effect of this name, or the given one if it is the application's.

        Raises `UnknownEffect` listing those there are.
        """
        return _found("effect", self.effects, which, UnknownEffect)

    def process(self, which: str | Process) -> Process:
        """Return the process manager of this name, or the given one if it is the application's.

        Raises `UnknownProcess` listing those there are.
        """
        return _found("process manager", self.processes, which, UnknownProcess)

    def projection(self, which: str | AnyProjection) -> AnyProjection:
        """Return the projection of this name, or the given one if it is the application's.

        Raises `UnknownProjection` listing those there are.
        """
        return _found("projection", self.projections, which, UnknownProjection)


def _found(kind: str, known: Sequence[N], which: str | N, error: type[OnefoldError]) -> N:
    for each in known:
        if each is which or each.name == which:
            return each
    if not known:
        raise error(
            f"expected {kind} {which!r}, found an application without {kind}s; "
            "name the one that declares it, as with --app"
        )
    names = ", ".join(each.name for each in known)
    raise error(f"expected one of the {kind}s {names}, found {which!r}")

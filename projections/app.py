"""Applications: which aggregates and projections belong together."""

from __future__ import annotations

from collections.abc import Iterable

from ..domain.aggregate import Aggregate
from ..domain.errors import DeclarationError, OnefoldError
from .projection import AnyProjection


class UnknownProjection(OnefoldError, LookupError):
    """A projection is named that the application does not have."""


class App:
    """The aggregates and projections of one application; `onefold --app module:app` finds it by import."""

    def __init__(
        self,
        *,
        aggregates: Iterable[type[Aggregate]] = (),
        projections: Iterable[AnyProjection] = (),
    ) -> None:
        self.aggregates = tuple(aggregates)
        self.projections = tuple(projections)
        for what, names in (
            ("category", [aggregate.category for aggregate in self.aggregates]),
            ("projection", [projection.name for projection in self.projections]),
        ):
            for name in names:
                if names.count(name) > 1:
                    raise DeclarationError(f"{what} {name!r} stands twice in the application")

    def __repr__(self) -> str:
        aggregates = ", ".join(aggregate.__name__ for aggregate in self.aggregates)
        projections = ", ".join(projection.name for projection in self.projections)
        return f"App(aggregates=[{aggregates}], projections=[{projections}])"

    def projection(self, which: str | AnyProjection) -> AnyProjection:
        """Return the projection of this name, or the given one if it is the application's.

        Raises `UnknownProjection` listing those there are.
        """
        for projection in self.projections:
            if projection is which or projection.name == which:
                return projection
        known = ", ".join(projection.name for projection in self.projections) or "none"
        raise UnknownProjection(f"expected one of the projections {known}, found {which!r}")

"""Parcels: an aggregate whose events ask for effects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from onefold import Aggregate, App, Effect, Event, Store, applies, connect
from onefold.infrastructure.connection import connected
from onefold.infrastructure.effects.runner import EffectRunner


class Parcel(Aggregate, category="freight"):
    class Shipped(Event, name="freight.shipped"):
        to: str

    class Returned(Event, name="freight.returned"):
        why: str

    @applies(Shipped)
    def _shipped(self, event: Shipped) -> None: ...

    @applies(Returned)
    def _returned(self, event: Returned) -> None: ...


def parcel(key: str, *events: Event) -> Parcel:
    made = Parcel.new(key)
    for event in events:
        made.emit(event)
    return made


def application(*effects: Effect, **more: Any) -> App:
    return App(aggregates=[Parcel], effects=effects, **more)


@contextmanager
def shop(url: str, *effects: Effect, **more: Any) -> Iterator[Store]:
    with connect(application(*effects, **more), url) as store:
        yield store


def run(url: str, *effects: Effect, workers: int = 1) -> dict[str, dict[str, int]]:
    """Make the calls that are due; return what became of them by effect, without zeros."""
    observed = EffectRunner(url, effects, workers=workers, once=True).run()
    return {
        each.name: {became: count for became, count in observed.of(each.name).items() if count}
        for each in effects
    }


def rows(url: str, columns: str = "effect, key, attempts") -> list[tuple[Any, ...]]:
    with connected(url) as connection:
        return connection.execute(f"SELECT {columns} FROM onefold.effects ORDER BY id").fetchall()


def execute(url: str, statement: str, parameters: Sequence[Any] = ()) -> None:
    with connected(url) as connection:
        connection.execute(statement, parameters)

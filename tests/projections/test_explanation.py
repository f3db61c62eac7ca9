"""An explanation follows events into the columns of a row."""

from __future__ import annotations

from decimal import Decimal

from onefold import Event, Projection, Registry, Row
from onefold.domain.change import ABSENT, Change
from onefold.domain.event import EventMeta
from onefold.projections.explanation import differences, explain

registry = Registry()


class Set(Event, name="thing.set", registry=registry):
    to: str


class Noted(Event, name="thing.noted", registry=registry):
    """Has no fold."""


class Gone(Event, name="thing.gone", registry=registry):
    pass


class Broken(Event, name="thing.broken", registry=registry):
    pass


class Thing(Row, key="key"):
    key: str
    value: str = ""
    amount: Decimal = Decimal(0)


things = Projection("things", Thing, registry=registry)


@things.on(Set)
def set_(row: Thing | None, event: Set) -> Thing:
    row = row or Thing(key=event.meta.key)
    return row.evolve(value=event.to, amount=row.amount * Decimal("1.0"))


@things.on(Gone)
def gone(row: Thing | None, event: Gone) -> None:
    return None


@things.on(Broken)
def broken(row: Thing | None, event: Broken) -> Thing:
    raise ValueError("no")


def at(version: int, event: Event, stream: str = "thing/1") -> Event:
    return event.bound(EventMeta(stream, version, version * 10))


def told(*events: Event) -> list[tuple[int, str, list[str]]]:
    found = explain(things, ("1",), events).touches
    return [
        (touch.event.meta.version, touch.effect, [change.path for change in touch.columns]) for touch in found
    ]


def test_each_event_is_made_changed_unchanged_or_removed() -> None:
    events = [
        at(1, Gone()),
        at(2, Set(to="a")),
        at(3, Noted()),
        at(4, Set(to="a")),
        at(5, Set(to="b")),
        at(6, Set(to="x"), "thing/2"),
        at(7, Gone()),
        at(8, Set(to="c")),
    ]
    assert told(*events) == [
        (1, "unchanged", []),
        (2, "made", ["key", "value", "amount"]),
        (4, "unchanged", []),
        (5, "changed", ["value"]),
        (7, "removed", ["key", "value", "amount"]),
        (8, "made", ["key", "value", "amount"]),
    ]
    found = explain(things, ("1",), events)
    assert found.row == Thing(key="1", value="c")
    assert [touch.event.meta.version for touch in found.chains["value"]] == [8]
    before = explain(things, ("1",), events[:5])
    assert [touch.event.meta.version for touch in before.chains["value"]] == [2, 5]
    assert [touch.event.meta.version for touch in before.chains["amount"]] == [2]
    assert explain(things, ("1",), events[:7]).chains == {}


def test_nothing_is_folded_after_a_failure() -> None:
    found = explain(things, ("1",), [at(1, Set(to="a")), at(2, Broken()), at(3, Set(to="b"))])
    assert [(touch.effect, touch.reason) for touch in found.touches] == [
        ("made", ""),
        ("failed", "ValueError: no"),
    ]
    assert found.row is not None
    assert found.row.value == "a"  # type: ignore[attr-defined]


def test_rows_are_compared_by_value() -> None:
    one = Thing(key="1", amount=Decimal("1.0"))
    assert differences(one, Thing(key="1", amount=Decimal("1.00"))) == ()
    assert differences(one, None) == (
        Change("key", "1", ABSENT), Change("value", "", ABSENT), Change("amount", Decimal("1.0"), ABSENT)
    )  # fmt: skip
    assert differences(None, None) == ()

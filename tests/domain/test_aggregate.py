"""Aggregates: decide, fold, follow, and keep snapshots."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from onefold.domain.aggregate import Aggregate, OutOfSequence, SnapshotCodec, applies
from onefold.domain.errors import DeclarationError, IllegalTransition, UnstorableValue
from onefold.domain.event import Event, EventMeta
from onefold.domain.instant import NaiveInstant
from onefold.domain.lifecycle import Lifecycle, Transition
from onefold.domain.money import Money
from onefold.domain.registry import Registry

KEPT = Registry()
AT = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
LATER = datetime(2026, 2, 3, tzinfo=UTC)


class Lamp(Aggregate, category="lamp"):
    class Made(Event, name="lamp.made", registry=KEPT):
        colour: str
        price: Money | None = None

    class Lit(Event, name="lamp.lit", registry=KEPT):
        pass

    class Dusted(Event, name="lamp.dusted", registry=KEPT):
        pass

    lifecycle = Lifecycle(
        ("none", "dark", "bright"),
        (Transition("make", Made, ("none",), "dark"), Transition("light", Lit, ("dark",), "bright")),
    )

    colour: str = ""
    price: Money | None = None
    shone: int = 0
    made_on: date | None = None

    @applies(Made)
    def _made(self, event: Made) -> None:
        self.colour = event.colour
        self.price = event.price

    @applies(Lit)
    def _lit(self, _: Lit) -> None:
        self.shone += 1


class Stone(Aggregate, category="stone"):
    class Found(Event, name="stone.found", registry=KEPT):
        pass


def lamp() -> Lamp:
    made = Lamp.new("7")
    made.emit(Lamp.Made(colour="red", price=Money.of("24.90", "EUR")), at=AT)
    made.emit(Lamp.Lit(), at=LATER)
    return made


def test_a_new_aggregate_stands_before_its_first_event() -> None:
    blank = Lamp.new("7")
    assert (blank.id, blank.key, blank.version, blank.status) == ("lamp/7", "7", 0, "none")
    assert (blank.pending, blank.created_on, blank.modified_on) == ((), None, None)


def test_decisions_are_folded_and_wait_to_be_saved() -> None:
    red = lamp()
    assert (red.colour, red.shone, red.status, red.version) == ("red", 1, "bright", 2)
    assert (red.created_on, red.modified_on) == (AT, LATER)
    assert [(event.event_name, event.meta.stream, event.meta.version) for event in red.pending] == [
        ("lamp.made", "lamp/7", 1),
        ("lamp.lit", "lamp/7", 2),
    ]


def test_an_illegal_command_changes_nothing() -> None:
    red = lamp()
    with pytest.raises(
        IllegalTransition, match="cannot make lamp/7: it is bright; make is possible when none"
    ):
        red.emit(Lamp.Made(colour="blue"))
    assert (red.colour, red.version, len(red.pending)) == ("red", 2, 2)


def test_a_fact_is_recorded_whatever_the_lifecycle_says() -> None:
    early = Lamp.new("7")
    early.record(Lamp.Lit(), at=AT)
    early.record(Lamp.Made(colour="red"), at=AT)
    assert (early.status, early.colour, early.shone) == ("bright", "red", 1)


def test_an_event_without_fold_and_transition_only_counts() -> None:
    red = lamp()
    red.emit(Lamp.Dusted())
    assert (red.version, red.status, red.modified_on) == (3, "bright", LATER)


def test_an_aggregate_without_lifecycle_has_no_status() -> None:
    stone = Stone.new("a/b")
    stone.emit(Stone.Found())
    assert (stone.status, stone.key, stone.version) == ("", "a/b", 1)


def test_an_event_of_another_aggregate_is_refused() -> None:
    with pytest.raises(DeclarationError, match=r"Stone\.Found is not an event of Lamp"):
        lamp().record(Stone.Found())


def test_a_naive_time_is_refused_and_nothing_is_recorded() -> None:
    red = lamp()
    with pytest.raises(NaiveInstant, match="at is 2026-01-01"):
        red.emit(Lamp.Dusted(), at=datetime(2026, 1, 1))  # noqa: DTZ001 - this is the fault
    assert red.version == 2


@pytest.mark.parametrize(("stream", "version"), [("lamp/7", 2), ("lamp/7", 4), ("lamp/8", 3)])
def test_only_the_next_event_of_the_stream_can_follow(stream: str, version: int) -> None:
    red = lamp()
    with pytest.raises(
        OutOfSequence, match=rf"expected version 3 of lamp/7, found version {version} of {stream}"
    ):
        red.follow(Lamp.Dusted().bound(EventMeta(stream, version)))


def test_what_was_stored_is_no_longer_pending() -> None:
    red = lamp()
    stored = [
        event.bound(EventMeta("lamp/7", event.meta.version, 9, occurred_at=LATER)) for event in red.pending
    ]
    red.saved([])
    assert len(red.pending) == 2
    red.saved(stored[:1])
    assert (red.created_on, red.modified_on) == (LATER, LATER)
    assert [event.event_name for event in red.pending] == ["lamp.lit"]
    red.saved(stored[1:])
    assert red.pending == ()


def test_the_library_finds_pending_events_where_it_expects_them() -> None:
    red = lamp()
    assert [event.originator_version for event in red.collect_events()] == [1, 2]
    assert red.pending == ()


def test_an_aggregate_is_not_made_by_calling_its_class() -> None:
    with pytest.raises(TypeError, match=r"Lamp is made by its own commands or by Lamp\.blank\(stream\)"):
        Lamp()
    with pytest.raises(TypeError, match="named by its key"):
        Lamp.create_id()


@pytest.mark.parametrize(
    ("key", "reason"),
    [("", "is empty"), ("a\x00b", "contains a NUL"), ("\ud800", "contains a lone surrogate")],
)
def test_a_key_is_text_that_the_database_can_hold(key: str, reason: str) -> None:
    with pytest.raises(UnstorableValue, match=f"lamp: field key {reason}"):
        Lamp.new(key)


def test_a_class_without_category_has_no_streams() -> None:
    class Bare(Aggregate):
        pass

    with pytest.raises(DeclarationError, match="Bare has no category"):
        Bare.new("1")


@pytest.mark.parametrize("category", ["a/b", "a\nb", " a"])
def test_a_category_is_plain_text_without_a_slash(category: str) -> None:
    with pytest.raises(DeclarationError, match="must be plain text without a slash"):
        type(Lamp)("Odd", (Aggregate,), {}, category=category)


def test_a_subclass_inherits_events_folds_and_category() -> None:
    class Torch(Lamp):
        class Dropped(Event, name="torch.dropped", registry=KEPT):
            pass

    torch = Torch.new("1")
    torch.emit(Lamp.Made(colour="green"))
    torch.emit(Torch.Dropped())
    assert (torch.id, torch.colour, torch.version) == ("lamp/1", "green", 2)
    assert Torch.Dropped not in Lamp.events


def test_a_snapshot_gives_the_state_back() -> None:
    red = lamp()
    codec = SnapshotCodec(Lamp)
    back = codec.decode("lamp/7", 2, codec.encode(red))
    for name in (
        "id",
        "version",
        "status",
        "created_on",
        "modified_on",
        "colour",
        "price",
        "shone",
        "made_on",
    ):
        assert getattr(back, name) == getattr(red, name)
    assert back.price is not None
    assert type(back.price.amount) is Decimal
    assert back.pending == ()
    back.emit(Lamp.Dusted())
    assert back.version == 3


def test_a_snapshot_of_a_blank_aggregate_gives_it_back() -> None:
    codec = SnapshotCodec(Stone)
    back = codec.decode("stone/1", 0, codec.encode(Stone.new("1")))
    assert (back.version, back.created_on) == (0, None)


STATE = '{"colour":"red","price":null,"shone":1,"made_on":null}'


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        "{}",
        '{"status":"dark","created_on":null,"modified_on":null,"state":{}}',
        '{"status":"dark","created_on":null,"modified_on":null,"state":'
        + STATE.replace("{", '{"old":1,')
        + "}",
        '{"status":"dark","created_on":"2026-01-01T00:00:00","modified_on":null,"state":' + STATE + "}",
    ],
)
def test_a_snapshot_that_does_not_fit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="validation error"):
        SnapshotCodec(Lamp).decode("lamp/7", 2, text)


def fingerprint(fields: dict[str, Any], **more: Any) -> str:
    namespace = {"__annotations__": fields, "__module__": __name__, **dict.fromkeys(fields), **more}
    return SnapshotCodec(type(Lamp)("Shape", (Aggregate,), namespace, category="shape")).fingerprint


def test_the_fingerprint_tells_other_code_apart() -> None:
    shapes = [
        fingerprint({"a": str}),
        fingerprint({"a": int}),
        fingerprint({"b": str}),
        fingerprint({"a": str, "b": str}),
        fingerprint({"a": str}, snapshot_version=2),
    ]
    assert len(set(shapes)) == len(shapes)
    assert fingerprint({"a": str}) == shapes[0]


def test_a_key_that_is_no_text_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="key of a lamp must be text, found int 5"):
        Lamp.new(5)  # type: ignore[arg-type]


def test_an_aggregate_shows_its_stream_version_status_and_state() -> None:
    assert repr(lamp()).startswith("Lamp('lamp/")
    assert "version=" in repr(lamp())
    assert "first" not in repr(lamp())

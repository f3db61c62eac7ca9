"""Events: frozen facts with stable names, and what no log can keep."""

# ruff: noqa: DTZ001 - times without a zone are what is refused or converted here

from __future__ import annotations

import dataclasses
import enum
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from pydantic import BaseModel, Field, ValidationError

from onefold.domain.aggregate import Aggregate
from onefold.domain.errors import DeclarationError, UnstorableValue
from onefold.domain.event import (
    Event,
    EventMeta,
    UnboundEvent,
    at,
    encode,
    reject_unstorable,
    reject_unstorable_metadata,
)
from onefold.domain.instant import Instant, microseconds
from onefold.domain.money import Money
from onefold.domain.registry import Registry

KEPT = Registry()
AT = datetime(2026, 5, 4, 3, 2, 1, 987_654, tzinfo=UTC)


class Part(BaseModel):
    text: str


class Noted(Event, name="note.noted", registry=KEPT):
    note: Any = None
    part: Part | None = None


class Timed(Event, name="note.timed", registry=KEPT):
    at: Instant | None = None
    all: tuple[Instant, ...] = ()


def test_the_name_and_schema_version_are_those_that_were_declared() -> None:
    class Renamed(Event, name="note.renamed", version=3, registry=Registry()):
        pass

    assert (Renamed.event_name, Renamed.schema_version) == ("note.renamed", 3)
    assert (Noted.event_name, Noted.schema_version) == ("note.noted", 1)


def test_a_base_without_a_name_is_no_event_of_its_own() -> None:
    class Base(Event):
        derived: bool = False

    assert Base.event_name == ""


@pytest.mark.parametrize(
    "name", ["noted", "Note.noted", "note.", ".noted", "note..noted", "note noted.x", "nöte.x"]
)
def test_a_name_is_lower_case_words_joined_by_dots(name: str) -> None:
    with pytest.raises(DeclarationError, match="lower-case words joined by dots"):

        class Odd(Event, name=name, registry=Registry()):
            pass


def test_a_schema_version_begins_at_1() -> None:
    with pytest.raises(DeclarationError, match="schema version must be 1 or more, found 0"):

        class Odd(Event, name="note.odd", version=0, registry=Registry()):
            pass


def test_a_misspelt_option_of_an_event_is_refused() -> None:
    """H7: a schema version that is not taken for one would read old data as new."""
    with pytest.raises(DeclarationError, match=r"Odd: expected name, version, .* found schema_version"):

        class Odd(Event, name="note.odd", schema_version=2, registry=Registry()):
            pass

    class Open(Event, name="note.open", extra="ignore", registry=Registry()):
        pass

    assert Open.model_config["extra"] == "ignore"


@pytest.mark.filterwarnings("ignore:Field name:UserWarning")
def test_a_field_must_not_hide_what_event_has() -> None:
    with pytest.raises(DeclarationError, match="field name 'timestamp' is taken by Event"):

        class Odd(Event, name="note.odd", registry=Registry()):
            timestamp: str = ""


@pytest.mark.parametrize(
    "annotation",
    [
        datetime,
        datetime | None,
        list[datetime],
        dict[str, datetime],
        tuple[Instant, datetime],
        Annotated[datetime, Field(gt=datetime(2000, 1, 1))],
        list[Annotated[datetime, Field(gt=datetime(2000, 1, 1))]],
    ],
)
def test_a_plain_datetime_field_is_refused_at_its_declaration(annotation: Any) -> None:
    with pytest.raises(DeclarationError, match=r"Odd\.at is a plain datetime; declare it as Instant"):
        type(Event)("Odd", (Event,), {"__annotations__": {"at": annotation}, "__module__": __name__})


def test_an_instant_without_a_zone_is_refused_with_its_field() -> None:
    with pytest.raises(ValidationError, match=r"at\n.*timezone"):
        Timed(at=datetime(2020, 1, 1))
    with pytest.raises(ValidationError, match=r"all\.1\n.*timezone"):
        Timed(all=(AT, datetime(2020, 1, 1)))


def test_events_are_equal_by_their_data_whatever_their_place() -> None:
    assert Noted(note="a").bound(EventMeta("note/1", 1)) == Noted(note="a").bound(EventMeta("note/2", 7))
    assert Noted(note="a") != Noted(note="b")


def test_an_event_cannot_be_changed_or_given_more_than_it_has() -> None:
    event = Noted(note="a")
    with pytest.raises(ValidationError, match="frozen"):
        event.note = "b"
    with pytest.raises(ValidationError, match="Extra inputs"):
        Noted(other=1)  # type: ignore[call-arg]


def test_meta_of_an_event_that_belongs_nowhere_says_what_to_do() -> None:
    with pytest.raises(UnboundEvent, match=r"Noted belongs to no stream yet; emit it from an aggregate"):
        _ = Noted().meta


def test_binding_leaves_the_event_itself_alone() -> None:
    event = Noted(note="a")
    bound = event.bound(EventMeta("note/4711/x", 3, occurred_at=AT))
    assert (bound.originator_id, bound.originator_version, bound.timestamp) == ("note/4711/x", 3, AT)
    assert (bound.meta.category, bound.meta.key) == ("note", "4711/x")
    with pytest.raises(UnboundEvent):
        _ = event.meta


def test_meta_keeps_what_it_was_given() -> None:
    event_id = UUID(int=2**127 + 5)
    meta = EventMeta(
        "note/1", 2, 2**53 + 1, occurred_at=AT, recorded_at=AT, event_id=event_id, metadata={"actor": "ana"}
    )
    assert (meta.stream, meta.version, meta.position) == ("note/1", 2, 9_007_199_254_740_993)
    assert (meta.occurred_at, meta.recorded_at, meta.happened) == (AT, AT, AT)
    assert (meta.event_id, meta.metadata) == (event_id, {"actor": "ana"})
    assert repr(meta).startswith("EventMeta('note/1', 2, 9007199254740993, occurred_at=datetime")


def test_a_decoded_event_takes_its_place_from_the_stored_record() -> None:
    count = microseconds(AT)
    record = (9, 2, count, count + 1, UUID(int=5).bytes, 1, "note/1", "note.noted", "{}", '{"actor":"ana"}')
    meta = at(Noted(), record).meta
    assert (meta.position, meta.version, meta.stream, meta.event_id) == (9, 2, "note/1", UUID(int=5))
    assert (meta.occurred_at, meta.metadata) == (AT, {"actor": "ana"})


def test_meta_of_an_event_that_is_not_stored_yet() -> None:
    meta = EventMeta("note/1", 1)
    assert (meta.occurred_at, meta.recorded_at, meta.event_id, meta.metadata, meta.position) == (
        None,
        None,
        None,
        {},
        0,
    )
    with pytest.raises(UnstorableValue, match=r"note/1 version 1: field occurred_at is not set"):
        _ = meta.happened


@pytest.mark.parametrize("name", ["stream", "version", "occurred_at", "new"])
def test_meta_cannot_be_changed(name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(EventMeta("note/1", 1), name, 1)


@pytest.mark.parametrize(
    ("value", "field", "reason"),
    [
        ("a\x00b", "note", "contains a NUL character"),
        ("a\ud800b", "note", "contains a lone surrogate"),
        ("\udfff", "note", "contains a lone surrogate"),
        ({"k\x00": 1}, r"key 'k\x00' of note", "contains a NUL character"),
        ({"k": {"\ud800": 1}}, r"key '\ud800' of note.k", "contains a lone surrogate"),
        (["x", ("y", "\x00")], "note[1][1]", "contains a NUL character"),
        (float("nan"), "note", "is nan, which JSON cannot hold"),
        ({"deep": [float("inf")]}, "note.deep[0]", "is inf, which JSON cannot hold"),
        (Decimal("NaN"), "note", "is NaN, which JSON cannot hold"),
        (Decimal("-Infinity"), "note", "is -Infinity, which JSON cannot hold"),
    ],
)
def test_what_no_log_can_keep_is_refused_with_its_field(value: Any, field: str, reason: str) -> None:
    """Cases H5 and H6: refused before anything is written."""
    with pytest.raises(UnstorableValue) as caught:
        encode(Noted(note=value))
    assert (caught.value.subject, caught.value.field) == ("Noted", field)
    assert str(caught.value) == f"Noted: field {field} {reason}; nothing was written"


@pytest.mark.parametrize("text", ["\x00", "\ud800"])
def test_a_flaw_inside_a_model_is_named_by_its_path(text: str) -> None:
    with pytest.raises(UnstorableValue, match=r"Noted: field part\.text contains a (NUL|lone)"):
        encode(Noted(part=Part(text=text)))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_number_fields_refuse_nan_and_infinity_when_they_are_made(value: float) -> None:
    class Measured(Event, name="note.measured", registry=Registry()):
        value: float

    with pytest.raises(ValidationError, match="finite"):
        Measured(value=value)


def test_a_value_that_json_does_not_know_is_refused() -> None:
    with pytest.raises(UnstorableValue, match=r"Noted: field \? cannot be written as JSON"):
        encode(Noted(note=object()))
    with pytest.raises(UnstorableValue, match=r"Noted: field \? cannot be written as JSON"):
        encode(Noted(note=b"\xff"))


@pytest.mark.parametrize(
    "text", ["a\\u0000b", "NaN", "Infinity", "\\ud800", "😀", "é", "e\u0301", '"', "\u2028", "x" * 100_000]
)
def test_text_that_only_looks_odd_comes_back_unchanged(text: str) -> None:
    """Case H5: the six characters backslash u 0 0 0 0 are text like any other."""
    event = Noted(note=text, part=Part(text=text))
    back = KEPT.decode("note.noted", 1, encode(event), EventMeta("note/1", 1))
    assert back == event


def test_a_naive_datetime_is_found_wherever_it_hides() -> None:
    with pytest.raises(UnstorableValue, match=r"field note\.at is a datetime without a zone"):
        reject_unstorable(Noted(note={"at": datetime(2020, 1, 1)}))
    reject_unstorable(Noted(note={"at": AT, "n": 1, "d": Decimal(1), "f": 0.5, "none": None}))


def test_metadata_is_held_to_the_same_rules() -> None:
    reject_unstorable_metadata({"actor": "ana", "tags": {"a", "b"}, "at": AT})
    with pytest.raises(UnstorableValue, match=r"metadata: field metadata\.actor contains a NUL character"):
        reject_unstorable_metadata({"actor": "\x00"})


def test_amounts_and_instants_come_back_equal() -> None:
    class Paid(Event, name="note.paid", registry=KEPT):
        amount: Money
        at: Instant

    event = Paid(amount=Money.of("12345678901234567890.120", "EUR"), at=AT)
    back = KEPT.decode("note.paid", 1, encode(event), EventMeta("note/1", 1))
    assert back == event
    assert '"amount":{"amount":"12345678901234567890.120","currency":"EUR"}' in encode(event)


def test_mutate_makes_the_aggregate_of_an_event_and_moves_it_on() -> None:
    class Note(Aggregate, category="note"):
        class Written(Event, name="note.written", registry=Registry()):
            pass

    first = Note.Written().bound(EventMeta("note/1", 1, occurred_at=AT))
    note = first.mutate(None)
    assert isinstance(note, Note)
    assert (note.id, note.version, note.created_on) == ("note/1", 1, AT)
    assert Note.Written().bound(EventMeta("note/1", 2)).mutate(note).version == 2


def test_mutate_of_an_event_without_an_aggregate_is_refused() -> None:
    with pytest.raises(DeclarationError, match="Noted belongs to no aggregate class"):
        Noted().bound(EventMeta("note/1", 1)).mutate(None)


class Parcel(BaseModel):
    packed_at: datetime


class Loose(Event, name="looseness.seen"):
    contents: Any


def test_a_plain_datetime_inside_of_a_value_object_is_refused_when_the_event_is_declared() -> None:
    with pytest.raises(DeclarationError, match="parcel is a plain datetime"):

        class Sent(Event, name="parcel.sent"):
            parcel: Parcel


def test_a_naive_datetime_in_a_field_of_any_type_is_refused_before_it_is_stored() -> None:
    with pytest.raises(UnstorableValue, match=r"field contents\.at is a datetime without a zone"):
        encode(Loose(contents={"at": datetime(2026, 1, 1)}))


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


LARGE = 10**4_000


@pytest.mark.parametrize(
    ("value", "field", "reason"),
    [
        (LARGE, "note", "has more than 4000 digits"),
        ({"k": [-LARGE]}, r"note\.k\[0\]", "has more than 4000 digits"),
        ({10**5_000: 1}, "a key of note", "has more than 4000 digits"),
        (nested(151), r"note\[0\]\[0\].*\.\.\.", "is nested deeper than 150 levels"),
        ({"k": nested(1_000)}, r"note\.k\[0\].*\.\.\.", "is nested deeper than 150 levels"),
    ],
    ids=["number", "number inside", "key", "list", "list inside"],
)
def test_what_could_not_be_read_again_is_refused_with_its_field(value: Any, field: str, reason: str) -> None:
    with pytest.raises(UnstorableValue, match=f"Noted: field {field} {reason}"):
        encode(Noted(note=value))
    with pytest.raises(
        UnstorableValue, match=f"metadata: field {field.replace('note', 'metadata.note')} {reason}"
    ):
        reject_unstorable_metadata({"note": value})


def test_the_largest_number_and_the_deepest_nesting_come_back() -> None:
    for value in (LARGE - 1, 1 - LARGE, nested(150), {"k": nested(149)}, [[1]] * 1_000):
        back = KEPT.decode("note.noted", 1, encode(Noted(note=value)), EventMeta("note/1", 1))
        assert back == Noted(note=value)
    reject_unstorable_metadata({"note": nested(149)})


def test_a_list_that_holds_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(UnstorableValue, match=r"field note\[0\].* is nested deeper than 150 levels"):
        encode(Noted.model_construct(note=endless))


class Branch(BaseModel):
    branches: tuple[Branch, ...] = ()


class Counted(Event, name="note.counted", registry=KEPT):
    count: int = 0
    text: str = ""
    branch: Branch | None = None


def test_fields_of_a_set_type_are_held_to_what_can_be_read_again() -> None:
    with pytest.raises(UnstorableValue, match="Counted: field count has more than 4000 digits"):
        encode(Counted(count=10**4_300))
    branch = Branch()
    for _ in range(110):
        branch = Branch.model_construct(branches=(branch,))
    with pytest.raises(UnstorableValue, match=r"Counted: field branch\.branches.* is nested deeper"):
        encode(Counted.model_construct(count=0, text="", branch=branch))
    long = Counted(text="1" * 10_000 + "[" * 1_000)
    assert KEPT.decode("note.counted", 1, encode(long), EventMeta("note/1", 1)) == long


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, "1"),
        (True, "true"),
        (None, "None"),
        (1.5, "1.5"),
        (("a", "b"), "a,b"),
        (AT, AT.isoformat()[:-6] + "Z"),
    ],
)
def test_keys_that_are_the_same_in_json_are_refused(one: Any, other: Any) -> None:
    reason = f"has the keys {one!r} and {other!r}, which are the same in JSON"
    with pytest.raises(UnstorableValue) as caught:
        encode(Noted(note={"deep": [{one: 1, other: 2}]}))
    assert str(caught.value) == f"Noted: field note.deep[0] {reason}; nothing was written"
    with pytest.raises(UnstorableValue) as caught:
        reject_unstorable_metadata({"tags": {one: 1, other: 2}})
    assert str(caught.value) == f"metadata: field metadata.tags {reason}; nothing was written"


@pytest.mark.parametrize(
    ("annotation", "keys", "looked_at"),
    [
        (dict[str, int], ["1", "2"], False),
        (Mapping[int, list[int]], [1, 2], False),
        (dict[UUID, int], [UUID(int=1), UUID(int=2)], False),
        (dict[Instant, int], [AT, AT.replace(year=2027)], False),
        (dict[Literal["a", "b"], int], ["a", "b"], False),
        (dict[Annotated[str, Field(min_length=1)], int], ["a", "b"], False),
        (dict[int | str, int], [1, "1"], True),
        (list[dict[tuple[str, ...], int]], [("a,b",), ("a", "b")], True),
        (dict[Literal[1, "1"], int] | None, [1, "1"], True),
        (Mapping, [1, "1"], True),
    ],
)
def test_keys_are_looked_at_where_their_type_lets_two_be_the_same(
    annotation: Any, keys: list[Any], looked_at: bool
) -> None:
    namespace = {"__annotations__": {"by": annotation}, "__module__": __name__}
    made: type[Event] = type(Event)("Mapped", (Event,), namespace)
    assert made.open_fields is looked_at
    value: Any = dict.fromkeys(keys, [1] if annotation == Mapping[int, list[int]] else 1)
    event = made(by=[value] if str(annotation).startswith("list") else value)
    if looked_at:
        with pytest.raises(UnstorableValue, match="which are the same in JSON"):
            encode(event)
    else:
        encode(event)


def test_metadata_is_a_mapping() -> None:
    with pytest.raises(UnstorableValue, match="metadata: field metadata is a list; give a mapping"):
        reject_unstorable_metadata(["actor"])


def test_an_instant_of_an_offset_with_seconds_comes_back_as_the_same_instant() -> None:
    at = datetime(1930, 1, 1, 12, tzinfo=ZoneInfo("Europe/Amsterdam"))
    event = Timed(at=at, all=(at,))
    back = KEPT.decode("note.timed", 1, encode(event), EventMeta("note/1", 1))
    assert back == event == Timed(at=at.astimezone(UTC), all=(at,))
    with pytest.raises(UnstorableValue, match=r"field note\.at is a datetime whose offset has seconds"):
        encode(Noted(note={"at": at}))


@dataclasses.dataclass
class Plain:
    text: str


class Shade(enum.Enum):
    ODD = "e\x00"


class Sundry(Event, name="sundry.seen", registry=Registry()):
    plain: Plain | None = None
    raw: bytes = b""
    shade: Shade | None = None
    open: Any = None


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"plain": Plain("a\x00")}, r"plain\.text"),
        ({"raw": b"a\x00"}, "raw"),
        ({"shade": Shade.ODD}, "shade"),
        ({"open": deque(["\x00"])}, r"open\[0\]"),
        ({"open": Plain("a\x00")}, r"open\.text"),
    ],
)
def test_a_nul_is_refused_by_field_whatever_the_value_is_kept_in(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(UnstorableValue, match=rf"Sundry: field {field} contains a NUL character"):
        encode(Sundry(**fields))


def test_six_letters_that_look_like_a_nul_are_none_wherever_they_are() -> None:
    letters = "a\\u0000b"
    text = encode(Sundry(plain=Plain(letters), raw=letters.encode(), open=deque([letters])))
    assert text.count(r"a\\u0000b") == 3

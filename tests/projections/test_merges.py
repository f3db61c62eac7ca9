"""Merges: the three laws, and the way of their values through rows, events and tables."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from functools import reduce
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from onefold.domain.errors import DeclarationError
from onefold.domain.event import Event, encode
from onefold.domain.instant import Instant
from onefold.domain.registry import Registry
from onefold.infrastructure.postgres.columns import columns_of, register
from onefold.infrastructure.postgres.table import Table
from onefold.projections import merges
from onefold.projections.merges import Grown, Highest, LastBy, Lowest, Merge
from onefold.projections.projection import Projection
from onefold.projections.row import Row

KEPT = Registry()

# Equal values in two writings are among them.
amounts = st.sampled_from(
    [Decimal(text) for text in ("-1", "0", "0.0", "1", "1.0", "1.00", "1E1", "10", "9.99")]
)
zones = st.sampled_from([UTC, timezone(timedelta(hours=2)), timezone(timedelta(hours=-3))])
instants = st.builds(
    lambda hour, zone: datetime(2024, 5, 1, hour, tzinfo=UTC).astimezone(zone), st.integers(0, 2), zones
)
versions = st.integers(1, 3)


def grown(kind: type[Any], values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(lambda found: kind(values=found), st.frozensets(values, max_size=4))


MERGES: dict[str, st.SearchStrategy[Any]] = {
    "highest number": st.builds(Highest[int], value=st.none() | st.integers(-3, 3)),
    "highest amount": st.builds(Highest[Decimal], value=st.none() | amounts),
    "highest instant": st.builds(Highest[Instant], value=st.none() | instants),
    "highest text": st.builds(Highest[str], value=st.none() | st.text(max_size=2)),
    "lowest number": st.builds(Lowest[int], value=st.none() | st.integers(-3, 3)),
    "lowest amount": st.builds(Lowest[Decimal], value=st.none() | amounts),
    "lowest instant": st.builds(Lowest[Instant], value=st.none() | instants),
    "set of numbers": grown(Grown[int], st.integers(-3, 3)),
    "set of amounts": grown(Grown[Decimal], amounts),
    "set of instants": grown(Grown[Instant], instants),
    "set of texts": grown(Grown[str], st.text(max_size=2)),
    "last by number": st.one_of(
        st.just(LastBy[int, str]()),
        st.builds(LastBy[int, str], version=versions, value=st.none() | st.sampled_from("abc")),
    ),
    "last by instant": st.one_of(
        st.just(LastBy[Instant, Decimal]()),
        st.builds(LastBy[Instant, Decimal], version=instants, value=amounts),
    ),
    "last object": st.builds(
        LastBy[int, dict[str, int]],
        version=versions,
        value=st.dictionaries(st.sampled_from("ab"), st.integers(0, 1)),
    ),
}
laws = settings(max_examples=40, deadline=None)
every_merge = pytest.mark.parametrize("values", MERGES.values(), ids=MERGES.keys())


def same(one: Merge, other: Merge) -> bool:
    """Equal in value and to the byte."""
    return one == other and one.model_dump_json() == other.model_dump_json()


@every_merge
@laws
@given(data=st.data())
def test_the_order_of_two_does_not_matter(values: st.SearchStrategy[Any], data: st.DataObject) -> None:
    """C29: commutative."""
    one, other = data.draw(values), data.draw(values)
    assert same(one.merge(other), other.merge(one))


@every_merge
@laws
@given(data=st.data())
def test_the_grouping_of_three_does_not_matter(values: st.SearchStrategy[Any], data: st.DataObject) -> None:
    """C29: associative."""
    one, two, three = data.draw(values), data.draw(values), data.draw(values)
    assert same(one.merge(two).merge(three), one.merge(two.merge(three)))


@every_merge
@laws
@given(data=st.data())
def test_what_comes_twice_changes_nothing(values: st.SearchStrategy[Any], data: st.DataObject) -> None:
    """C29: idempotent, at once and later."""
    one, other = data.draw(values), data.draw(values)
    assert same(one.merge(one), one)
    assert same(one.merge(other).merge(one), one.merge(other))


@every_merge
@laws
@given(data=st.data())
def test_one_without_content_changes_nothing(values: st.SearchStrategy[Any], data: st.DataObject) -> None:
    one = data.draw(values)
    assert same(one.merge(type(one)()), one)
    assert same(type(one)().merge(one), one)


@every_merge
@laws
@given(data=st.data())
def test_what_is_written_as_json_is_read_again(values: st.SearchStrategy[Any], data: st.DataObject) -> None:
    one = data.draw(values)
    again = type(one).model_validate_json(one.model_dump_json())
    assert same(again, one)


@laws
@given(data=st.data(), arrived=st.lists(st.tuples(amounts, versions), min_size=1, max_size=6))
def test_any_order_with_any_repeats_ends_the_same(
    data: st.DataObject, arrived: list[tuple[Decimal, int]]
) -> None:
    """C29, C20: no order and no ledger is needed."""
    again = data.draw(st.permutations(arrived + data.draw(st.lists(st.sampled_from(arrived), max_size=4))))
    starts: list[tuple[Any, Callable[[Any, tuple[Decimal, int]], Any]]] = [
        (Highest[Decimal](), lambda sofar, each: sofar.add(each[0])),
        (Lowest[Decimal](), lambda sofar, each: sofar.add(each[0])),
        (Grown[Decimal](), lambda sofar, each: sofar.add(each[0])),
        (LastBy[int, Decimal](), lambda sofar, each: sofar.add(each[0], each[1])),
    ]
    for empty, add in starts:
        assert same(reduce(add, again, empty), reduce(add, arrived, empty))


def test_the_highest_and_the_lowest_are_kept() -> None:
    highest, lowest = Highest[int](), Lowest[int]()
    assert highest.value is lowest.value is None
    for value in (3, 9, 1, 9):
        highest, lowest = highest.add(value), lowest.add(value)
    assert (highest.value, lowest.value) == (9, 1)


def test_a_set_keeps_all_that_came() -> None:
    found = Grown[str]().add("b").add("a").add("b").merge(Grown[str](values=frozenset("c")))
    assert found.values == {"a", "b", "c"}


def test_the_value_of_the_highest_version_is_kept() -> None:
    """C26: v2, then late v1, stays v2."""
    found = LastBy[int, str]().add("paid", 1).add("shipped", version=3).add("packed", 2)
    assert (found.version, found.value) == (3, "shipped")


def test_of_two_values_with_one_version_always_the_same_is_kept() -> None:
    empty = LastBy[int, str]()
    assert empty.add("a", 1).add("b", 1).value == empty.add("b", 1).add("a", 1).value == "b"


def test_of_two_writings_of_one_value_always_the_same_is_kept() -> None:
    short, long = Decimal("1.0"), Decimal("1.00")
    for kind in (Highest[Decimal], Lowest[Decimal]):
        for first, second in ((short, long), (long, short)):
            assert str(kind().add(first).add(second).value) == "1.0"
    for first, second in ((short, long), (long, short)):
        assert str(*Grown[Decimal]().add(first).add(second).values) == "1.0"


def test_nothing_is_a_value_of_a_version_too() -> None:
    found = LastBy[int, str | None]().add("here", 1).add(None, 2).add("there", 1)
    assert (found.version, found.value) == (2, None)


def test_a_count_is_not_among_the_merges_and_the_page_says_why() -> None:
    """C29: a count is commutative and still not idempotent."""
    offered = {
        name for name, found in vars(merges).items() if isinstance(found, type) and issubclass(found, Merge)
    }
    assert offered == {"Merge", "Highest", "Lowest", "Grown", "LastBy"}
    assert merges.__doc__ is not None
    assert "A count and a sum are not among them" in merges.__doc__


def test_a_merge_is_frozen_and_takes_no_other_fields() -> None:
    found = Highest[int](value=1)
    with pytest.raises(ValidationError, match="frozen"):
        found.value = 2  # type: ignore[misc]
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        Highest[int](value=1, other=2)  # type: ignore[call-arg]
    assert hash(found) == hash(Highest[int](value=1))
    assert hash(Grown[str](values=frozenset("ab"))) == hash(Grown[str](values=frozenset("ba")))


def test_a_value_of_another_type_is_refused() -> None:
    with pytest.raises(ValidationError):
        Highest[int]().add("high")  # type: ignore[arg-type]
    with pytest.raises(ValidationError):
        LastBy[Instant, str]().add("a", datetime(2024, 5, 1))  # noqa: DTZ001
    for nan in (float("nan"), float("inf")):
        with pytest.raises(ValidationError):
            Highest[float]().add(nan)
    with pytest.raises(ValidationError, match="expected a version with the value, found none"):
        LastBy[int, str](value="a")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Highest[int](value=1), Highest[str](value="a")),
        (Highest[int](value=1), Lowest[int](value=1)),
        (Grown[int](), Grown[str]()),
        (LastBy[int, str](), LastBy[int, int]()),
    ],
)
def test_two_types_do_not_merge(one: Any, other: Any) -> None:
    with pytest.raises(TypeError, match=r"^expected (\w+\[.*\]), found (\w+\[.*\])$"):
        one.merge(other)


def test_values_without_an_order_are_refused_because_the_first_would_stay() -> None:
    one = Highest[frozenset[int]](value=frozenset({1}))
    with pytest.raises(
        TypeError, match=r"^expected values that have an order, found frozenset\(\{1\}\) and "
    ):
        one.add(frozenset({2}))


@pytest.mark.parametrize("kind", [Highest, Lowest, Grown, LastBy])
def test_a_merge_without_the_types_of_its_values_is_refused(kind: type[Any]) -> None:
    with pytest.raises(
        DeclarationError,
        match=rf"^expected {kind.__name__} with the types of its values, such as {kind.__name__}\[int\], found it",
    ):
        kind()


def test_a_set_is_written_in_the_same_order_in_every_process() -> None:
    """C28: two rebuilds are equal byte for byte, whatever the seed of Python's hashes."""
    program = (
        "from onefold.projections.merges import Grown\n"
        "print(Grown[str](values=frozenset('zebra-crossing')).model_dump_json())"
    )
    for seed in ("1", "2", "3"):
        made = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert made.stdout == '{"values":["-","a","b","c","e","g","i","n","o","r","s","z"]}\n'


def test_a_set_of_numbers_is_written_in_their_order_and_a_mixed_one_in_that_of_its_texts() -> None:
    assert Grown[int](values=frozenset({10, 9, -1})).model_dump_json() == '{"values":[-1,9,10]}'
    mixed = Grown[int | str](values=frozenset({"b", 10, "a", 9}))
    assert mixed.model_dump_json() == '{"values":["a","b",10,9]}'
    assert mixed.model_dump()["values"] == {"b", 10, "a", 9}


class Parcel(Row, key="parcel_id"):
    parcel_id: str
    places: Grown[str] = Grown[str]()
    days: Grown[date] = Grown[date]()
    numbers: Grown[UUID] | None = None
    heaviest: Highest[Decimal] = Highest[Decimal]()
    ratio: Highest[float] = Highest[float]()
    cheapest: Lowest[Decimal] = Lowest[Decimal]()
    seen: Highest[Instant] = Highest[Instant]()
    status: LastBy[int, str] = LastBy[int, str]()
    price: LastBy[Instant, Decimal] = LastBy[Instant, Decimal]()


AT = datetime(2024, 5, 1, 12, 30, 0, 1, tzinfo=UTC)


def test_the_fields_of_a_row_start_empty_and_are_changed_by_making_another() -> None:
    row = Parcel(parcel_id="p")
    changed = row.evolve(places=row.places.add("Recife"), status=row.status.add("sent", version=2))
    assert row == Parcel(parcel_id="p")
    assert changed.places.values == {"Recife"}
    assert changed.status == LastBy[int, str](version=2, value="sent")


def test_a_row_with_merges_comes_back_from_its_table_as_it_was(database_url: str) -> None:
    rows = [
        Parcel(parcel_id="empty"),
        Parcel(
            parcel_id="full",
            places=Grown[str](values=frozenset({"São Paulo", "Recife", 'a "b" \\'})),
            days=Grown[date](values=frozenset({date(2024, 2, 29), date.min})),
            numbers=Grown[UUID](values=frozenset({UUID(int=1), UUID(int=2**128 - 1)})),
            heaviest=Highest[Decimal](value=Decimal("12345678901234567890.1200")),
            ratio=Highest[float](value=0.1),
            cheapest=Lowest[Decimal](value=Decimal("-1E-7")),
            seen=Highest[Instant](value=AT),
            status=LastBy[int, str](version=2**62, value="sent"),
            price=LastBy[Instant, Decimal](version=AT, value=Decimal("24.90")),
        ),
    ]
    projection = Projection("parcels", Parcel)
    table = Table(projection)
    assert {column.sql_type for column in columns_of(Parcel)[1:]} == {"jsonb"}
    with psycopg.connect(database_url, autocommit=True) as connection:
        register(connection)
        table.create(connection)
        table.merge(connection, {(row.parcel_id,): (7, row) for row in rows})
        found = table.load(connection, [(row.parcel_id,) for row in rows])
    assert [found[row.parcel_id,] for row in rows] == [(7, row) for row in rows]
    (_, back) = found["full",]
    assert back.model_dump_json() == rows[1].model_dump_json()
    assert back.heaviest.add(Decimal(1)) == rows[1].heaviest
    assert back.price.add(Decimal(1), AT - timedelta(days=1)) == rows[1].price


def test_an_event_may_carry_merges() -> None:
    class Weighed(Event, name="parcel.weighed", registry=KEPT):
        heaviest: Highest[Decimal]
        places: Grown[str]
        status: LastBy[Instant, str]

    event = Weighed(
        heaviest=Highest[Decimal](value=Decimal("1.50")),
        places=Grown[str](values=frozenset("ba")),
        status=LastBy[Instant, str](version=AT, value="sent"),
    )
    text = encode(event)
    assert text == (
        '{"heaviest":{"value":"1.50"},"places":{"values":["a","b"]},'
        '"status":{"version":"2024-05-01T12:30:00.000001Z","value":"sent"}}'
    )
    assert not Weighed.open_fields
    decode = KEPT.decoder("parcel.weighed", 1)
    assert decode is not None
    assert decode(text) == event


def test_an_event_refuses_a_merge_of_instants_without_a_zone() -> None:
    with pytest.raises(DeclarationError, match="is a plain datetime; declare it as Instant"):

        class Wrong(Event, name="parcel.wrong", registry=KEPT):
            seen: Highest[datetime]


def test_a_nul_in_a_merge_is_refused_by_the_event_that_carries_it() -> None:
    class Labelled(Event, name="parcel.labelled", registry=KEPT):
        labels: Grown[str]

    with pytest.raises(ValueError, match=r"labels.*contains a NUL character"):
        encode(Labelled(labels=Grown[str](values=frozenset({"a\x00"}))))

"""Tables of read models: every type of column comes back as it was written, set by set."""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID, uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import AwareDatetime, BaseModel, Field, FutureDate, PastDatetime, PositiveInt

from onefold.domain.money import Money
from onefold.infrastructure.postgres import columns
from onefold.infrastructure.postgres.columns import columns_of, register
from onefold.infrastructure.postgres.table import Table
from onefold.projections.projection import Projection
from onefold.projections.row import Row

NIL = UUID(int=0)


class Colour(enum.Enum):
    RED = "red"
    GREEN = "grün"


class Size(enum.StrEnum):
    SMALL = "s"
    LARGE = "l"


class Rank(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Step(enum.Enum):
    FIRST = 1
    LAST = 9


class Address(BaseModel):
    street: str
    number: int | None = None


class Everything(Row, key="id"):
    id: int
    text: str | None = None
    flag: bool | None = None
    number: int | None = None
    ratio: float | None = None
    amount: Decimal | None = None
    day: date | None = None
    at: AwareDatetime | None = None
    instant: datetime | None = None
    uid: UUID | None = None
    colour: Colour | None = None
    size: Size | None = None
    rank: Rank | None = None
    step: Step | None = None
    mood: Literal["good", "bad"] | None = None
    level: Literal[1, 2] | None = None
    address: Address | None = None
    money: Money | None = None
    tags: tuple[str, ...] | None = None
    sums: dict[str, Decimal] | None = None
    mixed: str | int | None = None


def projection_of(row: type[Row], name: str = "rows") -> Projection[Any]:
    return Projection(name, row, key=lambda event: event)


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True, options="-c timezone=UTC") as opened:
        register(opened)
        yield opened


def stored(connection: psycopg.Connection[Any], *rows: Row) -> list[Row]:
    """What the table gives back for these rows, in their order."""
    table = Table(projection_of(type(rows[0])))
    table.create(connection)
    changes = {tuple(getattr(row, name) for name in row.key_fields): (7, row) for row in rows}
    table.merge(connection, changes)
    found = table.load(connection, list(changes))
    assert [found[key][0] for key in changes] == [7] * len(rows)
    assert sorted(map(repr, table.all(connection))) == sorted(repr(row) for _, row in found.values())
    return [found[key][1] for key in changes]


def test_each_kind_of_field_has_its_column() -> None:
    class Constrained(Row, key="name"):
        name: Annotated[str, Field(max_length=9)]
        count: PositiveInt
        maybe: Annotated[Decimal, Field(ge=0)] | None
        seen: PastDatetime | None
        due: FutureDate

    assert [(column.name, column.sql_type) for column in columns_of(Everything)] == [
        ("id", "bigint"),
        ("text", "text"),
        ("flag", "boolean"),
        ("number", "bigint"),
        ("ratio", "double precision"),
        ("amount", "numeric"),
        ("day", "date"),
        ("at", "timestamptz"),
        ("instant", "timestamptz"),
        ("uid", "uuid"),
        ("colour", "text"),
        ("size", "text"),
        ("rank", "jsonb"),
        ("step", "jsonb"),
        ("mood", "text"),
        ("level", "jsonb"),
        ("address", "jsonb"),
        ("money", "jsonb"),
        ("tags", "jsonb"),
        ("sums", "jsonb"),
        ("mixed", "jsonb"),
    ]
    assert [column.sql_type for column in columns_of(Constrained)] == [
        "text",
        "bigint",
        "numeric",
        "timestamptz",
        "date",
    ]


def test_every_type_comes_back_as_it_was_with_none_and_at_its_extremes(
    connection: psycopg.Connection[Any],
) -> None:
    rows = [
        Everything(id=1),
        Everything(
            id=2,
            text="Ünïcode \U0001f600 'quoted' \\ {a,b} \n\t",
            flag=True,
            number=2**63 - 1,
            ratio=math.inf,
            amount=Decimal("12345678901234567890.1234567890123456789"),
            day=date.max,
            at=datetime.max.replace(tzinfo=UTC),
            instant=datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=timezone(timedelta(hours=-3))),
            uid=UUID(int=2**128 - 1),
            colour=Colour.GREEN,
            size=Size.LARGE,
            rank=Rank.HIGH,
            step=Step.LAST,
            mood="bad",
            level=2,
            address=Address(street="Rua 'A'", number=2**40),
            money=Money.of("24.90", "BRL"),
            tags=("a", "", 'b"c'),
            sums={"EUR": Decimal("0.10"), "ü": Decimal("-1E+3")},
            mixed=5,
        ),
        Everything(
            id=-(2**63),
            text="",
            flag=False,
            number=-(2**63),
            ratio=-0.0,
            amount=Decimal("-1E-7"),
            day=date.min,
            at=datetime.min.replace(tzinfo=UTC),
            instant=datetime(1999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
            uid=NIL,
            tags=(),
            sums={},
            mixed="5",
        ),
        Everything(id=2**63 - 1, ratio=5e-324, amount=Decimal(0), number=0, text="x" * 100_000),
        Everything(id=0, ratio=1.7976931348623157e308, amount=Decimal("1E+30"), text="null", mixed="null"),
    ]
    assert stored(connection, *rows) == rows


def test_not_a_number_comes_back_as_such(connection: psycopg.Connection[Any]) -> None:
    row = Everything.model_construct(id=1).evolve(ratio=math.nan, amount=Decimal("NaN"))
    (found,) = stored(connection, row)
    assert math.isnan(found.ratio)  # type: ignore[attr-defined]
    assert found.amount.is_nan()  # type: ignore[attr-defined]


def test_the_scale_of_a_decimal_is_kept_where_it_is_written_without_exponent(
    connection: psycopg.Connection[Any],
) -> None:
    amounts = ["24.90", "0.10", "1", "-0.000", "1E-7", "12345678901234567916.0200001"]
    rows = [Everything(id=number, amount=Decimal(text)) for number, text in enumerate(amounts)]
    found = stored(connection, *rows)
    assert [str(row.amount) for row in found] == [  # type: ignore[attr-defined]
        "24.90",
        "0.10",
        "1",
        "0.000",
        "1E-7",
        "12345678901234567916.0200001",
    ]


texts = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=80)
instants = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=45))])).filter(
    lambda at: 2 < at.year < 9998
)
decimals = st.decimals(allow_nan=False, allow_infinity=False, places=9) | st.decimals(
    allow_nan=False, allow_infinity=False, min_value=-(10**30), max_value=10**30
)
everything = st.builds(
    Everything,
    id=st.integers(-(2**63), 2**63 - 1),
    text=st.none() | texts,
    flag=st.none() | st.booleans(),
    number=st.none() | st.integers(-(2**63), 2**63 - 1),
    ratio=st.none() | st.floats(allow_nan=False),
    amount=st.none() | decimals,
    day=st.none() | st.dates(),
    at=st.none() | instants,
    instant=st.none() | instants,
    uid=st.none() | st.uuids(),
    colour=st.none() | st.sampled_from(Colour),
    size=st.none() | st.sampled_from(Size),
    rank=st.none() | st.sampled_from(Rank),
    step=st.none() | st.sampled_from(Step),
    mood=st.none() | st.sampled_from(["good", "bad"]),
    level=st.none() | st.sampled_from([1, 2]),
    address=st.none() | st.builds(Address, street=texts, number=st.none() | st.integers(-(2**60), 2**60)),
    tags=st.none() | st.lists(texts, max_size=3).map(tuple),
    sums=st.none() | st.dictionaries(texts, decimals, max_size=3),
    mixed=st.none() | texts | st.integers(0, 99),
)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(rows=st.lists(everything, min_size=1, max_size=12, unique_by=lambda row: row.id))
def test_whatever_fits_the_model_comes_back_equal(
    connection: psycopg.Connection[Any], rows: list[Everything]
) -> None:
    assert stored(connection, *rows) == rows


class Pair(Row, key="left,right,day"):
    note: str = ""
    right: int
    day: date
    left: str


def test_a_key_of_several_columns_finds_its_own_row_alone(connection: psycopg.Connection[Any]) -> None:
    days = [date(2024, 1, 1), date(2024, 1, 2)]
    rows = [
        Pair(left=left, right=right, day=day, note=f"{left}{right}{day}")
        for left, right, day in itertools.product(["a", "b", "A"], [1, 2], days)
    ]
    assert stored(connection, *rows) == rows
    table = Table(projection_of(Pair))
    found = table.load(connection, [("a", 1, days[1]), ("b", 2, days[0]), ("a", 3, days[0])])
    assert {key: row.note for key, (_, row) in found.items()} == {
        ("a", 1, days[1]): "a12024-01-02",
        ("b", 2, days[0]): "b22024-01-01",
    }


class ByColour(Row, key="colour, at"):
    colour: Colour
    at: AwareDatetime
    count: int = 0


def test_a_row_is_found_by_the_very_key_it_was_written_with(connection: psycopg.Connection[Any]) -> None:
    """An enum or an instant of another zone is stored as text or in UTC, and must still be the same key."""
    there = timezone(timedelta(hours=2))
    keys = [
        (Colour.RED, datetime(2024, 1, 1, tzinfo=UTC)),
        (Colour.GREEN, datetime(2024, 1, 1, 2, tzinfo=there)),
        (Colour.GREEN, datetime(2024, 1, 1, 3, tzinfo=there)),
    ]
    table = Table(projection_of(ByColour))
    table.create(connection)
    rows = {key: (1, ByColour(colour=key[0], at=key[1], count=n)) for n, key in enumerate(keys)}
    table.merge(connection, rows)
    assert table.load(connection, keys) == rows
    table.merge(connection, {keys[1]: (2, None)})
    assert table.load(connection, keys) == {keys[0]: rows[keys[0]], keys[2]: rows[keys[2]]}


class Short(Row, key="name"):
    name: str
    count: int = 0


def test_a_merge_inserts_updates_and_removes_in_one_statement(connection: psycopg.Connection[Any]) -> None:
    table = Table(projection_of(Short))
    table.create(connection)
    table.merge(connection, {("a",): (1, Short(name="a")), ("b",): (2, Short(name="b"))})
    table.merge(
        connection,
        {
            ("a",): (3, None),
            ("b",): (4, Short(name="b", count=5)),
            ("c",): (5, Short(name="c", count=6)),
            ("never there",): (6, None),
        },
    )
    assert table.all(connection) == [Short(name="b", count=5), Short(name="c", count=6)]
    found = table.load(connection, [("a",), ("b",), ("c",), ("never there",)])
    assert found == {("b",): (4, Short(name="b", count=5)), ("c",): (5, Short(name="c", count=6))}
    table.merge(connection, {("b",): (7, None), ("c",): (8, None)})
    assert table.all(connection) == []


def test_a_row_whose_only_fields_are_its_key_can_be_written_twice(
    connection: psycopg.Connection[Any],
) -> None:
    class Seen(Row, key="name"):
        name: str

    table = Table(projection_of(Seen))
    table.create(connection)
    for position in (1, 2):
        table.merge(connection, {("a",): (position, Seen(name="a"))})
    assert table.load(connection, [("a",)]) == {("a",): (2, Seen(name="a"))}


def test_names_that_sql_knows_are_names_of_columns_too(connection: psycopg.Connection[Any]) -> None:
    class Awkward(Row, key="select"):
        select: str
        order: int = 0
        Table: str = ""
        group: bool = False

    row = Awkward(select="a", order=1, Table="x", group=True)
    assert stored(connection, row) == [row]


def test_a_field_with_an_alias_is_kept_under_its_own_name(connection: psycopg.Connection[Any]) -> None:
    class Inner(BaseModel):
        street: str = Field(alias="s")

    class Aliased(Row, key="name"):
        name: str = Field(alias="n")
        inner: Inner | None = Field(default=None, alias="i")

    row = Aliased(n="a", i=Inner(s="Rua A"))
    assert [column.name for column in columns_of(Aliased)] == ["name", "inner"]
    assert stored(connection, row) == [row]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("text", 5, "field text does not fit text: expected str, found int 5"),
        ("text", "a\ud800", "field text does not fit text: .*surrogates not allowed"),
        ("flag", 1, "field flag does not fit boolean: expected bool, found int 1"),
        ("number", True, "field number does not fit bigint: expected int, found bool True"),
        ("number", 2**63, "field number does not fit bigint: "),
        ("number", -(2**63) - 1, "field number does not fit bigint: "),
        ("ratio", 1, "field ratio does not fit double precision: expected float, found int 1"),
        ("amount", 1.5, "field amount does not fit numeric: expected Decimal, found float 1.5"),
        (
            "day",
            datetime(2024, 1, 1, tzinfo=UTC),
            "field day does not fit date: expected date, found datetime",
        ),
        ("at", date(2024, 1, 1), "field at does not fit timestamptz: expected datetime, found date"),
        ("at", datetime(2024, 1, 1), "field at does not fit timestamptz: .*without a zone"),  # noqa: DTZ001
        (
            "instant",
            datetime.min.replace(tzinfo=timezone(timedelta(hours=1))),
            "field instant does not fit timestamptz: expected an instant of the years 1 to 9999 in UTC",
        ),
        ("uid", "not a uuid", "field uid does not fit uuid: expected UUID, found str"),
        ("colour", "red", "field colour does not fit text: expected Colour, found str 'red'"),
        ("address", object(), "field address does not fit jsonb: "),
    ],
)
def test_a_value_that_does_not_fit_is_refused_naming_row_and_field(
    connection: psycopg.Connection[Any], field: str, value: Any, message: str
) -> None:
    table = Table(projection_of(Everything))
    table.create(connection)
    rows = {
        (number,): (number, Everything(id=number, **({"text": "x"} if number == 2 else {})))
        for number in range(4)
    }
    rows[3,] = (3, Everything(id=3).evolve(**{field: value}))
    with pytest.raises(ValueError, match=f"row 3: {message}"):
        table.merge(connection, rows)
    assert table.all(connection) == []


def test_a_fold_that_gives_a_row_of_another_key_is_refused(connection: psycopg.Connection[Any]) -> None:
    """Such a row would be written under one key and looked for under another."""
    table = Table(projection_of(Short))
    table.create(connection)
    with pytest.raises(ValueError, match="row a: expected a row with this key, found one with the key b"):
        table.merge(connection, {("b",): (1, Short(name="b")), ("a",): (2, Short(name="b"))})
    assert table.all(connection) == []


def test_a_key_that_does_not_fit_its_column_is_refused_on_loading(
    connection: psycopg.Connection[Any],
) -> None:
    table = Table(projection_of(Everything))
    table.create(connection)
    with pytest.raises(ValueError, match="row 7: field id does not fit bigint: expected int, found str '7'"):
        table.load(connection, [(1,), ("7",)])


def test_making_a_table_again_drops_the_old_one(connection: psycopg.Connection[Any]) -> None:
    stored(connection, Short(name="a"))
    other = Table(projection_of(Pair))
    other.create(connection)
    assert other.all(connection) == []


def memo(encode: Callable[[Any], bytes]) -> columns._Memo:
    made = columns._Memo(encode)
    made.LIMIT = 10  # type: ignore[misc]
    return made


def test_remembered_elements_stay_right_while_threads_empty_the_memory() -> None:
    known = memo(str.encode)
    words = [f"{number:03}" for number in range(50)] + [None]

    def look_up(_: int) -> bool:
        return all(
            known[word] == (b"\xff\xff\xff\xff" if word is None else b"\0\0\0\3" + word.encode())
            for _ in range(40)
            for word in words
        )

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(look_up, range(4)))
    known.clear()
    assert known[None] == b"\xff\xff\xff\xff"


def test_long_texts_are_not_remembered() -> None:
    known = memo(str.encode)
    long = "x" * 1_000_000
    assert known[long].endswith(long.encode())
    assert long not in known


def test_a_uuid_key_is_found_again(connection: psycopg.Connection[Any]) -> None:
    class ByUid(Row, key="uid"):
        uid: UUID
        count: int = 0

    row = ByUid(uid=uuid4(), count=1)
    assert stored(connection, row) == [row]

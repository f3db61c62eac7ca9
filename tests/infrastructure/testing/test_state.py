"""What is seen of a database, and how two states differ."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import psycopg
import pytest

from onefold.infrastructure.testing.state import EFFECTS, LOG, OURS, OUTBOX, Sight, State, differences

Connection = psycopg.Connection[Any]


@pytest.fixture
def shop(onefold_database: str) -> Any:
    with psycopg.connect(onefold_database, autocommit=True) as connection:
        connection.execute(
            """
            CREATE SCHEMA shop;
            CREATE TABLE shop.drawn (
                id bigserial, number integer GENERATED ALWAYS AS IDENTITY, made_at timestamptz DEFAULT now(),
                changed_at timestamptz DEFAULT clock_timestamp(), day date DEFAULT CURRENT_DATE,
                token uuid DEFAULT gen_random_uuid(), kind text DEFAULT 'none', double integer
                    GENERATED ALWAYS AS (2 * size) STORED, size integer
            );
            CREATE TABLE shop.parts (n integer) PARTITION BY RANGE (n);
            CREATE TABLE shop.parts_1 PARTITION OF shop.parts FOR VALUES FROM (0) TO (9);
            INSERT INTO shop.drawn (size) VALUES (3), (3);
            INSERT INTO shop.parts VALUES (1);
            """
        )
        yield connection


def test_all_tables_are_seen_without_what_the_database_fills_by_itself(shop: Connection) -> None:
    found = Sight().state(shop).tables
    assert found == {
        "table shop.drawn": [{"kind": "none", "double": 6, "size": 3}] * 2,
        "table shop.parts": [{"n": 1}],
        LOG: [],
        OUTBOX: [],
        EFFECTS: [],
    }


def test_columns_and_tables_may_be_chosen(shop: Connection) -> None:
    sight = Sight(tables=["shop.drawn"], ignored=frozenset({"double", "size", "kind"}))
    assert sight.state(shop) == State({"table shop.drawn": [{}, {}]})
    assert Sight(lambda connection: 1).state(shop) == State(own=1)
    assert Sight(lambda connection: 1, ["shop.parts"]).state(shop) == State(
        {"table shop.parts": [{"n": 1}]}, 1
    )


def test_the_tables_of_the_product_are_those_that_are_left_out(shop: Connection) -> None:
    query = (
        "SELECT relname FROM pg_class WHERE relnamespace = 'onefold'::regnamespace AND relkind IN ('r', 'p') "
        "AND NOT relispartition ORDER BY relname"
    )
    assert [name for (name,) in shop.execute(query)] == sorted(OURS)


def test_equal_states_do_not_differ() -> None:
    one = State({"t": [{"n": Decimal("24.9"), "s": [1]}, {"n": None, "s": []}]}, {"a": 1})
    other = State({"t": [{"n": None, "s": []}, {"n": Decimal("24.90"), "s": [1]}]}, {"a": 1})
    assert differences(one, other) == []
    assert differences(State(), State()) == []


def test_rows_that_are_missing_or_too_many_are_told() -> None:
    expected = State({"t": [{"a": "x"}, {"a": "x"}], "u": [{"a": 1}]})
    found = State({"t": [{"a": "x"}], "v": [{"a": "two words", "b": None}]})
    assert differences(expected, found) == [
        "t",
        "  expected  a=x",
        "  and no such row was found",
        "u",
        "  expected  a=1",
        "  and no such row was found",
        "v",
        "  found     a='two words'",
        "  where nothing more was expected",
    ]


def test_many_differences_are_cut_short() -> None:
    found = differences(State(), State({"t": [{"n": n, "text": "x" * 1_000} for n in range(9)]}))
    assert found[-2] == "  … and 4 more"
    assert max(map(len, found)) < 330


@pytest.mark.parametrize(
    ("expected", "found", "lines"),
    [
        (1, 2, ["state", "  expected  1", "  found     2"]),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, ["state of 'b'", "  expected  2", "  found     3"]),
        ({"a": 1}, {}, ["state of 'a'", "  expected  1", "  found     nothing"]),
        ({}, {"a": None}, ["state of 'a'", "  expected  nothing", "  found     None"]),
    ],
)
def test_states_of_the_users_own_are_compared(expected: Any, found: Any, lines: list[str]) -> None:
    assert differences(State(own=expected), State(own=found)) == lines

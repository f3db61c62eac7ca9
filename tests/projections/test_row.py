"""Rows: frozen models whose fields are columns, changed by making another."""

from __future__ import annotations

import copy
import pickle
from decimal import Decimal
from functools import cached_property

import pytest
from pydantic import ValidationError

from onefold.domain.errors import DeclarationError
from onefold.projections.row import Row


class Balance(Row, key="account_id"):
    account_id: str
    balance: Decimal = Decimal(0)
    note: str | None = None


class Place(Row, key="country, city"):
    city: str
    country: str
    people: int = 0


def test_the_key_is_one_field_or_several_in_the_order_they_are_named() -> None:
    assert Balance.key_fields == ("account_id",)
    assert Place.key_fields == ("country", "city")


def test_a_row_that_inherits_keeps_the_key() -> None:
    class Richer(Balance):
        interest: Decimal = Decimal(0)

    assert Richer.key_fields == ("account_id",)
    assert list(Richer.model_fields) == ["account_id", "balance", "note", "interest"]


def test_a_row_without_a_key_may_be_declared_as_a_base_of_others() -> None:
    class Common(Row):
        version: int = 0

    class Special(Common, key="name"):
        name: str

    assert Common.key_fields == ()
    assert Special.key_fields == ("name",)


def test_a_key_that_is_no_field_is_refused_by_name() -> None:
    with pytest.raises(DeclarationError, match="Wrong: key field 'id' is not a field of the row"):

        class Wrong(Row, key="name,id"):
            name: str


@pytest.mark.filterwarnings("ignore:Field name .* shadows an attribute:UserWarning")
@pytest.mark.parametrize("name", ["key_fields", "evolve"])
def test_a_field_whose_name_rows_use_themselves_is_refused(name: str) -> None:
    with pytest.raises(DeclarationError, match=f"Wrong: field '{name}' has a name that Row uses; rename it"):
        type(Row)("Wrong", (Row,), {"__annotations__": {name: str}, "__module__": __name__})


def test_a_private_attribute_is_refused_because_no_table_keeps_it() -> None:
    with pytest.raises(DeclarationError, match="Wrong: '_seen' would not be kept in the table"):

        class Wrong(Row, key="name"):
            name: str
            _seen: int = 0


def test_a_cached_property_is_refused_because_its_value_would_stay_behind() -> None:
    """`evolve` would carry the value of the old row over to the new one."""
    with pytest.raises(DeclarationError, match="Wrong: 'doubled' is a cached property; make it a property"):

        class Wrong(Row, key="name"):
            name: str
            amount: int = 0

            @cached_property
            def doubled(self) -> int:
                return self.amount * 2


def test_evolve_changes_the_named_fields_and_leaves_the_row_as_it_was() -> None:
    row = Balance(account_id="a", balance=Decimal("1.50"))
    changed = row.evolve(balance=Decimal("2.50"), note="paid")
    assert changed == Balance(account_id="a", balance=Decimal("2.50"), note="paid")
    assert row == Balance(account_id="a", balance=Decimal("1.50"))
    assert type(changed) is Balance
    assert list(changed.__dict__) == ["account_id", "balance", "note"]
    assert changed.model_dump() == {"account_id": "a", "balance": Decimal("2.50"), "note": "paid"}
    assert hash(changed) == hash(Balance(account_id="a", balance=Decimal("2.50"), note="paid"))


def test_evolve_without_changes_gives_an_equal_row() -> None:
    row = Balance(account_id="a")
    assert row.evolve() == row
    assert row.evolve() is not row


@pytest.mark.parametrize("names", [("colour",), ("balance", "colour"), ("size", "colour")])
def test_evolve_refuses_a_name_that_is_no_field(names: tuple[str, ...]) -> None:
    with pytest.raises(TypeError, match="Balance has no field 'colour'"):
        Balance(account_id="a").evolve(**dict.fromkeys(names))


def test_a_row_is_frozen_and_refuses_fields_that_it_does_not_have() -> None:
    row = Balance(account_id="a")
    with pytest.raises(ValidationError, match="frozen"):
        row.balance = Decimal(1)  # type: ignore[misc]
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        Balance(account_id="a", colour="red")  # type: ignore[call-arg]


def test_an_evolved_row_does_everything_that_a_row_does() -> None:
    made = Place(city="Recife", country="BR", people=7)
    row = Place(city="Recife", country="BR").evolve(people=7)
    assert repr(row) == repr(made) == "Place(city='Recife', country='BR', people=7)"
    assert row.model_dump() == made.model_dump()
    assert row.model_dump_json() == made.model_dump_json()
    assert row.model_dump(exclude_unset=True) == {"city": "Recife", "country": "BR", "people": 7}
    assert row.model_fields_set == {"city", "country", "people"}
    assert row.model_extra is None
    assert row.model_copy(update={"people": 8}).people == 8
    assert copy.copy(row) == copy.deepcopy(row) == pickle.loads(pickle.dumps(row)) == made
    assert row.evolve(people=8).evolve(people=7) == made
    assert {row, made} == {made}
    with pytest.raises(AttributeError, match="Place has no field 'colour'"):
        row.colour  # noqa: B018
    assert not hasattr(row, "colour")


@pytest.mark.parametrize("name", ["tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"])
def test_a_field_with_the_name_of_a_system_column_is_refused(name: str) -> None:
    with pytest.raises(DeclarationError, match=f"Wrong: field '{name}' has the name of a column that every"):
        type(Row)("Wrong", (Row,), {"__annotations__": {name: str}, "__module__": __name__})


@pytest.mark.parametrize(
    ("one", "other"),
    [("a" * 63 + "b", "a" * 63 + "c"), ("a" * 63, "a" * 64), ("a" * 62 + "é", "a" * 62 + "ü")],
)
def test_fields_that_postgresql_keeps_under_one_name_are_refused(one: str, other: str) -> None:
    names = {"__annotations__": {one: str, other: str}, "__module__": __name__}
    with pytest.raises(DeclarationError, match=f"Wrong: fields '{one}' and '{other}' are one column"):
        type(Row)("Wrong", (Row,), names)


def test_names_that_differ_in_their_first_63_bytes_are_kept() -> None:
    names = {"__annotations__": {"a" * 62 + "b": str, "a" * 62 + "c": str}, "__module__": __name__}
    assert len(type(Row)("Long", (Row,), names).model_fields) == 2

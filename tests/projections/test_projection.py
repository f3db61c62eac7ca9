"""Projections: how they are declared, and what their folds give in memory."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from onefold import projection as shared_projection
from onefold.domain.errors import DeclarationError
from onefold.domain.event import Event, EventMeta
from onefold.domain.registry import Registry
from onefold.projections.app import App, UnknownProjection
from onefold.projections.policies import Retry, Stop
from onefold.projections.projection import (
    BaseProjection,
    Handler,
    Projection,
    ProjectionKeyError,
    SqlProjection,
)
from onefold.projections.row import Row

events = Registry()


class Put(Event, name="stock.put", registry=events):
    amount: int = 1


class Taken(Event, name="stock.taken", registry=events):
    amount: int = 1


class Counted(Event, name="stock.counted", registry=events):
    amount: int = 0


class Stock(Row, key="item"):
    item: str
    amount: int = 0


class Shelf(Row, key="house,shelf"):
    house: str
    shelf: int
    amount: int = 0


def stock() -> Projection[Stock]:
    made = Projection("stock", Stock, registry=events)

    @made.on(Put)
    def put(row: Stock | None, event: Put) -> Stock:
        known = row or Stock(item=event.meta.key)
        return known.evolve(amount=known.amount + event.amount)

    @made.on(Taken)
    def taken(row: Stock | None, event: Taken) -> Stock | None:
        known = row or Stock(item=event.meta.key)
        left = known.amount - event.amount
        return known.evolve(amount=left) if left else None

    return made


def in_stream(stream: str, *facts: Event) -> list[Event]:
    return [fact.bound(EventMeta(stream, version)) for version, fact in enumerate(facts, 1)]


@pytest.mark.parametrize("name", ["", "Stock", "1st", "a-b", "a b", 'a"b', "ä", "a" * 42, "a\n", "_a"])
@pytest.mark.parametrize(
    "make",
    [
        lambda name: Projection(name, Stock),
        lambda name: SqlProjection(name, tables=(), create="", statements=()),
        lambda name: Handler(name),
    ],
)
def test_a_name_that_is_not_plain_is_refused(make: Callable[[str], BaseProjection], name: str) -> None:
    with pytest.raises(DeclarationError, match="must be lower-case letters, digits and underscores"):
        make(name)


def test_a_name_may_have_41_letters() -> None:
    assert Handler("a" * 41).name == "a" * 41


@pytest.mark.parametrize("lease", [0, -1.0])
def test_a_lease_that_is_over_at_once_is_refused(lease: float) -> None:
    with pytest.raises(
        DeclarationError, match=f"projection stock: lease must be more than 0 seconds, found {lease}"
    ):
        Projection("stock", Stock, lease=lease)


def test_a_row_without_a_key_is_refused() -> None:
    class Nameless(Row):
        amount: int

    with pytest.raises(DeclarationError, match="projection stock: Nameless has no key"):
        Projection("stock", Nameless)


def test_a_key_of_several_fields_needs_to_be_derived_from_the_event() -> None:
    with pytest.raises(DeclarationError, match="projection shelves: a key of several fields needs key="):
        Projection("shelves", Shelf)


def test_on_needs_an_event_class() -> None:
    with pytest.raises(DeclarationError, match="needs at least one event class"):
        Projection("stock", Stock).on()


def test_a_second_fold_of_an_event_class_is_refused() -> None:
    made = stock()
    with pytest.raises(DeclarationError, match="projection stock: a second fold of Put"):
        made.on(Counted, Put)(lambda row, _: row)


def test_a_second_handler_of_an_event_class_is_refused() -> None:
    made = Handler("mail")
    made.on(Put, Taken)(lambda *_: None)
    with pytest.raises(DeclarationError, match="projection mail: a second handler of Taken"):
        made.on(Taken)(lambda *_: None)


def test_a_coroutine_function_is_no_handler() -> None:
    async def later(event: Put, connection: object) -> None: ...

    with pytest.raises(DeclarationError, match="projection mail: a handler must be a plain function"):
        Handler("mail").on(Put)(later)  # type: ignore[arg-type]


def test_a_coroutine_function_is_no_fold() -> None:
    async def later(row: Stock | None, event: Put) -> Stock | None: ...

    with pytest.raises(DeclarationError, match="projection stock: a fold must be a plain function"):
        Projection("stock", Stock).on(Put)(later)  # type: ignore[arg-type]


def test_a_projection_stops_at_a_failure_unless_it_says_otherwise() -> None:
    assert Projection("stock", Stock).on_failure == Stop()
    assert Handler("mail", on_failure=Retry(3)).on_failure == Retry(3)
    assert SqlProjection("sums", tables=(), create="", statements=()).on_failure == Stop()


def test_folding_in_memory_gives_the_rows_by_key() -> None:
    facts = [
        *in_stream("stock/nail", Put(amount=5), Taken(amount=2), Counted(amount=9)),
        *in_stream("stock/screw", Put(amount=1)),
    ]
    assert stock().fold(facts) == {
        ("nail",): Stock(item="nail", amount=3),
        ("screw",): Stock(item="screw", amount=1),
    }


def test_a_fold_that_returns_none_removes_the_row_and_may_make_it_again() -> None:
    facts = in_stream("stock/nail", Put(amount=2), Taken(amount=2))
    assert stock().fold(facts) == {}
    again = [*facts, *in_stream("stock/nail", Put(amount=7))]
    assert stock().fold(again) == {("nail",): Stock(item="nail", amount=7)}


def test_a_key_is_a_value_a_tuple_or_none_for_no_row() -> None:
    def place(event: Put) -> tuple[str, int] | None:
        return None if event.amount > 9 else (event.meta.key, event.amount)

    made = Projection("shelves", Shelf, key=place, registry=events)

    @made.on(Put)
    def put(row: Shelf | None, event: Put) -> Shelf:
        known = row or Shelf(house=event.meta.key, shelf=event.amount)
        return known.evolve(amount=known.amount + 1)

    facts = in_stream("stock/a", *(Put(amount=amount) for amount in (1, 2, 1, 10)))
    assert made.fold(facts) == {
        ("a", 1): Shelf(house="a", shelf=1, amount=2),
        ("a", 2): Shelf(house="a", shelf=2, amount=1),
    }
    by_amount = Projection("by_amount", Stock, key=lambda event: str(event.amount), registry=events)
    assert by_amount.key_of(facts[1]) == ("2",)


def test_a_projection_reads_every_name_that_is_upcast_to_its_events() -> None:
    registry = Registry()

    class Submitted(Event, name="order.submitted", version=3, registry=registry):
        given: str

    @registry.upcast("order.created", 1, to="order.placed")
    def first(data: dict[str, Any]) -> dict[str, Any]:
        return data

    @registry.upcast("order.placed", 1, to="order.submitted", to_version=3)
    def second(data: dict[str, Any]) -> dict[str, Any]:
        return data

    made = Projection("stock", Stock, registry=registry)
    made.on(Submitted)(lambda row, _: row)
    assert made.types() == {"order.submitted", "order.placed", "order.created"}
    assert made.event_classes() == {Submitted}
    mail = Handler("mail", registry=registry)
    mail.on(Submitted)(lambda *_: None)
    assert mail.types() == {"order.submitted", "order.placed", "order.created"}


def test_an_sql_projection_reads_every_event_unless_it_names_some() -> None:
    assert SqlProjection("sums", tables=(), create="", statements=()).types() is None
    made = SqlProjection("sums", tables=(), create="", statements=(), events=[Put])
    assert made.event_classes() == {Put}


def test_the_fingerprint_follows_the_row_s_shape_the_key_the_log_and_the_version() -> None:
    class WithNote(Row, key="item"):
        item: str
        amount: int = 0
        note: str = ""

    class ByAmount(Row, key="amount"):
        item: str
        amount: int = 0

    same = Projection("stock", Stock).fingerprint()
    assert Projection("stock", Stock, lease=9.0, on_failure=Retry()).fingerprint() == same
    others = {
        Projection("stock", Stock, version=2).fingerprint(),
        Projection("stock", Stock, log="other").fingerprint(),
        Projection("stock", WithNote).fingerprint(),
        Projection("stock", ByAmount).fingerprint(),
    }
    assert len(others | {same}) == 5


def test_the_fingerprint_of_an_sql_projection_follows_its_statements() -> None:
    def made(**changes: Any) -> str:
        given: dict[str, Any] = {"tables": ("read.a",), "create": "CREATE", "statements": ("INSERT",)}
        return SqlProjection("sums", **(given | changes)).fingerprint()

    prints = {
        made(),
        made(version=2),
        made(log="other"),
        made(tables=("read.b",)),
        made(create="CREATE TABLE"),
        made(statements=("INSERT", "INSERT")),
    }
    assert len(prints) == 6
    assert made(lease=9.0) == made()


def test_the_fingerprint_of_a_handler_follows_its_version_its_tables_and_its_log() -> None:
    same = Handler("mail").fingerprint()
    prints = {
        same,
        Handler("mail", version=2).fingerprint(),
        Handler("mail", create="CREATE TABLE read.mail ()").fingerprint(),
        Handler("mail", tables=("read.mail",)).fingerprint(),
        Handler("mail", log="other").fingerprint(),
    }
    assert len(prints) == 5
    assert Handler("mail", lease=1.0).fingerprint() == same


def test_one_plain_function_makes_a_projection() -> None:
    @shared_projection("stock", Stock, events=[Put, Taken], version=3, on_failure=Retry(2), lease=1.5)
    def total(row: Stock | None, event: Put | Taken) -> Stock:
        known = row or Stock(item=event.meta.key)
        return known.evolve(amount=known.amount + event.amount)

    assert isinstance(total, Projection)
    assert (total.version, total.on_failure, total.lease) == (3, Retry(2), 1.5)
    facts = in_stream("stock/nail", Put(amount=5), Taken(amount=2))
    assert total.fold(facts) == {("nail",): Stock(item="nail", amount=7)}


def test_a_projection_of_one_function_may_name_its_registry_and_log() -> None:
    @shared_projection("stock", Stock, events=[Put], registry=events, log="other")
    def total(row: Stock | None, event: Put) -> Stock | None:
        return row

    assert total.registry is events
    assert total.log == "other"


def test_an_application_finds_its_projections_by_name() -> None:
    made = stock()
    app = App(projections=[made, Handler("mail")])
    assert app.projection("stock") is made
    with pytest.raises(UnknownProjection, match="expected one of the projections stock, mail, found 'sums'"):
        app.projection("sums")
    with pytest.raises(UnknownProjection, match="expected projection 'sums', found an application without"):
        App().projection("sums")


def test_a_name_may_stand_only_once_in_an_application() -> None:
    with pytest.raises(DeclarationError, match="projection 'stock' stands twice in the application"):
        App(projections=[stock(), stock()])


class Loans(Row, key="branch, day"):
    branch: str
    day: str
    amount: int = 0


@pytest.mark.parametrize("key", [("a",), ("a", "b", "c"), ("a", ["b"])])
def test_a_key_that_does_not_fit_the_key_fields_is_refused(key: tuple[object, ...]) -> None:
    shelves = Projection("shelves", Loans, key=lambda _: key)
    with pytest.raises(
        ProjectionKeyError, match=r"projection shelves: expected a key of \(branch, day\), found"
    ):
        shelves.checked_key(key)


def test_a_plain_fold_refuses_what_the_engine_refuses() -> None:
    class Seen(Event, name="fold_check.seen", registry=Registry()):
        pass

    event = Seen().bound(EventMeta("shelf/a", 1))
    wrong_row = Projection("wrong_row", Loans, key=lambda _: ("a", "b"))
    wrong_row.on(Seen)(lambda row, event: {"branch": "a"})  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match="expected Loans or None from the fold, found dict"):
        wrong_row.fold([event])
    wrong_key = Projection("wrong_key", Loans, key=lambda _: ("a", "b"))
    wrong_key.on(Seen)(lambda row, event: Loans(branch="a", day="c"))
    with pytest.raises(ProjectionKeyError, match="leads to the row"):
        wrong_key.fold([event])


def test_another_schema_version_of_an_event_is_another_read_model_for_sql_alone() -> None:
    def made(version: int) -> tuple[str, str]:
        known = Registry()

        class Picked(Event, name="sql_check.picked", version=version, registry=known):
            pass

        read = SqlProjection(
            "sql_check", tables=(), create="", statements=(), events=[Picked], registry=known
        )
        folded = Projection("fold_check", Loans, key=lambda _: ("a", "b"), registry=known)
        folded.on(Picked)(lambda row, event: row)
        return read.fingerprint(), folded.fingerprint()

    (old_sql, old_fold), (new_sql, new_fold) = made(1), made(2)
    assert old_sql != new_sql
    assert old_fold == new_fold


@pytest.mark.parametrize("key", [("a", float("nan")), (Decimal("NaN"), "b"), ("a", Decimal("sNaN"))])
def test_a_key_that_is_not_a_number_is_refused(key: tuple[object, ...]) -> None:
    shelves = Projection("shelves", Loans, key=lambda _: key)
    with pytest.raises(ProjectionKeyError, match="projection shelves: expected a key"):
        shelves.key_of(Event())

"""The registry: stable names to classes, and old events read as new ones."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from onefold.domain.errors import DeclarationError, UndecodableData, UndecodableEvent, UnknownEventType
from onefold.domain.event import Event, EventMeta
from onefold.domain.money import Money
from onefold.domain.registry import Registry

PLACE = EventMeta("order/4711", 3, 2**53 + 1)


def submitted(registry: Registry) -> type[Event]:
    class OrderSubmitted(Event, name="order.submitted", version=2, registry=registry):
        given: str
        family: str
        channel: str = "web"

    return OrderSubmitted


def test_an_old_event_is_read_as_the_class_that_replaced_it() -> None:
    """Case H7: renamed type, split field, new field with a default, by a chain of three steps."""
    registry = Registry()
    event_class = submitted(registry)

    @registry.upcast("order.placed", 1)
    def snake_case(data: dict[str, Any]) -> dict[str, Any]:
        return {"customer_name": data["customerName"]}

    @registry.upcast("order.placed", 2, to="order.submitted", to_version=1)
    def renamed(data: dict[str, Any]) -> dict[str, Any]:
        return data

    @registry.upcast("order.submitted", 1)
    def split(data: dict[str, Any]) -> dict[str, Any]:
        given, family = data["customer_name"].split(" ", 1)
        return {"given": given, "family": family}

    stored = '{"customerName":"Ana Lima"}'
    event = registry.decode("order.placed", 1, stored, PLACE)
    assert event == event_class(given="Ana", family="Lima", channel="web")  # type: ignore[call-arg]
    assert event.meta is PLACE
    assert stored == '{"customerName":"Ana Lima"}'
    assert registry.decode("order.placed", 1, stored.encode(), PLACE) == event
    assert registry.decode(
        "order.submitted", 2, '{"given":"A","family":"L","channel":"app"}', PLACE
    ) == event_class(
        given="A",
        family="L",
        channel="app",  # type: ignore[call-arg]
    )
    assert registry.names_read_as(event_class) == {"order.placed", "order.submitted"}


def test_an_upcast_to_another_name_leads_to_its_first_version() -> None:
    registry = Registry()

    class Renamed(Event, name="note.written", registry=registry):
        text: str

    @registry.upcast("note.noted", 1, to="note.written")
    def same(data: dict[str, Any]) -> dict[str, Any]:
        return data

    assert registry.decode("note.noted", 1, '{"text":"x"}', PLACE) == Renamed(text="x")


def test_a_type_nobody_knows_is_an_error_that_says_where_it_stands() -> None:
    with pytest.raises(UnknownEventType) as caught:
        Registry().decode("order.vanished", 4, "{}", PLACE)
    error = caught.value
    assert (error.type_name, error.schema_version) == ("order.vanished", 4)
    assert (error.stream, error.version, error.position) == ("order/4711", 3, 9007199254740993)
    assert str(error) == (
        "no event class is registered for type 'order.vanished' schema version 4 "
        "(stream order/4711, version 3, position 9007199254740993); "
        "register the class, or an upcast from this type and schema version; if newer code wrote it, run that here"
    )


@pytest.mark.parametrize("version", [1, 3])
def test_a_schema_version_nobody_reads_is_an_unknown_type(version: int) -> None:
    registry = Registry()
    submitted(registry)
    with pytest.raises(UnknownEventType, match=f"'order.submitted' schema version {version} "):
        registry.decode("order.submitted", version, "{}", PLACE)
    assert registry.decoder("order.submitted", version) is None


def test_data_that_does_not_fit_is_an_error_that_names_field_and_place() -> None:
    registry = Registry()
    submitted(registry)
    with pytest.raises(UndecodableEvent) as caught:
        registry.decode("order.submitted", 2, '{"given":1,"more":2}', PLACE)
    error = caught.value
    assert (error.type_name, error.stream, error.version, error.position) == (
        "order.submitted",
        "order/4711",
        3,
        9007199254740993,
    )
    for part in ("given: ", "family: Field required", "more: Extra inputs", "stream order/4711, version 3"):
        assert part in str(error)


def test_data_that_is_not_json_is_undecodable() -> None:
    registry = Registry()
    submitted(registry)
    with pytest.raises(UndecodableEvent, match="data: Invalid JSON"):
        registry.decode("order.submitted", 2, "", PLACE)


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        ("{}", "KeyError: 'name'"),
        ('{"name":null}', "AttributeError"),
        ('{"name":"Ana"}', "IndexError"),
        ("not json", "ValueError"),
    ],
)
def test_an_upcast_that_fails_is_an_error_of_the_event(data: str, cause: str) -> None:
    registry = Registry()
    submitted(registry)

    @registry.upcast("order.placed", 1, to="order.submitted", to_version=2)
    def split(data: dict[str, Any]) -> dict[str, Any]:
        words = data["name"].split()
        return {"given": words[0], "family": words[1]}

    with pytest.raises(UndecodableEvent, match=f"an upcast failed with {cause}") as caught:
        registry.decode("order.placed", 1, data, PLACE)
    assert "order/4711" in str(caught.value)


def test_what_an_upcast_returns_is_validated() -> None:
    registry = Registry()
    submitted(registry)

    @registry.upcast("order.placed", 1, to="order.submitted", to_version=2)
    def empty(_: dict[str, Any]) -> dict[str, Any]:
        return {}

    with pytest.raises(UndecodableEvent, match="given: Field required; family: Field required"):
        registry.decode("order.placed", 1, "{}", PLACE)


def test_upcasts_that_run_in_a_circle_lead_nowhere() -> None:
    registry = Registry()
    submitted(registry)
    for name, target in (("order.a", "order.b"), ("order.b", "order.a")):
        registry.upcast(name, 1, to=target)(lambda data: data)
    with pytest.raises(UnknownEventType, match=r"order\.a"):
        registry.decode("order.a", 1, "{}", PLACE)


def test_a_second_upcast_from_the_same_version_is_refused() -> None:
    registry = Registry()
    registry.upcast("order.placed", 1)(lambda data: data)
    with pytest.raises(DeclarationError, match=r"a second upcast from 'order\.placed' schema version 1"):
        registry.upcast("order.placed", 1)(lambda data: data)


def test_a_name_belongs_to_one_class() -> None:
    registry = Registry()
    submitted(registry)
    with pytest.raises(
        DeclarationError, match=r"event name 'order\.submitted' of .*Other is taken by .*OrderSubmitted"
    ):

        class Other(Event, name="order.submitted", registry=registry):
            pass


def test_a_class_declared_again_replaces_itself() -> None:
    registry = Registry()
    submitted(registry)
    assert registry.decode("order.submitted", 2, '{"given":"A","family":"L"}', PLACE)
    again = submitted(registry)
    assert type(registry.decode("order.submitted", 2, '{"given":"A","family":"L"}', PLACE)) is again


def test_an_upcast_declared_late_is_heeded() -> None:
    registry = Registry()
    event_class = submitted(registry)
    with pytest.raises(UnknownEventType):
        registry.decode("order.submitted", 1, "{}", PLACE)
    registry.upcast("order.submitted", 1)(lambda _: {"given": "A", "family": "L"})
    assert isinstance(registry.decode("order.submitted", 1, "{}", PLACE), event_class)


def test_the_shared_registry_takes_events_that_name_none() -> None:
    from onefold.domain.order import Order
    from onefold.domain.registry import registry

    data = '{"derived":true}'
    assert registry.decode("order.shipped", 1, data, PLACE) == Order.Shipped(derived=True)


@pytest.mark.parametrize("amount", ["24.90", 24])
def test_money_is_read_from_parsed_data_as_it_is_from_json(amount: object) -> None:
    registry = Registry()

    class Paid(Event, name="order.paid", registry=registry):
        amount: Money

    read, decode = registry.reader("order.paid", 1), registry.decoder("order.paid", 1)
    assert read is not None
    assert decode is not None
    data = {"amount": {"amount": amount, "currency": "EUR"}}
    assert read(data) == decode(json.dumps(data)) == Paid(amount=Money.of(Decimal(str(amount)), "EUR"))


@pytest.mark.parametrize("amount", ["many", "NaN", 24.9, True, None])
def test_what_is_no_amount_is_refused_in_parsed_data(amount: object) -> None:
    registry = Registry()

    class Paid(Event, name="order.paid", registry=registry):
        amount: Money

    read = registry.reader("order.paid", 1)
    assert read is not None
    with pytest.raises(UndecodableData, match=r"amount\.amount"):
        read({"amount": {"amount": amount, "currency": "EUR"}})

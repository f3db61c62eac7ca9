"""Onefold's aggregates in applications of the library: saved, loaded, snapshotted, encrypted, read by both."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, ClassVar

import psycopg
import pytest
from eventsourcing.application import AggregateNotFoundError, Application
from eventsourcing.cipher import AESCipher
from eventsourcing.domain import Aggregate as LibraryAggregate
from eventsourcing.persistence import (
    DatetimeAsISO,
    IntegrityError,
    Mapper,
    MapperDeserialisationError,
    StoredEvent,
)
from eventsourcing.utils import get_topic, register_topic

from onefold.domain.aggregate import Aggregate, applies
from onefold.domain.errors import UndecodableEvent, UnknownEventType
from onefold.domain.event import Event
from onefold.domain.registry import registry
from onefold.infrastructure.postgres import AggregateSnapshot
from onefold.infrastructure.postgres.log import EventLog
from onefold.infrastructure.postgres.mapper import SNAPSHOT
from onefold.infrastructure.postgres.pool import open_pool

NOON = datetime(2024, 2, 29, 12, tzinfo=UTC)


class Basket(Aggregate, category="basket"):
    class Filled(Event, name="basket.filled", version=2):
        item: str
        price: Decimal
        weight: float = 1.0

    class Paid(Event, name="basket.paid"):
        by: str

    items: tuple[str, ...] = ()
    total: Decimal = Decimal(0)
    paid_by: str = ""

    @applies(Filled)
    def _filled(self, event: Filled) -> None:
        self.items = (*self.items, event.item)
        self.total += event.price

    @applies(Paid)
    def _paid(self, event: Paid) -> None:
        self.paid_by = event.by


@registry.upcast("basket.filled", 1)
def _price_from_cents(data: dict[str, Any]) -> dict[str, Any]:
    return {"item": data["item"], "price": str(Decimal(data["cents"]) / 100)}


class Shop(Application[str]):
    env: ClassVar[dict[str, str]] = {"ORIGINATOR_ID_TYPE": "text"}
    snapshot_class = AggregateSnapshot  # type: ignore[assignment]


class SnapshottingShop(Shop):
    name = "Shop"
    snapshotting_intervals: ClassVar[dict[Any, int]] = {Basket: 2}


def filled(key: str, count: int = 2) -> Basket:
    basket = Basket.new(key)
    for number in range(1, count + 1):
        basket.emit(Basket.Filled(item=f"item {number}", price=Decimal("1.50")), at=NOON)
    return basket


def test_an_aggregate_is_saved_and_loaded_through_the_library() -> None:
    with Shop() as shop:
        basket = filled("1")
        recordings = shop.save(basket, metadata={"actor": "alice"})
        assert [recording.notification.id for recording in recordings] == [1, 2]
        loaded: Basket = shop.repository.get("basket/1")
        assert (loaded.items, loaded.total, loaded.version) == (("item 1", "item 2"), Decimal("3.00"), 2)
        loaded.emit(Basket.Paid(by="card"))
        shop.save(loaded)
        again: Basket = shop.repository.get("basket/1")
        assert (again.paid_by, again.version, again.created_on) == ("card", 3, NOON)
        with pytest.raises(AggregateNotFoundError):
            shop.repository.get("basket/2")
        assert shop.repository.get("basket/1", version=1).version == 1


def test_a_stale_aggregate_is_refused() -> None:
    with Shop() as shop:
        shop.save(filled("1"))
        stale: Basket = shop.repository.get("basket/1")
        fresh: Basket = shop.repository.get("basket/1")
        fresh.emit(Basket.Paid(by="card"))
        shop.save(fresh)
        stale.emit(Basket.Paid(by="cash"))
        with pytest.raises(IntegrityError, match="Load the aggregate again"):
            shop.save(stale)


def test_an_event_is_kept_under_its_name_and_schema_version_as_readable_json(
    connection: psycopg.Connection,
) -> None:
    with Shop() as shop:
        basket = Basket.new("1")
        basket.emit(Basket.Filled(item="feather", price=Decimal("24.90"), weight=1e16), at=NOON)
        shop.save(basket, metadata={"actor": "alice"})
        loaded: Any = next(iter(shop.events.get("basket/1")))
    row = connection.execute(
        "SELECT type, schema_version, data ->> 'price', raw, metadata, occurred_at, event_id FROM onefold.shop_events"
    ).fetchone()
    assert row is not None
    assert row[:6] == ("basket.filled", 2, "24.90", None, {"actor": "alice"}, NOON)
    assert loaded == Basket.Filled(item="feather", price=Decimal("24.90"), weight=1e16)
    assert (loaded.meta.position, loaded.meta.event_id, loaded.meta.occurred_at) == (1, row[6], NOON)
    assert loaded.meta.metadata == {"actor": "alice"}


def test_both_read_the_same_log(database_url: str) -> None:
    with open_pool(database_url) as pool, Shop() as shop:
        shop.save(filled("1"))
        log = EventLog(pool, name="shop_events")
        basket = Basket.new("1")
        for event in log.load("basket/1"):
            basket.follow(event)
        basket.emit(Basket.Paid(by="card"))
        log.append(basket.pending)
        loaded: Basket = shop.repository.get("basket/1")
        assert (loaded.paid_by, loaded.version) == ("card", 3)
        assert [each.topic for each in shop.notification_log["1,10"].items] == [
            "basket.filled",
            "basket.filled",
            "basket.paid",
        ]


def test_an_old_schema_version_is_upcast(connection: psycopg.Connection) -> None:
    with Shop() as shop:
        connection.execute(
            "INSERT INTO onefold.shop_events (version, event_id, schema_version, stream, type, data) VALUES"
            """ (1, gen_random_uuid(), 1, 'basket/1', 'basket.filled', '{"item": "old", "cents": 150}')"""
        )
        loaded: Basket = shop.repository.get("basket/1")
        assert (loaded.items, loaded.total) == (("old",), Decimal("1.5"))


def test_an_unknown_name_is_an_error_that_says_where_it_stands_and_is_never_imported(
    connection: psycopg.Connection, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "evil"
    module.mkdir()
    (module / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    insert = (
        "INSERT INTO onefold.shop_events (version, event_id, schema_version, stream, type, data) VALUES"
        " (1, gen_random_uuid(), %s, %s, %s, %s)"
    )
    with Shop() as shop:
        connection.execute(insert, (1, "basket/1", "evil.thing", "{}"))
        connection.execute(insert, (3, "basket/2", "basket.filled", "{}"))
        connection.execute(insert, (2, "basket/3", "basket.filled", '{"item": 1}'))
        with pytest.raises(UnknownEventType, match=r"'evil\.thing' .*stream basket/1, version 1, position 1"):
            shop.repository.get("basket/1")
        with pytest.raises(UnknownEventType, match="schema version 3"):
            shop.repository.get("basket/2")
        with pytest.raises(UndecodableEvent, match="price: Field required"):
            shop.repository.get("basket/3")


def test_an_encrypted_and_compressed_event_is_kept_as_bytes(
    connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CIPHER_KEY", AESCipher.create_key(16))
    monkeypatch.setenv("COMPRESSOR_TOPIC", "zlib")
    with SnapshottingShop() as shop:
        shop.save(filled("1"))
        loaded: Basket = shop.repository.get("basket/1")
        assert loaded.items == ("item 1", "item 2")
        assert connection.execute(
            "SELECT DISTINCT type, data IS NULL, position('item' IN encode(raw, 'escape')) FROM onefold.shop_events"
        ).fetchall() == [("basket.filled", True, 0)]
    monkeypatch.setenv("CIPHER_KEY", AESCipher.create_key(16))
    with (
        Shop() as shop,
        pytest.raises(MapperDeserialisationError, match=r"'basket\.filled' of basket/1 at version 1"),
    ):
        shop.repository.get("basket/1")


def test_what_was_not_read_from_a_log_is_mapped_too() -> None:
    with Shop() as shop:
        (stored,) = map(shop.mapper.to_stored_event, filled("1", 1).pending)  # type: ignore[arg-type]
        event: Any = shop.mapper.to_domain_event(stored)
        assert (event.item, event.meta.stream, event.meta.version) == ("item 1", "basket/1", 1)
        plain = StoredEvent("basket/1", 1, "basket.paid", b'{"by": "card"}')
        paid: Any = shop.mapper.to_domain_event(plain)
        assert (paid, paid.meta.version) == (Basket.Paid(by="card"), 1)


def test_a_topic_that_was_registered_with_the_library_is_its_own(make_factory: Any) -> None:
    register_topic("renamed.event", LibraryAggregate.Event)
    mapper = make_factory().mapper()
    state = b'{"timestamp":{"_type_":"datetime_iso","_data_":"2024-02-29T12:00:00+00:00"}}'
    mapper.transcoder.register(DatetimeAsISO())
    event = mapper.to_domain_event(
        StoredEvent("7a5c9d1e-5b0f-4f0a-9d5c-000000000001", 1, "renamed.event", state)
    )
    assert type(event) is LibraryAggregate.Event


class OwnMapper(Mapper[Any]):
    pass


def test_a_mapper_of_ones_own_is_left_alone(make_factory: Any) -> None:
    assert type(make_factory(MAPPER_TOPIC=get_topic(OwnMapper)).mapper()) is OwnMapper
    assert type(make_factory().mapper(mapper_class=OwnMapper)) is OwnMapper


def test_snapshots_are_taken_and_loads_start_from_them(connection: psycopg.Connection) -> None:
    with SnapshottingShop() as shop:
        shop.save(filled("1", 5))
        assert connection.execute(
            "SELECT version, type, data ->> 'category' FROM onefold.shop_snapshots ORDER BY version"
        ).fetchall() == [(2, SNAPSHOT, "basket"), (4, SNAPSHOT, "basket")]
        loaded: Basket = shop.repository.get("basket/1")
        assert loaded.items == filled("1", 5).items
        assert (loaded.version, loaded.total, loaded.created_on) == (5, Decimal("7.50"), NOON)
        assert shop.repository.get("basket/1", version=3).version == 3


def test_a_snapshot_is_used(connection: psycopg.Connection) -> None:
    with SnapshottingShop() as shop:
        shop.save(filled("1", 2))
        connection.execute(
            "UPDATE onefold.shop_snapshots SET data = jsonb_set(data, '{state,state,paid_by}', '\"the snapshot\"')"
        )
        loaded: Basket = shop.repository.get("basket/1")
        assert loaded.paid_by == "the snapshot"


@pytest.mark.parametrize(
    "change",
    [
        "jsonb_set(data, '{fingerprint}', '\"of other code\"')",
        "jsonb_set(data, '{category}', '\"of other code\"')",
        "jsonb_set(data, '{state,state,items}', '7')",
    ],
)
def test_a_snapshot_that_does_not_fit_the_code_is_ignored_and_replaced(
    change: str, connection: psycopg.Connection
) -> None:
    with SnapshottingShop() as shop:
        shop.save(filled("1", 3))
        connection.execute(f"UPDATE onefold.shop_snapshots SET data = {change}")
        assert shop.repository.get("basket/1").version == 3
        assert shop.snapshots is not None
        assert list(shop.snapshots.get("basket/1")) == []
        shop.take_snapshot("basket/1", version=2)
        assert [each.originator_version for each in shop.snapshots.get("basket/1")] == [2]

"""A row is explained by the events that made it, and by what was not applied."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from psycopg import Connection

from onefold import (
    App,
    Consumer,
    Event,
    Message,
    Money,
    Projection,
    Registry,
    Rejected,
    Row,
    Transaction,
    connect,
)
from onefold.domain.account import Account
from onefold.domain.order import Order, OrderItem
from onefold.infrastructure.audit.explain import (
    BadRowKey,
    NotExplainable,
    explain_row,
    key_of_texts,
    projection_of,
)
from onefold.infrastructure.brokers.envelope import write
from onefold.infrastructure.consuming.consumption import Consumption
from onefold.infrastructure.store import Store
from onefold.projections.app import UnknownProjection
from onefold.projections.shop import app as shop
from onefold.projections.shop import order_summary
from onefold.testing import MemoryBroker

from .conftest import AT, Onefold

HOUR = timedelta(hours=1)
registry = Registry()


class Scanned(Event, name="parcel.scanned", registry=registry):
    depot: str
    weight: Decimal


class Depot(Row, key="depot"):
    depot: str
    parcels: int = 0
    weight: Decimal = Decimal(0)


depots = Projection("depots", Depot, key=lambda event: event.depot, registry=registry)
folded = Projection("folded", Depot, registry=registry)


@depots.on(Scanned)
@folded.on(Scanned)
def scanned(row: Depot | None, event: Scanned) -> Depot:
    row = row or Depot(depot=event.depot)
    return row.evolve(parcels=row.parcels + 1, weight=row.weight + event.weight)


@pytest.fixture
def order(store: Store) -> Order:
    """An order of which three events are applied, and one is not."""
    price = Money.of("24.90", "EUR")
    placed = Order.place(
        "4711", "c-1", [OrderItem(item_id="1", product_id="p", price=price, freight=price)], at=AT
    )
    placed.receive_payment("1", Money.of("49.80", "EUR"), at=AT + HOUR)
    placed.confirm(at=AT + 2 * HOUR)
    store.save(placed)
    store.run()
    placed.ship(at=AT + 3 * HOUR)
    store.save(placed)
    return placed


def test_each_column_leads_to_the_events_that_set_it(
    store: Store, order: Order, connection: Connection
) -> None:
    found = explain_row(connection, shop, order_summary, ("4711",))
    assert found.stored == store.row(order_summary, "4711")
    assert (found.agrees, found.current, found.position, found.row_position) == (True, True, 3, 3)
    chains = {
        name: [touch.event.meta.version for touch in chain]
        for name, chain in found.explanation.chains.items()
    }
    assert chains["status"] == [1, 3]
    assert chains["paid"] == [1, 2]
    assert chains["customer_id"] == [1]
    assert chains["version"] == [1, 2, 3]
    assert [(passed.event.version, passed.why) for passed in found.passed] == [(4, "not applied yet")]
    store.run()
    assert explain_row(connection, shop, order_summary, ("4711",)).passed == ()


def test_the_command_shows_columns_events_and_what_is_not_applied(onefold: Onefold, order: Order) -> None:
    said = onefold("explain", "read.order_summary", "4711", COLUMNS="200")
    assert said.code == 0
    for words in (
        "read.order_summary  4711  checkpoint at position 3",
        "✓ folding the events anew gives the same",
        "order.confirmed v3",
        "order/4711 v2  order.payment_received  changed paid, version",
        "order/4711 v4  order.shipped",
        "not applied yet, position 4",
    ):
        assert words in said.out
    document = onefold("explain", "order_summary", "4711", "--json").document
    assert document["row"]["paid"] == "49.80"
    assert [place["version"] for place in document["columns"]["paid"]] == [1, 2]
    assert document["events"][1]["changes"][0] == {"field": "paid", "before": "0", "after": "49.80"}
    assert document["passed"][0]["why"] == "not applied yet"
    nothing = onefold("explain", "order_summary", "404")
    assert (nothing.code, "there is no such row" in nothing.out) == (0, True)


def test_a_table_that_says_something_else_is_found(
    onefold: Onefold, order: Order, connection: Connection
) -> None:
    connection.execute("UPDATE read.order_summary SET paid = 1, status = 'delivered'")
    said = onefold("explain", "order_summary", "4711")
    assert said.code == 1
    assert "folding the events anew gives something else (table, then fold)" in said.out
    assert "~ paid 1 → 49.80" in said.out
    connection.execute("DELETE FROM read.order_summary")
    found = explain_row(connection, shop, order_summary, ("4711",))
    assert (found.stored, found.agrees) == (None, False)
    connection.execute("ALTER TABLE read.order_summary DROP COLUMN paid")
    connection.execute(
        "UPDATE onefold.checkpoints SET fingerprint = 'other' WHERE projection = 'order_summary'"
    )
    assert not explain_row(connection, shop, order_summary, ("4711",)).current


def test_a_projection_that_never_ran_says_so(store: Store, connection: Connection, onefold: Onefold) -> None:
    store.save(Account.open("1", "EUR", at=AT))
    said = onefold("explain", "account_balance", "1")
    assert (said.code, "the projection was never run" in said.out) == (0, True)
    assert "not applied yet" in said.out


def test_events_without_a_fold_and_those_that_cannot_be_read_are_told(
    store: Store, order: Order, connection: Connection
) -> None:
    insert = (
        "INSERT INTO onefold.events (version, event_id, stream, type, data)"
        " VALUES (%s, gen_random_uuid(), 'order/4711', %s, '{}')"
    )
    connection.execute(insert, (5, "order.remarked"))
    connection.execute(insert, (6, "order.placed"))
    connection.execute("UPDATE onefold.checkpoints SET position = 6 WHERE projection = 'order_summary'")
    found = explain_row(connection, shop, order_summary, ("4711",))
    assert [(passed.event.version, passed.why) for passed in found.passed] == [
        (5, "no fold"),
        (6, "cannot be read"),
    ]
    assert "customer_id" in found.passed[1].reason


def test_a_row_whose_key_a_function_derives_is_found_in_all_streams(
    database_url: str, connection: Connection
) -> None:
    app = App(projections=[depots])
    insert = (
        "INSERT INTO onefold.events (version, event_id, stream, type, data)"
        " VALUES (1, gen_random_uuid(), %s, 'parcel.scanned', %s)"
    )
    for number in range(5):
        depot = "Madrid" if number % 2 else "Vitoria"
        connection.execute(insert, (f"parcel/{number}", f'{{"depot": "{depot}", "weight": "1.5"}}'))
    with connect(app, database_url) as store:
        store.run()
    found = explain_row(connection, app, depots, ("Vitoria",))
    assert [touch.event.meta.stream for touch in found.explanation.touches] == [
        "parcel/0",
        "parcel/2",
        "parcel/4",
    ]
    assert found.agrees
    assert found.stored == Depot(depot="Vitoria", parcels=3, weight=Decimal("4.5"))


def test_events_in_streams_of_another_category_belong_to_the_row_as_well(
    store: Store, order: Order, connection: Connection
) -> None:
    connection.execute(
        "INSERT INTO onefold.events (version, event_id, stream, type, data)"
        " VALUES (1, gen_random_uuid(), 'copy/4711', 'order.delivered', '{}')"
    )
    store.run()
    found = explain_row(connection, shop, order_summary, ("4711",))
    assert found.agrees
    assert [touch.event.meta.stream for touch in found.explanation.touches][-1] == "copy/4711"


def test_what_waits_at_consumers_is_told(database_url: str, connection: Connection, onefold: Onefold) -> None:
    def handled(message: Message, tx: Transaction) -> None:
        if message.data < 0:
            raise Rejected("no such amount")
        account = tx.find(Account, "7") or Account.open("7", "EUR", at=AT)
        account.deposit(Money.of(message.data, "EUR"), at=AT)
        tx.save(account)

    payments = Consumer("payments", ordering="delta", version="sequence", effect=handled, age="received")
    broker = MemoryBroker("explained")
    for number, amount in ((1, 5), (1, 5), (2, -1), (4, 5)):
        body = Message(
            f"m{number}", "/bank", "paid", amount, "account/7", AT, extensions={"sequence": number}
        )
        broker.publish_all([write(body)])
    app = App(aggregates=shop.aggregates, projections=shop.projections, consumers=[payments])
    with connect(app, database_url) as store:
        Consumption(database_url, payments, "memory://explained", once=True, idle=0.2).run()
        store.run()
    found = explain_row(connection, app, app.projection("account_balance"), ("7",))  # type: ignore[arg-type]
    assert [(each.kind, each.version) for each in found.waiting] == [("dead letter", 2), ("parked", 4)]
    assert [(each.consumer, each.version, each.parked) for each in found.standings] == [("payments", 1, 1)]
    assert found.outcomes["payments"] == {"applied": 1, "duplicate": 1, "parked": 1, "rejected": 1}
    said = onefold("explain", "account_balance", "7", COLUMNS="200")
    for words in (
        "payments has applied account/7 up to version 1, 1 message parked",
        "dead letter 1 at payments: paid version 2  rejected: no such amount",
        "parked at payments: paid version 4",
        "payments, of all its sequences: 1 applied, 1 duplicate, 1 parked, 1 rejected",
    ):
        assert words in said.out


def test_a_row_that_a_consumer_folds_is_told_by_its_sequence(
    database_url: str, connection: Connection
) -> None:
    depot = Consumer(
        "depot", ordering="delta", version="sequence", fold=folded, age="received", registry=registry
    )
    broker = MemoryBroker("folding")
    for number in (1, 3):
        data = {"depot": "Madrid", "weight": Decimal("1.5")}
        body = Message(
            f"m{number}", "/p", "parcel.scanned", data, "depot/Madrid", AT, extensions={"sequence": number}
        )
        broker.publish_all([write(body)])
    app = App(consumers=[depot])
    Consumption(database_url, depot, "memory://folding", once=True, idle=0.2).run()
    found = explain_row(connection, app, projection_of(app, "read.folded"), ("Madrid",))
    assert found.consumer == "depot"
    assert found.stored == Depot(depot="Madrid", parcels=1, weight=Decimal("1.5"))
    assert found.agrees
    assert [(each.sequence, each.version) for each in found.standings] == [("Madrid", 1)]
    assert [each.version for each in found.waiting] == [3]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("explain nothing 1", "expected one of the projections"),
        ("explain revenue_by_month 2026-01", "expected a projection of rows, found revenue_by_month"),
        (
            "explain order_summary 1 2",
            "expected the key of a row of order_summary (order_id), found 2 values",
        ),
    ],
)
def test_what_cannot_be_explained_is_told(
    onefold: Onefold, arguments: str, words: str, tmp_path: Path
) -> None:
    said = onefold(*arguments.split(" "))
    assert (said.code, said.out) == (2, "")
    assert words in said.err


def test_a_key_is_read_as_its_field_is_declared() -> None:
    class Typed(Row, key="number, day"):
        number: int
        day: Decimal

    typed = Projection("typed", Typed, key=lambda event: (1, 2))
    assert key_of_texts(typed, ["7", "1.50"]) == (7, Decimal("1.50"))
    with pytest.raises(BadRowKey, match="typed: key field number: Input should be a valid integer"):
        key_of_texts(typed, ["x", "1"])
    with pytest.raises(UnknownProjection):
        projection_of(shop, "read.nothing")
    with pytest.raises(NotExplainable):
        projection_of(shop, "revenue_by_month")

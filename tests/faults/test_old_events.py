"""Events that were stored by older code (case H7), at positions beyond 32 and 53 bits (H11), with long texts (H8)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL, Literal

from onefold.domain.aggregate import Aggregate, applies
from onefold.domain.errors import UnknownEventType
from onefold.domain.event import Event, EventMeta
from onefold.domain.registry import Registry
from onefold.infrastructure import worker as worker_module
from onefold.infrastructure.postgres.log import EventLog
from onefold.infrastructure.postgres.pool import open_pool
from onefold.infrastructure.postgres.repository import Repository
from onefold.infrastructure.postgres.table import Table
from onefold.infrastructure.wakeup import Wakeup
from onefold.infrastructure.worker import Worker
from onefold.projections.errors import ProjectionFailed
from onefold.projections.projection import Handler, Projection
from onefold.projections.row import Row

# --- H7 --------------------------------------------------------------------------------------------------------------


def old_code() -> tuple[Registry, type[Event]]:
    registry = Registry()

    class OrderPlaced(Event, name="orders.placed", registry=registry):
        customerName: str  # noqa: N815 - as it was

    return registry, OrderPlaced


class Customer(Row, key="order_id"):
    order_id: str
    given: str
    family: str
    channel: str


class NewCode:
    """Knows only the second version, under another name."""

    def __init__(self) -> None:
        self.registry = Registry()
        registry = self.registry

        @registry.upcast("orders.placed", 1, to="orders.submitted", to_version=2)
        def split(data: dict[str, Any]) -> dict[str, Any]:
            given, family = data["customerName"].split(" ", 1)
            return {"given": given, "family": family}

        class Order(Aggregate, category="orders"):
            class Submitted(Event, name="orders.submitted", version=2, registry=registry):
                given: str
                family: str
                channel: str = "web"

            given: str = ""
            family: str = ""
            channel: str = ""

            @applies(Submitted)
            def _submitted(self, event: Submitted) -> None:
                self.given, self.family, self.channel = event.given, event.family, event.channel

        self.order = Order
        self.customers = Projection("customers", Customer, registry=registry)
        self.mails: list[tuple[str, str]] = []
        self.greeting = Handler("greeting", registry=registry)

        @self.customers.on(Order.Submitted)
        def submitted(row: Customer | None, event: Any) -> Customer:
            return Customer(
                order_id=event.meta.key, given=event.given, family=event.family, channel=event.channel
            )

        @self.greeting.on(Order.Submitted)
        def greet(event: Any, _: object) -> None:
            self.mails.append((event.given, event.channel))


def stored(connection: psycopg.Connection[Any]) -> list[Any]:
    return connection.execute(
        "SELECT position, stream, version, type, schema_version, data::text, md5(e::text) FROM onefold.events e"
    ).fetchall()


@pytest.mark.parametrize("page", [1, 100])
def test_events_of_old_code_are_read_by_the_new_and_their_bytes_stay_as_they_are(
    database_url: str, connection: psycopg.Connection[Any], page: int
) -> None:
    """Case H7: load, projection, handler and rebuild read the second version; the table keeps the first."""
    registry, placed = old_code()
    new = NewCode()
    with open_pool(database_url) as pool:
        old_log, log = EventLog(pool, registry=registry), EventLog(pool, registry=new.registry)
        old_log.append([placed(customerName="Ana Lima").bound(EventMeta("orders/1", 1))])
        before = stored(connection)
        assert before[0][3:6] == ("orders.placed", 1, '{"customerName": "Ana Lima"}')

        order = Repository(log, new.order).get("1")
        assert (order.given, order.family, order.channel) == ("Ana", "Lima", "web")
        log.append(
            [new.order.Submitted(given="Rui", family="Sá", channel="app").bound(EventMeta("orders/2", 1))]
        )
        rows = [
            Customer(order_id="1", given="Ana", family="Lima", channel="web"),
            Customer(order_id="2", given="Rui", family="Sá", channel="app"),
        ]
        Worker(database_url, new.customers, page=page).run_once()
        assert Table(new.customers).all(connection) == rows
        Worker(database_url, new.customers, page=page).rebuild()
        assert Table(new.customers).all(connection) == rows
        Worker(database_url, new.greeting, page=page).run_once()
        assert new.mails == [("Ana", "web"), ("Rui", "app")]
        # A stream goes on with new events behind old ones.
        log.append([new.order.Submitted(given="Ana", family="Costa").bound(EventMeta("orders/1", 2))])
        assert Repository(log, new.order).get("1").family == "Costa"
        assert [event.family for event in log.load("orders/1")] == ["Lima", "Costa"]  # type: ignore[attr-defined]
    assert stored(connection)[:1] == before


def test_a_type_that_nobody_knows_is_an_error_with_type_stream_version_and_position(
    database_url: str, connection: psycopg.Connection[Any]
) -> None:
    registry, placed = old_code()
    with open_pool(database_url) as pool:
        EventLog(pool, registry=registry).append(
            [placed(customerName="Ana Lima").bound(EventMeta("orders/1", version)) for version in (1, 2)]
        )
        unknown = Registry()

        class Submitted(Event, name="orders.submitted", version=3, registry=unknown):
            given: str

        unknown.upcast("orders.placed", 0, to="orders.submitted", to_version=3)(lambda data: data)
        log = EventLog(pool, registry=unknown)
        message = (
            r"no event class is registered for type 'orders\.placed' schema version 1 "
            r"\(stream orders/1, version 2, position 2\); register the class, or an upcast"
        )
        with pytest.raises(UnknownEventType, match=message) as caught:
            log.load("orders/1", after=1)
        error = caught.value
        assert (error.type_name, error.schema_version, error.stream, error.version, error.position) == (
            "orders.placed",
            1,
            "orders/1",
            2,
            2,
        )
    projection = Projection("customers", Customer, registry=unknown)
    projection.on(Submitted)(lambda row, _: row)
    for run in (Worker(database_url, projection).run_once, Worker(database_url, projection).rebuild):
        with pytest.raises(
            ProjectionFailed, match=r"stream orders/1, version 1, position 1\): UnknownEventType"
        ):
            run()


# --- H11 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [2147483640, 9007199254740990])
@pytest.mark.parametrize("kind", ["balance", "booked", "summed"])
def test_positions_beyond_32_and_53_bits_are_read_projected_stopped_at_and_resumed_from(
    bank: Any, database_url: str, nursery: Any, start: int, kind: str
) -> None:
    """Case H11."""
    bank.connection.execute(
        SQL("ALTER TABLE onefold.events ALTER COLUMN position RESTART WITH {}").format(Literal(start))
    )
    bank.deposit(*["a"] * 10)
    make = nursery.PROJECTIONS[kind]
    first = Worker(database_url, make(), page=3).run_once()
    assert (first.position, first.applied) == (start + 9, 10)
    assert bank.position(kind) == start + 9
    with psycopg.connect(database_url) as late:
        bank.deposit("late", connection=late)
        bank.deposit(*["b"] * 9)
        assert Worker(database_url, make(), page=3).run_once(patience=0.1).position == start + 9
        late.commit()
    resumed = Worker(database_url, make(), page=3).run_once()
    assert (resumed.position, resumed.applied) == (start + 19, 10)
    assert bank.balances(kind) == bank.expected() == {"a": (10, 10), "b": (9, 9), "late": (1, 1)}
    positions = [event.meta.position for event in [*bank.log.load("account/a"), *bank.log.load("account/b")]]
    assert positions == [*range(start, start + 10), *range(start + 11, start + 20)]
    assert json.loads(json.dumps(positions)) == positions
    if kind == "balance":
        found = bank.connection.execute("SELECT account, _position FROM read.balance").fetchall()
        assert dict(found) == {"a": start + 9, "late": start + 10, "b": start + 19}
        rebuilt = Worker(database_url, make()).rebuild()
        assert rebuilt.position == start + 19
        assert bank.balances() == bank.expected()


# --- H8 --------------------------------------------------------------------------------------------------------------

notes = Registry()


class Noted(Event, name="notes.noted", registry=notes):
    text: str


class Length(Row, key="note"):
    note: str
    length: int
    text: str


def lengths() -> Projection[Length]:
    made = Projection("lengths", Length, registry=notes)

    @made.on(Noted)
    def noted(row: Length | None, event: Noted) -> Length:
        return Length(note=event.meta.key, length=len(event.text), text=event.text)

    return made


@contextmanager
def following(url: str, projection: Projection[Any]) -> Iterator[None]:
    with Wakeup(url, "onefold_events") as wakeup, ThreadPoolExecutor(1) as threads:
        worker = Worker(url, projection, wakeup=wakeup)
        running = threads.submit(worker.run)
        try:
            yield
        finally:
            worker.stop()
            running.result()


@pytest.mark.parametrize("polling", [True, False], ids=["with polling", "by wake-ups alone"])
def test_texts_of_any_length_are_stored_told_and_projected(
    database_url: str,
    connection: psycopg.Connection[Any],
    wait: Callable[..., float],
    monkeypatch: pytest.MonkeyPatch,
    polling: bool,
) -> None:
    """Case H8: 7,900, 8,000, 8,001 bytes, 1 MB, and 4,000 letters of two bytes each."""
    if not polling:
        monkeypatch.setattr(worker_module, "POLL", 60.0)
    texts = ["x" * 7_900, "x" * 8_000, "x" * 8_001, "x" * 1_000_000, "ü" * 4_000]
    query = "SELECT position FROM onefold.checkpoints WHERE projection = 'lengths'"
    projection = lengths()
    with open_pool(database_url) as pool, following(database_url, projection):
        log = EventLog(pool, registry=notes)
        for number, text in enumerate(texts):
            (event,) = log.append([Noted(text=text).bound(EventMeta(f"notes/{number}", 1))])
            position = event.meta.position
            wait(
                lambda at=position: (connection.execute(query).fetchone() or (0,))[0] >= at,
                f"the text of {len(text)} letters is projected",
                5,
            )
        assert [event.text for n in range(5) for event in log.load(f"notes/{n}")] == texts  # type: ignore[attr-defined]
    assert [row.text for row in Table(projection).all(connection)] == texts

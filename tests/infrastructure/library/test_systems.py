"""Systems of the library, whose applications follow one another, each on its own log."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import psycopg
import pytest
from eventsourcing.application import Application, ProcessingEvent
from eventsourcing.dispatch import singledispatchmethod
from eventsourcing.domain import Aggregate, event
from eventsourcing.persistence import Tracking
from eventsourcing.projection import Projection, ProjectionRunner
from eventsourcing.system import MultiThreadedRunner, ProcessApplication, Runner, SingleThreadedRunner, System

from onefold.infrastructure.postgres import TrackingRecorder


class Order(Aggregate):
    @event("Placed")
    def __init__(self, item: str) -> None:
        self.item = item

    @event("Confirmed")
    def confirm(self) -> None:
        self.confirmed = True


class Reservation(Aggregate):
    @event("Made")
    def __init__(self, order_id: UUID) -> None:
        self.order_id = order_id


class Orders(ProcessApplication[UUID]):
    @singledispatchmethod
    def policy(self, domain_event: Any, processing_event: ProcessingEvent[UUID]) -> None:
        if isinstance(domain_event, Reservation.Made):  # type: ignore[attr-defined]
            order: Order = self.repository.get(domain_event.order_id)
            order.confirm()
            processing_event.collect_events(order)


class Stock(ProcessApplication[UUID]):
    @singledispatchmethod
    def policy(self, domain_event: Any, processing_event: ProcessingEvent[UUID]) -> None:
        if isinstance(domain_event, Order.Placed):  # type: ignore[attr-defined]
            processing_event.collect_events(Reservation(order_id=domain_event.originator_id))


@pytest.mark.parametrize("runner_class", [SingleThreadedRunner, MultiThreadedRunner])
def test_applications_follow_one_another(
    runner_class: type[Runner[UUID]], connection: psycopg.Connection
) -> None:
    with runner_class(System(pipes=[[Orders, Stock, Orders]])) as runner:
        orders, stock = runner.get(Orders), runner.get(Stock)
        placed = [Order(item=f"item {number}") for number in range(5)]
        for order in placed:
            orders.save(order)
        last = orders.recorder.max_notification_id()
        stock.recorder.wait("Orders", last, timeout=10)
        orders.recorder.wait("Stock", stock.recorder.max_notification_id(), timeout=10)
        confirmed: list[Order] = [orders.repository.get(order.id) for order in placed]
    assert [order.version for order in confirmed] == [2] * 5
    assert connection.execute("SELECT count(*) FROM onefold.stock_events").fetchone() == (5,)


class Shop(Application[UUID]):
    pass


class Seen(Projection[TrackingRecorder]):
    @singledispatchmethod
    def process_event(self, domain_event: Any, tracking: Tracking) -> None:
        self.view.insert_tracking(tracking)


def test_a_runner_of_the_library_survives_the_end_of_its_connections(connection: psycopg.Connection) -> None:
    with ProjectionRunner(
        application_class=Shop, projection_class=Seen, view_class=TrackingRecorder
    ) as runner:
        first = runner.app.save(Aggregate())
        runner.wait(first[-1].notification.id, timeout=5)
        ended = connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        ).fetchall()
        assert len(ended) > 1
        second = runner.app.save(Aggregate())
        runner.wait(second[-1].notification.id, timeout=5)


def test_a_runner_of_the_library_needs_no_more_than_a_pool_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTGRES_POOL_SIZE", "1")
    monkeypatch.setenv("POSTGRES_MAX_OVERFLOW", "0")
    with ProjectionRunner(
        application_class=Shop, projection_class=Seen, view_class=TrackingRecorder
    ) as runner:
        for _ in range(3):
            saved = runner.app.save(Aggregate())
        runner.wait(saved[-1].notification.id, timeout=5)

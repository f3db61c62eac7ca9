"""The same small order for every contender: Onefold's, and one written for `eventsourcing`."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from uuid import UUID

import eventsourcing.application
import eventsourcing.domain

from onefold import Aggregate, App, Event, Instant, Projection, Row, applies


class Order(Aggregate, category="order"):
    """An order with three kinds of events."""

    class Placed(Event, name="bench.placed"):
        """Ordered."""

        customer_id: str
        currency: str
        items: int

    class Paid(Event, name="bench.paid"):
        """Paid."""

        amount: Decimal

    class Moved(Event, name="bench.moved"):
        """Moved on."""

        status: str

    customer_id: str = ""
    status: str = ""
    paid: Decimal = Decimal(0)

    @applies(Placed)
    def _placed(self, event: Placed) -> None:
        self.customer_id = event.customer_id
        self.status = "placed"

    @applies(Paid)
    def _paid(self, event: Paid) -> None:
        self.paid += event.amount

    @applies(Moved)
    def _moved(self, event: Moved) -> None:
        self.status = event.status


class Summary(Row, key="order_id"):
    """A row like that of order_summary."""

    order_id: str
    status: str
    customer_id: str | None = None
    placed_at: Instant | None = None
    delivered_at: Instant | None = None
    paid: Decimal = Decimal(0)
    currency: str | None = None
    items: int = 0
    version: int = 0


summary = Projection("bench_summary", Summary)


@summary.on(Order.Placed)
def placed(row: Summary | None, event: Order.Placed) -> Summary:
    """Begin the row."""
    meta = event.meta
    return Summary(
        order_id=meta.key,
        status="placed",
        customer_id=event.customer_id,
        placed_at=meta.occurred_at,
        currency=event.currency,
        items=event.items,
        version=meta.version,
    )


@summary.on(Order.Paid)
def paid(row: Summary | None, event: Order.Paid) -> Summary | None:
    """Add the payment."""
    return None if row is None else row.evolve(paid=row.paid + event.amount, version=event.meta.version)


@summary.on(Order.Moved)
def moved(row: Summary | None, event: Order.Moved) -> Summary | None:
    """Move the status."""
    if row is None:
        return None
    if event.status == "delivered":
        return row.evolve(
            status=event.status, delivered_at=event.meta.occurred_at, version=event.meta.version
        )
    return row.evolve(status=event.status, version=event.meta.version)


app = App(aggregates=[Order], projections=[summary])


class PeerOrder(eventsourcing.domain.Aggregate):
    """The same order, as the library's own documentation writes one."""

    @eventsourcing.domain.event("Placed")
    def __init__(self, customer_id: str, currency: str, items: int) -> None:
        self.customer_id = customer_id
        self.currency = currency
        self.items = items
        self.status = "placed"
        self.paid = Decimal(0)

    @eventsourcing.domain.event("Paid")
    def pay(self, amount: Decimal) -> None:
        """Pay."""
        self.paid += amount

    @eventsourcing.domain.event("Moved")
    def move(self, status: str) -> None:
        """Move on."""
        self.status = status


class PeerShop(eventsourcing.application.Application[UUID]):
    """An application of the library."""


class PeerShopWithSnapshots(eventsourcing.application.Application[UUID]):
    """The same, with snapshots."""

    is_snapshotting_enabled = True


def script(number: int, version: int) -> tuple[str, dict[str, object]]:
    """Return kind and data of the event `version` of order `number`: one placing, then payments and moves."""
    if version == 1:
        return "placed", {
            "customer_id": f"customer-{number % 5000}",
            "currency": "EUR",
            "items": number % 4 + 1,
        }
    if version % 3 == 0:
        return "paid", {"amount": Decimal(number % 9000 + version) / 100}
    return "moved", {"status": ("confirmed", "shipped", "delivered")[version % 3]}


__all__ = ["Order", "PeerOrder", "PeerShop", "Summary", "app", "datetime", "script", "summary"]

"""order_summary: one row an order, the same whatever the order in which its facts came."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from pydantic import AwareDatetime

from ...domain.money import plus
from ...domain.order import Order, OrderFact
from ..projection import Projection
from ..row import Row


class OrderSummary(Row, key="order_id"):
    """An order: `status` never falls back in rank, `paid` is the sum of payments in `currency`.

    `currency` is that of the placing; while the order is only known by its payments, that of the first.
    `items` counts lines, `version` is that of the last event applied.
    """

    order_id: str
    status: str = Order.lifecycle.initial
    customer_id: str | None = None
    placed_at: AwareDatetime | None = None
    delivered_at: AwareDatetime | None = None
    paid: Decimal = Decimal(0)
    currency: str | None = None
    items: int = 0
    version: int = 0


order_summary = Projection("order_summary", OrderSummary)


def _moved(row: OrderSummary | None, event: OrderFact) -> OrderSummary:
    meta = event.meta
    known = OrderSummary(order_id=meta.key) if row is None else row
    return known.evolve(status=Order.lifecycle.advance(known.status, type(event)), version=meta.version)


def _earlier(known: datetime | None, found: datetime) -> datetime:
    return found if known is None or found < known else known


@order_summary.on(Order.Placed)
def placed(row: OrderSummary | None, event: Order.Placed) -> OrderSummary:
    """Take over who ordered what; payments of another currency that came first do not count."""
    moved = _moved(row, event)
    return moved.evolve(
        customer_id=event.customer_id,
        placed_at=_earlier(moved.placed_at, event.meta.happened),
        currency=event.currency,
        paid=moved.paid if moved.currency in (None, event.currency) else Decimal(0),
        items=len(event.items),
    )


@order_summary.on(Order.PaymentReceived)
def payment_received(row: OrderSummary | None, event: Order.PaymentReceived) -> OrderSummary:
    """Add the payment if it is in the order's currency."""
    moved = _moved(row, event)
    if moved.currency is None:
        moved = moved.evolve(currency=event.amount.currency)
    if moved.currency != event.amount.currency:
        return moved
    return moved.evolve(paid=plus(moved.paid, event.amount.amount))


@order_summary.on(Order.Delivered)
def delivered(row: OrderSummary | None, event: Order.Delivered) -> OrderSummary:
    """Take note of when the goods arrived."""
    moved = _moved(row, event)
    return moved.evolve(delivered_at=_earlier(moved.delivered_at, event.meta.happened))


order_summary.on(
    Order.Confirmed,
    Order.ProcessingStarted,
    Order.Invoiced,
    Order.Shipped,
    Order.Cancelled,
    Order.MarkedUnavailable,
)(_moved)

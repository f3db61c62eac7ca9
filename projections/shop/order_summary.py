"""order_summary: one row an order, the same whatever the order in which its facts came."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from pydantic import AwareDatetime

from ...domain.money import plus
from ...domain.order import Order, OrderFact
from ..projection import Projection
from ..row import Row
from .sums import Others, added, divided, joined


class OrderSummary(Row, key="order_id"):
    """An order: `status` never falls back in rank, `paid` is the sum of payments in `currency`.

    `currency` is that of the placing, of the earliest one if there are several; while the order is only known by
    its payments, the first of theirs in the alphabet. Payments in other currencies are summed in `paid_otherwise`,
    which is None without any. `items` counts lines, `version` is that of the last event applied.
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
    paid_otherwise: Others | None = None


order_summary = Projection("order_summary", OrderSummary)


def _moved(row: OrderSummary | None, event: OrderFact) -> OrderSummary:
    meta = event.meta
    known = OrderSummary(order_id=meta.key) if row is None else row
    return known.evolve(status=Order.lifecycle.advance(known.status, type(event)), version=meta.version)


def _earlier(known: datetime | None, found: datetime) -> datetime:
    return found if known is None or found < known else known


@order_summary.on(Order.Placed)
def placed(row: OrderSummary | None, event: Order.Placed) -> OrderSummary:
    """Take over who ordered what, if no earlier placing is known."""
    moved, placed_at = _moved(row, event), event.meta.happened
    if moved.placed_at is not None and moved.placed_at <= placed_at:
        return moved
    paid, otherwise = moved.paid, moved.paid_otherwise
    if moved.currency not in (None, event.currency):
        paid, otherwise = divided(joined(moved.currency, paid, otherwise), event.currency)
    return moved.evolve(
        customer_id=event.customer_id,
        placed_at=placed_at,
        currency=event.currency,
        paid=paid,
        paid_otherwise=otherwise,
        items=len(event.items),
    )


@order_summary.on(Order.PaymentReceived)
def payment_received(row: OrderSummary | None, event: Order.PaymentReceived) -> OrderSummary:
    """Add the payment to the sum of its currency."""
    moved, amount = _moved(row, event), event.amount
    if moved.currency == amount.currency:
        return moved.evolve(paid=plus(moved.paid, amount.amount))
    sums = added(joined(moved.currency, moved.paid, moved.paid_otherwise), amount)
    currency = moved.currency if moved.placed_at is not None else min(sums)
    assert currency is not None
    paid, otherwise = divided(sums, currency)
    return moved.evolve(currency=currency, paid=paid, paid_otherwise=otherwise)


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

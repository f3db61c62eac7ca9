"""revenue_by_month: sums over orders, which no single order's fold can keep; kept by SQL."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from decimal import Decimal
from importlib import resources
from typing import NamedTuple

from ...domain.event import Event
from ...domain.money import plus
from ...domain.order import Order
from ..projection import SqlProjection


def _sql(name: str) -> str:
    return resources.files("onefold.projections.shop").joinpath(f"{name}.sql").read_text("utf-8")


revenue_by_month = SqlProjection(
    "revenue_by_month",
    tables=("read.revenue_by_month", "onefold.revenue_by_month_orders"),
    create=_sql("revenue_by_month_tables"),
    statements=(_sql("revenue_by_month_totals"), _sql("revenue_by_month_orders")),
    events=(Order.Placed, Order.PaymentReceived),
)


class MonthRevenue(NamedTuple):
    """The orders that were placed in a month, by the shop's calendar, and the payments for them."""

    month: date
    currency: str
    orders: int
    revenue: Decimal


def revenue_of(events: Iterable[Event]) -> list[MonthRevenue]:
    """Return what the table holds for these events, folded in memory, in the order of month and currency."""
    placed: dict[str, Order.Placed] = {}
    paid: dict[str, dict[str, Decimal]] = {}
    for event in events:
        stream = event.meta.stream
        if isinstance(event, Order.Placed):
            known = placed.get(stream)
            if known is None or event.placed_on < known.placed_on:
                placed[stream] = event
        elif isinstance(event, Order.PaymentReceived):
            sums = paid.setdefault(stream, {})
            sums[event.amount.currency] = plus(
                sums.get(event.amount.currency, Decimal(0)), event.amount.amount
            )
    totals: dict[tuple[date, str], tuple[int, Decimal]] = {}
    for stream, event in placed.items():
        month = event.placed_on.replace(day=1)
        for currency in {event.currency, *paid.get(stream, {})}:
            orders, revenue = totals.get((month, currency), (0, Decimal(0)))
            totals[month, currency] = (
                orders + (currency == event.currency),
                plus(revenue, paid.get(stream, {}).get(currency, Decimal(0))),
            )
    return [MonthRevenue(*key, *value) for key, value in sorted(totals.items()) if any(value)]

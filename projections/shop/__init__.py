"""The bundled shop: the reference aggregates with their read models."""

from __future__ import annotations

from ...domain.account import Account
from ...domain.order import Order
from ..app import App
from .account_balance import AccountBalance, account_balance
from .order_payment import OrderPayment
from .order_summary import OrderSummary, order_summary
from .revenue_by_month import MonthRevenue, revenue_by_month, revenue_of

__all__ = [
    "AccountBalance",
    "MonthRevenue",
    "OrderPayment",
    "OrderSummary",
    "account_balance",
    "app",
    "app_with_payment",
    "order_summary",
    "revenue_by_month",
    "revenue_of",
]

app = App(
    aggregates=(Order, Account),
    projections=(order_summary, account_balance, revenue_by_month),
)

app_with_payment = App(
    aggregates=app.aggregates,
    projections=app.projections,
    processes=(OrderPayment,),
)
"""The same shop, whose orders are paid from their customers' accounts."""

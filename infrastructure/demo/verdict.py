"""The verdict: whether the read models are what the log, and the undisturbed shop, say they must be."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from ...domain.event import Event
from ...domain.money import plus
from ...projections.shop import (
    AccountBalance,
    MonthRevenue,
    OrderSummary,
    account_balance,
    order_summary,
    revenue_of,
)
from ..identity import event_id_of
from .delivery import SOURCE, key_of
from .simulation import CURRENCY, Simulation


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison: of what with what, how many things were compared, and the first difference (empty: none).

    `total` is true where what is compared is the sum of all.
    """

    subject: str
    standard: str
    compared: int
    difference: str = ""
    total: bool = False

    @property
    def passed(self) -> bool:
        """True when there is no difference."""
        return not self.difference


@dataclass(frozen=True, slots=True)
class Verdict:
    """All checks; passed when each is."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """True when nothing differs."""
        return all(check.passed for check in self.checks)

    @property
    def first_difference(self) -> str:
        """The first difference of the first check that has one; empty without any."""
        return next((check.difference for check in self.checks if not check.passed), "")


@dataclass(frozen=True, slots=True)
class ReadModels:
    """The rows of the shop's read models, as their tables hold them, in the order of their keys."""

    orders: Sequence[OrderSummary]
    balances: Sequence[AccountBalance]
    revenue: Sequence[MonthRevenue]


def judge(simulation: Simulation, log: Sequence[Event], models: ReadModels) -> Verdict:
    """Compare the log and the read models with an in-memory fold and with the shop's own aggregates.

    `log` is every event of the log in the order of positions.
    """
    fold = "a plain fold of the log"
    shop = "the undisturbed shop"
    return Verdict(
        (
            _compare("log", shop, _wanted_events(simulation), _found_events(log)),
            _versions(log),
            _compare(
                "order_summary", fold, _fields(order_summary.fold(log).values()), _fields(models.orders)
            ),
            _compare(
                "account_balance", fold, _fields(account_balance.fold(log).values()), _fields(models.balances)
            ),
            _compare("revenue_by_month", fold, _months(revenue_of(log)), _months(models.revenue)),
            _compare("order_summary", shop, _shop_orders(simulation), _table_orders(models.orders)),
            _compare("account_balance", shop, _shop_balances(simulation), _table_balances(models.balances)),
            replace(
                _compare("revenue_by_month", shop, _shop_revenue(simulation), _table_revenue(models.revenue)),
                total=True,
            ),
        )
    )


Things = Mapping[Hashable, Mapping[str, Any]]


def _compare(subject: str, standard: str, wanted: Things, found: Things) -> Check:
    return Check(subject, standard, len(wanted), _first_difference(subject, wanted, found))


def _first_difference(subject: str, wanted: Things, found: Things) -> str:
    for key, fields in wanted.items():
        if key not in found:
            return f"{subject} {key}: expected {_words(fields)}, found nothing"
        for name, value in fields.items():
            if found[key].get(name) != value:
                return f"{subject} {key}: expected {name} {value}, found {found[key].get(name)}"
    for key, fields in found.items():
        if key not in wanted:
            return f"{subject} {key}: expected nothing, found {_words(fields)}"
    return ""


def _words(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in fields.items())


def _wanted_events(simulation: Simulation) -> Things:
    return {
        event_id_of(SOURCE, key_of(event)): {
            "stream": event.meta.stream,
            "occurred_at": event.meta.happened,
            "event": event,
        }
        for event in simulation.events
    }


def _found_events(log: Iterable[Event]) -> Things:
    return {
        event.meta.event_id: {
            "stream": event.meta.stream,
            "occurred_at": event.meta.happened,
            "event": event,
        }
        for event in log
    }


def _versions(log: Sequence[Event]) -> Check:
    standard = "positions that rise and versions without a hole"
    reached: dict[str, int] = {}
    position = 0
    for event in log:
        meta = event.meta
        expected = reached.get(meta.stream, 0) + 1
        if meta.version != expected or meta.position <= position:
            difference = (
                f"log position {meta.position}: expected version {expected} of {meta.stream} above position "
                f"{position}, found version {meta.version}"
            )
            return Check("log", standard, len(log), difference)
        reached[meta.stream], position = expected, meta.position
    return Check("log", standard, len(log))


def _fields(rows: Iterable[OrderSummary | AccountBalance]) -> Things:
    return {getattr(row, type(row).key_fields[0]): dict(row) for row in rows}


def _months(months: Iterable[MonthRevenue]) -> Things:
    return {
        f"{month.month:%Y-%m} {month.currency}": {"orders": month.orders, "revenue": month.revenue}
        for month in months
    }


def _shop_orders(simulation: Simulation) -> Things:
    return {
        key: {
            "status": order.status,
            "customer_id": order.customer_id,
            "placed_at": order.placed_at,
            "delivered_at": order.delivered_at,
            "paid": order.paid,
            "currency": order.currency,
            "items": len(order.items),
            "version": order.version,
        }
        for key, order in simulation.orders.items()
    }


def _table_orders(rows: Iterable[OrderSummary]) -> Things:
    return {row.order_id: dict(row) for row in rows}


def _shop_balances(simulation: Simulation) -> Things:
    return {
        key: {"balance": account.balance, "currency": account.currency, "opened_on": account.opened_on}
        for key, account in simulation.accounts.items()
    }


def _table_balances(rows: Iterable[AccountBalance]) -> Things:
    return {row.account_id: dict(row) for row in rows}


def _shop_revenue(simulation: Simulation) -> Things:
    paid = Decimal(0)
    for order in simulation.orders.values():
        paid = plus(paid, order.paid)
    return {CURRENCY: {"orders": len(simulation.orders), "revenue": paid}}


def _table_revenue(months: Iterable[MonthRevenue]) -> Things:
    totals: dict[Hashable, dict[str, Any]] = {}
    for month in months:
        total = totals.setdefault(month.currency, {"orders": 0, "revenue": Decimal(0)})
        total["orders"] += month.orders
        total["revenue"] = plus(total["revenue"], month.revenue)
    return totals

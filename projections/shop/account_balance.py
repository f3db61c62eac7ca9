"""account_balance: one row an account."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

from ...domain.account import Account
from ...domain.event import Event
from ...domain.money import Money, plus
from ..projection import Projection
from ..row import Row
from .sums import Others, added, divided, joined


class AccountBalance(Row, key="account_id"):
    """An account: `balance` is deposits less withdrawals, `lowest_balance` the lowest it ever was, at most 0.

    Both are in `currency`: that of the opening, or before it is known the first in the alphabet of those that moved.
    Movements in other currencies are summed in `balance_otherwise`, which is None without any. `lowest_balance`
    follows the order of the log, from the last change of `currency`. `version` is that of the last event applied.
    """

    account_id: str
    balance: Decimal = Decimal(0)
    currency: str | None = None
    opened_on: date | None = None
    lowest_balance: Decimal = Decimal(0)
    version: int = 0
    balance_otherwise: Others | None = None


account_balance = Projection("account_balance", AccountBalance)


def _known(row: AccountBalance | None, event: Event) -> AccountBalance:
    meta = event.meta
    return (
        AccountBalance(account_id=meta.key, version=meta.version)
        if row is None
        else row.evolve(version=meta.version)
    )


def _moved(row: AccountBalance | None, event: Event, amount: Money) -> AccountBalance:
    known = _known(row, event)
    if known.currency == amount.currency:
        balance = plus(known.balance, amount.amount)
        return known.evolve(balance=balance, lowest_balance=min(known.lowest_balance, balance))
    sums = added(joined(known.currency, known.balance, known.balance_otherwise), amount)
    currency = min(sums) if known.opened_on is None or known.currency is None else known.currency
    return _in_currency(known, sums, currency)


def _in_currency(row: AccountBalance, sums: dict[str, Decimal], currency: str) -> AccountBalance:
    if currency == row.currency:
        return row.evolve(balance_otherwise=divided(sums, currency)[1])
    balance, otherwise = divided(sums, currency)
    return row.evolve(
        currency=currency,
        balance=balance,
        balance_otherwise=otherwise,
        lowest_balance=min(Decimal(0), balance),
    )


@account_balance.on(Account.Opened)
def opened(row: AccountBalance | None, event: Account.Opened) -> AccountBalance:
    """Take over the day of opening and the currency, if no earlier opening is known."""
    known = _known(row, event)
    if known.opened_on is not None and known.opened_on <= event.opened_on:
        return known
    sums = joined(known.currency, known.balance, known.balance_otherwise)
    return _in_currency(known, sums, event.currency).evolve(opened_on=event.opened_on)


@account_balance.on(Account.Deposited)
def deposited(row: AccountBalance | None, event: Account.Deposited) -> AccountBalance:
    """Add what came in."""
    return _moved(row, event, event.amount)


@account_balance.on(Account.Withdrawn, Account.HoldCaptured)
def withdrawn(row: AccountBalance | None, event: Account.Withdrawn | Account.HoldCaptured) -> AccountBalance:
    """Take off what went out."""
    return _moved(row, event, -event.amount)

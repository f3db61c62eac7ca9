"""account_balance: one row an account."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

from ...domain.account import Account
from ...domain.event import Event
from ...domain.money import Money, plus
from ..projection import Projection
from ..row import Row


class AccountBalance(Row, key="account_id"):
    """An account: `balance` is deposits less withdrawals, `lowest_balance` the lowest it ever was, at most 0.

    Both follow the order of the log and are in `currency`; movements in another currency do not count. `version`
    is that of the last event applied.
    """

    account_id: str
    balance: Decimal = Decimal(0)
    currency: str | None = None
    opened_on: date | None = None
    lowest_balance: Decimal = Decimal(0)
    version: int = 0


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
    if known.currency not in (None, amount.currency):
        return known
    balance = plus(known.balance, amount.amount)
    return known.evolve(
        balance=balance, currency=amount.currency, lowest_balance=min(known.lowest_balance, balance)
    )


@account_balance.on(Account.Opened)
def opened(row: AccountBalance | None, event: Account.Opened) -> AccountBalance:
    """Take over the day of opening and the currency."""
    return _known(row, event).evolve(opened_on=event.opened_on, currency=event.currency)


@account_balance.on(Account.Deposited)
def deposited(row: AccountBalance | None, event: Account.Deposited) -> AccountBalance:
    """Add what came in."""
    return _moved(row, event, event.amount)


@account_balance.on(Account.Withdrawn, Account.HoldCaptured)
def withdrawn(row: AccountBalance | None, event: Account.Withdrawn | Account.HoldCaptured) -> AccountBalance:
    """Take off what went out."""
    return _moved(row, event, -event.amount)

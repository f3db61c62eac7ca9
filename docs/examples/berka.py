"""Berka's bank: account.asc and trans.asc become Account events.

    onefold import --mapping docs/examples/berka.py:mapping account.asc trans.asc

The source knows days, no times. An event happens at midnight in Prague, the beginning of its day; the day itself is
kept in the payload (`opened_on`, `booked_on`), since that midnight is on the day before in UTC. Years are 19YY.
The printed balance is kept as `reported_balance`: data, not the truth. Amounts are CZK.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, time
from decimal import Decimal

from onefold.domain.account import Account
from onefold.domain.instant import from_local
from onefold.domain.money import Money
from onefold.infrastructure.reading import Fact, Row, UnreadableValue, each, reads

ZONE = "Europe/Prague"
CURRENCY = "CZK"
MOVEMENTS = {"PRIJEM": Account.Deposited, "VYDAJ": Account.Withdrawn, "VYBER": Account.Withdrawn}


@reads("berka", kind="csv", delimiter=";")
@each
def mapping(row: Row) -> Iterator[Fact]:
    """Tell of an opened account, or of a movement of money."""
    yield _movement(row) if "trans_id" in row else _opening(row)


def _opening(row: Row) -> Fact:
    account_id, opened_on = row.text("account_id"), _day(row)
    opened = Account.Opened(
        currency=CURRENCY,
        opened_on=opened_on,
        frequency=row.text("frequency"),
        district=row.text("district_id"),
    )
    return Fact(f"{account_id}:opened", Account.stream_of(account_id), opened, _midnight(opened_on))


def _movement(row: Row) -> Fact:
    kind = row.text("type")
    if kind not in MOVEMENTS:
        raise UnreadableValue("type", f"is {kind!r}, expected {', '.join(MOVEMENTS)}")
    amount, booked_on = row.decimal("amount"), _day(row)
    if amount < 0:
        raise UnreadableValue("amount", f"is {amount}, expected 0 or more: the type gives the direction")
    movement = MOVEMENTS[kind](
        amount=_money(amount),
        operation=row.get("operation"),
        k_symbol=row.get("k_symbol"),
        bank=row.get("bank"),
        counterparty=row.get("account"),
        booked_on=booked_on,
        reported_balance=_money(row.decimal("balance")),
    )
    stream = Account.stream_of(row.text("account_id"))
    return Fact(row.text("trans_id"), stream, movement, _midnight(booked_on))


def _money(amount: Decimal) -> Money:
    return Money(amount=amount, currency=CURRENCY)


def _day(row: Row) -> date:
    text = row.text("date")
    if len(text) == 6 and text.isascii() and text.isdigit():
        try:
            return date(1900 + int(text[:2]), int(text[2:4]), int(text[4:]))
        except ValueError:
            pass
    raise UnreadableValue("date", f"is {text!r}, expected a date YYMMDD such as 930101")


def _midnight(day: date) -> datetime:
    # Clocks in Prague have always changed at another hour; a midnight that is unclear would be refused.
    return from_local(datetime.combine(day, time()), ZONE)

"""Sums of money by currency, of which a row shows one and keeps the others beside it."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from ...domain.money import Money, plus

Others = dict[str, Decimal]
"""Sums by currency that are not zero, without that of the row's own currency."""


def joined(currency: str | None, amount: Decimal, others: Mapping[str, Decimal] | None) -> dict[str, Decimal]:
    """Return every sum that a row keeps, by currency."""
    sums = dict(others or {})
    if currency is not None:
        sums[currency] = amount
    return sums


def added(sums: Mapping[str, Decimal], amount: Money) -> dict[str, Decimal]:
    """Return the sums with `amount` added to that of its currency."""
    known = sums.get(amount.currency, Decimal(0))
    return {**sums, amount.currency: plus(known, amount.amount)}


def divided(sums: Mapping[str, Decimal], currency: str) -> tuple[Decimal, Others | None]:
    """Return the sum in `currency`, and the others: None if there are none."""
    others = {code: sums[code] for code in sorted(sums) if code != currency and sums[code]}
    return sums.get(currency, Decimal(0)), others or None

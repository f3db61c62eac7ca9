"""Money: a Decimal with its currency."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import ROUND_HALF_EVEN, Context, Decimal, DivisionByZero, Inexact, InvalidOperation, Overflow
from functools import reduce
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from .errors import OnefoldError

Currency = Annotated[str, Field(pattern=r"^[A-Z]{3}$")]
"""Currency code of three capital letters (ISO 4217)."""

FROM_JSON: Final[dict[str, Any]] = {"values": "of JSON"}
"""Context of a validation of values that were read from JSON already: an amount may be text or a whole number there."""


class _FromText:
    """Makes a Decimal of text where the values are of JSON; the validation of JSON itself takes it anyway."""

    @staticmethod
    def __get_pydantic_core_schema__(source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        exact = handler(source)
        return core_schema.json_or_python_schema(
            exact, core_schema.with_info_before_validator_function(_decimal, exact)
        )


def _decimal(value: Any, info: core_schema.ValidationInfo[Any]) -> Any:
    if info.context is not FROM_JSON or type(value) not in (str, int):
        return value
    try:
        return Decimal(value)
    except InvalidOperation as error:
        raise ValueError("expected a decimal number") from error


Amount = Annotated[Decimal, Field(strict=True), _FromText]
"""A Decimal; floats and texts are refused, so that no amount is rounded on the way in."""


_EXACT = Context(prec=4000, traps=[Inexact, InvalidOperation, DivisionByZero, Overflow])
_ROUNDING = Context(prec=4000, traps=[InvalidOperation, DivisionByZero, Overflow])


def plus(left: Decimal, right: Decimal) -> Decimal:
    """Return the exact sum, whatever the thread's context rounds to; raises `decimal.Inexact` beyond 4,000 digits."""
    return _EXACT.add(left, right)


def minus(left: Decimal, right: Decimal) -> Decimal:
    """Return the exact difference; see `plus`."""
    return _EXACT.subtract(left, right)


def total(amounts: Iterable[Decimal]) -> Decimal:
    """Return the exact sum of all, 0 of none; see `plus`."""
    return reduce(plus, amounts, Decimal(0))


class CurrencyMismatch(OnefoldError, ValueError):
    """Two amounts of different currencies were added, subtracted or compared."""


class Money(BaseModel):
    """An amount of one currency.

    Compares by value (`24.9` equals `24.90`) and keeps the scale it was given. `amount` is a Decimal
    (never a float, NaN or Infinity), `currency` three capital letters. In JSON the amount is text.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    amount: Amount
    currency: Currency

    @classmethod
    def of(cls, amount: Decimal | int | str, currency: str) -> Self:
        """Return money from a Decimal, an int or decimal text such as "24.90"; a float is refused."""
        if isinstance(amount, float | bool):
            raise TypeError(f"an amount is a Decimal, an int or a text, not {type(amount).__name__}")
        return cls(amount=Decimal(amount), currency=currency)

    @classmethod
    def zero(cls, currency: str) -> Self:
        """Return no money at all, in `currency`."""
        return cls(amount=Decimal(0), currency=currency)

    def __add__(self, other: Money) -> Money:
        return Money(amount=plus(self.amount, self._amount_of(other)), currency=self.currency)

    def __sub__(self, other: Money) -> Money:
        return Money(amount=minus(self.amount, self._amount_of(other)), currency=self.currency)

    def __neg__(self) -> Money:
        return Money(amount=_EXACT.minus(self.amount), currency=self.currency)

    def __radd__(self, other: int) -> Money:
        # sum() starts from 0, which is no money of any currency.
        return self if other == 0 and type(other) is int else NotImplemented

    def __mul__(self, factor: Decimal | int) -> Money:
        """Return the exact multiple; a float is refused. Round with `rounded` where the price of many is wanted."""
        if type(factor) not in (int, Decimal):
            return NotImplemented
        return Money(amount=_EXACT.multiply(self.amount, Decimal(factor)), currency=self.currency)

    __rmul__ = __mul__

    def __abs__(self) -> Money:
        return -self if self.amount < 0 else self

    def rounded(self, places: int = 2, *, rounding: str = ROUND_HALF_EVEN) -> Money:
        """Return the amount with `places` digits behind the point; `rounding` is one of the `decimal` module's."""
        amount = self.amount.quantize(Decimal(1).scaleb(-places), rounding=rounding, context=_ROUNDING)
        return Money(amount=amount, currency=self.currency)

    def __lt__(self, other: Money) -> bool:
        return self.amount < self._amount_of(other)

    def __le__(self, other: Money) -> bool:
        return self.amount <= self._amount_of(other)

    def __gt__(self, other: Money) -> bool:
        return self.amount > self._amount_of(other)

    def __ge__(self, other: Money) -> bool:
        return self.amount >= self._amount_of(other)

    def __hash__(self) -> int:
        return hash((self.amount, self.currency))

    def __str__(self) -> str:
        return f"{self.amount} {self.currency}"

    def _amount_of(self, other: Money) -> Decimal:
        if other.currency != self.currency:
            raise CurrencyMismatch(f"expected {self.currency}, found {other.currency} in {other}")
        return other.amount

"""Bodies of the shop's API: strict on the way in, as the aggregates are on the way out."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ...domain.account import Account
from ...domain.money import Money
from ...domain.order import Order, OrderItem

Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9._~-]{1,64}$")]
"""Names an order, account, customer, item, product or payment; the same in a URL without escapes."""

Text = Annotated[str, Field(max_length=200, pattern=r"^[^\x00]*$")]


def _whole(value: Any) -> Any:
    # In JSON 3.0 is the same number as 3.
    return int(value) if isinstance(value, float) and value.is_integer() else value


class _Given(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Price(_Given):
    """An amount of money, as decimal text, so that no digit is lost on the way."""

    amount: Annotated[
        str, Field(pattern=r"^(0|[1-9][0-9]{0,14})(\.[0-9]{1,4})?$", examples=["24.90"], max_length=20)
    ]
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$", examples=["EUR"])]

    @property
    def money(self) -> Money:
        """The same as a value object."""
        return Money.of(self.amount, self.currency)


class NewItem(_Given):
    """A line of a new order."""

    item_id: Id
    product_id: Id
    price: Price
    freight: Price

    @property
    def line(self) -> OrderItem:
        """The same as a value object."""
        return OrderItem(
            item_id=self.item_id,
            product_id=self.product_id,
            price=self.price.money,
            freight=self.freight.money,
        )


class NewOrder(_Given):
    """What is ordered; without an `order_id` the shop finds one."""

    customer_id: Id
    items: Annotated[list[NewItem], Field(min_length=1, max_length=100)]
    order_id: Id | None = None


class NewPayment(_Given):
    """A payment as it was received."""

    payment_id: Id
    amount: Price
    kind: Text = ""
    installments: Annotated[int, Field(ge=1, le=120), BeforeValidator(_whole)] = 1


class Cancellation(_Given):
    """Why an order is called off."""

    reason: Text = ""


class NewAccount(_Given):
    """An account to open; without an `account_id` the shop finds one."""

    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$", examples=["EUR"])]
    account_id: Id | None = None


class Amount(_Given):
    """How much goes into an account, or out of it."""

    amount: Price


class MoneyView(BaseModel):
    """An amount of money."""

    amount: str
    currency: str

    @classmethod
    def of(cls, amount: Decimal, currency: str) -> Self:
        """Return an amount as it is shown, never with an exponent."""
        return cls(amount=f"{amount:f}", currency=currency)

    @classmethod
    def shown(cls, money: Money) -> Self:
        """Return money as it is shown."""
        return cls.of(money.amount, money.currency)


class ItemView(BaseModel):
    """A line of an order."""

    item_id: str
    product_id: str
    price: MoneyView
    freight: MoneyView


class PaymentView(BaseModel):
    """A payment for an order."""

    payment_id: str
    kind: str
    installments: int
    amount: MoneyView


class OrderView(BaseModel):
    """An order; `version` is in its ETag, too."""

    order_id: str
    version: int
    status: str
    customer_id: str
    total: MoneyView
    paid: MoneyView
    items: list[ItemView]
    payments: list[PaymentView]
    placed_at: dt.datetime | None
    confirmed_at: dt.datetime | None
    shipped_at: dt.datetime | None
    delivered_at: dt.datetime | None

    @classmethod
    def of(cls, order: Order) -> Self:
        """Return an order as it is shown."""
        return cls(
            order_id=order.key,
            version=order.version,
            status=order.status,
            customer_id=order.customer_id,
            total=MoneyView.of(order.total, order.currency),
            paid=MoneyView.of(order.paid, order.currency),
            items=[
                ItemView(
                    item_id=item.item_id,
                    product_id=item.product_id,
                    price=MoneyView.shown(item.price),
                    freight=MoneyView.shown(item.freight),
                )
                for item in order.items
            ],
            payments=[
                PaymentView(
                    payment_id=payment.payment_id,
                    kind=payment.kind,
                    installments=payment.installments,
                    amount=MoneyView.shown(payment.amount),
                )
                for payment in order.payments
            ],
            placed_at=order.placed_at,
            confirmed_at=order.confirmed_at,
            shipped_at=order.shipped_at,
            delivered_at=order.delivered_at,
        )


class AccountView(BaseModel):
    """An account; `version` is in its ETag, too."""

    account_id: str
    version: int
    status: str
    balance: MoneyView
    held: MoneyView
    available: MoneyView

    @classmethod
    def of(cls, account: Account) -> Self:
        """Return an account as it is shown."""
        currency = account.currency
        return cls(
            account_id=account.key,
            version=account.version,
            status=account.status,
            balance=MoneyView.of(account.balance, currency),
            held=MoneyView.of(account.held, currency),
            available=MoneyView.of(account.available, currency),
        )


class Flaw(BaseModel):
    """One thing that is wrong with a request: where, and what."""

    loc: list[str | int]
    msg: str
    type: str


class ProblemView(BaseModel):
    """What went wrong (RFC 9457)."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    errors: list[Flaw] | None = None


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return how the problems of an operation are described."""
    from http import HTTPStatus

    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemView"}}}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": content} for status in sorted(statuses)
    }

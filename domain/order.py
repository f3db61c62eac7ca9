"""Order: the reference aggregate for a shop's orders, from placed to delivered, cancelled or unavailable."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from decimal import Decimal
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field

from .aggregate import Aggregate, applies
from .errors import CommandRefused, IllegalTransition
from .event import Event
from .instant import Instant, ensure_aware
from .lifecycle import Lifecycle, Transition
from .money import Currency, CurrencyMismatch, Money, total

PAYABLE = ("placed", "confirmed", "processing", "invoiced", "shipped", "delivered")
"""States in which an order can be paid."""


class OrderItem(BaseModel):
    """A line of an order: what was bought, for how much, and what its transport costs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    item_id: str
    product_id: str
    price: Money
    freight: Money


class Payment(BaseModel):
    """A payment for an order, as it was received; `installments` is 1 when it was paid at once."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    payment_id: str
    kind: str
    installments: int
    amount: Money


class Refund(BaseModel):
    """Money of a payment that was given back, as it was noted."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    payment_id: str
    amount: Money
    reason: str


class OrderFact(Event):
    """What every event of an order has: `derived` is true where the source did not say when it happened."""

    derived: bool = False


class Order(Aggregate, category="order"):
    """A customer's order.

    Commands refuse what is not possible now with `IllegalTransition` (naming state and command), and what breaks
    another rule with `CommandRefused`. Facts from outside are added with `record`; in whatever order they come,
    the state is the same in the end, and `status` is the one of highest rank.
    """

    class Placed(OrderFact, name="order.placed"):
        """The customer ordered. `placed_on` is the day by the shop's calendar, to which its revenue is counted."""

        customer_id: str
        currency: Currency
        placed_on: dt.date
        items: tuple[OrderItem, ...] = ()
        estimated_delivery: Instant | None = None

    class PaymentReceived(OrderFact, name="order.payment_received"):
        """The customer paid all or a part, in `installments` if more than 1; `payment_id` is unique to the order."""

        payment_id: str
        kind: str = ""
        installments: Annotated[int, Field(ge=0)] = 1
        amount: Money

    class PaymentRefunded(OrderFact, name="order.payment_refunded"):
        """The shop gave back a payment, or a part of it."""

        payment_id: str
        amount: Money
        reason: str = ""

    class Confirmed(OrderFact, name="order.confirmed"):
        """The shop accepted the order."""

    class ProcessingStarted(OrderFact, name="order.processing_started"):
        """The shop began to gather the goods."""

    class Invoiced(OrderFact, name="order.invoiced"):
        """The shop wrote the invoice."""

    class Shipped(OrderFact, name="order.shipped"):
        """The carrier has the goods."""

    class Delivered(OrderFact, name="order.delivered"):
        """The customer has the goods."""

    class MarkedUnavailable(OrderFact, name="order.marked_unavailable"):
        """The shop cannot supply the goods."""

    class Cancelled(OrderFact, name="order.cancelled"):
        """The order was called off."""

        reason: str = ""

    lifecycle = Lifecycle(
        (
            "new",
            "placed",
            "confirmed",
            "processing",
            "invoiced",
            "shipped",
            "delivered",
            "unavailable",
            "cancelled",
        ),
        (
            Transition("place", Placed, ("new",), "placed"),
            Transition("confirm", Confirmed, ("placed",), "confirmed"),
            Transition("start processing", ProcessingStarted, ("confirmed",), "processing"),
            Transition("invoice", Invoiced, ("confirmed", "processing"), "invoiced"),
            Transition("ship", Shipped, ("confirmed", "processing", "invoiced"), "shipped"),
            Transition("deliver", Delivered, ("shipped",), "delivered"),
            Transition(
                "mark unavailable",
                MarkedUnavailable,
                ("placed", "confirmed", "processing", "invoiced"),
                "unavailable",
            ),
            Transition(
                "cancel",
                Cancelled,
                ("placed", "confirmed", "processing", "invoiced", "shipped", "unavailable"),
                "cancelled",
            ),
        ),
    )

    customer_id: str = ""
    placed_currency: str = ""
    placed_on: dt.date | None = None
    items: tuple[OrderItem, ...] = ()
    estimated_delivery: Instant | None = None
    payments: tuple[Payment, ...] = ()
    refunds: tuple[Refund, ...] = ()
    placed_at: Instant | None = None
    confirmed_at: Instant | None = None
    shipped_at: Instant | None = None
    delivered_at: Instant | None = None

    @property
    def currency(self) -> str:
        """The order's currency; before its placing is known the one of its first payment, else empty."""
        if self.placed_currency or not self.payments:
            return self.placed_currency
        return self.payments[0].amount.currency

    @property
    def paid(self) -> Decimal:
        """Sum of the payments in the order's currency."""
        return total(p.amount.amount for p in self.payments if p.amount.currency == self.currency)

    @property
    def refunded(self) -> Decimal:
        """Sum of the refunds in the order's currency."""
        return total(r.amount.amount for r in self.refunds if r.amount.currency == self.currency)

    @property
    def total(self) -> Decimal:
        """Sum of prices and freights of the items."""
        return total(part.amount for item in self.items for part in (item.price, item.freight))

    @classmethod
    def place(
        cls,
        order_id: str,
        customer_id: str,
        items: Iterable[OrderItem],
        *,
        at: dt.datetime,
        estimated_delivery: dt.datetime | None = None,
    ) -> Self:
        """Return a new order; its day is that of `at` in the zone that `at` has.

        Raises `CommandRefused` for no items, an item twice, a price that is not above zero or a freight below it,
        and `CurrencyMismatch` for items of different currencies.
        """
        order = cls.new(order_id)
        lines = tuple(items)
        if not lines:
            raise CommandRefused(f"cannot place {order.id} without items; give at least one")
        currency = lines[0].price.currency
        if len({line.item_id for line in lines}) != len(lines):
            raise CommandRefused(f"cannot place {order.id}: an item_id stands twice; number the lines")
        for line in lines:
            _require_positive(f"place {order.id}: price of item {line.item_id}", line.price, currency)
            if line.freight != Money.zero(currency):
                _require_positive(f"place {order.id}: freight of item {line.item_id}", line.freight, currency)
        order.emit(
            cls.Placed(
                customer_id=customer_id,
                currency=currency,
                placed_on=ensure_aware("at", at).date(),
                items=lines,
                estimated_delivery=estimated_delivery,
            ),
            at=at,
        )
        return order

    def receive_payment(
        self, payment_id: str, amount: Money, *, at: dt.datetime, kind: str = "", installments: int = 1
    ) -> None:
        """Take note of a payment; it need not be the whole sum.

        Raises `IllegalTransition` before placing and after the order was cancelled or marked unavailable,
        `CommandRefused` for an amount that is not above zero, a payment id that is known already or fewer
        installments than 1, and `CurrencyMismatch` for another currency.
        """
        if self.status not in PAYABLE:
            raise IllegalTransition(self.id, "receive payment for", self.status, PAYABLE)
        _require_positive(f"receive payment {payment_id} for {self.id}: amount", amount, self.currency)
        if any(payment.payment_id == payment_id for payment in self.payments):
            raise CommandRefused(
                f"cannot receive payment {payment_id} for {self.id}: a payment with this id was received; "
                "give each payment an id of its own"
            )
        if installments < 1:
            raise CommandRefused(
                f"cannot receive payment {payment_id} for {self.id}: expected 1 installment or more, "
                f"found {installments}"
            )
        self.emit(
            self.PaymentReceived(payment_id=payment_id, kind=kind, installments=installments, amount=amount),
            at=at,
        )

    def refund_payment(self, payment_id: str, amount: Money, *, at: dt.datetime, reason: str = "") -> None:
        """Give back a payment, or a part of it; possible in any state, as a payment may come when it is too late.

        Raises `CommandRefused` for a payment that is not known, an amount that is not above zero, and one that is more
        than what is left of the payment; `CurrencyMismatch` for another currency than the payment's.
        """
        what = f"refund payment {payment_id} of {self.id}"
        paid = next((each.amount for each in self.payments if each.payment_id == payment_id), None)
        if paid is None:
            raise CommandRefused(f"cannot {what}: there is no payment with this id")
        _require_positive(f"{what}: amount", amount, paid.currency)
        left = paid
        for refund in self.refunds:
            if refund.payment_id == payment_id:
                left -= refund.amount
        if amount > left:
            raise CommandRefused(
                f"cannot {what}: amount is {amount}, expected at most {left}, what is left of it"
            )
        self.emit(self.PaymentRefunded(payment_id=payment_id, amount=amount, reason=reason), at=at)

    def confirm(self, *, at: dt.datetime) -> None:
        """Accept the order; possible when placed."""
        self.emit(self.Confirmed(), at=at)

    def start_processing(self, *, at: dt.datetime) -> None:
        """Begin to gather the goods; possible when confirmed."""
        self.emit(self.ProcessingStarted(), at=at)

    def invoice(self, *, at: dt.datetime) -> None:
        """Write the invoice; possible when confirmed or processing."""
        self.emit(self.Invoiced(), at=at)

    def ship(self, *, at: dt.datetime) -> None:
        """Hand the goods to the carrier; possible when confirmed, processing or invoiced."""
        self.emit(self.Shipped(), at=at)

    def deliver(self, *, at: dt.datetime) -> None:
        """Hand the goods to the customer; possible when shipped."""
        self.emit(self.Delivered(), at=at)

    def mark_unavailable(self, *, at: dt.datetime) -> None:
        """Say that the goods cannot be supplied; possible after placing and before shipping."""
        self.emit(self.MarkedUnavailable(), at=at)

    def cancel(self, reason: str = "", *, at: dt.datetime) -> None:
        """Call the order off; possible after placing and before delivery."""
        self.emit(self.Cancelled(reason=reason), at=at)

    @applies(Placed)
    def _placed(self, event: Placed) -> None:
        if self.placed_on is not None and event.placed_on >= self.placed_on:
            return
        self.customer_id = event.customer_id
        self.placed_currency = event.currency
        self.placed_on = event.placed_on
        self.items = event.items
        self.estimated_delivery = event.estimated_delivery
        self.placed_at = event.meta.occurred_at

    @applies(PaymentReceived)
    def _payment_received(self, event: PaymentReceived) -> None:
        payment = Payment(
            payment_id=event.payment_id,
            kind=event.kind,
            installments=event.installments,
            amount=event.amount,
        )
        self.payments = tuple(sorted((*self.payments, payment), key=_place_among_payments))

    @applies(PaymentRefunded)
    def _payment_refunded(self, event: PaymentRefunded) -> None:
        refund = Refund(payment_id=event.payment_id, amount=event.amount, reason=event.reason)
        self.refunds = tuple(sorted((*self.refunds, refund), key=_place_among_refunds))

    @applies(Confirmed)
    def _confirmed(self, event: Confirmed) -> None:
        self.confirmed_at = _earlier(self.confirmed_at, event)

    @applies(Shipped)
    def _shipped(self, event: Shipped) -> None:
        self.shipped_at = _earlier(self.shipped_at, event)

    @applies(Delivered)
    def _delivered(self, event: Delivered) -> None:
        self.delivered_at = _earlier(self.delivered_at, event)


def _place_among_payments(payment: Payment) -> tuple[int, str, str, Decimal]:
    number = payment.payment_id
    return len(number), number, payment.amount.currency, payment.amount.amount


def _place_among_refunds(refund: Refund) -> tuple[int, str, str, Decimal, str]:
    number = refund.payment_id
    return len(number), number, refund.amount.currency, refund.amount.amount, refund.reason


def _earlier(known: dt.datetime | None, event: Event) -> dt.datetime | None:
    at = event.meta.occurred_at
    if known is None or at is None:
        return known or at
    return min(known, at)


def _require_positive(what: str, amount: Money, currency: str) -> None:
    if amount.currency != currency:
        raise CurrencyMismatch(f"cannot {what} is {amount}, expected an amount in {currency}")
    if amount.amount <= 0:
        raise CommandRefused(f"cannot {what} is {amount}, expected more than 0")

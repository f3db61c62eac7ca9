"""The order-payment process of the bundled shop: reserve, then confirm and take, or release and cancel."""

from __future__ import annotations

from dataclasses import field
from datetime import timedelta
from typing import ClassVar, Protocol, TypeVar

from ...domain.account import Account
from ...domain.aggregate import Aggregate, applies
from ...domain.errors import CommandRefused, IllegalTransition, UnstorableValue
from ...domain.event import Event
from ...domain.lifecycle import Lifecycle, Transition
from ...domain.money import CurrencyMismatch, Money
from ...domain.order import PAYABLE, Order
from ..process import ProcessManager, process_manager, reacts, timeout

A = TypeVar("A", bound=Aggregate)


class Transaction(Protocol):
    """What the process needs of a transaction."""

    def get(self, aggregate_class: type[A], key: str) -> A:
        """Return the aggregate with this key."""
        ...

    def find(self, aggregate_class: type[A], key: str) -> A | None:
        """Return the aggregate with this key, None if its stream has no events."""
        ...

    def save(self, aggregate: Aggregate) -> object:
        """Append what the aggregate decided."""
        ...


@process_manager("order_payment")
class OrderPayment(ProcessManager, category="order_payment"):
    """The payment of one order, from its placing to its end; the instance has the key of the order.

    The customer's account is the one whose key is the order's `customer_id`. Money that was paid for an order is in an
    account of its own, `account/order-KEY`, until the order has ended. Each step is one transaction:

    - placed: the total is held on the customer's account, and the payment awaited `within` a time. Where it cannot be
      held (no account, another currency, too little money), the order is cancelled.
    - payment while the hold is there: as much of it as was paid goes from the hold to the order's account. When nothing
      is left to pay, the order is confirmed. What is paid beyond is refunded.
    - timeout, cancellation, or goods that are unavailable: the hold is released, what was paid is refunded, the order
      is cancelled unless it is already, or is delivered.
    - payment at any other time (late, a second time, in another currency): refunded. It has been taken from the
      customer, so it is booked from the customer's account to the order's, and back.

    Refunds are booked as facts: they cannot be refused, whatever has become of the accounts. So in every moment the sum
    over all accounts is what it was, and in the end an order is either confirmed with its total in its account and no
    hold, or cancelled with nothing in its account and no hold. An order that was placed before the process was started
    is none of its business.
    """

    class Reserved(Event, name="order_payment.reserved"):
        """The total was held on the customer's account."""

        account: str
        amount: Money

    class Captured(Event, name="order_payment.captured"):
        """A payment, or as much of it as was awaited, went from the hold to the order's account."""

        payment_id: str
        amount: Money

    class Refunded(Event, name="order_payment.refunded"):
        """Money of a payment went back to the customer."""

        payment_id: str
        amount: Money
        reason: str

    class Completed(Event, name="order_payment.completed"):
        """Nothing is left to pay: the order was confirmed."""

    class Released(Event, name="order_payment.released"):
        """The process ended without the order: nothing is held, nothing is kept."""

        reason: str

    lifecycle = Lifecycle(
        ("new", "reserved", "paid", "released"),
        (
            Transition("reserve", Reserved, ("new",), "reserved"),
            Transition("complete", Completed, ("new", "reserved"), "paid"),
            Transition("release", Released, ("new", "reserved", "paid"), "released"),
        ),
    )

    within: ClassVar[timedelta] = timedelta(minutes=30)
    """How long a payment is awaited."""

    account: str = ""
    currency: str = ""
    rest: Money | None = None
    """What is held, and not paid yet."""
    kept: dict[str, Money] = field(default_factory=dict)
    """What was taken of each payment."""
    seen: tuple[str, ...] = ()

    @property
    def hold_id(self) -> str:
        """The id of the hold on the customer's account."""
        return Order.stream_of(self.key)

    @property
    def purse(self) -> str:
        """The key of the account of the order's own."""
        return f"order-{self.key}"

    @reacts(Order.Placed)
    def placed(self, event: Order.Placed, tx: Transaction) -> None:
        """Hold the total, or cancel the order."""
        if self.status != "new":
            return
        order = tx.get(Order, self.key)
        if order.status not in PAYABLE:
            self._call_off(order, "the order was called off before", tx)
            return
        amount = Money.of(order.total, order.currency)
        if amount.amount == 0:
            self._complete(order, tx)
            return
        try:
            account = tx.find(Account, order.customer_id)
            if account is None:
                raise CommandRefused(f"there is no account {order.customer_id}")
            account.place_hold(self.hold_id, amount, at=self.now, reason=order.id)
        except (CommandRefused, CurrencyMismatch, IllegalTransition, UnstorableValue) as refused:
            self._call_off(order, f"nothing could be held: {refused}", tx)
            return
        tx.save(account)
        self.emit(self.Reserved(account=account.key, amount=amount), at=self.now)
        self.timeout("payment", after=self.within)

    @reacts(Order.PaymentReceived)
    def paid(self, event: Order.PaymentReceived, tx: Transaction) -> None:
        """Take what is awaited of a payment, and refund the rest of it."""
        if self.status == "new" or event.payment_id in self.seen:
            return
        order = tx.get(Order, self.key)
        rest, amount = self.rest, event.amount
        if rest is None or rest.currency != amount.currency or order.status not in PAYABLE:
            why = "it came too late"
            if self.status == "paid":
                why = "the order was paid before"
            elif rest is not None and rest.currency != amount.currency:
                why = f"it is not in {rest.currency}"
            self._turn_back(order, event.payment_id, amount, why, tx)
            tx.save(order)
            return
        taken = min(amount, rest)
        self._capture(event.payment_id, taken, tx)
        if amount > taken:
            self._turn_back(order, event.payment_id, amount - taken, "it is more than the order costs", tx)
        if self.rest is None:
            self._complete(order, tx)
        else:
            tx.save(order)

    @timeout("payment")
    def overdue(self, tx: Transaction) -> None:
        """Give the order up."""
        if self.status == "reserved":
            self._call_off(tx.get(Order, self.key), "it was not paid in time", tx)

    @reacts(Order.Cancelled, Order.MarkedUnavailable)
    def called_off(self, event: Order.Cancelled | Order.MarkedUnavailable, tx: Transaction) -> None:
        """Give back what is held and what was paid."""
        if self.status in ("reserved", "paid"):
            why = (
                "the order was cancelled"
                if isinstance(event, Order.Cancelled)
                else "the goods are unavailable"
            )
            self._call_off(tx.get(Order, self.key), why, tx)

    def _complete(self, order: Order, tx: Transaction) -> None:
        if order.status == "placed":
            order.confirm(at=self.now)
        tx.save(order)
        self.emit(self.Completed(), at=self.now)
        self.forget("payment")

    def _call_off(self, order: Order, reason: str, tx: Transaction) -> None:
        if self.rest is not None:
            account = tx.get(Account, self.account)
            account.release_hold(self.hold_id, at=self.now)
            tx.save(account)
        for payment_id, amount in self.kept.items():
            self._give_back(order, payment_id, amount, reason, tx)
        if order.status not in ("cancelled", "delivered"):
            order.cancel(reason, at=self.now)
        tx.save(order)
        self.emit(self.Released(reason=reason), at=self.now)
        self.forget("payment")

    def _capture(self, payment_id: str, amount: Money, tx: Transaction) -> None:
        assert self.rest is not None
        account = tx.get(Account, self.account)
        account.capture_hold(self.hold_id, amount, at=self.now)
        if amount < self.rest:
            # A capture ends a hold; the rest is still awaited.
            account.place_hold(self.hold_id, self.rest - amount, at=self.now, reason=self.hold_id)
        tx.save(account)
        purse = self._purse(tx)
        purse.deposit(amount, at=self.now, operation="payment", counterparty=account.id)
        tx.save(purse)
        self.emit(self.Captured(payment_id=payment_id, amount=amount), at=self.now)

    def _turn_back(self, order: Order, payment_id: str, amount: Money, reason: str, tx: Transaction) -> None:
        """Book a payment that nobody awaits, and refund it."""
        account = tx.find(Account, self.account) if self.account else None
        if account is not None:
            purse = self._purse(tx)
            account.record(
                Account.Withdrawn(amount=amount, operation="payment", counterparty=purse.id), at=self.now
            )
            purse.record(
                Account.Deposited(amount=amount, operation="payment", counterparty=account.id), at=self.now
            )
            tx.save(account)
            tx.save(purse)
        self._give_back(order, payment_id, amount, reason, tx)

    def _give_back(self, order: Order, payment_id: str, amount: Money, reason: str, tx: Transaction) -> None:
        account = tx.find(Account, self.account) if self.account else None
        if account is not None:
            purse = self._purse(tx)
            purse.record(
                Account.Withdrawn(amount=amount, operation="refund", counterparty=account.id), at=self.now
            )
            account.record(
                Account.Deposited(amount=amount, operation="refund", counterparty=purse.id), at=self.now
            )
            tx.save(purse)
            tx.save(account)
        order.refund_payment(payment_id, amount, at=self.now, reason=reason)
        self.emit(self.Refunded(payment_id=payment_id, amount=amount, reason=reason), at=self.now)

    def _purse(self, tx: Transaction) -> Account:
        return tx.find(Account, self.purse) or Account.open(self.purse, self.currency, at=self.now)

    @applies(Reserved)
    def _reserved(self, event: Reserved) -> None:
        self.account = event.account
        self.currency = event.amount.currency
        self.rest = event.amount

    @applies(Captured)
    def _captured(self, event: Captured) -> None:
        assert self.rest is not None
        self.rest = self.rest - event.amount if event.amount < self.rest else None
        self.kept = {**self.kept, event.payment_id: event.amount}
        self._note(event.payment_id)

    @applies(Refunded)
    def _refunded(self, event: Refunded) -> None:
        # What is kept goes back when all ends; what goes back before was never kept.
        self._note(event.payment_id)

    @applies(Released)
    def _released(self, event: Released) -> None:
        self.rest = None
        self.kept = {}

    def _note(self, payment_id: str) -> None:
        if payment_id not in self.seen:
            self.seen = (*self.seen, payment_id)

"""The simulation: a year of a shop, decided by the commands of Order and Account, the same for the same seed."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count
from random import Random
from typing import Any

from ...domain.account import Account
from ...domain.aggregate import Aggregate
from ...domain.errors import CommandRefused
from ...domain.event import Event
from ...domain.money import Money
from ...domain.order import Order, OrderItem

OPENING = datetime(2025, 1, 1, tzinfo=UTC)
CLOSING = datetime(2026, 1, 1, tzinfo=UTC)
CURRENCY = "EUR"
ORDERS_PER_CUSTOMER = 5
CANCELLABLE = ("placed", "confirmed", "processing", "invoiced", "shipped")


@dataclass(frozen=True, slots=True)
class Simulation:
    """What happened: `events` in the order of time, and the aggregates as they were in the end, by stream."""

    events: Sequence[Event]
    orders: dict[str, Order]
    accounts: dict[str, Account]


def simulate(orders: int, seed: int) -> Simulation:
    """Return a year with this many orders; the same arguments give the same events."""
    shop = _Shop(Random(f"onefold {seed}"), orders)  # noqa: S311 - a simulation, not a secret
    shop.run()
    return Simulation(shop.events, shop.orders, shop.accounts)


class _Shop:
    """The shop and its customers: an agenda of actions in the order of time."""

    def __init__(self, random: Random, orders: int) -> None:
        self.random = random
        self.events: list[Event] = []
        self.orders: dict[str, Order] = {}
        self.accounts: dict[str, Account] = {}
        self._agenda: list[tuple[datetime, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = count()
        self._customers = [f"customer-{number:05}" for number in range(1, orders // ORDERS_PER_CUSTOMER + 2)]
        self._prices = [
            (f"product-{number:03}", Decimal(random.randint(390, 24_900)).scaleb(-2))
            for number in range(1, 81)
        ]
        for customer in self._customers:
            self._plan(OPENING + self._up_to(timedelta(days=2)), self._open, customer)
        year = CLOSING - OPENING
        for number, share in enumerate(sorted(random.random() for _ in range(orders)), 1):
            at = OPENING + timedelta(days=2) + (year - timedelta(days=2)) * share
            self._plan(at, self._place, f"{number:06}")

    def run(self) -> None:
        """Act until the year is over; what would come later stays undone."""
        while self._agenda:
            at, _, action, arguments = heapq.heappop(self._agenda)
            if at < CLOSING:
                action(*arguments, at)

    def _plan(self, at: datetime, action: Callable[..., None], *arguments: Any) -> None:
        """Have `action` called with the arguments and the instant when its time has come."""
        heapq.heappush(self._agenda, (at.replace(microsecond=0), next(self._numbers), action, arguments))

    def _up_to(self, longest: timedelta) -> timedelta:
        return longest * self.random.random()

    def _between(self, shortest: timedelta, longest: timedelta) -> timedelta:
        return shortest + self._up_to(longest - shortest)

    def _chance(self, share: float) -> bool:
        return self.random.random() < share

    def _keep(self, aggregate: Aggregate) -> None:
        self.events += aggregate.pending
        aggregate.saved(aggregate.pending)

    def _open(self, customer: str, at: datetime) -> None:
        account = Account.open(customer, CURRENCY, at=at, frequency="monthly")
        self.accounts[customer] = account
        account.deposit(self._money(5_000, 60_000), at=at, operation="opening")
        if self._chance(0.2):
            account.grant_overdraft(Money.of(self.random.choice((500, 1000, 2000)), CURRENCY), at=at)
        self._keep(account)
        top_up = self._money(6_000, 30_000)
        self._plan(at + timedelta(days=30), self._top_up, account, top_up)

    def _top_up(self, account: Account, amount: Money, at: datetime) -> None:
        account.deposit(amount, at=at, operation="top-up")
        self._keep(account)
        self._plan(at + timedelta(days=30), self._top_up, account, amount)

    def _place(self, key: str, at: datetime) -> None:
        customer = self.random.choice(self._customers)
        lines = [
            OrderItem(
                item_id=str(number),
                product_id=product,
                price=Money.of(price, CURRENCY),
                freight=self._money(0, 1_290),
            )
            for number, (product, price) in enumerate(
                self.random.choices(self._prices, k=self.random.choice((1, 1, 1, 2, 2, 3, 4))), 1
            )
        ]
        order = Order.place(key, customer, lines, at=at, estimated_delivery=at + timedelta(days=14))
        self.orders[key] = order
        self._keep(order)
        account = self.accounts[customer]
        if self._chance(0.05):
            self._plan(at + self._up_to(timedelta(days=6)), self._cancel, order, account)
        later = at + self._between(timedelta(minutes=1), timedelta(hours=8))
        kind = self.random.choice(("transfer", "transfer", "transfer", "card", "voucher"))
        match kind:
            case "card":
                self._plan(later, self._reserve, order, account)
            case "voucher":
                self._plan(later, self._redeem, order, account)
            case _:
                self._plan(later, self._transfer, order, account, 3)

    def _redeem(self, order: Order, account: Account, at: datetime) -> None:
        """A voucher for a part; the rest comes by transfer."""
        if order.status != "placed":
            return
        half = Money.of((order.total / 2).quantize(Decimal("0.01")), CURRENCY)
        if half.amount > 0:
            order.receive_payment("1", half, at=at, kind="voucher")
            self._keep(order)
        self._plan(at + self._up_to(timedelta(hours=2)), self._transfer, order, account, 3)

    def _transfer(self, order: Order, account: Account, tries: int, at: datetime) -> None:
        if order.status != "placed":
            return
        due = Money.of(order.total - order.paid, CURRENCY)
        try:
            account.withdraw(due, at=at, operation="transfer", k_symbol=order.key, counterparty="shop")
        except CommandRefused:
            if tries > 1:
                self._plan(
                    at + self._between(timedelta(days=1), timedelta(days=9)),
                    self._transfer,
                    order,
                    account,
                    tries - 1,
                )
            else:
                order.cancel("not paid", at=at)
                self._keep(order)
            return
        self._keep(account)
        self._pay(order, due, "transfer", at)
        self._plan(
            at + self._between(timedelta(minutes=5), timedelta(hours=4)),
            self._confirm,
            order,
            account,
        )

    def _reserve(self, order: Order, account: Account, at: datetime) -> None:
        """A card: the amount is held now and captured with the shipping."""
        if order.status != "placed":
            return
        try:
            account.place_hold(order.key, Money.of(order.total, CURRENCY), at=at, reason="card")
        except CommandRefused:
            order.cancel("card declined", at=at)
            self._keep(order)
            return
        self._keep(account)
        self._plan(
            at + self._between(timedelta(minutes=1), timedelta(hours=1)),
            self._confirm,
            order,
            account,
        )

    def _pay(self, order: Order, amount: Money, kind: str, at: datetime) -> None:
        order.receive_payment(str(len(order.payments) + 1), amount, at=at, kind=kind)
        self._keep(order)

    def _confirm(self, order: Order, account: Account, at: datetime) -> None:
        if order.status != "placed":
            return
        order.confirm(at=at)
        self._keep(order)
        if self._chance(0.02):
            self._plan(at + self._up_to(timedelta(days=2)), self._run_out, order, account)
        if self._chance(0.6):
            self._plan(at + self._up_to(timedelta(hours=12)), self._process, order)
        self._plan(
            at + self._between(timedelta(hours=13), timedelta(days=4)),
            self._ship,
            order,
            account,
        )

    def _process(self, order: Order, at: datetime) -> None:
        if order.status != "confirmed":
            return
        order.start_processing(at=at)
        self._keep(order)
        if self._chance(0.5):
            self._plan(at + timedelta(minutes=20), self._invoice, order)

    def _invoice(self, order: Order, at: datetime) -> None:
        if order.status == "processing":
            order.invoice(at=at)
            self._keep(order)

    def _ship(self, order: Order, account: Account, at: datetime) -> None:
        if order.status not in ("confirmed", "processing", "invoiced"):
            return
        if order.key in account.holds:
            held = account.holds[order.key]
            account.capture_hold(order.key, at=at)
            self._keep(account)
            self._pay(order, held, "card", at)
        order.ship(at=at)
        self._keep(order)
        self._plan(at + self._between(timedelta(days=1), timedelta(days=12)), self._deliver, order)

    def _deliver(self, order: Order, at: datetime) -> None:
        if order.status == "shipped":
            order.deliver(at=at)
            self._keep(order)

    def _run_out(self, order: Order, account: Account, at: datetime) -> None:
        if order.status in ("confirmed", "processing", "invoiced"):
            order.mark_unavailable(at=at)
            self._keep(order)
            self._give_back(order, account, at)

    def _cancel(self, order: Order, account: Account, at: datetime) -> None:
        if order.status in CANCELLABLE:
            order.cancel("changed mind", at=at)
            self._keep(order)
            self._give_back(order, account, at)

    def _give_back(self, order: Order, account: Account, at: datetime) -> None:
        if order.key in account.holds:
            account.release_hold(order.key, at=at)
        if order.paid > 0:
            account.deposit(
                Money.of(order.paid, CURRENCY),
                at=at,
                operation="refund",
                k_symbol=order.key,
                counterparty="shop",
            )
        self._keep(account)

    def _money(self, lowest: int, highest: int) -> Money:
        return Money.of(Decimal(self.random.randint(lowest, highest)).scaleb(-2), CURRENCY)

"""Account: the reference aggregate for money in an account, with overdraft and holds."""

from __future__ import annotations

import datetime as dt
from dataclasses import field
from decimal import Decimal
from typing import Self

from .aggregate import Aggregate, applies
from .errors import CommandRefused, IllegalTransition
from .event import Event
from .instant import Instant, ensure_aware
from .lifecycle import Lifecycle, Transition
from .money import Currency, CurrencyMismatch, Money, minus, plus, total


class Movement(Event):
    """What deposits and withdrawals have: an amount, and what the bank noted about it (empty: nothing).

    `booked_on` is the day by the bank's calendar where the source knows only days. `reported_balance` is the
    balance that the source printed beside the movement: kept as data, not believed.
    """

    amount: Money
    operation: str = ""
    k_symbol: str = ""
    bank: str = ""
    counterparty: str = ""
    booked_on: dt.date | None = None
    reported_balance: Money | None = None


class Account(Aggregate, category="account"):
    """An account in one currency: its balance is what was deposited less what was withdrawn.

    Commands refuse with `IllegalTransition` when the account is not open, and with `CommandRefused` when they break
    another rule. Facts from outside are added with `record`: they happened, also when they take the
    balance below zero or come before the opening.
    """

    class Opened(Event, name="account.opened"):
        """The account was opened; `frequency` says how often statements are sent, `district` where it is kept."""

        currency: Currency
        opened_on: dt.date
        frequency: str = ""
        district: str = ""

    class Deposited(Movement, name="account.deposited"):
        """Money came in."""

    class Withdrawn(Movement, name="account.withdrawn"):
        """Money went out."""

    class OverdraftGranted(Event, name="account.overdraft_granted"):
        """The balance may fall to `limit` below zero, from now on."""

        limit: Money

    class Overdrawn(Event, name="account.overdrawn"):
        """The balance fell from zero or above to below zero; a note that moves no money."""

        balance: Money

    class HoldPlaced(Event, name="account.hold_placed"):
        """An amount was set aside: it is still in the balance and can no longer be withdrawn."""

        hold_id: str
        amount: Money
        reason: str = ""

    class HoldReleased(Event, name="account.hold_released"):
        """A hold ended without money going out."""

        hold_id: str

    class HoldCaptured(Event, name="account.hold_captured"):
        """A hold ended and `amount` went out, at most what was held; the rest is free again."""

        hold_id: str
        amount: Money

    class Closed(Event, name="account.closed"):
        """The account was closed."""

    lifecycle = Lifecycle(
        ("new", "open", "closed"),
        (
            Transition("open", Opened, ("new",), "open"),
            Transition("close", Closed, ("open",), "closed"),
        ),
    )

    opened_on: dt.date | None = None
    opened_currency: str = ""
    frequency: str = ""
    district: str = ""
    balances: dict[str, Decimal] = field(default_factory=dict)
    overdraft: Money | None = None
    overdraft_since: Instant | None = None
    holds: dict[str, Money] = field(default_factory=dict)
    ended_early: tuple[str, ...] = ()
    """Holds whose end is known and whose beginning is not, yet."""

    @property
    def currency(self) -> str:
        """The account's currency; before its opening is known that of its movements, empty without any."""
        return self.opened_currency or min(self.balances, default="")

    @property
    def balance(self) -> Decimal:
        """Deposits less withdrawals, in the account's currency."""
        return self.balances.get(self.currency, Decimal(0))

    @property
    def held(self) -> Decimal:
        """Sum of the holds in the account's currency."""
        return total(hold.amount for hold in self.holds.values() if hold.currency == self.currency)

    @property
    def available(self) -> Decimal:
        """What can be withdrawn now: balance and overdraft less holds."""
        limit = self.overdraft
        granted = limit.amount if limit is not None and limit.currency == self.currency else Decimal(0)
        return minus(plus(self.balance, granted), self.held)

    @classmethod
    def open(
        cls,
        account_id: str,
        currency: str,
        *,
        at: dt.datetime,
        opened_on: dt.date | None = None,
        frequency: str = "",
        district: str = "",
    ) -> Self:
        """Return a new account without money; left out, `opened_on` is the day of `at` in its own zone."""
        account = cls.new(account_id)
        account.emit(
            cls.Opened(
                currency=currency, opened_on=opened_on or at.date(), frequency=frequency, district=district
            ),
            at=at,
        )
        return account

    def deposit(
        self,
        amount: Money,
        *,
        at: dt.datetime,
        operation: str = "",
        k_symbol: str = "",
        bank: str = "",
        counterparty: str = "",
    ) -> None:
        """Take money in; raises `CommandRefused` for an amount that is not above zero."""
        self._require_open("deposit into")
        self._require_amount("deposit into", amount)
        self.emit(
            self.Deposited(
                amount=amount, operation=operation, k_symbol=k_symbol, bank=bank, counterparty=counterparty
            ),
            at=at,
        )

    def withdraw(
        self,
        amount: Money,
        *,
        at: dt.datetime,
        operation: str = "",
        k_symbol: str = "",
        bank: str = "",
        counterparty: str = "",
    ) -> None:
        """Pay money out; raises `CommandRefused` for more than balance and overdraft less holds.

        An `Overdrawn` follows where the balance falls below zero.
        """
        self._require_open("withdraw from")
        self._require_amount("withdraw from", amount)
        self._require_available("withdraw", amount)
        before = self.balance
        self.emit(
            self.Withdrawn(
                amount=amount, operation=operation, k_symbol=k_symbol, bank=bank, counterparty=counterparty
            ),
            at=at,
        )
        self._note_overdrawn(before, at)

    def grant_overdraft(self, limit: Money, *, at: dt.datetime) -> None:
        """Let the balance fall to `limit` below zero; zero takes the overdraft back.

        Raises `CommandRefused` for a limit below zero, or below what is overdrawn or held already, and for a time
        before that of the limit in force.
        """
        self._require_open("grant overdraft to")
        self._require_currency("grant overdraft to", limit)
        if limit.amount < 0:
            raise CommandRefused(f"cannot grant overdraft to {self.id}: limit is {limit}, expected 0 or more")
        free = minus(self.balance, self.held)
        if plus(free, limit.amount) < 0:
            raise CommandRefused(
                f"cannot grant overdraft to {self.id}: limit is {limit}, but "
                f"{-Money.of(free, self.currency)} of overdraft is in use"
            )
        if self.overdraft_since is not None and ensure_aware("at", at) < self.overdraft_since:
            raise CommandRefused(
                f"cannot grant overdraft to {self.id} as of {at.isoformat()}: "
                f"the limit in force is of {self.overdraft_since.isoformat()}"
            )
        self.emit(self.OverdraftGranted(limit=limit), at=at)

    def place_hold(self, hold_id: str, amount: Money, *, at: dt.datetime, reason: str = "") -> None:
        """Set an amount aside; raises `CommandRefused` for more than is available or a hold id in use."""
        self._require_open("place hold on")
        self._require_amount("place hold on", amount)
        if hold_id in self.holds:
            raise CommandRefused(
                f"cannot place hold on {self.id}: hold {hold_id} is in place; give another id"
            )
        self._require_available("hold", amount)
        self.emit(self.HoldPlaced(hold_id=hold_id, amount=amount, reason=reason), at=at)

    def release_hold(self, hold_id: str, *, at: dt.datetime) -> None:
        """Free what a hold set aside; raises `CommandRefused` when there is no such hold."""
        self._require_open("release hold of")
        self._require_hold("release hold of", hold_id)
        self.emit(self.HoldReleased(hold_id=hold_id), at=at)

    def capture_hold(self, hold_id: str, amount: Money | None = None, *, at: dt.datetime) -> None:
        """Pay out what a hold set aside, or a part of it; the rest is free again.

        Raises `CommandRefused` when there is no such hold or it holds less.
        """
        self._require_open("capture hold of")
        hold = self._require_hold("capture hold of", hold_id)
        taken = hold if amount is None else amount
        self._require_amount("capture hold of", taken)
        if taken > hold:
            raise CommandRefused(f"cannot capture {taken} of hold {hold_id} of {self.id}: it holds {hold}")
        before = self.balance
        self.emit(self.HoldCaptured(hold_id=hold_id, amount=taken), at=at)
        self._note_overdrawn(before, at)

    def close(self, *, at: dt.datetime) -> None:
        """Close the account; raises `CommandRefused` while there is money in it, owed to it, or held."""
        self._require_open("close")
        if self.balance != 0 or self.holds:
            raise CommandRefused(
                f"cannot close {self.id}: expected balance 0 and no holds, "
                f"found {Money.of(self.balance, self.currency)} and {len(self.holds)} holds"
            )
        self.emit(self.Closed(), at=at)

    def _require_open(self, command: str) -> None:
        if self.status != "open":
            raise IllegalTransition(self.id, command, self.status, ("open",))

    def _require_currency(self, command: str, amount: Money) -> None:
        if amount.currency != self.currency:
            raise CurrencyMismatch(f"cannot {command} {self.id}: expected {self.currency}, found {amount}")

    def _require_amount(self, command: str, amount: Money) -> None:
        self._require_currency(command, amount)
        if amount.amount <= 0:
            raise CommandRefused(f"cannot {command} {self.id}: amount is {amount}, expected more than 0")

    def _require_available(self, verb: str, amount: Money) -> None:
        if amount.amount > self.available:
            raise CommandRefused(
                f"cannot {verb} {amount} from {self.id}: {Money.of(self.available, self.currency)} is available "
                f"(balance {self.balance}, held {self.held})"
            )

    def _require_hold(self, command: str, hold_id: str) -> Money:
        hold = self.holds.get(hold_id)
        if hold is None:
            raise CommandRefused(f"cannot {command} {self.id}: there is no hold {hold_id}")
        return hold

    def _note_overdrawn(self, before: Decimal, at: dt.datetime) -> None:
        if before >= 0 > self.balance:
            self.emit(self.Overdrawn(balance=Money.of(self.balance, self.currency)), at=at)

    @applies(Opened)
    def _opened(self, event: Opened) -> None:
        if self.opened_on is None or event.opened_on < self.opened_on:
            self.opened_on = event.opened_on
            self.opened_currency = event.currency
            self.frequency = event.frequency
            self.district = event.district

    @applies(Deposited)
    def _deposited(self, event: Deposited) -> None:
        self._move(event.amount)

    @applies(Withdrawn)
    def _withdrawn(self, event: Withdrawn) -> None:
        self._move(-event.amount)

    @applies(OverdraftGranted)
    def _overdraft_granted(self, event: OverdraftGranted) -> None:
        at, since = event.meta.occurred_at, self.overdraft_since
        if at is None or since is None or at >= since:
            self.overdraft = event.limit
            self.overdraft_since = at

    @applies(HoldPlaced)
    def _hold_placed(self, event: HoldPlaced) -> None:
        if event.hold_id in self.ended_early:
            self.ended_early = tuple(known for known in self.ended_early if known != event.hold_id)
        else:
            self.holds = {**self.holds, event.hold_id: event.amount}

    @applies(HoldReleased)
    def _hold_released(self, event: HoldReleased) -> None:
        self._end_hold(event.hold_id)

    @applies(HoldCaptured)
    def _hold_captured(self, event: HoldCaptured) -> None:
        self._end_hold(event.hold_id)
        self._move(-event.amount)

    def _move(self, amount: Money) -> None:
        known = self.balances.get(amount.currency, Decimal(0))
        self.balances = {**self.balances, amount.currency: plus(known, amount.amount)}

    def _end_hold(self, hold_id: str) -> None:
        if hold_id in self.holds:
            self.holds = {known: hold for known, hold in self.holds.items() if known != hold_id}
        else:
            self.ended_early = tuple(sorted((*self.ended_early, hold_id)))

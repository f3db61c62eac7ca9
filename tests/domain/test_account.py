"""Account: money in and out, overdraft and holds; commands refuse, facts are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.domain.account import Account
from onefold.domain.aggregate import SnapshotCodec
from onefold.domain.errors import CommandRefused, IllegalTransition
from onefold.domain.event import Event, EventMeta, encode
from onefold.domain.instant import NaiveInstant
from onefold.domain.money import CurrencyMismatch, Money
from onefold.domain.registry import registry

AT = datetime(1993, 1, 1, 12, tzinfo=UTC)


def czk(amount: str | int) -> Money:
    return Money.of(amount, "CZK")


def opened(balance: str | int = 0) -> Account:
    account = Account.open("576", "CZK", at=AT, frequency="monthly", district="55")
    if balance:
        account.deposit(czk(balance), at=AT)
    return account


def names(account: Account) -> list[str]:
    return [event.event_name.removeprefix("account.") for event in account.pending]


def test_an_account_is_opened_empty() -> None:
    account = opened()
    assert (account.id, account.status, account.currency, account.balance) == (
        "account/576",
        "open",
        "CZK",
        0,
    )
    assert (account.opened_on, account.frequency, account.district) == (date(1993, 1, 1), "monthly", "55")
    assert Account.open("1", "CZK", at=AT, opened_on=date(1992, 12, 31)).opened_on == date(1992, 12, 31)


def test_times_have_a_zone() -> None:
    with pytest.raises(NaiveInstant):
        Account.open("1", "CZK", at=datetime.fromisoformat("1993-01-01T12:00:00"))


def test_the_balance_is_deposits_less_withdrawals() -> None:
    account = opened("900.00")
    account.deposit(czk("0.10"), at=AT, operation="VKLAD", k_symbol="UROK", bank="AB", counterparty="123")
    account.withdraw(czk("900.05"), at=AT, operation="VYBER", k_symbol="SIPO", bank="CD", counterparty="456")
    assert account.balance == Decimal("0.05")
    assert names(account) == ["opened", "deposited", "deposited", "withdrawn"]
    deposited, withdrawn = account.pending[2:]
    assert isinstance(deposited, Account.Deposited)
    assert isinstance(withdrawn, Account.Withdrawn)
    assert (deposited.operation, deposited.k_symbol, deposited.bank, deposited.counterparty) == (
        "VKLAD",
        "UROK",
        "AB",
        "123",
    )
    assert (withdrawn.operation, withdrawn.k_symbol, withdrawn.bank, withdrawn.counterparty) == (
        "VYBER",
        "SIPO",
        "CD",
        "456",
    )


COMMANDS: dict[str, Callable[[Account], None]] = {
    "deposit into": lambda account: account.deposit(czk(1), at=AT),
    "withdraw from": lambda account: account.withdraw(czk(1), at=AT),
    "grant overdraft to": lambda account: account.grant_overdraft(czk(1), at=AT),
    "place hold on": lambda account: account.place_hold("h", czk(1), at=AT),
    "release hold of": lambda account: account.release_hold("h", at=AT),
    "capture hold of": lambda account: account.capture_hold("h", at=AT),
    "close": lambda account: account.close(at=AT),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("state", ["new", "closed"])
def test_only_an_open_account_takes_commands(command: str, state: str) -> None:
    account = Account.new("576") if state == "new" else opened()
    if state == "closed":
        account.close(at=AT)
    with pytest.raises(
        IllegalTransition,
        match=f"cannot {command} account/576: it is {state}; {command} is possible when open",
    ):
        COMMANDS[command](account)
    assert account.status == state


def test_an_account_is_not_opened_twice() -> None:
    with pytest.raises(IllegalTransition, match="cannot open account/576: it is open"):
        opened().emit(Account.Opened(currency="CZK", opened_on=AT.date()), at=AT)


AMOUNTS: list[Callable[[Account, Money], None]] = [
    lambda account, amount: account.deposit(amount, at=AT),
    lambda account, amount: account.withdraw(amount, at=AT),
    lambda account, amount: account.place_hold("new", amount, at=AT),
    lambda account, amount: account.capture_hold("h", amount, at=AT),
]


@pytest.mark.parametrize("command", AMOUNTS)
def test_amounts_are_above_zero_and_in_the_accounts_currency(
    command: Callable[[Account, Money], None],
) -> None:
    account = opened(100)
    account.place_hold("h", czk(10), at=AT)
    for amount in (czk(0), czk("-0.01")):
        with pytest.raises(CommandRefused, match=rf"account/576: amount is {amount}, expected more than 0"):
            command(account, amount)
    with pytest.raises(CurrencyMismatch, match=r"account/576: expected CZK, found 5 EUR"):
        command(account, Money.of(5, "EUR"))
    assert (account.balance, account.held, account.version) == (100, 10, 3)


def test_no_more_is_paid_out_than_is_there() -> None:
    account = opened(100)
    with pytest.raises(
        CommandRefused,
        match=r"cannot withdraw 100.01 CZK from account/576: 100 CZK is available \(balance 100, held 0\)",
    ):
        account.withdraw(czk("100.01"), at=AT)
    account.withdraw(czk(100), at=AT)
    assert (account.balance, names(account)[-1]) == (0, "withdrawn")


def test_an_overdraft_lets_the_balance_fall_below_zero_and_that_is_noted_once() -> None:
    account = opened(10)
    account.grant_overdraft(czk(50), at=AT)
    assert account.available == 60
    account.withdraw(czk(20), at=AT)
    account.withdraw(czk(40), at=AT)
    assert names(account)[3:] == ["withdrawn", "overdrawn", "withdrawn"]
    assert account.balance == -50
    with pytest.raises(CommandRefused, match="0 CZK is available"):
        account.withdraw(czk("0.01"), at=AT)
    account.deposit(czk(50), at=AT)
    account.withdraw(czk(1), at=AT)
    note = account.pending[-1]
    assert isinstance(note, Account.Overdrawn)
    assert note.balance == czk(-1)


def test_an_overdraft_cannot_be_taken_back_while_it_is_used() -> None:
    account = opened(10)
    account.grant_overdraft(czk(50), at=AT)
    account.withdraw(czk(20), at=AT)
    account.place_hold("h", czk(5), at=AT)
    with pytest.raises(CommandRefused, match=r"limit is 14 CZK, but 15 CZK of overdraft is in use"):
        account.grant_overdraft(czk(14), at=AT)
    account.grant_overdraft(czk(15), at=AT)
    assert account.available == 0
    account.deposit(czk(15), at=AT)
    account.grant_overdraft(czk(0), at=AT)
    assert account.overdraft == czk(0)


def test_an_overdraft_limit_is_not_below_zero_nor_in_another_currency() -> None:
    with pytest.raises(CommandRefused, match="limit is -1 CZK, expected 0 or more"):
        opened().grant_overdraft(czk(-1), at=AT)
    with pytest.raises(CurrencyMismatch, match="expected CZK, found 1 EUR"):
        opened().grant_overdraft(Money.of(1, "EUR"), at=AT)


def test_an_overdraft_is_not_granted_backwards_in_time() -> None:
    account = opened()
    account.grant_overdraft(czk(50), at=AT)
    with pytest.raises(
        CommandRefused, match=r"as of 1993-01-01T11:00.*the limit in force is of 1993-01-01T12:00"
    ):
        account.grant_overdraft(czk(10), at=AT - timedelta(hours=1))
    account.grant_overdraft(czk(10), at=AT)
    assert account.overdraft == czk(10)


def test_a_hold_keeps_money_from_being_withdrawn() -> None:
    account = opened(100)
    account.place_hold("hotel", czk(70), at=AT, reason="booking")
    assert (account.balance, account.held, account.available) == (100, 70, 30)
    with pytest.raises(CommandRefused, match=r"30 CZK is available \(balance 100, held 70\)"):
        account.withdraw(czk(31), at=AT)
    with pytest.raises(CommandRefused, match="cannot hold 31 CZK from account/576: 30 CZK is available"):
        account.place_hold("car", czk(31), at=AT)
    with pytest.raises(CommandRefused, match="hold hotel is in place; give another id"):
        account.place_hold("hotel", czk(1), at=AT)
    account.release_hold("hotel", at=AT)
    assert (account.held, account.available) == (0, 100)


def test_a_captured_hold_is_paid_out_whole_or_in_part() -> None:
    account = opened(100)
    account.place_hold("a", czk(40), at=AT)
    account.place_hold("b", czk(40), at=AT)
    account.capture_hold("a", at=AT)
    account.capture_hold("b", czk("15.50"), at=AT)
    assert (account.balance, account.held, account.available) == (Decimal("44.50"), 0, Decimal("44.50"))
    with pytest.raises(CommandRefused, match="cannot capture hold of account/576: there is no hold a"):
        account.capture_hold("a", at=AT)
    with pytest.raises(CommandRefused, match="cannot release hold of account/576: there is no hold a"):
        account.release_hold("a", at=AT)


def test_no_more_is_captured_than_is_held() -> None:
    account = opened(100)
    account.place_hold("a", czk(40), at=AT)
    with pytest.raises(
        CommandRefused, match=r"cannot capture 40.01 CZK of hold a of account/576: it holds 40 CZK"
    ):
        account.capture_hold("a", czk("40.01"), at=AT)


def test_capturing_into_the_overdraft_is_noted() -> None:
    account = opened(10)
    account.grant_overdraft(czk(50), at=AT)
    account.place_hold("a", czk(20), at=AT)
    account.capture_hold("a", at=AT)
    assert names(account)[-2:] == ["hold_captured", "overdrawn"]


def test_an_account_is_closed_empty() -> None:
    account = opened(10)
    with pytest.raises(CommandRefused, match="expected balance 0 and no holds, found 10 CZK and 0 holds"):
        account.close(at=AT)
    account.place_hold("a", czk(10), at=AT)
    account.capture_hold("a", at=AT)
    account.grant_overdraft(czk(5), at=AT)
    account.place_hold("b", czk(5), at=AT)
    with pytest.raises(CommandRefused, match="found 0 CZK and 1 holds"):
        account.close(at=AT)
    account.release_hold("b", at=AT)
    account.close(at=AT)
    assert account.status == "closed"


def fold(events: Iterable[tuple[Event, datetime | None]]) -> Account:
    account = Account.blank("account/1")
    for version, (event, at) in enumerate(events, 1):
        account.follow(event.bound(EventMeta("account/1", version, occurred_at=at)))
    return account


def state_of(account: Account) -> dict[str, Any]:
    return {"status": account.status} | {
        name: getattr(account, name) for name in Account.__dataclass_fields__
    }


HISTORY: list[tuple[Event, datetime | None]] = [
    (event, AT + timedelta(hours=hours))
    for hours, event in enumerate(
        (
            Account.Opened(currency="CZK", opened_on=date(1993, 1, 1)),
            Account.Deposited(
                amount=czk("700.00"), booked_on=date(1993, 1, 1), reported_balance=czk("700.00")
            ),
            Account.Withdrawn(amount=czk("900.5")),
            Account.OverdraftGranted(limit=czk(100)),
            Account.OverdraftGranted(limit=czk(300)),
            Account.Overdrawn(balance=czk("-200.5")),
            Account.HoldPlaced(hold_id="a", amount=czk(20)),
            Account.HoldCaptured(hold_id="a", amount=czk("19.99")),
            Account.HoldPlaced(hold_id="b", amount=czk(5)),
            Account.HoldReleased(hold_id="b"),
            Account.HoldPlaced(hold_id="c", amount=czk(7)),
            Account.HoldReleased(hold_id="d"),
            Account.HoldReleased(hold_id="e"),
            Account.Closed(),
        )
    )
]


@settings(deadline=None, max_examples=150)
@given(st.permutations(HISTORY), st.integers(min_value=1, max_value=len(HISTORY)))
def test_facts_end_in_the_same_state_whatever_their_order(
    shuffled: list[tuple[Event, datetime | None]], count: int
) -> None:
    some = shuffled[:count]
    in_order = [fact for fact in HISTORY if any(fact is one for one in some)]
    assert state_of(fold(some)) == state_of(fold(in_order))


def test_facts_may_take_the_balance_below_zero_and_come_before_the_opening() -> None:
    account = fold(HISTORY[2:3])
    assert (account.status, account.currency, account.balance) == ("new", "CZK", Decimal("-900.5"))
    whole = fold(HISTORY)
    assert whole.balance == Decimal("-220.49")
    assert (whole.status, whole.held, whole.overdraft) == ("closed", 7, czk(300))


def test_facts_in_two_currencies_are_kept_apart() -> None:
    account = fold(
        [
            (Account.Deposited(amount=Money.of(5, "AUD")), AT),
            (Account.Deposited(amount=czk(7)), AT),
            (Account.HoldPlaced(hold_id="x", amount=Money.of(1, "AUD")), AT),
            (Account.OverdraftGranted(limit=Money.of(9, "AUD")), AT),
            (Account.Opened(currency="CZK", opened_on=AT.date()), AT),
        ]
    )
    assert (account.currency, account.balance, account.held, account.available) == ("CZK", 7, 0, 7)
    assert account.balances == {"AUD": 5, "CZK": 7}


def test_an_account_nothing_is_known_of_has_no_currency() -> None:
    assert (Account.new("1").currency, Account.new("1").balance) == ("", 0)


def test_of_two_openings_the_earlier_holds() -> None:
    early = (Account.Opened(currency="CZK", opened_on=date(1993, 1, 1), district="1"), AT)
    late = (Account.Opened(currency="CZK", opened_on=date(1993, 1, 2), district="2"), AT)
    assert fold([early, late]).district == fold([late, early]).district == "1"


def test_an_overdraft_without_a_time_is_the_latest() -> None:
    account = fold([HISTORY[4], (Account.OverdraftGranted(limit=czk(1)), None), HISTORY[3]])
    assert account.overdraft == czk(100)


def test_every_event_comes_back_from_json_as_it_was() -> None:
    for event, _ in HISTORY:
        back = registry.decode(
            event.event_name, event.schema_version, encode(event), EventMeta("account/1", 1)
        )
        assert back == event
        assert type(back) is type(event)


def test_the_names_of_the_events_are_stable() -> None:
    assert {event.event_name.removeprefix("account.") for event in Account.events} == {
        "opened",
        "deposited",
        "withdrawn",
        "overdraft_granted",
        "overdrawn",
        "hold_placed",
        "hold_released",
        "hold_captured",
        "closed",
    }


def test_a_snapshot_gives_the_account_back() -> None:
    account = fold(HISTORY)
    codec = SnapshotCodec(Account)
    assert state_of(codec.decode(account.id, account.version, codec.encode(account))) == state_of(account)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["deposit", "withdraw", "hold", "release", "capture", "overdraft"]),
            st.integers(min_value=1, max_value=200),
        ),
        max_size=30,
    )
)
def test_commands_never_take_the_account_beyond_its_overdraft(steps: list[tuple[str, int]]) -> None:
    account = opened()
    limit = 0
    for step, amount in steps:
        hold = next(iter(account.holds), "none")
        try:
            match step:
                case "deposit":
                    account.deposit(czk(amount), at=AT)
                case "withdraw":
                    account.withdraw(czk(amount), at=AT)
                case "hold":
                    account.place_hold(f"h{account.version}", czk(amount), at=AT)
                case "release":
                    account.release_hold(hold, at=AT)
                case "capture":
                    account.capture_hold(hold, at=AT)
                case _:
                    account.grant_overdraft(czk(amount), at=AT)
                    limit = amount
        except CommandRefused:
            pass
        assert account.available == account.balance + limit - account.held >= 0

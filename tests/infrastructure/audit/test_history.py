"""Histories tell what each event changed, and states as of a point are those that the events give."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from psycopg import Connection

from onefold import AggregateNotFound, Money, VersionConflict
from onefold.domain.account import Account
from onefold.domain.change import ABSENT, Change
from onefold.domain.instant import NaiveInstant
from onefold.domain.point import BadPoint, point
from onefold.infrastructure.audit.diff import difference
from onefold.infrastructure.audit.history import UnknownCategory, aggregate_of
from onefold.infrastructure.store import Store
from onefold.projections.shop import app as shop

from .conftest import AT, Onefold

DAY, TICK = timedelta(days=1), timedelta(microseconds=1)
RAW = (
    "INSERT INTO onefold.events (version, event_id, stream, type, data, occurred_at)"
    " VALUES (%s, gen_random_uuid(), %s, %s, %s, '2026-03-01 12:30:00.000001+00')"
)


@pytest.fixture
def account(store: Store) -> Account:
    opened = Account.open("1", "EUR", at=AT)
    opened.deposit(Money.of("24.90", "EUR"), at=AT + DAY)
    opened.withdraw(Money.of("4.90", "EUR"), at=AT + 2 * DAY)
    store.save(opened, metadata={"actor": "ada", "correlation": "c-1", "causation": "m-1"})
    return opened


def test_each_event_tells_what_it_changed(store: Store, account: Account) -> None:
    opened, deposited, withdrawn = store.history(Account, "1")
    assert Change("status", "new", "open") in opened.changes
    assert deposited.changes == (
        Change("balances.EUR", ABSENT, Decimal("24.90")),
        Change("balance", Decimal(0), Decimal("24.90")),
        Change("available", Decimal(0), Decimal("24.90")),
    )
    assert Change("balance", Decimal("24.90"), Decimal("20.00")) in withdrawn.changes
    assert [entry.event.version for entry in (opened, deposited, withdrawn)] == [1, 2, 3]
    assert list(store.history(Account, "404")) == []


def test_the_command_names_both_times_and_shows_before_and_after(onefold: Onefold, account: Account) -> None:
    said = onefold("history", "account/1")
    for words in (
        "   2  account.deposited  occurred 2026-03-02 12:30:00Z  position 2, recorded ",
        "~ balance 0 → 24.90",
        "~ balances.EUR – → 24.90",
        "~ status new → open",
        "@actor ada",
        "@correlation c-1",
        "@causation m-1",
    ):
        assert words in said.out
    assert said.err == ""
    (_, deposited, _) = onefold("history", "account/1", "--json").document["events"]
    assert {"field": "balances.EUR", "after": "24.90"} in deposited["changes"]
    assert {"field": "balance", "before": "0", "after": "24.90"} in deposited["changes"]
    assert deposited["changes_unknown"] is None


def test_what_cannot_be_folded_is_shown_and_told(
    onefold: Onefold, account: Account, connection: Connection
) -> None:
    connection.execute(RAW, (4, "account/1", "no.such.type", "{}"))
    connection.execute(RAW, (5, "account/1", "account.closed", "{}"))
    connection.execute(RAW, (1, "thing/1", "no.such.type", "{}"))
    said = onefold("history", "account/1", "--json")
    events = said.document["events"]
    assert [event["changes"] is None for event in events] == [False, False, False, True, True]
    assert (
        "since version 4 the state is not known: no event class is registered" in events[4]["changes_unknown"]
    )
    assert "since version 4" in onefold("history", "account/1").err
    other = onefold("history", "thing/1")
    assert other.code == 0
    assert "no.such.type" in other.out
    assert other.err == (
        "the application has no aggregate of category thing: what its events changed is not shown (--app)\n"
    )


def test_the_state_is_shown_as_of_a_version_a_position_and_an_instant(
    onefold: Onefold, account: Account
) -> None:
    border = "2026-03-02T12:30:00Z"
    said = onefold("history", "account/1", "--at", border)
    assert said.out.startswith("account/1  as of 2026-03-02T12:30:00.000000Z by the clock occurred_at\n")
    assert "balance 24.90" in said.out
    assert said.out.endswith("2 of 3 events, up to version 2\n")
    before = onefold("history", "account/1", "--at", "2026-03-02T12:29:59.999999Z", "--json").document
    assert before["at"] == {"clock": "occurred", "instant": "2026-03-02T12:29:59.999999Z"}
    assert (before["version"], before["state"]["balance"]) == (1, "0")
    assert onefold("history", "account/1", "--at", "v2", "--json").document["state"]["balances"] == {
        "EUR": "24.90"
    }
    at_position = onefold("history", "account/1", "--at", "@1", "--json").document
    assert (at_position["at"], at_position["events"], at_position["events_of_stream"]) == (
        {"position": 1},
        1,
        3,
    )
    recorded = onefold("history", "account/1", "--at", border, "--clock", "recorded")
    assert (recorded.code, recorded.out) == (1, "")
    assert (
        "has no events as of 2026-03-02T12:30:00.000000Z by the clock recorded_at; it has 3 later"
        in recorded.err
    )


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ("history account/1 --at 2026-03-02T12:30:00", 2, "write 2026-03-02T12:30:00Z for UTC"),
        ("history account/1 --at 3", 2, "write v3 for the version"),
        ("history account/1 --at v3 --clock wall", 2, "expected --clock occurred or recorded, found 'wall'"),
        (
            "history account/1 --at v9",
            1,
            "stream account/1 has no events at version 9: its last version is 3",
        ),
        ("history thing/1 --at v1", 2, "expected a stream of one of the categories order, account"),
        ("history account/2 --at v1", 1, "stream account/2 has no events in log events"),
        ("diff account/1 --from 1 --to 2026-03-02T12:30:00", 2, "write 2026-03-02T12:30:00Z for UTC"),
        ("diff account/1 --from 1 --to 9", 1, "its last version is 3"),
        ("diff account/2 --from 1 --to 2", 1, "stream account/2 has no events"),
    ],
)
def test_what_cannot_be_shown_says_what_to_write(
    onefold: Onefold, account: Account, arguments: str, code: int, words: str
) -> None:
    said = onefold(*arguments.split(" "))
    assert (said.code, said.out) == (code, "")
    assert words in said.err


def test_the_past_is_for_looking_at(store: Store, account: Account) -> None:
    old = store.as_of(Account, "1", occurred=AT + DAY)
    assert (old.balance, old.version) == (Decimal("24.90"), 2)
    old.deposit(Money.of(1, "EUR"), at=AT)
    with pytest.raises(VersionConflict):
        store.save(old)
    assert store.as_of(Account, "1", version=3).balance == Decimal("20.00")
    assert store.as_of(Account, "1", position=2).balance == Decimal("24.90")
    assert store.as_of(Account, "1", recorded=datetime.now(UTC) + DAY).balance == Decimal("20.00")
    with pytest.raises(AggregateNotFound):
        store.as_of(Account, "1", occurred=AT - TICK)
    with pytest.raises(NaiveInstant):
        store.as_of(Account, "1", occurred=AT.replace(tzinfo=None))
    with pytest.raises(BadPoint):
        store.as_of(Account, "1")


def test_what_is_left_out_in_the_middle_cannot_be_saved_over(store: Store) -> None:
    account = Account.open("1", "EUR", at=AT)
    account.deposit(Money.of(5, "EUR"), at=AT + DAY)
    account.deposit(Money.of(7, "EUR"), at=AT)
    store.save(account)
    old = store.as_of(Account, "1", occurred=AT)
    assert (old.balance, old.version) == (7, 2)
    old.deposit(Money.of(1, "EUR"), at=AT)
    with pytest.raises(VersionConflict):
        store.save(old)


def test_a_difference_names_the_fields_and_the_events(
    onefold: Onefold, store: Store, account: Account
) -> None:
    said = onefold("diff", "account/1", "--from", "1", "--to", "3")
    assert said.code == 0
    assert "~ balance 0 → 20.00" in said.out
    assert "+    3  account.withdrawn  occurred 2026-03-03 12:30:00Z  position 3, recorded " in said.out
    assert said.out.endswith("3 changes by 2 events\n")
    document = onefold("diff", "account/1", "--from", "@3", "--to", "v0", "--json").document
    assert document["from"] == {"at": {"position": 3}, "version": 3, "events": 3}
    assert document["to"] == {"at": {"version": 0}, "version": 0, "events": 0}
    assert {"field": "status", "before": "open", "after": "new"} in document["changes"]
    assert ([event["version"] for event in document["removed"]], document["added"]) == ([1, 2, 3], [])
    same = onefold("diff", "account/1", "--from", "3", "--to", "3")
    assert "no field differs" in same.out
    with store.pool.connection() as connection:
        found = difference(connection, Account, "account/1", point(occurred=AT), point(version=2))
    assert [event.version for event in found.added] == [2]


def test_a_category_that_the_application_lacks_is_named() -> None:
    assert aggregate_of(shop, "account/7/x") is Account
    with pytest.raises(
        UnknownCategory, match="categories order, account of the application, found 'nothing'"
    ):
        aggregate_of(shop, "nothing")

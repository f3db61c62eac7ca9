"""What was once broken: functions that end the transaction of their message by hand, and commits that are refused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from onefold import App, Consumer, Message, Transaction
from onefold.infrastructure.consuming.dead_letters import list_dead_letters, retry
from onefold.infrastructure.consuming.session import reap
from onefold.infrastructure.consuming.waiting import Waiting

from .desk import Desk, balances, dead_letters, deposit, deposits, envelope, outcomes, parked
from .running import until

Open = Callable[[Consumer], Desk]
Connection = psycopg.Connection[Any]
BATCH = [envelope(name) for name in "abcdef"]
GOOD = {"a": 1, "b": 1, "d": 1, "e": 1, "f": 1}


def ending(*queries: str, when: str = "c") -> Callable[[Message, Transaction], None]:
    """Return a function that deposits, and for one account runs queries behind the back of `tx`."""

    def effect(message: Message, tx: Transaction) -> None:
        deposit(message, tx)
        if message.id.startswith(when):
            for query in queries:
                tx.connection.execute(query.encode())

    return effect


@pytest.mark.parametrize(
    "query",
    [
        "COMMIT",
        "COMMIT AND CHAIN",
        "end",
        "SELECT 1; COMMIT; BEGIN",
        "ROLLBACK AND CHAIN",
        "ROLLBACK; BEGIN",
        "ROLLBACK",
        "DO $$ BEGIN COMMIT; END $$",
    ],
)
def test_a_function_that_ends_the_transaction_by_hand_has_failed(
    open_desk: Open, connection: Connection, query: str
) -> None:
    """C03, C80"""
    desk = open_desk(deposits(ending(query)))
    assert desk.process(*BATCH) == ["applied", "applied", "dead_lettered", "applied", "applied", "applied"]
    assert balances(connection) == GOOD
    assert [letter[:3] for letter in dead_letters(connection)] == [("c", 1, "dead_lettered")]
    assert outcomes(connection) == {"applied": 5, "dead_lettered": 1, "retried": 2}
    assert set(desk.process(*BATCH)) == {"duplicate"}
    assert balances(connection) == GOOD


@pytest.mark.parametrize("query", ["COMMIT", "COMMIT AND CHAIN", "end"])
def test_it_is_told_whose_the_transaction_is(open_desk: Open, connection: Connection, query: str) -> None:
    open_desk(deposits(ending(query))).process(*BATCH)
    ((_, _, _, cause),) = dead_letters(connection)
    assert cause.startswith("expected a statement that leaves the transaction open, found a commit")


def test_a_commit_whose_refusal_is_swallowed_commits_nothing_either(
    open_desk: Open, connection: Connection
) -> None:
    def effect(message: Message, tx: Transaction) -> None:
        deposit(message, tx)
        if message.subject == "c":
            with contextlib.suppress(psycopg.Error):
                tx.connection.execute("COMMIT")
            deposit(message, tx)

    desk = open_desk(deposits(effect))
    assert desk.process(*BATCH) == ["applied", "applied", "dead_lettered", "applied", "applied", "applied"]
    assert balances(connection) == GOOD


def test_a_commit_in_a_savepoint_is_refused(open_desk: Open, connection: Connection) -> None:
    def effect(message: Message, tx: Transaction) -> None:
        with tx.savepoint():
            deposit(message, tx)
            if message.subject == "c":
                tx.connection.execute("COMMIT")

    assert open_desk(deposits(effect)).process(*BATCH)[2] == "dead_lettered"
    assert balances(connection) == GOOD


def test_a_message_that_waited_cannot_commit(open_desk: Open, bank: str, connection: Connection) -> None:
    consumer = deposits(ending("COMMIT", when="a-2"))
    desk = open_desk(consumer)
    assert desk.process(envelope(version=2), envelope(version=3), envelope(version=1)) == [
        "parked",
        "parked",
        "applied",
    ]
    for _ in range(5):
        connection.execute("UPDATE onefold.parked SET due_at = clock_timestamp()")
        Waiting(desk.processor).look(now=True)
    assert [letter[:3] for letter in dead_letters(connection)] == [("a", 2, "dead_lettered")]
    assert parked(connection) == [("a", 3)]
    assert balances(connection) == {"a": 1}
    letters = list_dead_letters(connection)
    tried = retry(bank, App(consumers=[consumer]), letters, by="ops")
    assert [each.became for each in tried] == ["dead_lettered"]
    mended = App(consumers=[deposits()])
    assert [each.became for each in retry(bank, mended, letters, by="ops")] == ["applied"]
    assert balances(connection) == {"a": 3}


def test_nothing_is_left_open_and_marks_of_the_dead_are_reaped(
    open_desk: Open, connection: Connection
) -> None:
    desk = open_desk(deposits(ending("COMMIT")))
    desk.process(*BATCH)
    assert connection.execute("SELECT open, keys FROM onefold.in_hand").fetchall() == [(False, [])]
    desk.session.inbox.mark([b"k" * 16])
    assert connection.execute("SELECT open FROM onefold.in_hand").fetchall() == [(False,)]
    desk.connection.close()
    until(lambda: reap(connection) == 1)
    assert connection.execute("SELECT alone FROM onefold.attempts WHERE alone > 0").fetchall() == [(1,)]


@pytest.mark.parametrize("version", [1, 2])
def test_what_is_refused_at_the_commit_is_the_fault_of_its_message(
    open_desk: Open, connection: Connection, version: int
) -> None:
    """C80"""
    connection.execute("CREATE TABLE owners (account text PRIMARY KEY)")
    connection.execute("INSERT INTO owners VALUES ('a'), ('b'), ('d'), ('e'), ('f')")
    connection.execute(
        "ALTER TABLE accounts ADD FOREIGN KEY (account) REFERENCES owners DEFERRABLE INITIALLY DEFERRED"
    )
    desk = open_desk(deposits())
    batch = [envelope(name, version) for name in "abcdef"]
    first = [envelope(name) for name in "abcdef"]
    if version == 2:
        assert set(desk.process(*batch)) == {"parked"}
        found = desk.process(*first)
    else:
        found = desk.process(*batch)
    assert found == ["applied", "applied", "dead_lettered", "applied", "applied", "applied"]
    assert [letter[:3] for letter in dead_letters(connection)] == [("c", 1, "dead_lettered")]
    assert balances(connection) == dict.fromkeys("abdef", version)

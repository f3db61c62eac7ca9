"""Dead letters and what waits behind them: a retry ends where in-order, once-only processing would have ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from onefold import App, Consumer, Message, Transaction
from onefold.infrastructure.brokers import Outgoing
from onefold.infrastructure.consuming.dead_letters import discard, list_dead_letters, retry

from .desk import (
    Desk,
    balances,
    count,
    counted,
    dead_letters,
    deposit,
    deposits,
    disordered,
    envelope,
    outcomes,
    parked,
)

Open = Callable[[Consumer], Desk]
Connection = psycopg.Connection[Any]


class Mendable:
    """Adds deposits up, in the table and as an aggregate, but not those of `bad` ids."""

    def __init__(self, *bad: str) -> None:
        self.bad = set(bad)

    def __call__(self, message: Message, tx: Transaction) -> None:
        deposit(message, tx)
        count(message, tx)
        if message.id in self.bad:
            raise ValueError("told to fail")


def tried_again(url: str, consumer: Consumer, connection: Connection) -> list[str]:
    letters = list_dead_letters(connection, consumer=consumer.name)
    return [each.became for each in retry(url, App(consumers=[consumer]), letters, by="ops")]


def sums(connection: Connection) -> dict[str, list[int]]:
    """Return the amounts that each aggregate was given, in order."""
    rows = connection.execute(
        "SELECT stream, array_agg((data ->> 'amount')::int ORDER BY version) FROM onefold.events GROUP BY 1"
    ).fetchall()
    return {stream.partition("/")[2]: amounts for stream, amounts in rows}


def test_a_retried_sequence_equals_a_rebuild(open_desk: Open, bank: str, connection: Connection) -> None:
    """C81, H4"""
    mendable = Mendable("x-2", "x-4")
    consumer = deposits(mendable, registry=counted)
    desk = open_desk(consumer)
    messages = [envelope("xy"[place % 2], place // 2 + 1, 10**place) for place in range(10)]
    for message in messages:
        desk.process(message)
    assert dead_letters(connection) == [("x", 2, "dead_lettered", "ValueError: told to fail")]
    assert parked(connection) == [("x", 3), ("x", 4), ("x", 5)]
    mendable.bad = {"x-4"}
    assert tried_again(bank, consumer, connection) == ["applied"]
    # It brought the third, and the fourth failed in its turn: it is tried as often as any other.
    assert sums(connection)["x"] == [10**place for place in (0, 2, 4)]
    mendable.bad.clear()
    for _ in range(5):
        desk.processor.drain("x")
        tried_again(bank, consumer, connection)
    assert balances(connection) == {"x": 101010101, "y": 1010101010}
    assert sums(connection) == {
        "x": [10**place for place in range(0, 10, 2)],
        "y": [10**place for place in range(1, 10, 2)],
    }
    assert disordered(connection) == []
    assert (parked(connection), dead_letters(connection)) == ([], [])
    assert desk.process(*messages) == ["duplicate"] * 10


def test_a_retry_that_fails_goes_on_there_later(open_desk: Open, bank: str, connection: Connection) -> None:
    """C81"""
    mendable = Mendable("a-1", "a-2", "b-1")
    consumer = deposits(mendable, registry=counted, ordering="unordered", sequence="subject")
    desk = open_desk(consumer)
    desk.process(*(envelope(account, version, 10**version) for account in "ab" for version in (1, 2, 3)))
    assert [letter[0] for letter in dead_letters(connection)] == ["a", "a", "b"]
    mendable.bad = {"a-1"}
    assert tried_again(bank, consumer, connection) == ["dead_lettered", "waits", "applied"]
    mendable.bad.clear()
    assert tried_again(bank, consumer, connection) == ["applied", "applied"]
    assert tried_again(bank, consumer, connection) == []
    assert balances(connection) == {"a": 1_110, "b": 1_110}
    assert desk.process(envelope("a", 1, 10)) == ["duplicate"]


def test_a_discarded_one_lets_its_followers_go_on(open_desk: Open, connection: Connection) -> None:
    """C81"""
    mendable = Mendable("a-2")
    desk = open_desk(deposits(mendable, registry=counted))
    desk.process(*(envelope("a", version, 10**version) for version in range(1, 6)))
    (letter,) = list_dead_letters(connection)
    assert letter.behind == 3
    discard(connection, letter.id, "ops")
    desk.processor.drain("a")
    assert sums(connection) == {"a": [10, 1_000, 10_000, 100_000]}
    assert (parked(connection), dead_letters(connection)) == ([], [])


def test_a_failed_first_message_holds_up_its_own_sequence(
    open_desk: Open, bank: str, connection: Connection
) -> None:
    """C81"""
    broken = envelope("a", 1).body.replace(b'"amount": 1', b'"amount": "one"')
    seen: list[Any] = []

    def effect(message: Message, tx: Transaction) -> None:
        if message.data["amount"] == "one" and not seen:
            raise ValueError("told to fail")
        tx.execute("INSERT INTO accounts VALUES (%s, 1, 1, 1, true)", (message.id,))

    consumer = deposits(effect)
    desk = open_desk(consumer)
    desk.process(Outgoing(broken, envelope().headers), envelope("a", 2), envelope("b", 1))
    assert list(balances(connection)) == ["b-1"]
    seen.append(1)
    assert tried_again(bank, consumer, connection) == ["applied"]
    desk.processor.drain("a")
    assert list(balances(connection)) == ["a-1", "a-2", "b-1"]
    assert outcomes(connection)["applied"] == 3


@pytest.mark.parametrize("ordering", ["delta", "unordered"])
def test_a_retry_races_with_a_redelivery(
    open_desk: Open, bank: str, connection: Connection, ordering: Any
) -> None:
    mendable = Mendable("a-1")
    consumer = deposits(mendable, registry=counted, ordering=ordering)
    desk = open_desk(consumer)
    assert desk.process(envelope()) == ["dead_lettered"]
    mendable.bad.clear()
    # The key of a dead letter is claimed: only a retry applies it.
    assert desk.process(envelope()) == ["duplicate"]
    assert tried_again(bank, consumer, connection) == ["applied"]
    assert desk.process(envelope()) == ["duplicate"]
    assert sums(connection) == {"a": [1]}

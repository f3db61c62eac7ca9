"""Sequences of consumers that fold: what is refused stands in the same sequence as what is folded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from onefold import Consumer, Event, Projection, Registry, Row
from onefold.infrastructure.brokers import Delivery
from onefold.infrastructure.consuming.dead_letters import discard, list_dead_letters

from .desk import Desk, dead_letters, envelope, parked

Open = Callable[[Consumer], Desk]
kinds = Registry()


class Deposited(Event, name="bank.deposited", registry=kinds):
    amount: int


class Sum(Row, key="account"):
    account: str
    total: int = 0


def folding(**options: Any) -> Consumer:
    sums = Projection("sums", Sum, registry=kinds)

    @sums.on(Deposited)
    def deposited(row: Sum | None, event: Deposited) -> Sum:
        known = row or Sum(account=event.meta.key)
        return known.evolve(total=known.total + event.amount)

    return Consumer("deposits", ordering="delta", version="sequence", fold=sums, registry=kinds, **options)


def totals(connection: psycopg.Connection[Any]) -> list[tuple[str, int]]:
    return connection.execute("SELECT account, total FROM read.sums").fetchall()


@pytest.mark.parametrize("subject", ["account/7", "7"])
@pytest.mark.parametrize("flaw", [{"data": {"amount": "many"}}, {"type": "bank.audited"}])
def test_followers_wait_behind_a_message_that_was_refused_and_go_on_when_it_is_discarded(
    open_desk: Open, connection: psycopg.Connection[Any], subject: str, flaw: dict[str, Any]
) -> None:
    desk = open_desk(folding())
    refused = envelope(subject, 2, **flaw)
    assert desk.process(envelope(subject, 1), refused, envelope(subject, 3)) == [
        "applied",
        "rejected",
        "parked",
    ]
    assert [letter[:2] for letter in dead_letters(connection)] == [("7", 2)]
    assert parked(connection) == [("7", 3)]
    (letter,) = list_dead_letters(connection)
    assert letter.behind == 1
    discard(connection, letter.id, "ops")
    desk.processor.drain("7")
    assert (totals(connection), parked(connection)) == ([("7", 2)], [])


def test_a_message_without_a_time_is_refused_in_its_place(open_desk: Open) -> None:
    timeless = envelope("account/7", 2, time=None)
    arrival = open_desk(folding()).reader.arrival(Delivery(timeless.body, timeless.headers, "test@1"))
    assert arrival.ruled is not None
    assert "expected a time" in arrival.ruled[1]
    assert (arrival.sequence, arrival.version) == ("7", 2)


def test_a_message_that_is_passed_over_keeps_its_place_in_the_sequence(
    open_desk: Open, connection: psycopg.Connection[Any]
) -> None:
    desk = open_desk(folding(unknown="pass"))
    other = envelope("account/7", 2, type="bank.audited")
    found = desk.process(envelope("account/7", 1), other, envelope("account/7", 3))
    assert found == ["applied", "applied", "applied"]
    assert totals(connection) == [("7", 2)]

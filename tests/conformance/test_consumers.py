"""What every consumer promises, whatever brings its messages and wherever its keys are kept: the same cases for all."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from onefold import Consumer, Message, Retention, Retry, Transaction
from onefold.infrastructure.brokers import BrokerLost, Delivery, Outgoing, Subscription
from onefold.infrastructure.consuming.consumption import Consumption

from ..infrastructure.consuming.desk import (
    TABLE,
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
    uuid7,
)
from ..infrastructure.consuming.running import Running, until
from .benches import Bench, that

MODES = pytest.mark.parametrize("mode", ["any", "time"])
"""Both ledgers (C14)."""
Connection = psycopg.Connection[Any]
Consume = Callable[..., Running]
_numbers = itertools.count(1)


@pytest.fixture
def bank(database_url: str, connection: Connection) -> str:
    connection.execute(TABLE)
    return database_url


@pytest.fixture
def consume(bank: str, bench: Bench) -> Iterator[Consume]:
    """Starts a consumption from the bench, which is stopped after the test at the latest."""
    with ExitStack() as stack:

        def start(consumer: Consumer, **options: Any) -> Running:
            running = Running(Consumption(bank, consumer, bench.url, **options))
            stack.callback(running.finish)
            return running

        yield start


def ledgered(mode: Any, effect: Callable[[Any, Any], Any] = deposit, **options: Any) -> Consumer:
    """Return a consumer that declares how late a message may come: some brokers keep theirs for ever."""
    options.setdefault("retry", Retry(attempts=50, first=0.05, longest=0.2))
    return deposits(
        effect, ledger=mode, key="idempotencykey", retention=Retention(redelivery=86_400.0), **options
    )


def keyed(accounts: int, versions: int, first: int = 1) -> list[dict[str, Any]]:
    """Return deposits in order, each with a key that fits both ledgers."""
    return [
        {"account": f"a{account}", "version": version, "idempotencykey": uuid7()}
        for version in range(first, first + versions)
        for account in range(accounts)
    ]


def again(message: dict[str, Any]) -> dict[str, Any]:
    """Return the same in a new envelope."""
    return {**message, "id": f"again-{next(_numbers)}", "source": "/elsewhere"}


def shuffled(messages: Sequence[dict[str, Any]], window: int, seed: int) -> list[Outgoing]:
    chance = random.Random(seed)
    order = sorted(range(len(messages)), key=lambda place: place + chance.uniform(0, window))
    return [envelope(**messages[place]) for place in order]


@MODES
@that()
def test_everything_is_applied_once_and_in_order(
    bench: Bench, consume: Consume, connection: Connection, mode: str
) -> None:
    """C08, C14, C20, C23"""
    messages = keyed(8, 6)
    copies = [again(message) for message in messages[::5]]
    mixed = list(itertools.chain.from_iterable(itertools.zip_longest(messages, copies)))
    bench.publish(shuffled([message for message in mixed if message is not None], 15, seed=14))

    def effect(message: Message, tx: Transaction) -> None:
        deposit(message, tx)
        count(message, tx)

    running = consume(ledgered(mode, effect, registry=counted), batch=20)
    until(lambda: decided(connection) >= {"applied": 48, "duplicate": 10}, 30)
    running.stop()
    assert balances(connection) == {f"a{account}": 6 for account in range(8)}
    assert disordered(connection) == []
    assert (parked(connection), dead_letters(connection)) == ([], [])
    assert outcomes(connection)["applied"] == 48
    query = "SELECT count(*), max(version) FROM onefold.events GROUP BY stream"
    assert connection.execute(query).fetchall() == [(6, 6)] * 8


@MODES
@that()
def test_what_fails_is_isolated(bench: Bench, consume: Consume, connection: Connection, mode: str) -> None:
    """C80, C81, C82"""
    tries: dict[str, int] = {}

    def effect(message: Message, tx: Transaction) -> None:
        deposit(message, tx)
        tries[message.id] = tries.get(message.id, 0) + 1
        if message.id == "a1-2" or (message.id == "a2-2" and tries[message.id] <= 2):
            raise ValueError("told to fail")

    messages = [envelope(**message) for message in keyed(4, 3)]
    bad = Outgoing(b'{"id": "bad"', messages[0].headers, "bad")
    bench.publish([*messages[:4], bad, *messages[4:]])
    running = consume(ledgered(mode, effect, retry=Retry(attempts=3, first=0.05)))
    until(lambda: len(dead_letters(connection)) >= 2 and parked(connection), 30)
    until(lambda: sum(balances(connection).values()) >= 10, 30)
    running.stop()
    assert balances(connection) == {"a0": 3, "a1": 1, "a2": 3, "a3": 3}
    assert disordered(connection) == []
    assert sorted((letter[0], letter[2]) for letter in dead_letters(connection) if letter[0]) == [
        ("a1", "dead_lettered")
    ]
    assert [letter[2] for letter in dead_letters(connection) if not letter[0]] == ["rejected"]
    assert parked(connection) == [("a1", 3)]


@MODES
@that()
def test_who_stops_in_the_middle_gives_back_the_rest(
    bench: Bench, consume: Consume, connection: Connection, mode: str
) -> None:
    def effect(message: Message, tx: Transaction) -> None:
        deposit(message, tx)
        time.sleep(0.01)

    bench.publish([envelope(**message) for message in keyed(10, 6)])
    running = consume(ledgered(mode, effect), batch=5, grace=5.0)
    until(lambda: sum(balances(connection).values()) > 10, 30)
    assert running.stop() < 5
    before = sum(balances(connection).values())
    assert 10 < before < 60
    running = consume(ledgered(mode))
    until(lambda: sum(balances(connection).values()) == 60, 30)
    running.stop()
    assert balances(connection) == {f"a{account}": 6 for account in range(10)}
    assert disordered(connection) == []
    if bench.remembers:
        # What is given back may come again in another order.
        assert {**outcomes(connection), "parked": 0} == {"applied": 60, "parked": 0}


class Forgetful:
    """A subscription whose first acknowledgement is lost, with the connection."""

    def __init__(self, kept: Subscription, lost: list[int]) -> None:
        self._kept = kept
        self._lost = lost

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kept, name)

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        if not self._lost:
            self._lost.append(len(deliveries))
            raise BrokerLost("told to lose it")
        self._kept.acknowledge(deliveries)


@MODES
@that()
def test_what_was_committed_and_not_acknowledged_is_a_duplicate(
    bench: Bench, consume: Consume, connection: Connection, mode: str
) -> None:
    """C01"""
    lost: list[int] = []
    bench.publish([envelope(**message) for message in keyed(10, 3)])
    running = consume(
        ledgered(mode), subscription=lambda: Forgetful(bench.subscribe("deposits"), lost), batch=10
    )
    until(lambda: decided(connection) >= {"applied": 30, "duplicate": sum(lost) or 1}, 30)
    running.stop()
    assert balances(connection) == {f"a{account}": 3 for account in range(10)}
    assert outcomes(connection)["applied"] == 30


@that("networked")
def test_a_function_may_take_longer_than_a_lease(
    bench: Bench, consume: Consume, connection: Connection
) -> None:
    """C65: what is in hand and what waits behind it is kept, and nobody is put out of a group."""
    seen: list[str] = []

    def effect(message: Message, tx: Transaction) -> None:
        deposit(message, tx)
        if not seen:
            seen.append(message.id)
            time.sleep(LONG.get(bench.name, 3.8))

    bench.publish([envelope(**message) for message in keyed(10, 3)])
    running = consume(ledgered("any", effect), batch=5, messages=10)
    until(lambda: sum(balances(connection).values()) == 30, 30)
    running.stop()
    found = outcomes(connection)
    # Where the broker keeps no order, some wait for those before them.
    found.pop("parked", None)
    assert found == {"applied": 30}
    assert running.consumption.intake.lost == 0


LONG = {"redis": 2.8, "pubsub": 4.8, "sqs": 5.8, "sqs-fifo": 5.8}
"""Seconds; longer than the leases of these benches, as 3.8 is longer than the session timeout of the others."""


class decided(dict[str, int]):  # noqa: N801 - reads as a condition
    """The outcomes in the database; at least another if it has at least as many of each."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(outcomes(connection))

    def __ge__(self, other: dict[str, int]) -> bool:
        return all(self.get(outcome, 0) >= number for outcome, number in other.items())

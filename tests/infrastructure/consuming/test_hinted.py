"""A consumption with a hint in front of the ledger: it spares questions, and decides nothing."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
import redis

from onefold import App, Consumer, Message, Retry, Transaction
from onefold.infrastructure.brokers import Outgoing
from onefold.infrastructure.brokers.memory import MemoryBroker
from onefold.infrastructure.consuming.consumption import Consumed, Consumption
from onefold.infrastructure.consuming.dead_letters import list_dead_letters, retry
from onefold.projections.guards import Outcome

from .desk import balances, deposit, deposits, disordered, envelope, outcomes

Connection = psycopg.Connection[Any]
Consume = Callable[..., Consumed]
_numbers = itertools.count(1)


@pytest.fixture
def hint(redis_url: str) -> str:
    """URL of a database of Redis that no other test writes to."""
    return redis_url.removesuffix("/0") + "/13"


@pytest.fixture
def consume(bank: str, hint: str, redis_url: str) -> Consume:
    redis.Redis.from_url(hint).flushdb()

    def run(consumer: Consumer, messages: list[Outgoing], **faults: Any) -> Consumed:
        broker = MemoryBroker(f"hinted-{next(_numbers)}", **faults)
        broker.publish_all(messages)
        broker.finish()
        return Consumption(bank, consumer, f"memory://{broker.name}", batch=20, hint=hint).run()

    return run


def test_a_hint_does_not_hide_other_content_of_a_key(consume: Consume, connection: Connection) -> None:
    """C13, H10: what the hint knows is compared as what the ledger knows."""
    assert consume(deposits(), [envelope(amount=10)]).outcomes == {Outcome.APPLIED: 1}
    assert consume(deposits(), [envelope(amount=10), envelope(amount=99)]).outcomes == {
        Outcome.DUPLICATE: 1,
        Outcome.KEY_CONFLICT: 1,
    }
    assert balances(connection) == {"a": 10}


def test_a_hint_is_not_given_for_what_was_not_applied(
    consume: Consume, connection: Connection, bank: str
) -> None:
    """C13: a dead letter that is mended and retried is applied, and so is what waited behind it."""
    broken = True

    def effect(message: Message, tx: Transaction) -> None:
        deposit(message, tx)
        if broken:
            raise ValueError("told to fail")

    consumer = deposits(effect, retry=Retry(attempts=1))
    messages = [envelope(version=version) for version in (1, 2, 3)]
    consume(consumer, messages)
    broken = False
    consume(consumer, messages)
    assert balances(connection) == {}
    (retried,) = retry(bank, App(consumers=[consumer]), list_dead_letters(connection), by="test")
    assert retried.became == "applied"
    assert balances(connection) == {"a": 3}
    assert disordered(connection) == []


def test_nothing_is_applied_twice_when_the_hint_is_flushed_in_mid_run(
    consume: Consume, connection: Connection, hint: str
) -> None:
    """C13: Redis may forget everything at any time, and duplicates are counted exactly all the same."""
    over = threading.Event()

    def flush() -> None:
        client = redis.Redis.from_url(hint)
        while not over.wait(0.02):
            client.flushdb()

    flushing = threading.Thread(target=flush)
    flushing.start()
    try:
        messages = [envelope(f"a{account}", version) for version in range(1, 11) for account in range(20)]
        for seed in range(2):
            consume(deposits(), messages + messages, duplicates=0.2, shuffle=15, seed=seed)
    finally:
        over.set()
        flushing.join()
    assert balances(connection) == {f"a{account}": 10 for account in range(20)}
    assert disordered(connection) == []
    found = outcomes(connection)
    assert found["applied"] == 200
    assert found["duplicate"] >= 600

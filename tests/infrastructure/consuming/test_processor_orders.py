"""Every order of deliveries, with duplicates and crashes anywhere, ends in the state of the sequence."""

from __future__ import annotations

import itertools
from typing import Any

import psycopg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onefold import Consumer, Message, Retry, Transaction

from .desk import (
    Desk,
    Tally,
    balances,
    count,
    counted,
    deposit,
    deposits,
    disordered,
    envelope,
    parked,
    uuid7,
)

AMOUNTS = (1, 10, 100, 1_000, 10_000)
PATIENT = Retry(attempts=1_000, first=0.0, longest=0.0)
_accounts = itertools.count(1)


@st.composite
def deliveries(draw: st.DrawFn) -> list[list[int]]:
    """Batches of versions in any order, each of the five at least once."""
    more = draw(st.lists(st.integers(1, 5), max_size=4))
    order = draw(st.permutations([1, 2, 3, 4, 5, *more]))
    cuts = sorted(draw(st.sets(st.integers(1, len(order) - 1), max_size=4)))
    return [order[first:last] for first, last in itertools.pairwise([0, *cuts, len(order)])]


class Doom:
    """Ends the transaction at chosen effects, counted over the whole example: the server's side of it is killed."""

    def __init__(self, killer: psycopg.Connection[Any], at: set[int]) -> None:
        self._killer = killer
        self._at = at
        self._seen = 0

    def __call__(self, tx: Transaction) -> None:
        self._seen += 1
        if self._seen in self._at:
            self._killer.execute("SELECT pg_terminate_backend(%s, 5000)", (tx.connection.info.backend_pid,))


@given(
    batches=deliveries(),
    mode=st.sampled_from(["any", "time"]),
    at=st.sets(st.integers(1, 24), max_size=3),
    failing=st.sets(st.integers(1, 12), max_size=2),
)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
)
def test_every_order_with_crashes_converges(
    bank: str,
    connection: psycopg.Connection[Any],
    batches: list[list[int]],
    mode: Any,
    at: set[int],
    failing: set[int],
) -> None:
    """C20, C27"""
    account = f"n{next(_accounts)}"
    doom = Doom(connection, at)
    runs = itertools.count(1)

    def effect(message: Message, tx: Transaction) -> None:
        doom(tx)
        deposit(message, tx)
        count(message, tx)
        if next(runs) in failing:
            raise ValueError("told to fail")
        doom(tx)

    consumer: Consumer = deposits(
        effect, name=f"c_{account}", ledger=mode, key="idempotencykey", registry=counted, retry=PATIENT
    )
    messages = {
        version: envelope(account, version, amount, idempotencykey=uuid7())
        for version, amount in enumerate(AMOUNTS, 1)
    }
    desk = Desk(bank, consumer)
    try:
        for batch in batches:
            while True:
                try:
                    desk.process(*(messages[version] for version in batch))
                except psycopg.OperationalError:
                    desk.close()
                    desk = Desk(bank, consumer)
                else:
                    break
    finally:
        desk.close()
    finish(bank, consumer, connection)
    assert balances(connection)[account] == sum(AMOUNTS)
    assert disordered(connection) == []
    rows = connection.execute(
        "SELECT (data ->> 'amount')::int FROM onefold.events WHERE stream = %s ORDER BY version",
        (Tally.stream_of(account),),
    ).fetchall()
    assert tuple(amount for (amount,) in rows) == AMOUNTS


def finish(bank: str, consumer: Consumer, connection: psycopg.Connection[Any]) -> None:
    while waiting := {sequence for sequence, _ in parked(connection)}:
        desk = Desk(bank, consumer)
        try:
            for sequence in waiting:
                while desk.processor.drain(sequence):
                    pass
        except psycopg.OperationalError:
            pass
        finally:
            desk.close()

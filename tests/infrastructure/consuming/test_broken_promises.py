"""What was once broken: keys of the future, tables that are gone, transactions ended early, and who is to blame."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from onefold import App, Consumer, Event, Message, Projection, Registry, Rejected, Row, Transaction
from onefold.infrastructure.brokers.memory import MemoryBroker
from onefold.infrastructure.consuming.consumption import Consumption
from onefold.infrastructure.consuming.dead_letters import discard, list_dead_letters, retry
from onefold.infrastructure.consuming.session import LOCK_TIMEOUT
from onefold.infrastructure.consuming.transaction import AsyncTransaction, TransactionEnded
from onefold.infrastructure.consuming.waiting import Waiting
from onefold.infrastructure.postgres import migrate
from onefold.infrastructure.postgres.errors import VersionConflict
from onefold.infrastructure.postgres.inbox import ConsumerChanged
from onefold.infrastructure.postgres.maintenance import maintain

from .desk import (
    DEPOSIT,
    TABLE,
    Desk,
    balances,
    dead_letters,
    deposit,
    deposits,
    desk,
    envelope,
    outcomes,
    parked,
    uuid7,
)

Open = Callable[[Consumer], Desk]
Connection = psycopg.Connection[Any]
kinds = Registry()


class Deposited(Event, name="bank.deposited", registry=kinds):
    amount: int


class Sum(Row, key="account"):
    account: str
    total: int = 0


def folding(name: str = "deposits") -> Consumer:
    sums = Projection("sums", Sum, registry=kinds)

    @sums.on(Deposited)
    def deposited(row: Sum | None, event: Deposited) -> Sum:
        known = row or Sum(account=event.meta.key)
        return known.evolve(total=known.total + event.amount)

    return Consumer(name, ordering="delta", version="sequence", fold=sums, registry=kinds)


def tried_again(url: str, consumer: Consumer, connection: Connection) -> list[str]:
    letters = list_dead_letters(connection)
    return [each.became for each in retry(url, App(consumers=[consumer]), letters, by="ops")]


def test_a_key_of_the_future_that_came_again_in_its_time_is_not_applied_by_a_retry(
    open_desk: Open, bank: str, connection: Connection
) -> None:
    consumer = deposits(ordering="unordered", ledger="time")
    then = datetime.now(UTC) + timedelta(days=5)
    message = envelope(idempotencykey=uuid7(then))
    assert open_desk(consumer).process(message) == ["rejected"]
    maintain(connection, now=then)
    assert open_desk(consumer).process(message) == ["applied"]
    assert tried_again(bank, consumer, connection) == ["duplicate"]
    assert balances(connection) == {"a": 1}


def test_a_key_of_the_future_that_fails_in_its_time_can_be_retried(
    open_desk: Open, bank: str, connection: Connection
) -> None:
    good: list[bool] = []

    def effect(message: Message, tx: Transaction) -> None:
        if not good:
            raise Rejected("told to fail")
        deposit(message, tx)

    consumer = deposits(effect, ordering="unordered", ledger="time")
    then = datetime.now(UTC) + timedelta(days=5)
    message = envelope(idempotencykey=uuid7(then))
    assert open_desk(consumer).process(message) == ["rejected"]
    maintain(connection, now=then)
    assert open_desk(consumer).process(message) == ["rejected"]
    good.append(True)
    assert tried_again(bank, consumer, connection) == ["applied"]
    assert balances(connection) == {"a": 1}


def test_a_retry_that_is_refused_claims_nothing(open_desk: Open, bank: str, connection: Connection) -> None:
    """C81"""
    keys: list[str] = []

    def key(message: Message) -> Any:
        if not keys:
            raise ValueError("the key cannot be found")
        return message.id

    consumer = deposits(key=key, on_gap="reject")
    desk = open_desk(consumer)
    assert desk.process(envelope(version=2)) == [""]
    keys.append("found")
    assert tried_again(bank, consumer, connection) == ["rejected"]
    assert desk.process(envelope(version=1)) == ["applied"]
    assert tried_again(bank, consumer, connection) == ["applied"]
    assert balances(connection) == {"a": 2}


def test_an_unreadable_message_that_comes_again_after_it_was_discarded_is_seen(
    open_desk: Open, connection: Connection
) -> None:
    """C80"""
    desk = open_desk(deposits())
    anonymous = envelope(id=None)
    desk.process(anonymous)
    (letter,) = list_dead_letters(connection)
    discard(connection, letter.id, "ops")
    desk.process(anonymous)
    assert [each.id for each in list_dead_letters(connection)] == [letter.id]


@pytest.mark.parametrize(
    "query",
    [
        sql.SQL("COMMIT"),
        sql.SQL("{}").format(sql.SQL("rollback")),
        "SELECT 1; COMMIT",
        "SELECT 1; COMMIT; BEGIN",
        b"SELECT 'it''s'; /* now */ -- then\n END",
        r"SELECT E'\''; ROLLBACK; SELECT ''",
        "SELECT $x$ ; $x$; commit and chain",
    ],
)
def test_the_transaction_cannot_be_ended_by_a_part_of_a_query(
    open_desk: Open, connection: Connection, query: Any
) -> None:
    """C03"""

    def effect(message: Message, tx: Transaction) -> None:
        deposit(message, tx)
        if message.subject == "b":
            tx.execute(query)

    desk = open_desk(deposits(effect))
    assert desk.process(*map(envelope, "abc")) == ["applied", "dead_lettered", "applied"]
    assert balances(connection) == {"a": 1, "c": 1}


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 'a; commit'",
        "SELECT 1 -- ; commit",
        'SELECT 1 AS "; end"',
        r"SELECT E'\'; commit'",
        "SELECT $$; rollback $$",
        "DO $$ BEGIN PERFORM 1; END $$",
        "SELECT CASE WHEN true THEN 1 END; SELECT 2",
        sql.SQL("SELECT {}").format(sql.Literal("; commit")),
    ],
)
def test_what_only_looks_like_an_end_is_none(open_desk: Open, query: Any) -> None:
    def effect(message: Message, tx: Transaction) -> None:
        tx.execute(query)

    assert open_desk(deposits(effect)).process(envelope()) == ["applied"]


def test_a_call_that_a_thread_has_begun_ends_before_the_message_does(
    open_desk: Open, connection: Connection
) -> None:
    """A thread that waits for the connection must not get it when the transaction has ended."""
    refused: list[BaseException] = []
    threads: list[threading.Thread] = []

    def late(message: Message, tx: Transaction) -> None:
        try:
            deposit(message, tx)
        except TransactionEnded as error:
            refused.append(error)

    def effect(message: Message, tx: Transaction) -> None:
        busy = threading.Thread(target=lambda: tx.execute("SELECT pg_sleep(0.2)"))
        busy.start()
        time.sleep(0.05)
        for _ in range(8):
            threads.append(threading.Thread(target=late, args=(message, tx)))
            threads[-1].start()
        raise Rejected("told to fail")

    desk = open_desk(deposits(effect))
    desk.process(envelope())
    for thread in threads:
        thread.join(10)
    assert dead_letters(connection) != []
    assert balances(connection) == {}


def test_a_function_that_cancels_itself_has_failed(open_desk: Open, connection: Connection) -> None:
    """C80"""

    async def effect(message: Message, tx: AsyncTransaction) -> None:
        if message.subject == "a":
            task = asyncio.create_task(asyncio.sleep(10))
            task.cancel()
            await task
        await tx.execute(DEPOSIT, {"account": message.subject, "amount": 1, "version": 1})

    assert open_desk(deposits(effect)).process(envelope("a"), envelope("b")) == ["dead_lettered", "applied"]
    assert balances(connection) == {"b": 1}


def test_a_table_that_is_gone_is_not_begun_anew(open_desk: Open, connection: Connection) -> None:
    assert open_desk(folding()).process(envelope("a", 1, 10)) == ["applied"]
    connection.execute("DROP TABLE read.sums")
    with pytest.raises(ConsumerChanged, match=r"expected table read\.sums"):
        open_desk(folding())


def test_two_consumers_do_not_fold_into_one_table(open_desk: Open, connection: Connection) -> None:
    open_desk(folding()).process(envelope("a", 1, 10))
    with pytest.raises(ConsumerChanged, match=r"which consumer deposits writes"):
        open_desk(folding("others"))
    assert open_desk(folding()).process(envelope("a", 2, 10)) == ["applied"]
    assert connection.execute("SELECT account, total FROM read.sums").fetchall() == [("a", 20)]


def test_a_waiting_message_whose_row_is_refused_is_the_one_to_blame(
    open_desk: Open, bank: str, connection: Connection
) -> None:
    """C80, C81"""
    consumer = folding()
    desk = open_desk(consumer)
    assert desk.process(envelope("a", 2, 2**70), envelope("a", 3)) == ["parked", "parked"]
    assert desk.process(envelope("a", 1), envelope("b", 1)) == ["applied", "applied"]
    for _ in range(6):
        connection.execute("UPDATE onefold.parked SET due_at = clock_timestamp()")
        Waiting(desk.processor).look(now=True)
    assert [letter[:3] for letter in dead_letters(connection)] == [("a", 2, "dead_lettered")]
    assert parked(connection) == [("a", 3)]
    assert connection.execute("SELECT total FROM read.sums ORDER BY account").fetchall() == [(1,), (1,)]


def test_a_dead_letter_that_is_passed_keeps_no_deadline_away(open_desk: Open, connection: Connection) -> None:
    desk = open_desk(deposits(gap_deadline=0.05))
    assert desk.process(envelope(version=1), envelope(version=2)) == ["applied", "applied"]
    assert desk.process(envelope(version=1, amount=99), envelope(version=4)) == ["key_conflict", "parked"]
    time.sleep(0.1)
    Waiting(desk.processor).look(now=True)
    assert [letter[1:3] for letter in dead_letters(connection)] == [(1, "key_conflict"), (4, "dead_lettered")]


def test_what_another_worker_has_in_hand_is_left_to_it(
    open_desk: Open, bank: str, connection: Connection
) -> None:
    failing = [True]

    def effect(message: Message, tx: Transaction) -> None:
        if failing:
            raise ValueError("told to fail")
        deposit(message, tx)

    consumer = deposits(effect)
    desk = open_desk(consumer)
    assert desk.process(envelope(version=1), envelope(version=2)) == ["dead_lettered", "parked"]
    failing.clear()
    connection.execute("UPDATE onefold.parked SET attempts = 1")
    with psycopg.connect(bank) as other:
        other.execute("SELECT FROM onefold.sequences FOR UPDATE")
        started = time.monotonic()
        Waiting(desk.processor).look(now=True)
        assert time.monotonic() - started < 1.0
        assert tried_again(bank, consumer, connection) == ["in_progress"]
    assert [letter[3] for letter in dead_letters(connection)] == ["ValueError: told to fail"]
    assert tried_again(bank, consumer, connection) == ["applied"]
    assert balances(connection) == {"a": 2}


def test_a_rival_that_never_gives_way_to_one_that_waited_is_a_failure(
    open_desk: Open, connection: Connection
) -> None:
    rival: list[bool] = []

    def effect(message: Message, tx: Transaction) -> None:
        if message.extensions["sequence"] == "2":
            rival.append(True)
            raise VersionConflict("account/a", 1, 2)
        deposit(message, tx)

    desk = open_desk(deposits(effect))
    assert desk.process(envelope(version=2), envelope(version=1)) == ["parked", "applied"]
    Waiting(desk.processor).look(now=True)
    for _ in range(4):
        Waiting(desk.processor).look(now=True)
    assert [letter[1:3] for letter in dead_letters(connection)] == [(2, "dead_lettered")]
    assert outcomes(connection)["applied"] == 1


def test_a_key_function_that_ends_the_program_stops_nothing_else(
    open_desk: Open, connection: Connection
) -> None:
    """C80"""

    def key(message: Message) -> Any:
        if message.subject == "b":
            raise SystemExit(3)
        return message.id

    assert open_desk(deposits(key=key)).process(*map(envelope, "abc")) == ["applied", "", "applied"]
    assert [letter[2:] for letter in dead_letters(connection)] == [("rejected", "SystemExit: 3")]


def test_large_messages_that_wait_are_read_a_few_at_a_time(
    open_desk: Open, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C65"""
    monkeypatch.setattr("onefold.infrastructure.postgres.inbox.PARKED_BYTES", 250_000)
    desk = open_desk(deposits())
    large = [envelope(version=version, data={"amount": 1, "pad": "x" * 100_000}) for version in range(2, 9)]
    assert set(desk.process(*large)) == {"parked"}
    assert len(desk.session.inbox.parked(["a"])) == 3
    assert desk.process(envelope(version=1)) == ["applied"]
    assert balances(connection) == {"a": 4}
    for _ in range(2):
        Waiting(desk.processor).look(now=True)
    assert (balances(connection), parked(connection)) == ({"a": 8}, [])


def test_what_one_database_has_done_is_no_hint_for_another(
    bank: str, connection: Connection, empty_database_url: str, redis_url: str
) -> None:
    """C13"""
    with psycopg.connect(empty_database_url, autocommit=True) as other:
        migrate.migrate(other)
        other.execute(TABLE)
        for url in (bank, empty_database_url, bank):
            broker = MemoryBroker("hinted-in-two")
            broker.publish_all([envelope()])
            consumer = deposits(name="hinted_in_two")
            Consumption(url, consumer, f"memory://{broker.name}", once=True, idle=0.2, hint=redis_url).run()
        assert balances(connection) == balances(other) == {"a": 1}


@pytest.mark.parametrize(
    "query",
    [
        "INSERT INTO secrets VALUES ('4711', 1), ('4711', 2)",
        "INSERT INTO secrets VALUES ('4711', -1)",
        "SELECT 'x4711'::int",
        "SELECT '4711-02-30 x'::date",
    ],
)
def test_what_the_database_refuses_is_told_without_the_values(
    open_desk: Open, connection: Connection, caplog: pytest.LogCaptureFixture, query: str
) -> None:
    """C84"""
    connection.execute("CREATE TABLE secrets (a text PRIMARY KEY, b int CHECK (b > 0))")

    def effect(message: Message, tx: Transaction) -> None:
        tx.execute(query.encode())

    with caplog.at_level(logging.INFO, "onefold"):
        assert open_desk(deposits(effect)).process(envelope()) == ["dead_lettered"]
    ((_, _, _, cause),) = dead_letters(connection)
    assert cause
    assert "4711" not in cause + caplog.text


@pytest.mark.parametrize(
    ("before", "after"), [("unordered", "delta"), ("snapshot", "delta"), ("delta", "unordered")]
)
def test_an_ordering_stays_once_messages_were_decided_by_it(open_desk: Open, before: str, after: str) -> None:
    """C23"""
    open_desk(deposits(ordering=after))
    desk = open_desk(deposits(ordering=before))
    assert desk.process(envelope()) == ["applied"]
    with pytest.raises(ConsumerChanged, match=f'ordering="{after}"'):
        open_desk(deposits(ordering=after))
    assert open_desk(deposits(ordering=before)).process(envelope()) == ["duplicate"]


@pytest.mark.parametrize(("given", "found"), [("off", "local"), ("local", "local"), ("on", "on")])
def test_what_is_acknowledged_outlives_a_crash_of_the_server_whatever_the_default(
    bank: str, given: str, found: str
) -> None:
    """C01"""
    url = make_conninfo(bank, options=f"-c synchronous_commit={given}")
    with desk(url, deposits()) as made:
        row = made.connection.execute("SHOW synchronous_commit").fetchone()
    assert row == (found,)


def test_a_sequence_that_another_worker_holds_does_not_keep_the_others_waiting(
    open_desk: Open, bank: str, connection: Connection
) -> None:
    """C02"""
    desk = open_desk(deposits())
    assert desk.process(envelope("held")) == ["applied"]
    batch = [envelope("a"), envelope("held", 2), *(envelope(f"b{number}") for number in range(60))]
    with psycopg.connect(bank) as other:
        other.execute("SELECT FROM onefold.sequences FOR UPDATE")
        started = time.monotonic()
        found = desk.process(*batch, envelope("held", 3))
        assert time.monotonic() - started < 2 * LOCK_TIMEOUT
    assert found == ["applied", "", *["applied"] * 60, ""]
    assert len(desk.returned) == outcomes(connection)["in_progress"] == 2
    assert desk.process(*batch) == ["duplicate", "applied", *["duplicate"] * 60]

"""A consumption from the broker to the database and back: its end, its losses, its bounds."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onefold import Consumer, Message, OnefoldError, Projection, Retention, Retry, Row, Transaction
from onefold.infrastructure.brokers import BrokerMisconfigured, Delivery, Outgoing, Subscription, publisher
from onefold.infrastructure.brokers.memory import MemoryBroker, MemorySubscription
from onefold.infrastructure.consuming.arrivals import Reader
from onefold.infrastructure.consuming.consumption import Consumption
from onefold.infrastructure.consuming.session import Session
from onefold.infrastructure.postgres.inbox import ConsumerChanged
from onefold.infrastructure.postgres.ledger import claim, window
from onefold.projections.guards import Outcome
from onefold.projections.retention import RetentionTooShort

from .desk import (
    Tally,
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
from .running import Running, until

Connection = psycopg.Connection[Any]


class Total(Row, key="purse"):
    purse: str
    total: int = 0
    last: int = 0
    in_order: bool = True


_numbers = itertools.count(1)


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker(f"consumption-{next(_numbers)}", lease=3.0)


Start = Callable[..., Running]


@pytest.fixture
def start(bank: str, broker: MemoryBroker) -> Iterator[Start]:
    """Starts a consumption of the test's broker, which is stopped after the test at the latest."""
    running: list[Running] = []

    def begin(consumer: Consumer, **options: Any) -> Running:
        url = options.pop("url", bank)
        made = Running(Consumption(url, consumer, f"memory://{broker.name}", **options))
        running.append(made)
        return made

    yield begin
    for each in running:
        each.finish()


def publish(broker: MemoryBroker, *messages: Outgoing) -> None:
    broker.publish_all(messages)


def lines(accounts: int, versions: int) -> list[Outgoing]:
    return [
        envelope(f"a{account}", version) for version in range(1, versions + 1) for account in range(accounts)
    ]


def test_it_ends_at_the_end_of_its_source(start: Start, broker: MemoryBroker, connection: Connection) -> None:
    publish(broker, *lines(20, 10))
    broker.finish()
    running = start(deposits())
    running.wait()
    assert running.result is not None
    assert running.result.outcomes == {Outcome.APPLIED: 200}
    assert running.result.received == 200
    assert running.result.failure is None
    assert sum(balances(connection).values()) == 200
    assert broker.unacknowledged("deposits") == 0


def test_once_ends_when_a_broker_is_quiet(start: Start, broker: MemoryBroker, connection: Connection) -> None:
    publish(broker, *lines(5, 2))
    started = time.monotonic()
    assert start(deposits(), once=True, idle=0.5).wait() - started < 5
    assert sum(balances(connection).values()) == 10
    assert broker.unacknowledged("deposits") == 0


def test_once_does_not_end_before_the_broker_has_let_it_in(
    start: Start, broker: MemoryBroker, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemorySubscription, "joined", False)
    running = start(deposits(), once=True, idle=0.2)
    time.sleep(0.8)
    assert running.result is None
    publish(broker, *lines(5, 2))
    until(lambda: sum(balances(connection).values()) == 10)
    monkeypatch.setattr(MemorySubscription, "joined", True)
    running.wait(10)


def test_once_waits_for_tries_that_are_due_later(
    start: Start, broker: MemoryBroker, connection: Connection
) -> None:
    tries = itertools.count(1)

    def effect(message: Message, tx: Transaction) -> None:
        deposit(message, tx)
        if message.subject == "a" and next(tries) < 4:
            raise ValueError("told to fail")

    publish(broker, envelope("a"), envelope("b"))
    start(deposits(effect, retry=Retry(attempts=5, first=0.3)), once=True, idle=0.2).wait()
    assert balances(connection) == {"a": 1, "b": 1}
    # The first failure is that of a batch, and is not counted.
    assert outcomes(connection) == {"applied": 2, "retried": 2}


@pytest.mark.parametrize(("workers", "lanes"), [(3, 1), (1, 4), (2, 2)])
def test_duplicates_shuffles_and_lost_acknowledgements_change_nothing(
    start: Start, broker: MemoryBroker, connection: Connection, workers: int, lanes: int
) -> None:
    worst = MemoryBroker(
        broker.name, lease=0.5, duplicates=0.2, shuffle=30, lost_acknowledgements=0.1, seed=7
    )
    publish(worst, *lines(20, 15))
    team = [start(deposits(retry=Retry(attempts=100)), batch=17, lanes=lanes) for _ in range(workers)]
    until(lambda: worst.unacknowledged("deposits") == 0)
    for worker in team:
        worker.stop()
    assert balances(connection) == {f"a{account}": 15 for account in range(20)}
    assert disordered(connection) == []
    assert parked(connection) == []
    assert dead_letters(connection) == []


def test_a_fold_keeps_the_order_of_each_row(
    start: Start, broker: MemoryBroker, connection: Connection
) -> None:
    """C22, C27"""
    worst = MemoryBroker(
        broker.name, lease=0.5, duplicates=0.2, shuffle=30, lost_acknowledgements=0.1, seed=8
    )
    publish(
        worst, *(envelope(f"purse/{n}", v, v, type="tally.added") for v in range(1, 21) for n in range(20))
    )
    total = Projection("totals", Total, registry=counted)

    @total.on(Tally.Added)
    def added(row: Total | None, event: Tally.Added) -> Total:
        row = row or Total(purse=event.meta.key)
        return row.evolve(
            total=row.total + event.amount,
            last=event.meta.version,
            in_order=row.in_order and event.meta.version == row.last + 1,
        )

    folding = Consumer("totals", ordering="delta", version="sequence", fold=total, registry=counted)
    team = [start(folding, batch=23) for _ in range(2)]
    until(lambda: worst.unacknowledged("totals") == 0)
    for worker in team:
        worker.stop()
    rows = connection.execute("SELECT DISTINCT total, last, in_order FROM read.totals").fetchall()
    assert rows == [(210, 20, True)]
    assert connection.execute("SELECT count(*) FROM read.totals").fetchone() == (20,)
    assert outcomes(connection, "totals")["applied"] == 400


def test_a_lost_broker_is_waited_for(start: Start, broker: MemoryBroker, connection: Connection) -> None:
    publish(broker, *lines(10, 50))
    running = start(deposits(), batch=20)
    for count_ in (50, 200):
        until(lambda count_=count_: sum(balances(connection).values()) >= count_)
        broker.cut()
    until(lambda: broker.unacknowledged("deposits") == 0)
    running.stop()
    assert balances(connection) == {f"a{account}": 50 for account in range(10)}
    assert running.consumption.intake.lost >= 1


def test_a_lost_database_is_waited_for(
    start: Start, broker: MemoryBroker, connection: Connection, bank: str
) -> None:
    publish(broker, *lines(10, 50))
    running = start(deposits(retry=Retry(attempts=100)), batch=20)
    for count_ in (50, 150, 300):
        until(lambda count_=count_: sum(balances(connection).values()) >= count_)
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    until(lambda: broker.unacknowledged("deposits") == 0)
    running.stop()
    assert balances(connection) == {f"a{account}": 50 for account in range(10)}
    assert disordered(connection) == []


def test_it_stops_in_time_and_gives_back_what_it_did_not_begin(
    start: Start, broker: MemoryBroker, connection: Connection
) -> None:
    def effect(message: Message, tx: Transaction) -> None:
        deposit(message, tx)
        time.sleep(0.02)

    publish(broker, *lines(100, 5))
    running = start(deposits(effect), grace=5.0)
    until(lambda: sum(balances(connection).values()) > 10)
    assert running.stop() < 5
    applied = sum(balances(connection).values())
    assert 10 < applied < 500
    # What was acknowledged is applied and the other way round; nothing is held, so another gets the rest at once.
    assert broker.unacknowledged("deposits") == 500 - applied
    again = start(deposits())
    until(lambda: broker.unacknowledged("deposits") == 0, 2.5)
    again.stop()
    assert balances(connection) == {f"a{account}": 5 for account in range(100)}
    assert "duplicate" not in outcomes(connection)


def test_what_takes_longer_than_the_grace_time_is_rolled_back(
    start: Start, broker: MemoryBroker, connection: Connection
) -> None:
    entered = threading.Event()

    def effect(message: Message, tx: Transaction) -> None:
        deposit(message, tx)
        entered.set()
        time.sleep(0.5)

    publish(broker, *lines(20, 1))
    running = start(deposits(effect), grace=0.2)
    assert entered.wait(10)
    assert running.stop() < 3
    assert balances(connection) == {}
    assert outcomes(connection) == {}
    assert broker.unacknowledged("deposits") == 20
    again = start(deposits())
    until(lambda: broker.unacknowledged("deposits") == 0, 2.5)
    again.stop()
    assert sum(balances(connection).values()) == 20


@pytest.mark.parametrize("seconds", [2, pytest.param(60, marks=pytest.mark.soak)])
def test_a_stalled_database_costs_no_lease_and_no_memory(
    seconds: int, start: Start, broker: MemoryBroker, connection: Connection
) -> None:
    """C65"""
    brief = MemoryBroker(broker.name, lease=0.4)

    def effect(message: Message, tx: Transaction) -> None:
        deposit(message, tx)
        if message.id == "a0-1":
            tx.execute("SELECT pg_sleep(%s)", (seconds,))

    publish(brief, *lines(50, 60))
    running = start(deposits(effect), messages=300, batch=100)
    most = 0
    ends = time.monotonic() + seconds - 0.2
    while time.monotonic() < ends:
        most = max(most, running.consumption.intake.in_flight)
        time.sleep(0.01)
    until(lambda: brief.unacknowledged("deposits") == 0)
    running.stop()
    assert most == 300
    assert outcomes(connection) == {"applied": 3_000}
    assert running.consumption.intake.received == 3_000


def test_the_bytes_that_are_held_are_bounded(
    start: Start, broker: MemoryBroker, connection: Connection
) -> None:
    """C65"""
    go_on = threading.Event()

    def effect(message: Message, tx: Transaction) -> None:
        assert go_on.wait(20)
        deposit(message, tx)

    publish(broker, *(envelope(f"a{number}", note="n" * 10_000) for number in range(200)))
    running = start(deposits(effect), messages=20, size=100_000)
    until(lambda: running.consumption.intake.in_flight >= 10)
    time.sleep(0.2)
    assert running.consumption.intake.in_flight <= 20 + 10
    go_on.set()
    until(lambda: broker.unacknowledged("deposits") == 0)
    running.stop()
    assert len(balances(connection)) == 200


def test_a_lock_that_is_held_for_seconds_fails_nothing(
    start: Start, broker: MemoryBroker, connection: Connection, bank: str
) -> None:
    """C02, C65: neither what the product locks nor what the function locks becomes a dead letter."""
    publish(broker, *lines(3, 2))
    with psycopg.connect(bank) as rival:
        rival.execute("LOCK TABLE accounts")
        running = start(deposits(retry=Retry(attempts=1)))
        time.sleep(5)
        rival.rollback()
        until(lambda: broker.unacknowledged("deposits") == 0)
    running.stop()
    assert balances(connection) == {"a0": 2, "a1": 2, "a2": 2}
    assert dead_letters(connection) == []


@pytest.mark.parametrize("source", ["memory", "file"])
def test_what_was_given_back_at_the_end_of_a_source_is_taken_again(
    source: str, start: Start, broker: MemoryBroker, connection: Connection, bank: str, tmp_path: Path
) -> None:
    """C02: a key that another worker holds is in progress; that worker dies, and nobody else would apply it."""
    first, other = envelope("a"), envelope("b")
    url = f"memory://{broker.name}"
    publish(broker, first, other)
    broker.finish()
    if source == "file":
        url = f"file:{tmp_path / 'deposits.jsonl'}"
        with closing(publisher(url)) as out:
            out.publish([first, other])
    rival = Session(bank, (consumer := deposits()), Reader(consumer))
    consumption, running = Consumption(bank, consumer, url, once=True, idle=0.2), list[Running]()
    with suppress(psycopg.Error), rival.connection.transaction():
        found = window(rival.connection, "any")
        item = rival.processor.reader.arrival(Delivery(first.body, first.headers, "rival"))
        claim(rival.connection, "any", rival.number, [item.key], [item.fingerprint], within=found)
        running.append(Running(consumption))
        until(lambda: outcomes(connection).get("in_progress", 0) > 0)
        time.sleep(0.5)
        connection.execute("SELECT pg_terminate_backend(%s)", (rival.connection.info.backend_pid,))
    rival.close()
    running[0].wait()
    assert balances(connection) == {"a": 1, "b": 1}


def test_a_gap_is_reported_and_then_a_dead_letter(
    start: Start, broker: MemoryBroker, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    publish(broker, envelope("a", 1), envelope("a", 3), envelope("b", 2), envelope("a", 4))
    running = start(deposits(gap_report=0.1, gap_deadline=3.0))
    until(lambda: "2 messages of a wait since" in caplog.text)
    until(lambda: "1 message of b waits since" in caplog.text)
    assert parked(connection) == [("a", 3), ("a", 4), ("b", 2)]
    publish(broker, envelope("b", 1))
    until(lambda: balances(connection).get("b") == 2)
    until(lambda: not parked(connection))
    running.stop()
    assert [letter[:3] for letter in dead_letters(connection)] == [
        ("a", 3, "dead_lettered"),
        ("a", 4, "dead_lettered"),
    ]
    assert "did not come" in dead_letters(connection)[0][3]
    assert broker.unacknowledged("deposits") == 0


def test_a_parked_message_that_fails_is_tried_again_by_the_clock(
    start: Start, broker: MemoryBroker, connection: Connection
) -> None:
    tries = itertools.count(1)

    def effect(message: Message, tx: Transaction) -> None:
        deposit(message, tx)
        if message.id == "a-2" and next(tries) < 3:
            raise ValueError("told to fail")

    publish(broker, envelope("a", 3), envelope("a", 2), envelope("a", 1))
    running = start(deposits(effect, retry=Retry(attempts=5, first=0.05)))
    until(lambda: balances(connection).get("a") == 3)
    running.stop()
    assert disordered(connection) == []
    assert parked(connection) == []


def test_the_count_of_duplicates_is_exact_where_the_log_is_sampled(
    start: Start, broker: MemoryBroker, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """C84"""
    caplog.set_level(logging.INFO, "onefold.consumer")
    publish(broker, *lines(500, 1), *lines(500, 1))
    broker.finish()
    start(deposits()).wait()
    assert outcomes(connection) == {"applied": 500, "duplicate": 500}
    found = [record.getMessage() for record in caplog.records if "duplicate of key" in record.getMessage()]
    assert 0 < len(found) <= 300
    assert "consumer deposits: duplicate of key a" in found[0]
    seen = found[0].rpartition("first seen ")[2]
    assert seen == "a moment ago" or datetime.fromisoformat(seen).tzinfo is not None


def test_a_command_side_survives_a_rival_worker(
    start: Start, broker: MemoryBroker, connection: Connection
) -> None:
    """Two consumers append to the same streams, each message once."""
    publish(broker, *lines(3, 20))
    workers = [
        start(deposits(count, name=name, registry=counted, ordering=ordering, retry=Retry(attempts=100)))
        for name, ordering in (("one", "delta"), ("two", "unordered"))
    ]
    until(lambda: not any(broker.unacknowledged(name) for name in ("one", "two")))
    for worker in workers:
        worker.stop()
    rows = connection.execute(
        "SELECT stream, count(*), max(version) FROM onefold.events GROUP BY 1 ORDER BY 1"
    ).fetchall()
    assert rows == [(Tally.stream_of(f"a{number}"), 40, 40) for number in range(3)]


def test_an_error_of_the_broker_that_stays_ends_it(bank: str) -> None:
    def subscription() -> Subscription:
        raise BrokerMisconfigured("no such queue")

    consumption = Consumption(bank, deposits(), "memory://unused", subscription=subscription)
    with pytest.raises(BrokerMisconfigured, match="no such queue"):
        consumption.run()


def test_a_consumer_whose_ledger_forgets_too_soon_is_refused(bank: str, start: Start) -> None:
    """C91"""
    with pytest.raises(RetentionTooShort):
        start(deposits(retention=Retention(ledger=3_600))).wait()


def test_a_consumer_that_has_changed_its_ledger_is_refused(start: Start, broker: MemoryBroker) -> None:
    broker.finish()
    start(deposits()).wait()
    with pytest.raises(ConsumerChanged):
        start(deposits(ledger="time")).wait()


def test_a_batch_is_bounded(bank: str) -> None:
    with pytest.raises(OnefoldError, match="expected a batch of 1 to"):
        Consumption(bank, deposits(), "memory://unused", batch=0)


def test_slow_functions_get_small_batches(start: Start, broker: MemoryBroker, connection: Connection) -> None:
    def effect(message: Message, tx: Transaction) -> None:
        deposit(message, tx)
        time.sleep(0.03)

    publish(broker, *lines(1, 120))
    running = start(deposits(effect))
    until(lambda: broker.unacknowledged("deposits") == 0)
    running.stop()
    assert running.consumption._lanes[0]._limit < 64
    assert balances(connection) == {"a0": 120}

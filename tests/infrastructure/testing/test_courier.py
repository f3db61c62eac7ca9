"""Messages delivered by hand, and what becomes of each."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from onefold import Consumer, Message, Retry, Transaction
from onefold.domain.errors import DeclarationError
from onefold.infrastructure.brokers import Delivery, Outgoing
from onefold.infrastructure.brokers.envelope import read, write
from onefold.infrastructure.testing import courier
from onefold.infrastructure.testing.courier import Courier
from onefold.infrastructure.testing.messages import deliveries, in_new_envelope
from onefold.testing import MemoryBroker, Outcome, delivered

from .consumers import DEPOSITS, IN_ORDER, TABLES, UNORDERED, add, balances

APPLIED, DUPLICATE, PARKED = Outcome.APPLIED, Outcome.DUPLICATE, Outcome.PARKED


@pytest.fixture
def bank(onefold_database: str) -> str:
    with psycopg.connect(onefold_database, autocommit=True) as connection:
        connection.execute(TABLES)
    return onefold_database


def state(url: str) -> dict[str, int]:
    with psycopg.connect(url) as connection:
        return balances(connection)


def test_the_outcome_of_each_delivery_is_told(bank: str) -> None:
    adds = Consumer("adds", effect=add, **IN_ORDER)
    assert delivered(adds, [DEPOSITS[0], DEPOSITS[0], DEPOSITS[3]], bank) == [APPLIED, DUPLICATE, PARKED]
    assert delivered(adds, [DEPOSITS[1]], bank) == [APPLIED]
    assert delivered(adds, [Outgoing(b"{", {})], bank) == [Outcome.REJECTED]
    assert state(bank) == {"a": 13}


def test_a_database_without_tables_is_migrated(empty_database_url: str) -> None:
    consumer = Consumer("idle", effect=lambda message, tx: None, ordering="unordered")
    assert delivered(consumer, [{"type": "a"}], empty_database_url) == [APPLIED]


def test_a_function_that_fails_is_tried_again_without_waiting(bank: str) -> None:
    tries: list[str] = []

    def effect(message: Message, tx: Transaction) -> None:
        tries.append(message.id)
        if tries.count(message.id) < 3:
            raise ValueError("not yet")
        add(message, tx)

    patient = Consumer("adds", effect=effect, retry=Retry(attempts=3, first=60.0), **UNORDERED)
    assert delivered(patient, DEPOSITS[:2], bank) == [APPLIED, APPLIED]
    assert state(bank) == {"a": 15}
    assert len(tries) == 6


def test_a_message_that_waits_for_another_is_tried_after_it(bank: str) -> None:
    def effect(message: Message, tx: Transaction) -> None:
        if message.subject == "a":
            found = tx.execute("SELECT 1 FROM balances WHERE account = 'b'").fetchone()
            if found is None:
                raise LookupError("b is not there yet")
        add(message, tx)

    waits = Consumer("adds", effect=effect, retry=Retry(attempts=2), **UNORDERED)
    assert delivered(waits, [DEPOSITS[0], DEPOSITS[2]], bank) == [APPLIED, APPLIED]


def test_a_parked_message_that_fails_is_waited_for(bank: str) -> None:
    failures = iter([True, True, False])

    def effect(message: Message, tx: Transaction) -> None:
        if message.id == "a-2" and next(failures):
            raise ValueError("not yet")
        add(message, tx)

    adds = Consumer("adds", effect=effect, **IN_ORDER)
    assert delivered(adds, [DEPOSITS[1], DEPOSITS[0]], bank) == [PARKED, APPLIED]
    assert state(bank) == {"a": 15}


def test_a_lost_connection_is_made_anew(bank: str) -> None:
    lost: list[str] = []

    def effect(message: Message, tx: Transaction) -> None:
        add(message, tx)
        if message.id not in lost:
            lost.append(message.id)
            with psycopg.connect(bank, autocommit=True) as connection:
                connection.execute("SELECT pg_terminate_backend(%s, 5000)", (tx.connection.info.backend_pid,))

    adds = Consumer("adds", effect=effect, **IN_ORDER)
    assert delivered(adds, DEPOSITS[:2], bank) == [APPLIED, APPLIED]
    assert state(bank) == {"a": 15}


def test_a_database_that_is_lost_again_and_again_is_given_up(
    bank: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(courier, "LOSSES", 2)

    def effect(message: Message, tx: Transaction) -> None:
        with psycopg.connect(bank, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(%s, 5000)", (tx.connection.info.backend_pid,))

    with pytest.raises(psycopg.OperationalError):
        delivered(Consumer("adds", effect=effect, retry=Retry(attempts=99), **UNORDERED), DEPOSITS, bank)


def test_messages_that_others_hold_are_given_up_in_the_end(
    bank: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(courier, "PATIENCE", 0.1)
    adds = Consumer("adds", effect=add, **IN_ORDER)
    assert delivered(adds, DEPOSITS[:1], bank) == [APPLIED]
    with psycopg.connect(bank) as connection:
        connection.execute("SELECT FROM onefold.sequences FOR UPDATE")
        with pytest.raises(TimeoutError, match="transactions that do not end"):
            delivered(adds, DEPOSITS[1:2], bank)


def test_a_broker_is_emptied_with_all_its_faults(bank: str) -> None:
    broker = MemoryBroker("faulty", duplicates=0.5, shuffle=3, lost_acknowledgements=0.5, seed=4)
    broker.publish_all([write(message) for message in DEPOSITS])
    adds = Consumer("adds", effect=add, **IN_ORDER)
    found = delivered(adds, broker, bank)
    assert len(found) > len(DEPOSITS)
    assert found.count(APPLIED) + found.count(PARKED) == len(DEPOSITS)
    assert broker.unacknowledged("adds") == 0
    assert state(bank) == {"a": 13, "b": 27}


def test_an_acknowledgement_follows_each_batch(bank: str) -> None:
    places: list[int] = []
    adds = Consumer("adds", effect=add, **IN_ORDER)
    with Courier(bank, adds, acknowledging=lambda: places.append(carrier.index)) as carrier:
        carrier.deliver(deliveries(DEPOSITS), together=2)
    assert places == [0, 2, 4]


ATTRIBUTES: dict[str, Any] = {
    "id": "7",
    "source": "/s",
    "type": "t",
    "data": {"n": 1},
    "subject": "a",
    "x": "y",
}


@pytest.mark.parametrize(
    "given",
    [
        Message("7", "/s", "t", {"n": 1}, "a", datetime(2026, 1, 1, tzinfo=UTC), extensions={"x": "y"}),
        {**ATTRIBUTES, "time": "2026-01-01T00:00:00Z"},
        {**ATTRIBUTES, "time": datetime(2026, 1, 1, tzinfo=UTC), "specversion": "1.0"},
    ],
    ids=["message", "mapping", "mapping with an instant"],
)
def test_a_message_may_be_given_in_several_ways(given: Any) -> None:
    (delivery,) = deliveries([given])
    message = read(delivery)
    assert (message.id, message.source, message.type, message.subject) == ("7", "/s", "t", "a")
    assert (message.data, message.time, dict(message.extensions)) == (
        {"n": 1},
        datetime(2026, 1, 1, tzinfo=UTC),
        {"x": "y"},
    )
    assert delivery.published_at is not None


def test_ids_and_sources_are_made_up_where_a_mapping_has_none() -> None:
    found = [read(each) for each in deliveries([{"type": "t"}, {"type": "t"}])]
    assert [(each.id, each.source) for each in found] == [("1", "/test"), ("2", "/test")]
    with pytest.raises(
        DeclarationError, match="message 2: expected the attributes of a CloudEvent with `type`"
    ):
        deliveries([{"type": "t"}, {"subject": "a"}])


@pytest.mark.parametrize("identity", ["a-1", "01890a5d-ac96-774b-bcce-b302099a8057"])
def test_a_new_envelope_changes_the_id_and_nothing_else(identity: str) -> None:
    given = Message(identity, "/s", "t", {"n": 1}, "a", extensions={"idempotencykey": "k"})
    (delivery,) = deliveries([given])
    again = read(in_new_envelope(delivery))
    assert again.id != identity
    assert len(again.id) == len(identity) or again.id == "a-1-again"
    again.id = identity
    assert again == read(delivery)


def test_headers_are_in_lower_case_as_brokers_give_them() -> None:
    (delivery,) = deliveries([Outgoing(b"1", {"CE-Id": "1"}, "k")])
    assert (dict(delivery.headers), delivery.key, type(delivery)) == ({"ce-id": "1"}, "k", Delivery)

"""Messages that a consumer sends on: written in the transaction of the one that it handles."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from onefold import AsyncTransaction, Consumer, Message, Retry, Transaction
from onefold.infrastructure.brokers.envelope import BadEnvelope, read
from onefold.infrastructure.brokers.port import Delivery
from onefold.infrastructure.connection import connected
from onefold.infrastructure.testing.state import OUTBOX, Sight
from onefold.testing import Outcome, delivered, exactly_once

CAUSE = {
    "id": "m-1", "type": "order.shipped", "subject": "order/4711", "data": {"n": 1}, "correlationid": "c-1",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
}  # fmt: skip


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with connected(database_url, application="test") as found:
        yield found


def consumer(effect: Any, **options: Any) -> Consumer:
    return Consumer("shipping", effect=effect, ordering="unordered", age="received", **options)


def outbox(connection: psycopg.Connection[Any]) -> list[tuple[str, str | None, Message]]:
    rows = connection.execute(
        "SELECT channel, key, body, headers FROM onefold.outbox ORDER BY position"
    ).fetchall()
    return [
        (channel, key, read(Delivery(bytes(body), headers, "here"))) for channel, key, body, headers in rows
    ]


def test_what_is_sent_on_says_what_caused_it(database_url: str, connection: psycopg.Connection[Any]) -> None:
    ids: list[str] = []

    def effect(message: Message, tx: Transaction) -> None:
        ids.append(tx.publish("mail.asked", {"to": "ana"}, to="mails", subject="order/4711"))

    assert delivered(consumer(effect), [CAUSE, CAUSE], database_url) == [Outcome.APPLIED, Outcome.DUPLICATE]
    [(channel, key, message)] = outbox(connection)
    assert (channel, key, [message.id]) == ("mails", "order/4711", ids)
    assert (message.source, message.type, message.data) == ("/shipping", "mail.asked", {"to": "ana"})
    assert message.time is not None
    assert message.extensions == {
        "causationid": "m-1", "correlationid": "c-1", "traceparent": CAUSE["traceparent"],
    }  # fmt: skip


def test_a_whole_message_goes_out_as_it_is(database_url: str, connection: psycopg.Connection[Any]) -> None:
    own = Message("own", "/here", "mail.asked", b"\x00", extensions={"partitionkey": "p"})

    def effect(message: Message, tx: Transaction) -> None:
        assert tx.publish(own, to="mails", key="k") == "own"

    delivered(consumer(effect), [CAUSE], database_url)
    [(_, key, message)] = outbox(connection)
    assert (key, message.id, message.data) == ("k", "own", b"\x00")


def test_an_async_function_sends_on_too(database_url: str, connection: psycopg.Connection[Any]) -> None:
    async def effect(message: Message, tx: AsyncTransaction) -> None:
        await asyncio.sleep(0)
        await tx.publish("mail.asked", {}, to="mails", key="a", numbered=True)

    delivered(consumer(effect), [CAUSE, {**CAUSE, "id": "m-2"}], database_url)
    assert [message.extensions["sequence"] for _, _, message in outbox(connection)] == ["1", "2"]


def test_a_failed_message_sends_nothing_on(database_url: str, connection: psycopg.Connection[Any]) -> None:
    tries = 0

    def effect(message: Message, tx: Transaction) -> None:
        nonlocal tries
        tries += 1
        tx.publish("mail.asked", {"try": tries}, to="mails")
        if tries < 3:
            raise ValueError("not yet")

    assert delivered(consumer(effect, retry=Retry(attempts=5)), [CAUSE], database_url) == [Outcome.APPLIED]
    assert [message.data for _, _, message in outbox(connection)] == [{"try": 3}]


def test_what_cannot_travel_is_the_fault_of_its_message(
    database_url: str, connection: psycopg.Connection[Any]
) -> None:
    def effect(message: Message, tx: Transaction) -> None:
        with pytest.raises(BadEnvelope, match="data"):
            tx.publish("mail.asked", {"text": "a\x00"}, to="mails")
        # Nothing was sent to the database, and the transaction goes on.
        tx.execute("SELECT 1")

    assert delivered(consumer(effect), [CAUSE], database_url) == [Outcome.APPLIED]
    assert outbox(connection) == []


def test_what_goes_out_is_part_of_what_is_compared(
    database_url: str, connection: psycopg.Connection[Any]
) -> None:
    def effect(message: Message, tx: Transaction) -> None:
        tx.publish("mail.asked", {}, to="mails", key="a", numbered=True)

    delivered(consumer(effect), [CAUSE], database_url)
    [row] = Sight().state(connection).tables[OUTBOX]
    assert (row["channel"], row["key"], row["message"]["sequence"]) == ("mails", "a", "1")
    assert {"id", "time"}.isdisjoint(row["message"])
    [row] = Sight(ordered=False).state(connection).tables[OUTBOX]
    assert "sequence" not in row["message"]


def sends(message: Message, tx: Transaction) -> None:
    """Send one message on."""
    tx.publish("mail.asked", message.data, to="mails", subject=message.subject)


test_a_consumer_that_sends_on_does_so_exactly_once = exactly_once(
    consumer(sends, key="data.n"),
    [{**CAUSE, "id": f"m-{number}", "data": {"n": number}} for number in range(4)],
)

"""What was once broken: messages of the future, which were forgotten before they could expire."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from onefold import App, Consumer, Retention
from onefold.infrastructure.brokers import Delivery, Outgoing
from onefold.infrastructure.consuming.dead_letters import list_dead_letters, retry
from onefold.infrastructure.postgres.maintenance import maintain

from .desk import Desk, balances, dead_letters, deposits, envelope, outcomes

Open = Callable[[Consumer], Desk]
Connection = psycopg.Connection[Any]
DAY = timedelta(days=1)


def unordered(**options: Any) -> Consumer:
    return deposits(ordering="unordered", **options)


def deliver(desk: Desk, message: Outgoing, published_at: datetime | None) -> str:
    """Process a message that the broker has a time for, or none."""
    arrival = desk.reader.arrival(
        Delivery(message.body, message.headers, "test@1", published_at=published_at)
    )
    desk.processor.process(deque([arrival]), desk)
    assert arrival.outcome is not None
    return arrival.outcome.value


def later(days: float) -> str:
    return (datetime.now(UTC) + days * DAY).isoformat()


def test_a_message_of_the_future_is_rejected_where_the_broker_tells_no_time(
    open_desk: Open, connection: Connection
) -> None:
    desk = open_desk(unordered())
    assert deliver(desk, envelope(time=later(400)), None) == "rejected"
    assert deliver(desk, envelope("b", time=later(0.9)), None) == "applied"
    ((_, _, _, cause),) = dead_letters(connection)
    assert "more than 1 day in the future" in cause
    assert "mend the clock of its producer" in cause
    assert balances(connection) == {"b": 1}


def test_a_message_is_as_old_as_the_broker_says_where_its_own_time_is_later(
    open_desk: Open, connection: Connection
) -> None:
    retention = Retention(ledger=8 * 86_400)
    desk = open_desk(unordered(retention=retention))
    message, now = envelope(time=later(400)), datetime.now(UTC)
    assert deliver(desk, message, now) == "applied"
    for day in range(0, 40, 2):
        maintain(connection, now=now + day * DAY)
    assert deliver(open_desk(unordered(retention=retention)), message, now) == "expired"
    assert balances(connection) == {"a": 1}


@pytest.mark.parametrize(("age", "outcome"), [("published", "rejected"), ("received", "applied")])
def test_a_broker_whose_clock_is_wrong_is_not_believed(
    open_desk: Open, connection: Connection, age: Any, outcome: str
) -> None:
    desk = open_desk(unordered(age=age))
    assert deliver(desk, envelope(), datetime.now(UTC) + 3 * DAY) == outcome
    assert [
        letter[3] for letter in dead_letters(connection) if "mend the broker's clock" not in letter[3]
    ] == []


def test_a_message_of_the_future_has_not_claimed_its_key(
    open_desk: Open, bank: str, connection: Connection
) -> None:
    """C80"""
    message = envelope(time=later(5))
    assert deliver(open_desk(unordered()), message, None) == "rejected"
    assert deliver(open_desk(unordered(age="received")), message, None) == "applied"
    # The consumer's clock is set back: what was applied is known all the same.
    assert deliver(open_desk(unordered()), message, None) == "duplicate"
    letters, app = list_dead_letters(connection), App(consumers=[unordered(age="received")])
    assert [each.became for each in retry(bank, app, letters, by="ops")] == ["duplicate"]
    assert balances(connection) == {"a": 1}


def test_a_message_of_the_future_that_is_retried_is_applied_once(
    open_desk: Open, bank: str, connection: Connection
) -> None:
    consumer, mended = unordered(), unordered(age="received")
    message = envelope(time=later(5))
    assert deliver(open_desk(consumer), message, None) == "rejected"
    letters = list_dead_letters(connection)
    assert [each.became for each in retry(bank, App(consumers=[consumer]), letters, by="ops")] == ["rejected"]
    assert [each.became for each in retry(bank, App(consumers=[mended]), letters, by="ops")] == ["applied"]
    assert deliver(open_desk(mended), message, None) == "duplicate"
    assert balances(connection) == {"a": 1}


def test_one_key_with_a_time_of_the_future_and_of_now_has_one_effect_at_most(
    open_desk: Open, bank: str, connection: Connection
) -> None:
    consumer = unordered(age="time")
    desk = open_desk(consumer)
    batch = [
        desk.reader.arrival(Delivery(each.body, each.headers, "test@1"))
        for each in (envelope(time=later(5)), envelope(), envelope("b"))
    ]
    desk.processor.process(deque(batch), desk)
    assert outcomes(connection) == {"applied": 1, "duplicate": 1, "rejected": 1}
    retried = retry(bank, App(consumers=[unordered(age="received")]), list_dead_letters(connection), by="ops")
    assert [each.became for each in retried] == ["applied"]
    assert balances(connection) == {"a": 1, "b": 1}

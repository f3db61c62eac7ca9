"""Lag in messages and in seconds, from what the workers of a consumer say (C83)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from onefold.infrastructure.lag import Share, backlog, lag_messages, lag_seconds

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def share(broker: str, waiting: int | None, held: int, age: float | None = None) -> Share:
    return Share(broker, waiting, held, None if age is None else NOW - timedelta(seconds=age))


@pytest.mark.parametrize(
    ("shares", "waiting", "messages"),
    [
        ([], None, None),
        ([share("kafka://h/t", 10, 2)], 10, 12),
        ([share("kafka://h/t", 10, 2), share("kafka://h/t", 5, 1)], 15, 18),
        ([share("amqp://h/q", 10, 2), share("amqp://h/q", 9, 1)], 10, 13),
        ([share("amqp://h/q", 10, 2), share("amqp://h/other", 9, 1)], 19, 22),
        ([share("sqs://q", 10, 2), share("sqs://q", 9, 1)], 10, 10),
        ([share("redis://h/s", 2, 3), share("redis://h/s", 1, 1)], 2, 4),
        ([share("pubsub://p/s", None, 3)], None, None),
        ([share("pubsub://p/s", None, 3), share("memory://m", 2, 1)], 2, 6),
        ([share("kafka://h/t", 0, 0)], 0, 0),
    ],
)
def test_a_queue_that_all_workers_see_counts_once_and_shares_of_their_own_add_up(
    shares: list[Share], waiting: int | None, messages: int | None
) -> None:
    assert backlog(shares) == waiting
    assert lag_messages(shares) == messages


@pytest.mark.parametrize(
    ("shares", "seconds"),
    [
        ([], None),
        ([share("kafka://h/t", 0, 0, 60)], 0.0),
        ([share("kafka://h/t", 1, 0, 60)], 60.0),
        ([share("kafka://h/t", 0, 1, 60), share("kafka://h/t", 0, 0, 20)], 60.0),
        ([share("kafka://h/t", 900, 0, 3600), share("kafka://h/t", 1, 0, 1)], 3600.0),
        ([share("kafka://h/t", 0, 0, 3600), share("kafka://h/t", 1, 0, 1)], 1.0),
        ([share("kafka://h/t", 1, 0), share("kafka://h/t", 1, 0, 5)], 5.0),
        ([share("amqp://h/q", 0, 1, 60), share("amqp://h/q", 9, 1, 20)], 20.0),
        ([share("amqp://h/q", 1, 1, 60), share("amqp://h/other", 9, 1, 20)], 60.0),
        ([share("kafka://h/t", 1, 0)], None),
        ([share("pubsub://p/s", None, 0, 60)], 0.0),
        ([share("kafka://h/t", 1, 0, -5)], 0.0),
    ],
)
def test_lag_in_seconds_is_that_of_the_newest_message_done_of_whoever_is_furthest_behind(
    shares: list[Share], seconds: float | None
) -> None:
    assert lag_seconds(shares, NOW) == seconds

"""Keys are remembered for longer than a message can come again, or the consumer refuses to start (C91)."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from freezegun import freeze_time
from hypothesis import given
from hypothesis import strategies as st

from onefold.domain.errors import DeclarationError, OnefoldError
from onefold.projections.retention import DAY, HOUR, MINUTE, UNASKED, Retention, RetentionTooShort, duration

BARE = {"downtime": 0.0, "clock_skew": 0.0, "outbox_backlog": 0.0, "dead_letter_age": 0.0}


@pytest.mark.parametrize(
    ("declared", "broker", "window"),
    [
        # What is declared, what the broker says, for how long it may deliver again.
        (None, None, UNASKED),
        (None, 4 * DAY, 4 * DAY),
        (None, 0.0, 0.0),
        (None, math.inf, math.inf),
        (2 * DAY, None, 2 * DAY),
        (2 * DAY, math.inf, 2 * DAY),
        (2 * DAY, 4 * DAY, 4 * DAY),
        (4 * DAY, 2 * DAY, 4 * DAY),
        (0.0, None, 0.0),
    ],
)
def test_the_redelivery_window_is_the_brokers_unless_it_has_none(
    declared: float | None, broker: float | None, window: float
) -> None:
    retention = Retention(redelivery=declared, **BARE)
    assert retention.window(broker) == window
    assert retention.required(broker) == window


def test_what_is_required_is_the_sum_of_all_that_can_hold_a_message_back() -> None:
    """C91"""
    retention = Retention(downtime=1, clock_skew=2, outbox_backlog=4, dead_letter_age=8)
    assert retention.required(16) == 31


@pytest.mark.parametrize(
    "term", ["redelivery", "downtime", "clock_skew", "outbox_backlog", "dead_letter_age"]
)
def test_a_retention_that_does_not_exceed_every_term_is_refused(term: str) -> None:
    """C91"""
    others: dict[str, Any] = {"redelivery": 0.0, **BARE}
    Retention(ledger=100.000001, **{**others, term: 100.0}).refuse_if_short("payments", None)
    for kept in (100.0, 99.0):
        with pytest.raises(RetentionTooShort) as caught:
            Retention(ledger=kept, **{**others, term: 100.0}).refuse_if_short("payments", None)
        assert (caught.value.consumer, caught.value.kept, caught.value.required) == ("payments", kept, 100.0)


def test_the_refusal_names_every_term_and_what_to_do() -> None:
    """C91"""
    with pytest.raises(RetentionTooShort) as caught:
        Retention(ledger=7 * DAY).refuse_if_short("payments", 14 * DAY)
    assert isinstance(caught.value, OnefoldError)
    assert str(caught.value) == (
        "consumer payments: expected the ledger to remember keys for more than 22.0451 days (redelivery window "
        "14 days, downtime 1 day, clock skew 5 minutes, outbox backlog 1 hour, dead-letter age 7 days), found 7 days; "
        "declare a longer one, Retention(ledger=seconds), or lower a term that is too high"
    )


def test_a_broker_that_keeps_messages_for_ever_is_refused_until_the_window_is_declared() -> None:
    """C91"""
    with pytest.raises(
        RetentionTooShort, match=r"keeps them for ever.*Retention\(redelivery=seconds\)"
    ) as caught:
        Retention().refuse_if_short("payments", math.inf)
    assert math.isinf(caught.value.required)
    Retention(redelivery=3 * DAY).refuse_if_short("payments", math.inf)
    with pytest.raises(RetentionTooShort, match="redelivery window 30 days"):
        Retention(redelivery=30 * DAY).refuse_if_short("payments", math.inf)


@pytest.mark.parametrize("broker", [None, 0.0, 4 * DAY, 7 * DAY, 14 * DAY])
def test_the_defaults_outlast_the_usual_brokers(broker: float | None) -> None:
    Retention().refuse_if_short("payments", broker)


@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan])
@pytest.mark.parametrize(
    "name", ["ledger", "redelivery", "downtime", "clock_skew", "outbox_backlog", "dead_letter_age"]
)
def test_a_term_that_is_no_length_of_time_is_refused(name: str, value: float) -> None:
    given_term: dict[str, Any] = {name: value}
    with pytest.raises(DeclarationError, match=rf"expected {name} to be .* found {value}"):
        Retention(**given_term)


def test_a_ledger_that_remembers_nothing_is_refused() -> None:
    with pytest.raises(DeclarationError, match="expected ledger to be a positive number of seconds, found 0"):
        Retention(ledger=0)


seconds = st.integers(0, 100 * 86_400)


@given(seconds, seconds, seconds, seconds, seconds, st.floats(0, 1))
def test_the_latest_copy_of_a_message_meets_a_key_that_is_remembered(
    redelivery: int, downtime: int, skew: int, backlog: int, age: int, share: float
) -> None:
    """C91, C92: by a clock that is moved from the first delivery to the last that can be."""
    terms: dict[str, Any] = {
        "downtime": downtime,
        "clock_skew": skew,
        "outbox_backlog": backlog,
        "dead_letter_age": age,
    }
    required = Retention(**terms).required(redelivery)
    retention = Retention(ledger=required + 1, **terms)
    retention.refuse_if_short("payments", redelivery)
    with freeze_time("2026-11-30 12:00:00") as clock:
        first_seen = datetime.now(UTC)
        for delay in (redelivery, downtime, skew, backlog, age):
            clock.tick(timedelta(seconds=int(delay * share)))
        forgotten_before = datetime.now(UTC) - timedelta(seconds=retention.ledger)
        assert first_seen > forgotten_before


@pytest.mark.parametrize(
    ("length", "shown"),
    [
        (30 * DAY, "30 days"),
        (DAY, "1 day"),
        (1.5 * DAY, "1.5 days"),
        (HOUR, "1 hour"),
        (90 * MINUTE, "1.5 hours"),
        (25 * HOUR, "1.04167 days"),
        (5 * MINUTE, "5 minutes"),
        (90.0, "1.5 minutes"),
        (1.0, "1 second"),
        (61.25, "1.02083 minutes"),
        (0.5, "0.5 seconds"),
        (0.0, "0 seconds"),
    ],
)
def test_a_length_of_time_is_shown_in_the_largest_unit_that_fits(length: float, shown: str) -> None:
    assert duration(length) == shown

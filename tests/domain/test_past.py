"""The past of an aggregate is the fold of what a point includes, and nothing else."""

from __future__ import annotations

from dataclasses import field
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from onefold import Aggregate, Event, Registry, applies
from onefold.domain.account import Account
from onefold.domain.change import ABSENT, Change
from onefold.domain.event import EventMeta
from onefold.domain.instant import NaiveInstant
from onefold.domain.money import Money
from onefold.domain.past import Watch, past, state_of
from onefold.domain.point import BadPoint, Point, point, point_of

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY, TICK = timedelta(days=1), timedelta(microseconds=1)
registry = Registry()


class Basket(Aggregate, category="basket"):
    class Filled(Event, name="basket.filled", registry=registry):
        apples: int

    apples: list[int] = field(default_factory=list)
    _hidden: int = 0

    @applies(Filled)
    def _filled(self, event: Filled) -> None:
        self.apples.append(event.apples)

    @property
    def last(self) -> int:
        return self.apples[-1]


def deposited(version: int, amount: int, occurred: datetime, recorded: datetime = NOON) -> Event:
    meta = EventMeta("account/1", version, version * 10, occurred_at=occurred, recorded_at=recorded)
    return Account.Deposited(amount=Money.of(amount, "EUR")).bound(meta)


# The second happened before the first, and was recorded after it.
EVENTS = [
    deposited(1, 1, NOON, NOON + DAY),
    deposited(2, 2, NOON - DAY, NOON + 2 * DAY),
    deposited(3, 4, NOON + DAY, NOON + 3 * DAY),
]


@pytest.mark.parametrize(
    ("at", "balance", "version", "left_out"),
    [
        (point(version=0), 0, 0, ()),
        (point(version=1), 1, 1, ()),
        (point(version=3), 7, 3, ()),
        (point(position=19), 1, 1, ()),
        (point(position=20), 3, 2, ()),
        (point(position=10**9), 7, 3, ()),
        (point(occurred=NOON - DAY - TICK), 0, 0, ()),
        (point(occurred=NOON - DAY), 2, 2, (1,)),
        (point(occurred=NOON - TICK), 2, 2, (1,)),
        (point(occurred=NOON), 3, 2, ()),
        (point(occurred=NOON.astimezone(timezone(timedelta(hours=5)))), 3, 2, ()),
        (point(occurred=NOON + DAY), 7, 3, ()),
        (point(recorded=NOON + DAY - TICK), 0, 0, ()),
        (point(recorded=NOON + DAY), 1, 1, ()),
        (point(recorded=NOON + 2 * DAY), 3, 2, ()),
    ],
    ids=str,
)
def test_the_state_is_the_fold_of_what_the_point_includes(
    at: Point, balance: int, version: int, left_out: tuple[int, ...]
) -> None:
    found = past(Account, "account/1", EVENTS, at)
    assert found.aggregate.balances.get("EUR", Decimal(0)) == balance
    assert (found.version, found.left_out, found.of) == (version, left_out, 3)
    assert found.events == found.aggregate.version


def test_a_state_is_made_of_status_fields_and_properties_and_a_failing_property_is_none_of_it() -> None:
    basket = Basket.blank("basket/1")
    assert state_of(basket) == {"apples": []}
    basket.emit(Basket.Filled(apples=3), at=NOON)
    assert state_of(basket) == {"apples": [3], "last": 3}
    account = Account.open("1", "EUR", at=NOON)
    assert list(state_of(account))[:3] == ["status", "opened_on", "opened_currency"]
    assert state_of(account)["balance"] == 0


def test_what_changed_is_seen_also_in_a_value_that_was_changed_in_place() -> None:
    basket, watch = Basket.blank("basket/1"), Watch()
    watch.changes(basket)
    basket.emit(Basket.Filled(apples=3), at=NOON)
    assert watch.changes(basket) == (Change("apples[0]", ABSENT, 3), Change("last", ABSENT, 3))
    assert watch.changes(basket) == ()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("v7", Point("version", 7)),
        ("@1234", Point("position", 1234)),
        ("2026-03-01T12:00:00Z", Point("occurred", NOON)),
        ("2026-03-01 13:00:00.000001+01:00", Point("occurred", NOON + TICK)),
        ("2026-03-01t12:00z", Point("occurred", NOON)),
    ],
)
def test_a_point_is_read_from_its_text(text: str, found: Point) -> None:
    assert point_of(text) == found


def test_a_clock_is_named_and_shown() -> None:
    assert str(point_of("2026-03-01T13:00:00+01:00", "recorded")) == (
        "2026-03-01T12:00:00.000000Z by the clock recorded_at"
    )
    assert str(point_of("7", bare_version=True)) == "version 7"


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (
            "2026-03-01T12:00:00",
            "write 2026-03-01T12:00:00Z for UTC, or its offset, such as 2026-03-01T12:00:00+01:00",
        ),
        ("2026-03-01", "found the day 2026-03-01; write an instant, such as 2026-03-01T00:00:00Z"),
        ("7", "write v7 for the version, @7 for the position"),
        ("v", "found 'v'"),
        ("v-1", "found 'v-1'"),
        ("@9223372036854775808", "expected a number below"),
        ("yesterday", "found 'yesterday'"),
        ("2026-03-01T12:00:00.1234567Z", "expected an instant"),
        ("2026-13-01T12:00:00Z", "month must be in"),
        ("0001-01-01T00:00:00+05:00", "expected an instant"),
        ("", "found ''"),
    ],
)
def test_what_is_no_point_is_refused_with_what_to_write(text: str, advice: str) -> None:
    with pytest.raises(BadPoint) as refused:
        point_of(text)
    assert advice in str(refused.value)


@pytest.mark.parametrize("given", [{}, {"version": 1, "position": 2}, {"version": 0, "recorded": NOON}])
def test_a_point_is_one_thing(given: dict[str, Any]) -> None:
    with pytest.raises(BadPoint, match="expected one of version, position, occurred and recorded"):
        point(**given)


@pytest.mark.parametrize("clock", ["occurred", "recorded"])
def test_a_naive_instant_is_refused(clock: str) -> None:
    with pytest.raises(NaiveInstant, match=f"{clock} is 2026-03-01T12:00:00 without a zone"):
        point(**{clock: NOON.replace(tzinfo=None)})

"""The verdict finds whatever is wrong with the log or the read models, and names the first difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from onefold.domain.account import Account
from onefold.domain.event import Event, EventMeta
from onefold.domain.money import Money
from onefold.infrastructure.demo.delivery import SOURCE, Disturbance, Kind, key_of, plan
from onefold.infrastructure.demo.simulation import Simulation, simulate
from onefold.infrastructure.demo.verdict import ReadModels, judge
from onefold.infrastructure.identity import event_id_of
from onefold.projections.shop import account_balance, order_summary, revenue_of


@pytest.fixture(scope="module")
def year() -> Simulation:
    return simulate(40, seed=7)


@pytest.fixture(scope="module")
def log(year: Simulation) -> list[Event]:
    """The log after a disturbed delivery."""
    versions: dict[str, int] = {}
    kept: list[Event] = []
    for each in plan(year.events, Disturbance(), seed=1).deliveries:
        if each.kind is Kind.FIRST:
            meta = each.event.meta
            versions[meta.stream] = versions.get(meta.stream, 0) + 1
            place = EventMeta(
                meta.stream,
                versions[meta.stream],
                2 * len(kept) + 1,
                occurred_at=meta.happened,
                event_id=event_id_of(SOURCE, key_of(each.event)),
            )
            kept.append(each.event.bound(place))
    return kept


def models_of(log: Sequence[Event]) -> ReadModels:
    return ReadModels(
        list(order_summary.fold(log).values()), list(account_balance.fold(log).values()), revenue_of(log)
    )


def test_right_read_models_pass(year: Simulation, log: list[Event]) -> None:
    verdict = judge(year, log, models_of(log))
    assert verdict.first_difference == ""
    assert verdict.passed
    assert [check.subject for check in verdict.checks if check.compared == 0] == []


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"status": "lost"}, "order_summary {}: expected status {}, found lost"),
        ({"paid": Decimal("0.01")}, "order_summary {}: expected paid"),
        ({"items": 99}, "order_summary {}: expected items"),
        ({"version": 99}, "order_summary {}: expected version"),
    ],
)
def test_a_wrong_order_is_named(
    year: Simulation, log: list[Event], change: dict[str, object], difference: str
) -> None:
    models = models_of(log)
    wrong = models.orders[3]
    rows = [row.evolve(**change) if row is wrong else row for row in models.orders]
    verdict = judge(year, log, replace(models, orders=rows))
    assert not verdict.passed
    assert verdict.first_difference.startswith(difference.format(wrong.order_id, wrong.status))
    assert [check.subject for check in verdict.checks if not check.passed] == ["order_summary"] * 2


def test_a_wrong_balance_is_named(year: Simulation, log: list[Event]) -> None:
    models = models_of(log)
    wrong = models.balances[2]
    rows = [
        row.evolve(balance=row.balance + Decimal("0.01")) if row is wrong else row for row in models.balances
    ]
    verdict = judge(year, log, replace(models, balances=rows))
    assert verdict.first_difference == (
        f"account_balance {wrong.account_id}: expected balance {wrong.balance}, "
        f"found {wrong.balance + Decimal('0.01')}"
    )


def test_a_missing_row_and_one_too_many_are_named(year: Simulation, log: list[Event]) -> None:
    models = models_of(log)
    missing = judge(year, log, replace(models, orders=models.orders[1:]))
    assert missing.first_difference.startswith(
        f"order_summary {models.orders[0].order_id}: expected order_id"
    )
    assert missing.first_difference.endswith("found nothing")
    more = [*models.balances, models.balances[0].evolve(account_id="nobody")]
    verdict = judge(year, log, replace(models, balances=more))
    assert verdict.first_difference.startswith(
        "account_balance nobody: expected nothing, found account_id nobody"
    )


def test_a_wrong_month_is_named(year: Simulation, log: list[Event]) -> None:
    models = models_of(log)
    months = [month._replace(revenue=month.revenue + 1) for month in models.revenue]
    verdict = judge(year, log, replace(models, revenue=months))
    assert verdict.first_difference.startswith(
        f"{'revenue_by_month'} {months[0].month:%Y-%m} EUR: expected revenue"
    )
    assert [check.subject for check in verdict.checks if not check.passed] == ["revenue_by_month"] * 2


def test_a_log_that_lost_an_event_fails_although_the_read_models_agree_with_it(
    year: Simulation, log: list[Event]
) -> None:
    last = max(range(len(log)), key=lambda number: log[number].meta.stream == log[-1].meta.stream and number)
    short = [event for number, event in enumerate(log) if number != last]
    verdict = judge(year, short, models_of(short))
    assert verdict.first_difference.startswith("log ")
    assert verdict.first_difference.endswith("found nothing")


def test_a_log_that_took_a_contradiction_fails(year: Simulation, log: list[Event]) -> None:
    number, event = next((n, e) for n, e in enumerate(log) if isinstance(e, Account.Deposited))
    assert isinstance(event, Account.Deposited)
    other = event.model_copy(update={"amount": Money.of("0.05", "EUR")}).bound(event.meta)
    wrong = [*log[:number], other, *log[number + 1 :]]
    verdict = judge(year, wrong, models_of(wrong))
    assert "expected event" in verdict.first_difference


def test_a_log_whose_instants_were_changed_fails(year: Simulation, log: list[Event]) -> None:
    meta = log[0].meta
    moved = EventMeta(
        meta.stream,
        meta.version,
        meta.position,
        occurred_at=meta.happened + timedelta(microseconds=1),
        event_id=meta.event_id,
    )
    wrong = [log[0].bound(moved), *log[1:]]
    assert "expected occurred_at" in judge(year, wrong, models_of(wrong)).first_difference


def test_a_log_with_a_hole_or_out_of_order_fails(year: Simulation, log: list[Event]) -> None:
    turned = [log[1], log[0], *log[2:]]
    check = judge(year, turned, models_of(log)).checks[1]
    assert "expected version 1 of" in check.difference or "above position" in check.difference

"""The simulated shop is plausible, and its deliveries are as bad as they are said to be."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.domain.account import Account
from onefold.domain.event import EventMeta
from onefold.domain.order import Order
from onefold.infrastructure.demo.delivery import Disturbance, Kind, Plan, key_of, mapping, plan, write
from onefold.infrastructure.demo.simulation import CLOSING, OPENING, Simulation, simulate
from onefold.infrastructure.reading import Fact
from onefold.infrastructure.reading.rows import Rows


@pytest.fixture(scope="module")
def year() -> Simulation:
    return simulate(300, seed=7)


def told(found: Simulation | Plan) -> list[object]:
    events = found.events if isinstance(found, Simulation) else [each.event for each in found.deliveries]
    return [(tuple(event.meta), event) for event in events]


def test_the_same_seed_gives_the_same_year(year: Simulation) -> None:
    assert told(simulate(300, seed=7)) == told(year)
    assert told(simulate(300, seed=8)) != told(year)


def test_a_year_has_all_that_happens_in_a_shop(year: Simulation) -> None:
    assert len(year.orders) == 300
    kinds = Counter(type(event) for event in year.events)
    # Refunds are for the process of payments, which this shop does without.
    assert set(kinds) >= set(Order.events) - {Order.PaymentRefunded}
    assert set(kinds) >= {
        Account.Opened,
        Account.Deposited,
        Account.Withdrawn,
        Account.HoldPlaced,
        Account.HoldCaptured,
    }
    states = Counter(order.status for order in year.orders.values())
    assert states.most_common(1)[0][0] == "delivered"
    assert {"cancelled", "shipped", "unavailable"} <= set(states)


def test_events_come_in_the_order_of_time_within_the_year(year: Simulation) -> None:
    instants = [event.meta.happened for event in year.events]
    assert instants == sorted(instants)
    assert instants[0] >= OPENING
    assert instants[-1] < CLOSING


def test_the_aggregates_are_what_their_events_make_them(year: Simulation) -> None:
    for wanted in (*year.orders.values(), *year.accounts.values()):
        found = type(wanted).blank(wanted.id)
        for event in year.events:
            if event.meta.stream == wanted.id:
                found.follow(event)
        assert (found.status, found.version) == (wanted.status, wanted.version)
        assert vars(found) == vars(wanted)


def test_money_that_an_order_is_paid_with_has_left_an_account_or_is_a_voucher(year: Simulation) -> None:
    for order in year.orders.values():
        assert order.paid <= order.total
        if order.status == "delivered":
            assert order.paid == order.total


@given(orders=st.integers(1, 12), seed=st.integers())
@settings(max_examples=15, deadline=None)
def test_small_shops_work_too(orders: int, seed: int) -> None:
    found = simulate(orders, seed)
    assert len(found.orders) == orders
    deliveries = plan(found.events, Disturbance(), seed).deliveries
    assert Counter(each.key for each in deliveries if each.kind is Kind.FIRST) == Counter(
        key_of(event) for event in found.events
    )


def test_the_plan_keeps_to_its_shares(year: Simulation) -> None:
    found = plan(year.events, Disturbance(duplicates=0.2, disorder=0.1, contradictions=5), seed=1)
    kinds = Counter(each.kind for each in found.deliveries)
    assert kinds[Kind.FIRST] == found.events == len(year.events)
    assert kinds[Kind.AGAIN] == found.repeated == round(0.2 * len(year.events))
    assert kinds[Kind.CONTRADICTION] == found.contradictions == 5
    assert 0.09 < found.late / found.events <= 0.1
    assert 0 < found.overtaken <= found.late
    assert told(plan(year.events, Disturbance(), seed=1)) == told(found)
    assert told(plan(year.events, Disturbance(), seed=2)) != told(found)


def test_without_disturbance_events_come_once_and_in_order(year: Simulation) -> None:
    found = plan(year.events, Disturbance(0, 0, contradictions=0), seed=1)
    assert [each.event for each in found.deliveries] == list(year.events)
    assert (found.repeated, found.late, found.overtaken, found.contradictions) == (0, 0, 0, 0)


def test_what_repeats_or_contradicts_comes_after_the_first(year: Simulation) -> None:
    first: dict[str, object] = {}
    for each in plan(year.events, Disturbance(contradictions=50), seed=3).deliveries:
        match each.kind:
            case Kind.FIRST:
                first[each.key] = each.event
            case Kind.AGAIN:
                assert first[each.key] == each.event
            case Kind.CONTRADICTION:
                assert first[each.key] != each.event
                assert type(first[each.key]) is type(each.event)


def test_what_is_written_for_the_delivering_process_is_read_as_the_same_facts(
    year: Simulation, tmp_path: Path
) -> None:
    path = tmp_path / "deliveries.jsonl"
    deliveries = plan(year.events, Disturbance(), seed=1).deliveries[:200]
    write(deliveries, path)
    assert json.loads(path.read_text().splitlines()[0])["key"] == deliveries[0].key
    facts = list(mapping(Rows([path], mapping.format)))
    assert len(facts) == 200
    for fact, each in zip(facts, deliveries, strict=True):
        assert isinstance(fact, Fact)
        meta = each.event.meta
        assert (fact.key, fact.stream, fact.occurred_at) == (each.key, meta.stream, meta.happened)
        assert fact.event.bound(EventMeta("", 0)) == each.event

"""The log as a source of messages: order, place, lease, and one message of an instance at a time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
import pytest

from onefold import App, Message, Transaction, connect, consumer
from onefold.domain.order import Order
from onefold.infrastructure.brokers import (
    BadBrokerURL,
    BrokerLost,
    BrokerMisconfigured,
    Delivery,
    log,
    subscribe,
)
from onefold.infrastructure.brokers.envelope import read
from onefold.infrastructure.brokers.log import LogSubscription
from onefold.infrastructure.consuming.consumption import Consumption
from onefold.infrastructure.postgres.sql import statement
from onefold.infrastructure.processes.subscription import ProcessSubscription
from onefold.projections.guards import Outcome

from .shopping import PROCESS, Shop, shopping

Subscribe = Callable[..., LogSubscription]


@pytest.fixture
def reading(shop: Shop) -> Iterator[Subscribe]:
    """Makes subscriptions of a consumer to the log of the shop, which are closed after the test."""
    made: list[LogSubscription] = []

    def make(name: str = "reader", **options: Any) -> LogSubscription:
        made.append(LogSubscription(shop.store.url, name, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def ids(deliveries: Sequence[Delivery]) -> list[str]:
    return [f"{read(each).subject} {read(each).extensions['sequence']}" for each in deliveries]


def taken(subscription: LogSubscription, seconds: float = 5.0) -> list[Delivery]:
    """What comes next, at most a hundred, waiting for the first."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := subscription.receive(100, 0.1):
            return list(found)
    return []


def position(shop: Shop, name: str = "reader") -> int:
    row = shop.connection.execute(
        "SELECT position FROM onefold.log_subscriptions WHERE consumer = %s", (name,)
    ).fetchone()
    assert row is not None
    return int(row[0])


def test_every_event_is_delivered_as_a_cloud_event_in_the_order_of_the_log(
    shop: Shop, reading: Subscribe
) -> None:
    shop.place("1")
    found = taken(reading())
    assert ids(found) == ["account/anna 1", "account/anna 2", "order/1 1"]
    message = read(found[2])
    (stored,) = shop.store.log.load("order/1")
    assert message.id == str(stored.meta.event_id)
    assert (message.source, message.type, message.subject) == ("/order", "order.placed", "order/1")
    assert message.time == stored.meta.occurred_at
    assert found[2].published_at == stored.meta.recorded_at
    assert found[2].place == f"events@{stored.meta.position}"
    assert message.data == json.loads(stored.model_dump_json(by_alias=True))
    assert dict(message.extensions) == {"sequence": "1"}


def test_what_caused_an_event_goes_with_it(shop: Shop, reading: Subscribe) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    shop.place("1")
    order = shop.order("1")
    order.cancel(at=order.created_on)
    metadata = {"correlation": "c-1", "causation": "c-0", "traceparent": trace, "actor": "ana"}
    shop.store.save(order, metadata=metadata)
    message = read(taken(reading(types=["order.cancelled"]))[0])
    assert dict(message.extensions) == {
        "sequence": "2",
        "correlationid": "c-1",
        "causationid": "c-0",
        "traceparent": trace,
    }
    assert Order.Cancelled.event_name == message.type


def test_only_the_types_that_are_asked_for_are_delivered_and_the_position_passes_the_others(
    shop: Shop, reading: Subscribe
) -> None:
    shop.place("1")
    shop.cancel("1")
    subscription = reading(types=["order.placed"])
    found = taken(subscription)
    assert ids(found) == ["order/1 1"]
    subscription.acknowledge(found)
    assert subscription.receive(10, 0.2) == []
    assert position(shop) == subscription.reader.head()


def test_the_position_stays_before_what_is_not_acknowledged(shop: Shop, reading: Subscribe) -> None:
    first = reading()
    shop.place("1")
    shop.place("2")
    found = taken(first)
    assert len(found) == 4
    first.acknowledge([found[0], found[2], found[3]])
    first.close()
    again = taken(reading())
    assert ids(again) == ids(found[1:])
    assert position(shop) == 1


def test_what_is_given_back_comes_again_after_its_delay(shop: Shop, reading: Subscribe) -> None:
    subscription = reading()
    found = taken(subscription)
    started = time.monotonic()
    subscription.give_back([found[0]], 0.3)
    assert ids(taken(subscription)) == ids(found[:1])
    assert time.monotonic() - started >= 0.3


def test_an_event_that_commits_late_is_not_skipped(shop: Shop, reading: Subscribe) -> None:
    subscription = reading()
    subscription.acknowledge(taken(subscription))
    with psycopg.connect(shop.store.url) as open_append:
        open_append.execute(
            "INSERT INTO onefold.events (version, event_id, stream, type, data) "
            "VALUES (1, gen_random_uuid(), 'late/1', 'late', '{}')"
        )
        shop.place("1")
        assert subscription.receive(10, 0.3) == []
        open_append.commit()
    assert ids(taken(subscription)) == ["late/1 1", "order/1 1"]


def test_a_subscription_at_the_head_gets_whatever_is_committed_from_then_on(
    shop: Shop, reading: Subscribe
) -> None:
    shop.place("before")
    time.sleep(0.01)
    with psycopg.connect(shop.store.url) as open_append:
        open_append.execute(
            "INSERT INTO onefold.events (version, event_id, stream, type, data) "
            "VALUES (1, gen_random_uuid(), 'late/1', 'late', '{}')"
        )
        shop.place("just_before")
        subscription = reading(begin="head")
        open_append.commit()
    shop.place("after")
    found: list[str] = []
    while "order/after 1" not in found:
        found += ids(taken(subscription))
    assert found == ["late/1 1", "order/just_before 1", "order/after 1"]


def test_a_subscription_at_the_head_waits_for_an_append_of_which_nothing_is_known(
    shop: Shop, reading: Subscribe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prepared transaction, or one of a role whose activity is hidden."""
    hidden = statement("process_log_clock").replace(b"a.xact_start", b"NULL::timestamptz")
    monkeypatch.setattr(
        log,
        "statement",
        lambda name, **more: hidden if name == "process_log_clock" else statement(name, **more),
    )
    monkeypatch.setattr(log, "SETTLING", 0.2)
    with psycopg.connect(shop.store.url) as open_append:
        open_append.execute(
            "INSERT INTO onefold.events (version, event_id, stream, type, data) "
            "VALUES (1, gen_random_uuid(), 'late/1', 'late', '{}')"
        )
        shop.place("before")
        with pytest.raises(BrokerLost, match="found one that goes on"):
            reading(begin="head")
    subscription = reading(begin="head")
    shop.place("after")
    assert ids(taken(subscription))[-1] == "order/after 1"


def test_one_worker_reads_and_another_takes_over_at_once_when_it_ends(shop: Shop, reading: Subscribe) -> None:
    first, second = reading(), reading()
    found = taken(first)
    assert second.receive(10, 0.2) == []
    assert (first.joined, second.joined) == (True, False)
    assert second.backlog() is None
    # Without a word, as when it is killed.
    first.connection.close()
    started = time.monotonic()
    assert ids(taken(second)) == ids(found)
    assert time.monotonic() - started < 2
    with pytest.raises(BrokerLost):
        first.receive(10, 0.1)


def test_a_worker_that_hangs_loses_its_hold_and_cannot_move_the_position(
    shop: Shop, reading: Subscribe
) -> None:
    first, second = reading(lease=0.5), reading(lease=0.5)
    found = taken(first)
    time.sleep(0.6)
    again = taken(second)
    assert ids(again) == ids(found)
    first.acknowledge(found)
    with pytest.raises(BrokerLost, match="another worker has taken over"):
        first.receive(10, 1.0)
    first.close()
    assert position(shop) == 0
    second.acknowledge(again)
    second.receive(1, 0.2)
    assert position(shop) == second.reader.head()


def test_of_one_instance_one_message_is_under_way_and_others_go_on(shop: Shop) -> None:
    for key in ("1", "2"):
        shop.place(key)
        shop.pay(key)
    subscription = ProcessSubscription(shop.store.url, PROCESS)
    try:
        first = taken(subscription)
        assert ids(first) == ["order/1 1", "order/2 1"]
        subscription.give_back([first[0]], 0.2)
        subscription.acknowledge([first[1]])
        assert ids(taken(subscription)) == ["order/2 2"]
        assert ids(taken(subscription)) == ["order/1 1"]
        subscription.acknowledge([first[0]])
        assert ids(taken(subscription)) == ["order/1 2"]
    finally:
        subscription.close()


def test_a_log_that_is_not_there_and_a_url_that_says_nothing_are_refused(shop: Shop) -> None:
    with pytest.raises(BrokerMisconfigured, match="found none of that name"):
        subscribe("log:nowhere", "reader", database=shop.store.url)
    for url in ("log:?from=middle", "log://host", "log:?start=1", "log:a/b"):
        with pytest.raises(BadBrokerURL, match="log: or log:NAME"):
            subscribe(url, "reader", database=shop.store.url)
    with pytest.raises(BadBrokerURL, match="found no consumer at work"):
        subscribe("log:", "reader")


def test_any_consumer_can_consume_the_log(shop: Shop) -> None:
    seen: list[str] = []

    @consumer("placed_orders", ordering="unordered", age="published")
    def placed_orders(message: Message, tx: Transaction) -> None:
        seen.append(f"{message.type} {message.subject}")

    shop.place("1")
    consumption = Consumption(shop.store.url, placed_orders, "log:", once=True, idle=0.3)
    assert consumption.run().outcomes == {Outcome.APPLIED: 3}
    assert seen[2] == "order.placed order/1"
    # What was acknowledged does not come again.
    shop.place("2")
    again = Consumption(shop.store.url, placed_orders, "log:", once=True, idle=0.3)
    assert again.run().outcomes == {Outcome.APPLIED: 1}


def test_a_consumer_gets_only_the_events_that_it_takes(database_url: str) -> None:
    seen: list[str] = []

    @consumer("cancelled_orders", ordering="unordered", age="published")
    def cancelled_orders(event: Order.Cancelled, tx: Transaction) -> None:
        seen.append(event.meta.key)

    with shopping(database_url, App(aggregates=[Order])) as shop:
        for key in ("1", "2"):
            shop.place(key)
        shop.cancel("2")
        done = Consumption(database_url, cancelled_orders, "log:", once=True, idle=0.3).run()
    assert (seen, done.outcomes, done.received) == (["2"], {Outcome.APPLIED: 1}, 1)


def test_the_subscription_says_how_many_events_it_has_not_handed_out(shop: Shop, reading: Subscribe) -> None:
    subscription = reading()
    assert len(subscription.receive(1, 1.0)) == 1
    assert subscription.backlog() == 1
    assert subscription.retention() == 0
    with connect(shop.store.app, shop.store.url):
        shop.place("1")
    assert subscription.backlog() == 2

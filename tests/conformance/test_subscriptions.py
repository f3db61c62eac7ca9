"""What every adapter promises, by the port of brokers: the same cases for all."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from onefold.infrastructure.brokers import (
    BrokerLost,
    BrokerMisconfigured,
    Delivery,
    Outgoing,
    Subscription,
    subscribe,
)

from .benches import CONSUMER, Bench, drain, events, numbers, that, until

SOON = 20.0
"""Seconds within which what was published has arrived, on a busy machine."""
QUIET = 1.0
"""Seconds in which nothing is awaited."""


@that()
def test_everything_published_is_received(bench: Bench) -> None:
    bench.publish(events(bench.many, keys=bench.keys(7)))
    subscription = bench.subscribe()
    found = drain(subscription, bench.many, SOON)
    assert sorted(numbers(found)) == list(range(1, bench.many + 1))
    subscription.acknowledge(found)


@that()
def test_no_more_is_received_than_was_asked_for(bench: Bench) -> None:
    bench.publish(events(30, keys=bench.keys(3)))
    subscription = bench.subscribe()
    found: list[Delivery] = []
    end = time.monotonic() + SOON
    while len(found) < 30 and time.monotonic() < end:
        some = subscription.receive(7, 0.2)
        assert len(some) <= 7
        found.extend(some)
    assert sorted(numbers(found)) == list(range(1, 31))


@that()
def test_waiting_for_a_message_ends_in_time(bench: Bench) -> None:
    bench.publish(events(1))
    subscription = bench.subscribe()
    subscription.acknowledge(drain(subscription, 1, SOON))
    began = time.monotonic()
    assert list(subscription.receive(10, 0.3)) == []
    assert time.monotonic() - began < 3


@that("remembers")
def test_what_was_acknowledged_does_not_come_back(bench: Bench) -> None:
    bench.publish(events(20, keys=bench.keys(4)))
    first = bench.subscribe()
    first.acknowledge(drain(first, 20, SOON))
    first.close()
    bench.publish(events(1, first=21))
    second = bench.subscribe()
    assert set(numbers(drain(second, 1, SOON, quiet=QUIET))) == {21}


@that("remembers", without=True)
def test_everything_comes_back_from_what_keeps_no_account(bench: Bench) -> None:
    bench.publish(events(20))
    first = bench.subscribe()
    first.acknowledge(drain(first, 20, SOON))
    first.close()
    assert numbers(drain(bench.subscribe(), 20, SOON)) == list(range(1, 21))


@that()
def test_what_was_not_acknowledged_comes_back_after_a_close(bench: Bench) -> None:
    bench.publish(events(20, keys=bench.keys(4)))
    first = bench.subscribe()
    found = drain(first, 20, SOON)
    first.acknowledge(found[:5])
    first.close()
    second = bench.subscribe()
    back = numbers(drain(second, 15, SOON + bench.patience))
    assert set(numbers(found[5:])) <= set(back)


@that()
def test_what_was_given_back_comes_again(bench: Bench) -> None:
    bench.publish(events(5))
    subscription = bench.subscribe()
    found = drain(subscription, 5, SOON)
    subscription.give_back(found[1:3])
    subscription.acknowledge([found[0], *found[3:]])
    back = drain(subscription, 2, SOON + bench.patience)
    assert set(numbers(back)) >= set(numbers(found[1:3]))
    for again in back:
        [before] = [delivery for delivery in found if delivery.body == again.body]
        assert again.headers == before.headers
    subscription.acknowledge(back)


@that("delays")
def test_what_was_given_back_with_a_delay_comes_after_it(bench: Bench) -> None:
    bench.publish(events(3, keys=bench.keys(1)))
    subscription = bench.subscribe()
    found = drain(subscription, 3, SOON)
    subscription.acknowledge(found[1:])
    began = time.monotonic()
    subscription.give_back(found[:1], delay=1.2)
    [back] = drain(subscription, 1, SOON + bench.patience)
    assert back.body == found[0].body
    # Some brokers count in whole seconds.
    assert time.monotonic() - began >= 0.9


@that()
def test_acknowledging_twice_does_no_harm(bench: Bench) -> None:
    bench.publish(events(6))
    subscription = bench.subscribe()
    found = drain(subscription, 6, SOON)
    subscription.acknowledge(found[:3])
    subscription.acknowledge(found[:3])
    subscription.acknowledge(found)
    subscription.give_back(found[:1])
    subscription.extend(found[:1])
    assert list(subscription.receive(10, QUIET)) == []
    subscription.close()
    bench.publish(events(1, first=7))
    assert 7 in numbers(drain(bench.subscribe(), 7 if not bench.remembers else 1, SOON))


@that()
def test_acknowledging_after_a_close_does_no_harm(bench: Bench) -> None:
    bench.publish(events(4))
    first = bench.subscribe()
    found = drain(first, 4, SOON)
    first.close()
    for act in (first.acknowledge, first.give_back, first.extend):
        with contextlib.suppress(BrokerLost):
            act(found)
    second = bench.subscribe()
    back = drain(second, 4, SOON + bench.patience)
    second.acknowledge(found[:1])
    second.acknowledge(back)
    assert sorted(numbers(back)) == [1, 2, 3, 4]


@that("ordered")
def test_messages_of_one_key_keep_their_order(bench: Bench) -> None:
    bench.publish(events(120, keys=5))
    subscription = bench.subscribe()
    found: list[int] = []
    end = time.monotonic() + SOON
    while len(found) < 120 and time.monotonic() < end:
        some = subscription.receive(9, 0.2)
        found.extend(numbers(some))
        subscription.acknowledge(some)
    assert len(found) == 120
    for key in range(5):
        mine = [number for number in found if number % 5 == key]
        assert mine == sorted(mine)


@that()
def test_a_full_buffer_takes_nothing_and_stays_connected(bench: Bench) -> None:
    bench.publish(events(10, keys=bench.keys(2)))
    subscription = bench.subscribe()
    first = drain(subscription, 1, SOON, limit=1)
    end = time.monotonic() + 2
    while time.monotonic() < end:
        began = time.monotonic()
        assert list(subscription.receive(0, 0.1)) == []
        assert time.monotonic() - began < 2
        subscription.extend(first)
    rest = drain(subscription, 9, SOON)
    assert sorted(numbers([*first, *rest])) == list(range(1, 11))


@that("expires")
def test_what_is_extended_does_not_come_again_and_what_is_not_does(bench: Bench) -> None:
    bench.publish(events(2, keys=2))
    subscription = bench.subscribe()
    assert subscription.lease is not None
    found = drain(subscription, 2, SOON)
    held, left = found
    end = time.monotonic() + subscription.lease * 1.5 + bench.patience
    again: list[Delivery] = []
    while not again and time.monotonic() < end:
        subscription.extend([held])
        again.extend(subscription.receive(10, min(0.2, subscription.lease / 5)))
    assert {delivery.body for delivery in again} == {left.body}


@that("shared")
def test_what_a_killed_process_held_comes_to_the_next(bench: Bench) -> None:
    bench.publish(events(10, keys=bench.keys(3)))
    taker = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("taker.py")), bench.url, CONSUMER, "10"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert taker.stdout is not None
        assert taker.stdout.readline() == "taken\n"
    finally:
        taker.kill()
        taker.wait()
        if taker.stdout is not None:
            taker.stdout.close()
    found = drain(bench.subscribe(), 10, SOON + bench.patience)
    assert set(numbers(found)) == set(range(1, 11))


BODIES = [b"", b"x", b'{"name": "\xc3\xa9t\xc3\xa9 \xf0\x9f\x8e\x89"}', bytes(range(256))]


@that("carries")
def test_bodies_arrive_unchanged(bench: Bench) -> None:
    bodies = [*BODIES, b"\x00\xff" * (bench.largest // 2)]
    bench.publish([Outgoing(body, {"content-type": "application/octet-stream"}, "k") for body in bodies])
    found = drain(bench.subscribe(), len(bodies), SOON)
    assert sorted(delivery.body for delivery in found) == sorted(bodies)


@that("carries")
def test_headers_arrive_unchanged_and_in_lower_case(bench: Bench) -> None:
    headers = {
        "content-type": "application/json; charset=utf-8",
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "city": "Łódź 🎉",
    }
    bench.publish([Outgoing(b"{}", {**headers, "Tenant": "North"}, "k")])
    [found] = drain(bench.subscribe(), 1, SOON)
    assert {**headers, "tenant": "North"}.items() <= found.headers.items()
    assert all(name == name.lower() for name in found.headers)


@that("carries", without=True)
def test_lines_arrive_unchanged_where_nothing_else_is_carried(bench: Bench) -> None:
    line = '{"specversion":"1.0","id":"1","source":"/é🎉","type":"t","data":"' + "x" * bench.largest + '"}'
    bench.publish([Outgoing(line.encode(), {"content-type": "application/cloudevents+json"}, "k")])
    [found] = drain(bench.subscribe(), 1, SOON)
    assert found.body == line.encode()
    assert found.headers["content-type"] == "application/cloudevents+json"


@that()
def test_every_delivery_says_where_it_came_from(bench: Bench) -> None:
    bench.publish(events(2))
    found = drain(bench.subscribe(), 2, SOON)
    assert len({delivery.place for delivery in found}) == 2
    assert all(delivery.place.isprintable() and delivery.place for delivery in found)


@that("dated")
def test_the_time_of_publishing_is_told(bench: Bench) -> None:
    before = datetime.now(UTC)
    bench.publish(events(1))
    after = datetime.now(UTC)
    [found] = drain(bench.subscribe(), 1, SOON)
    assert found.published_at is not None
    assert found.published_at.utcoffset() == timedelta(0)
    # Some brokers keep whole seconds.
    slack = timedelta(seconds=1)
    assert before - slack <= found.published_at <= after + slack


@that("keyed")
def test_the_key_is_told(bench: Bench) -> None:
    bench.publish(events(4, keys=2))
    found = drain(bench.subscribe(), 4, SOON)
    assert {(number, delivery.key) for number, delivery in zip(numbers(found), found, strict=True)} == {
        (number, f"key-{number % 2}") for number in range(1, 5)
    }


@that("attempts")
def test_attempts_are_counted(bench: Bench) -> None:
    bench.publish(events(1))
    subscription = bench.subscribe()
    [first] = drain(subscription, 1, SOON)
    subscription.give_back([first])
    [second] = drain(subscription, 1, SOON + bench.patience)
    assert (first.attempt, second.attempt) == (1, 2)


@that("attempts", without=True)
def test_no_attempts_are_told_by_a_broker_that_does_not_count_them(bench: Bench) -> None:
    bench.publish(events(1))
    [found] = drain(bench.subscribe(), 1, SOON)
    assert found.attempt is None


@that("counts")
def test_the_backlog_counts_what_waits(bench: Bench) -> None:
    bench.publish(events(12, keys=bench.keys(3)))
    subscription = bench.subscribe()
    found = drain(subscription, 12, SOON)
    subscription.acknowledge(found)
    subscription.receive(0, 0.1)
    assert until(lambda: _backlog(subscription) == 0, SOON)
    subscription.close()
    bench.publish(events(5, first=13, keys=bench.keys(3)))
    later = bench.subscribe()
    assert until(lambda: _backlog(later) == 5, SOON)


def _backlog(subscription: Subscription) -> int | None:
    subscription.receive(0, 0.1)
    return subscription.backlog()


@that("counts", without=True)
def test_no_backlog_is_told_where_it_cannot_be_asked(bench: Bench) -> None:
    bench.publish(events(1))
    assert bench.subscribe().backlog() is None


@that()
def test_retention_and_lease_are_seconds_or_unknown(bench: Bench) -> None:
    bench.publish(events(1))
    subscription = bench.subscribe()
    retention = subscription.retention()
    assert retention is None or retention > 0
    assert subscription.lease is None or subscription.lease > 0


@that()
def test_closing_twice_does_no_harm(bench: Bench) -> None:
    bench.publish(events(1))
    subscription = bench.subscribe()
    drain(subscription, 1, SOON)
    subscription.close()
    subscription.close()
    with pytest.raises(BrokerLost, match="closed"):
        subscription.receive(1, 0.1)


@that("networked")
def test_a_broker_that_keeps_going_never_ends(bench: Bench) -> None:
    bench.publish(events(1))
    subscription = bench.subscribe()
    subscription.acknowledge(drain(subscription, 1, SOON))
    subscription.receive(1, 0.1)
    assert subscription.ended is False


@that("networked")
def test_a_cut_connection_is_lost_and_a_new_subscription_goes_on(bench: Bench) -> None:
    bench.publish(events(10, keys=bench.keys(2)))
    first = bench.subscribe()
    found = drain(first, 10, SOON)
    first.acknowledge(found[:4])
    first.receive(0, 0.5)
    bench.cut()
    try:
        with pytest.raises(BrokerLost):
            _use(first, found[4:])
    finally:
        bench.restore()
    first.close()
    second = bench.subscribe()
    back = drain(second, 6, SOON + bench.patience)
    assert set(numbers(found[4:])) <= set(numbers(back))
    second.acknowledge(back)
    bench.publish(events(1, first=11))
    assert 11 in numbers(drain(second, 1, SOON))


def _use(subscription: Subscription, held: list[Delivery]) -> None:
    """Use a subscription as a consumer does, until it fails or a minute is over."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        subscription.receive(5, 0.2)
        subscription.extend(held)


@that("networked")
def test_a_broker_out_of_reach_is_lost_within_a_bounded_time(bench: Bench) -> None:
    began = time.monotonic()
    with pytest.raises(BrokerLost):
        subscribe(bench.unreachable, CONSUMER)
    assert time.monotonic() - began < 30


@that("misconfigurable")
def test_a_queue_that_is_missing_is_named(bench: Bench) -> None:
    with pytest.raises(BrokerMisconfigured, match="missing"):
        subscribe(bench.missing, CONSUMER)

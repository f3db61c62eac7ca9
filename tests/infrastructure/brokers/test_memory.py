"""The broker in memory: at least once, in the order of keys, and as badly as it is told to be."""

from __future__ import annotations

import gc
import threading
import time
from collections import Counter

import pytest

from onefold.infrastructure.brokers import BadBrokerURL, BrokerLost, Delivery, Outgoing, publisher, subscribe
from onefold.infrastructure.brokers.memory import MemoryBroker, MemorySubscription


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def bodies(deliveries: list[Delivery] | object) -> list[bytes]:
    return [delivery.body for delivery in deliveries]  # type: ignore[attr-defined]


def until_the_end(subscription: MemorySubscription, clock: Clock | None = None) -> list[Delivery]:
    found: list[Delivery] = []
    while not subscription.ended:
        some = subscription.receive(3, 0)
        subscription.acknowledge(some)
        found.extend(some)
        if clock is not None:
            clock.now += 1
    return found


def test_an_url_and_the_object_mean_the_same_broker() -> None:
    broker = MemoryBroker("same")
    out = publisher("memory://same")
    out.publish([Outgoing(b"1", {"Content-Type": "x"}, "k")])
    broker.publish("zwei é", {}, "k")
    found = subscribe("memory://same", "c").receive(10, 0)
    assert bodies(found) == [b"1", "zwei é".encode()]
    assert found[0].headers == {"content-type": "x"}
    assert [delivery.place for delivery in found] == ["same@1", "same@2"]
    out.close()
    with pytest.raises(BrokerLost, match="closed"):
        out.publish([])


def test_a_broker_that_is_named_first_by_an_url_is_made() -> None:
    subscription = subscribe("memory://fresh-one", "c")
    MemoryBroker.named("fresh-one").publish(b"x")
    assert bodies(subscription.receive(1, 0)) == [b"x"]


def test_a_new_broker_takes_the_place_of_an_older_one() -> None:
    MemoryBroker("again").publish(b"old")
    MemoryBroker("again").publish(b"new")
    assert bodies(subscribe("memory://again", "c").receive(9, 0)) == [b"new"]


@pytest.mark.parametrize("bad", ["memory://", "memory://x?lease=1", "memory:"])
def test_an_url_without_a_name_or_with_options_is_refused(bad: str) -> None:
    with pytest.raises(BadBrokerURL):
        subscribe(bad, "c")


def test_every_consumer_gets_every_message() -> None:
    broker = MemoryBroker("all")
    broker.publish(b"1")
    one, two = broker.subscribe("one"), broker.subscribe("two")
    broker.publish(b"2")
    assert bodies(one.receive(9, 0)) == bodies(two.receive(9, 0)) == [b"1", b"2"]


def test_two_subscriptions_of_one_consumer_share_the_messages() -> None:
    broker = MemoryBroker("share")
    for number in range(4):
        broker.publish(b"%d" % number)
    first, second = broker.subscribe("c"), broker.subscribe("c")
    assert bodies(first.receive(2, 0)) + bodies(second.receive(9, 0)) == [b"0", b"1", b"2", b"3"]


def test_a_key_is_with_one_subscription_at_a_time() -> None:
    broker = MemoryBroker("keys")
    for body, key in ((b"a1", "a"), (b"a2", "a"), (b"b1", "b"), (b"a3", "a")):
        broker.publish(body, key=key)
    first, second = broker.subscribe("c"), broker.subscribe("c")
    held = first.receive(1, 0)
    assert bodies(second.receive(9, 0)) == [b"b1"]
    assert bodies(first.receive(1, 0)) == [b"a2"]
    first.give_back(held)
    # What was given back is the first of its key again, but the second is still with the first.
    assert bodies(first.receive(9, 0)) == [b"a1", b"a3"]


def test_a_message_that_waits_holds_up_its_key() -> None:
    clock = Clock()
    broker = MemoryBroker("delay", clock=clock)
    for body, key in ((b"a1", "a"), (b"a2", "a"), (b"b1", "b")):
        broker.publish(body, key=key)
    subscription = broker.subscribe("c")
    subscription.give_back(subscription.receive(1, 0), delay=5)
    assert bodies(subscription.receive(9, 0)) == [b"b1"]
    clock.now = 5
    assert bodies(subscription.receive(9, 0)) == [b"a1", b"a2"]


def test_without_order_nothing_holds_anything_up() -> None:
    broker = MemoryBroker("loose", ordered=False)
    for body in (b"a1", b"a2"):
        broker.publish(body, key="a")
    first, second = broker.subscribe("c"), broker.subscribe("c")
    [delivery] = first.receive(1, 0)
    assert delivery.key == "a"
    assert bodies(second.receive(9, 0)) == [b"a2"]


def test_a_lease_that_ran_out_frees_a_message_and_voids_what_its_holder_says() -> None:
    clock = Clock()
    broker = MemoryBroker("lease", lease=10, clock=clock)
    broker.publish(b"1")
    first, second = broker.subscribe("c"), broker.subscribe("c")
    held = first.receive(1, 0)
    clock.now = 9
    first.extend(held)
    clock.now = 18
    assert list(second.receive(1, 0)) == []
    clock.now = 19
    again = second.receive(1, 0)
    assert [delivery.attempt for delivery in (*held, *again)] == [1, 2]
    first.acknowledge(held)
    first.give_back(held)
    assert broker.unacknowledged("c") == 1
    second.acknowledge(again)
    assert broker.unacknowledged("c") == 0


def test_backlog_counts_what_nobody_holds() -> None:
    clock = Clock()
    broker = MemoryBroker("backlog", lease=10, clock=clock)
    for _ in range(5):
        broker.publish(b"x")
    subscription = broker.subscribe("c")
    assert subscription.backlog() == 5
    subscription.receive(2, 0)
    assert subscription.backlog() == 3
    clock.now = 11
    assert subscription.backlog() == 5


def test_a_broker_that_is_finished_ends_its_subscriptions() -> None:
    broker = MemoryBroker("end")
    broker.publish(b"1")
    first, second = broker.subscribe("c"), broker.subscribe("c")
    broker.finish()
    assert not first.ended
    held = first.receive(9, 0)
    assert first.ended
    assert not second.ended
    first.acknowledge(held)
    began = time.monotonic()
    assert list(second.receive(1, 5)) == []
    assert second.ended
    assert time.monotonic() - began < 2


def test_a_cut_ends_every_subscription_and_frees_what_it_held() -> None:
    broker = MemoryBroker("cut")
    broker.publish(b"1")
    subscription = broker.subscribe("c")
    held = subscription.receive(1, 0)
    broker.cut()
    for use in (
        lambda: subscription.receive(1, 0),
        lambda: subscription.acknowledge(held),
        lambda: subscription.give_back(held),
        lambda: subscription.extend(held),
        subscription.backlog,
    ):
        with pytest.raises(BrokerLost, match="subscribe again"):
            use()
    subscription.close()
    assert bodies(broker.subscribe("c").receive(1, 0)) == [b"1"]


def test_receiving_wakes_up_for_a_message() -> None:
    broker = MemoryBroker("wake")
    subscription = broker.subscribe("c")
    timer = threading.Timer(0.1, broker.publish, [b"x"])
    timer.start()
    began = time.monotonic()
    assert bodies(subscription.receive(1, 10)) == [b"x"]
    assert time.monotonic() - began < 5
    timer.join()


def test_duplicates_come_as_often_as_told() -> None:
    broker = MemoryBroker("twice", duplicates=0.3, seed=1)
    for number in range(1000):
        broker.publish(b"%d" % number)
    broker.finish()
    counts = Counter(bodies(until_the_end(broker.subscribe("c"))))
    assert len(counts) == 1000
    assert 200 < sum(count == 2 for count in counts.values()) < 400
    assert max(counts.values()) == 2


def test_lost_acknowledgements_bring_messages_again_after_the_lease() -> None:
    clock = Clock()
    broker = MemoryBroker("unheard", lost_acknowledgements=1.0, lease=5, clock=clock)
    for number in range(10):
        broker.publish(b"%d" % number)
    broker.finish()
    subscription = broker.subscribe("c")
    found: list[Delivery] = []
    while broker.unacknowledged("c"):
        some = subscription.receive(3, 0)
        subscription.acknowledge(some)
        found.extend(some)
        clock.now += 1
    assert Counter(bodies(found)) == {b"%d" % number: 2 for number in range(10)}


def test_shuffling_draws_from_what_waits_and_loses_nothing() -> None:
    broker = MemoryBroker("cards", shuffle=10, seed=3)
    for number in range(200):
        broker.publish(b"%d" % number, key="k")
    broker.finish()
    found = [int(body) for body in bodies(until_the_end(broker.subscribe("c")))]
    assert found != sorted(found)
    assert sorted(found) == list(range(200))
    # A message comes early by the width of the window at most.
    assert all(number - place <= 10 for place, number in enumerate(found))


def test_faults_are_repeatable_by_seed() -> None:
    def run(seed: int) -> list[bytes]:
        clock = Clock()
        broker = MemoryBroker(
            "seeded",
            duplicates=0.2,
            shuffle=7,
            lost_acknowledgements=0.2,
            seed=seed,
            lease=3,
            clock=clock,
        )
        for number in range(100):
            broker.publish(b"%d" % number)
        broker.finish()
        subscription = broker.subscribe("c")
        found: list[Delivery] = []
        while broker.unacknowledged("c"):
            some = subscription.receive(4, 0)
            subscription.acknowledge(some)
            found.extend(some)
            clock.now += 1
        return bodies(found)

    assert run(1) == run(1)
    assert run(1) != run(2)


@pytest.mark.parametrize(
    "wrong",
    [{"lease": 0}, {"duplicates": 1.5}, {"duplicates": -0.1}, {"lost_acknowledgements": 2}, {"shuffle": -1}],
)
def test_faults_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected a lease above 0"):
        MemoryBroker("wrong", **wrong)  # type: ignore[arg-type]


def test_many_threads_share_without_loss() -> None:
    broker = MemoryBroker("threads")
    for number in range(2000):
        broker.publish(b"%d" % number, key=f"{number % 17}")
    broker.finish()
    found: list[bytes] = []

    def take() -> None:
        subscription = broker.subscribe("c")
        while not subscription.ended:
            some = subscription.receive(20, 0.05)
            found.extend(bodies(some))
            subscription.acknowledge(some)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(found) == {b"%d" % number: 1 for number in range(2000)}
    for key in range(17):
        mine = [int(body) for body in found if int(body) % 17 == key]
        assert len(mine) == len(set(mine))


def test_a_subscription_that_is_dropped_is_not_kept_by_its_broker() -> None:
    broker = MemoryBroker("dropped", lease=1, clock=(clock := Clock()))
    broker.publish(b"1")
    subscription = broker.subscribe("c")
    subscription.receive(1, 0)
    del subscription
    gc.collect()
    clock.now = 2
    assert bodies(broker.subscribe("c").receive(1, 0)) == [b"1"]

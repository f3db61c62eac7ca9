"""Workers run side by side; when one cannot go on, all stop."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from onefold import Consumer, Message
from onefold.infrastructure.brokers import BrokerMisconfigured, Subscription
from onefold.infrastructure.brokers.memory import MemoryBroker
from onefold.infrastructure.consuming.consumption import Consumption
from onefold.infrastructure.consuming.workers import Workers
from onefold.projections.guards import Outcome


def consumer(sleep: float = 0.0) -> Consumer:
    def effect(message: Message, tx: Any) -> None:
        time.sleep(sleep)

    return Consumer("busy", ordering="unordered", effect=effect, age="received")


def publish(broker: MemoryBroker, number: int) -> None:
    for each in range(number):
        message = {"specversion": "1.0", "id": str(each), "source": "/bank", "type": "paid", "data": {}}
        broker.publish(json.dumps(message), {"content-type": "application/cloudevents+json"})


def test_they_share_the_work_and_end_with_the_source(database_url: str) -> None:
    broker = MemoryBroker("workers-share")
    publish(broker, 100)
    broker.finish()
    team = Workers([Consumption(database_url, consumer(), "memory://workers-share") for _ in range(3)])
    assert not team.going
    team.start()
    assert team.join(30)
    assert team.outcomes[Outcome.APPLIED] == 100
    assert set(team.outcomes) == set(Outcome)
    assert team.received == 100
    assert (team.error, team.interrupted) == (None, False)


def test_one_that_cannot_go_on_ends_the_others(database_url: str) -> None:
    def refuse() -> Subscription:
        raise BrokerMisconfigured("the queue is of the wrong kind")

    MemoryBroker("workers-broken")
    good = Consumption(database_url, consumer(), "memory://workers-broken")
    bad = Consumption(database_url, consumer(), "memory://workers-broken", subscription=refuse)
    team = Workers([good, bad])
    team.start()
    assert team.join(30)
    assert isinstance(team.error, BrokerMisconfigured)


@pytest.mark.parametrize(("grace", "interrupted"), [(0.2, True), (10.0, False)])
def test_a_worker_that_was_late_is_told(database_url: str, grace: float, interrupted: bool) -> None:
    name = f"workers-late-{grace}"
    broker = MemoryBroker(name)
    publish(broker, 1)
    team = Workers([Consumption(database_url, consumer(1.0), f"memory://{name}", grace=grace)])
    team.start()
    deadline = time.monotonic() + 20
    while not team.received:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.3)
    team.stop()
    assert team.join(20)
    assert team.interrupted is interrupted
    assert team.outcomes[Outcome.APPLIED] == (0 if interrupted else 1)

"""How many messages a worker holds undone."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from onefold import Message, Transaction
from onefold.infrastructure.brokers.memory import MemoryBroker
from onefold.infrastructure.consuming.consumption import Consumption

from .desk import deposit, deposits, envelope
from .running import Running, until
from .test_processor_folds import folding


def test_a_function_that_hangs_has_two_thousand_messages_waiting_for_it(bank: str) -> None:
    gate = threading.Event()

    def effect(message: Message, tx: Transaction) -> None:
        gate.wait(20)
        deposit(message, tx)

    broker = MemoryBroker("buffered", lease=30.0)
    broker.publish_all([envelope(f"a{number}") for number in range(2_100)])
    running = Running(Consumption(bank, deposits(effect), f"memory://{broker.name}", grace=20.0))
    try:
        intake = running.consumption.intake
        until(lambda: intake.received >= 2_000)
        assert (intake.received, intake.in_flight) == (2_000, 2_000)
    finally:
        gate.set()
        running.stop()


@pytest.mark.parametrize(
    ("consumer", "given", "expected"),
    [(deposits(), None, 2_000), (folding(), None, 10_000), (deposits(), 10_000, 10_000), (folding(), 5, 5)],
)
def test_a_fold_holds_more_than_a_function_unless_told_otherwise(
    bank: str, consumer: Any, given: int | None, expected: int
) -> None:
    assert Consumption(bank, consumer, "memory://none", messages=given).intake._messages == expected

"""Any CloudEvent through every broker and back, in both modes."""

from __future__ import annotations

import time
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from onefold import Message
from onefold.infrastructure.brokers.envelope import PREFIXES, read, write

from ..infrastructure.brokers.test_envelope import as_text, exact, messages
from .benches import Bench, that

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


@pytest.mark.parametrize("structured", [True, False], ids=["structured", "binary"])
@that("carries")
def test_any_event_arrives_as_it_was_sent(bench: Bench, structured: bool) -> None:
    """C09: with every attribute, those nobody knows included."""
    carry(bench, structured)


@that("carries", without=True)
def test_any_structured_event_arrives_where_nothing_else_is_carried(bench: Bench) -> None:
    """C09"""
    carry(bench, True)


def carry(bench: Bench, structured: bool) -> None:
    prefix = PREFIXES.get(urlsplit(bench.url).scheme, "ce-")
    sent: dict[str, Message] = {}

    # A round trip takes its time, so there are few, of many messages each, and a failure is told as it was found.
    @settings(max_examples=2, deadline=None, phases=[Phase.generate], suppress_health_check=SLOW)
    @given(st.lists(messages(), min_size=15, max_size=15))
    def publish(drawn: list[Message]) -> None:
        batch = [
            replace(message, id=f"{len(sent) + number} {message.id}") for number, message in enumerate(drawn)
        ]
        bench.publish([write(message, structured=structured, prefix=prefix) for message in batch])
        sent.update((message.id, message) for message in batch)

    publish()
    assert len(sent) >= 15
    found: dict[str, Message] = {}
    subscription = bench.subscribe()
    end = time.monotonic() + 30
    while len(found) < len(sent) and time.monotonic() < end:
        taken = subscription.receive(100, 0.2)
        found.update((message.id, message) for message in map(read, taken))
        # Some brokers hand out nothing of a key that is held.
        subscription.acknowledge(taken)
    for message in sent.values():
        message.data = exact(message.data)
        if not structured:
            message.extensions = {name: as_text(value) for name, value in message.extensions.items()}
    assert found == sent

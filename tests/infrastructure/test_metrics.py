"""Metrics are exact for what the process does, and ask the database seldom."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from psycopg import Connection

from onefold import App, Consumer, Message
from onefold.infrastructure.brokers.memory import MemoryBroker
from onefold.infrastructure.consuming.consumption import Consumption
from onefold.infrastructure.consuming.workers import Workers
from onefold.infrastructure.metrics import (
    ConsumerMetrics,
    Glance,
    MetricsUnavailable,
    ProjectionMetrics,
    serve,
)
from onefold.infrastructure.store import connect
from onefold.projections.shop import app as shop

Samples = dict[tuple[str, str], float]


def samples(url: str) -> Samples:
    """What is served, by name and value of the last label."""
    text = urllib.request.urlopen(url, timeout=10).read().decode()
    return {
        (sample.name, next(reversed(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def message(number: int, version: int) -> str:
    return json.dumps(
        {
            "specversion": "1.0",
            "id": str(number),
            "source": "/bank",
            "type": "paid",
            "subject": "a",
            "sequence": version,
            "data": {},
        }
    )


def nothing(message: Message, tx: Any) -> None:
    """An effect that does nothing."""


def test_what_the_process_does_is_counted_exactly(database_url: str) -> None:
    broker = MemoryBroker("metrics-exact")
    for number in range(1, 51):
        for _ in range(2):
            broker.publish(message(number, number), {"content-type": "application/cloudevents+json"}, "a")
    broker.publish(message(60, 60), {"content-type": "application/cloudevents+json"}, "a")
    broker.publish("no json")
    broker.finish()
    consumer = Consumer("metered", ordering="delta", version="sequence", effect=nothing, age="received")
    team = Workers(
        [Consumption(database_url, consumer, "memory://metrics-exact", batch=10) for _ in range(2)]
    )
    with ConsumerMetrics(team.consumptions, database_url) as metrics, serve(0, metrics) as server:
        before = samples(server.url)
        assert before["onefold_outcomes_total", "applied"] == 0
        assert before["onefold_database_up", ""] == 1
        assert ("onefold_parked_messages", "metered") not in before
        team.start()
        assert team.join(30)
        time.sleep(1.1)
        found = samples(server.url)
    assert found["onefold_outcomes_total", "applied"] == 50
    assert found["onefold_outcomes_total", "duplicate"] == 50
    assert found["onefold_outcomes_total", "parked"] == 1
    assert found["onefold_outcomes_total", "rejected"] == 1
    assert found["onefold_outcomes_total", "stale"] == 0
    assert found["onefold_received_total", "metered"] == 102
    assert found["onefold_claim_seconds_count", "metered"] >= 11
    assert found["onefold_claim_seconds_sum", "metered"] > 0
    assert found["onefold_batch_seconds_count", "metered"] >= 11
    assert found["onefold_batch_seconds_sum", "metered"] >= found["onefold_claim_seconds_sum", "metered"]
    assert found["onefold_in_flight_messages", "metered"] == 0
    assert found["onefold_lag_seconds", "metered"] == 0
    assert found["onefold_parked_messages", "metered"] == 1
    assert found["onefold_oldest_parked_seconds", "metered"] > 0
    assert found["onefold_dead_letters", "metered"] == 1
    assert found["onefold_workers", "metered"] == 0
    assert found["process_resident_memory_bytes", ""] > 0


def test_a_database_that_does_not_answer_leaves_the_counters(database_url: str) -> None:
    consumer = Consumer("metered", ordering="unordered", effect=nothing, age="received")
    consumption = Consumption(database_url, consumer, "memory://metrics-down")
    down = "postgresql://127.0.0.1:1/nowhere"
    with ConsumerMetrics([consumption], down) as metrics, serve(0, metrics) as server:
        found = samples(server.url)
    assert found["onefold_database_up", ""] == 0
    assert found["onefold_outcomes_total", "applied"] == 0
    assert ("onefold_dead_letters", "metered") not in found


def test_what_the_broker_cannot_say_is_left_out(database_url: str) -> None:
    consumer = Consumer("metered", ordering="unordered", effect=nothing, age="received")
    consumption = Consumption(database_url, consumer, "memory://metrics-unknown")
    with ConsumerMetrics([consumption], database_url) as metrics, serve(0, metrics) as server:
        found = samples(server.url)
        consumption.intake.backlog = 7
        known = samples(server.url)
    assert ("onefold_backlog_messages", "metered") not in found
    assert known["onefold_backlog_messages", "metered"] == 7
    assert known["onefold_lag_messages", "metered"] == 7
    assert ("onefold_lag_seconds", "metered") not in known


def test_projections_tell_how_far_they_are(database_url: str) -> None:
    from datetime import UTC, datetime

    from onefold.domain.account import Account

    with connect(shop, database_url) as store:
        store.run("account_balance")
        store.save(Account.open("1", "EUR", at=datetime(2026, 3, 1, tzinfo=UTC)))
    part = App(projections=[shop.projection("account_balance")])
    with ProjectionMetrics(part, database_url) as metrics, serve(0, metrics) as server:
        found = samples(server.url)
    assert found["onefold_projection_lag_events", "account_balance"] == 1
    assert found["onefold_projection_lag_seconds", "account_balance"] > 0
    assert found["onefold_projection_position", "account_balance"] == 0
    assert found["onefold_projection_failed", "account_balance"] == 0


def test_the_database_is_asked_once_a_second_and_less_often_when_it_is_slow(database_url: str) -> None:
    now, looks = [0.0], [0]

    def look(_: Connection[Any]) -> int:
        looks[0] += 1
        now[0] += 0.5 if looks[0] == 3 else 0.01
        return looks[0]

    glance = Glance(database_url, look, clock=lambda: now[0])
    assert [glance.take() for _ in range(5)] == [1] * 5
    now[0] += 0.9
    assert glance.take() == 1
    now[0] += 0.2
    assert glance.take() == 2
    now[0] += 1.1
    assert glance.take() == 3
    now[0] += 9.5
    assert glance.take() == 3
    now[0] += 1.0
    assert glance.take() == 4
    glance.close()


def test_a_connection_that_is_lost_is_made_again(database_url: str, connection: Connection) -> None:
    now = [0.0]

    def look(opened: Connection[Any]) -> Any:
        return opened.execute("SELECT pg_backend_pid()").fetchone()

    glance: Glance[Any] = Glance(database_url, look, clock=lambda: now[0])
    (pid,) = glance.take()
    connection.execute("SELECT pg_terminate_backend(%s)", (pid,))
    now[0] += 2
    assert glance.take() is None
    now[0] += 2
    assert glance.take() not in (None, (pid,))
    glance.close()


def test_a_statement_that_hangs_is_given_up(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(opened: Connection[Any]) -> Any:
        return opened.execute("SELECT pg_sleep(60)").fetchone()

    monkeypatch.setattr("onefold.infrastructure.metrics.PATIENCE", 1)
    glance: Glance[Any] = Glance(database_url, look)
    started = time.monotonic()
    assert glance.take() is None
    assert time.monotonic() - started < 10
    glance.close()


def test_a_port_that_is_taken_is_named() -> None:
    taken = "of 127.0.0.1, found: Address already in use; choose another port"
    with serve(0) as server, pytest.raises(MetricsUnavailable, match=taken), serve(server.port):
        pass


def test_two_servers_of_one_process_have_registries_of_their_own(database_url: str) -> None:
    consumer = Consumer("metered", ordering="unordered", effect=nothing, age="received")
    consumption = Consumption(database_url, consumer, "memory://metrics-two")
    with ConsumerMetrics([consumption], database_url) as metrics, serve(0, metrics) as one, serve(0) as other:
        assert ("onefold_outcomes_total", "applied") in samples(one.url)
        assert ("onefold_outcomes_total", "applied") not in samples(other.url)
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(one.url, timeout=5)


def test_the_names_follow_the_rules_of_prometheus(database_url: str) -> None:
    consumer = Consumer("metered", ordering="unordered", effect=nothing, age="received")
    registry = CollectorRegistry()
    with ConsumerMetrics([Consumption(database_url, consumer, "memory://names")], database_url) as metrics:
        registry.register(metrics)
        families = list(registry.collect())
    assert len(families) == 13
    for family in families:
        assert family.name.startswith("onefold_")
        assert family.documentation


def test_without_the_client_the_extra_is_named() -> None:
    program = """
import sys
sys.modules["prometheus_client"] = None
try:
    import onefold.infrastructure.metrics
except ImportError as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("MissingExtra metrics need the package prometheus-client")
    assert "pip install 'onefold[metrics]'" in done.stdout

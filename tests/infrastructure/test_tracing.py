"""Spans continue the producer's trace around the handling of each message, and what it causes carries the trace on."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from psycopg import Connection

from onefold import Consumer, Event, Message, Projection, Registry, Rejected, Retry, Row
from onefold.domain.account import Account
from onefold.infrastructure.brokers import MissingExtra
from onefold.infrastructure.brokers.memory import MemoryBroker
from onefold.infrastructure.consuming.consumption import Consumption
from onefold.infrastructure.tracing import is_provided, spans, trace_of

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> Iterator[TracerProvider]:
    made = TracerProvider()
    made.add_span_processor(SimpleSpanProcessor(exporter))
    yield made
    made.shutdown()


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> MemoryBroker:
    return MemoryBroker(f"tracing-{id(request.node)}")


def publish(broker: MemoryBroker, number: int, **more: Any) -> None:
    message = {
        "specversion": "1.0",
        "id": f"m{number}",
        "source": "/shop",
        "type": "money.deposited",
        "subject": "account/1",
        "time": "2026-03-01T12:30:00Z",
        "data": {"amount": number},
        **more,
    }
    broker.publish(json.dumps(message), {"content-type": "application/cloudevents+json"})


def consume(url: str, consumer: Consumer, broker: MemoryBroker, provider: TracerProvider | None) -> None:
    address = f"memory://{broker.name}"
    broker.finish()
    span = None if provider is None else spans(consumer.name, address, provider)
    Consumption(url, consumer, address, once=True, span=span).run()


def test_a_span_continues_the_trace_of_the_producer(
    database_url: str, broker: MemoryBroker, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    def effect(message: Message, tx: Any) -> None:
        tx.execute("SELECT 1")

    publish(broker, 1, traceparent=PARENT, tracestate="shop=7")
    publish(broker, 2)
    consume(
        database_url,
        Consumer("deposits", ordering="unordered", effect=effect, age="received"),
        broker,
        provider,
    )
    first, second = exporter.get_finished_spans()
    assert (first.name, first.kind) == ("deposits process", SpanKind.CONSUMER)
    assert first.parent is not None
    assert f"{first.context.trace_id:032x}" == TRACE
    assert f"{first.parent.span_id:016x}" == "b7ad6b7169203331"
    assert first.context.trace_state.get("shop") == "7"
    assert first.status.status_code is StatusCode.UNSET
    assert dict(first.attributes or {}) == {
        "messaging.system": "memory",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "deposits",
        "messaging.message.id": "m1",
        "cloudevents.event_id": "m1",
        "cloudevents.event_source": "/shop",
        "cloudevents.event_type": "money.deposited",
        "cloudevents.event_subject": "account/1",
        "onefold.consumer": "deposits",
    }
    assert second.parent is None
    assert second.context.trace_id != first.context.trace_id


def test_a_duplicate_has_no_span(
    database_url: str, broker: MemoryBroker, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    for _ in range(3):
        publish(broker, 1)
    consumer = Consumer("deposits", ordering="unordered", effect=lambda message, tx: None, age="received")
    consume(database_url, consumer, broker, provider)
    assert len(exporter.get_finished_spans()) == 1


def test_each_try_that_fails_is_a_span_with_the_error(
    database_url: str, broker: MemoryBroker, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    def effect(message: Message, tx: Any) -> None:
        if message.id == "m2":
            raise Rejected("not ours")
        raise ZeroDivisionError("by zero")

    publish(broker, 1)
    publish(broker, 2)
    consumer = Consumer(
        "deposits",
        ordering="unordered",
        effect=effect,
        age="received",
        retry=Retry(attempts=2, first=0.01),
    )
    consume(database_url, consumer, broker, provider)
    failed = [
        each
        for each in exporter.get_finished_spans()
        if (each.attributes or {})["messaging.message.id"] == "m1"
    ]
    assert len(failed) >= 2
    for each in failed:
        assert each.status.status_code is StatusCode.ERROR
        assert (each.attributes or {})["error.type"] == "ZeroDivisionError"
        assert [event.name for event in each.events] == ["exception"]
    refused = [each for each in exporter.get_finished_spans() if each not in failed]
    assert {(each.attributes or {})["error.type"] for each in refused} == {"Rejected"}


def test_spans_of_an_async_function_are_children_of_its_own(
    database_url: str, broker: MemoryBroker, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    async def effect(message: Message, tx: Any) -> None:
        await asyncio.sleep(0)
        with provider.get_tracer("mine").start_as_current_span("inner"):
            await tx.execute("SELECT 1")

    publish(broker, 1)
    publish(broker, 2)
    consume(
        database_url,
        Consumer("deposits", ordering="unordered", effect=effect, age="received"),
        broker,
        provider,
    )
    found = exporter.get_finished_spans()
    outer = {each.context.span_id for each in found if each.name == "deposits process"}
    inner = [each.parent.span_id for each in found if each.name == "inner" and each.parent is not None]
    assert len(outer) == 2
    assert set(inner) == outer


def test_a_fold_has_a_span_for_each_message(
    database_url: str, broker: MemoryBroker, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    registry = Registry()

    class Deposited(Event, name="money.deposited", registry=registry):
        amount: int

    class Total(Row, key="account"):
        account: str
        total: int = 0

    totals = Projection("totals_of_messages", Total, registry=registry)

    @totals.on(Deposited)
    def add(row: Total | None, event: Deposited) -> Total:
        row = row or Total(account=event.meta.key)
        return row.evolve(total=row.total + event.amount)

    for number in (1, 2, 3):
        publish(broker, number, sequence=number)
    consumer = Consumer(
        "deposits", ordering="delta", version="sequence", fold=totals, registry=registry, age="received"
    )
    consume(database_url, consumer, broker, provider)
    assert [each.name for each in exporter.get_finished_spans()] == ["deposits process"] * 3


@pytest.mark.parametrize("traced", [True, False])
def test_events_that_a_message_causes_carry_its_trace(
    database_url: str,
    connection: Connection,
    broker: MemoryBroker,
    provider: TracerProvider,
    exporter: InMemorySpanExporter,
    traced: bool,
) -> None:
    def effect(message: Message, tx: Any) -> None:
        tx.save(Account.open(message.id, "EUR", at=message.time))

    publish(broker, 1, traceparent=PARENT, tracestate="shop=7")
    consume(
        database_url,
        Consumer("deposits", ordering="unordered", effect=effect, age="received"),
        broker,
        provider if traced else None,
    )
    row = connection.execute("SELECT metadata FROM onefold.events").fetchone()
    assert row is not None
    if traced:
        (span,) = exporter.get_finished_spans()
        assert row[0]["traceparent"] == f"00-{TRACE}-{span.context.span_id:016x}-01"
    else:
        assert row[0]["traceparent"] == PARENT
    assert row[0]["tracestate"] == "shop=7"
    assert row[0]["causation"] == "m1"


@pytest.mark.parametrize(
    "given",
    [7, "", "00-" + "0" * 600, "caf\u00e9", "a\x00b"],
    ids=["number", "empty", "long", "letters", "nul"],
)
def test_a_trace_that_cannot_be_carried_is_left_out(given: object) -> None:
    found = trace_of(Message("1", "/shop", "deposited", extensions={"traceparent": given}))
    assert found in ({}, {"traceparent": ""})


@pytest.mark.parametrize(
    ("broker", "system"),
    [
        ("kafka://h/t", "kafka"),
        ("amqps://u:p@h/v", "rabbitmq"),
        ("sqs://q", "aws_sqs"),
        ("pubsub://p/s", "gcp_pubsub"),
        ("redis://h/0", "redis"),
        ("-", "file"),
        ("file:/tmp/x", "file"),
    ],
)
def test_the_system_is_named_as_the_conventions_name_it(
    broker: str, system: str, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    with spans("deposits", broker, provider)(Message("1", "/shop", "deposited")):
        pass
    (found,) = exporter.get_finished_spans()
    assert (found.attributes or {})["messaging.system"] == system


def test_without_opentelemetry_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(MissingExtra, match=r"pip install 'onefold\[tracing\]'"):
        spans("deposits", "kafka://h/t")


def test_a_process_without_a_provider_traces_nowhere(
    monkeypatch: pytest.MonkeyPatch, provider: TracerProvider
) -> None:
    get: Callable[[], Any] = trace.ProxyTracerProvider
    monkeypatch.setattr(trace, "get_tracer_provider", get)
    assert not is_provided()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    assert is_provided()

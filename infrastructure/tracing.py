"""Tracing: spans of OpenTelemetry around the handling of messages, in the traces that their producers began."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeGuard
from urllib.parse import urlsplit

from ..projections.message import Message
from .brokers.port import MissingExtra

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

SYSTEMS = {
    "kafka": "kafka",
    "amqp": "rabbitmq",
    "amqps": "rabbitmq",
    "sqs": "aws_sqs",
    "pubsub": "gcp_pubsub",
    "redis": "redis",
    "rediss": "redis",
    "memory": "memory",
}
"""`messaging.system` by the scheme of a broker's URL, as OpenTelemetry's conventions name it where they do."""

CARRIED = ("traceparent", "tracestate")
"""Extensions of CloudEvents that carry a trace, as W3C Trace Context writes it."""

LONGEST = 512
"""Characters of what is carried on, at most."""


def spans(
    consumer: str, broker: str, provider: TracerProvider | None = None
) -> Callable[[Message], AbstractContextManager[Any]]:
    """Return what opens a span around the handling of one message, for `Consumption(span=...)`.

    `consumer` is the name of the consumer, `broker` the URL that it consumes, of which only the scheme is told. The
    span continues the trace of the message's `traceparent`; it is of kind CONSUMER, is named `<consumer> process`,
    has the attributes of the conventions for messaging and for CloudEvents, and status ERROR when handling raises.
    `provider` is the process's own unless it is given. Raises `MissingExtra` without OpenTelemetry.
    """
    try:
        from opentelemetry import trace
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError as error:
        raise MissingExtra(
            "tracing needs the package opentelemetry-api, which is not installed; install it with: "
            "pip install 'onefold[tracing]'"
        ) from error
    tracer = trace.get_tracer("onefold", tracer_provider=provider)
    propagator = TraceContextTextMapPropagator()
    name = f"{consumer} process"
    fixed: dict[str, str] = {
        "messaging.system": SYSTEMS.get(urlsplit(broker).scheme, "file"),
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": consumer,
        "onefold.consumer": consumer,
    }

    @contextmanager
    def span(message: Message) -> Iterator[Any]:
        attributes = {
            **fixed,
            "messaging.message.id": message.id,
            "cloudevents.event_id": message.id,
            "cloudevents.event_source": message.source,
            "cloudevents.event_type": message.type,
        }
        if message.subject is not None:
            attributes["cloudevents.event_subject"] = message.subject
        context = propagator.extract(_carried(message))
        with tracer.start_as_current_span(
            name, context=context, kind=SpanKind.CONSUMER, attributes=attributes
        ) as opened:
            try:
                yield opened
            except BaseException as error:
                opened.set_attribute("error.type", type(error).__qualname__)
                raise

    return span


def is_provided() -> bool:
    """Tell whether spans go anywhere: whether the process has a provider of OpenTelemetry."""
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    return not isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider)


def trace_of(message: Message) -> Mapping[str, str]:
    """Return what continues the trace in what a message causes: the open span, else what the message carries."""
    # Whoever traces has loaded it; nobody else pays for it.
    if "opentelemetry.trace" in sys.modules:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        if trace.get_current_span().get_span_context().is_valid:
            found: dict[str, str] = {}
            TraceContextTextMapPropagator().inject(found)
            return found
    return _carried(message)


def _carried(message: Message) -> dict[str, str]:
    extensions = message.extensions
    return {name: value for name in CARRIED if _is_fit(value := extensions.get(name))}


def _is_fit(value: Any) -> TypeGuard[str]:
    """Tell whether this may be a header of W3C Trace Context; a broken one must not make its message fail."""
    return isinstance(value, str) and len(value) <= LONGEST and value.isascii() and value.isprintable()

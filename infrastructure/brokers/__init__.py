"""Brokers: thin adapters, one a module, found by the scheme of a URL."""

from __future__ import annotations

from collections.abc import Callable, Collection
from importlib import import_module
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

from .port import (
    BadBrokerURL,
    BrokerLost,
    BrokerMisconfigured,
    Delivery,
    MissingExtra,
    MissingFile,
    Outgoing,
    Publisher,
    Subscription,
)

__all__ = [
    "BadBrokerURL",
    "BrokerLost",
    "BrokerMisconfigured",
    "Delivery",
    "MissingExtra",
    "MissingFile",
    "Outgoing",
    "Publisher",
    "Subscription",
    "publisher",
    "subscribe",
]


class _Kind(NamedTuple):
    module: str
    client: str | None = None
    package: str | None = None
    extra: str | None = None


_KINDS = {
    "kafka": _Kind("kafka", "confluent_kafka", "confluent-kafka", "kafka"),
    "amqp": _Kind("rabbitmq", "pika", "pika", "rabbitmq"),
    "amqps": _Kind("rabbitmq", "pika", "pika", "rabbitmq"),
    "sqs": _Kind("sqs", "boto3", "boto3", "sqs"),
    "pubsub": _Kind("pubsub", "google.cloud.pubsub_v1", "google-cloud-pubsub", "pubsub"),
    "redis": _Kind("redis_streams", "redis", "redis", "redis"),
    "rediss": _Kind("redis_streams", "redis", "redis", "redis"),
    "file": _Kind("file"),
    "log": _Kind("log"),
    "memory": _Kind("memory"),
}


def subscribe(
    url: str, consumer: str, *, database: str | None = None, types: Collection[str] | None = None
) -> Subscription:
    """Return a subscription to what `url` names, for the consumer of this name.

    `log:` reads the `database` that the consumer works on, and delivers only events of `types` (stored names; all
    without). Brokers have no use for either.

    Raises `BadBrokerURL`, `MissingExtra`, `BrokerMisconfigured` or `BrokerLost`.
    """
    parts, module = _found(url)
    if parts.scheme == "log":
        made: Subscription = module.subscribe(parts, consumer, database=database, types=types)
        return made
    make: Callable[[SplitResult, str], Subscription] = module.subscribe
    return make(parts, consumer)


def publisher(url: str) -> Publisher:
    """Return a publisher to what `url` names. Raises as `subscribe` does."""
    parts, module = _found(url)
    make: Callable[[SplitResult], Publisher] = module.publisher
    return make(parts)


def _found(url: str) -> tuple[SplitResult, Any]:
    if url == "-":
        url = "file:-"
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise BadBrokerURL(f"expected the URL of a broker, found one that cannot be read: {error}") from error
    kind = _KINDS.get(parts.scheme)
    if kind is None:
        schemes = ", ".join(f"{scheme}:" for scheme in _KINDS)
        found = f"scheme {parts.scheme!r}" if parts.scheme else "no scheme; a file is named as file:PATH"
        raise BadBrokerURL(f"expected the URL of a broker ({schemes} or - for standard input), found {found}")
    if kind.client is not None:
        try:
            import_module(kind.client)
        except ImportError as error:
            raise MissingExtra(
                f"{parts.scheme}: needs the package {kind.package}, which is not installed; "
                f"install it with: pip install 'onefold[{kind.extra}]'"
            ) from error
    return parts, import_module(f".{kind.module}", __name__)

"""RabbitMQ: quorum queues by AMQP 0.9.1."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import logging
import ssl
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final
from urllib.parse import SplitResult, unquote

import pika
import pika.exceptions
from pika.adapters.blocking_connection import BlockingChannel
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.spec import Basic, BasicProperties

from .options import Options
from .port import BrokerLost, BrokerMisconfigured, Delivery, Outgoing
from .rabbitmq_queue import declared, exchange_exists, exists, refused

log = logging.getLogger("onefold.brokers.rabbitmq")

KEY: Final = "onefold-key"
"""Header that carries the key of an `Outgoing`."""

_FORM = "amqp://user:password@host:5672/vhost?queue=payments"
_PLAIN_PORT, _TLS_PORT = 5672, 5671
_MOST_PREFETCH = 65535
_FEW_DELIVERIES = 10
# The broker ends a channel that leaves a delivery unacknowledged for its `consumer_timeout`, by default 30 minutes.
_OLDEST_HELD = 15 * 60.0
_MILLISECONDS = 10**11  # as seconds it would be the year 5138
_PROPERTIES: Final = {
    "content-type": "content_type",
    "content-encoding": "content_encoding",
    "amqp-message-id": "message_id",
    "amqp-correlation-id": "correlation_id",
    "amqp-type": "type",
    "amqp-app-id": "app_id",
    "amqp-reply-to": "reply_to",
}


class RabbitSubscription:
    """A subscription to one quorum queue, over one connection and one channel.

    Up to `prefetch` messages are taken from the broker before they are acknowledged; those that were not asked for
    yet wait in memory. RabbitMQ has no lease that could be extended: `lease` is None, and the broker's
    `consumer_timeout` (30 minutes by default) bounds how long a message may stay unacknowledged; past it the broker
    ends the channel, every method raises `BrokerLost`, and the messages come again. A lost connection, and also a
    closed subscription, counts as one delivery for every message that was not acknowledged.
    """

    lease: float | None = None

    def __init__(self, server: _Server, queue: str, *, prefetch: int, checks: _Checks) -> None:
        self._queue = queue
        self._server = server
        self._arrived: deque[Delivery] = deque()
        self._outstanding: dict[int, Delivery] = {}
        self._received: dict[int, float] = {}
        self._held: dict[int, float] = {}
        self._counted: tuple[float, int] | None = None
        self._cancelled = self._closed = False
        self._connection = server.connect()
        try:
            with server.errors(f"queue {queue!r}"):
                self._retention = checks.run(self._connection, queue)
                self._channel: BlockingChannel = self._connection.channel()
                self._channel.basic_qos(prefetch_count=prefetch)
                self._channel.add_on_cancel_callback(self._on_cancel)
                self._channel.basic_consume(queue, self._on_message)
        except BaseException:
            self.close()
            raise

    @property
    def ended(self) -> bool:
        """False: more may always come."""
        return False

    def receive(self, limit: int, timeout: float) -> Sequence[Delivery]:
        """Return up to `limit` deliveries; see `Subscription`. With 0, heartbeats go on, bounded by the prefetch."""
        until = time.monotonic() + timeout
        wait = 0.0
        while True:
            self._pump(wait)
            taken = self._take(limit)
            rest = until - time.monotonic()
            if taken or rest <= 0:
                return taken
            wait = min(rest, min(self._held.values()) - time.monotonic()) if self._held and limit else rest

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Be done with these for good; see `Subscription`. What is not held by this subscription is passed over."""
        done = set(self._ours(deliveries))
        with self._errors():
            # One acknowledgement stands for everything up to it, if nothing before it is still out.
            head = list(itertools.takewhile(done.__contains__, self._outstanding))
            if head:
                self._channel.basic_ack(head[-1], multiple=True)
            for tag in sorted(done.difference(head)):
                self._channel.basic_ack(tag)
        for tag in done:
            self._forget(tag)

    def give_back(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> None:
        """Return these undone; see `Subscription`.

        At once they go back to the queue, for any consumer, which counts towards the delivery limit. With a delay they
        stay with this subscription, uncounted, and are delivered by it again, or return when it ends. A delay is cut
        to 15 minutes; what was held that long goes back to the queue.
        """
        if delay > 0:
            due = time.monotonic() + min(delay, _OLDEST_HELD)
            self._held.update((tag, due) for tag in self._ours(deliveries))
            return
        with self._errors():
            for tag in list(self._ours(deliveries)):
                self._return(tag)

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Do nothing: there are no leases."""

    def backlog(self) -> int | None:
        """Return how many messages are ready in the queue, and how many wait here; asked once a second at most."""
        self._require_open()
        now = time.monotonic()
        if self._counted is None or now - self._counted[0] >= 1:
            with self._errors():
                self._counted = now, exists(self._connection, self._queue)
        return self._counted[1] + len(self._arrived)

    def retention(self) -> float | None:
        """Return the time to live that the queue was declared with, in seconds; None: a policy may set one."""
        return self._retention

    def close(self) -> None:
        """Return everything to the queue and close the connection; see `Subscription`."""
        with contextlib.suppress(Exception):
            if self._connection.is_open:
                self._connection.close()
        self._closed = True
        for kept in (self._arrived, self._outstanding, self._received, self._held):
            kept.clear()

    def _require_open(self) -> None:
        if self._closed:
            raise BrokerLost(
                f"expected an open subscription to queue {self._queue!r}, found it closed; subscribe again"
            )

    def _pump(self, wait: float) -> None:
        self._require_open()
        with self._errors():
            self._connection.process_data_events(max(wait, 0.0))
            if self._cancelled:
                raise BrokerLost(
                    f"expected queue {self._queue!r} on {self._server.shown} to deliver, found the consumer cancelled "
                    "by the broker: the queue was deleted or its node is down; subscribe again"
                )
            if not self._channel.is_open:
                reason = getattr(self._channel, "_closing_reason", None)
                raise BrokerLost(
                    f"expected an open channel to {self._server.shown}, found it ended by the broker: {reason}; "
                    "subscribe again, and finish each message within the broker's consumer_timeout"
                )

    def _take(self, limit: int) -> list[Delivery]:
        taken: list[Delivery] = []
        now = time.monotonic()
        due = sorted(tag for tag, at in self._held.items() if at <= now) if self._held else []
        for tag in due[:limit]:
            del self._held[tag]
            if now - self._received[tag] >= _OLDEST_HELD:
                with self._errors():
                    self._return(tag)
            else:
                taken.append(self._outstanding[tag])
        while self._arrived and len(taken) < limit:
            taken.append(self._arrived.popleft())
        return taken

    def _on_message(
        self, _channel: BlockingChannel, method: Basic.Deliver, properties: BasicProperties, body: bytes
    ) -> None:
        delivery = _delivery(self._queue, method, properties, body)
        self._outstanding[delivery.handle] = delivery
        self._received[delivery.handle] = time.monotonic()
        self._arrived.append(delivery)

    def _on_cancel(self, _frame: object) -> None:
        self._cancelled = True

    def _ours(self, deliveries: Sequence[Delivery]) -> Iterator[int]:
        self._require_open()
        # A tag alone may name another message: channels count from 1.
        for delivery in deliveries:
            if self._outstanding.get(delivery.handle) is delivery:
                yield delivery.handle

    def _return(self, tag: int) -> None:
        self._channel.basic_nack(tag, requeue=True)
        self._forget(tag)

    def _forget(self, tag: int) -> None:
        for kept in (self._outstanding, self._received, self._held):
            kept.pop(tag, None)

    def _errors(self) -> contextlib.AbstractContextManager[None]:
        return self._server.errors(f"queue {self._queue!r}")


class RabbitPublisher:
    """Publishes to a queue, or to an exchange with one routing key; every message is persistent and confirmed.

    Raises `BrokerMisconfigured` when a message reaches no queue. A connection that was ended while nothing was
    published is made again.
    """

    def __init__(self, server: _Server, exchange: str, routing_key: str) -> None:
        self._server = server
        self._exchange = exchange
        self._routing_key = routing_key
        self._what = f"exchange {exchange!r}" if exchange else f"queue {routing_key!r}"
        self._closed = False
        self._connect()

    def publish(self, messages: Sequence[Outgoing]) -> None:
        """Publish in order; see `Publisher`."""
        if self._closed:
            raise BrokerLost(f"expected an open publisher to {self._server.shown}, found it closed")
        try:
            self._connection.process_data_events(0)
            alive = self._channel.is_open
        except (pika.exceptions.AMQPError, OSError):
            alive = False
        if not alive:
            self.close()
            self._closed = False
            self._connect()
        with self._server.errors(self._what):
            for message in messages:
                self._publish(message)

    def close(self) -> None:
        """Close the connection; see `Publisher`."""
        self._closed = True
        with contextlib.suppress(Exception):
            if self._connection.is_open:
                self._connection.close()

    def _connect(self) -> None:
        self._connection = self._server.connect()
        try:
            with self._server.errors(self._what):
                self._channel = self._connection.channel()
                self._channel.confirm_delivery()
        except BaseException:
            self.close()
            raise

    def _publish(self, message: Outgoing) -> None:
        headers: dict[str, Any] = dict(message.headers)
        named = {_PROPERTIES[name]: headers.pop(name) for name in _PROPERTIES if name in headers}
        if message.key is not None:
            headers[KEY] = message.key
        properties = BasicProperties(
            headers=headers, delivery_mode=2, timestamp=int(datetime.now(UTC).timestamp()), **named
        )
        try:
            self._channel.basic_publish(
                self._exchange, self._routing_key, message.body, properties, mandatory=True
            )
        except pika.exceptions.UnroutableError as error:
            raise BrokerMisconfigured(
                f"expected {self._what} with routing key {self._routing_key!r} to reach a queue, found that a message "
                "was returned as unroutable; declare the queue or bind one to the exchange"
            ) from error
        except pika.exceptions.NackError as error:
            raise BrokerLost(
                f"expected {self._what} to take a message, found it refused by the broker: the queue is full "
                "or cannot write; publish again later"
            ) from error


def subscribe(parts: SplitResult, consumer: str) -> RabbitSubscription:
    """Return a subscription to a queue that is there.

    `amqp://user:password@host:5672/vhost?queue=Q` (`amqps:` for TLS), with these options: `prefetch` (messages,
    default 1000), `order=single` (the queue must have a single active consumer), `dead_letter=off` (a policy sets the
    dead-letter exchange, which AMQP does not show), `passive=on` (nothing but the name is checked, for a user who may
    not declare the queue), `heartbeat` (seconds, default 20), `ca` (file of certificates to trust).

    Raises `BadBrokerURL`, `BrokerMisconfigured` or `BrokerLost`.
    """
    options = Options(parts, _FORM)
    queue = options.text("queue", "")
    if not queue:
        raise options.bad("option queue")
    prefetch = options.number("prefetch", 1000, least=1)
    if prefetch != int(prefetch) or prefetch > _MOST_PREFETCH:
        raise options.bad(f"a whole number from 1 to {_MOST_PREFETCH} for option prefetch")
    checks = _Checks(
        single=_choice(options, "order", "any", "single"),
        dead_letter=not _choice(options, "dead_letter", "check", "off"),
        passive=_choice(options, "passive", "off", "on"),
    )
    server = _Server(parts, options)
    options.finish()
    return RabbitSubscription(server, queue, prefetch=int(prefetch), checks=checks)


def publisher(parts: SplitResult) -> RabbitPublisher:
    """Return a publisher to `?queue=Q`, or to `?exchange=E&routing_key=K` (the key is empty when not given).

    Options `heartbeat` and `ca` are those of `subscribe`. Raises `BadBrokerURL`, `BrokerMisconfigured`, `BrokerLost`.
    """
    options = Options(parts, _FORM)
    queue, exchange = options.text("queue", ""), options.text("exchange", "")
    routing_key = options.text("routing_key", "")
    if bool(queue) == bool(exchange) or (queue and routing_key):
        raise options.bad("either option queue, or exchange with routing_key,")
    server = _Server(parts, options)
    options.finish()
    return RabbitPublisher(server, exchange, queue or routing_key)


class _Server:
    """Where the broker is, how it is reached, and how its errors are named."""

    def __init__(self, parts: SplitResult, options: Options) -> None:
        secure = parts.scheme == "amqps"
        heartbeat = options.number("heartbeat", 20, least=1)
        trusted = options.text("ca", "")
        try:
            port = parts.port or (_TLS_PORT if secure else _PLAIN_PORT)
        except ValueError as error:
            raise options.bad("a port from 1 to 65535") from error
        if not parts.hostname or parts.fragment or "/" in parts.path[1:]:
            raise options.bad("a host, and a virtual host with its / as %2F,")
        tls = None
        if secure:
            try:
                tls = pika.SSLOptions(ssl.create_default_context(cafile=trusted or None), parts.hostname)
            except OSError as error:
                raise options.bad(
                    f"a readable file of certificates for option ca ({error.strerror})"
                ) from error
        elif trusted:
            raise options.bad("option ca with amqps: only")
        self.shown = f"{parts.hostname}:{port}"
        self._parameters = pika.ConnectionParameters(
            host=parts.hostname,
            port=port,
            virtual_host=unquote(parts.path[1:]) or "/",
            credentials=pika.PlainCredentials(
                unquote(parts.username) if parts.username is not None else "guest",
                unquote(parts.password) if parts.password is not None else "guest",
                erase_on_connect=False,
            ),
            ssl_options=tls,
            heartbeat=int(heartbeat),
            socket_timeout=5,
            stack_timeout=10,
            blocked_connection_timeout=60,
            client_properties={"product": "onefold"},
        )

    def connect(self) -> pika.BlockingConnection:
        """Return a new connection; takes up to 10 seconds."""
        try:
            return pika.BlockingConnection(self._parameters)
        except (
            pika.exceptions.ProbableAuthenticationError,
            pika.exceptions.ProbableAccessDeniedError,
            pika.exceptions.AuthenticationError,
        ) as error:
            raise BrokerMisconfigured(
                f"expected {self.shown} to let the user in to the virtual host "
                f"{self._parameters.virtual_host!r}, found: {_words(error)}; check user, password and virtual host"
            ) from error
        except (pika.exceptions.AMQPError, AMQPConnectorException, OSError) as error:
            raise BrokerLost(
                f"expected RabbitMQ at {self.shown}, found: {_words(error)}; check host, port and the broker"
            ) from error

    @contextlib.contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """Turn the client's errors into those of the port."""
        try:
            yield
        except pika.exceptions.ChannelClosedByBroker as error:
            raise refused(what, error) from error
        except (pika.exceptions.AMQPError, AMQPConnectorException, OSError) as error:
            raise BrokerLost(
                f"expected the connection to {self.shown} to stay, found it lost: {_words(error)}; connect again"
            ) from error


class _Checks:
    """What a queue is asked for before it is consumed."""

    def __init__(self, *, single: bool, dead_letter: bool, passive: bool) -> None:
        self._single = single
        self._dead_letter = dead_letter
        self._passive = passive

    def run(self, connection: pika.BlockingConnection, queue: str) -> float | None:
        """Raise `BrokerMisconfigured` unless the queue will do; return its time to live in seconds, None for none."""
        if self._passive:
            exists(connection, queue)
            log.warning(
                "queue %s: its type, dead-letter exchange and delivery limit are not checked (passive=on)",
                queue,
            )
            return None
        found = declared(connection, queue)
        if found.get("x-queue-type") != "quorum":
            raise BrokerMisconfigured(
                f"expected queue {queue!r} to be a quorum queue, found type {found.get('x-queue-type', 'classic')}; "
                "declare another with x-queue-type=quorum and move the messages there"
            )
        if self._single and found.get("x-single-active-consumer") is not True:
            raise BrokerMisconfigured(
                f"expected queue {queue!r} to have x-single-active-consumer=true because order=single is asked for, "
                "found it without; declare another with it, or leave out order=single"
            )
        if self._dead_letter:
            self._check_dead_letter(connection, queue, found)
        ttl = found.get("x-message-ttl")
        return ttl / 1000 if isinstance(ttl, int) else None

    def _check_dead_letter(
        self, connection: pika.BlockingConnection, queue: str, found: Mapping[str, Any]
    ) -> None:
        exchange, limit = found.get("x-dead-letter-exchange"), found.get("x-delivery-limit")
        if exchange is None:
            raise BrokerMisconfigured(
                f"expected queue {queue!r} to have an x-dead-letter-exchange, found none "
                f"(x-delivery-limit: {'not set' if limit is None else limit}): past its limits the broker drops "
                "messages for good; declare the queue with one, or add dead_letter=off if a policy sets it"
            )
        if exchange:
            if not exchange_exists(connection, str(exchange)):
                raise BrokerMisconfigured(
                    f"expected the dead-letter exchange {exchange!r} of queue {queue!r}, found no exchange of this "
                    "name: dead letters would be dropped; declare it and bind a queue to it"
                )
        else:
            target = found.get("x-dead-letter-routing-key")
            if target is None or target == queue:
                raise BrokerMisconfigured(
                    f"expected dead letters of queue {queue!r} to go elsewhere, found that they return to it and are "
                    "dropped there; set x-dead-letter-routing-key to the name of another queue"
                )
            exists(connection, str(target))
        if isinstance(limit, int) and 0 <= limit < _FEW_DELIVERIES:
            log.warning(
                "queue %s: x-delivery-limit is %s; each restart of a consumer counts as a delivery of all that it "
                "had not acknowledged. Set 20 or more",
                queue,
                limit,
            )


def _choice(options: Options, name: str, default: str, other: str) -> bool:
    value = options.text(name, default)
    if value not in (default, other):
        raise options.bad(f"{default} or {other} for option {name}")
    return value == other


def _delivery(queue: str, method: Basic.Deliver, properties: BasicProperties, body: bytes) -> Delivery:
    table: Mapping[str, Any] = properties.headers or {}
    headers = {name.lower(): _text(value) for name, value in table.items() if value is not None}
    for name, attribute in _PROPERTIES.items():
        value = getattr(properties, attribute)
        if value is not None:
            headers[name] = _text(value)
    tag = int(method.delivery_tag or 0)
    count = table.get("x-delivery-count")
    return Delivery(
        body,
        headers,
        f"{queue}@{properties.message_id}" if properties.message_id else f"{queue}#{tag}",
        key=headers.pop(KEY, None),
        published_at=_instant(table.get("timestamp_in_ms"), properties.timestamp),
        attempt=int(count) + 1 if isinstance(count, int) else 1 + bool(method.redelivered),
        handle=tag,
    )


def _text(value: Any) -> str:
    """A value of a table as text: numbers and truths as in JSON, instants in RFC 3339, bytes in base64."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(int(value))  # pika's own integers end in L
        case bytes():
            return base64.b64encode(value).decode()
        case datetime():
            aware = value if value.tzinfo else value.replace(tzinfo=UTC)
            return aware.isoformat().replace("+00:00", "Z")
        case Decimal() | float():
            return str(value)
        case _:
            return json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {str(name): _plain(part) for name, part in value.items()}
        case list():
            return [_plain(part) for part in value]
        case None | bool() | str() | float():
            return value
        case int():
            return int(value)
        case _:
            return _text(value)


def _instant(milliseconds: Any, seconds: Any) -> datetime | None:
    """When the broker took a message: its own stamp in milliseconds if it sets one, else the producer's."""
    for value, unit in ((milliseconds, 1000), (seconds, 1)):
        if isinstance(value, int):
            stamp = int(value) / (1000 if value >= _MILLISECONDS else unit)
            with contextlib.suppress(ValueError, OverflowError, OSError):
                return datetime.fromtimestamp(stamp, UTC)
    return None


def _words(error: BaseException) -> str:
    return str(error) or repr(error)

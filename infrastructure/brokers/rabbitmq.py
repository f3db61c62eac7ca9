"""RabbitMQ: quorum queues by AMQP 0.9.1."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import SplitResult

from pika.adapters.blocking_connection import BlockingChannel
from pika.spec import Basic, BasicProperties

from .options import Options
from .port import BrokerLost, Delivery
from .rabbitmq_message import delivery
from .rabbitmq_publisher import RabbitPublisher
from .rabbitmq_queue import QueueChecks, exists
from .rabbitmq_server import RabbitServer

_FORM: Final = "amqp://user:password@host:5672/vhost?queue=payments"
_MOST_PREFETCH = 65535
# The broker ends a channel that leaves a delivery unacknowledged for its `consumer_timeout`, by default 30 minutes.
_OLDEST_HELD = 15 * 60.0


class RabbitSubscription:
    """A subscription to one quorum queue, over one connection and one channel.

    Up to `prefetch` messages are taken from the broker before they are acknowledged; those that were not asked for
    yet wait in memory. RabbitMQ has no lease that could be extended: `lease` is None, and the broker's
    `consumer_timeout` (30 minutes by default) bounds how long a message may stay unacknowledged; past it the broker
    ends the channel, every method raises `BrokerLost`, and the messages come again. A lost connection, and also a
    closed subscription, counts as one delivery for every message that was not acknowledged.
    """

    lease: float | None = None
    joined = True

    def __init__(self, server: RabbitServer, queue: str, *, prefetch: int, checks: QueueChecks) -> None:
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
        # The client itself stumbles over a connection that has ended.
        if not self._connection.is_open:
            raise BrokerLost(
                f"expected the connection to {self._server.shown} to stay, found it lost before; subscribe again"
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
        arrived = delivery(self._queue, method, properties, body)
        self._outstanding[arrived.handle] = arrived
        self._received[arrived.handle] = time.monotonic()
        self._arrived.append(arrived)

    def _on_cancel(self, _frame: object) -> None:
        self._cancelled = True

    def _ours(self, deliveries: Sequence[Delivery]) -> Iterator[int]:
        self._require_open()
        # A tag alone may name another message: channels count from 1.
        for one in deliveries:
            if self._outstanding.get(one.handle) is one:
                yield one.handle

    def _return(self, tag: int) -> None:
        self._channel.basic_nack(tag, requeue=True)
        self._forget(tag)

    def _forget(self, tag: int) -> None:
        for kept in (self._outstanding, self._received, self._held):
            kept.pop(tag, None)

    def _errors(self) -> contextlib.AbstractContextManager[None]:
        return self._server.errors(f"queue {self._queue!r}")


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
    single, passive = _choice(options, "order", "any", "single"), _choice(options, "passive", "off", "on")
    if single and passive:
        raise options.bad("order=single without passive=on, which leaves it unchecked,")
    dead_letter = not _choice(options, "dead_letter", "check", "off")
    checks = QueueChecks(single=single, dead_letter=dead_letter, passive=passive)
    server = RabbitServer(parts, options)
    options.finish()
    return RabbitSubscription(server, queue, prefetch=int(prefetch), checks=checks)


def publisher(parts: SplitResult) -> RabbitPublisher:
    """Return a publisher to `?queue=Q`, or to `?exchange=E&routing_key=K` (the key is empty when not given).

    Options of `subscribe` may stand in the URL; `heartbeat` and `ca` mean the same.
    Raises `BadBrokerURL`, `BrokerMisconfigured`, `BrokerLost`.
    """
    options = Options(parts, _FORM)
    queue, exchange = options.text("queue", ""), options.text("exchange", "")
    routing_key = options.text("routing_key", "")
    if bool(queue) == bool(exchange) or (queue and routing_key):
        raise options.bad("either option queue, or exchange with routing_key,")
    for name in ("prefetch", "order", "dead_letter", "passive"):
        options.text(name, "-")
    server = RabbitServer(parts, options)
    options.finish()
    return RabbitPublisher(server, exchange, queue or routing_key)


def _choice(options: Options, name: str, default: str, other: str) -> bool:
    value = options.text(name, default)
    if value not in (default, other):
        raise options.bad(f"{default} or {other} for option {name}")
    return value == other

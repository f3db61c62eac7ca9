"""Publishing to RabbitMQ: many messages on their way at once, each of them confirmed."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import pika
import pika.exceptions
from pika.adapters.utils.connection_workflow import AMQPConnectionWorkflowFailed, AMQPConnectorPhaseErrorBase
from pika.channel import Channel
from pika.spec import Basic, BasicProperties

from .port import BrokerLost, BrokerMisconfigured, Outgoing, Refusals
from .rabbitmq_message import PROPERTIES, properties_of
from .rabbitmq_server import RabbitServer
from .refusing import screened, without_followers

_OPEN_SECONDS: Final = 15.0
_CLOSE_SECONDS: Final = 5.0
_SILENT_SECONDS: Final = 60.0
"""How long the broker may confirm nothing while messages are on their way."""
_SHORT: Final = 255
_ROOM: Final = 512
"""Bytes of a frame that are left to what is not headers."""
_LARGEST: Final = 512 * 2**20
_TOO_LARGE: Final = re.compile(r"message size \d+ (?:is )?larger than (?:configured )?max size (\d+)")


class RabbitPublisher:
    """Publishes to a queue, or to an exchange with one routing key; every message is persistent and confirmed.

    Messages are sent without waiting for the confirmation of those before. Raises `BrokerMisconfigured` when a message
    reaches no queue. A connection that was ended while nothing was published is made again.
    """

    def __init__(self, server: RabbitServer, exchange: str, routing_key: str) -> None:
        self._server = server
        self._exchange = exchange
        self._routing_key = routing_key
        self._what = f"exchange {exchange!r}" if exchange else f"queue {routing_key!r}"
        self._largest = _LARGEST
        self._closed = False
        self._line = _Line(server, self._what)

    def publish(self, messages: Sequence[Outgoing]) -> Refusals:
        """Publish in order; see `Publisher`."""
        if self._closed:
            raise BrokerLost(f"expected an open publisher to {self._server.shown}, found it closed")
        going, refused = screened(messages, self._flaw)
        while going:
            if not self._line.alive:
                self._line.close()
                self._line = _Line(self._server, self._what)
            batch = [(messages[place].body, properties_of(messages[place])) for place in going]
            left, reason = self._line.publish(self._exchange, self._routing_key, batch)
            if reason is None:
                return refused
            going = [going[number] for number in left]
            self._learn(reason)
            refused |= {place: why for place in going if (why := self._flaw(messages[place])) is not None}
            going = without_followers(messages, [place for place in going if place not in refused], refused)
        return refused

    def close(self) -> None:
        """Close the connection; see `Publisher`."""
        self._closed = True
        self._line.close()

    def _learn(self, reason: BaseException) -> None:
        """Take a message that was too large as the limit for all; raise the error of the port for another reason."""
        found = (
            _TOO_LARGE.search(reason.reply_text)
            if isinstance(reason, pika.exceptions.ChannelClosedByBroker)
            else None
        )
        if found is not None and int(found[1]) < self._largest:
            self._largest = int(found[1])
            return
        with self._server.errors(self._what):
            raise reason

    def _flaw(self, message: Outgoing) -> str | None:
        if len(message.body) > self._largest:
            return (
                f"expected a body of up to {self._largest:,} bytes, as the broker takes it, "
                f"found {len(message.body):,}"
            )
        size = 0
        for name, value in message.headers.items():
            short = name if name not in PROPERTIES else value
            if len(short) > _SHORT // 4 and len(short.encode()) > _SHORT:
                return (
                    f"expected names of headers, and headers that become properties of AMQP, of up to {_SHORT} bytes, "
                    f"found a longer one, {name[:80]!r}"
                )
            size += len(name.encode()) + len(value.encode()) + 6
        size += len((message.key or "").encode())
        room = self._line.frame - _ROOM
        if size <= room:
            return None
        return f"expected headers of up to {room:,} bytes in all, as the broker takes them, found {size:,}"


class _Line:
    """A connection with one channel, which a thread of its own attends to: confirmations, and heartbeats while idle."""

    def __init__(self, server: RabbitServer, what: str) -> None:
        self._server = server
        self._what = what
        self._changed = threading.Condition()
        self._ready = False
        self._reason: BaseException | None = None
        self._channel: Channel | None = None
        self._tag = 0
        self._open: dict[int, int] = {}
        self._sent = False
        self._confirmed = 0
        self._returned = False
        self._refused = False
        self._connection: Any = pika.SelectConnection(
            server.parameters,
            on_open_callback=self._opened,
            on_open_error_callback=self._not_opened,
            on_close_callback=self._ended,
        )
        self.frame = 131_072
        self._thread = threading.Thread(target=self._attend, name="onefold-rabbitmq", daemon=True)
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._reason is not None, _OPEN_SECONDS)
            ready, reason = self._ready, self._reason
        if ready:
            return
        if reason is None:
            reason = TimeoutError(f"no answer within {_OPEN_SECONDS:g} s")
        self.close()
        if isinstance(reason, pika.exceptions.ChannelClosedByBroker):
            with server.errors(what):
                raise reason
        with server.connecting():
            raise reason

    @property
    def alive(self) -> bool:
        """Whether messages can be sent."""
        return self._ready and self._reason is None

    def publish(
        self, exchange: str, routing_key: str, batch: Sequence[tuple[bytes, BasicProperties]]
    ) -> tuple[list[int], BaseException | None]:
        """Send messages, and wait for the confirmations.

        Returns the numbers of those that are not confirmed, and what ended the line before they were. Raises
        `BrokerLost` for a message that the broker does not take now, `BrokerMisconfigured` for one without a way.
        """
        with self._changed:
            self._open.clear()
            self._sent = self._returned = self._refused = False
            self._confirmed = 0

        def send() -> None:
            channel = self._channel
            assert channel is not None
            for number, (body, properties) in enumerate(batch):
                if not channel.is_open:
                    return
                self._tag += 1
                self._open[self._tag] = number
                channel.basic_publish(exchange, routing_key, body, properties, mandatory=True)
            self._sent = True

        self._soon(send)
        confirmed = -1
        with self._changed:
            while (
                self._reason is None and not (self._sent and not self._open) and confirmed < self._confirmed
            ):
                confirmed = self._confirmed
                self._changed.wait_for(self._settled, _SILENT_SECONDS)
            settled, reason = self._settled(), self._reason
            # What was not sent any more is not confirmed either.
            left = [*self._open.values(), *range(self._confirmed + len(self._open), len(batch))]
        if reason is not None and not (self._sent and not left):
            return sorted(left), reason
        if not settled:
            self.close()
            raise BrokerLost(
                f"expected {self._what} to confirm messages, found none within {_SILENT_SECONDS:g} s; publish again"
            )
        if self._returned:
            raise BrokerMisconfigured(
                f"expected {self._what} with routing key {routing_key!r} to reach a queue, found that a message "
                "was returned as unroutable; declare the queue or bind one to the exchange"
            )
        if self._refused:
            raise BrokerLost(
                f"expected {self._what} to take a message, found it refused by the broker: the queue is full "
                "or cannot write; publish again later"
            )
        return [], None

    def close(self) -> None:
        """End the connection and the thread."""
        if self._thread.is_alive():
            self._soon(self._finish)
            self._thread.join(_CLOSE_SECONDS)
            if self._thread.is_alive():
                self._soon(self._connection.ioloop.stop)
                self._thread.join(1)

    def _settled(self) -> bool:
        return self._reason is not None or (self._sent and not self._open)

    def _soon(self, what: Callable[[], None]) -> None:
        with contextlib.suppress(Exception):
            self._connection.ioloop.add_callback_threadsafe(what)

    def _attend(self) -> None:
        try:
            self._connection.ioloop.start()
        except Exception as error:  # noqa: BLE001 - told to who waits
            self._fail(error)
        finally:
            self._fail(pika.exceptions.ConnectionClosed(0, "the connection was closed"))
            with contextlib.suppress(Exception):
                self._connection.ioloop.close()

    def _finish(self) -> None:
        if self._connection.is_open:
            self._connection.close()
        elif not self._connection.is_closing:
            self._connection.ioloop.stop()

    def _fail(self, reason: BaseException) -> None:
        with self._changed:
            self._reason = self._reason or reason
            self._changed.notify_all()

    # -- called by the client, in the line's thread

    def _opened(self, connection: Any) -> None:
        self.frame = int(connection.params.frame_max or self.frame)
        connection.channel(on_open_callback=self._channel_opened)

    def _channel_opened(self, channel: Channel) -> None:
        self._channel = channel
        channel.add_on_close_callback(self._channel_closed)
        channel.add_on_return_callback(self._came_back)
        channel.confirm_delivery(self._heard, callback=self._confirming)

    def _confirming(self, _: object) -> None:
        with self._changed:
            self._ready = True
            self._changed.notify_all()

    def _came_back(self, *_: object) -> None:
        self._returned = True

    def _heard(self, frame: Any) -> None:
        method = frame.method
        refused = isinstance(method, Basic.Nack)
        with self._changed:
            if method.multiple:
                tags = [tag for tag in self._open if tag <= method.delivery_tag]
            else:
                tags = [method.delivery_tag]
            for tag in tags:
                if self._open.pop(tag, None) is not None:
                    self._confirmed += 1
            self._refused |= refused
            self._changed.notify_all()

    def _channel_closed(self, _: object, reason: BaseException) -> None:
        self._fail(reason)
        self._finish()

    def _not_opened(self, _: object, error: BaseException | str) -> None:
        if isinstance(error, pika.exceptions.AMQPConnectionError) and error.args:
            inner: object = error.args[0]
            error = inner if isinstance(inner, BaseException) else error
        if isinstance(error, AMQPConnectionWorkflowFailed) and error.exceptions:
            error = error.exceptions[-1]
        if isinstance(error, AMQPConnectorPhaseErrorBase):
            error = error.exception
        self._fail(error if isinstance(error, BaseException) else OSError(error))
        self._connection.ioloop.stop()

    def _ended(self, _: object, reason: BaseException) -> None:
        self._fail(reason)
        self._connection.ioloop.stop()

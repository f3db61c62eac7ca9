"""What a queue of RabbitMQ was declared with, asked by declaring it again until the broker has nothing to object to."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pika
import pika.exceptions

from .port import BrokerLost, BrokerMisconfigured

log = logging.getLogger("onefold.brokers.rabbitmq")

_OBJECTION = re.compile(
    r"inequivalent arg '(?P<name>[^']+)' for .*?"
    r" but current is (?:none|(?:the value )?'(?P<value>.*?)'(?: of type '(?P<type>\w+)')?)$",
    re.DOTALL,
)
_TRIES = 40
_FEW_DELIVERIES = 10
_REFUSED, _NOT_FOUND, _LOCKED, _PRECONDITION = 403, 404, 405, 406


class QueueChecks:
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


def declared(connection: pika.BlockingConnection, queue: str) -> Mapping[str, Any]:
    """Return the arguments (`x-…`) that a durable queue was declared with; policies are not among them.

    AMQP has no question for them, but refuses a declaration that differs, and says what from. Every try is on a
    channel of its own, which the refusal ends. Nothing is made or changed. Raises `BrokerMisconfigured` when the queue
    is missing, not durable, exclusive to another, or may not be declared by this user.
    """
    exists(connection, queue)
    arguments: dict[str, Any] = {"x-queue-type": "quorum"}
    with _quiet():
        for _ in range(_TRIES):
            channel = connection.channel()
            try:
                channel.queue_declare(queue, durable=True, arguments=arguments)
            except pika.exceptions.ChannelClosedByBroker as error:
                _learn(arguments, queue, error)
            else:
                channel.close()
                return arguments
    raise BrokerMisconfigured(
        f"expected to learn what queue {queue!r} was declared with, found the broker still objecting to {arguments}; "
        "add passive=on to the URL to leave the check out"
    )


def exists(connection: pika.BlockingConnection, queue: str) -> int:
    """Return how many messages wait in the queue; raises `BrokerMisconfigured` when there is none of this name."""
    channel = connection.channel()
    try:
        found = channel.queue_declare(queue, passive=True)
    except pika.exceptions.ChannelClosedByBroker as error:
        if error.reply_code == _NOT_FOUND and "home node" not in error.reply_text:
            raise BrokerMisconfigured(
                f"expected queue {queue!r}, found none of this name: {error.reply_text}; declare it durable with "
                "x-queue-type=quorum, x-dead-letter-exchange and x-delivery-limit, or name another in the URL"
            ) from error
        raise refused(f"queue {queue!r}", error) from error
    channel.close()
    return int(found.method.message_count)


def exchange_exists(connection: pika.BlockingConnection, exchange: str) -> bool:
    """Whether there is an exchange of this name."""
    channel = connection.channel()
    try:
        channel.exchange_declare(exchange, passive=True)
    except pika.exceptions.ChannelClosedByBroker as error:
        if error.reply_code == _NOT_FOUND:
            return False
        raise refused(f"exchange {exchange!r}", error) from error
    channel.close()
    return True


def refused(what: str, error: pika.exceptions.ChannelClosedByBroker) -> BrokerMisconfigured | BrokerLost:
    """Return the error for a channel that the broker ended: what will not change by itself is misconfigured."""
    if error.reply_code in (_REFUSED, _NOT_FOUND, _LOCKED) and "home node" not in error.reply_text:
        return BrokerMisconfigured(
            f"expected to use {what}, found it refused: {error.reply_text}; "
            "check the name and the permissions of the user"
        )
    return BrokerLost(
        f"expected an open channel for {what}, found it ended by the broker: {error.reply_text}; subscribe again"
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the client from warning of objections that are asked for."""
    client = logging.getLogger("pika.channel")

    def other(record: logging.LogRecord) -> bool:
        return "inequivalent arg" not in record.getMessage()

    client.addFilter(other)
    try:
        yield
    finally:
        client.removeFilter(other)


def _learn(arguments: dict[str, Any], queue: str, error: pika.exceptions.ChannelClosedByBroker) -> None:
    if error.reply_code == _REFUSED:
        raise BrokerMisconfigured(
            f"expected to check what queue {queue!r} was declared with, found that this user may not declare it: "
            f"{error.reply_text}; grant it configure on the queue, read on it and write on its dead-letter exchange, "
            "or add passive=on to the URL to leave the check out"
        ) from error
    found = _OBJECTION.search(error.reply_text)
    if error.reply_code != _PRECONDITION or found is None:
        raise refused(f"queue {queue!r}", error) from error
    name = found["name"]
    if not name.startswith("x-"):
        raise BrokerMisconfigured(
            f"expected queue {queue!r} to be durable, shared and kept, found another: {error.reply_text}; "
            "declare a durable queue of another name"
        ) from error
    value, kind = found["value"], found["type"]
    if value is None:
        del arguments[name]
    elif kind == "bool":
        arguments[name] = value == "true"
    elif kind != "longstr" and value.lstrip("-").isdigit():
        arguments[name] = int(value)
    else:
        arguments[name] = value

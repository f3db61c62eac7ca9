"""Publishing to Kafka."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from ...domain.errors import OnefoldError
from .kafka_client import WRONG, made, require_topics, text_of
from .port import BrokerLost, BrokerMisconfigured, Outgoing

PUBLISH_SECONDS: Final = 30.0
"""How long a message may take to be published."""


class KafkaPublisher:
    """An idempotent producer for one topic; a message counts when all replicas that are in sync have it."""

    def __init__(self, servers: str, topic: str, settings: dict[str, str]) -> None:
        self._place = f"kafka://{servers}/{topic}"
        self._topic = topic
        self._failure: OnefoldError | None = None
        self._open = True
        self._producer: Producer = made(
            Producer,
            {
                "message.timeout.ms": int(PUBLISH_SECONDS * 1000),
                "allow.auto.create.topics": False,
                **settings,
                "bootstrap.servers": servers,
                "acks": "all",
                "enable.idempotence": True,
                "error_cb": self._note,
            },
        )
        require_topics(self._producer, servers, [topic], self)

    @property
    def failure(self) -> OnefoldError | None:
        """What ended the publisher, None while it works."""
        return self._failure

    def publish(self, messages: Sequence[Outgoing]) -> None:
        """Publish in order, and wait for the report of every message; see `Publisher`.

        Raises `BrokerMisconfigured` for a message that is too large, or where publishing is not allowed.
        """
        if not self._open:
            raise BrokerLost(f"expected an open publisher to {self._place}, found it closed; make a new one")
        if self._failure is not None:
            raise self._failure
        until = time.monotonic() + PUBLISH_SECONDS + 5
        try:
            for message in messages:
                self._produce(message, until)
            left = self._producer.flush(max(1.0, until - time.monotonic()))
        except (KafkaException, BufferError, RuntimeError) as error:
            self._fail(error.args[0] if error.args else error)
        else:
            if left:
                self._fail("no report of a message in time")
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Drop the connection. What was published was waited for."""
        if self._open:
            self._open = False
            self._producer.purge()
            self._producer.flush(1)

    def _produce(self, message: Outgoing, until: float) -> None:
        headers: list[tuple[str, str | bytes | None]] = [
            (name, value.encode()) for name, value in message.headers.items()
        ]
        key = None if message.key is None else message.key.encode()
        while True:
            try:
                self._producer.produce(
                    self._topic, message.body, key, headers=headers, on_delivery=self._report
                )
                return
            except BufferError:
                if time.monotonic() > until:
                    raise
                self._producer.poll(0.1)

    def _report(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._fail(error)

    def _note(self, error: KafkaError) -> None:
        if error.code() in WRONG or error.fatal():
            self._fail(error)

    def _fail(self, error: object) -> None:
        if self._failure is not None:
            return
        found = f"expected {self._place} to take messages, found: {text_of(error)}; "
        if isinstance(error, KafkaError) and error.code() in WRONG:
            self._failure = BrokerMisconfigured(
                f"{found}check the topic, its access rights and its largest size of messages"
            )
        else:
            self._failure = BrokerLost(f"{found}publish them again by a new publisher")

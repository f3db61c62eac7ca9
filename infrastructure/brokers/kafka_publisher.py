"""Publishing to Kafka."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource

from ...domain.errors import OnefoldError
from .kafka_client import CLIENT_LOG, WRONG, made, require_topics, text_of
from .port import BrokerLost, BrokerMisconfigured, Outgoing, Refusals
from .refusing import without_followers

PUBLISH_SECONDS: Final = 30.0
"""How long messages may take to be published."""

REFUSING: Final = frozenset(
    {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_RECORD}
)
"""Codes of what is wrong with a message, or with one of those that were sent in a batch with it."""

_ASK_SECONDS: Final = 3.0
_FRAME: Final = 100
"""Bytes of a batch around its one message, at least."""
_LEAST: Final = 1_000


class KafkaPublisher:
    """An idempotent producer for one topic; a message counts when all replicas that are in sync have it.

    How large a message may be is what the topic says, where it can be asked, and `message.max.bytes` in the URL
    otherwise (1,000,000).
    """

    def __init__(self, servers: str, topic: str, settings: dict[str, str]) -> None:
        self._servers = servers
        self._place = f"kafka://{servers}/{topic}"
        self._topic = topic
        self._settings = dict(settings)
        # Messages of librdkafka that time out by themselves leave a gap before those behind them.
        given = [self._settings.pop(name, None) for name in ("message.timeout.ms", "delivery.timeout.ms")]
        self._seconds = next((int(each) / 1000 for each in given if each), PUBLISH_SECONDS)
        self._failure: OnefoldError | None = None
        self._reports: dict[int, KafkaError | None] = {}
        self._open = True
        self._producer = self._made()
        require_topics(self._producer, servers, [topic], self)
        if "message.max.bytes" not in settings and (limit := self._limit()) is not None:
            self._settings["message.max.bytes"] = str(limit)
            self._renew()

    @property
    def failure(self) -> OnefoldError | None:
        """What ended the publisher, None while it works."""
        return self._failure

    def publish(self, messages: Sequence[Outgoing]) -> Refusals:
        """Publish in order, and wait for the report of every message; see `Publisher`.

        Raises `BrokerMisconfigured` where publishing is not allowed.
        """
        if not self._open:
            raise BrokerLost(f"expected an open publisher to {self._place}, found it closed; make a new one")
        self._require_sound()
        refused: dict[int, str] = {}
        self._send(messages, range(len(messages)), refused)
        if any(error is not None and error.code() in REFUSING for error in self._reports.values()):
            self._one_by_one(messages, refused)
        self._require_sound()
        return refused

    def close(self) -> None:
        """Drop the connection. What was published was waited for."""
        if self._open:
            self._open = False
            self._producer.purge()
            self._producer.flush(1)

    def _require_sound(self) -> None:
        if self._failure is not None:
            self._producer.purge()
            raise self._failure

    def _send(self, messages: Sequence[Outgoing], places: Sequence[int], refused: dict[int, str]) -> None:
        """Send messages and wait for the reports; what is too large is refused, and what follows it not sent."""
        self._reports.clear()
        stopped = {messages[place].key for place in refused}
        until = time.monotonic() + self._seconds
        try:
            for place in places:
                message = messages[place]
                if message.key is not None and message.key in stopped:
                    continue
                try:
                    self._produce(place, message, until)
                except KafkaException as error:
                    if error.args[0].code() not in REFUSING:
                        raise
                    refused[place] = _reason(error.args[0])
                    stopped.add(message.key)
            left = self._producer.flush(max(1.0, until - time.monotonic()))
        except (KafkaException, BufferError, RuntimeError) as error:
            self._producer.purge()
            self._fail(error.args[0] if error.args else error)
        else:
            if left:
                # Nothing of it may go out after what is published next.
                self._producer.purge()
                self._fail("no report of a message in time")
        for report in self._reports.values():
            if report is not None and report.code() not in REFUSING:
                self._fail(report)

    def _one_by_one(self, messages: Sequence[Outgoing], refused: dict[int, str]) -> None:
        """Find out which messages of a refused batch are to blame, and publish the others.

        The producer sends nothing more once a batch was refused, so that what follows has not gone out.
        """
        taken = {place for place, error in self._reports.items() if error is None}
        left = [place for place in range(len(messages)) if place not in taken and place not in refused]
        self._renew()
        for place in left:
            if not without_followers(messages, [place], refused):
                continue
            self._send(messages, [place], refused)
            error = self._reports.get(place)
            if error is not None and error.code() in REFUSING:
                refused[place] = _reason(error)
                self._renew()
            elif self._failure is not None:
                return

    def _produce(self, place: int, message: Outgoing, until: float) -> None:
        headers: list[tuple[str, str | bytes | None]] = [
            (name, value.encode()) for name, value in message.headers.items()
        ]
        key = None if message.key is None else message.key.encode()
        report = partial(self._report, place)
        while True:
            try:
                self._producer.produce(self._topic, message.body, key, headers=headers, on_delivery=report)
                return
            except BufferError:
                if time.monotonic() > until:
                    raise
                self._producer.poll(0.1)

    def _made(self) -> Producer:
        producer: Producer = made(
            Producer,
            {
                "allow.auto.create.topics": False,
                **self._settings,
                "message.timeout.ms": 0,
                "bootstrap.servers": self._servers,
                "acks": "all",
                "enable.idempotence": True,
                "enable.gapless.guarantee": True,
                "error_cb": self._note,
            },
        )
        return producer

    def _renew(self) -> None:
        old, self._producer = self._producer, self._made()
        old.purge()
        old.flush(1)
        self._failure = None

    def _limit(self) -> int | None:
        """Return how large a message may be as the topic is set, None where it does not say."""
        mine: Mapping[str, Any] = {
            name: value
            for name, value in self._settings.items()
            if name.startswith(("sasl.", "ssl.", "security.", "client.", "socket.", "broker."))
        }
        with contextlib.suppress(KafkaException, ValueError, TypeError):
            admin = AdminClient({**mine, "bootstrap.servers": self._servers}, logger=CLIENT_LOG)
            resource = ConfigResource("topic", self._topic)
            asked = admin.describe_configs([resource], request_timeout=_ASK_SECONDS)
            found = asked[resource].result(_ASK_SECONDS + 1).get("max.message.bytes")
            if found is not None and found.value:
                return max(_LEAST, int(found.value) - _FRAME)
        return None

    def _report(self, place: int, error: KafkaError | None, message: Message) -> None:
        self._reports[place] = error

    def _note(self, error: KafkaError) -> None:
        if error.code() in WRONG or error.fatal():
            self._fail(error)

    def _fail(self, error: object) -> None:
        if self._failure is not None:
            return
        found = f"expected {self._place} to take messages, found: {text_of(error)}; "
        if isinstance(error, KafkaError) and error.code() in WRONG:
            self._failure = BrokerMisconfigured(f"{found}check the topic and its access rights")
        else:
            self._failure = BrokerLost(f"{found}publish them again by a new publisher")


def _reason(error: KafkaError) -> str:
    return f"expected a message that Kafka takes, found: {error.str()}"

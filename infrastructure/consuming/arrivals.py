"""Arrivals: deliveries read, and made ready to be decided."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import psycopg

from ...domain.errors import OnefoldError
from ...domain.event import Event, placed
from ...domain.instant import microseconds
from ...projections.consumer import Consumer, MessageRefused
from ...projections.fingerprint import (
    digest_of,
    digests_of,
    fingerprint,
    fingerprints,
    text_of,
    time_ordered,
)
from ...projections.guards import Outcome
from ...projections.inbox import Item
from ...projections.message import Message
from ..brokers.envelope import STRUCTURED, read, read_plain
from ..brokers.port import Delivery

_UNIX_2000 = 946_684_800_000
_set = object.__setattr__
_TOGETHER = 8

NO_MESSAGE = Message("", "", "")
"""Stands for the message of a delivery that cannot be read."""


class Arrival(Item, eq=False, gc=False, kw_only=True):
    """A delivery on its way through the consumer: its message made ready, and what has become of it.

    `given` is its key as it was found. `aged` is when the message came to be, in microseconds since 2000-01-01 UTC,
    None if it was promised to be young. `category` is that of its sequence where it is folded, whose sequence is the
    key alone. One that cannot be read or has no key has an empty key, and `problem` says why.
    """

    delivery: Delivery
    given: Any = None
    aged: int | None = None
    category: str | None = None
    problem: str = ""
    outcome: Outcome | None = None

    @property
    def key_text(self) -> str:
        """The key as text."""
        return "" if self.given is None else text_of(self.given)

    @property
    def identity(self) -> bytes:
        """16 bytes that tell this dead letter from another; the same for each delivery of one message."""
        digest = blake2b(digest_size=16)
        if self.key:
            digest.update(b"key")
            digest.update(self.key)
            digest.update(self.fingerprint)
        else:
            delivery = self.delivery
            # Brokers that number what they hold name the same place each time; the others are told by the content.
            digest.update(delivery.place.encode("utf-8", "backslashreplace"))
            digest.update(delivery.body)
            digest.update(json.dumps(dict(delivery.headers), sort_keys=True).encode())
        return digest.digest()


class Reader:
    """Reads the deliveries of one consumer."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._timed = consumer.ledger == "time"
        self._digest = time_ordered if self._timed else digest_of
        self._key_of = consumer.key_of
        self._decoders: dict[tuple[str, Any], Callable[[Any], Event] | None] = {}

    def arrivals(self, deliveries: Sequence[Delivery]) -> list[Arrival]:
        """Return what `arrival` returns of each delivery; those that are plain and in order take half the time."""
        if len(deliveries) >= _TOGETHER:
            try:
                found = self._together(deliveries)
            except (Exception, SystemExit):  # noqa: BLE001 - whatever it is, it is found out of which message
                found = None
            if found is not None:
                return found
        return [self.arrival(delivery) for delivery in deliveries]

    def _together(self, deliveries: Sequence[Delivery]) -> list[Arrival] | None:
        """Return the arrivals, None when something about one of them needs a closer look."""
        consumer, fold = self._consumer, self._consumer.fold
        if not {STRUCTURED}.issuperset([each.headers.get("content-type") for each in deliveries]):
            return None
        messages = read_plain([each.body for each in deliveries])
        if messages is None:
            return None
        given = [*map(self._key_of, messages)]
        keys = digests_of(given, timed=self._timed)
        sequences, versions = consumer.places_of(messages)
        streams = [
            sequence or message.subject or "" for sequence, message in zip(sequences, messages, strict=True)
        ]
        categories: list[str | None] = [None] * len(messages)
        if fold is not None:
            rows = [_row_of(stream, fold.name) for stream in streams]
            categories = [category for category, _ in rows]
            sequences = [key for _, key in rows]
            streams = [f"{category}/{key}" for category, key in rows]
        times = [None if message.time is None else microseconds(message.time) for message in messages]
        if self._timed:
            ages: list[int | None] = [(int.from_bytes(key[:6], "big") - _UNIX_2000) * 1000 for key in keys]
        else:
            ages = [self._age(each, message) for each, message in zip(deliveries, messages, strict=True)]
        events = messages if consumer.model is Message else self._events(messages, streams, versions, times)
        marks = fingerprints(messages)
        columns = (keys, marks, messages, events, sequences, versions, deliveries, given, ages, categories)
        return [
            Arrival(
                key,
                mark,
                message,
                event,
                sequence,
                version,
                delivery=delivery,
                given=each,
                aged=aged,
                category=category,
            )
            for key, mark, message, event, sequence, version, delivery, each, aged, category in zip(
                *columns, strict=True
            )
        ]

    def _events(
        self,
        messages: Sequence[Message],
        streams: Sequence[str],
        versions: Sequence[int | None],
        times: Sequence[int | None],
    ) -> list[Event | None]:
        """Return the events of messages, None for one that is passed over; raises what is wrong with one of them."""
        decoders, found = self._decoders, list[Event | None]()
        for message, stream, version, at in zip(messages, streams, versions, times, strict=True):
            decoder = decoders.get((message.type, message.extensions.get("schemaversion")))
            data = message.data
            event = decoder(data) if decoder is not None and type(data) is dict else self._decoded(message)
            if event is not None:
                _set(event, "_meta", placed(stream, version or 0, at))
            found.append(event)
        return found

    def arrival(self, delivery: Delivery) -> Arrival:
        """Return the delivery with all that its decision needs; what is wrong with it is said in the result."""
        message = NO_MESSAGE
        try:
            message = read(delivery)
            given = self._key_of(message)
            key = self._digest(given)
            found = Arrival(key, fingerprint(message), message, delivery=delivery, given=given)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - nothing that is wrong with one stops the others
            return Arrival(b"", b"", message, delivery=delivery, problem=reason(error))
        if self._timed:
            found.aged = (int.from_bytes(key[:6], "big") - _UNIX_2000) * 1000
        else:
            try:
                found.aged = self._age(delivery, message)
            except (Exception, SystemExit) as error:  # noqa: BLE001
                found.ruled = (Outcome.REJECTED, reason(error))
        # Also of what is refused: others wait behind it.
        try:
            self._place(message, found)
        except (Exception, SystemExit) as error:  # noqa: BLE001
            found.ruled = found.ruled or (Outcome.REJECTED, reason(error))
        return found

    def _place(self, message: Message, item: Arrival) -> None:
        consumer = self._consumer
        item.sequence = sequence = consumer.sequence_of(message)
        stream = sequence or message.subject or ""
        fold = consumer.fold
        if fold is not None:
            # The row's key is the part after the slash, and it is what must be locked.
            category, item.sequence = _row_of(stream, fold.name)
            item.category, stream = category, f"{category}/{item.sequence}"
        item.version = version = consumer.version_of(message)
        if consumer.model is Message:
            item.event = message
            return
        decoder = self._decoders.get((message.type, message.extensions.get("schemaversion")))
        data, at = message.data, message.time
        event = decoder(data) if decoder is not None and type(data) is dict else self._decoded(message)
        if event is not None:
            occurred = None if at is None else microseconds(at)
            _set(event, "_meta", placed(stream, version or 0, occurred))
            item.event = event

    def _decoded(self, message: Message) -> Event | None:
        """Return the event of a message, None of one that is passed over."""
        consumer = self._consumer
        event_class = consumer.event_class_of(message)
        if event_class is None:
            if consumer.unknown == "pass":
                return None
            expected = ", ".join(sorted(kind.event_name for kind in consumer.takes))
            raise MessageRefused(
                f"expected a message of type {expected}, found type {message.type!r}; "
                'declare unknown="pass" where such types are none of this consumer\'s business'
            )
        given = message.extensions.get("schemaversion")
        version = _schema_version(given, message.type, event_class)
        decoder = self._decoders[message.type, given] = consumer.registry.reader(message.type, version)
        if decoder is None:
            raise MessageRefused(
                f"no event class is registered for type {message.type!r} schema version {given}; "
                "register the class, or an upcast from this schema version"
            )
        data = message.data
        if type(data) is not dict:
            raise MessageRefused(f"expected a JSON object as data, found {type(data).__name__}")
        return decoder(data)

    def _age(self, delivery: Delivery, message: Message) -> int | None:
        kind = self._consumer.age
        if kind == "received":
            return None
        told, published = (message.time if kind == "time" else None), delivery.published_at
        # The earlier of the two: a producer's clock that is ahead must not make a message younger than it is.
        at = min(told, published) if told and published else told or published
        if at is None:
            raise MessageRefused(
                "expected a time, by which its age is known: the ledger forgets keys, and an old message must not be "
                "taken for a new one. Found neither the attribute `time` nor a time of the broker; let the producer "
                'set one, or declare age="received" if the broker never delivers what is older than the ledger'
            )
        return microseconds(at)


def _row_of(stream: str, name: str) -> tuple[str, str]:
    """Return category and key of what is folded: the parts before and after the slash, `name` and all without one."""
    category, slash, key = stream.partition("/")
    if not slash:
        category, key = name, stream
    if not key:
        raise MessageRefused(f"expected a sequence with a key after the slash, found {stream!r}")
    return category, key


def _schema_version(given: Any, name: str, event_class: type[Event]) -> int:
    if given is None:
        return event_class.schema_version if name == event_class.event_name else 1
    if isinstance(given, bool) or not str(given).isdecimal() or len(str(given)) > 9:
        raise MessageRefused(f"expected a whole number as schemaversion, found {given!r}")
    return int(given)


_VALUES = re.compile(r'".*"', re.DOTALL)


def _primary(error: psycopg.Error) -> str:
    text = error.diag.message_primary
    if text is None:
        return str(error)
    # Of data exceptions what is quoted are data; elsewhere it is names.
    return _VALUES.sub('"..."', text) if (error.sqlstate or "").startswith("22") else text


def reason(error: BaseException) -> str:
    """Return what an exception says, in one line that any database can keep.

    Of what the database says it is what has failed, and not the values that it has failed with.
    """
    try:
        text = _primary(error) if isinstance(error, psycopg.Error) else str(error)
    except Exception:  # noqa: BLE001 - the exception is the user's, and so is what it says of itself
        text = "(it cannot be shown)"
    if not isinstance(error, OnefoldError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    line = " ".join(text[:2_000].split()).replace("\x00", "\\x00")
    return line.encode("utf-8", "backslashreplace").decode()

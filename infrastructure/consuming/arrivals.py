"""Arrivals: deliveries read, and made ready to be decided."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import psycopg

from ...domain.errors import OnefoldError
from ...domain.event import Event, placed
from ...domain.instant import microseconds
from ...projections.consumer import Consumer, MessageRefused
from ...projections.fingerprint import digest_of, fingerprint, text_of, time_ordered
from ...projections.guards import Outcome
from ...projections.inbox import Item
from ...projections.message import Message
from ..brokers.envelope import read
from ..brokers.port import Delivery

_UNIX_2000 = 946_684_800_000
_set = object.__setattr__


@dataclass(slots=True, eq=False)
class Arrival:
    """A delivery on its way through the consumer.

    `aged` is when the message came to be, in microseconds since 2000-01-01 UTC, None if it was promised to be young.
    `category` is that of its sequence where it is folded, whose sequence is the key alone.
    `item` is None where the delivery cannot be read or has no key; then `problem` says why.
    """

    delivery: Delivery
    item: Item | None = None
    key_text: str = ""
    aged: int | None = None
    category: str | None = None
    problem: str = ""
    message: Message | None = None
    generation: int = 0
    outcome: Outcome | None = None

    @property
    def identity(self) -> bytes:
        """16 bytes that tell this dead letter from another; the same for each delivery of one message."""
        digest = blake2b(digest_size=16)
        if self.item is not None:
            digest.update(b"key")
            digest.update(self.item.key)
            digest.update(self.item.fingerprint)
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
        self._decoders: dict[tuple[str, Any], Callable[[Any], Event] | None] = {}

    def arrival(self, delivery: Delivery) -> Arrival:
        """Return the delivery with all that its decision needs; what is wrong with it is said in the result."""
        found = Arrival(delivery)
        try:
            message = found.message = read(delivery)
            self._identify(found, message)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - nothing that is wrong with one stops the others
            found.problem = reason(error)
            return found
        item = found.item
        assert item is not None
        try:
            found.aged = self._age(found, message, item)
        except (Exception, SystemExit) as error:  # noqa: BLE001
            item.ruled = (Outcome.REJECTED, reason(error))
        # Also of what is refused: others wait behind it.
        try:
            self._place(message, item)
        except (Exception, SystemExit) as error:  # noqa: BLE001
            item.ruled = item.ruled or (Outcome.REJECTED, reason(error))
        return found

    def _identify(self, found: Arrival, message: Message) -> None:
        consumer = self._consumer
        key = consumer.key_of(message)
        if self._timed:
            digest = time_ordered(key)
            found.key_text = str(key)
        else:
            digest = digest_of(key)
            found.key_text = text_of(key)
        found.item = Item(digest, fingerprint(message), message, arrival=found)

    def _place(self, message: Message, item: Item) -> None:
        consumer = self._consumer
        item.sequence = consumer.sequence_of(message)
        stream = item.sequence or message.subject or ""
        if consumer.fold is not None:
            # The row's key is the part after the slash, and it is what must be locked.
            category, slash, key = stream.partition("/")
            if not slash:
                category, key = consumer.fold.name, stream
            if not key:
                raise MessageRefused(f"expected a sequence with a key after the slash, found {stream!r}")
            item.sequence, stream = key, f"{category}/{key}"
            item.arrival.category = category
        if consumer.model is Message:
            item.version = consumer.version_of(message)
            item.event = message
            return
        event_class = consumer.event_class_of(message)
        item.version = consumer.version_of(message)
        if event_class is None:
            if consumer.unknown == "pass":
                return
            expected = ", ".join(sorted(kind.event_name for kind in consumer.takes))
            raise MessageRefused(
                f"expected a message of type {expected}, found type {message.type!r}; "
                'declare unknown="pass" where such types are none of this consumer\'s business'
            )
        event = self._decoded(message, event_class)
        occurred = None if message.time is None else microseconds(message.time)
        _set(event, "_meta", placed(stream, item.version or 0, occurred))
        item.event = event

    def _decoded(self, message: Message, event_class: type[Event]) -> Event:
        given = message.extensions.get("schemaversion")
        place = (message.type, given)
        if place not in self._decoders:
            version = _schema_version(given, message.type, event_class)
            self._decoders[place] = self._consumer.registry.reader(message.type, version)
        decoder = self._decoders[place]
        if decoder is None:
            raise MessageRefused(
                f"no event class is registered for type {message.type!r} schema version {given}; "
                "register the class, or an upcast from this schema version"
            )
        data = message.data
        if type(data) is not dict:
            raise MessageRefused(f"expected a JSON object as data, found {type(data).__name__}")
        return decoder(data)

    def _age(self, found: Arrival, message: Message, item: Item) -> int | None:
        if self._timed:
            return (int.from_bytes(item.key[:6], "big") - _UNIX_2000) * 1000
        kind = self._consumer.age
        if kind == "received":
            return None
        told, published = (message.time if kind == "time" else None), found.delivery.published_at
        # The earlier of the two: a producer's clock that is ahead must not make a message younger than it is.
        at = min(told, published) if told and published else told or published
        if at is None:
            raise MessageRefused(
                "expected a time, by which its age is known: the ledger forgets keys, and an old message must not be "
                "taken for a new one. Found neither the attribute `time` nor a time of the broker; let the producer "
                'set one, or declare age="received" if the broker never delivers what is older than the ledger'
            )
        return microseconds(at)


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

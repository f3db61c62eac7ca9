"""Publications: which events of an application go out, through which channel, and as what message."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Literal, NamedTuple, TypedDict, Unpack, cast

from ..domain.aggregate import Aggregate
from ..domain.errors import DeclarationError
from ..domain.event import Event, encode
from .fingerprint import shown
from .message import Message
from .projection import NAME
from .relaying import LONGEST_KEY, can_order

CARRIED = ("traceparent", "tracestate")
"""Metadata of an event that goes on as extensions of the same name: W3C Trace Context."""


class Posting(NamedTuple):
    """A message on its way out: its channel, what its order is kept by, and whether it is numbered there."""

    channel: str
    message: Message
    key: str | None = None
    numbered: bool = False


class PublicationOptions(TypedDict, total=False):
    """What can be said of a publication beside its events and its channel.

    `key` finds what the order is kept by (the stream). `data` makes the message's data of an event, any JSON value,
    bytes or None for no message at all (the event's own data). `type` and `source` are attributes of the message (the
    event's name, and `/` with its category).

    `sequence` says what the extension of that name counts: "version", that of the event in its stream, which has holes
    where not all of its events go out; or "channel", the messages of the key in the channel, from 1 without a hole
    ("version"). `via` says where the relay reads: "outbox", to which the message is written in the transaction of the
    event; or "log", where the message is made of the stored event when it is published ("outbox").
    """

    key: Callable[[Any], str]
    data: Callable[[Any], Any]
    type: str
    source: str
    sequence: Literal["version", "channel"]
    via: Literal["outbox", "log"]


class Publication:
    """Events that go out through one channel; made by `publish`."""

    def __init__(
        self,
        events: tuple[type[Event | Aggregate], ...],
        channel: str,
        **options: Unpack[PublicationOptions],
    ) -> None:
        if not NAME.fullmatch(channel):
            raise DeclarationError(
                f"channel {channel!r} must be lower-case letters, digits and underscores, at most 41"
            )
        if not events:
            raise DeclarationError(
                f"publication to {channel}: expected event or aggregate classes, found none"
            )
        for each in cast("tuple[object, ...]", events):
            if not (isinstance(each, type) and issubclass(each, Event | Aggregate)):
                raise DeclarationError(
                    f"publication to {channel}: expected an event or aggregate class, found {each!r}"
                )
        self.events = events
        self.channel = channel
        self.via: Literal["outbox", "log"] = options.get("via", "outbox")
        self.sequence: Literal["version", "channel"] = options.get("sequence", "version")
        if self.via == "log" and self.sequence == "channel":
            raise DeclarationError(
                f'publication to {channel}: sequence="channel" numbers messages as they are written, which needs '
                'via="outbox"'
            )
        self._key = options.get("key")
        self._data = options.get("data")
        self._type = options.get("type")
        self._source = options.get("source")
        self._takes: dict[type[Event], bool] = {}

    def __repr__(self) -> str:
        return f"publish({', '.join(each.__name__ for each in self.events)}, to={self.channel!r})"

    @property
    def by_stream(self) -> bool:
        """Whether the order is kept by the stream, which is known before an event is decoded."""
        return self._key is None

    def takes(self, event_class: type[Event]) -> bool:
        """Tell whether events of this class go out here."""
        found = self._takes.get(event_class)
        if found is None:
            found = self._takes[event_class] = any(
                issubclass(event_class, each)
                if issubclass(each, Event)
                else event_class.aggregate_class is not None and issubclass(event_class.aggregate_class, each)
                for each in self.events
            )
        return found

    def posting(self, event: Event) -> Posting | None:
        """Return what goes out for a stored event, None where it is not among those that do."""
        if not self.takes(type(event)):
            return None
        meta = event.meta
        if self._data is None:
            data = json.loads(encode(event), parse_float=Decimal)
        elif (data := self._data(event)) is None:
            return None
        key: Any = meta.stream if self._key is None else self._key(event)
        if not can_order(key):
            raise DeclarationError(
                f"publication to {self.channel}: expected text that is not empty, without NUL or lone surrogates, and "
                f"of at most {LONGEST_KEY:,} bytes as key of {meta.stream} version {meta.version}, found {shown(key)}"
            )
        metadata = meta.metadata
        extensions: dict[str, Any] = {}
        if self.sequence == "version":
            extensions["sequence"] = str(meta.version)
        if event.schema_version != 1:
            extensions["schemaversion"] = str(event.schema_version)
        if key != meta.stream:
            extensions["partitionkey"] = key
        extensions |= carried(metadata)
        message = Message(
            str(meta.event_id),
            self._source or f"/{meta.category}",
            self._type or event.event_name,
            data,
            meta.stream,
            meta.occurred_at,
            "application/octet-stream" if isinstance(data, bytes) else "application/json",
            extensions=extensions,
        )
        return Posting(self.channel, message, key, self.sequence == "channel")


def publish(*events: type[Event | Aggregate], to: str, **options: Unpack[PublicationOptions]) -> Publication:
    """Declare that these events, or all events of these aggregates, go out through the channel `to`.

    Give it to `App(publications=...)`. The message has the event's id as its own, so that every try and every relay
    says the same, and is written in the transaction of the event. See `PublicationOptions`.
    """
    return Publication(events, to, **options)


def carried(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the extensions that say what an event belongs to, of the metadata of the event."""
    found = {
        extension: str(metadata[name])
        for name, extension in (("correlation", "correlationid"), ("causation", "causationid"))
        if metadata.get(name) is not None
    }
    found |= {name: metadata[name] for name in CARRIED if isinstance(metadata.get(name), str)}
    return found

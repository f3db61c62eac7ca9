"""The port of brokers: what a consumer needs from the side that delivers, and a relay from the side that takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from ...domain.errors import OnefoldError


class BrokerLost(OnefoldError):
    """The broker cannot be reached, or has ended the connection; a new subscription may be tried."""


class BrokerMisconfigured(OnefoldError):
    """The broker answers, and what it says will not change by itself: a queue is missing or is of the wrong kind."""


class MissingFile(BrokerMisconfigured):
    """The URL names a file that is not there."""


class MissingExtra(OnefoldError, ImportError):
    """The client of a broker is not installed."""


class BadBrokerURL(OnefoldError, ValueError):
    """The URL of a broker cannot be read."""


@dataclass(slots=True, eq=False)
class Delivery:
    """One arrival of a message.

    `body` and `headers` are as the broker gave them (names in lower case, values as text). `place` tells a person
    where it came from, such as `payments[2]@17`. `key` is the broker's own partition, group or ordering key,
    `published_at` its clock when it took the message, `attempt` its own count of deliveries, from 1; each None where
    the broker does not say. `handle` is the subscription's own.
    """

    body: bytes
    headers: Mapping[str, str]
    place: str
    key: str | None = None
    published_at: datetime | None = None
    attempt: int | None = None
    handle: Any = field(default=None, repr=False)


class Subscription(Protocol):
    """One consumer's hold on a queue, topic or stream. Every call is made by one and the same thread.

    What was received belongs to the subscription until it is acknowledged or given back; what a broker took away in
    between (a rebalance, a lost connection) may still be acknowledged, to no effect. All methods raise `BrokerLost`
    when the broker is gone; then the subscription is closed and a new one made.
    """

    lease: float | None
    """Seconds after which the broker delivers again what was neither acknowledged nor extended; None for never."""

    @property
    def ended(self) -> bool:
        """Whether nothing will ever come again but what the caller holds, as at the end of a file; else False."""
        ...

    @property
    def joined(self) -> bool:
        """Whether the broker has said what is this member's; until then, that nothing comes says nothing."""
        ...

    def receive(self, limit: int, timeout: float) -> Sequence[Delivery]:
        """Return up to `limit` deliveries, waiting up to `timeout` seconds for the first.

        With `limit` 0 nothing is taken from the broker, but the connection and the membership are kept alive: the
        caller's buffer is full, and calls again within a second.
        """
        ...

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Tell the broker that these are done for good. The effect of each is committed."""
        ...

    def give_back(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> None:
        """Return deliveries undone, to be delivered again, after `delay` seconds where the broker can wait."""
        ...

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Keep the broker from delivering these again for another lease."""
        ...

    def backlog(self) -> int | None:
        """Return how many messages wait in the broker for this consumer, None where it cannot be asked."""
        ...

    def retention(self) -> float | None:
        """Return for how many seconds a message is kept, `math.inf` for ever, None if it cannot be asked."""
        ...

    def close(self) -> None:
        """Give back what is held, leave the group and close the connection; never raises, may be called twice."""
        ...


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to be published: its body, its headers (text), and the key by which a broker keeps order."""

    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None


Refusals = Mapping[int, str]
"""Why messages were refused for good, by their place among those that were to be published."""


class Publisher(Protocol):
    """Publishes to one queue, topic or stream."""

    def publish(self, messages: Sequence[Outgoing]) -> Refusals:
        """Publish in order, and return when the broker has taken durably what it takes at all.

        Messages of one key keep their order. What the broker refuses for good because of the message itself (too
        large, a header that it cannot carry) is in the result, its reason by its place in `messages`; what follows one
        of these in its key is not published either. Raises `BrokerLost`, after which any of them may have been
        published, and `BrokerMisconfigured` for what concerns every message.
        """
        ...

    def close(self) -> None:
        """Close the connection; may be called twice."""
        ...

"""An in-process broker for tests: delivers at least once, and at its worst when asked to."""

from __future__ import annotations

import itertools
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import ClassVar, Final
from urllib.parse import SplitResult

from .options import Options
from .port import BrokerLost, Delivery, Outgoing, Refusals
from .refusing import screened, size_of

_NONE: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(slots=True, eq=False)
class _Copy:
    """A message on its way to one consumer. Free from `until` on, or held until then."""

    place: str
    message: Outgoing
    published_at: datetime
    key: str | None
    """The key whose order is kept, None for none."""
    echo: bool = False
    attempt: int = 0
    holder: MemorySubscription | None = None
    until: float = -math.inf
    acknowledgement_lost: bool = False


@dataclass(slots=True, eq=False)
class _Group:
    """What one consumer has not acknowledged yet, in the order of publishing."""

    copies: dict[int, _Copy] = field(default_factory=dict)
    seen: int = 0


class MemoryBroker:
    """A topic in this process, found by `memory://NAME`; for the tests of who uses consumers.

    Every consumer gets all messages, also those from before it came. What it takes is its own for `lease` seconds and
    comes again if it is neither acknowledged nor extended. Messages of one key go to one subscription at a time, in
    order, unless `ordered` is False.

    The faults of real brokers, repeatable by `seed`: `duplicates` is the share of deliveries that come a second time,
    `shuffle` among how many waiting messages the next one is drawn (which breaks the order of keys),
    `lost_acknowledgements` the share of messages whose first acknowledgement is lost, so that their lease runs out.
    `largest` is how many bytes a message may have that a publisher brings, None for any. `clock` returns seconds and
    is what leases and delays are measured by.

    All methods may be called from any thread. A new broker takes the place of an older one of its name.
    """

    _named: ClassVar[dict[str, MemoryBroker]] = {}
    _naming: ClassVar[threading.Lock] = threading.Lock()

    def __init__(
        self,
        name: str,
        *,
        lease: float = 30.0,
        ordered: bool = True,
        duplicates: float = 0.0,
        shuffle: int = 0,
        lost_acknowledgements: float = 0.0,
        seed: int = 0,
        largest: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if lease <= 0 or not 0 <= duplicates <= 1 or not 0 <= lost_acknowledgements <= 1 or shuffle < 0:
            raise ValueError(
                "expected a lease above 0, shares from 0 to 1 and a shuffle of 0 or more, found "
                f"{lease=}, {duplicates=}, {lost_acknowledgements=}, {shuffle=}"
            )
        self.name = name
        self.lease = lease
        self.largest = largest
        self._ordered = ordered
        self._duplicates = duplicates
        self._shuffle = shuffle
        self._lost = lost_acknowledgements
        self._random = random.Random(seed)  # noqa: S311
        self._clock = clock
        self._log: list[_Copy] = []
        self._groups: dict[str, _Group] = {}
        self._finished = False
        self._cuts = 0
        self._turns = itertools.count(1)
        self._changed = threading.Condition()
        with self._naming:
            self._named[name] = self

    @classmethod
    def named(cls, name: str) -> MemoryBroker:
        """Return the broker of this name, which is made when there is none."""
        with cls._naming:
            found = cls._named.get(name)
        return cls(name) if found is None else found

    def publish(self, body: bytes | str, headers: Mapping[str, str] = _NONE, key: str | None = None) -> None:
        """Add one message. A text becomes UTF-8."""
        self.publish_all([Outgoing(body.encode() if isinstance(body, str) else body, headers, key)])

    def publish_all(self, messages: Sequence[Outgoing]) -> None:
        """Add messages in order."""
        now = datetime.now(UTC)
        with self._changed:
            for message in messages:
                self._log.append(
                    _Copy(
                        f"{self.name}@{len(self._log) + 1}",
                        Outgoing(
                            bytes(message.body),
                            {name.lower(): value for name, value in message.headers.items()},
                            message.key,
                        ),
                        now,
                        message.key if self._ordered else None,
                    )
                )
            self._changed.notify_all()

    def finish(self) -> None:
        """Say that nothing more will be published: subscriptions end when they have handed out everything."""
        with self._changed:
            self._finished = True
            self._changed.notify_all()

    def cut(self) -> None:
        """End every subscription that is open: its next call raises `BrokerLost`, and what it held is free."""
        with self._changed:
            self._cuts += 1
            for group in self._groups.values():
                for copy in group.copies.values():
                    copy.holder, copy.until = None, -math.inf
            self._changed.notify_all()

    def unacknowledged(self, consumer: str) -> int:
        """Return how many messages this consumer has not acknowledged, those that it holds and duplicates included."""
        with self._changed:
            return len(self._group(consumer).copies)

    def subscribe(self, consumer: str) -> MemorySubscription:
        """Return a new subscription of this consumer."""
        return MemorySubscription(self, consumer)

    def _group(self, consumer: str) -> _Group:
        group = self._groups.setdefault(consumer, _Group())
        for copy in self._log[group.seen :]:
            group.copies[next(self._turns)] = _Copy(copy.place, copy.message, copy.published_at, copy.key)
        group.seen = len(self._log)
        return group

    def _free(self, group: _Group, taker: MemorySubscription) -> Iterator[tuple[int, _Copy]]:
        now = self._clock()
        blocked: set[str] = set()
        for turn, copy in group.copies.items():
            if copy.until <= now:
                copy.holder = None
                if copy.key is None or copy.key not in blocked:
                    yield turn, copy
            elif copy.key is not None and copy.holder is not taker:
                blocked.add(copy.key)

    def _take(self, consumer: str, taker: MemorySubscription, limit: int) -> list[Delivery]:
        group = self._group(consumer)
        free = list(itertools.islice(self._free(group, taker), limit + self._shuffle))
        taken: list[Delivery] = []
        while free and len(taken) < limit:
            turn, copy = free.pop(
                self._random.randrange(min(self._shuffle, len(free))) if self._shuffle else 0
            )
            if not (copy.echo or copy.attempt) and self._random.random() < self._duplicates:
                group.copies[next(self._turns)] = _Copy(
                    copy.place, copy.message, copy.published_at, copy.key, echo=True
                )
            copy.attempt += 1
            copy.holder, copy.until = taker, self._clock() + self.lease
            taken.append(
                Delivery(
                    copy.message.body,
                    copy.message.headers,
                    copy.place,
                    copy.message.key,
                    copy.published_at,
                    copy.attempt,
                    (turn, copy.attempt),
                )
            )
        return taken


class MemorySubscription:
    """A subscription to a `MemoryBroker`."""

    joined = True

    def __init__(self, broker: MemoryBroker, consumer: str) -> None:
        self.lease: float | None = broker.lease
        self._broker = broker
        self._consumer = consumer
        self._cuts = broker._cuts
        self._open = True

    def receive(self, limit: int, timeout: float) -> Sequence[Delivery]:
        """Return up to `limit` deliveries; see `Subscription`."""
        until = time.monotonic() + timeout
        broker = self._broker
        with broker._changed:
            while True:
                self._require_open()
                if limit and (taken := broker._take(self._consumer, self, limit)):
                    return taken
                rest = until - time.monotonic()
                if rest <= 0 or (limit and self._ended()):
                    return []
                # Leases and delays end without a notice.
                broker._changed.wait(min(rest, 0.02))

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Be done with these for good; see `Subscription`."""
        broker = self._broker
        with broker._changed:
            self._require_open()
            group = broker._group(self._consumer)
            for turn, copy in self._held(deliveries):
                if not copy.acknowledgement_lost and broker._random.random() < broker._lost:
                    copy.acknowledgement_lost = True
                else:
                    del group.copies[turn]
            broker._changed.notify_all()

    def give_back(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> None:
        """Return these undone; see `Subscription`."""
        broker = self._broker
        with broker._changed:
            self._require_open()
            for _, copy in self._held(deliveries):
                copy.holder, copy.until = None, broker._clock() + delay
            broker._changed.notify_all()

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Hold these for another lease; see `Subscription`."""
        broker = self._broker
        with broker._changed:
            self._require_open()
            for _, copy in self._held(deliveries):
                copy.until = broker._clock() + broker.lease

    def backlog(self) -> int | None:
        """Return how many messages nobody of this consumer holds."""
        with self._broker._changed:
            self._require_open()
            now = self._broker._clock()
            copies = self._broker._group(self._consumer).copies.values()
            return sum(copy.holder is None or copy.until <= now for copy in copies)

    def retention(self) -> float | None:
        """Return None: it ends with its process, and so does what it keeps."""
        return None

    @property
    def ended(self) -> bool:
        """Whether the broker is finished, and all that is left is held by this subscription."""
        with self._broker._changed:
            return self._ended()

    def close(self) -> None:
        """Free what is held; see `Subscription`."""
        with self._broker._changed:
            if self._open:
                self._open = False
                for copy in self._broker._group(self._consumer).copies.values():
                    if copy.holder is self:
                        copy.holder, copy.until = None, -math.inf
                self._broker._changed.notify_all()

    def _ended(self) -> bool:
        if not self._broker._finished:
            return False
        now = self._broker._clock()
        copies = self._broker._group(self._consumer).copies.values()
        return all(copy.holder is self and copy.until > now for copy in copies)

    def _held(self, deliveries: Sequence[Delivery]) -> Iterator[tuple[int, _Copy]]:
        group = self._broker._group(self._consumer)
        now = self._broker._clock()
        for delivery in deliveries:
            turn, attempt = delivery.handle
            copy = group.copies.get(turn)
            if copy is not None and copy.holder is self and copy.attempt == attempt and copy.until > now:
                yield turn, copy

    def _require_open(self) -> None:
        if not self._open or self._cuts != self._broker._cuts:
            self._open = False
            raise BrokerLost(
                f"expected memory://{self._broker.name} to be connected, found the subscription "
                "closed or cut; subscribe again"
            )


class MemoryPublisher:
    """Publishes to a `MemoryBroker`."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self._open = True

    def publish(self, messages: Sequence[Outgoing]) -> Refusals:
        """Publish in order; see `Publisher`."""
        if not self._open:
            raise BrokerLost(f"expected an open publisher of memory://{self._broker.name}, found it closed")
        limit = self._broker.largest

        def flaw(message: Outgoing) -> str | None:
            if limit is None or (size := size_of(message)) <= limit:
                return None
            return f"expected a message of up to {limit:,} bytes, found {size:,}"

        going, refused = screened(messages, flaw)
        self._broker.publish_all([messages[place] for place in going])
        return refused

    def close(self) -> None:
        """Take no more messages."""
        self._open = False


def subscribe(parts: SplitResult, consumer: str) -> MemorySubscription:
    """Return a subscription to the broker of this name, made when there is none; raises `BadBrokerURL`."""
    return _broker(parts).subscribe(consumer)


def publisher(parts: SplitResult) -> MemoryPublisher:
    """Return a publisher to the broker of this name, made when there is none; raises `BadBrokerURL`."""
    return MemoryPublisher(_broker(parts))


def _broker(parts: SplitResult) -> MemoryBroker:
    options = Options(parts, "memory://NAME")
    name = parts.netloc + parts.path
    if not name:
        raise options.bad("a name")
    options.finish()
    return MemoryBroker.named(name)

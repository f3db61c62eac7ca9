"""What the conformance suite has to know of each adapter: how to make a queue, and what its broker promises.

A bench is a small class. More of them stand in modules named `bench_*.py` beside this one, each with a tuple `BENCHES`.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import pytest

from onefold.infrastructure.brokers import Delivery, Outgoing, Publisher, Subscription, publisher, subscribe
from onefold.infrastructure.brokers.memory import MemoryBroker

CONSUMER = "conformance"
_numbers = itertools.count(1)


class Bench:
    """One adapter with a queue of its own, new for each test; `request` gives the session's servers by fixture name."""

    name: ClassVar[str]

    remembers: ClassVar[bool] = True
    """What was acknowledged does not come to a later subscription of the same consumer."""
    carries: ClassVar[bool] = True
    """Headers and any bytes arrive unchanged; otherwise structured CloudEvents of one line do."""
    ordered: ClassVar[bool] = True
    """Messages of one key arrive in the order of publishing."""
    delays: ClassVar[bool] = True
    """`give_back` with a delay is not delivered before it."""
    counts: ClassVar[bool] = True
    """`backlog` is a number."""
    shared: ClassVar[bool] = True
    """Other processes can reach it, so that one can be killed."""
    networked: ClassVar[bool] = True
    """It is behind a network that can be cut: `cut` and `restore` work, and `unreachable` is an URL."""
    dated: ClassVar[bool] = True
    """`published_at` is set."""
    attempts: ClassVar[bool] = True
    """`attempt` is set, and rises with each delivery."""
    keyed: ClassVar[bool] = True
    """`key` is set to the key of the outgoing message."""
    misconfigurable: ClassVar[bool] = True
    """A queue that is missing is an error at the start."""
    expires: ClassVar[bool] = True
    """What is neither acknowledged nor extended comes again after the lease, also to the same subscription."""
    patience: ClassVar[float] = 10.0
    """Seconds within which what comes again has come."""
    largest: ClassVar[int] = 200_000
    """Bytes of the largest body that is tried."""
    many: ClassVar[int] = 250
    """How many messages are more than a few calls bring."""
    ahead: ClassVar[bool] = True
    """More of a key comes while something of it is held."""
    refuses: ClassVar[bool] = True
    """There are messages that are never taken: those of `refused` bytes."""
    refused: ClassVar[int] = 0

    def __init__(self, request: pytest.FixtureRequest, folder: Path) -> None:
        self.request = request
        self.folder = folder
        self.queue = f"conformance-{os.getpid()}-{next(_numbers)}-{time.time_ns()}"
        self.opened: list[Subscription] = []
        self.prepare()

    def prepare(self) -> None:
        """Make the queue, and whatever else the bench needs."""

    @property
    def url(self) -> str:
        """URL of the queue."""
        raise NotImplementedError

    @property
    def missing(self) -> str:
        """URL of a queue that does not exist or is of the wrong kind."""
        raise NotImplementedError

    @property
    def unreachable(self) -> str:
        """URL of a broker that nobody listens at, such as one at `unused_port()`."""
        raise NotImplementedError

    def cut(self) -> None:
        """End the connections to the broker, and let no new one through."""
        raise NotImplementedError

    def restore(self) -> None:
        """Let connections through again."""
        raise NotImplementedError

    def close(self) -> None:
        """Close what was opened, and remove the queue where it costs something."""
        for subscription in self.opened:
            subscription.close()

    def keys(self, count: int) -> int:
        """Return how many keys messages can have that are received before any is acknowledged: `count` or more."""
        return count if self.ahead else 1000

    def publish(self, messages: Sequence[Outgoing]) -> None:
        """Publish by the adapter's own publisher."""
        out = self.publisher()
        try:
            out.publish(messages)
        finally:
            out.close()

    def publisher(self) -> Publisher:
        """Return the adapter's own publisher."""
        return publisher(self.url)

    def subscribe(self, consumer: str = CONSUMER) -> Subscription:
        """Return a subscription, which is closed at the end of the test at the latest."""
        subscription = subscribe(self.url, consumer)
        self.opened.append(subscription)
        return subscription


class MemoryBench(Bench):
    """The broker of this process, with a short lease."""

    name = "memory"
    shared = networked = misconfigurable = refuses = False

    def prepare(self) -> None:
        self.broker = MemoryBroker(self.queue, lease=2.0)

    @property
    def url(self) -> str:
        return f"memory://{self.queue}"


class FileBench(Bench):
    """A file of JSON lines."""

    name = "file"
    remembers = carries = counts = networked = dated = attempts = keyed = expires = False

    @property
    def url(self) -> str:
        return f"file:{quote(str(self.folder / self.queue))}.jsonl"

    @property
    def missing(self) -> str:
        return f"file:{quote(str(self.folder / 'missing.jsonl'))}"


def benches() -> list[type[Bench]]:
    """Return every bench, those of the modules beside this one included."""
    found: list[type[Bench]] = [MemoryBench, FileBench]
    for path in sorted(Path(__file__).parent.glob("bench_*.py")):
        found.extend(import_module(f".{path.stem}", __package__).BENCHES)
    return found


def that(*promises: str, without: bool = False) -> pytest.MarkDecorator:
    """Run a test on every bench that keeps all these promises; `without`: on those that miss one of them."""
    kinds = [kind for kind in benches() if all(getattr(kind, promise) for promise in promises) is not without]
    return pytest.mark.parametrize("bench", kinds, indirect=True, ids=[kind.name for kind in kinds])


def events(count: int, *, keys: int = 1, first: int = 1) -> list[Outgoing]:
    """Return structured CloudEvents, numbered from `first`, whose keys take turns: `bodies` tells them apart."""
    return [
        Outgoing(
            json.dumps(
                {"specversion": "1.0", "id": str(number), "source": "/conformance", "type": "test.numbered"}
            ).encode(),
            {"content-type": "application/cloudevents+json"},
            f"key-{number % keys}",
        )
        for number in range(first, first + count)
    ]


def numbers(deliveries: Sequence[Delivery]) -> list[int]:
    """Return the numbers that `events` gave, in the order of delivery."""
    return [int(json.loads(delivery.body)["id"]) for delivery in deliveries]


def drain(
    subscription: Subscription, count: int, within: float, *, limit: int = 100, quiet: float = 0.0
) -> list[Delivery]:
    """Receive until `count` deliveries are there or the time is over, then for `quiet` seconds more."""
    found: list[Delivery] = []
    until = time.monotonic() + within
    while len(found) < count and time.monotonic() < until:
        found.extend(subscription.receive(limit, 0.2))
    until = time.monotonic() + quiet
    while time.monotonic() < until:
        found.extend(subscription.receive(limit, 0.1))
    return found


def until(condition: Callable[[], Any], within: float) -> Any:
    """Return the first true value of `condition`, the last one when the time is over."""
    end = time.monotonic() + within
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(0.05)
    return value


def unused_port() -> int:
    """Return a port of this machine that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def bench_of(kind: type[Bench], request: pytest.FixtureRequest, folder: Path) -> Iterator[Bench]:
    """Yield a bench, and close it."""
    made = kind(request, folder)
    try:
        yield made
    finally:
        made.close()

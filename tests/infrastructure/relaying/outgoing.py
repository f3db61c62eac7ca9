"""Messages that go out, a broker that refuses and is lost when it is told to, and relays that run beside a test."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier

from onefold.infrastructure.brokers.port import BrokerLost, Outgoing, Refusals
from onefold.infrastructure.brokers.refusing import screened
from onefold.infrastructure.postgres import outbox
from onefold.infrastructure.relaying.relay import Relay
from onefold.projections.message import Message
from onefold.projections.publication import Posting

CHANNEL = "news"
Connection = psycopg.Connection[Any]


class Broker:
    """Takes messages and remembers them, in order.

    `refused` are ids that it refuses for good. `loses` is how many times it is lost behind the first half of what it
    is brought. `hold` keeps whoever publishes until it is set again.
    """

    def __init__(self) -> None:
        self.taken: list[Outgoing] = []
        self.refused: set[str] = set()
        self.loses = 0
        self.opened = 0
        self.asked = threading.Event()
        self.hold = threading.Event()
        self.hold.set()
        self._lock = threading.Lock()

    def __call__(self) -> Broker:
        """Connect."""
        self.opened += 1
        return self

    def publish(self, messages: Sequence[Outgoing]) -> Refusals:
        self.asked.set()
        assert self.hold.wait(30)
        going, refused = screened(messages, self._flaw)
        with self._lock:
            lost = self.loses > 0
            self.loses -= lost
            self.taken += [messages[place] for place in (going[: len(going) // 2] if lost else going)]
        if lost:
            raise BrokerLost("expected an answer, found none")
        return refused

    def close(self) -> None:
        pass

    @property
    def ids(self) -> list[str]:
        """The ids that were taken, as often as they were."""
        with self._lock:
            return [id_of(each) for each in self.taken]

    def first(self, key: str) -> list[str]:
        """The ids of a key in the order in which they were taken first."""
        with self._lock:
            return list(dict.fromkeys(id_of(each) for each in self.taken if each.key == key))

    def _flaw(self, message: Outgoing) -> str | None:
        found = id_of(message)
        return f"expected a message that it takes, found {found}" if found in self.refused else None


def id_of(message: Outgoing) -> str:
    """The id of a message, as its envelope has it."""
    return str(json.loads(message.body)["id"])


def posting(name: str, key: str | None = "k", channel: str = CHANNEL) -> Posting:
    """A message whose id is its name."""
    return Posting(channel, Message(name, "/test", "test.said", {"name": name}), key)


def begin(connection: Connection) -> None:
    """Open a transaction."""
    connection.execute("BEGIN" if connection.autocommit else "SELECT 1")


def post(connection: Connection, *postings: Posting) -> None:
    """Write messages to the outbox, in a transaction of their own."""
    with connection.transaction():
        outbox.write(connection, postings)


def relay(url: str, broker: Callable[[], Any], **options: Any) -> Relay:
    """A relay of the channel, with a short lease."""
    return Relay(url, CHANNEL, "file:nowhere", publisher=broker, **{"lease": 1.0, **options})


def published(url: str, broker: Callable[[], Any], **options: Any) -> Relay:
    """Publish what is there, and return the relay that has done it."""
    made = relay(url, broker, once=True, **options)
    made.run()
    return made


@contextmanager
def running(*relays: Relay) -> Iterator[None]:
    """Run relays beside the test, and raise what they have met."""
    errors: list[BaseException] = []

    def run(each: Relay) -> None:
        try:
            each.run()
        except Exception as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(each,)) for each in relays]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for each in relays:
            each.stop()
        for thread in threads:
            thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait for something to become true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)


def count(connection: Connection, table: str = "outbox") -> int:
    row = connection.execute(SQL("SELECT count(*) FROM {}").format(Identifier("onefold", table))).fetchone()
    assert row is not None
    return int(row[0])

"""Relaying from the outbox and from the log, beside plain producing of the same bytes by the broker's own client."""

from __future__ import annotations

import itertools
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple

import pika
import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from onefold import Aggregate, App, Event, publish
from onefold.domain.event import EventMeta
from onefold.infrastructure.announcing import announcer
from onefold.infrastructure.brokers import Outgoing
from onefold.infrastructure.postgres.log import EventLog
from onefold.infrastructure.postgres.pool import open_pool
from onefold.infrastructure.relaying.registration import begin
from onefold.infrastructure.relaying.relay import SEGMENTS, Relay
from services.kafka import KAFKA
from services.rabbitmq import RABBITMQ
from services.service import Service, Unavailable

from .measure import Case

MESSAGES = 40_000
STREAMS = 1_000
ONE_BY_ONE = 2_000
UNCONFIRMED = 10_000
"""Messages that are produced where each is waited for, and where none is."""
_numbers = itertools.count(1)


class Parcel(Aggregate, category="bench_parcel"):
    class Sent(Event, name="bench.parcel_sent"):
        customer_id: str
        total: str
        items: list[str]


APP = App(
    aggregates=[Parcel],
    publications=[
        publish(Parcel.Sent, to="bench_outbox"),
        publish(Parcel.Sent, to="bench_log", via="log"),
    ],
)


class Filled(NamedTuple):
    """What goes out, and the positions before it in outbox and log."""

    outgoing: list[Outgoing]
    outbox: int
    log: int


class Queue(NamedTuple):
    """Where messages go to; `count` tells how many are there, None where it cannot be asked."""

    url: str
    name: str
    count: Callable[[], int | None]


def fill(url: str) -> Filled:
    """Append events, with the messages that they announce."""
    heads = (
        "SELECT (SELECT coalesce(max(position), 0) FROM onefold.outbox), (SELECT coalesce(max(position), 0) "
    )
    heads += "FROM onefold.events)"
    with psycopg.connect(url, autocommit=True) as connection, open_pool(url) as pool:
        row = connection.execute(heads).fetchone()
        assert row is not None
        log = EventLog(pool, announcer=announcer(APP))
        for version in range(1, MESSAGES // STREAMS + 1):
            events = [
                Parcel.Sent(
                    customer_id=f"customer-{n}", total=f"{n}.{version:02d}", items=["book"] * 5
                ).bound(EventMeta(f"bench_parcel/{n}", version, occurred_at=datetime.now(UTC)))
                for n in range(STREAMS)
            ]
            log.append(events)
        connection.execute("VACUUM ANALYZE onefold.outbox, onefold.events")
        rows = connection.execute(
            "SELECT body, headers, key FROM onefold.outbox WHERE channel = 'bench_outbox' AND position > %s "
            "ORDER BY position",
            (row[0],),
        )
        return Filled([Outgoing(bytes(body), headers, key) for body, headers, key in rows], *row)


@contextmanager
def cases(url: str) -> Iterator[list[Case]]:
    """Return a case for each broker and source; those of a broker that the machine lacks are left out."""
    filled = fill(url)
    found: list[Case] = []
    logging.getLogger("bench.kafka").addHandler(logging.NullHandler())
    with tempfile.TemporaryDirectory(prefix="onefold-bench-") as folder:
        services: list[Service] = []
        try:
            for recipe, cases_of in ((KAFKA, kafka), (RABBITMQ, rabbitmq)):
                service = Service(recipe, Path(folder) / str(len(services)), os.getpid())
                services.append(service)
                try:
                    service.start()
                except Unavailable as error:
                    print(error)
                else:
                    found += cases_of(url, filled, service.url)
            yield found
        finally:
            for service in services:
                service.kill()


def kafka(url: str, filled: Filled, servers: str) -> list[Case]:
    """Return the cases of a broker of Kafka's protocol."""
    admin = AdminClient({"bootstrap.servers": servers}, logger=logging.getLogger("bench.kafka"))

    def topic() -> Queue:
        name = f"bench-{next(_numbers)}"
        for made in admin.create_topics([NewTopic(name, SEGMENTS, 1)]).values():
            made.result(10)
        return Queue(f"kafka://{servers}/{name}", name, lambda: None)

    def produce() -> float:
        name = topic().name
        producer = Producer({"bootstrap.servers": servers, "acks": "all", "enable.idempotence": True})
        failed: list[object] = []

        def report(error: object, _: object) -> None:
            if error is not None:
                failed.append(error)

        started = time.perf_counter()
        for message in filled.outgoing:
            headers: list[tuple[str, str | bytes | None]] = list(message.headers.items())
            while True:
                try:
                    producer.produce(name, message.body, message.key, headers=headers, on_delivery=report)
                    break
                except BufferError:
                    producer.poll(0.1)
        left = producer.flush(60)
        elapsed = time.perf_counter() - started
        if left or failed:
            raise AssertionError(f"expected every message to be taken, found {left} left and {failed[:1]}")
        return len(filled.outgoing) / elapsed

    return [
        Case(
            f"relay from the {source}, Kafka",
            "messages/s",
            {"producer": produce, "onefold": lambda source=source: relay(url, filled, source, topic())},
        )
        for source in SOURCES
    ]


def rabbitmq(url: str, filled: Filled, server: str) -> list[Case]:
    """Return the cases of RabbitMQ: a quorum queue, persistent messages, and each of them confirmed."""
    parameters = pika.URLParameters(server)

    def queue() -> Queue:
        name = f"bench-{next(_numbers)}"

        def count() -> int:
            with pika.BlockingConnection(parameters) as connection:
                channel = connection.channel()
                # The queue says so a moment after it has confirmed.
                for _ in range(50):
                    there = int(channel.queue_declare(name, passive=True).method.message_count)
                    if there >= len(filled.outgoing):
                        break
                    time.sleep(0.1)
                channel.queue_delete(name)
                return there

        with pika.BlockingConnection(parameters) as connection:
            arguments = {"x-queue-type": "quorum"}
            connection.channel().queue_declare(name, durable=True, arguments=arguments)
        return Queue(f"{server}?queue={name}", name, count)

    def produce(confirmed: bool) -> float:
        name = queue().name
        outgoing = filled.outgoing[: ONE_BY_ONE if confirmed else UNCONFIRMED]
        with pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            if confirmed:
                channel.confirm_delivery()
            started = time.perf_counter()
            for message in outgoing:
                properties = pika.BasicProperties(headers={**message.headers}, delivery_mode=2)
                channel.basic_publish("", name, message.body, properties, mandatory=True)
            # Whoever is answered knows that the broker has read what came before.
            channel.queue_declare(name, passive=True)
            elapsed = time.perf_counter() - started
            channel.queue_delete(name)
        return len(outgoing) / elapsed

    return [
        Case(
            f"relay from the {source}, RabbitMQ",
            "messages/s",
            {
                "pika, each confirmed": lambda: produce(True),
                "pika, none confirmed": lambda: produce(False),
                "onefold": lambda source=source: relay(url, filled, source, queue()),
            },
        )
        for source in SOURCES
    ]


SOURCES: tuple[Literal["outbox", "log"], ...] = ("outbox", "log")


def relay(url: str, filled: Filled, source: Literal["outbox", "log"], queue: Queue) -> float:
    """Return messages per second of one relay that publishes all there is."""
    name, channel = f"bench_{next(_numbers)}", f"bench_{source}"
    with psycopg.connect(url, autocommit=True) as connection:
        begin(connection, name, channel, source, SEGMENTS)
        start = filled.outbox if source == "outbox" else filled.log
        connection.execute("UPDATE onefold.relays SET position = %s WHERE relay = %s", (start, name))
        connection.execute("CHECKPOINT")
    one = Relay(url, channel, queue.url, publications=APP.publications, name=name, once=True)
    started = time.perf_counter()
    one.run()
    elapsed = time.perf_counter() - started
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DELETE FROM onefold.relays WHERE relay = %s", (name,))
    found = (one.published, queue.count())
    if found not in ((len(filled.outgoing), None), (len(filled.outgoing),) * 2):
        raise AssertionError(f"expected {len(filled.outgoing)} messages to go out, found {found}")
    return len(filled.outgoing) / elapsed

"""Fixtures that give the addresses of brokers, each started for the run when the first test asks for it.

A broker is shared by all tests of the run: each makes a queue, topic or stream of its own, with `unique_name`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from . import kafka
from .kafka import KAFKA
from .mock_kafka import MockKafka
from .proxy import Proxy
from .pubsub import PUBSUB
from .rabbitmq import RABBITMQ
from .redis import REDIS
from .service import Recipe, Service, Unavailable
from .sqs import ENVIRONMENT, SQS

RECIPES = {"rabbitmq": RABBITMQ, "redis": REDIS, "kafka": KAFKA, "sqs": SQS, "pubsub": PUBSUB}
_numbers = itertools.count(1)

StartService = Callable[[Recipe], Service]
UniqueName = Callable[[], str]


@dataclass(frozen=True, slots=True)
class Proxied:
    """A broker's address by way of a proxy, and the proxy that cuts it."""

    url: str
    proxy: Proxy


ThroughProxy = Callable[[str], Proxied]


def missing(error: Unavailable) -> NoReturn:
    if os.environ.get("ONEFOLD_REQUIRE_SERVICES") == "1":
        pytest.fail(str(error))
    pytest.skip(str(error))


@pytest.fixture(scope="session")
def shared_service(run_home: Path) -> Callable[[str], Service]:
    """Gives the run's own broker by its name: rabbitmq, redis, kafka, sqs, pubsub."""
    # The process that collects the tests, whose pid is in the name: the workers of a run end before it.
    owner = int(run_home.name.split("-")[2])

    def get(name: str) -> Service:
        service = Service(RECIPES[name], run_home / "services" / name, owner)
        try:
            service.start()
        except Unavailable as error:
            missing(error)
        return service

    return get


@pytest.fixture(scope="session")
def rabbitmq_url(shared_service: Callable[[str], Service]) -> str:
    """AMQP URL of a RabbitMQ."""
    return shared_service("rabbitmq").url


@pytest.fixture(scope="session")
def redis_url(shared_service: Callable[[str], Service]) -> str:
    """URL of a Redis."""
    return shared_service("redis").url


@pytest.fixture(scope="session")
def kafka_servers(shared_service: Callable[[str], Service]) -> str:
    """The `bootstrap.servers` of a broker of Kafka's protocol."""
    return shared_service("kafka").url


@pytest.fixture(scope="session")
def mock_kafka() -> Iterator[str]:
    """The `bootstrap.servers` of librdkafka's mock cluster, which lives in this process."""
    with MockKafka() as cluster:
        yield cluster.servers


@pytest.fixture(scope="session")
def sqs_endpoint(shared_service: Callable[[str], Service]) -> Iterator[str]:
    """Endpoint of a server that answers as SQS; the environment has a region and credentials for it."""
    url = shared_service("sqs").url
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        yield url


@pytest.fixture(scope="session")
def pubsub_emulator(shared_service: Callable[[str], Service]) -> Iterator[str]:
    """Host and port of an emulator of Pub/Sub; the environment has them too, as Google's clients look for them."""
    given = os.environ.get("PUBSUB_EMULATOR_HOST")
    if given:
        yield given
        return
    address = shared_service("pubsub").url
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PUBSUB_EMULATOR_HOST", address)
        yield address


@pytest.fixture
def unique_name() -> UniqueName:
    """Gives names that no other test of the run gives to its queues, topics and streams."""
    return lambda: f"test-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def start_service(run_home: Path) -> Iterator[StartService]:
    """Starts a service of the test's own, which may stop, kill and start it; it is killed after the test."""
    services: list[Service] = []

    def start(recipe: Recipe) -> Service:
        folder = run_home / "services" / f"own-{os.getpid()}-{next(_numbers)}"
        services.append(Service(recipe, folder, os.getpid()))
        try:
            services[-1].start()
        except Unavailable as error:
            missing(error)
        return services[-1]

    yield start
    for service in services:
        service.kill()


@pytest.fixture
def through_proxy(
    shared_service: Callable[[str], Service], start_service: StartService
) -> Iterator[ThroughProxy]:
    """Gives the address of a broker by way of a proxy of the test's own: rabbitmq, redis, kafka, sqs, pubsub.

    Kafka's clients go where the broker tells them to, so that one is the test's own, and empty.
    """
    with ExitStack() as stack:

        def wire(name: str) -> Proxied:
            proxy = stack.enter_context(Proxy())
            if name == "kafka":
                proxy.target = start_service(kafka.recipe(advertised=proxy.port)).port
            else:
                proxy.target = shared_service(name).port
            return Proxied(RECIPES[name].url(proxy.port), proxy)

        yield wire

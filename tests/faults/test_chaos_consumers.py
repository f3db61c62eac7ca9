"""Real consumer processes that are killed at random, on every broker, while database and network fail as well.

What a run does follows from its seed, which it prints; ONEFOLD_CHAOS_SEED repeats one.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onefold import Message, Retention, Retry, Transaction
from onefold.infrastructure.brokers import BrokerLost, Delivery, Outgoing, Subscription, subscribe
from onefold.infrastructure.consuming.consumption import Consumption
from onefold.infrastructure.embedded import EmbeddedServer
from onefold.infrastructure.postgres import migrate

from ..conformance.benches import Bench, bench_of, benches
from ..conftest import SERVER_SETTINGS
from ..infrastructure.consuming.desk import TABLE as ACCOUNTS_TABLE
from ..infrastructure.consuming.desk import (
    balances,
    deposit,
    deposits,
    disordered,
    envelope,
    outcomes,
    parked,
)
from ..infrastructure.consuming.running import Running, until
from .chaos.chaos_bank import TABLE

SEED = "ONEFOLD_CHAOS_SEED"
FOLDER = Path(__file__).with_name("chaos")
NAMES = ("file", "rabbitmq", "redis", "sqs", "pubsub", "kafka")
VERSIONS = 20
ACCOUNTS = {"sqs": 40}
"""200 where nothing is said: 4,000 messages, and a fourth of that in copies."""
AHEAD = {"sqs": 60}
"""Messages that wait at most. Moto copies a whole queue with each message that it hands out."""
WINDOW = 400
KILLS = 10
CHUNK = 250
_numbers = itertools.count(1)


@pytest.fixture
def chance() -> random.Random:
    seed = int(os.environ.get(SEED) or random.SystemRandom().randrange(2**32))
    print(f"{SEED}={seed}")
    return random.Random(seed)


@pytest.fixture
def server(run_home: Path) -> Iterator[EmbeddedServer]:
    """A server of the test's own, with a migrated database."""
    home = run_home / f"chaos-{os.getpid()}-{next(_numbers)}"
    home.mkdir(mode=0o711)
    made = EmbeddedServer(home, settings=SERVER_SETTINGS)
    try:
        with psycopg.connect(made.start(), autocommit=True) as connection:
            migrate.migrate(connection)
            connection.execute(TABLE)
        yield made
    finally:
        made.stop()


@pytest.fixture
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    (kind,) = (each for each in benches() if each.name == request.param)
    yield from bench_of(kind, request, tmp_path)


class Source:
    """Publishes in a thread of its own, again and again what it cannot be sure of."""

    def __init__(self, broker: Bench, messages: list[Outgoing], url: str) -> None:
        self._broker = broker
        self._messages = messages
        self._url = url
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            ahead = AHEAD.get(self._broker.name)
            chunk = CHUNK if ahead is None else ahead // 3
            for first in range(0, len(self._messages), chunk):
                while ahead is not None and first - decided(self._url) > ahead - chunk:
                    time.sleep(0.1)
                while True:
                    try:
                        self._broker.publish(self._messages[first : first + chunk])
                    except BrokerLost:
                        time.sleep(0.2)
                    else:
                        break
        except BaseException as error:  # noqa: BLE001 - raised again by the test's own thread
            self.error = error

    def end(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


class Consuming:
    """A consumer process."""

    def __init__(self, url: str, broker: Bench, log: Path) -> None:
        command = [sys.executable, "-m", "onefold.infrastructure.cli", "consume", broker.url]
        command += ["--consumer", "deposits", "--app", "chaos_bank:app", "--buffer", "500", "--batch", "100"]
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                command,
                cwd=FOLDER,
                env={**os.environ, "ONEFOLD_DATABASE_URL": url},
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
            )

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(20)

    def stop(self) -> int:
        """Ask it to stop, unless it has ended by itself, and return its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(30)


def messages_of(accounts: int, chance: random.Random) -> tuple[list[Outgoing], dict[str, list[int]]]:
    """Return what is published, and the amounts of each account in their order."""
    amounts = {f"a{n}": [chance.randint(1, 1_000) for _ in range(VERSIONS)] for n in range(accounts)}
    once = [(account, version) for version in range(VERSIONS) for account in amounts]
    copies = {place: f"copy-{place}" for place in chance.sample(range(len(once)), len(once) // 4)}
    places = [(place + chance.uniform(0, WINDOW), place, None) for place in range(len(once))]
    places += [(place + chance.uniform(0, WINDOW), place, name) for place, name in copies.items()]
    found = []
    for _, place, name in sorted(places, key=lambda entry: entry[0]):
        account, version = once[place]
        more = {} if name is None else {"id": name, "source": "/elsewhere"}
        found.append(envelope(account, version + 1, amounts[account][version], **more))
    return found, amounts


@pytest.mark.parametrize("broker", NAMES, indirect=True)
def test_killed_consumers_end_where_one_that_never_failed_would(
    broker: Bench, server: EmbeddedServer, chance: random.Random, tmp_path: Path
) -> None:
    """C01, C14, C20, C27, C60-C65"""
    messages, amounts = messages_of(ACCOUNTS.get(broker.name, 200), chance)
    total = len(amounts) * VERSIONS
    restart, cut = chance.sample(range(1, KILLS), 2)
    url = server.start()
    log = tmp_path / "consumers.log"
    source = Source(broker, messages, url)
    if not broker.networked:
        source.end()
    killed_at_work = 0
    for number in range(KILLS):
        process = Consuming(url, broker, log)
        life = chance.uniform(0.7, 2.3)
        if number in (restart, cut):
            time.sleep(life)
            if number == restart:
                server.stop()
                time.sleep(0.3)
                server.start()
            elif broker.networked:
                broker.cut()
                time.sleep(0.3)
                broker.restore()
        time.sleep(life)
        before = applied(url)
        process.kill()
        killed_at_work += 0 < before < total
    printed = len(log.read_text())
    process = Consuming(url, broker, log)
    try:
        source.end()
        # Before that it does not know how to stop.
        until(lambda: "consuming deposits" in log.read_text()[printed:])
        settle(url, total, log)
        # One that reads a file ends with it.
        assert process.stop() == 0, log.read_text()[-3_000:]
    finally:
        process.kill()
    print(f"{killed_at_work} of {KILLS} were killed in the middle")
    with psycopg.connect(url, autocommit=True) as connection:
        assert balances(connection) == {account: sum(each) for account, each in sorted(amounts.items())}
        assert disordered(connection) == []
        assert parked(connection) == []
        assert connection.execute("SELECT count(*) FROM onefold.dead_letters").fetchone() == (0,)
        rows = connection.execute(
            "SELECT split_part(stream, '/', 2), array_agg((data ->> 'amount')::int ORDER BY version), "
            "max(version) FROM onefold.events GROUP BY 1"
        ).fetchall()
        assert {account: found for account, found, _ in rows} == amounts
        assert {version for *_, version in rows} == {VERSIONS}
        assert outcomes(connection)["applied"] == total
        assert outcomes(connection)["duplicate"] >= total // 4


def applied(url: str) -> int:
    with contextlib.suppress(psycopg.OperationalError), psycopg.connect(url) as connection:
        return outcomes(connection).get("applied", 0)
    return 0


def decided(url: str) -> int:
    """Return how many messages are done, or wait for others."""
    with contextlib.suppress(psycopg.OperationalError), psycopg.connect(url) as connection:
        found = outcomes(connection)
        return found.get("applied", 0) + found.get("duplicate", 0) + len(parked(connection))
    return 0


def settle(url: str, total: int, log: Path, seconds: float = 60.0) -> None:
    """Wait until all is applied and nothing more comes."""
    deadline = time.monotonic() + seconds
    with psycopg.connect(url, autocommit=True) as connection:
        counts: dict[str, int] = {}
        since = time.monotonic()
        while True:
            found = outcomes(connection)
            if found != counts:
                counts, since = found, time.monotonic()
            done = counts.get("applied", 0) == total and counts.get("duplicate", 0) >= total // 4
            if done and time.monotonic() - since > 1.0:
                return
            assert time.monotonic() < deadline, f"{counts}; {log.read_text()[-3_000:]}"
            time.sleep(0.05)


class Sluggish:
    """A subscription of a worker that hangs: while `hung` is set, its broker hears nothing of it."""

    def __init__(self, kept: Subscription, hung: threading.Event) -> None:
        self._kept = kept
        self._hung = hung

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kept, name)

    def receive(self, limit: int, timeout: float) -> Any:
        while self._hung.is_set():
            time.sleep(0.05)
        return self._kept.receive(limit, timeout)

    def acknowledge(self, deliveries: list[Delivery]) -> None:
        while self._hung.is_set():
            time.sleep(0.05)
        self._kept.acknowledge(deliveries)


@pytest.mark.parametrize("broker", ["mock-kafka"], indirect=True)
def test_a_zombie_is_refused_by_the_database(
    broker: Bench, database_url: str, connection: psycopg.Connection[Any]
) -> None:
    """C60: a member hangs in the middle of a batch, its partitions go to another, and then it wakes up."""
    connection.execute(ACCOUNTS_TABLE)
    hung, wake = threading.Event(), threading.Event()
    options: dict[str, Any] = {
        "retention": Retention(redelivery=86_400.0),
        "retry": Retry(attempts=50, first=0.05, longest=0.2),
    }

    def hangs(message: Message, tx: Transaction) -> None:
        deposit(message, tx)
        if message.extensions["sequence"] == "3" and not wake.is_set():
            hung.set()
            assert wake.wait(60)

    broker.publish([envelope(f"a{n}", version) for version in range(1, 11) for n in range(20)])
    url = f"{broker.url.partition('?')[0]}?session.timeout.ms=3000&heartbeat.interval.ms=500"
    url += "&max.poll.interval.ms=3500"
    zombie = Running(
        Consumption(
            database_url,
            deposits(hangs, **options),
            url,
            subscription=lambda: Sluggish(subscribe(url, "deposits"), hung),
            batch=10,
        )
    )
    heir = None
    try:
        until(hung.is_set, 30)
        stood = sum(balances(connection).values())
        heir = Running(Consumption(database_url, deposits(**options), url, batch=10))
        # What the zombie has in hand is kept from the heir until one knows what becomes of it.
        until(lambda: outcomes(connection).get("in_progress", 0) > 0, 40)
        assert stood <= sum(balances(connection).values()) < 200
        hung.clear()
        wake.set()
        until(lambda: sum(balances(connection).values()) == 200, 30)
        until(lambda: zombie.consumption.intake.lost or not zombie.consumption.intake.in_flight, 20)
    finally:
        hung.clear()
        wake.set()
        zombie.finish()
        if heir is not None:
            heir.finish()
    assert balances(connection) == {f"a{n}": 10 for n in range(20)}
    assert disordered(connection) == []
    assert parked(connection) == []
    assert outcomes(connection)["applied"] == 200
    assert outcomes(connection)["duplicate"] > 0

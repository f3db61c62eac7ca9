"""Real relay processes that are killed at random and suspended, while writers commit late and brokers fail.

What a run does follows from its seed, which it prints; ONEFOLD_CHAOS_SEED repeats one.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pika
import psycopg
import pytest

from onefold.domain.event import EventMeta
from onefold.infrastructure.announcing import announcer
from onefold.infrastructure.brokers import subscribe
from onefold.infrastructure.brokers.envelope import read
from onefold.infrastructure.consuming.consumption import Consumption
from onefold.infrastructure.postgres.log import EventLog
from onefold.infrastructure.postgres.pool import open_pool

from ..conformance.benches import Bench, bench_of, benches
from ..infrastructure.consuming.running import Running, until
from ..services.fixtures import StartService
from ..services.proxy import Proxy
from ..services.rabbitmq import RABBITMQ
from .chaos.chaos_till import TABLE, Till, app, takings

SEED = "ONEFOLD_CHAOS_SEED"
FOLDER = Path(__file__).with_name("chaos")
LEASE = 2
BATCH = 20
"""Few, so that a process is likely to be killed between publishing and noting it."""
WRITERS = 4
_numbers = itertools.count(1)
SECONDS = 12.0
"""How long writers take for the second half of what they write."""


@pytest.fixture
def chance() -> random.Random:
    seed = int(os.environ.get(SEED) or random.SystemRandom().randrange(2**32))
    print(f"{SEED}={seed}")
    return random.Random(seed)


class Place:
    """Where a relay publishes to, a consumer reads from, and all that arrived can be read again in its order."""

    proxy: Proxy | None = None

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.target = self.source = self.audit = bench.url
        if bench.networked:
            self.proxy = bench.proxy  # type: ignore[attr-defined]

    def fail(self) -> None:
        if self._bench.networked:
            self._bench.cut()

    def mend(self) -> None:
        if self._bench.networked:
            self._bench.restore()

    def hold_up(self, seconds: float) -> None:
        """Keep all that is sent, and all answers, on their way; `let_go` passes them on."""
        if self.proxy is not None:
            self.proxy.freeze()
            time.sleep(seconds)

    def let_go(self) -> None:
        if self.proxy is not None:
            self.proxy.thaw()


class RabbitPlace(Place):
    """A RabbitMQ of the test's own, which is killed, with an exchange and two queues."""

    def __init__(self, start: StartService, proxy: Proxy) -> None:
        self._service = start(RABBITMQ)
        self.proxy = proxy
        proxy.target = self._service.port
        url = self._service.url
        connection = pika.BlockingConnection(pika.URLParameters(url))
        channel = connection.channel()
        channel.exchange_declare("till", "fanout", durable=True)
        channel.exchange_declare("dead", "fanout", durable=True)
        for queue in ("takings", "audit"):
            arguments = {"x-queue-type": "quorum", "x-dead-letter-exchange": "dead", "x-delivery-limit": 100}
            channel.queue_declare(queue, durable=True, arguments=arguments)
            channel.queue_bind(queue, "till")
        connection.close()
        self.target = f"{RABBITMQ.url(proxy.port)}?exchange=till"
        self.source, self.audit = f"{url}?queue=takings", f"{url}?queue=audit"

    def fail(self) -> None:
        self._service.kill()

    def mend(self) -> None:
        self._service.start()


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "rabbitmq":
        with Proxy() as proxy:
            yield RabbitPlace(request.getfixturevalue("start_service"), proxy)
        return
    (kind,) = (each for each in benches() if each.name == request.param)
    for bench in bench_of(kind, request, tmp_path):
        yield Place(bench)


class Relaying:
    """A relay process."""

    def __init__(self, url: str, channel: str, target: str, folder: Path) -> None:
        self._log = folder / f"relay-{next(_numbers)}.log"
        command = [sys.executable, "-m", "onefold.infrastructure.cli", "relay", channel, "--to", target]
        command += ["--app", "chaos_till:app", "--lease", str(LEASE), "--batch", str(BATCH)]
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                command,
                cwd=FOLDER,
                env={**os.environ, "ONEFOLD_DATABASE_URL": url},
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
            )

    @property
    def said(self) -> str:
        """What it has printed."""
        return self._log.read_text()

    def holds(self, connection: psycopg.Connection[Any]) -> int:
        """Return how many segments are in its hands."""
        row = connection.execute(
            "SELECT count(*) FROM onefold.relays WHERE split_part(owner, ':', 2) = %s",
            (str(self._process.pid),),
        ).fetchone()
        return 0 if row is None else int(row[0])

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(20)

    def stop(self) -> int:
        """Ask it to stop, once it knows how to, and return its exit code."""
        until(lambda: "publishing" in self.said)
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(30)


class Writers:
    """Append to the log in threads of their own; half is there at once, the other half comes in `seconds`.

    Each holds its transactions open for a while, so that positions become visible out of their order.
    """

    def __init__(
        self,
        url: str,
        names: Sequence[str],
        versions: int,
        seconds: float,
        chance: random.Random,
    ) -> None:
        self.amounts = {name: [chance.randint(1, 1_000) for _ in range(versions)] for name in names}
        self._seconds = seconds
        self._errors: list[BaseException] = []
        self._stack = ExitStack()
        self._pool = self._stack.enter_context(open_pool(url, size=WRITERS))
        self._log = EventLog(self._pool, announcer=announcer(app))
        self._threads = [
            threading.Thread(
                target=self._run,
                args=(names[n::WRITERS], versions, random.Random(chance.random())),
                daemon=True,
            )
            for n in range(WRITERS)
        ]
        for version in range(versions // 2):
            self._write(names, version, 0)
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        self._stack.close()
        if self._errors:
            raise self._errors[0]

    def _run(self, names: list[str], versions: int, chance: random.Random) -> None:
        try:
            rounds = range(versions // 2, versions)
            for version in rounds:
                pause = self._seconds / len(rounds)
                hold = chance.uniform(0, pause)
                self._write(names, version, hold)
                time.sleep(pause - hold)
        except BaseException as error:  # noqa: BLE001 - raised again by the test's own thread
            self._errors.append(error)

    def _write(self, names: list[str], version: int, hold: float) -> None:
        with self._pool.connection() as connection, connection.transaction():
            self._log.append(
                [
                    Till.Taken(amount=self.amounts[name][version]).bound(EventMeta(name, version + 1))
                    for name in names
                ],
                connection=connection,
            )
            time.sleep(hold)


class Arrived:
    """What a broker has, in its order: by message, and the versions of each till as they came first."""

    def __init__(self, url: str, expected: int) -> None:
        self.forms: defaultdict[str, set[tuple[bytes, str]]] = defaultdict(set)
        self.versions: defaultdict[str, list[int]] = defaultdict(list)
        self.deliveries = 0
        subscription = subscribe(url, "audit")
        quiet = deadline = time.monotonic() + 60
        while time.monotonic() < min(quiet, deadline) and not subscription.ended:
            for delivery in (found := subscription.receive(500, 0.2)):
                message = read(delivery)
                if message.id not in self.forms:
                    self.versions[message.subject or ""].append(int(message.extensions["sequence"]))
                self.forms[message.id].add(
                    (delivery.body, json.dumps(dict(delivery.headers), sort_keys=True))
                )
                self.deliveries += 1
            subscription.acknowledge(found)
            if found or len(self.forms) < expected:
                quiet = time.monotonic() + (1 if len(self.forms) >= expected else 60)
        subscription.close()


def named(tills: int) -> list[str]:
    return [f"till/{number}" for number in range(tills)]


def prepared(connection: psycopg.Connection[Any]) -> None:
    connection.execute(TABLE)


def counted(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT coalesce(sum(count), 0)::int FROM takings").fetchone()
    return 0 if row is None else int(row[0])


def published(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT coalesce(sum(published), 0)::int FROM onefold.relays").fetchone()
    return 0 if row is None else int(row[0])


def require_each_once_in_order(
    connection: psycopg.Connection[Any], writers: Writers, audit: str, tills: int, versions: int
) -> int:
    """Return how many messages arrived more than once at the broker; none of them had an effect."""
    rows = connection.execute("SELECT till, total, count, in_order FROM takings").fetchall()
    assert {till: (total, count, in_order) for till, total, count, in_order in rows} == {
        till: (sum(amounts), versions, True) for till, amounts in writers.amounts.items()
    }
    assert connection.execute("SELECT count(*) FROM onefold.dead_letters").fetchone() == (0,)
    assert connection.execute("SELECT count(*) FROM onefold.held_messages").fetchone() == (0,)
    # Nobody has noted anything twice, or for another.
    assert published(connection) == tills * versions
    arrived = Arrived(audit, tills * versions)
    assert len(arrived.forms) == tills * versions
    assert {len(forms) for forms in arrived.forms.values()} == {1}
    assert dict(arrived.versions) == {till: [*range(1, versions + 1)] for till in writers.amounts}
    return arrived.deliveries - len(arrived.forms)


CHAOS = [
    ("kafka", "takings", 200, 50, 10),
    ("rabbitmq", "takings", 200, 50, 10),
    ("redis", "logged", 50, 20, 4),
]
CHAOS += [("file", "takings", 50, 20, 4)]


@pytest.mark.parametrize(
    ("place", "channel", "tills", "versions", "kills"),
    CHAOS,
    indirect=["place"],
    ids=[each[0] for each in CHAOS],
)
def test_killed_relays_publish_everything_and_each_effect_is_made_once(
    place: Place,
    channel: str,
    tills: int,
    versions: int,
    kills: int,
    database_url: str,
    connection: psycopg.Connection[Any],
    chance: random.Random,
    tmp_path: Path,
) -> None:
    """C40-C42, C21"""
    prepared(connection)
    total = tills * versions
    writers = Writers(database_url, named(tills), versions, SECONDS * kills / 10, chance)
    relays = [Relaying(database_url, channel, place.target, tmp_path) for _ in range(2)]
    until(lambda: published(connection) > 0, 30)
    read_once = place.source.startswith("file:")
    consuming = None if read_once else Running(Consumption(database_url, takings, place.source))
    failing = chance.randrange(1, kills)
    in_the_middle = 0
    try:
        for number in range(kills):
            time.sleep(chance.uniform(0.3, 1.8))
            if number == failing:
                place.fail()
                time.sleep(0.3)
                place.mend()
            victim = chance.randrange(2)
            until(lambda: relays[victim].holds(connection) > 0, 30)  # noqa: B023 - is called at once
            if chance.random() < 0.5:
                place.hold_up(chance.uniform(0.05, 0.3))
            in_the_middle += 0 < published(connection) < total
            relays[victim].kill()
            place.let_go()
            relays[victim] = Relaying(database_url, channel, place.target, tmp_path)
        writers.end()
        until(lambda: published(connection) == total, 60)
        if consuming is None:
            consuming = Running(Consumption(database_url, takings, place.source, once=True))
        until(lambda: counted(connection) == total, 60)
        assert [each.stop() for each in relays] == [0, 0], [each.said[-2_000:] for each in relays]
    finally:
        for each in relays:
            each.kill()
        if consuming is not None:
            consuming.finish()
    again = require_each_once_in_order(connection, writers, place.audit, tills, versions)
    print(
        f"{in_the_middle} of {kills} were killed in the middle; {again} of {total:,} messages went out again"
    )


@pytest.mark.parametrize("place", ["kafka", "rabbitmq"], indirect=True)
def test_a_revived_relay_cannot_note_what_has_gone_to_another(
    place: Place,
    database_url: str,
    connection: psycopg.Connection[Any],
    chance: random.Random,
    tmp_path: Path,
) -> None:
    """C40, C41: it is suspended between publishing and noting, and wakes up when another has done both."""
    prepared(connection)
    tills, versions = 80, 20
    half, count = tills // 2, tills * versions // 2
    stale = Relaying(database_url, "takings", place.target, tmp_path)
    heir = None
    consuming = Running(Consumption(database_url, takings, place.source))
    try:
        until(lambda: stale.holds(connection) == 4, 30)
        # Its connections to the broker are made, and used.
        first = Writers(database_url, named(tills)[:half], versions, 0, chance)
        first.end()
        until(lambda: published(connection) == count, 30)
        place.hold_up(0)
        more = Writers(database_url, named(tills)[half:], versions, 0, chance)
        time.sleep(1)
        assert published(connection) == count
        stale.signal(signal.SIGSTOP)
        place.let_go()
        tokens = tokens_of(connection)
        heir = Relaying(database_url, "takings", place.target, tmp_path)
        more.end()
        until(lambda: published(connection) == 2 * count, 30)
        assert heir.holds(connection) == 4
        noted = noted_of(connection)
        stale.signal(signal.SIGCONT)
        until(lambda: stale.said.count("is in the hands of another process") >= 1, 30)
        assert published(connection) == 2 * count
        assert noted_of(connection) == noted
        assert all(now > then for now, then in zip(tokens_of(connection), tokens, strict=True))
        # It is one of two from now on.
        until(lambda: stale.holds(connection) == heir.holds(connection) == 2, 30)
        until(lambda: counted(connection) == 2 * count, 30)
        assert [stale.stop(), heir.stop()] == [0, 0]
    finally:
        for each in (stale, heir):
            if each is not None:
                each.kill()
        consuming.finish()
    more.amounts.update(first.amounts)
    again = require_each_once_in_order(connection, more, place.audit, tills, versions)
    assert again > 0
    print(f"{again} messages went out again")


def noted_of(connection: psycopg.Connection[Any]) -> list[int]:
    """Return how many messages are noted as published, by segment."""
    return [count for (count,) in connection.execute("SELECT published FROM onefold.relays ORDER BY segment")]


def tokens_of(connection: psycopg.Connection[Any]) -> list[int]:
    return [token for (token,) in connection.execute("SELECT token FROM onefold.relays ORDER BY segment")]

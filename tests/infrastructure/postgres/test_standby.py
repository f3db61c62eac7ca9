"""Reading the log on a hot standby: checkpoints that have arrived there vouch for holes, and nothing else does."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from eventsourcing.persistence import InfrastructureFactory, InternalError, StoredEvent
from eventsourcing.utils import Environment
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.sql import SQL, Identifier

from onefold.domain.event import Event, EventMeta
from onefold.domain.registry import Registry
from onefold.infrastructure import cluster, system_account
from onefold.infrastructure.embedded import EmbeddedServer
from onefold.infrastructure.postgres import Factory
from onefold.infrastructure.postgres.holders import STANDBY
from onefold.infrastructure.postgres.horizon import Horizon
from onefold.infrastructure.postgres.log import EventLog
from onefold.infrastructure.postgres.migrate import migrate
from onefold.infrastructure.postgres.pool import configure, open_pool
from onefold.infrastructure.postgres.reader import LogReader, Stall
from onefold.infrastructure.postgres.recorders import ApplicationRecorder
from onefold.infrastructure.worker import Worker
from onefold.projections.engine import Progress
from onefold.projections.projection import SqlProjection

known = Registry()
numbers = itertools.count(1)
Connection = psycopg.Connection[Any]
Read = Callable[[int], tuple[list[int], bool]]
"""What a reader delivers after a position: the positions, and whether it waits at a hole."""


class Noted(Event, name="standby.noted", registry=known):
    text: str = ""


class Pair:
    """A primary and a standby that follows it."""

    def __init__(self, primary_url: str, standby_url: str) -> None:
        self.primary_url = primary_url
        self.standby_url = standby_url


@contextlib.contextmanager
def standby_of(primary: EmbeddedServer, url: str, folder: Path, port: int) -> Iterator[str]:
    """Start a copy of the primary that follows it, on another socket in its folder; ended at the exit."""
    programs = cluster.programs()
    folder.mkdir(mode=0o711)
    account = system_account.choose(primary.data, folder, programs / "postgres")
    data = folder / "data"
    data.mkdir(mode=0o700)
    account.own(data)
    address = {**conninfo_to_dict(url), "dbname": ""}
    run: dict[str, Any] = {"cwd": "/", "env": cluster.environment(), "stdin": subprocess.DEVNULL}
    copied = subprocess.run(
        [
            *(*account.prefix, str(programs / "pg_basebackup"), f"--pgdata={data}"),
            *("--write-recovery-conf", "--checkpoint=fast", "--wal-method=stream", "--no-sync"),
            f"--dbname={make_conninfo('', **address)}",
        ],
        check=False,
        capture_output=True,
        text=True,
        **run,
    )
    if copied.returncode != 0:
        reason = f"expected pg_basebackup to copy the primary, found: {copied.stderr.strip()}"
        if os.environ.get("ONEFOLD_REQUIRE_SERVICES") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    standby_url = make_conninfo(url, port=port)
    command = [*account.prefix, str(programs / "postgres"), "-D", str(data), "-c", f"port={port}"]
    with (
        (folder / "standby.log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, **run) as process,
    ):
        try:
            await_connection(standby_url, process, folder / "standby.log")
            yield standby_url
        finally:
            # Fast shutdown, whoever is connected.
            process.send_signal(signal.SIGINT)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGQUIT)


def await_connection(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"expected the standby to take connections, found: {log.read_text()}")
            time.sleep(0.02)
        else:
            return


@pytest.fixture(scope="module")
def folder(run_home: Path) -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="pair-", dir=run_home))
    # Root's servers run under another account, which must be able to pass.
    made.chmod(0o711)
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def primary(folder: Path) -> Iterator[tuple[EmbeddedServer, str]]:
    chosen = {"max_prepared_transactions": "5", "fsync": "off", "shared_buffers": "32MB"}
    server = EmbeddedServer(folder / "primary", settings=chosen)
    with server.hold() as url:
        with psycopg.connect(url, autocommit=True) as connection:
            migrate(connection)
        yield server, url


@pytest.fixture(scope="module")
def pair(primary: tuple[EmbeddedServer, str], folder: Path) -> Iterator[Pair]:
    """The pair that the tests share; none of them promotes its standby."""
    server, url = primary
    with standby_of(server, url, folder / "standby", 5433) as standby_url:
        yield Pair(url, standby_url)


@pytest.fixture
def passing_pair(primary: tuple[EmbeddedServer, str], folder: Path) -> Iterator[Pair]:
    """A standby of the test's own, to be promoted."""
    server, url = primary
    with standby_of(server, url, folder / "promoted", 5434) as standby_url:
        yield Pair(url, standby_url)


class Scene:
    """A log of the test's own, sessions that append to it on the primary, and readers of it on the standby."""

    def __init__(self, pair: Pair, held: contextlib.ExitStack) -> None:
        self.pair = pair
        self.log = f"log_{next(numbers)}"
        self._held = held
        self.primary = self.connect(pair.primary_url)
        self.standby = self.connect(pair.standby_url)
        self.primary.execute("SELECT onefold.create_log('onefold', %s)", (self.log,))
        self.projection = SqlProjection(
            self.log, tables=(), create="", statements=(), log=self.log, registry=known
        )
        self.catch_up()

    def connect(self, url: str, *, autocommit: bool = True) -> Connection:
        return self._held.enter_context(psycopg.connect(url, autocommit=autocommit))

    def append(self, connection: Connection | None = None) -> int:
        """Append one event to a new stream, in the transaction of `connection` or in one of its own."""
        query = SQL(
            "INSERT INTO onefold.{} (version, event_id, stream, type, data)"
            " VALUES (1, gen_random_uuid(), gen_random_uuid()::text, 'standby.noted', '{{}}') RETURNING position"
        )
        found = (connection or self.primary).execute(query.format(Identifier(self.log))).fetchone()
        assert found is not None
        return int(found[0])

    def session(self, url: str | None = None) -> Connection:
        """Return a connection whose first statement opens a transaction."""
        return self.connect(url or self.pair.primary_url, autocommit=False)

    def catch_up(self) -> None:
        """Wait until the standby has replayed what is committed on the primary."""
        deadline = time.monotonic() + 30
        (end,) = self.primary.execute("SELECT pg_current_wal_flush_lsn()").fetchone() or (None,)
        while self.standby.execute(
            "SELECT pg_last_wal_replay_lsn() < %s::text::pg_lsn", (str(end),)
        ).fetchone() != (False,):
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def work(self) -> Progress:
        """Bring the projection on the primary up to where it can go, and its checkpoint to the standby."""
        progress = Worker(self.pair.primary_url, self.projection).run_once(patience=0)
        self.catch_up()
        return progress

    def log_reader(self) -> Read:
        """Return a reader of the engine, on a connection to the standby."""
        connection = self.connect(self.pair.standby_url)
        configure(connection)
        reader = LogReader(connection, log=self.log, registry=known)

        def read(after: int) -> tuple[list[int], bool]:
            page = reader.read(after, 100)
            assert page.upto == (page.records[-1][0] if page.records else after)
            return [record[0] for record in page.records], page.waiting

        return read

    def factory(self, **settings: str) -> Factory:
        """Return a factory of the library, connected to the standby unless the settings say otherwise."""
        env = {
            "PERSISTENCE_MODULE": "onefold.infrastructure.postgres",
            "ONEFOLD_DATABASE_URL": self.pair.standby_url,
            "ORIGINATOR_ID_TYPE": "text",
            **settings,
        }
        factory = InfrastructureFactory.construct(Environment("", env))
        assert isinstance(factory, Factory)
        self._held.callback(factory.close)
        return factory

    def recorder(self, **settings: str) -> ApplicationRecorder:
        """Return a recorder of the library for this log, connected to the standby."""
        return ApplicationRecorder(self.factory(**settings).datastore, events_table_name=self.log)

    def library_reader(self, **settings: str) -> Read:
        recorder = self.recorder(**settings)

        def read(after: int) -> tuple[list[int], bool]:
            page = recorder.read_page(after, 100)
            return [notification.id for notification in page.notifications], page.waiting

        return read

    def library_reader_of_one_connection(self) -> Read:
        return self.library_reader(POSTGRES_POOL_SIZE="1", POSTGRES_MAX_OVERFLOW="0")


@pytest.fixture
def scene(pair: Pair) -> Iterator[Scene]:
    with contextlib.ExitStack() as held:
        yield Scene(pair, held)


@pytest.fixture(params=["log_reader", "library_reader"])
def read(request: pytest.FixtureRequest, scene: Scene) -> Read:
    """A reader on the standby: that of the engine, and that of the library's recorders."""
    made: Read = getattr(scene, request.param)()
    return made


def test_a_log_without_a_hole_is_read_to_its_end(scene: Scene, read: Read) -> None:
    assert read(0) == ([], False)
    written = [scene.append() for _ in range(5)]
    scene.catch_up()
    assert read(0) == (written, False)
    assert read(2) == (written[2:], False)
    written.append(scene.append())
    scene.catch_up()
    assert read(5) == (written[5:], False)


def test_a_hole_is_passed_over_once_a_worker_on_the_primary_has_passed_it(scene: Scene, read: Read) -> None:
    session = scene.session()
    assert (scene.append(), scene.append(session), scene.append()) == (1, 2, 3)
    session.rollback()
    scene.catch_up()
    for _ in range(3):
        assert read(0) == ([1], True)
        assert read(1) == ([], True)
    assert scene.work().position == 3
    assert read(1) == ([3], False)
    assert read(0) == ([1, 3], False)


@pytest.mark.parametrize("kind", ["log_reader", "library_reader_of_one_connection"])
def test_a_hole_that_is_known_to_be_one_stays_so_while_the_projection_is_built_anew(
    scene: Scene, kind: str
) -> None:
    read: Read = getattr(scene, kind)()
    session = scene.session()
    assert (scene.append(), scene.append(session), scene.append()) == (1, 2, 3)
    session.rollback()
    scene.work()
    assert read(0) == ([1, 3], False)
    scene.primary.execute(
        "UPDATE onefold.checkpoints SET position = 0 WHERE projection = %s", (scene.projection.name,)
    )
    scene.catch_up()
    assert read(0) == ([1, 3], False)
    assert (scene.append(session), scene.append()) == (4, 5)
    scene.catch_up()
    for _ in range(3):
        assert read(0) == ([1, 3], True)
    session.rollback()


def test_an_event_that_commits_late_is_not_skipped(scene: Scene, read: Read) -> None:
    session = scene.session()
    assert (scene.append(), scene.append(session), scene.append()) == (1, 2, 3)
    progress = scene.work()
    assert (progress.position, progress.waiting) == (1, True)
    for _ in range(3):
        assert read(0) == ([1], True)
        assert read(1) == ([], True)
    session.commit()
    scene.catch_up()
    assert read(1) == ([2, 3], False)


def test_beyond_the_checkpoint_only_what_has_no_hole_is_delivered(scene: Scene, read: Read) -> None:
    dead, late = scene.session(), scene.session()
    assert (scene.append(dead), scene.append()) == (1, 2)
    dead.rollback()
    assert scene.work().position == 2
    assert (scene.append(), scene.append(late), scene.append()) == (3, 4, 5)
    scene.catch_up()
    for _ in range(3):
        assert read(2) == ([3], True)
        assert read(3) == ([], True)
    assert read(0) == ([2, 3], True)
    late.commit()
    scene.catch_up()
    assert read(0) == ([2, 3, 4, 5], False)


def test_a_checkpoint_of_another_log_vouches_for_nothing(scene: Scene, read: Read) -> None:
    session = scene.session()
    assert (scene.append(session), scene.append()) == (1, 2)
    for log in (f"{scene.log}x", f"onefold.{scene.log}"):
        scene.primary.execute(
            "INSERT INTO onefold.checkpoints (projection, log, position, fingerprint) VALUES (%s, %s, 99, '')",
            (f"of {log}", log),
        )
    scene.catch_up()
    for _ in range(3):
        assert read(0) == ([], True)
    session.rollback()


def test_a_log_of_the_same_name_in_another_schema_is_another_log(scene: Scene) -> None:
    scene.primary.execute("CREATE SCHEMA IF NOT EXISTS elsewhere")
    scene.primary.execute("SELECT onefold.create_log('elsewhere', %s)", (scene.log,))
    scene.append()
    scene.append()
    assert scene.work().position == 2
    assert Horizon("onefold", scene.log).settle(scene.standby) == 2
    assert Horizon("elsewhere", scene.log).settle(scene.standby) == 0


def test_what_one_server_tells_is_not_relied_on_at_another_that_is_behind(scene: Scene) -> None:
    """A pool may lead to the primary and to its standbys."""
    session = scene.session()
    assert (scene.append(), scene.append(session), scene.append()) == (1, 2, 3)
    scene.catch_up()
    scene.standby.execute("SELECT pg_wal_replay_pause()")
    try:
        session.commit()
        assert Worker(scene.pair.primary_url, scene.projection).run_once().position == 3
        horizon = Horizon("onefold", scene.log)
        assert horizon.settle(scene.primary) == horizon.settled(scene.primary) == 3
        assert horizon.settled(scene.standby) == horizon.settle(scene.standby) == 0
        assert horizon.settled(scene.standby) == 0
    finally:
        scene.standby.execute("SELECT pg_wal_replay_resume()")
    scene.catch_up()
    assert horizon.settle(scene.standby) == 3


def test_whatever_is_under_way_on_the_primary_each_event_is_read_once_in_order(scene: Scene) -> None:
    reads = [scene.log_reader(), scene.library_reader()]
    seen: list[list[int]] = [[], []]
    worker = Worker(scene.pair.primary_url, scene.projection)

    def write(seed: int) -> None:
        chance = random.Random(seed)
        with psycopg.connect(scene.pair.primary_url) as connection:
            for _ in range(60):
                for _ in range(chance.randint(1, 3)):
                    scene.append(connection)
                time.sleep(chance.uniform(0, 0.02))
                (connection.rollback if chance.random() < 0.2 else connection.commit)()

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(4)]
    working = threading.Thread(target=worker.run)
    for thread in (*writers, working):
        thread.start()
    try:
        end, deadline = None, time.monotonic() + 60
        while end is None or any(positions[-1:] != [end] for positions in seen):
            assert time.monotonic() < deadline
            for reading, positions in zip(reads, seen, strict=True):
                positions += reading(positions[-1] if positions else 0)[0]
            if end is None and not any(thread.is_alive() for thread in writers):
                end = scene.append()
    finally:
        worker.stop()
        for thread in (*writers, working):
            thread.join()
    stored = scene.primary.execute(
        SQL("SELECT position FROM onefold.{} ORDER BY position").format(Identifier(scene.log))
    ).fetchall()
    assert seen == [[position for (position,) in stored]] * 2
    assert stored[-1][0] > len(stored), "some were rolled back"


def test_a_subscription_on_a_standby_goes_on_as_events_arrive(scene: Scene) -> None:
    session = scene.session()
    assert (scene.append(), scene.append(session), scene.append()) == (1, 2, 3)
    session.rollback()
    scene.catch_up()
    recorder = scene.recorder()
    assert [found.id for found in recorder.select_notifications(None, 10)] == [1]
    assert recorder.select_notifications(2, 10) == []
    with recorder.subscribe(gt=0) as subscription:
        patience = threading.Timer(30, subscription.stop)
        patience.start()
        assert next(subscription).id == 1
        scene.work()
        assert next(subscription).id == 3
        scene.append()
        assert next(subscription).id == 4
        patience.cancel()
        patience.join()


@pytest.mark.parametrize("create", ["yes", "no"])
def test_an_application_of_the_library_starts_on_a_standby_once_its_log_is_there(
    scene: Scene, create: str
) -> None:
    there = scene.factory(ONEFOLD_DATABASE_URL=scene.pair.primary_url).application_recorder()
    there.insert_events([StoredEvent(scene.log + create, 1, "a:B", b"{}")])
    scene.catch_up()
    here = scene.factory(CREATE_TABLE=create).application_recorder()
    assert here.select_notifications(None, 10) == there.select_notifications(None, 10)
    assert len(here.select_events(scene.log + create)) == 1


def test_readers_of_a_promoted_standby_go_over_to_the_locks(passing_pair: Pair) -> None:
    with contextlib.ExitStack() as held:
        scene = Scene(passing_pair, held)
        dead, late = scene.session(), scene.session()
        assert (scene.append(), scene.append(dead), scene.append(late), scene.append()) == (1, 2, 3, 4)
        late.execute("PREPARE TRANSACTION 'late'")
        scene.catch_up()
        reads = [scene.log_reader(), scene.library_reader()]
        for reading in reads * 2:
            assert reading(0) == ([1], True)
        scene.standby.execute("SELECT pg_promote()")
        # The append that was open has ended with its server; the one that was prepared there goes on here.
        for reading in reads * 3:
            assert reading(0) == ([1], True)
            assert reading(1) == ([], True)
        scene.standby.execute("COMMIT PREPARED 'late'")
        for reading in reads:
            assert reading(1) == ([3, 4], False)
        newer = scene.session(passing_pair.standby_url)
        hole = scene.append(newer)
        last = scene.append(scene.standby)
        for reading in reads * 3:
            assert reading(4) == ([], True)
        newer.commit()
        for reading in reads:
            assert reading(4) == ([hole, last], False)
        late.autocommit = True
        late.execute("ROLLBACK PREPARED 'late'")


@pytest.mark.parametrize("present", [set(), {("3/1", 30)}, {("-1/700", None)}])
def test_on_a_standby_a_stall_tells_nothing_new(present: set[Any]) -> None:
    for holders in ({STANDBY}, {("3/1", 30)}, {("-1/700", None)}):
        stall = Stall(9, frozenset(holders))
        assert stall.narrowed(frozenset({STANDBY, *present})) == stall


def test_after_a_promotion_only_prepared_transactions_are_waited_for() -> None:
    stall, prepared = Stall(9, frozenset({STANDBY})), ("-1/700", None)
    assert stall.narrowed(frozenset()) is None
    assert stall.narrowed(frozenset({("3/1", 30)})) is None
    assert stall.narrowed(frozenset({("3/1", 30), prepared})) == Stall(9, frozenset({prepared}))


def test_writing_to_a_standby_is_refused_in_one_line(scene: Scene) -> None:
    refusal = "cannot execute INSERT in a read-only transaction"
    with open_pool(scene.pair.standby_url, size=2) as pool:
        log = EventLog(pool, name=scene.log, registry=known)
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction) as refused:
            log.append([Noted().bound(EventMeta("s/1", 1))])
    assert str(refused.value) == refusal
    with pytest.raises(InternalError) as wrapped:
        scene.recorder().insert_events([StoredEvent("s", 1, "a:B", b"{}")])
    assert str(wrapped.value) == refusal
    scene.work()
    # A worker waits for a server that can be written, so that it follows a failover.
    with pytest.raises(psycopg.OperationalError, match="session is read-only"):
        Worker(scene.pair.standby_url, scene.projection).run_once(patience=0.1)

"""Workers: follow the log, stand by for each other, wait out what passes, and stop at what does not."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from onefold.domain.event import Event, EventMeta
from onefold.domain.registry import Registry
from onefold.infrastructure import worker as worker_module
from onefold.infrastructure.postgres.errors import Fenced, ReadModelChanged
from onefold.infrastructure.postgres.log import EventLog
from onefold.infrastructure.postgres.pool import open_pool
from onefold.infrastructure.postgres.table import Table
from onefold.infrastructure.wakeup import Wakeup
from onefold.infrastructure.worker import Worker
from onefold.projections.engine import Progress
from onefold.projections.errors import ProjectionFailed
from onefold.projections.policies import Retry
from onefold.projections.projection import AnyProjection, Handler, Projection
from onefold.projections.row import Row

known = Registry()
CHANNEL = "onefold_events"


class Put(Event, name="worker.put", registry=known):
    amount: int = 1


class Stock(Row, key="item"):
    item: str
    amount: int = 0
    count: int = 0


def stock(
    name: str = "stock", fold: Callable[[Put], None] = lambda _: None, **given: Any
) -> Projection[Stock]:
    made = Projection(name, Stock, registry=known, **given)

    @made.on(Put)
    def put(row: Stock | None, event: Put) -> Stock:
        fold(event)
        row = row or Stock(item=event.meta.key)
        return row.evolve(amount=row.amount + event.amount, count=row.count + 1)

    return made


class Shop:
    """A log of what is put on stock."""

    def __init__(self, log: EventLog, connection: psycopg.Connection[Any]) -> None:
        self.log = log
        self.connection = connection
        self._versions: dict[str, int] = {}

    def put(self, *items: str, amount: int = 1) -> int:
        """Append, and return the last position."""
        events = []
        for item in items:
            self._versions[item] = self._versions.get(item, 0) + 1
            events.append(Put(amount=amount).bound(EventMeta(f"stock/{item}", self._versions[item])))
        return self.log.append(events)[-1].meta.position

    def put_silently(self, item: str) -> None:
        """Append as a program that sends no wake-ups."""
        self._versions[item] = self._versions.get(item, 0) + 1
        self.connection.execute(
            "INSERT INTO onefold.events (stream, version, type, event_id, data) "
            "VALUES (%s, %s, 'worker.put', gen_random_uuid(), '{}')",
            (f"stock/{item}", self._versions[item]),
        )

    def checkpoint(self, name: str = "stock") -> dict[str, Any]:
        with self.connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
            query = "SELECT * FROM onefold.checkpoints WHERE projection = %s"
            return cursor.execute(query, (name,)).fetchone() or {
                "position": -1,
                "owner": None,
                "attempts": -1,
            }

    def counts(self, projection: Projection[Stock]) -> dict[str, int]:
        return {row.item: row.count for row in Table(projection).all(self.connection)}

    def reached(self, position: int, name: str = "stock", seconds: float = 10) -> float:
        """Wait until a projection is at a position; return how long it took."""
        return wait_until(
            lambda: self.checkpoint(name)["position"] >= position, f"{name} at {position}", seconds
        )


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 10) -> float:
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < seconds, f"expected within {seconds} s: {what}"
        time.sleep(0.002)
    return time.monotonic() - started


@pytest.fixture
def shop(database_url: str, connection: psycopg.Connection[Any]) -> Iterator[Shop]:
    with open_pool(database_url) as pool:
        yield Shop(EventLog(pool, registry=known), connection)


@contextmanager
def running(*workers: Worker) -> Iterator[list[Future[None]]]:
    """Run workers until the end of the block; what one of them raises is raised there."""
    with ThreadPoolExecutor(len(workers)) as threads:
        runs = [threads.submit(worker.run) for worker in workers]
        try:
            yield runs
        finally:
            for worker in workers:
                worker.stop()
            errors = [run.exception() for run in runs]
    for error in errors:
        if error is not None:
            raise error


# --- following -------------------------------------------------------------------------------------------------------


def test_a_single_run_applies_what_is_there_and_tells_what_it_did(shop: Shop, database_url: str) -> None:
    projection = stock()
    shop.put("a", "b", "a")
    assert Worker(database_url, projection).run_once() == Progress(position=3, applied=3, read=3)
    assert Worker(database_url, projection).run_once() == Progress(position=3)
    shop.put("b")
    assert Worker(database_url, projection).run_once() == Progress(position=4, applied=1, read=1)
    assert shop.counts(projection) == {"a": 2, "b": 2}
    assert shop.checkpoint()["owner"] is None


def test_a_run_over_an_empty_log_makes_an_empty_table(shop: Shop, database_url: str) -> None:
    assert Worker(database_url, stock()).run_once() == Progress()
    assert shop.counts(stock()) == {}


def test_a_worker_follows_the_log_by_polling_alone(shop: Shop, database_url: str) -> None:
    """Neither it nor the writer knows of wake-ups."""
    projection = stock()
    with running(Worker(database_url, projection)):
        for number in range(1, 6):
            time.sleep(0.05)
            shop.put_silently("a")
            assert shop.reached(number) < 2.0
    assert shop.counts(projection) == {"a": 5}


def test_a_worker_that_is_woken_does_not_wait_for_its_poll(
    shop: Shop, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "POLL", 60.0)
    with Wakeup(database_url, CHANNEL) as wakeup, running(Worker(database_url, stock(), wakeup=wakeup)):
        for number in range(1, 6):
            time.sleep(0.05)
            shop.put("a")
            assert shop.reached(number) < 2.0


def test_a_burst_is_applied_to_its_end_though_only_its_beginning_sends_a_wake_up(
    shop: Shop, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "POLL", 60.0)
    with Wakeup(database_url, CHANNEL) as wakeup, running(Worker(database_url, stock(), wakeup=wakeup)):
        for _ in range(20):
            time.sleep(0.03)
            for _ in range(3):
                last = shop.put("a")
            assert shop.reached(last) < 2.0


def test_a_listener_whose_connection_is_ended_listens_again(
    shop: Shop, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "POLL", 60.0)

    def listeners() -> list[int]:
        found = shop.connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'onefold listen' "
            "AND datname = current_database() AND query LIKE 'LISTEN%' AND state = 'idle'"
        )
        return [pid for (pid,) in found.fetchall()]

    with Wakeup(database_url, CHANNEL) as wakeup, running(Worker(database_url, stock(), wakeup=wakeup)):
        for number in range(1, 4):
            wait_until(lambda: len(listeners()) == 1, "somebody listens")
            (before,) = listeners()
            shop.connection.execute("SELECT pg_terminate_backend(%s, 5000)", (before,))
            wait_until(lambda old=before: listeners() not in ([], [old]), "somebody listens again")  # type: ignore[misc]
            shop.put("a")
            shop.reached(number)


def test_a_listener_is_never_idle_in_a_transaction(shop: Shop, database_url: str) -> None:
    with Wakeup(database_url, CHANNEL) as wakeup:
        seen = wakeup.wait(0, 5)
        for _ in range(3):
            time.sleep(0.02)
            shop.put("a")
            seen = wakeup.wait(seen, 5)
            found = shop.connection.execute(
                "SELECT state FROM pg_stat_activity WHERE application_name = 'onefold listen' "
                "AND datname = current_database()"
            ).fetchall()
            assert found == [("idle",)]


def test_a_wait_for_a_wake_up_ends_with_it_or_with_its_time(shop: Shop, database_url: str) -> None:
    with Wakeup(database_url, CHANNEL) as wakeup:
        seen = wakeup.wait(0, 5)
        started = time.monotonic()
        assert wakeup.wait(seen, 0.1) == seen
        assert 0.05 < time.monotonic() - started < 2.0
        wakeup.wake()
        assert wakeup.wait(seen, 5) == seen + 1
        assert wakeup.count == seen + 1


def test_a_worker_stops_at_once_when_it_is_told_to(shop: Shop, database_url: str) -> None:
    for wakeup in (None, Wakeup(database_url, CHANNEL)):
        worker = Worker(database_url, stock(), wakeup=wakeup)
        with running(worker):
            wait_until(lambda w=worker: shop.checkpoint()["owner"] == w.owner, "it works")  # type: ignore[misc]
            started = time.monotonic()
            worker.stop()
        assert time.monotonic() - started < 2.0
        assert shop.checkpoint()["owner"] is None


def test_a_worker_that_was_stopped_before_it_ran_does_nothing(shop: Shop, database_url: str) -> None:
    shop.put("a")
    worker = Worker(database_url, stock())
    worker.stop()
    worker.run()
    assert shop.checkpoint()["position"] == -1


def test_events_of_several_pages_are_read_ahead_and_written_behind(shop: Shop, database_url: str) -> None:
    shop.put(*["a", "b", "c", "d"] * 100)
    told: list[int] = []
    worker = Worker(database_url, stock(), page=30, on_page=lambda progress: told.append(progress.position))
    assert worker.run_once() == Progress(position=400, applied=400, read=400)
    assert told == [*range(30, 400, 30), 400]
    assert shop.counts(stock()) == {"a": 100, "b": 100, "c": 100, "d": 100}


# --- standing by -----------------------------------------------------------------------------------------------------


def test_one_works_and_another_takes_over_at_once_when_it_leaves(shop: Shop, database_url: str) -> None:
    projection = stock(lease=60.0)
    first, second = Worker(database_url, projection), Worker(database_url, projection)
    with running(second), running(first):
        wait_until(lambda: shop.checkpoint()["owner"] is not None, "one of them works")
        working, standby = (first, second) if shop.checkpoint()["owner"] == first.owner else (second, first)
        shop.reached(shop.put("a"))
        working.stop()
        wait_until(lambda: shop.checkpoint()["owner"] == standby.owner, "the other takes over")
        shop.reached(shop.put("a"))
    assert shop.counts(projection) == {"a": 2}


def test_a_single_run_waits_for_a_lease_as_long_as_it_has_patience(shop: Shop, database_url: str) -> None:
    projection = stock(lease=60.0)
    shop.put("a")
    with running(Worker(database_url, projection)):
        shop.reached(1)
        started = time.monotonic()
        progress = Worker(database_url, projection).run_once(patience=0.3)
        assert 0.3 <= time.monotonic() - started < 3.0
        assert (progress.held, progress.applied) == (False, 0)


def test_a_single_run_waits_for_an_open_append_as_long_as_it_has_patience(
    shop: Shop, database_url: str
) -> None:
    with psycopg.connect(database_url) as late:
        shop.log.append([Put().bound(EventMeta("stock/late", 1))], connection=late)
        shop.put("a")
        progress = Worker(database_url, stock()).run_once(patience=0.2)
        assert (progress.held, progress.waiting, progress.position) == (True, True, 0)
        with ThreadPoolExecutor(1) as threads:
            patient = threads.submit(Worker(database_url, stock()).run_once, patience=20)
            time.sleep(0.2)
            late.commit()
            assert patient.result() == Progress(position=2, applied=2, read=2)


# --- what is in the way ----------------------------------------------------------------------------------------------


def test_a_server_that_cannot_be_reached_is_an_error_when_patience_is_over(database_url: str) -> None:
    nowhere = make_conninfo(database_url, dbname="no_such_database")
    started = time.monotonic()
    with pytest.raises(psycopg.OperationalError, match="no_such_database"):
        Worker(nowhere, stock()).run_once(patience=0.2)
    assert time.monotonic() - started < 5.0


def test_a_server_that_comes_back_is_followed_again(
    shop: Shop, database_url: str, server_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Connections are refused for a while, and ended."""
    name = shop.connection.info.dbname
    with (
        caplog.at_level(logging.INFO, "onefold.worker"),
        psycopg.connect(server_url, autocommit=True) as admin,
        running(Worker(database_url, stock())),
    ):
        shop.reached(shop.put("a"))
        admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false'.encode())
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s "
            "AND application_name LIKE 'onefold stock %%'",
            (name,),
        )
        wait_until(lambda: "not currently accepting connections" in caplog.text, "it is refused")
        admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true'.encode())
        shop.reached(shop.put("a"))
    assert "projection stock: " in caplog.text
    assert "; trying again" in caplog.text
    said = [record.getMessage() for record in caplog.records]
    assert said[-1] == "projection stock: connected again"
    assert said.count(said[-1]) == 1
    assert not any("\n" in each for each in said)
    assert shop.counts(stock()) == {"a": 2}


def poisoned(
    projection_name: str = "stock", *, bad: int = 13, **given: Any
) -> tuple[Projection[Stock], list[float]]:
    """A projection that cannot take events of one amount, and the instants at which it has tried."""
    tries: list[float] = []

    def fold(event: Put) -> None:
        if event.amount == bad:
            tries.append(time.monotonic())
            raise ValueError(f"cannot take {bad}")

    return stock(projection_name, fold, **given), tries


def test_by_default_a_worker_stops_at_the_first_failure_and_a_restart_meets_the_event_again(
    shop: Shop, database_url: str
) -> None:
    """Case H4, policy stop."""
    shop.put("x", "y", "x")
    shop.put("x", amount=13)
    shop.put("y", "x")
    projection, tries = poisoned()
    for attempt in (1, 2):
        with pytest.raises(ProjectionFailed) as caught:
            Worker(database_url, projection).run()
        assert str(caught.value).startswith(
            "projection stock failed at event worker.put (stream stock/x, version 3, position 4): "
            "ValueError: cannot take 13."
        )
        kept = shop.checkpoint()
        assert (kept["position"], kept["attempts"], kept["owner"]) == (3, attempt, None)
        assert kept["failure"]["position"] == 4
        assert kept["failure"]["reason"] == "ValueError: cannot take 13"
    assert len(tries) == 2
    assert shop.counts(projection) == {"x": 2, "y": 1}
    with pytest.raises(ProjectionFailed):
        Worker(database_url, projection).run_once()
    mended = stock()
    assert Worker(database_url, mended).run_once().applied == 3
    assert shop.counts(mended) == {"x": 4, "y": 2}
    kept = shop.checkpoint()
    assert (kept["attempts"], kept["failure"]) == (0, None)


def test_other_projections_go_on_when_one_has_stopped(shop: Shop, database_url: str) -> None:
    failing, _ = poisoned("failing")
    fine = stock("fine")
    shop.put("x")
    shop.put("x", amount=13)
    with running(Worker(database_url, fine)):
        with pytest.raises(ProjectionFailed):
            Worker(database_url, failing).run()
        shop.reached(shop.put("x"), "fine")
    assert shop.counts(fine) == {"x": 3}
    assert shop.counts(failing) == {"x": 1}


@pytest.mark.parametrize("single", [True, False], ids=["single run", "following"])
def test_a_worker_tries_again_as_often_and_after_as_long_as_its_policy_says(
    shop: Shop, database_url: str, single: bool, caplog: pytest.LogCaptureFixture
) -> None:
    shop.put("x")
    shop.put("x", amount=13)
    projection, tries = poisoned(on_failure=Retry(attempts=4, first=0.1, longest=0.2))
    worker = Worker(database_url, projection)
    with caplog.at_level(logging.WARNING, "onefold.worker"), pytest.raises(ProjectionFailed):
        worker.run_once() if single else worker.run()
    assert len(tries) == 4
    waits = [after - before for before, after in pairwise(tries)]
    assert all(wait >= least for wait, least in zip(waits, (0.1, 0.2, 0.2), strict=True))
    assert shop.checkpoint()["attempts"] == 4
    assert "Attempt 3, next in 0.2 s" in caplog.text
    assert "position 2" in caplog.text


def test_a_failure_that_passes_is_forgotten_and_nothing_is_lost(shop: Shop, database_url: str) -> None:
    left = [True] * 2

    def fold(event: Put) -> None:
        if event.amount == 13 and left:
            left.pop()
            raise ValueError("not now")

    projection = stock(fold=fold, on_failure=Retry(attempts=5, first=0.01))
    shop.put("x", "y")
    shop.put("x", amount=13)
    shop.put("x")
    assert Worker(database_url, projection).run_once().position == 4
    assert shop.counts(projection) == {"x": 3, "y": 1}
    assert (shop.checkpoint()["attempts"], shop.checkpoint()["failure"]) == (0, None)


def test_attempts_are_counted_over_workers(shop: Shop, database_url: str) -> None:
    shop.put("x", amount=13)
    projection, tries = poisoned(on_failure=Retry(attempts=3, first=0.05))
    for _ in range(2):
        worker = Worker(database_url, projection)
        with running(worker):
            before = shop.checkpoint()["attempts"]
            wait_until(lambda n=before: shop.checkpoint()["attempts"] > max(n, 0), "a try is counted")  # type: ignore[misc]
            worker.stop()
    with pytest.raises(ProjectionFailed):
        Worker(database_url, projection).run()
    assert shop.checkpoint()["attempts"] == 3
    assert len(tries) == 3


def test_a_single_run_whose_patience_ends_while_an_event_waits_for_its_next_try_raises_its_failure(
    shop: Shop, database_url: str
) -> None:
    shop.put("x", amount=13)
    projection, _ = poisoned(on_failure=Retry(attempts=1000, first=0.05, longest=0.05))
    with pytest.raises(ProjectionFailed, match="cannot take 13"):
        Worker(database_url, projection).run_once(patience=0.3)


def test_a_connection_that_ends_while_a_failure_is_noted_does_not_end_the_worker(
    shop: Shop, database_url: str
) -> None:
    """The fold fails, and its connections are gone when the failure is to be written down."""
    shop.put("x")
    shop.put("x", amount=13)
    tries: list[int] = []

    def fold(event: Put) -> None:
        if event.amount == 13:
            tries.append(event.amount)
            if len(tries) == 1:
                shop.connection.execute(
                    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                    "WHERE application_name = 'onefold stock write' AND datname = current_database()"
                )
            raise ValueError("cannot take 13")

    with pytest.raises(ProjectionFailed):
        Worker(database_url, stock(fold=fold)).run()
    assert len(tries) == 2
    assert shop.checkpoint()["attempts"] == 1


# --- rebuilding ------------------------------------------------------------------------------------------------------


class Wider(Row, key="item"):
    item: str
    amount: int = 0
    count: int = 0
    largest: int = 0


def wider() -> Projection[Wider]:
    made = Projection("stock", Wider, registry=known)

    @made.on(Put)
    def put(row: Wider | None, event: Put) -> Wider:
        row = row or Wider(item=event.meta.key)
        return row.evolve(
            amount=row.amount + event.amount, count=row.count + 1, largest=max(row.largest, event.amount)
        )

    return made


def test_a_read_model_of_another_shape_is_refused_until_it_is_rebuilt(shop: Shop, database_url: str) -> None:
    shop.put("a", "b", amount=3)
    shop.put("a", amount=5)
    Worker(database_url, stock()).run_once()
    for run in (Worker(database_url, wider()).run_once, Worker(database_url, wider()).run):
        with pytest.raises(ReadModelChanged, match="run `onefold rebuild stock`"):
            run()
    assert shop.counts(stock()) == {"a": 2, "b": 1}
    assert Worker(database_url, wider()).rebuild() == Progress(position=3, applied=3, read=3)
    assert Table(wider()).all(shop.connection) == [
        Wider(item="a", amount=8, count=2, largest=5),
        Wider(item="b", amount=3, count=1, largest=3),
    ]
    with pytest.raises(ReadModelChanged):
        Worker(database_url, stock()).run_once()


def test_a_worker_of_old_code_ends_when_a_rebuild_has_replaced_its_table(
    shop: Shop, database_url: str
) -> None:
    shop.put("a")
    old = Worker(database_url, stock(lease=0.3))
    with ThreadPoolExecutor(1) as threads:
        following = threads.submit(old.run)
        try:
            shop.reached(1)
            shop.connection.execute("UPDATE onefold.checkpoints SET owner = 'rebuild', token = token + 1")
            shop.connection.execute("UPDATE onefold.checkpoints SET fingerprint = 'new', owner = NULL")
            with pytest.raises(ReadModelChanged):
                following.result(10)
        finally:
            old.stop()


def test_a_rebuild_gives_what_the_first_build_gave(shop: Shop, database_url: str) -> None:
    """C28: two rebuilds are equal, and equal to the first build, whatever the pages."""
    projection = stock()
    for number in range(60):
        shop.put(f"a{number % 7}", amount=number)
    Worker(database_url, projection, page=7).run_once()

    def dump() -> list[Any]:
        return shop.connection.execute("SELECT * FROM read.stock ORDER BY item").fetchall()

    first = dump()
    for page in (1, 13, 1000):
        assert Worker(database_url, projection, page=page).rebuild().position == 60
        assert dump() == first


@pytest.mark.parametrize(
    "hand", ["UPDATE read.stock SET amount = 99", "DROP TABLE read.stock", "TRUNCATE read.stock"]
)
def test_a_rebuild_mends_a_table_that_was_changed_by_hand(shop: Shop, database_url: str, hand: str) -> None:
    shop.put("a", "b")
    Worker(database_url, stock()).run_once()
    shop.connection.execute(hand.encode())
    Worker(database_url, stock()).rebuild()
    assert shop.counts(stock()) == {"a": 1, "b": 1}
    assert [row.amount for row in Table(stock()).all(shop.connection)] == [1, 1]


def test_a_rebuild_does_not_take_a_projection_from_a_worker_that_is_alive(
    shop: Shop, database_url: str
) -> None:
    shop.put("a")
    with running(Worker(database_url, stock(lease=0.3))):
        shop.reached(1)
        with pytest.raises(Fenced):
            Worker(database_url, stock(lease=0.3)).rebuild()
        shop.reached(shop.put("a"))
    assert shop.counts(stock()) == {"a": 2}


def test_a_rebuild_that_fails_says_where_and_the_rest_follows_when_it_is_mended(
    shop: Shop, database_url: str
) -> None:
    shop.put("x", "y")
    shop.put("x", amount=13)
    shop.put("y")
    Worker(database_url, stock()).run_once()
    failing, _ = poisoned()
    with pytest.raises(ProjectionFailed, match="position 3"):
        Worker(database_url, failing).rebuild()
    assert shop.counts(stock()) == {"x": 1, "y": 1}
    assert shop.checkpoint()["attempts"] == 1
    Worker(database_url, stock()).run_once()
    assert shop.counts(stock()) == {"x": 2, "y": 2}


def test_a_handler_s_tables_are_made_anew_by_a_rebuild(shop: Shop, database_url: str) -> None:
    handler = Handler(
        "entries",
        tables=["read.entries", "read.more"],
        create="CREATE TABLE read.entries (item text); CREATE TABLE read.more (item text)",
        registry=known,
    )

    @handler.on(Put)
    def put(event: Put, connection: psycopg.Connection[Any]) -> None:
        connection.execute("INSERT INTO read.entries VALUES (%s)", (event.meta.key,))
        connection.execute("INSERT INTO read.more VALUES (%s)", (event.meta.key,))

    shop.put("a", "b")
    Worker(database_url, handler).run_once()
    for _ in range(2):
        Worker(database_url, handler).rebuild()
        for table in ("entries", "more"):
            found = shop.connection.execute(f"SELECT item FROM read.{table} ORDER BY 1".encode()).fetchall()
            assert found == [("a",), ("b",)]


def test_a_projection_of_another_log_follows_that_one_alone(
    shop: Shop, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "POLL", 60.0)
    shop.connection.execute("SELECT onefold.create_log('onefold', 'other')")
    other = EventLog(shop.log.pool, name="other", registry=known)
    projection = stock(log="other")
    shop.put("a", "b", "c")
    with (
        Wakeup(database_url, other.channel) as wakeup,
        running(Worker(database_url, projection, wakeup=wakeup)),
    ):
        for version in (1, 2):
            time.sleep(0.05)
            (event,) = other.append([Put().bound(EventMeta("stock/x", version))])
            assert shop.reached(event.meta.position) < 2.0
    assert shop.counts(projection) == {"x": 2}
    assert shop.checkpoint()["log"] in ("other", "onefold.other")


def test_several_workers_of_several_projections_follow_one_log(shop: Shop, database_url: str) -> None:
    projections: list[AnyProjection] = [stock(f"p{number}", lease=2.0) for number in range(3)]
    workers = [Worker(database_url, projection, page=20) for projection in projections for _ in range(2)]
    with running(*workers):
        for _ in range(50):
            last = shop.put(*[f"a{n}" for n in range(5)])
        for projection in projections:
            shop.reached(last, projection.name)
    for projection in projections:
        assert isinstance(projection, Projection)
        assert shop.counts(projection) == {f"a{n}": 50 for n in range(5)}

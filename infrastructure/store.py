"""The store: an application connected to its database, for reading, deciding, saving and querying."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeVar

import psycopg

from ..domain.aggregate import Aggregate
from ..domain.errors import OnefoldError
from ..domain.event import Event
from ..domain.point import point
from ..projections.app import App
from ..projections.engine import Progress
from ..projections.projection import AnyProjection, Projection
from ..projections.row import Row
from .announcing import announcer
from .audit.history import Entry, as_of, entries
from .backoff import Backoff
from .connection import connected, without_password
from .embedded import database_url
from .history import history as recorded_history
from .postgres.errors import VersionConflict
from .postgres.log import EventLog
from .postgres.migrate import migrate
from .postgres.pool import Pool, configure, open_pool
from .postgres.reader import LogReader
from .postgres.repository import Repository
from .postgres.table import Table
from .runner import Runner
from .settings import Settings
from .worker import Worker

A = TypeVar("A", bound=Aggregate)
R = TypeVar("R", bound=Row)
EVENTS_AT_ONCE = 1000


class NotCaughtUp(OnefoldError, TimeoutError):
    """A projection did not reach the awaited position in time; is a worker running (`onefold run`)?"""


class Store:
    """One application on one database; any number of threads may use it.

    `snapshot_every` says for which aggregate classes, and each how many events, the state is kept.
    """

    def __init__(
        self,
        app: App,
        url: str,
        pool: Pool,
        *,
        snapshot_every: Mapping[type[Aggregate], int] | None = None,
    ) -> None:
        self.app = app
        self.url = url
        self.pool = pool
        self.log = EventLog(pool, announcer=announcer(app))
        self._repositories: dict[type[Aggregate], Repository[Any]] = {
            aggregate: Repository(self.log, aggregate, snapshot_every=(snapshot_every or {}).get(aggregate))
            for aggregate in app.aggregates
        }

    def __repr__(self) -> str:
        return f"Store({self.app!r}, {without_password(self.url)!r})"

    def repository(self, aggregate_class: type[A]) -> Repository[A]:
        """Return the repository of one of the application's aggregate classes."""
        repository = self._repositories.get(aggregate_class)
        if repository is None:
            raise OnefoldError(f"{aggregate_class.__name__} is not among the aggregates of the application")
        return repository

    def get(self, aggregate_class: type[A], key: str, *, version: int | None = None) -> A:
        """Return the aggregate with this key, as of `version` when given; raises `AggregateNotFound`."""
        return self.repository(aggregate_class).get(key, version=version)

    def save(
        self,
        aggregate: Aggregate,
        *,
        metadata: Mapping[str, Any] | None = None,
        connection: psycopg.Connection[Any] | None = None,
    ) -> Sequence[Event]:
        """Append what the aggregate decided; raises `VersionConflict` when its stream has moved on.

        With a `connection` the events are written in the transaction that the caller has open on it.
        """
        return self.repository(type(aggregate)).save(aggregate, metadata=metadata, connection=connection)

    def change(
        self,
        aggregate_class: type[A],
        key: str,
        command: Callable[[A], object],
        *,
        metadata: Mapping[str, Any] | None = None,
        tries: int = 10,
    ) -> A:
        """Load the aggregate, call `command` with it, and save what it decided; return the aggregate.

        When its stream moved on in between, the newer state is loaded and `command` called again, `tries` times in
        all; then `VersionConflict` is raised. `command` must do nothing that may not be done twice.
        """
        if tries < 1:
            raise ValueError(f"tries must be 1 or more, found {tries}")
        backoff = Backoff(0.002, 0.2)
        for attempt in range(1, tries + 1):
            aggregate = self.get(aggregate_class, key)
            command(aggregate)
            try:
                self.save(aggregate, metadata=metadata)
            except VersionConflict:
                if attempt == tries:
                    raise
                time.sleep(backoff.next())
            else:
                return aggregate
        raise AssertionError("unreachable")

    @contextmanager
    def running(self, *projections: str | AnyProjection) -> Iterator[Runner]:
        """Keep projections up with the log beside the body (all of them, or those named), a thread each.

        For small services and tests; `onefold run` does the same in a process of its own. A projection that fails
        ends alone; `Runner.runs` says why.
        """
        runner = Runner(self.url, self._chosen(projections))
        runner.start()
        try:
            yield runner
        finally:
            runner.stop()
            runner.join()

    def run(self, *projections: str | AnyProjection) -> dict[str, Progress]:
        """Bring projections up to the log's present end (all of them, or those named), and return what was done."""
        return {each.name: Worker(self.url, each).run_once() for each in self._chosen(projections)}

    def events(self, after: int = 0) -> Iterator[Event]:
        """Yield the events of the log after position `after`, in order, up to its present end.

        Nothing that commits late is skipped: where an open append may still fill a hole, the events end.
        """
        with connected(self.url, application="onefold events") as connection:
            configure(connection)
            reader = LogReader(connection, log=self.log.name, registry=self.log.registry)
            while (page := reader.read(after, EVENTS_AT_ONCE)).records:
                yield from map(reader.event, page.records)
                after = page.upto

    def history(self, aggregate_class: type[Aggregate], key: str) -> Iterator[Entry]:
        """Yield the events of an aggregate, each as it is stored and with what it changed in the state.

        Nothing for a stream without events. Where an event cannot be decoded or folded, `unknown` says why.
        """
        with connected(self.url, application="onefold history") as connection:
            recorded = recorded_history(connection, aggregate_class.stream_of(key), log=self.log.name)
            yield from entries(recorded, aggregate_class, self.log.registry)

    def as_of(
        self,
        aggregate_class: type[A],
        key: str,
        *,
        version: int | None = None,
        position: int | None = None,
        occurred: datetime | None = None,
        recorded: datetime | None = None,
    ) -> A:
        """Return the aggregate as of a version, a position, or an instant by the clock that is named.

        `occurred` includes what had happened by then, `recorded` what the log knew by then, both with the instant
        itself. Events are folded in the order of versions. It is for looking at: while anything is left out, its
        version counts what was folded, and saving it is refused. Raises `BadPoint` unless one of them is given,
        `NaiveInstant`, and `AggregateNotFound` when there was nothing yet.
        """
        at = point(version=version, position=position, occurred=occurred, recorded=recorded)
        stream = aggregate_class.stream_of(key)
        with self.pool.connection() as connection:
            found = as_of(
                connection, aggregate_class, stream, at, log=self.log.name, registry=self.log.registry
            )
        return found.aggregate

    def rows(self, projection: Projection[R]) -> list[R]:
        """Return the rows of a read model in the order of its key; for tests and small tables."""
        table = _table(projection)
        with self.pool.connection() as connection:
            return table.all(connection)

    def row(self, projection: Projection[R], *key: Any) -> R | None:
        """Return the row with this key, None if there is none."""
        table = _table(projection)
        with self.pool.connection() as connection:
            found = table.load(connection, [projection.checked_key(key)], binary=False)
        return found[key][1] if key in found else None

    def wait_for(self, projection: str | AnyProjection, position: int, *, timeout: float = 5.0) -> None:
        """Wait until `projection` has applied the event at `position`, so that a reader sees its own write.

        Raises `NotCaughtUp` after `timeout` seconds.
        """
        name = self.app.projection(projection).name
        deadline = time.monotonic() + timeout
        pause = 0.001
        with self.pool.connection() as connection:
            while True:
                row = connection.execute(
                    "SELECT position FROM onefold.checkpoints WHERE projection = %s AND segment = 0",
                    (name,),
                    prepare=True,
                ).fetchone()
                if row is not None and row[0] >= position:
                    return
                if time.monotonic() + pause > deadline:
                    found = "has not run yet" if row is None else f"is at {row[0]}"
                    raise NotCaughtUp(
                        f"projection {name} {found}, expected position {position} in {timeout} s"
                    )
                time.sleep(pause)
                pause = min(pause * 2, 0.05)

    def _chosen(self, projections: Sequence[str | AnyProjection]) -> Sequence[AnyProjection]:
        return [self.app.projection(each) for each in projections] or self.app.projections


def _table(projection: AnyProjection) -> Table:
    if not isinstance(projection, Projection):
        raise OnefoldError(f"{projection!r} has no row model; read its tables with SQL")
    return Table(projection)


@contextmanager
def connect(
    app: App,
    url: str | None = None,
    *,
    pool_size: int = 4,
    snapshot_every: Mapping[type[Aggregate], int] | None = None,
) -> Iterator[Store]:
    """Connect an application to `url`, else to `ONEFOLD_DATABASE_URL`, else to the embedded server.

    The database is migrated if it needs to be. The embedded server is started when nobody has, and stopped with
    the last who uses it.
    """
    settings = Settings.from_env()
    with database_url(settings) if url is None else _given(url) as found:
        with connected(found, application="onefold migrate") as connection:
            migrate(connection)
        with open_pool(found, size=pool_size) as pool:
            yield Store(app, found, pool, snapshot_every=snapshot_every)


@contextmanager
def _given(url: str) -> Iterator[str]:
    yield url

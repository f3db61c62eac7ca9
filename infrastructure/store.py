"""The store: an application connected to its database, for reading, deciding, saving and querying."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg

from ..domain.aggregate import Aggregate
from ..domain.errors import OnefoldError
from ..domain.event import Event
from ..projections.app import App
from ..projections.engine import Progress
from ..projections.projection import Projection
from ..projections.row import Row
from .embedded import database_url
from .postgres.errors import VersionConflict
from .postgres.log import EventLog
from .postgres.migrate import migrate
from .postgres.pool import Pool, open_pool
from .postgres.repository import Repository
from .postgres.table import Table
from .runner import Runner
from .settings import Settings
from .worker import Worker

A = TypeVar("A", bound=Aggregate)
R = TypeVar("R", bound=Row)


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
        self.log = EventLog(pool)
        self._repositories: dict[type[Aggregate], Repository[Any]] = {
            aggregate: Repository(self.log, aggregate, snapshot_every=(snapshot_every or {}).get(aggregate))
            for aggregate in app.aggregates
        }

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
        tries: int = 5,
    ) -> A:
        """Load the aggregate, call `command` with it, and save what it decided; return the aggregate.

        When its stream moved on in between, the newer state is loaded and `command` called again, `tries` times in
        all; then `VersionConflict` is raised. `command` must do nothing that may not be done twice.
        """
        if tries < 1:
            raise ValueError(f"tries must be 1 or more, found {tries}")
        for attempt in range(1, tries + 1):
            aggregate = self.get(aggregate_class, key)
            command(aggregate)
            try:
                self.save(aggregate, metadata=metadata)
            except VersionConflict:
                if attempt == tries:
                    raise
            else:
                return aggregate
        raise AssertionError("unreachable")

    @contextmanager
    def running(self, *names: str) -> Iterator[Runner]:
        """Keep projections up with the log beside the body (all of them, or those named), a thread each.

        For small services and tests; `onefold run` does the same in a process of its own. A projection that fails
        ends alone; `Runner.runs` says why.
        """
        runner = Runner(self.url, [self.app.projection(name) for name in names] or self.app.projections)
        runner.start()
        try:
            yield runner
        finally:
            runner.stop()
            runner.join()

    def run(self, *names: str) -> dict[str, Progress]:
        """Bring projections up to the log's present end (all of them, or those named), and return what was done."""
        chosen = [self.app.projection(name) for name in names] or self.app.projections
        return {projection.name: Worker(self.url, projection).run_once() for projection in chosen}

    def rows(self, projection: Projection[R]) -> list[R]:
        """Return the rows of a read model in the order of its key; for tests and small tables."""
        with self.pool.connection() as connection:
            return Table(projection).all(connection)

    def row(self, projection: Projection[R], *key: Any) -> R | None:
        """Return the row with this key, None if there is none."""
        with self.pool.connection() as connection:
            found = Table(projection).load(connection, [key], binary=False)
        return found[key][1] if key in found else None

    def wait_for(self, projection: str, position: int, *, timeout: float = 5.0) -> None:
        """Wait until `projection` has applied the event at `position`, so that a reader sees its own write.

        Raises `NotCaughtUp` after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        pause = 0.001
        with self.pool.connection() as connection:
            while True:
                row = connection.execute(
                    "SELECT position FROM onefold.checkpoints WHERE projection = %s AND segment = 0",
                    (projection,),
                    prepare=True,
                ).fetchone()
                if row is not None and row[0] >= position:
                    return
                if time.monotonic() + pause > deadline:
                    found = "has not run yet" if row is None else f"is at {row[0]}"
                    raise NotCaughtUp(
                        f"projection {projection} {found}, expected position {position} in {timeout} s"
                    )
                time.sleep(pause)
                pause = min(pause * 2, 0.05)


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
        with psycopg.connect(found, autocommit=True) as connection:
            migrate(connection)
        with open_pool(found, size=pool_size) as pool:
            yield Store(app, found, pool, snapshot_every=snapshot_every)


@contextmanager
def _given(url: str) -> Iterator[str]:
    yield url

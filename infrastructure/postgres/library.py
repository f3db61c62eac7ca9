"""The persistence module for the `eventsourcing` library: its applications on logs of this product.

Of the library's persistence, this module and `datastore`, `recorders`, `subscription`, `mapper` and `stored` know;
nothing else does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from types import TracebackType
from typing import Any, TypeVar, cast

import psycopg
from eventsourcing import persistence
from eventsourcing.domain import TAggregateID
from eventsourcing.persistence import EventStore, InfrastructureFactory, OperationalError, Transcoder
from eventsourcing.postgres import BasePostgresFactory, PostgresRecorder, PostgresTrackingRecorder
from eventsourcing.utils import Environment, EnvType, resolve_topic, strtobool
from psycopg import Connection
from psycopg.sql import SQL, Identifier

from ..embedded import database_url
from ..settings import DATABASE_URL, HOME, Settings, SettingsError
from .datastore import Datastore, connect
from .kept import KeptRecorder, SnapshotRecorder
from .mapper import Mapper, SnapshotStore
from .migrate import migrate
from .recorders import (
    AggregateRecorder,
    ApplicationRecorder,
    ProcessRecorder,
    TrackingRecorder,
)

R = TypeVar("R", bound=PostgresRecorder)
TTracking = TypeVar("TTracking", bound=PostgresTrackingRecorder)

SCHEMA = "onefold"

# The advisory lock under which recorders make their tables: "OF", a number for the purpose, and nothing.
_START_LOCK = 0x4F46_0002 << 32


class UnusableSetting(SettingsError, OSError):
    """A setting of the library that cannot work on this log, or names something that cannot."""


class Factory(BasePostgresFactory[PostgresTrackingRecorder], InfrastructureFactory[PostgresTrackingRecorder]):
    """Makes recorders for one application, whose name its tables carry: `<name>_events` is its log.

    The database is that of the library's POSTGRES_* settings when any of them names one; else that of
    ONEFOLD_DATABASE_URL; else the embedded server, which is held until the factory is closed. POSTGRES_SCHEMA is
    `onefold` unless it is set. Tables are made when a recorder is, unless CREATE_TABLE says no; any number of
    processes may do so at once.
    """

    aggregate_recorder_class: type[AggregateRecorder] = AggregateRecorder
    application_recorder_class: type[ApplicationRecorder] = ApplicationRecorder
    tracking_recorder_class: type[PostgresTrackingRecorder] = TrackingRecorder
    process_recorder_class: type[ProcessRecorder] = ProcessRecorder
    snapshot_recorder_class: type[SnapshotRecorder] = SnapshotRecorder

    def __init__(self, env: Environment | EnvType | None) -> None:
        given = env if isinstance(env, Environment) else Environment(env=env)
        _refuse_db_functions(given, self.POSTGRES_ENABLE_DB_FUNCTIONS)
        self._held = ExitStack()
        conninfo: str | None = None
        filled = Environment(given.name, dict(given))
        _default(filled, self.POSTGRES_SCHEMA, SCHEMA)
        # The library ends a transaction that is idle for 5 seconds, and with it a handler that thinks.
        _default(filled, self.POSTGRES_IDLE_IN_TRANSACTION_SESSION_TIMEOUT, "0")
        if not self._names_server(given):
            conninfo = self._held.enter_context(database_url(_settings(given)))
            for key in (self.POSTGRES_DBNAME, self.POSTGRES_HOST, self.POSTGRES_USER, self.POSTGRES_PASSWORD):
                filled[key] = ""
        try:
            super().__init__(filled)
            self.env = given
            self.datastore = Datastore.like(
                self.datastore, conninfo=conninfo, application=f"onefold {given.name}".strip()
            )
        except BaseException:
            self._held.close()
            raise

    def aggregate_recorder(self, purpose: str = "events") -> persistence.AggregateRecorder:
        """Return a recorder for `<name>_<purpose>`: a log for events, a plain table for anything else."""
        table = f"{self.env.name.lower() or 'stored'}_{purpose}"
        recorder: AggregateRecorder | KeptRecorder
        if purpose == "events":
            recorder = self.aggregate_recorder_class(self.datastore, events_table_name=table)
        elif purpose == "snapshots":
            recorder = self.snapshot_recorder_class(self.datastore, events_table_name=table)
        else:
            recorder = KeptRecorder(self.datastore, events_table_name=table)
        return self._ready(recorder)

    def application_recorder(self) -> persistence.ApplicationRecorder:
        """Return the recorder of the application's log."""
        recorder_class = self._chosen(
            self.APPLICATION_RECORDER_TOPIC, self.application_recorder_class, ApplicationRecorder
        )
        return self._ready(recorder_class(self.datastore, events_table_name=self._events_table()))

    def tracking_recorder(self, tracking_recorder_class: type[TTracking] | None = None) -> TTracking:
        """Return a recorder of positions, of the given class if there is one."""
        if tracking_recorder_class is None:
            chosen = self._chosen(
                self.TRACKING_RECORDER_TOPIC, self.tracking_recorder_class, PostgresTrackingRecorder
            )
            tracking_recorder_class = cast("type[TTracking]", chosen)
        return self._ready(
            tracking_recorder_class(self.datastore, tracking_table_name=self._tracking_table())
        )

    def process_recorder(self) -> persistence.ProcessRecorder:
        """Return the recorder of the application's log and of the positions that it followed others to."""
        recorder_class = self._chosen(
            self.PROCESS_RECORDER_TOPIC, self.process_recorder_class, ProcessRecorder
        )
        return self._ready(
            recorder_class(
                self.datastore,
                events_table_name=self._events_table(),
                tracking_table_name=self._tracking_table(),
            )
        )

    def mapper(
        self,
        transcoder: Transcoder | None = None,
        mapper_class: type[persistence.Mapper[TAggregateID]] | None = None,
    ) -> persistence.Mapper[TAggregateID]:
        """Return the mapper that is asked for or set in MAPPER_TOPIC, else one that knows Onefold's events too."""
        if mapper_class is None and not self.env.get(self.MAPPER_TOPIC):
            mapper_class = Mapper[TAggregateID]
        return super().mapper(transcoder, mapper_class)

    def event_store(
        self,
        mapper: persistence.Mapper[TAggregateID] | None = None,
        recorder: persistence.AggregateRecorder | None = None,
    ) -> EventStore[TAggregateID]:
        """Return the store of what `recorder` records; by default the events of the application."""
        if isinstance(recorder, SnapshotRecorder):
            return SnapshotStore(mapper or self.mapper(), recorder)
        return super().event_store(mapper, recorder)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        super().__exit__(exc_type, exc_val, exc_tb)
        self._held.close()

    def close(self) -> None:
        """Close the connections, and let go of the embedded server if it was held."""
        super().close()
        self._held.close()

    def _ready(self, recorder: R) -> R:
        if self.env_create_table():
            with self._alone():
                recorder.create_table()
        return recorder

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Bring the database up to date, and keep other processes from making tables until the exit."""
        try:
            with closing(connect(self.datastore)) as connection:
                migrate(connection)
                with connection.transaction():
                    connection.execute("SELECT pg_advisory_xact_lock(%s)", (_START_LOCK,))
                    self._create_schema(connection)
                with connection.transaction():
                    connection.execute("SELECT pg_advisory_xact_lock(%s)", (_START_LOCK,))
                    yield
        except psycopg.Error as error:
            raise OperationalError(
                f"the tables of {self.env.name or 'the application'} were not made: {error}"
            ) from error

    def _create_schema(self, connection: Connection[tuple[Any, ...]]) -> None:
        schema = Identifier(self.datastore.schema)
        found = connection.execute("SELECT to_regnamespace(%s)", (schema.as_string(),)).fetchone()
        if found is None or found[0] is None:
            connection.execute(SQL("CREATE SCHEMA {}").format(schema))

    def _names_server(self, env: Environment) -> bool:
        return any(env.get(key) for key in (self.POSTGRES_DBNAME, self.POSTGRES_HOST, self.POSTGRES_USER))

    def _chosen(self, setting: str, default: type[R], base: type[R]) -> type[R]:
        topic = self.env.get(setting)
        if not topic:
            return default
        found = resolve_topic(topic)
        if not (isinstance(found, type) and issubclass(found, base)):
            raise UnusableSetting(
                f"{setting}: expected a subclass of {base.__module__}.{base.__qualname__}, found {topic}; the "
                "library's own recorders write tables of another kind: derive the class from that one"
            )
        return found

    def _events_table(self) -> str:
        return f"{self.env.name.lower() or 'stored'}_events"

    def _tracking_table(self) -> str:
        return f"{self.env.name.lower() or 'notification'}_tracking"


def _default(env: Environment, key: str, value: str) -> None:
    if not env.get(key):
        env[env.create_keys(key)[0]] = value


def _refuse_db_functions(env: Environment, key: str) -> None:
    if strtobool(env.get(key) or "no"):
        raise UnusableSetting(
            f"{key} is set, expected it unset: the functions that it stands for skip events that commit late, write "
            "the events of one application into the table of another, and lose the position that is tracked with "
            "them. Remove the setting; this log needs no table lock, which is what it was to avoid"
        )


def _settings(env: Environment) -> Settings:
    return Settings.from_env({key: env.get(key) or os.environ.get(key, "") for key in (DATABASE_URL, HOME)})

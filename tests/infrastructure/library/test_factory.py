"""The factory: where the database is, whose tables are whose, and several processes that start at once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID, uuid4

import psycopg
import pytest
from eventsourcing.application import Application
from eventsourcing.domain import Aggregate
from eventsourcing.persistence import InfrastructureFactory, OperationalError, ProgrammingError, StoredEvent
from eventsourcing.postgres import PostgresApplicationRecorder, PostgresTrackingRecorder
from eventsourcing.utils import Environment, get_topic
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from onefold.infrastructure.embedded import EmbeddedServer
from onefold.infrastructure.postgres import ApplicationRecorder, Factory, ProcessRecorder, TrackingRecorder
from onefold.infrastructure.postgres.datastore import connect
from onefold.infrastructure.settings import SettingsError

MODULE = "onefold.infrastructure.postgres"


class Shop(Application[UUID]):
    snapshotting_intervals: ClassVar[Any] = {Aggregate: 2}


def construct(name: str = "", **env: str) -> InfrastructureFactory[Any]:
    return InfrastructureFactory.construct(Environment(name, {"PERSISTENCE_MODULE": MODULE, **env}))


def tables(connection: psycopg.Connection, schema: str = "onefold") -> set[str]:
    query = "SELECT tablename FROM pg_tables WHERE schemaname = %s"
    return {row[0] for row in connection.execute(query, (schema,))}


def database_of(recorder: Any) -> str:
    with recorder.datastore.get_connection() as connection:
        return str(connection.info.dbname)


def shown(setting: str, **env: str) -> Any:
    with construct("Shop", **env) as factory:
        assert isinstance(factory, Factory)
        with factory.datastore.get_connection() as connection:
            row = connection.execute("SELECT current_setting(%s) AS value", (setting,)).fetchone()
    assert row is not None
    return row["value"]


def test_the_database_is_that_of_the_url(database_url: str, connection: psycopg.Connection) -> None:
    with Shop() as shop:
        assert isinstance(shop.factory, Factory)
        shop.save(Aggregate())
    assert {"shop_events", "shop_snapshots"} <= tables(connection)


def test_the_url_is_taken_whole(database_url: str) -> None:
    url = make_conninfo(database_url, application_name="warehouse", options="-c work_mem=5MB")
    assert shown("work_mem", ONEFOLD_DATABASE_URL=url) == "5MB"
    assert shown("application_name", ONEFOLD_DATABASE_URL=url) == "warehouse"


def test_the_server_lists_the_application_by_its_name(database_url: str) -> None:
    assert shown("application_name", ONEFOLD_DATABASE_URL=database_url) == "onefold Shop"


def test_the_url_may_be_set_for_one_application(
    database_url: str, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_ONEFOLD_DATABASE_URL", empty_database_url)
    with Shop() as shop:
        assert database_of(shop.recorder) == conninfo_to_dict(empty_database_url)["dbname"]


def test_the_library_s_own_settings_name_the_server(database_url: str) -> None:
    parameters = conninfo_to_dict(database_url)
    settings = {
        "POSTGRES_DBNAME": str(parameters["dbname"]),
        "POSTGRES_HOST": str(parameters["host"]),
        "POSTGRES_PORT": str(parameters.get("port", 5432)),
        "POSTGRES_USER": str(parameters["user"]),
        "POSTGRES_PASSWORD": str(parameters.get("password", "")),
        "ONEFOLD_DATABASE_URL": "postgresql://nobody@nowhere.invalid/nothing",
    }
    with construct("Shop", **settings) as factory:
        assert database_of(factory.application_recorder()) == parameters["dbname"]
    del settings["POSTGRES_USER"]
    with pytest.raises(OSError, match="POSTGRES_USER"):
        construct("Shop", **settings)


def password() -> str:
    return os.environ["VAULT"]


def test_a_password_may_come_from_a_function(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = conninfo_to_dict(database_url)
    monkeypatch.setenv("VAULT", str(parameters.get("password", "from the vault")))
    settings = {
        "POSTGRES_DBNAME": str(parameters["dbname"]),
        "POSTGRES_HOST": str(parameters["host"]),
        "POSTGRES_USER": str(parameters["user"]),
        "POSTGRES_PORT": str(parameters.get("port", 5432)),
        "POSTGRES_GET_PASSWORD_TOPIC": get_topic(password),
    }
    with construct("Shop", **settings) as factory:
        assert isinstance(factory, Factory)
        with connect(factory.datastore) as connection:
            assert connection.info.password == password()
        assert database_of(factory.application_recorder()) == parameters["dbname"]


def test_without_any_setting_the_embedded_server_is_held_until_the_factory_is_closed(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path_factory.mktemp("home")
    monkeypatch.delenv("ONEFOLD_DATABASE_URL")
    monkeypatch.setenv("ONEFOLD_HOME", str(home))
    server = EmbeddedServer(home)
    try:
        shop = Shop()
        shop.save(Aggregate())
        assert server.status().running
        shop.close()
        deadline = time.monotonic() + 30
        while server.status().running:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        server.stop()


def test_a_url_that_cannot_be_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="ONEFOLD_DATABASE_URL"):
        construct(ONEFOLD_DATABASE_URL="mysql://localhost/db")


def test_a_database_that_cannot_be_reached_is_an_error_of_the_library(tmp_path: Path) -> None:
    factory = construct("Shop", ONEFOLD_DATABASE_URL=f"postgresql:///db?host={tmp_path}")
    with factory, pytest.raises(OperationalError, match="the tables of Shop were not made"):
        factory.application_recorder()


@pytest.mark.parametrize("value", ["y", "True", "1"])
def test_database_functions_are_refused_with_the_reason(value: str, database_url: str) -> None:
    with pytest.raises(
        SettingsError,
        match=r"POSTGRES_ENABLE_DB_FUNCTIONS is set, .* skip events .* another, and lose the position",
    ):
        construct(ONEFOLD_DATABASE_URL=database_url, POSTGRES_ENABLE_DB_FUNCTIONS=value)
    with pytest.raises(OSError, match="Remove the setting"):
        construct("Shop", ONEFOLD_DATABASE_URL=database_url, SHOP_POSTGRES_ENABLE_DB_FUNCTIONS=value)


def test_database_functions_may_be_set_to_no(database_url: str) -> None:
    construct(ONEFOLD_DATABASE_URL=database_url, POSTGRES_ENABLE_DB_FUNCTIONS="n").close()


def test_logs_live_in_the_schema_that_is_set(make_factory: Any, connection: psycopg.Connection) -> None:
    factory = make_factory("Shop", POSTGRES_SCHEMA="shop schema")
    recorder = factory.application_recorder()
    recorder.insert_events([StoredEvent(uuid4(), 1, "a:B", b"{}")])
    factory.tracking_recorder()
    assert tables(connection, "shop schema") == {"shop_events", "shop_tracking"}
    assert make_factory("Shop", POSTGRES_SCHEMA="").datastore.schema == "onefold"
    assert make_factory("Shop", SHOP_POSTGRES_SCHEMA="").datastore.schema == "onefold"


def test_nothing_is_made_when_that_is_said(empty_database_url: str) -> None:
    with construct("Shop", ONEFOLD_DATABASE_URL=empty_database_url, CREATE_TABLE="no") as factory:
        recorder = factory.application_recorder()
        factory.aggregate_recorder("snapshots")
        with pytest.raises(ProgrammingError, match="shop_events"):
            recorder.max_notification_id()
    with psycopg.connect(empty_database_url) as connection:
        assert tables(connection) == set()


def test_a_table_of_the_library_itself_is_not_taken_for_a_log(
    make_factory: Any, connection: psycopg.Connection
) -> None:
    for table in ("shop_events", "shop_snapshots"):
        connection.execute(
            f"CREATE TABLE public.{table} (originator_id uuid, originator_version bigint, topic text, state bytea)"
        )
    factory = make_factory("Shop", POSTGRES_SCHEMA="public")
    with pytest.raises(
        ProgrammingError, match=r"expected a table of Onefold as public\.shop_events, found another"
    ):
        factory.application_recorder()
    with pytest.raises(ProgrammingError, match=r"public\.shop_snapshots"):
        factory.aggregate_recorder("snapshots")


def test_a_transaction_may_be_idle_unless_a_bound_is_set(database_url: str) -> None:
    setting = "idle_in_transaction_session_timeout"
    assert shown(setting, ONEFOLD_DATABASE_URL=database_url) == "0"
    bound = {"POSTGRES_IDLE_IN_TRANSACTION_SESSION_TIMEOUT": "7"}
    assert shown(setting, ONEFOLD_DATABASE_URL=database_url, **bound) == "7s"


class OwnRecorder(ApplicationRecorder):
    pass


class OwnProcessRecorder(ProcessRecorder):
    pass


class OwnTracking(PostgresTrackingRecorder):
    pass


def test_recorders_of_ones_own_are_derived_from_ours(make_factory: Any) -> None:
    factory = make_factory(
        "Shop",
        APPLICATION_RECORDER_TOPIC=get_topic(OwnRecorder),
        PROCESS_RECORDER_TOPIC=get_topic(OwnProcessRecorder),
        TRACKING_RECORDER_TOPIC=get_topic(OwnTracking),
    )
    assert type(factory.application_recorder()) is OwnRecorder
    assert type(factory.process_recorder()) is OwnProcessRecorder
    assert type(factory.tracking_recorder()) is OwnTracking
    assert type(factory.tracking_recorder(TrackingRecorder)) is TrackingRecorder
    stranger = make_factory("Shop", APPLICATION_RECORDER_TOPIC=get_topic(PostgresApplicationRecorder))
    with pytest.raises(
        SettingsError, match=r"expected a subclass of onefold.*ApplicationRecorder, found eventsourcing"
    ):
        stranger.application_recorder()


def test_several_processes_may_start_at_once_on_an_empty_database(empty_database_url: str) -> None:
    script = (
        "import sys\n"
        "from uuid import UUID\n"
        "from eventsourcing.application import Application\n"
        "from eventsourcing.domain import Aggregate\n"
        "from eventsourcing.projection import EventSourcedProjection\n"
        "class Shop(Application[UUID]):\n"
        "    is_snapshotting_enabled = True\n"
        "class Bank(EventSourcedProjection[UUID]):\n"
        "    pass\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "with Shop() as shop, Bank() as bank:\n"
        "    shop.save(Aggregate())\n"
    )
    env = {**os.environ, "PERSISTENCE_MODULE": MODULE, "ONEFOLD_DATABASE_URL": empty_database_url}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(6)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    results = [(process.communicate(timeout=60)[1], process.returncode) for process in processes]
    assert results == [("", 0)] * len(processes)
    with psycopg.connect(empty_database_url) as connection:
        assert connection.execute("SELECT count(*) FROM onefold.shop_events").fetchone() == (6,)


def test_a_process_starts_while_another_has_an_append_open(
    make_factory: Any, recorder: Any, other: psycopg.Connection
) -> None:
    other.execute(
        "INSERT INTO onefold.stored_events (version, event_id, stream, type, data)"
        " VALUES (1, gen_random_uuid(), 's', 't', '{}')"
    )
    begun = time.monotonic()
    make_factory().application_recorder()
    assert time.monotonic() - begun < 3

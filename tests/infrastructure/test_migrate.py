"""Migrations are applied once, in order, whole, and only to a database that this code knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import psycopg
import pytest
from psycopg import Connection

from onefold.infrastructure.postgres import migrate

FIRST = "CREATE TABLE note (id bigint PRIMARY KEY); INSERT INTO note SELECT generate_series(1, 10)"
SECOND = "ALTER TABLE note ADD COLUMN share text NOT NULL DEFAULT '100%'"
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(**files: str) -> Path:
        for name, text in files.items():
            (tmp_path / f"{name.removeprefix('m')}.sql").write_text(text)
        return tmp_path

    return write


@pytest.fixture
def empty(empty_database_url: str) -> Iterator[Connection]:
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        yield connection


def test_the_shipped_migrations_are_applied_to_the_test_database(connection: Connection) -> None:
    assert migrate.pending(connection) == []
    migrate.require_migrated(connection)
    assert [str(step) for step in migrate.applied(connection)] == [str(step) for step in migrate.load()]


def test_migrations_are_applied_in_order_and_recorded(empty: Connection, write: Write) -> None:
    directory = write(m0002_share=SECOND, m0001_note=FIRST)
    assert [str(step) for step in migrate.pending(empty, directory)] == ["0001_note", "0002_share"]
    assert [str(step) for step in migrate.migrate(empty, directory)] == ["0001_note", "0002_share"]
    assert empty.execute("SELECT count(*), min(share) FROM note").fetchone() == (10, "100%")
    rows = empty.execute(
        "SELECT number, name, length(sha256), applied_at <= now() FROM onefold.migrations"
    ).fetchall()
    assert rows == [(1, "note", 64, True), (2, "share", 64, True)]


def test_migrating_again_applies_nothing(empty: Connection, write: Write) -> None:
    directory = write(m0001_note=FIRST)
    migrate.migrate(empty, directory)
    assert migrate.migrate(empty, directory) == []
    assert [str(step) for step in migrate.migrate(empty, write(m0002_share=SECOND))] == ["0002_share"]


def test_a_database_that_is_ready_costs_one_query(connection: Connection, tmp_path: Path) -> None:
    with (tmp_path / "trace").open("w+") as trace:
        connection.pgconn.trace(trace.fileno())
        assert migrate.migrate(connection) == []
        connection.pgconn.untrace()
        trace.seek(0)
        lines = [line.split("\t") for line in trace.read().splitlines()]
    sent = [fields[3] for fields in lines if len(fields) > 3 and fields[1] == "F"]
    assert [message for message in sent if message in ("Query", "Execute")] in (["Query"], ["Execute"])


@pytest.mark.parametrize("autocommit", [True, False])
def test_asking_what_is_pending_leaves_the_callers_transaction_usable(
    empty_database_url: str, write: Write, *, autocommit: bool
) -> None:
    directory = write(m0001_note=FIRST)
    with psycopg.connect(empty_database_url, autocommit=autocommit) as connection:
        with connection.transaction():
            connection.execute("CREATE TABLE mine ()")
            assert len(migrate.pending(connection, directory)) == 1
            connection.execute("INSERT INTO mine DEFAULT VALUES")
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        assert len(migrate.pending(connection, directory)) == 1
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_a_connection_that_opens_transactions_by_itself_can_migrate(
    empty_database_url: str, write: Write
) -> None:
    with psycopg.connect(empty_database_url) as connection:
        assert len(migrate.migrate(connection, write(m0001_note=FIRST, m0002_share=SECOND))) == 2
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        assert len(migrate.applied(connection)) == 2


def test_a_connection_inside_a_transaction_is_refused(empty: Connection, write: Write) -> None:
    with empty.transaction(), pytest.raises(migrate.MigrationError, match="outside any transaction"):
        migrate.migrate(empty, write(m0001_note=FIRST))


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_many_processes_at_once_take_each_step_once(
    empty_database_url: str, write: Write, isolation: str
) -> None:
    slow = {
        f"m{number:04}_step": f"SELECT pg_sleep(0.02); CREATE TABLE t{number} ()" for number in range(2, 7)
    }
    directory = write(m0001_note=FIRST, **slow)
    barrier = Barrier(6)

    def run(_: int) -> list[str]:
        options = f"-c default_transaction_isolation={isolation.replace(' ', chr(92) + ' ')}"
        with psycopg.connect(empty_database_url, autocommit=True, options=options) as connection:
            barrier.wait(10)
            done = [str(step) for step in migrate.migrate(connection, directory)]
            assert migrate.pending(connection, directory) == []
            return done

    with ThreadPoolExecutor(6) as pool:
        done = [step for steps in pool.map(run, range(6)) for step in steps]
    assert sorted(done) == [str(step) for step in migrate.load(directory)]


def test_a_step_that_fails_leaves_no_trace_and_the_steps_before_it_stay(
    empty: Connection, write: Write
) -> None:
    directory = write(m0001_note=FIRST, m0002_bad="CREATE TABLE half (); SELECT no_such_function()")
    with pytest.raises(migrate.MigrationError, match=r"0002_bad failed and left no trace.*no_such_function"):
        migrate.migrate(empty, directory)
    assert [str(step) for step in migrate.applied(empty)] == ["0001_note"]
    assert empty.execute("SELECT to_regclass('half')").fetchone() == (None,)
    write(m0002_bad="SELECT 1")
    assert [str(step) for step in migrate.migrate(empty, directory)] == ["0002_bad"]


def test_a_step_that_ends_its_transaction_is_refused(empty: Connection, write: Write) -> None:
    with pytest.raises(migrate.MigrationError, match="remove BEGIN, COMMIT and ROLLBACK"):
        migrate.migrate(empty, write(m0001_note="SELECT 1; COMMIT"))


def test_an_applied_file_that_was_changed_is_refused(empty: Connection, write: Write) -> None:
    directory = write(m0001_note=FIRST)
    migrate.migrate(empty, directory)
    write(m0001_note=FIRST + " -- and more")
    for ask in (migrate.migrate, migrate.pending):
        with pytest.raises(migrate.MigrationChanged, match=r"0001_note was applied at .* never changes"):
            ask(empty, directory)
    (directory / "0001_note.sql").rename(directory / "0001_other.sql")
    (directory / "0001_other.sql").write_text(FIRST)
    with pytest.raises(migrate.MigrationChanged, match="found file 0001_other"):
        migrate.migrate(empty, directory)


def test_line_ends_of_a_checkout_are_no_change(empty: Connection, write: Write) -> None:
    directory = write(m0001_note="SELECT 1;\nSELECT 2;\n")
    migrate.migrate(empty, directory)
    (directory / "0001_note.sql").write_bytes(b"SELECT 1;\r\nSELECT 2;\r\n")
    assert migrate.migrate(empty, directory) == []


def test_a_database_of_a_later_version_is_refused(empty: Connection, write: Write) -> None:
    directory = write(m0001_note=FIRST, m0002_share=SECOND)
    migrate.migrate(empty, directory)
    (directory / "0002_share.sql").unlink()
    with pytest.raises(migrate.DatabaseTooNew, match="at migration 0001_note or before, found 0002_share"):
        migrate.migrate(empty, directory)


@pytest.mark.parametrize("names", [["m0002_b"], ["m0001_a", "m0003_c"], ["m0001_a", "m0001_b"], ["m0000_a"]])
def test_numbers_with_holes_or_repeats_are_refused(empty: Connection, write: Write, names: list[str]) -> None:
    with pytest.raises(migrate.MigrationGap, match="without holes and without repeats"):
        migrate.migrate(empty, write(**dict.fromkeys(names, "SELECT 1")))


def test_a_missing_record_in_the_database_is_refused(empty: Connection, write: Write) -> None:
    directory = write(m0001_note=FIRST, m0002_share=SECOND)
    migrate.migrate(empty, directory)
    empty.execute("DELETE FROM onefold.migrations WHERE number = 1")
    with pytest.raises(
        migrate.MigrationGap, match="expected the database's migration 0001, found 0002_share"
    ):
        migrate.migrate(empty, directory)


def test_a_file_of_another_name_is_refused(empty: Connection, write: Write) -> None:
    with pytest.raises(migrate.MigrationError, match=r"named NNNN_name\.sql, found 1_note\.sql"):
        migrate.migrate(empty, write(m1_note=FIRST))


def test_an_old_server_is_refused(empty: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "OLDEST_SERVER", 990000)
    with pytest.raises(migrate.ServerTooOld, match=r"expected PostgreSQL 99 or later, found \d+\.\d+"):
        migrate.migrate(empty)


def test_a_command_that_needs_a_ready_database_says_how_to_make_it_one(
    empty: Connection, write: Write
) -> None:
    directory = write(m0001_note=FIRST)
    with pytest.raises(migrate.NotMigrated, match="1 pending, the first 0001_note; run `onefold db migrate`"):
        migrate.require_migrated(empty, directory)

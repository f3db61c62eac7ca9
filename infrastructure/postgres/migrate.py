"""Migrations: numbered SQL files that bring a database to the shape which this code expects."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
from psycopg import Connection
from psycopg.pq import TransactionStatus
from psycopg.rows import class_row

from ...domain.errors import OnefoldError
from .sql import statement

MIGRATIONS = Path(__file__).parent / "migrations"
OLDEST_SERVER = 150000
# The advisory lock under which a database is migrated: "onefold" in ASCII.
LOCK = 0x6F6E65666F6C64

_FILE = re.compile(r"(?P<number>[0-9]{4})_(?P<name>[a-z0-9_]+)\.sql")


class MigrationError(OnefoldError):
    """The database cannot be brought to the shape which this code expects."""


class MigrationGap(MigrationError):
    """Migrations are numbered from 1 without holes; here a number is missing or given twice."""


class MigrationChanged(MigrationError):
    """A migration that was applied is not the one in the file any more."""


class DatabaseTooNew(MigrationError):
    """The database was migrated by a later version of Onefold."""


class ServerTooOld(MigrationError):
    """The server is older than the oldest PostgreSQL that Onefold runs on."""


class NotMigrated(MigrationError):
    """Migrations are pending on a database that is expected to be ready."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One step: its number from 1, its name, and the SQL that makes it."""

    number: int
    name: str
    sql: bytes = field(repr=False)

    @property
    def sha256(self) -> str:
        """Hex digest of the SQL, by which a later change of the file is seen."""
        return hashlib.sha256(self.sql).hexdigest()

    def __str__(self) -> str:
        return f"{self.number:04}_{self.name}"


@dataclass(frozen=True, slots=True)
class AppliedMigration:
    """One step that a database has taken, as it keeps record of it."""

    number: int
    name: str
    sha256: str
    applied_at: datetime

    def __str__(self) -> str:
        return f"{self.number:04}_{self.name}"


def load(directory: Path = MIGRATIONS) -> list[Migration]:
    """Read the migrations `NNNN_name.sql` in `directory`, in the order of their numbers.

    Raises MigrationGap unless the numbers are 1, 2, 3 … and MigrationError for an SQL file of another name.
    """
    migrations: list[Migration] = []
    for path in sorted(directory.glob("*.sql")):
        match = _FILE.fullmatch(path.name)
        if match is None:
            raise MigrationError(
                f"expected migrations named NNNN_name.sql, found {path.name} in {directory}; rename the file"
            )
        # A checkout may turn line ends; the digest must not depend on that.
        sql = path.read_bytes().replace(b"\r\n", b"\n")
        migrations.append(Migration(int(match["number"]), match["name"], sql))
    for expected, migration in enumerate(migrations, start=1):
        if migration.number != expected:
            raise MigrationGap(
                f"expected migration number {expected:04} in {directory}, found {migration}; "
                "number the files from 0001 without holes and without repeats"
            )
    return migrations


def applied(connection: Connection[Any]) -> list[AppliedMigration]:
    """Return the migrations that the database has taken, in the order of their numbers."""
    # In a transaction of its own, or a savepoint of the caller's: both stay usable if the table is not there yet.
    bare = connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE
    scope = contextlib.nullcontext() if bare else connection.transaction()
    try:
        with scope, connection.cursor(row_factory=class_row(AppliedMigration)) as cursor:
            return cursor.execute(statement("applied_migrations")).fetchall()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return []


def pending(connection: Connection[Any], directory: Path = MIGRATIONS) -> list[Migration]:
    """Return the migrations that `migrate` would apply now; one query.

    Raises the errors of `migrate`.
    """
    _check_server(connection)
    migrations = load(directory)
    return migrations[_count_taken(migrations, applied(connection)) :]


def migrate(connection: Connection[Any], directory: Path = MIGRATIONS) -> list[Migration]:
    """Apply the pending migrations in order, each in a transaction of its own; return those applied by this call.

    Several processes may migrate one database at once: each step is taken once, under an advisory lock, and all of
    them return when the database is ready. When nothing is pending this is one query. The connection must not be in
    a transaction.

    Raises ServerTooOld, MigrationGap, MigrationChanged, DatabaseTooNew, or MigrationError for SQL that fails; the
    steps before it stay applied, and its own step leaves no trace.
    """
    if connection.info.transaction_status != TransactionStatus.IDLE:
        raise MigrationError(
            "expected a connection outside any transaction, found one that is "
            f"{connection.info.transaction_status.name}; commit or roll back before migrating"
        )
    _check_server(connection)
    migrations = load(directory)
    taken = _count_taken(migrations, applied(connection))
    done: list[Migration] = []
    while taken < len(migrations):
        with connection.transaction():
            # Read committed: the statement after the lock must see what its last holder committed.
            connection.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
            if taken == 0:
                connection.execute(statement("create_migrations"))
            taken = _count_taken(migrations, applied(connection))
            if taken < len(migrations):
                _apply(connection, migrations[taken])
                done.append(migrations[taken])
                taken += 1
    return done


def require_migrated(connection: Connection[Any], directory: Path = MIGRATIONS) -> None:
    """Raise NotMigrated if a migration is pending, and the errors of `pending`."""
    missing = pending(connection, directory)
    if missing:
        raise NotMigrated(
            f"expected database {connection.info.dbname!r} at migration {missing[-1]}, found {len(missing)} pending, "
            f"the first {missing[0]}; run `onefold db migrate`"
        )


def _check_server(connection: Connection[Any]) -> None:
    found = connection.info.server_version
    if found < OLDEST_SERVER:
        raise ServerTooOld(
            f"expected PostgreSQL {OLDEST_SERVER // 10000} or later, found {found // 10000}.{found % 10000} "
            f"on {connection.info.host or 'the local socket'}; upgrade the server, or unset ONEFOLD_DATABASE_URL "
            "to use the embedded one"
        )


def _count_taken(migrations: Sequence[Migration], taken: Sequence[AppliedMigration]) -> int:
    """Return how many of `migrations` the database has, after checking that it has exactly the first ones."""
    for index, step in enumerate(taken):
        if step.number != index + 1:
            raise MigrationGap(
                f"expected the database's migration {index + 1:04}, found {step} in onefold.migrations; rows are "
                "missing from that table: restore it from a backup"
            )
        if index >= len(migrations):
            latest = f"{migrations[-1]}" if migrations else "none"
            raise DatabaseTooNew(
                f"expected a database at migration {latest} or before, found {taken[-1]}; a later version of Onefold "
                "has migrated it: upgrade this installation"
            )
        known = migrations[index]
        if (step.name, step.sha256) != (known.name, known.sha256):
            raise MigrationChanged(
                f"migration {step} was applied at {step.applied_at.isoformat()} with SHA-256 {step.sha256[:12]}, "
                f"found file {known}.sql with {known.sha256[:12]}; an applied file never changes: restore it and "
                "put the change into a new migration"
            )
    return len(taken)


def _apply(connection: Connection[Any], migration: Migration) -> None:
    try:
        connection.execute(migration.sql)
    except psycopg.Error as error:
        raise MigrationError(
            f"migration {migration} failed and left no trace: {type(error).__name__}: {error}; "
            "mend the cause and migrate again"
        ) from error
    if connection.info.transaction_status != TransactionStatus.INTRANS:
        raise MigrationError(
            f"expected migration {migration} to stay in its transaction, found that it ended it; "
            "remove BEGIN, COMMIT and ROLLBACK from the file"
        )
    connection.execute(statement("record_migration"), (migration.number, migration.name, migration.sha256))

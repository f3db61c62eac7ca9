"""Two databases: one with a log to be exported, and one in which an identical log is to be made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onefold.infrastructure.connection import connected
from onefold.infrastructure.exporting.exporter import export
from onefold.infrastructure.exporting.importer import import_log
from onefold.infrastructure.exporting.manifest import Manifest
from onefold.infrastructure.postgres.migrate import migrate

AT = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)


@pytest.fixture
def other_url(empty_database_url: str) -> str:
    """A second migrated database."""
    with connected(empty_database_url) as connection:
        migrate(connection)
    return empty_database_url


def everything(url: str, log: str = "events") -> list[Any]:
    """Every column of a log, as PostgreSQL writes it."""
    with psycopg.connect(url) as connection:
        return connection.execute(f"SELECT l::text FROM onefold.{log} l ORDER BY position").fetchall()  # type: ignore[call-overload, no-any-return]


def exported(url: str, file: Path, **options: Any) -> Manifest:
    with connected(url) as connection:
        return export(connection, file, **options)


def imported(url: str, file: Path, **options: Any) -> Manifest:
    with connected(url) as connection:
        return import_log(connection, file, **options)


@contextmanager
def appending(url: str) -> Iterator[psycopg.Connection[Any]]:
    """A transaction that can append, rolled back at the end unless the body commits it."""
    with psycopg.connect(url) as connection:
        yield connection
        connection.rollback()

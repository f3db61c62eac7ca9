"""Migrations are applied once, in order, whole, and only to a database that this code knows."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from psycopg import Connection

from onefold.infrastructure.postgres import migrate


def test_the_shipped_migrations_are_applied_to_the_test_database(connection: Connection) -> None:
    assert migrate.pending(connection) == []
    assert [step.number for step in migrate.applied(connection)] == [step.number for step in migrate.load()]

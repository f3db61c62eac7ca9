"""The database of a command: the one that the settings name, else the embedded server's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from ..connection import connected
from ..embedded import database_url
from ..postgres.migrate import migrate, require_migrated
from ..settings import Settings


@contextmanager
def writable() -> Iterator[str]:
    """Yield the URL of the database, migrated."""
    with database_url(Settings.from_env()) as url:
        with connected(url) as connection:
            migrate(connection)
        yield url


@contextmanager
def readable() -> Iterator[psycopg.Connection[Any]]:
    """Yield a connection to look around with. A database that was given is not changed: it must be migrated."""
    settings = Settings.from_env()
    with database_url(settings) as url, connected(url) as connection:
        if settings.database_url is None:
            migrate(connection)
        else:
            require_migrated(connection)
        yield connection

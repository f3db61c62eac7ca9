"""The database of a command: the one that the settings name, else the embedded server's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from ...domain.errors import OnefoldError
from ..connection import connected
from ..embedded import EmbeddedServer, database_url
from ..postgres.migrate import migrate, require_migrated
from ..settings import DATABASE_URL, HOME, Settings


class NoDatabase(OnefoldError):
    """A command is to look at a database that nobody has made yet."""


def require_database(settings: Settings) -> None:
    """Raise `NoDatabase` where the settings name an embedded server that was never started."""
    if settings.database_url is None and EmbeddedServer(settings.home).status().version is None:
        raise NoDatabase(
            f"expected a database in {settings.home}, found none; go to the folder that holds it, name it with "
            f"{HOME}, name a server with {DATABASE_URL}, or make one with `onefold db start`"
        )


@contextmanager
def writable() -> Iterator[str]:
    """Yield the URL of the database, migrated."""
    with database_url(Settings.from_env()) as url:
        with connected(url) as connection:
            migrate(connection)
        yield url


@contextmanager
def readable() -> Iterator[psycopg.Connection[Any]]:
    """Yield a connection to look around with.

    A database that was given is not changed: it must be migrated. An embedded server that was never started is not
    made: raises `NoDatabase`.
    """
    with readable_url() as url, connected(url) as connection:
        yield connection


@contextmanager
def readable_url() -> Iterator[str]:
    """Yield the URL of the database to look around in, as `readable` does."""
    settings = Settings.from_env()
    require_database(settings)
    with database_url(settings) as url:
        with connected(url) as connection:
            if settings.database_url is None:
                migrate(connection)
            else:
                require_migrated(connection)
        yield url

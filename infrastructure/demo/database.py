"""Where the demonstration takes place: a database of its own, thrown away afterwards or kept."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier

from ...domain.errors import OnefoldError
from ..connection import connected, of_database
from ..embedded import EmbeddedServer
from ..postgres.migrate import migrate
from ..settings import Settings

NAME = "onefold_demo"


class DemoDatabaseInUse(OnefoldError):
    """The database that an earlier demonstration kept is in use."""


@dataclass(frozen=True, slots=True)
class Place:
    """A database, migrated and empty. `home` is the folder of its embedded server, None on a server that was given."""

    url: str
    name: str
    server: str
    kept: bool
    home: Path | None


@contextmanager
def demo_database(settings: Settings, *, keep: bool) -> Iterator[Place]:
    """Yield a database that nobody else uses.

    On the server that `settings` name it is a new one, dropped at the exit unless it is to be kept. Otherwise the
    embedded server is started: in a temporary folder, or with `keep` in the usual one, where it replaces the one of
    the last demonstration and touches no other.
    """
    with ExitStack() as stack:
        home = None
        if settings.database_url is not None:
            server, name = settings.database_url, f"{NAME}_{secrets.token_hex(4)}"
        else:
            home = settings.home if keep else stack.enter_context(_temporary_home())
            server, name = stack.enter_context(EmbeddedServer(home).hold()), NAME
        with connected(server) as connection:
            _create(connection, name)
        if not keep and home is None:
            stack.callback(_drop, server, name)
        url = of_database(server, name)
        with connected(url) as connection:
            migrate(connection)
            number = connection.info.server_version
        yield Place(url, name, f"{number // 10000}.{number % 10000}", keep, home)


@contextmanager
def _temporary_home() -> Iterator[Path]:
    home = Path(tempfile.mkdtemp(prefix="onefold-demo-"))
    # Root's server runs under another account, which must be able to pass.
    home.chmod(0o711)
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _create(connection: psycopg.Connection[Any], name: str) -> None:
    try:
        connection.execute(SQL("DROP DATABASE IF EXISTS {}").format(Identifier(name)))
    except psycopg.errors.ObjectInUse as error:
        raise DemoDatabaseInUse(
            f"expected to replace database {name} of the last demonstration, found that it is in use; "
            "close the programs that are connected to it"
        ) from error
    connection.execute(SQL("CREATE DATABASE {} TEMPLATE template0").format(Identifier(name)))


def _drop(server: str, name: str) -> None:
    with connected(server) as connection:
        connection.execute(SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(Identifier(name)))

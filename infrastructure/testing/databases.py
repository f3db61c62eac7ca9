"""Databases of tests: the server of a run, migrated databases on it, and copies of what a test has prepared."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.sql import SQL, Identifier

from ..connection import connected, of_database
from ..embedded import EmbeddedServer
from ..postgres.migrate import migrate
from .errors import ProvesNothing

SERVER = "ONEFOLD_TEST_DATABASE_URL"
PREFIX = "onefold_test_"
HOME = "onefold-testing-"

SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_wal_size": "512MB",
}
"""The server ends with the run: what a power cut would lose is thrown away anyhow."""

MEMORY = Path("/dev/shm")  # noqa: S108 - the folder below it has a name of its own
MEMORY_BYTES = 3 * 2**30


def new_home() -> Path:
    """Return a folder for the server of this run, which is not made yet: in memory if there is room."""
    roomy = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > MEMORY_BYTES
    folder = MEMORY if roomy else Path(tempfile.gettempdir())
    return folder / f"{HOME}{os.getpid()}-{secrets.token_hex(4)}"


@contextmanager
def server(home: Path) -> Iterator[str]:
    """Yield the URL of the server to test on: that of ONEFOLD_TEST_DATABASE_URL, else one with its files in `home`."""
    given = os.environ.get(SERVER, "").strip()
    if given:
        yield given
        return
    _remove_abandoned(home.parent)
    with EmbeddedServer(home, settings=SETTINGS).hold() as url:
        yield of_database(url, "postgres")


def remove(home: Path) -> None:
    """Stop the server of a run and remove its files."""
    if home.exists():
        EmbeddedServer(home).stop()
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def migrated(server_url: str) -> Iterator[str]:
    """Yield the URL of a new database with every migration applied; dropped at the exit."""
    with _database(server_url, "template0") as url:
        with connected(url) as connection:
            migrate(connection)
        yield url


@contextmanager
def copy_of(url: str) -> Iterator[str]:
    """Yield the URL of a copy of the database at `url`, to which nobody may be connected; dropped at the exit."""
    name = conninfo_to_dict(url).get("dbname")
    if not name:
        raise ProvesNothing(
            "expected the URL of a database by its name, found one without; name it in the URL"
        )
    with _database(of_database(url, "postgres"), str(name)) as copied:
        yield copied


@contextmanager
def _database(server_url: str, template: str) -> Iterator[str]:
    name = f"{PREFIX}{secrets.token_hex(6)}"
    with connected(server_url) as connection:
        try:
            connection.execute(
                SQL("CREATE DATABASE {} TEMPLATE {}").format(Identifier(name), Identifier(template))
            )
        except psycopg.errors.ObjectInUse as error:
            raise ProvesNothing(
                f"expected database {template} without connections, as each run gets a copy of it, found that it is "
                "in use; close the connections that fixtures and `prepare` have opened"
            ) from error
    try:
        yield of_database(server_url, name)
    finally:
        with connected(server_url) as connection:
            connection.execute(SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(Identifier(name)))


def _remove_abandoned(folder: Path) -> None:
    """Remove what runs left behind that were killed before they could clear up."""
    for home in folder.glob(f"{HOME}*-*"):
        number = home.name.removeprefix(HOME).partition("-")[0]
        if number.isdecimal() and home.stat().st_uid == os.geteuid() and not psutil.pid_exists(int(number)):
            remove(home)

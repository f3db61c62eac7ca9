"""One PostgreSQL server for the whole run, and a fresh migrated database for every test that asks for one."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from psycopg import Connection, sql
from psycopg.conninfo import make_conninfo

from onefold.infrastructure.embedded import EmbeddedServer
from onefold.infrastructure.postgres import migrate
from onefold.infrastructure.testing import plugin

from .services import fixtures as services
from .services.service import end_all

# The server lives as long as the run: what a power cut would lose is thrown away anyhow.
SERVER_SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_wal_size": "512MB",
}
TEST_DATABASE_URL = "ONEFOLD_TEST_DATABASE_URL"
MEMORY = Path("/dev/shm")
MEMORY_BYTES = 3 * 2**30

_HOME = pytest.StashKey[Path]()
_numbers = itertools.count(1)


class PlainRoot:
    """Lets pytest see the checkout as a folder of tests only.

    It would import the checkout's `__init__.py` under the folder's name, and with it the product a second time.
    """

    @pytest.hookimpl(tryfirst=True)
    def pytest_collect_directory(self, path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        if path != parent.config.rootpath:
            return None
        folder: pytest.Collector = pytest.Dir.from_parent(parent, path=path)
        return folder


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(PlainRoot())
    config.pluginmanager.register(services)
    config.pluginmanager.register(plugin)
    # Tests must not reach the data of whoever runs them.
    os.environ.pop("ONEFOLD_DATABASE_URL", None)
    os.environ.pop("ONEFOLD_HOME", None)
    given = getattr(config, "workerinput", None)
    if given is not None:
        config.stash[_HOME] = Path(given["onefold_home"])
        return
    folder = place()
    remove_abandoned(folder)
    home = Path(tempfile.mkdtemp(prefix=f"onefold-test-{os.getpid()}-", dir=folder))
    # Root's server runs under another account, which must be able to pass.
    home.chmod(0o711)
    config.stash[_HOME] = home


def place() -> Path:
    """Where the server's files go: into memory if there is room, where a copy of a database takes a tenth."""
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > MEMORY_BYTES:
        return MEMORY
    return Path(tempfile.gettempdir())


def remove_abandoned(folder: Path) -> None:
    """Remove what a run left behind that was killed before it could clear up."""
    for home in folder.glob("onefold-test-*-*"):
        pid = int(home.name.split("-")[2])
        if home.stat().st_uid == os.geteuid() and not psutil.pid_exists(pid):
            end_all(home)
            EmbeddedServer(home).stop()
            shutil.rmtree(home, ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["onefold_home"] = str(node.config.stash[_HOME])


def pytest_unconfigure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or _HOME not in config.stash:
        return
    home = config.stash[_HOME]
    url = os.environ.get(TEST_DATABASE_URL)
    if url:
        _drop_databases(url, home)
    end_all(home)
    EmbeddedServer(home).stop()
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def run_home(pytestconfig: pytest.Config) -> Path:
    """Folder of this run for servers of a test's own: pytest's is closed to root's servers by whoever runs it next."""
    return pytestconfig.stash[_HOME]


@pytest.fixture(scope="session")
def server_url(pytestconfig: pytest.Config) -> Iterator[str]:
    """URL of the server of this run, on its database `postgres`; do not create anything in that database."""
    url = os.environ.get(TEST_DATABASE_URL)
    if url:
        yield url
        return
    with EmbeddedServer(pytestconfig.stash[_HOME], settings=SERVER_SETTINGS).hold() as held:
        yield url_of(held, "postgres")


@pytest.fixture(scope="session")
def onefold_server(server_url: str) -> str:
    """The server of the plugin's fixtures is that of the run."""
    return server_url


@pytest.fixture(scope="session")
def template_database(server_url: str, pytestconfig: pytest.Config) -> str:
    """Name of a migrated database that nobody connects to; tests get copies of it."""
    home = pytestconfig.stash[_HOME]
    shape = "".join(step.sha256 for step in migrate.load())
    name = f"{_prefix(home)}_{hashlib.sha256(shape.encode()).hexdigest()[:12]}"
    with (home / "template.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with psycopg.connect(server_url, autocommit=True) as connection:
            if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone():
                return name
            making = f"{name}_new"
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {}").format(sql.Identifier(making)))
            connection.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(making))
            )
            with psycopg.connect(url_of(server_url, making), autocommit=True) as fresh:
                migrate.migrate(fresh)
            connection.execute(
                sql.SQL("ALTER DATABASE {} RENAME TO {}").format(sql.Identifier(making), sql.Identifier(name))
            )
    return name


@pytest.fixture
def database_url(server_url: str, template_database: str, pytestconfig: pytest.Config) -> Iterator[str]:
    """URL of a fresh database with every migration applied; dropped after the test, whoever is connected."""
    with fresh_database(server_url, template_database, pytestconfig.stash[_HOME]) as url:
        yield url


@pytest.fixture
def empty_database_url(server_url: str, pytestconfig: pytest.Config) -> Iterator[str]:
    """URL of a fresh database without any migration; dropped after the test."""
    with fresh_database(server_url, "template0", pytestconfig.stash[_HOME]) as url:
        yield url


@pytest.fixture
def connection(database_url: str) -> Iterator[Connection]:
    """A connection in autocommit mode to the database of `database_url`."""
    with psycopg.connect(database_url, autocommit=True) as opened:
        yield opened


@contextlib.contextmanager
def fresh_database(server_url: str, template: str, home: Path) -> Iterator[str]:
    name = f"{_prefix(home)}_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy").format(
                sql.Identifier(name), sql.Identifier(template)
            )
        )
    try:
        yield url_of(server_url, name)
    finally:
        with psycopg.connect(server_url, autocommit=True) as connection:
            connection.execute(
                sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
            )


def url_of(server_url: str, database: str) -> str:
    if "://" not in server_url:
        return make_conninfo(server_url, dbname=database)
    scheme, _, rest = server_url.partition("://")
    address, question, query = rest.partition("?")
    host = address.partition("/")[0]
    return f"{scheme}://{host}/{database}{question}{query}"


def _prefix(home: Path) -> str:
    """What the names of this run's databases begin with; two runs may share a server that was given."""
    return home.name.replace("-", "_").lower()


def _drop_databases(url: str, home: Path) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        names = connection.execute(
            "SELECT datname FROM pg_database WHERE starts_with(datname, %s)", (f"{_prefix(home)}_",)
        ).fetchall()
        for (name,) in names:
            connection.execute(
                sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
            )

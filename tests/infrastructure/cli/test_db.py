"""`onefold db` finds, starts, stops and migrates the database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from onefold.infrastructure.embedded import EmbeddedServer

from .conftest import Onefold, Said


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A folder for an embedded server, which is stopped at the latest with the test."""
    tmp_path.chmod(0o711)
    yield tmp_path / "home"
    EmbeddedServer(tmp_path / "home").stop()


def test_the_embedded_server_is_started_found_and_stopped(onefold: Onefold, home: Path) -> None:
    def db(*arguments: str) -> Said:
        return onefold("db", *arguments, ONEFOLD_DATABASE_URL="", ONEFOLD_HOME=str(home))

    before = db("url")
    assert before.code == 1
    assert "start it with `onefold db start`" in before.err
    assert db("status", "--json").document["embedded"]["running"] is False
    assert "stopped; `onefold db start` starts it" in db("status").out
    assert db("stop", "--json").document == {"stopped": False}
    for looking in (("status",), ("status", "--json"), ("history", "order/1")):
        said = onefold(*looking, ONEFOLD_DATABASE_URL="", ONEFOLD_HOME=str(home))
        assert (said.code, said.out) == (1, "")
        assert said.err.startswith(f"onefold: expected a database in {home}, found none; ")
        assert said.err.count("\n") == 1
    assert not home.exists()

    started = db("start", "--json").document
    url = db("url").out.strip()
    assert url == started["url"] == db("url", "--json").document["url"]
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM onefold.events").fetchone() == (0,)
    found = db("status", "--json").document
    assert found["embedded"]["running"] is True
    assert found["embedded"]["pid"] == started["pid"]
    assert found["database"]["reachable"] is True
    assert found["database"]["migrations"][0]["name"] == "log"
    assert found["database"]["pending"] == []
    assert "migration 0001" in db("status").out
    assert url in db("start").out.replace("\n", "")

    # Other commands use it and leave it running.
    status = onefold("status", ONEFOLD_DATABASE_URL="", ONEFOLD_HOME=str(home))
    assert status.code == 0
    assert db("url").code == 0

    assert db("stop").out.endswith("stopped\n")
    assert db("url").code == 1
    assert db("stop").out.endswith("it did not run\n")


def test_a_server_of_ones_own_is_not_started(onefold: Onefold) -> None:
    said = onefold("db", "start")
    assert said.code == 2
    assert "ONEFOLD_DATABASE_URL names a server of your own" in said.err


def test_the_url_of_a_server_of_ones_own_is_printed(onefold: Onefold, database_url: str) -> None:
    assert onefold("db", "url").out == f"{database_url}\n"


def test_migrations_are_applied_once(onefold: Onefold, empty_database_url: str) -> None:
    def db(*arguments: str) -> Said:
        return onefold("db", *arguments, ONEFOLD_DATABASE_URL=empty_database_url)

    pending = db("status", "--json").document["database"]["pending"]
    assert pending[0] == "0001_log"
    assert "`onefold db migrate` applies it" in db("status").out
    assert db("migrate", "--json").document["applied"] == pending
    assert db("migrate", "--json").document["applied"] == []
    assert "is up to date" in db("migrate").out
    assert db("status", "--json").document["database"]["pending"] == []


def test_a_database_that_is_newer_or_out_of_reach_is_a_problem(
    onefold: Onefold, connection: psycopg.Connection
) -> None:
    unreachable = onefold(
        "db", "status", "--json", ONEFOLD_DATABASE_URL="postgresql://ada:secret@127.0.0.1:1/x"
    )
    assert unreachable.code == 1
    assert unreachable.document["database"]["reachable"] is False
    assert "Connection refused" in unreachable.document["database"]["problem"]
    assert "secret" not in unreachable.out
    connection.execute(
        "INSERT INTO onefold.migrations (number, name, sha256)"
        " SELECT max(number) + 1, 'later', repeat('0', 64) FROM onefold.migrations"
    )
    newer = onefold("db", "status")
    assert newer.code == 1
    assert "upgrade this installation" in " ".join(newer.out.split())
    assert onefold("status").code == 1

"""The demonstration, for real: processes, a kill, and a database that is left as it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from onefold.infrastructure.connection import connected, without_password
from onefold.infrastructure.demo import demonstration
from onefold.infrastructure.demo.database import DemoDatabaseInUse, demo_database
from onefold.infrastructure.demo.demonstration import read_models
from onefold.infrastructure.demo.processes import Deliverer, DemoFailed, Worker
from onefold.infrastructure.embedded import EmbeddedServer
from onefold.infrastructure.settings import Settings

DEMO = [sys.executable, "-m", "onefold.infrastructure.cli", "demo"]


def databases(server_url: str) -> set[str]:
    with psycopg.connect(server_url) as connection:
        return {name for (name,) in connection.execute("SELECT datname FROM pg_database")}


def demo_databases(server_url: str) -> set[str]:
    return {name for name in databases(server_url) if name.startswith("onefold_demo")}


def run_demo(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DEMO, *arguments],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "ONEFOLD_DATABASE_URL": url, "COLUMNS": "100"},
        timeout=120,
    )


def test_the_demonstration_proves_the_read_models_right(server_url: str) -> None:
    before = demo_databases(server_url)
    result = run_demo(server_url, "--orders", "150", "--seed", "3", "--json")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    found = json.loads(result.stdout)
    delivered, outcomes = found["delivered"], found["outcomes"]
    assert found["verdict"]["equal"] is True
    assert found["verdict"]["first_difference"] is None
    assert outcomes["read"] == delivered["deliveries"]
    assert outcomes["appended"] == delivered["events"]
    assert outcomes["duplicate"] == delivered["twice"]
    assert outcomes["conflict"] == delivered["contradicting"] == len(outcomes["conflicts"]) == 5
    assert outcomes["unreadable"] == 0
    assert delivered["twice"] == round(0.2 * delivered["events"])
    assert found["worker"]["pid"] != found["worker"]["successor"]
    assert 0 < found["worker"]["taken_over_after"] < 30
    assert found["lag"]["worst_events"] > 0
    assert found["lag"]["final_events"] == 0
    assert found["read_models"]["order_summary"]["rows"] == 150
    assert found["read_models"]["account_balance"]["rows"] == found["accounts"]
    assert {each["position"] for each in found["status"]["projections"]} == {delivered["events"]}
    assert demo_databases(server_url) == before


def test_the_report_tells_the_whole_story(server_url: str) -> None:
    before = demo_databases(server_url)
    result = run_demo(server_url, "--orders", "40", "--keep")
    (name,) = demo_databases(server_url) - before
    try:
        assert result.returncode == 0, result.stderr
        for words in (
            "What came in",
            "What became of it",
            "order_summary  40 rows",
            "account_balance",
            "revenue_by_month",
            "Lag",
            "(SIGKILL)",
            "it had to wait until the lease had run out",
            "revenue_by_month equals the undisturbed shop  in all",
            "Every event was folded once: the read models are right.",
            f"Kept  database {name}",
        ):
            assert words in result.stdout
        assert "deliveries in" in result.stderr
        assert "its lease of 2 s ran out" in result.stderr
        line = next(line for line in result.stdout.splitlines() if line.endswith("onefold status"))
        said = subprocess.run(
            [
                "/bin/sh",
                "-c",
                line.replace(
                    "onefold status", f"{sys.executable} -m onefold.infrastructure.cli status --json"
                ),
            ],
            check=True,
            capture_output=True,
            text=True,
        )
        assert json.loads(said.stdout)["database"] == name
    finally:
        with psycopg.connect(server_url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_a_read_model_that_was_tampered_with_is_found_and_exits_with_1(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    from onefold.infrastructure.cli.program import app

    def tampered(connection: psycopg.Connection[Any]) -> Any:
        connection.execute("DELETE FROM read.order_summary WHERE order_id = '000002'")
        return read_models(connection)

    monkeypatch.setattr(demonstration, "read_models", tampered)
    result = CliRunner(env={"ONEFOLD_DATABASE_URL": database_url, "COLUMNS": "100"}).invoke(
        app, ["demo", "--orders", "10"]
    )
    assert result.exit_code == 1
    assert "The read models are wrong." in result.stdout
    assert "order_summary 000002: expected status" in result.stdout


def test_a_worker_that_ends_by_itself_is_reported_with_its_last_words(database_url: str) -> None:
    with connected(database_url) as connection:
        connection.execute("DROP TABLE onefold.migrations")
        connection.execute("DROP SCHEMA read CASCADE")
    with Worker(1, database_url, page=10) as worker:
        worker.process.wait(60)
        with pytest.raises(
            DemoFailed, match=r"expected worker 1 to go on, found that it ended with 1: onefold: "
        ):
            worker.require_alive()


def test_a_delivery_that_fails_is_reported_with_its_last_words(database_url: str, tmp_path: Path) -> None:
    with Deliverer(database_url) as deliverer, pytest.raises(DemoFailed, match="cannot read"):
        deliverer.deliver(tmp_path / "nowhere.jsonl")


def children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_its_processes_end_with_it_however_it_ends(
    database_url: str, number: signal.Signals, tmp_path: Path
) -> None:
    demo = subprocess.Popen(
        [*DEMO, "--orders", "300"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "ONEFOLD_DATABASE_URL": database_url, "TMPDIR": str(tmp_path)},
    )
    try:
        deadline = time.monotonic() + 60
        while len(children(demo.pid)) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        started = children(demo.pid)
        time.sleep(1.5)
        started += children(demo.pid)
        demo.send_signal(number)
        _, err = demo.communicate(timeout=60)
        _, alive = psutil.wait_procs(started, timeout=30)
        assert alive == []
        if number is signal.SIGINT:
            assert demo.returncode == 130
            assert b"Traceback" not in err
    finally:
        if demo.poll() is None:
            demo.kill()
            demo.communicate()
        with psycopg.connect(database_url, autocommit=True) as connection:
            for name in demo_databases(database_url):
                connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    found = tmp_path / "home"
    tmp_path.chmod(0o711)
    yield found
    EmbeddedServer(found).stop()


def test_what_is_kept_on_the_embedded_server_touches_no_other_database(home: Path) -> None:
    settings = Settings(home=home)
    with EmbeddedServer(home).hold() as url:
        with connected(url) as connection:
            connection.execute("CREATE TABLE mine (n int)")
        with demo_database(settings, keep=True) as place:
            assert (place.name, place.home, place.kept) == ("onefold_demo", home, True)
            with connected(place.url) as connection:
                connection.execute("CREATE TABLE of_the_first (n int)")
                with (
                    pytest.raises(DemoDatabaseInUse, match="close the programs that are connected"),
                    demo_database(settings, keep=True),
                ):
                    raise AssertionError
        with demo_database(settings, keep=True) as place, connected(place.url) as connection:
            assert connection.execute("SELECT to_regclass('of_the_first')").fetchone() == (None,)
            assert connection.execute("SELECT count(*) FROM onefold.events").fetchone() == (0,)
        assert {"onefold", "onefold_demo"} <= databases(url)
        with connected(url) as connection:
            assert connection.execute("SELECT count(*) FROM mine").fetchone() == (0,)


def test_what_is_not_kept_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place_for_files = tmp_path / "tmp"
    tmp_path.chmod(0o711)
    place_for_files.mkdir(mode=0o711)
    monkeypatch.setattr("tempfile.tempdir", str(place_for_files))
    with demo_database(Settings(home=tmp_path / "unused"), keep=False) as place:
        assert place.home is not None
        assert place.home.is_relative_to(place_for_files)
        pid = EmbeddedServer(place.home).status().pid
    assert list(place_for_files.iterdir()) == []
    assert not (tmp_path / "unused").exists()
    assert pid is not None
    assert ended(pid)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:secret@db.example:5433/shop?sslmode=require",
        "host=db.example password=secret user=ada",
        "postgresql://db.example/shop?user=ada&password=secret",
    ],
)
def test_a_url_is_shown_without_its_password(url: str) -> None:
    assert "secret" not in without_password(url)
    assert "db.example" in without_password(url)


def test_a_url_without_a_password_is_shown_as_it_is() -> None:
    assert without_password("postgresql://ada@db.example/shop") == "postgresql://ada@db.example/shop"

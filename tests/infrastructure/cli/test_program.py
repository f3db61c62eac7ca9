"""What every command has in common: exit codes, errors in one line, and finding the application."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from .conftest import Commands, Onefold

COMMANDS = ("demo", "import", "run", "consume", "status", "history", "rebuild", "maintain")
GROUPS = {"db": "url start stop migrate status", "dead-letters": "list show retry discard", "parked": "list"}


def test_the_version_is_that_of_the_package(onefold: Onefold) -> None:
    assert onefold("--version").out == f"onefold {version('onefold')}\n"


def test_help_names_every_command_and_the_exit_codes(onefold: Onefold) -> None:
    said = onefold("--help")
    assert said.code == 0
    for word in (*COMMANDS, *GROUPS, "--debug", "0 done, 1 found problems, 2 wrong use, 130"):
        assert word in said.out


@pytest.mark.parametrize(
    "command",
    [
        *COMMANDS,
        *(f"{group} {command}" for group, commands in GROUPS.items() for command in commands.split()),
    ],
)
def test_every_command_explains_itself_and_offers_json(onefold: Onefold, command: str) -> None:
    said = onefold(*command.split(), "--help")
    assert said.code == 0
    assert "--json" in said.out
    assert "<bool>" not in said.out


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "status --nonsense",
        "run --page 0",
        "demo --orders none",
        "demo --orders 0",
        "history",
        "rebuild",
        "import",
        "import file.csv",
        "run no_such_projection",
        "rebuild no_such_projection",
        "import --mapping nowhere.py:mapping file.csv",
        "import --mapping mapping file.csv",
        "status --app nowhere:app",
        "history order/1 --log no_such_log",
        "consume",
        "consume memory://m",
        "consume memory://m --consumer no_such_consumer",
        "consume --consumer no_such_consumer memory://m --batch 0",
        "dead-letters retry",
        "dead-letters retry 1 --all",
        "dead-letters retry one",
        "dead-letters discard",
        "dead-letters discard --all --consumer payments",
        "dead-letters show",
    ],
)
def test_wrong_use_exits_with_2(onefold: Onefold, line: str) -> None:
    said = onefold(*line.split())
    assert said.code == 2
    assert said.out == ""
    assert said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        ("nowhere:app", "there is no module nowhere"),
        ("onefold.nowhere:app", "there is no module onefold.nowhere"),
        ("mine:nope", "module mine has nothing named nope; its applications are app, nothing, steady"),
        ("mine:number", "expected an onefold.App, found int; its applications are app, nothing, steady"),
        ("json:JSONDecoder", "expected an onefold.App, found type; it has no application"),
        ("mine", "expected an application as MODULE:NAME, found 'mine'"),
        ("mine:", "expected an application as MODULE:NAME"),
        ("../mine:app", "expected an application as MODULE:NAME"),
        ("ending:app", "importing ending failed with SystemExit: 0"),
        ("broken:app", "importing broken failed with ZeroDivisionError: division by zero"),
        (
            "lacking:app",
            "importing lacking failed with ModuleNotFoundError: No module named 'no_such_package'",
        ),
    ],
)
def test_an_application_that_cannot_be_found_is_explained_in_one_line(
    onefold: Onefold, application: Path, monkeypatch: pytest.MonkeyPatch, reference: str, found: str
) -> None:
    (application / "broken.py").write_text("1 / 0\n")
    (application / "ending.py").write_text("raise SystemExit(0)\n")
    (application / "lacking.py").write_text("import no_such_package\n")
    monkeypatch.chdir(application)
    monkeypatch.setattr(sys, "path", [*sys.path])
    said = onefold("status", "--app", reference)
    sys.modules.pop("mine", None)
    assert said.code == 2
    assert said.err.startswith("onefold: ")
    assert said.err.count("\n") == 1
    assert found in said.err


def test_the_application_may_come_from_the_environment(
    onefold: Onefold, application: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(application)
    monkeypatch.setattr(sys, "path", [*sys.path])
    said = onefold("status", "--json", ONEFOLD_APP="mine:app")
    sys.modules.pop("mine", None)
    assert [each["name"] for each in said.document["projections"]] == ["total", "picky"]


@pytest.mark.parametrize(
    "line",
    ["status", "history order/1", "run --once", "db migrate", "demo --orders 1", "maintain", "parked list"],
)
def test_an_unreachable_database_is_reported_in_one_line(onefold: Onefold, line: str) -> None:
    said = onefold(*line.split(), ONEFOLD_DATABASE_URL="postgresql://ada:secret@127.0.0.1:1/shop")
    assert said.code == 1
    assert said.out == ""
    assert said.err.startswith("onefold: cannot reach the database: ")
    assert "Connection refused" in said.err
    assert said.err.count("\n") == 1
    assert "secret" not in said.err


def test_a_malformed_url_is_wrong_use(onefold: Onefold) -> None:
    said = onefold("status", ONEFOLD_DATABASE_URL="mysql://ada:secret@db/shop")
    assert said.code == 2
    assert "must look like postgresql://" in said.err
    assert "secret" not in said.err


def test_a_database_that_is_not_migrated_is_not_changed_by_looking_at_it(
    onefold: Onefold, empty_database_url: str
) -> None:
    said = onefold("status", ONEFOLD_DATABASE_URL=empty_database_url)
    assert said.code == 1
    assert "run `onefold db migrate`" in said.err
    assert onefold("db", "migrate", ONEFOLD_DATABASE_URL=empty_database_url).code == 0
    assert onefold("status", ONEFOLD_DATABASE_URL=empty_database_url).code == 0


@pytest.mark.parametrize(
    ("arguments", "env"),
    [
        (("--debug", "status", "--app", "nowhere:app"), {}),
        (("status", "--app", "nowhere:app", "--debug"), {}),
        (("status", "--app", "nowhere:app"), {"ONEFOLD_DEBUG": "1"}),
    ],
)
def test_debugging_shows_where_an_error_came_from(
    onefold: Onefold, arguments: tuple[str, ...], env: dict[str, str]
) -> None:
    said = onefold(*arguments, **env)
    assert said.code == 2
    assert "Traceback (most recent call last)" in said.err
    assert said.err.splitlines()[-1].startswith("onefold: application nowhere:app")


def test_debugging_is_off_where_the_environment_says_so(onefold: Onefold) -> None:
    assert "Traceback" not in onefold("status", "--app", "nowhere:app", ONEFOLD_DEBUG="0").err


def test_the_installed_command_and_the_module_are_the_same_program(start: Commands) -> None:
    assert start("--version").end(None).out == f"onefold {version('onefold')}\n"
    installed = Path(sys.executable).with_name("onefold")
    result = subprocess.run([installed, "--version"], check=True, capture_output=True, text=True)
    assert result.stdout == f"onefold {version('onefold')}\n"

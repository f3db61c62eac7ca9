"""The commands of exports: what they say, and how they end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from onefold import Money, connect
from onefold.domain.account import Account
from onefold.infrastructure.cli.program import app
from onefold.infrastructure.exporting.manifest import manifest_file
from onefold.projections.shop import app as shop

from .conftest import AT, everything


def said(url: str, *arguments: object) -> Any:
    env = {"ONEFOLD_DATABASE_URL": url, "COLUMNS": "100"}
    return CliRunner(env=env).invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def filled(database_url: str) -> str:
    with connect(shop, database_url) as store:
        account = Account.open("1", "EUR", at=AT)
        account.deposit(Money.of("24.90", "EUR"), at=AT)
        store.save(account)
    return database_url


def test_a_log_goes_to_a_file_and_comes_back(filled: str, other_url: str, tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    done = said(filled, "export", file)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith(f"✓ 2 events in {file}, {file.stat().st_size:,} bytes, in ")
    sha256 = json.loads(manifest_file(file).read_text())["sha256"]
    assert f"SHA-256 {sha256}, in log.jsonl.manifest.json" in done.stdout
    back = said(other_url, "import-log", file)
    assert back.stdout.startswith(f"✓ 2 events of {file} in log events, in ")
    assert everything(other_url) == everything(filled)
    again = said(other_url, "import-log", file)
    assert (again.exit_code, again.stdout) == (1, "")
    assert again.stderr.startswith("onefold: expected an empty log events, found events up to position 2")


def test_documents_say_the_same(filled: str, other_url: str, tmp_path: Path) -> None:
    file = tmp_path / "part"
    done = json.loads(
        said(filled, "export", file, "--format", "csv", "--stream", "account/1", "--json").stdout
    )
    assert (done["events"], done["kind"], done["stream"], done["last_position"]) == (2, "csv", "account/1", 2)
    assert done["manifest"] == str(manifest_file(file))
    back = json.loads(said(other_url, "import-log", file, "--json").stdout)
    assert back == {"file": str(file), "log": "events", "events": 2, "last_position": 2}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ("export log.xml", 2, "expected jsonl or csv"),
        ("export log.csv --stream a --category b", 2, "expected either --stream or --category, found both"),
        ("export log.csv --log nothing", 2, "expected one of the logs events, found 'nothing'"),
        ("import-log log.csv", 1, "expected the manifest of the export in log.csv.manifest.json, found none"),
    ],
)
def test_wrong_use_is_told(filled: str, arguments: str, code: int, words: str) -> None:
    done = said(filled, *arguments.split(" "))
    assert (done.exit_code, done.stdout) == (code, "")
    assert words in done.stderr

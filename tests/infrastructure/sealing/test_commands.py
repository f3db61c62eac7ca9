"""The commands of seals: what they say, and how they end."""

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

import psycopg
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from psycopg.sql import SQL, Identifier
from typer.testing import CliRunner

from onefold.infrastructure.cli.program import app
from onefold.infrastructure.sealing.handed import read

from .conftest import append, sealed, superuser


def said(url: str, *arguments: object) -> Any:
    env = {"ONEFOLD_DATABASE_URL": url, "COLUMNS": "200"}
    return CliRunner(env=env).invoke(app, [str(argument) for argument in arguments])


def keys(folder: Path, name: str, key: Ed25519PrivateKey | X25519PrivateKey) -> tuple[Path, Path]:
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public


def test_a_log_is_sealed_and_verified(url: str, file: Path) -> None:
    done = said(url, "seal", "--to", file)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "1 seal of 24 events made; log events is sealed up to position 24" in done.stdout
    assert "1 seal handed out to" in done.stdout
    done = said(url, "verify", "--against", file)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "24 events against 1 seal, up to position 24, in" in done.stdout
    assert ": as sealed" in done.stdout


def test_seals_that_stay_in_the_database_are_told_to_prove_little(url: str) -> None:
    assert "prove little" in said(url, "seal").stdout
    assert "Compared with seals of the same database only" in said(url, "verify").stdout


def test_findings_are_told_and_end_with_one(sealed_url: str) -> None:
    with superuser(sealed_url) as connection:
        connection.execute("UPDATE onefold.events SET data = '{}' WHERE position = 7")
        connection.execute("DELETE FROM onefold.events WHERE position = 8")
        connection.execute(
            "UPDATE onefold.seals SET signature = sha512('x'), public_key = sha256('x') WHERE number = 1"
        )
        append(connection, "order/9", 1)
    done = said(sealed_url, "verify")
    assert done.exit_code == 1
    assert "altered position 7, order/3 version 2 (data)\n" in done.stdout
    assert "removed position 8, order/4 version 2\n" in done.stdout
    assert "23 events against 3 seals, up to position 24" in done.stdout
    assert "1 event after that not sealed yet: nothing is proven of them." in done.stdout
    document = json.loads(said(sealed_url, "verify", "--json").stdout)
    assert (document["intact"], document["events"], document["unsealed"]) == (False, 23, 1)
    assert document["findings"][0] == {
        "kind": "altered",
        "position": 7,
        "stream": "order/3",
        "version": 2,
        "columns": ["data"],
        "seal": 1,
        "detail": None,
    }
    assert said(sealed_url, "verify", "--range", "11..").exit_code == 0
    assert said(sealed_url, "verify", "--range", "..10").exit_code == 1
    assert said(sealed_url, "verify", "--stream", "order/1").exit_code == 0
    assert said(sealed_url, "verify", "--stream", "order/3").exit_code == 1


def test_signed_seals_are_verified_with_the_key(url: str, file: Path, tmp_path: Path) -> None:
    private, public = keys(tmp_path, "one", Ed25519PrivateKey.generate())
    _, other = keys(tmp_path, "other", Ed25519PrivateKey.generate())
    assert said(url, "seal", "--sign", private, "--to", file).exit_code == 0
    assert said(url, "verify", "--key", public, "--against", file).exit_code == 0
    done = said(url, "verify", "--key", other)
    assert (done.exit_code, "seal 1: its signature in the database is not by this key" in done.stdout) == (
        1,
        True,
    )
    with psycopg.connect(url, autocommit=True) as connection:
        append(connection, "order/1", 7)
    sealed(url)
    done = said(url, "verify", "--key", public)
    assert (done.exit_code, "seal 2: not signed in the database" in done.stdout) == (1, True)


def test_a_log_that_was_sealed_anew_without_the_key_is_found(url: str, tmp_path: Path) -> None:
    private, public = keys(tmp_path, "one", Ed25519PrivateKey.generate())
    assert said(url, "seal", "--sign", private).exit_code == 0
    with superuser(url) as connection:
        signatures = connection.execute("SELECT public_key, signature FROM onefold.seals").fetchone()
        connection.execute("UPDATE onefold.events SET data = '{}' WHERE position = 7")
        connection.execute("DELETE FROM onefold.seals")
        connection.execute("DELETE FROM onefold.events_hashes")
        sealed(url)
        connection.execute("UPDATE onefold.seals SET public_key = %s, signature = %s", signatures)
    assert said(url, "verify").exit_code == 0
    assert said(url, "verify", "--key", public).exit_code == 1


@pytest.mark.parametrize("option", ["--sign", "--key"])
def test_a_key_that_is_none_is_told(url: str, tmp_path: Path, option: str) -> None:
    command = "seal" if option == "--sign" else "verify"
    private, public = keys(tmp_path, "wrong", X25519PrivateKey.generate())
    (tmp_path / "no.pem").write_text("no key")
    for file in (private if option == "--sign" else public, tmp_path / "no.pem", tmp_path / "nowhere"):
        done = said(url, command, option, file)
        assert (done.exit_code, "Ed25519 key in PEM in" in done.stderr) == (2, True)


def test_a_proof_is_json(sealed_url: str) -> None:
    proof = json.loads(said(sealed_url, "prove", 7).stdout)
    assert (proof["proves"], proof["leaf"], proof["seal"]["number"]) == ("inclusion", 6, 3)
    assert json.loads(said(sealed_url, "prove", 7, "--seal", 1).stdout)["seal"]["number"] == 1
    proof = json.loads(said(sealed_url, "prove", "--since", 1).stdout)
    assert (proof["proves"], proof["first"]["number"], proof["seal"]["number"]) == ("consistency", 1, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prove"], "expected either a POSITION or --since, found none"),
        (["prove", "7", "--since", "1"], "expected either a POSITION or --since, found both"),
        (["prove", "99"], "expected position 99 in a seal up to number 3, found none"),
        (["verify", "--range", "x"], "expected positions as A..B, A.. or ..B, found 'x'"),
        (["verify", "--all", "--stream", "x"], "expected one of --stream, --range and --all"),
        (["verify", "--log", "x"], "expected one of the logs events, found 'x'"),
        (["verify", "--against", "nowhere.jsonl"], "expected handed-out seals in nowhere.jsonl, found none"),
        (["seal", "--every", "3"], "expected --follow with --every"),
        (["grant", "auditor", "nobody_here"], "expected a role of the server, found none named nobody_here"),
    ],
)
def test_wrong_use_is_told(sealed_url: str, arguments: list[str], message: str) -> None:
    done = said(sealed_url, *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr


def test_an_append_that_is_open_is_told(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from onefold.infrastructure.cli import seal

    monkeypatch.setattr(seal, "PATIENCE", 0.1)
    with psycopg.connect(url) as late, psycopg.connect(url, autocommit=True) as other:
        append(late, "order/1", 7)
        append(other, "order/2", 7)
        done = said(url, "seal")
        late.rollback()
    assert done.exit_code == 1
    assert "24 events made" in done.stdout
    assert "an append is open in front of the rest" in done.stdout


def test_following_goes_on_until_it_is_told_to_stop(url: str, file: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "onefold.infrastructure.cli",
        "seal",
        "--follow",
        "--every",
        "0.1",
        "--to",
        str(file),
    ]
    environment = {**os.environ, "ONEFOLD_DATABASE_URL": url}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            deadline = time.monotonic() + 60
            with psycopg.connect(url, autocommit=True) as connection:
                for expected in (1, 2):
                    while not file.exists() or len(list(read(file))) < expected:
                        assert time.monotonic() < deadline
                        time.sleep(0.05)
                    append(connection, "order/1", 6 + expected)
            process.send_signal(signal.SIGTERM)
            output, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0
    assert "log events is sealed up to position" in output
    assert "seal 1: 24 events up to position 24" in errors


@pytest.fixture
def role(server_url: str) -> Iterator[str]:
    name = f"onefold_auditor_{os.getpid()}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(SQL("CREATE ROLE {} LOGIN").format(Identifier(name)))
    yield name
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(SQL("DROP ROLE {}").format(Identifier(name)))


@pytest.fixture
def granting(role: str, url: str) -> str:
    """The database, made after the role, so that it goes first."""
    return url


def test_a_grant_says_what_it_gave_and_what_is_too_much(granting: str, role: str) -> None:
    done = said(granting, "grant", "auditor", role)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:5] == [
        "USAGE on schema onefold",
        "SELECT on onefold.events",
        "SELECT on onefold.events_hashes",
        "SELECT on onefold.migrations",
        "SELECT on onefold.seals",
    ]
    assert f"{role} has what it needs, and no more" in done.stdout
    assert said(granting, "grant", "sealer", role).exit_code == 0
    assert said(granting, "grant", "application", role).exit_code == 1
    done = said(granting, "grant", "auditor", role)
    assert done.exit_code == 1
    assert f"{role} may do more: INSERT on onefold.events\n" in done.stdout
    document = json.loads(said(granting, "grant", "auditor", role, "--json").stdout)
    assert {"schema": "onefold", "table": "events", "may": "INSERT"} in document["beyond"]

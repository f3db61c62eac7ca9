"""Proofs are checked by a program that shares nothing with the product."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from onefold.infrastructure.connection import connected
from onefold.infrastructure.sealing.errors import NotSealed, SealRefused
from onefold.infrastructure.sealing.proving import prove_continuation, prove_event
from onefold.infrastructure.sealing.signing import signer_of

from .conftest import append, sealed, superuser

SCRIPT = Path(__file__).parents[3] / "docs" / "examples" / "verify_proof.py"


@pytest.fixture
def private(tmp_path: Path) -> Path:
    key = Ed25519PrivateKey.generate()
    file = tmp_path / "private.pem"
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "public.pem").write_bytes(public)
    return file


def checked(proof: dict[str, Any], folder: Path, *options: object) -> subprocess.CompletedProcess[str]:
    """Run the script apart from everything that is installed."""
    file = folder / "proof.json"
    file.write_text(json.dumps(proof), "utf-8")
    return subprocess.run(
        [sys.executable, "-I", "-S", str(SCRIPT), str(file), *map(str, options)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_each_event_is_proven_in_each_seal_from_its_own_on(
    sealed_url: str, file: Path, tmp_path: Path
) -> None:
    with connected(sealed_url) as connection:
        for position in (1, 10, 11, 20, 21, 24):
            own = (position + 9) // 10
            for number in range(own, 4):
                proof = prove_event(connection, position, number=number)
                done = checked(proof, tmp_path, "--against", file)
                assert (done.returncode, done.stderr) == (0, "")
                assert f"stands at position {position}," in done.stdout
                assert f"seal {number} was handed out" in done.stdout
            if own > 1:
                with pytest.raises(NotSealed, match=f"found seal {own}"):
                    prove_event(connection, position, number=own - 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("position", 8),
        ("version", 3),
        ("occurred_at", "2026-03-01T12:30:00.000002Z"),
        ("recorded_at", "2026-03-01T12:30:00.000000Z"),
        ("event_id", "00000000-0000-0000-0000-000000000000"),
        ("schema_version", 2),
        ("stream", "order/4"),
        ("type", "order.paid"),
        ("data", '{"amount": "32.91"}'),
        ("raw", "AA=="),
        ("metadata", None),
    ],
)
def test_a_proof_of_another_event_does_not_hold(
    sealed_url: str, tmp_path: Path, field: str, value: Any
) -> None:
    with connected(sealed_url) as connection:
        proof = prove_event(connection, 7)
    assert checked(proof, tmp_path).returncode == 0
    proof["event"][field] = value
    done = checked(proof, tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("NOT PROVEN: the path from the event does not lead to the root")


def test_a_proof_with_another_path_or_place_does_not_hold(sealed_url: str, tmp_path: Path) -> None:
    with connected(sealed_url) as connection:
        proof = prove_event(connection, 7)
    for change in (
        {"leaf": 7},
        {"leaf": 24},
        {"path": proof["path"][:-1]},
        {"path": [*proof["path"], "00" * 32]},
        {"previous": "00" * 32},
        {"seal": proof["seal"] | {"root": "00" * 32}},
    ):
        assert checked(proof | change, tmp_path).returncode == 1, change


def test_a_seal_continues_an_earlier_one(sealed_url: str, file: Path, tmp_path: Path) -> None:
    with connected(sealed_url) as connection:
        for first, second in ((1, 1), (1, 2), (1, 3), (2, 3)):
            proof = prove_continuation(connection, first, number=second)
            done = checked(proof, tmp_path, "--against", file)
            assert (done.returncode, done.stderr) == (0, ""), (first, second)
            for change in (
                {"first": proof["first"] | {"root": "00" * 32}},
                {"path": [*proof["path"], "00" * 32]},
            ):
                assert checked(proof | change, tmp_path).returncode == 1
        with pytest.raises(NotSealed, match="expected a seal from number 3 on, found 2"):
            prove_continuation(connection, 3, number=2)


def test_a_signature_is_checked_with_the_public_key(
    url: str, private: Path, file: Path, tmp_path: Path
) -> None:
    sealed(url, file, signer=signer_of(private))
    with connected(url) as connection:
        proof = prove_event(connection, 7)
    public = tmp_path / "public.pem"
    done = checked(proof, tmp_path, "--key", public, "--against", file)
    assert (done.returncode, done.stderr) == (0, "")
    assert "seal 3 is signed by the key" in done.stdout
    # The path leads to the root still; who says so is another.
    for change in (
        {"sealed_at": "2020-01-01T00:00:00.000000Z"},
        {"signature": None},
        {"signature": "00" * 64},
    ):
        done = checked(proof | {"seal": proof["seal"] | change}, tmp_path, "--key", public)
        assert done.returncode == 1
        assert "signed" in done.stderr


def test_a_seal_that_was_not_handed_out_is_told(sealed_url: str, file: Path, tmp_path: Path) -> None:
    with psycopg.connect(sealed_url, autocommit=True) as connection:
        append(connection, "order/1", 7)
    sealed(sealed_url)
    with connected(sealed_url) as connection:
        proof = prove_event(connection, 7)
    done = checked(proof, tmp_path, "--against", file)
    assert (done.returncode, done.stderr) == (1, "NOT PROVEN: seal 4 was not handed out\n")
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + lines[2])
    assert "is broken at seal 3" in checked(proof, tmp_path, "--against", file).stderr


def test_raw_data_and_times_beyond_the_calendar_are_proven(url: str, tmp_path: Path) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO onefold.events (version, event_id, stream, type, raw, occurred_at)"
            " VALUES (1, gen_random_uuid(), 'x/1', 'x.y', '\\x00ff', 'infinity'),"
            " (1, gen_random_uuid(), 'x/2', 'x.y', '\\x', '0044-03-15 BC')"
        )
    sealed(url)
    with connected(url) as connection:
        for position in (25, 26):
            proof = prove_event(connection, position)
            assert isinstance(proof["event"]["occurred_at"], int)
            assert checked(proof, tmp_path).returncode == 0


def test_what_is_not_sealed_or_was_altered_is_not_proven(url: str) -> None:
    with connected(url) as connection:
        with pytest.raises(NotSealed, match="expected a seal of log events, found none"):
            prove_event(connection, 1)
        with pytest.raises(NotSealed, match="expected seal 1 of log events, found none"):
            prove_continuation(connection, 1)
        sealed(url)
        with pytest.raises(NotSealed, match="expected position 99 in a seal up to number 3, found none"):
            prove_event(connection, 99)
        with superuser(url) as other:
            other.execute("UPDATE onefold.events SET data = '{}' WHERE position = 7")
            other.execute("DELETE FROM onefold.events WHERE position = 8")
        with pytest.raises(SealRefused, match="expected the event at position 7 as it was sealed"):
            prove_event(connection, 7)
        with pytest.raises(NotSealed, match="expected an event at position 8, found none"):
            prove_event(connection, 8)


@pytest.mark.parametrize("text", ["", "{}", '{"path": []}', "[]", '{"proves": "inclusion", "path": ["x"]}'])
def test_what_is_no_proof_is_told(tmp_path: Path, text: str) -> None:
    file = tmp_path / "proof.json"
    file.write_text(text)
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(SCRIPT), str(file)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("NOT PROVEN: expected a proof")

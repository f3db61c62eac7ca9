"""`onefold effects`, and what other commands say of effects."""

from __future__ import annotations

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

from onefold import perform

from .conftest import Onefold

EFFECTS = """
import time
import onefold
from onefold import Call, Rejected, Retry

@onefold.effect("note", retry=Retry(attempts=1))
def note(data, call: Call):
    time.sleep(float(data.get("sleep", 0)))
    if data.get("reject"):
        raise Rejected("not today")
    return call.key

app = onefold.App(effects=[note])
"""


@pytest.fixture
def noting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "noting.py").write_text(EFFECTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONEFOLD_APP", "noting:app")
    yield tmp_path
    sys.modules.pop("noting", None)


def ask(connection: psycopg.Connection[Any], name: str = "note", **data: Any) -> str:
    with connection.transaction():
        return perform(connection, name, data)


def test_what_is_due_is_made_and_counted(
    onefold: Onefold, noting: Path, connection: psycopg.Connection[Any]
) -> None:
    ask(connection)
    ask(connection)
    said = onefold("effects", "--once", "--json")
    assert (said.code, said.document) == (
        0,
        {
            "effects": [{"effect": "note", "done": 2, "retried": 0, "dead": 0, "lost": 0}],
            "interrupted": False,
        },
    )
    said = onefold("effects", "note", "--once")
    assert said.code == 0
    assert "note" in said.out


def test_a_call_that_was_given_up_ends_it_with_1_and_is_told_by_the_status(
    onefold: Onefold, noting: Path, connection: psycopg.Connection[Any]
) -> None:
    ask(connection, reject=True)
    ask(connection, "another")
    said = onefold("effects", "--once")
    assert said.code == 1
    assert "1 dead letter; see `onefold dead-letters list`" in said.out
    assert "not today" in said.err
    said = onefold("status")
    assert said.code == 1
    assert "effect note has 1 dead letter" in said.out
    assert "another (not of this application)" in said.out
    found = onefold("status", "--json").document["effects"]
    assert [(each["name"], each["declared"], each["pending"], each["dead_letters"]) for each in found] == [
        ("another", False, 1, 0), ("note", True, 0, 1),
    ]  # fmt: skip


def test_wrong_use_is_told(onefold: Onefold, noting: Path) -> None:
    said = onefold("effects", "nothing", "--once")
    assert (said.code, "expected one of the effects note, found 'nothing'" in said.err) == (2, True)
    said = onefold("effects", "--once", "--app", "onefold.projections.shop:app")
    assert (said.code, "has no effects to make" in said.err) == (2, True)


def test_old_tasks_are_removed_by_maintain(
    onefold: Onefold, noting: Path, connection: psycopg.Connection[Any]
) -> None:
    ask(connection)
    onefold("effects", "--once")
    connection.execute("UPDATE onefold.effects SET remove_at = now()")
    said = onefold("maintain")
    assert (said.code, "removed 1 old task of effects" in said.out) == (0, True)


@pytest.mark.parametrize(("sleep", "code"), [(0.5, 0), (30, 1)], ids=["in time", "too late"])
def test_a_call_in_hand_is_ended_within_the_grace_time(
    noting: Path, connection: psycopg.Connection[Any], database_url: str, sleep: float, code: int
) -> None:
    ask(connection, sleep=sleep)
    process = subprocess.Popen(
        [sys.executable, "-m", "onefold.infrastructure.cli", "effects", "--grace", "2"],
        env={**os.environ, "ONEFOLD_DATABASE_URL": database_url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 20
    while connection.execute("SELECT FROM onefold.effects WHERE attempts = 1").fetchone() is None:
        assert time.monotonic() < until
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=20)
    assert process.returncode == code
    assert ("1 still being made" in told) is bool(code)
    row = connection.execute("SELECT done_at IS NOT NULL FROM onefold.effects").fetchone()
    assert row == (not code,)


def test_calls_that_were_given_up_are_among_the_dead_letters(
    onefold: Onefold, noting: Path, connection: psycopg.Connection[Any]
) -> None:
    key = ask(connection, reject=True)
    ask(connection, reject="again")
    onefold("effects", "--once")
    said = onefold("dead-letters", "list")
    assert "effect:1" in said.out
    assert "2 dead letters" in said.out
    [first, second] = onefold("dead-letters", "list", "--json").document["effects"]
    assert (first["id"], first["outcome"], first["call"]) == ("effect:1", "rejected", key)
    assert onefold("dead-letters", "list", "--json", "--consumer", "x").document["effects"] == []
    shown = onefold("dead-letters", "show", "effect:1")
    assert key in shown.out
    assert '{"reject": true}' in shown.out
    assert onefold("dead-letters", "show", "effect:2", "--json").document["data"] == {"reject": "again"}

    said = onefold("dead-letters", "retry", "effect:1", "--by", "ops")
    assert (said.code, "effect:1 due again" in said.out) == (0, True)
    said = onefold("dead-letters", "retry", "effect:1", "--by", "ops", "--json")
    assert said.code == 1
    said = onefold("dead-letters", "discard", "--all", "--by", "ops")
    assert (said.code, "discarded effect:2" in said.out) == (0, True)
    resolved = onefold("dead-letters", "list", "--resolved", "--json").document["effects"]
    assert [(each["id"], each["resolution"]) for each in resolved] == [(second["id"], "discarded")]
    onefold("effects", "--once")
    said = onefold("dead-letters", "retry", "--all", "--by", "ops", "--json")
    assert said.document == {
        "retried": [{"id": "effect:1", "became": "due again", "resolved": True, "why": ""}]
    }


def test_what_is_no_dead_letter_of_an_effect_is_told(onefold: Onefold, noting: Path) -> None:
    said = onefold("dead-letters", "show", "effect:x")
    assert (said.code, "such as 7, effect:7 or outbox:7, found 'effect:x'" in said.err) == (2, True)
    for command in ("show", "retry", "discard"):
        said = onefold("dead-letters", command, "effect:7")
        assert (said.code, "found effect:7" in said.err) == (1, True)

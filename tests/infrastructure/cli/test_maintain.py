"""`onefold maintain` tells what it made, sealed and dropped, and what it had to leave."""

from __future__ import annotations

from pathlib import Path

import pytest
from psycopg import Connection

from onefold.infrastructure.cli import maintain as command
from onefold.infrastructure.postgres.maintenance import LOCK, Maintenance, Skipped

from .conftest import Onefold, payment, written

NOTHING = {
    "made": [],
    "sealed": [],
    "retired": [],
    "detached": [],
    "dropped": [],
    "skipped": [],
    "busy": False,
    "effects_removed": 0,
    "outbox_removed": 0,
}


def test_nothing_is_due_in_a_fresh_database(onefold: Onefold) -> None:
    assert onefold("maintain", "--json").document == NOTHING
    assert "nothing is due" in onefold("maintain").out


def test_a_generation_that_is_old_enough_is_sealed(
    onefold: Onefold, paying: Path, connection: Connection
) -> None:
    assert onefold("consume", written(paying, payment(1)), "--consumer", "payments").code == 0
    connection.execute("UPDATE onefold.ledger_partitions SET starts_at = starts_at - interval '20 days'")
    said = onefold("maintain", "--json")
    assert said.code == 0
    assert said.document == {**NOTHING, "made": ["ledger_2"], "sealed": ["ledger_1"]}


def test_another_process_at_it_is_told(onefold: Onefold, connection: Connection) -> None:
    connection.execute("SELECT pg_advisory_lock(%s)", (LOCK,))
    assert onefold("maintain", "--json").document == {**NOTHING, "busy": True}
    assert "another process is at it" in onefold("maintain").out


def test_steps_that_were_left_are_a_problem(onefold: Onefold, monkeypatch: pytest.MonkeyPatch) -> None:
    left = Skipped("detach", "ledger_1", "another transaction holds a lock on it", 77)
    done = Maintenance(made=["ledger_2"], retired=["ledger_1"], skipped=[left])
    monkeypatch.setattr(command, "upkeep", lambda connection: done)
    said = onefold("maintain")
    assert said.code == 1
    text = " ".join(said.out.split())
    assert "made ledger_2" in text
    assert "left for the next time: detach ledger_1: another transaction holds a lock on it (pid 77)" in text
    assert onefold("maintain", "--json").document["skipped"] == [
        {
            "step": "detach",
            "partition": "ledger_1",
            "reason": "another transaction holds a lock on it",
            "pid": 77,
        }
    ]


def test_a_fresh_database_is_migrated_first(onefold: Onefold, empty_database_url: str) -> None:
    assert onefold("maintain", ONEFOLD_DATABASE_URL=empty_database_url).code == 0

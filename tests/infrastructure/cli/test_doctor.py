"""`onefold doctor` lists what it found, and ends with 1 where there is a problem."""

from __future__ import annotations

from psycopg import Connection

from .conftest import Onefold

# The server of the tests is set for speed.
APART = {"fsync", "full_page_writes"}


def test_a_sound_installation_ends_well(onefold: Onefold) -> None:
    said = onefold("doctor", "--json")
    problems = {each["check"] for each in said.document["findings"] if each["severity"] == "problem"}
    assert problems <= APART
    assert said.document["sound"] is (not problems)
    assert said.code == (1 if problems else 0)
    assert {"check": "migrations", "severity": "fine", "found": "all are applied, and none was changed afterwards",
            "advice": None} in said.document["findings"]  # fmt: skip
    text = onefold("doctor").out
    assert "append-only: the guards of events are in force" in text
    assert "order_summary has never run" in text


def test_a_problem_ends_with_1_and_says_what_to_do(onefold: Onefold, connection: Connection) -> None:
    connection.execute("ALTER TABLE onefold.events DISABLE TRIGGER refuse_change")
    said = onefold("doctor", "--json")
    assert (said.code, said.document["sound"]) == (1, False)
    said = onefold("doctor")
    assert said.code == 1
    assert "ALTER TABLE onefold.events ENABLE ALWAYS TRIGGER refuse_change" in " ".join(said.out.split())

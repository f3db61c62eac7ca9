"""Consumers that are killed, at every point of their way and by the messages themselves."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from .casualty import POINTS, acknowledged, write
from .desk import balances, dead_letters, disordered, envelope, outcomes, parked

ROOT = Path(__file__).parents[3]
ACCOUNTS, VERSIONS = 6, 30


class Casualties:
    """Runs consumers, one after the other, each in a process of its own."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.infrastructure.consuming.casualty"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, url: str, journal: Path, **options: Any) -> int:
        """Run a consumer to its end, and return its exit code, negative for a signal."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"url": url, "journal": str(journal), **options}) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(20)


@pytest.fixture(scope="module")
def casualties() -> Iterator[Casualties]:
    made = Casualties()
    yield made
    made.close()


@pytest.mark.parametrize("point", POINTS)
def test_a_consumer_that_is_killed_applies_everything_once(
    bank: str, connection: psycopg.Connection[Any], casualties: Casualties, tmp_path: Path, point: str
) -> None:
    """C01"""
    chance = random.Random(POINTS.index(point))
    journal = tmp_path / "journal"
    messages = [envelope(f"a{n}", version) for version in range(1, VERSIONS + 1) for n in range(ACCOUNTS)]
    messages += chance.sample(messages, len(messages) // 5)
    order = sorted(range(len(messages)), key=lambda place: place + chance.uniform(0, 15))
    write(journal, [messages[place] for place in order])
    # Acknowledgements are gathered, so that there are few of them.
    most = 1 if point == "acknowledgement" else 4
    deaths = 0
    for _ in range(10):
        code = casualties.run(
            bank, journal, point=point, at=chance.randint(1, most), batch=chance.choice([1, 4, 10])
        )
        assert code in (0, -signal.SIGKILL)
        deaths += code != 0
    assert deaths >= 3
    assert casualties.run(bank, journal, batch=20) == 0
    assert balances(connection) == {f"a{n}": VERSIONS for n in range(ACCOUNTS)}
    assert disordered(connection) == []
    assert parked(connection) == []
    assert dead_letters(connection) == []
    assert set(acknowledged(journal)) == set(range(len(messages)))
    assert outcomes(connection)["applied"] == ACCOUNTS * VERSIONS
    assert connection.execute("SELECT count(*) FROM onefold.attempts").fetchone() == (0,)


def test_a_message_that_kills_its_process_is_a_dead_letter_in_the_end(
    bank: str, connection: psycopg.Connection[Any], casualties: Casualties, tmp_path: Path
) -> None:
    """C82: tries are counted although nobody lives to count them, and the others do not die of it."""
    journal = tmp_path / "journal"
    write(journal, [envelope(f"a{number}") for number in range(60)])
    deaths = 0
    while (code := casualties.run(bank, journal, kills=["a20-1", "a40-1"], batch=100, attempts=3)) != 0:
        assert code == -signal.SIGKILL
        deaths += 1
        assert deaths < 20
    assert len(balances(connection)) == 58
    assert [letter[0] for letter in dead_letters(connection)] == ["a20", "a40"]
    assert "ended while it had this message in hand" in dead_letters(connection)[0][3]
    assert set(acknowledged(journal)) == set(range(60))

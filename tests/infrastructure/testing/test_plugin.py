"""The plugin as a user has it: pytest in a folder of their own, with nothing but the installed package."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from onefold import Consumer
from onefold.domain.errors import DeclarationError
from onefold.infrastructure.testing import databases
from onefold.testing import MemoryBroker, Outcome, exactly_once

from .consumers import DEPOSITS, IN_ORDER, add

BANK = """
import os
import psycopg
from onefold import Message, Transaction, consumer
from onefold.testing import exactly_once

TABLES = "CREATE TABLE balances (account text PRIMARY KEY, balance bigint NOT NULL)"
ADD = (
    "INSERT INTO balances AS b VALUES (%s, %s) "
    "ON CONFLICT (account) DO UPDATE SET balance = b.balance + excluded.balance"
)

@consumer("right", ordering="delta", key="data.payment", version="sequence")
def right(message: Message, tx: Transaction) -> None:
    tx.execute(ADD, (message.subject, message.data["amount"]))

@consumer("wrong", ordering="delta", key="data.payment", version="sequence")
def wrong(message: Message, tx: Transaction) -> None:
    with psycopg.connect(os.environ["ONEFOLD_DATABASE_URL"]) as connection:
        connection.execute(ADD, (message.subject, message.data["amount"]))

def messages():
    for number, amount in enumerate((10, 5, -3), start=1):
        yield {
            "type": "bank.deposited",
            "subject": "a",
            "sequence": str(number),
            "data": {"payment": f"p{number}", "amount": amount},
        }

test_right = exactly_once(right, messages, prepare=TABLES, orders=3)
test_wrong = exactly_once(wrong, messages, prepare=lambda connection: connection.execute(TABLES), orders=3)
"""

FIXTURES = """
import pathlib
import psycopg
import pytest
from onefold.testing import Outcome, delivered
from onefold import Message, Transaction, consumer

@consumer("seen", ordering="unordered")
def seen(message: Message, tx: Transaction) -> None:
    tx.execute("INSERT INTO seen VALUES (%s)", (message.id,))

@pytest.fixture
def onefold_database(onefold_database):
    with psycopg.connect(onefold_database) as connection:
        connection.execute("CREATE TABLE seen (id text)")
    return onefold_database

@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_each_test_has_an_empty_database(onefold_database, onefold_server, number):
    pathlib.Path(f"server-{number}").write_text(onefold_server)
    message = {"type": "seen", "id": "one"}
    assert delivered(seen, [message, message], onefold_database) == [Outcome.APPLIED, Outcome.DUPLICATE]

def test_the_broker_has_a_name(onefold_broker, onefold_database):
    assert onefold_broker.named(onefold_broker.name) is onefold_broker
    assert delivered(seen, onefold_broker, onefold_database) == []
"""


def run(folder: Path, *arguments: str, server: str | None = None) -> tuple[int, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ONEFOLD_", "PYTEST"))}
    if server is not None:
        kept["ONEFOLD_TEST_DATABASE_URL"] = server
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-p", "no:cacheprovider", "-v", *arguments],
        cwd=folder,
        env=kept,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_one_line_makes_the_tests_of_a_consumer(tmp_path: Path, server_url: str) -> None:
    """C86"""
    (tmp_path / "test_bank.py").write_text(BANK)
    code, told = run(tmp_path, server=server_url)
    assert code == 1, told
    results = dict(
        re.findall(r"^test_bank\.py::(test_\w+\[\w+\]) (?:<- .* )?(PASSED|FAILED)", told, re.MULTILINE)
    )
    assert len(results) == 18, told
    failed = {name for name, result in results.items() if result == "FAILED"}
    # Workers come in each other's way, and undo a try, or do not.
    assert failed - {"test_wrong[concurrently]"} == {
        "test_wrong[failing_first]",
        "test_wrong[connection_lost]",
        "test_wrong[killed_before_commit]",
    }
    assert "consumer wrong is not exactly once: the function failed after its effect" in told
    assert "another exception occurred" not in told
    assert "  expected  account=a balance=12\n  found     account=a balance=24\n" in told
    # What is wrong is in the user's code, and not here.
    assert "exactly_once.py" not in told


def test_the_fixtures_start_a_server_for_the_run_and_remove_it(tmp_path: Path) -> None:
    (tmp_path / "test_fixtures.py").write_text(FIXTURES)
    code, told = run(tmp_path, "-n", "2")
    assert code == 0, told
    servers = {path.read_text() for path in tmp_path.glob("server-*")}
    assert len(servers) == 1
    (home,) = re.findall(rf"{databases.HOME}\d+-\w+", servers.pop())
    assert not any((folder / home).exists() for folder in (databases.MEMORY, databases.new_home().parent))


def test_a_run_that_has_no_use_for_the_plugin_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        "import sys\ndef test_other():\n    assert 'psycopg' not in sys.modules\n"
    )
    code, told = run(tmp_path)
    assert code == 0, told


def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path: Path) -> None:
    left, own, other = (
        tmp_path / f"{databases.HOME}{name}" for name in ("999999999-a", f"{os.getpid()}-b", "x-c")
    )
    for folder in (left, own, other):
        folder.mkdir()
    databases._remove_abandoned(tmp_path)
    assert [folder.exists() for folder in (left, own, other)] == [False, True, True]


def test_the_cases_that_do_not_fit_are_left_out() -> None:
    consumer = Consumer("adds", effect=add, **IN_ORDER)

    def cases(**options: bool) -> list[str]:
        made = exactly_once(consumer, DEPOSITS, **options)  # type: ignore[arg-type]
        (mark,) = made.pytestmark  # type: ignore[attr-defined]
        found: list[str] = mark.args[1]
        return found

    assert len(cases()) == 9
    assert "new_envelope" not in cases(producer_keeps_ids=True)
    assert [name for name in cases(processes=False) if name.startswith("killed")] == []


def test_the_function_is_of_the_module_that_asks_for_it() -> None:
    made = exactly_once(Consumer("adds", effect=add, **IN_ORDER), DEPOSITS)
    assert (made.__module__, made.__name__) == (__name__, "test_adds")


def test_a_proof_without_messages_or_workers_is_refused() -> None:
    consumer = Consumer("adds", effect=add, **IN_ORDER)
    with pytest.raises(DeclarationError, match="expected messages to test with, found none"):
        exactly_once(consumer, [])
    with pytest.raises(
        DeclarationError, match="expected 1 worker and 1 order or more, found workers=0, orders=10"
    ):
        exactly_once(consumer, DEPOSITS, workers=0)


def test_a_broker_is_forgotten_with_its_test(onefold_broker: MemoryBroker) -> None:
    assert MemoryBroker.named(onefold_broker.name) is onefold_broker
    assert Outcome.APPLIED.value == "applied"

"""The command line in this process, and as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from psycopg import Connection
from typer.testing import CliRunner

from onefold.domain.account import Account
from onefold.domain.money import Money
from onefold.infrastructure.cli.program import app
from onefold.infrastructure.store import Store, connect
from onefold.projections.shop import app as shop_app

AT = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)

# A projection with a short lease, and one that fails at an amount of 13.
APPLICATION = """
from decimal import Decimal
import onefold
from onefold.domain.account import Account

class Total(onefold.Row, key="account"):
    account: str
    total: Decimal = Decimal(0)
    deposits: int = 0

total = onefold.Projection("total", Total, lease=1.0)
picky = onefold.Projection("picky", Total, lease=1.0)

@total.on(Account.Deposited)
def add(row, event):
    row = row or Total(account=event.meta.key)
    return row.evolve(total=row.total + event.amount.amount, deposits=row.deposits + 1)

@picky.on(Account.Deposited)
def add_unless_13(row, event):
    if event.amount.amount == 13:
        raise ValueError("[13] brings bad luck")
    return add(row, event)

steady = onefold.App(aggregates=[Account], projections=[total])
app = onefold.App(aggregates=[Account], projections=[total, picky])
nothing = onefold.App()
number = 5
"""


CONSUMERS = """
import time
import onefold
from onefold import Event, Message, Registry, Rejected, Retention, Retry

registry = Registry()

class Received(Event, name="payment.received", registry=registry):
    payment: str
    amount: int

def add(tx, sequence, amount):
    tx.execute("INSERT INTO balances VALUES (%s, %s) ON CONFLICT (account) DO UPDATE "
               "SET amount = balances.amount + excluded.amount", (sequence, amount))

@onefold.consumer("payments", ordering="delta", version="sequence", key="data.payment", age="received",
                  retry=Retry(attempts=2, first=0.01))
def payments(message: Message, tx):
    data = message.data
    time.sleep(float(data.get("sleep", 0)))
    if data.get("statement"):
        tx.execute("SELECT pg_sleep(%s)", (data["statement"],))
    if data.get("refuse"):
        raise Rejected("we do not take it")
    if data.get("switch") and tx.execute("SELECT FROM switch").fetchone() is None:
        raise LookupError("the switch is off")
    add(tx, message.subject, data["amount"])

@onefold.consumer("typed", ordering="unordered", key="data.payment", age="received", registry=registry,
                  retry=Retry(attempts=1))
def typed(event: Received, tx):
    add(tx, event.meta.stream, event.amount)

forgetful = onefold.Consumer("forgetful", ordering="unordered", effect=lambda message, tx: None,
                             retention=Retention(ledger=3600))
other_ledger = onefold.Consumer("payments", ordering="unordered", ledger="time", age="received",
                                effect=lambda message, tx: None)
app = onefold.App(consumers=[payments, typed, forgetful])
changed = onefold.App(consumers=[other_ledger])
"""


@dataclass(frozen=True)
class Said:
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


Onefold = Callable[..., Said]


@pytest.fixture
def onefold(database_url: str) -> Onefold:
    """Runs a command in this process on the test's database."""

    def run(*arguments: str, **env: str) -> Said:
        values = {"ONEFOLD_DATABASE_URL": database_url, "COLUMNS": "100", **env}
        result = CliRunner(env=values).invoke(app, [str(argument) for argument in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Said(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """The bundled shop on the test's database."""
    with connect(shop_app, database_url) as opened:
        yield opened


def deposits(store: Store, key: str, *amounts: int) -> None:
    """Put these amounts into an account, one event each; the account is opened first if it is new."""
    if store.log.load(Account.stream_of(key)):
        account = store.get(Account, key)
    else:
        account = Account.open(key, "EUR", at=AT)
    for amount in amounts:
        account.deposit(Money.of(amount, "EUR"), at=AT)
    store.save(account)


@pytest.fixture
def application(tmp_path: Path) -> Path:
    """A folder with the application `mine` of a user."""
    (tmp_path / "mine.py").write_text(APPLICATION)
    return tmp_path


class Command:
    """A command as a process of its own, ended at the latest with the test."""

    def __init__(self, url: str, *arguments: str, cwd: Path | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "onefold.infrastructure.cli", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env={**os.environ, "ONEFOLD_DATABASE_URL": url, "COLUMNS": "100"},
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, number: signal.Signals | None = signal.SIGTERM, seconds: float = 30) -> Said:
        """Ask it to stop (None: it stops by itself), and return what it said."""
        if number is not None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=seconds)
        return Said(self.process.returncode, out, err)

    def discard(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        if self.process.stdin is not None and self.process.stdin.closed:
            self.process.stdin = None
        self.process.communicate()


Commands = Callable[..., Command]


@pytest.fixture
def start(database_url: str) -> Iterator[Commands]:
    """Starts commands as processes on the test's database."""
    started: list[Command] = []

    def begin(*arguments: str, cwd: Path | None = None) -> Command:
        command = Command(database_url, *arguments, cwd=cwd)
        started.append(command)
        return command

    yield begin
    for command in started:
        command.discard()


def until(condition: Callable[[], Any], seconds: float = 30) -> Any:
    """Wait until the condition holds, and return what it gave."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {seconds} s for {condition}"
        time.sleep(0.02)
    return found


@pytest.fixture
def paying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connection: Connection) -> Iterator[Path]:
    """A folder with the application `paying`, importable in this process too, and its tables."""
    (tmp_path / "paying.py").write_text(CONSUMERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("ONEFOLD_APP", "paying:app")
    connection.execute("CREATE TABLE balances (account text PRIMARY KEY, amount integer NOT NULL)")
    connection.execute("CREATE TABLE switch ()")
    yield tmp_path
    sys.modules.pop("paying", None)


def payment(number: int, version: int | None = None, *, account: str = "a", **data: Any) -> str:
    """A payment of its number, as a line of a file."""
    message = {
        "specversion": "1.0",
        "id": f"m{number}",
        "source": "/bank",
        "type": "payment.received",
        "subject": account,
        "sequence": number if version is None else version,
        "time": "2026-03-01T12:30:00Z",
        "data": {"payment": f"p{number}", "amount": number, **data},
    }
    return json.dumps(message) + "\n"


def written(folder: Path, *lines: str) -> str:
    (folder / "messages.jsonl").write_text("".join(lines))
    return f"file:{folder / 'messages.jsonl'}"


def balances(connection: Connection) -> dict[str, int]:
    return dict(connection.execute("SELECT account, amount FROM balances").fetchall())

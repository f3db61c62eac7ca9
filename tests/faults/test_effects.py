"""Runners of effects that are killed at every step between claim and completion, as seen from the other side."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from onefold import App, Call, Effect, connect, perform
from onefold.domain.order import Order
from onefold.infrastructure.connection import connected
from onefold.infrastructure.effects.runner import EffectRunner
from onefold.infrastructure.worker import Worker
from onefold.projections.shop import order_summary

from ..infrastructure.effects.outside import Mails, Payments
from .effects_victim import CONTENT, POINTS, effects

ROOT = Path(__file__).parents[2]
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


@pytest.fixture
def payments() -> Iterator[Payments]:
    made = Payments()
    yield made
    made.close()


@pytest.fixture
def mails(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mails]:
    made = Mails()
    monkeypatch.setenv("ONEFOLD_SMTP_URL", made.url)
    yield made
    made.close()


@pytest.fixture
def start(database_url: str) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts `onefold effects` in a process of its own, which kills itself at the point that is named."""
    begun: list[subprocess.Popen[bytes]] = []

    def begin(effect: str, point: str = "nowhere") -> subprocess.Popen[bytes]:
        begun.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.faults.effects_victim", effect, point],
                cwd=ROOT,
                env={**os.environ, "ONEFOLD_DATABASE_URL": database_url},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )
        return begun[-1]

    yield begin
    for process in begun:
        process.kill()
        process.wait(10)


def ask(url: str, effect: str, **data: Any) -> str:
    with connected(url) as connection, connection.transaction():
        return perform(connection, effect, data, key="receipt-7")


def state(url: str) -> tuple[Any, ...]:
    with connected(url) as connection:
        row = connection.execute(
            "SELECT done_at IS NOT NULL, attempts, result, owner FROM onefold.effects"
        ).fetchone()
    assert row is not None
    return row


def complete(url: str, effect: str) -> tuple[bool, int, Any]:
    """Run the effect in this process until its task is done; return attempts and result."""
    until = time.monotonic() + 15
    while not state(url)[0]:
        assert time.monotonic() < until, "expected the task to be done in time"
        EffectRunner(url, [effects[effect]], workers=2, once=True).run()
        time.sleep(0.02)
    done, attempts, result, owner = state(url)
    assert owner is None
    return done, attempts, result


def is_killed(process: subprocess.Popen[bytes]) -> bool:
    return process.wait(30) == -signal.SIGKILL


def once_only(point: str) -> int:
    """How many tries it takes: one is enough where the first could still say that it is done."""
    return 1 if point == "noted" else 2


@pytest.mark.parametrize("point", [*POINTS["charge"], "before the server", "in the server"])
def test_a_charge_is_made_once_wherever_its_runner_is_killed(
    database_url: str, payments: Payments, start: Callable[..., subprocess.Popen[bytes]], point: str
) -> None:
    """C43"""
    key = ask(database_url, "charge", at=payments.url, amount=5)
    victim = start("charge", point)

    def kill() -> None:
        payments.before = payments.between = lambda: None
        victim.kill()

    if point == "before the server":
        payments.before = kill
    elif point == "in the server":
        payments.between = kill
    assert is_killed(victim)
    assert complete(database_url, "charge") == (True, once_only(point), {"charge": f'of "{key}"'})
    assert payments.charges == {f'"{key}"': b'{"amount":5}'}
    assert payments.requests[f'"{key}"'] == (1 if point in ("claimed", "noted") else 2)


@pytest.mark.parametrize("point", [*POINTS["mail"], "before the server", "in the server"])
def test_a_mail_has_one_identity_wherever_its_runner_is_killed(
    database_url: str, mails: Mails, start: Callable[..., subprocess.Popen[bytes]], point: str
) -> None:
    """C44"""
    key = ask(database_url, "mail", to="ana@example.org")
    victim = start("mail", point)

    def kill() -> None:
        mails.before = mails.between = lambda: None
        victim.kill()

    if point == "before the server":
        mails.before = kill
    elif point == "in the server":
        mails.between = kill
    assert is_killed(victim)
    assert complete(database_url, "mail") == (True, once_only(point), f"<{key}@example.com>")
    assert list(mails.ids) == [f"<{key}@example.com>"]
    assert mails.ids.total() == (1 if point in ("claimed", "noted") else 2)
    assert len({content for _, _, content in mails.taken}) == 1


@pytest.mark.parametrize("point", POINTS["receipt"])
def test_a_file_is_whole_or_absent_wherever_its_writer_is_killed(
    database_url: str, tmp_path: Path, start: Callable[..., subprocess.Popen[bytes]], point: str
) -> None:
    """C45"""
    ask(database_url, "receipt", folder=str(tmp_path))
    assert is_killed(start("receipt", point))
    target = tmp_path / "receipt.txt"
    there = point in ("renamed", "folder synced", "answered", "decided", "noted")
    assert target.exists() is there
    if there:
        assert target.read_bytes() == CONTENT
    assert complete(database_url, "receipt")[:2] == (True, once_only(point))
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("receipt.txt", CONTENT)]


def test_a_runner_that_was_stopped_and_revived_can_neither_send_nor_note_anything(
    database_url: str, payments: Payments, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    key = ask(database_url, "charge", at=payments.url, amount=5)
    sleeper = start("charge")

    stopped = threading.Event()

    def stop() -> None:
        payments.between = lambda: None
        sleeper.send_signal(signal.SIGSTOP)
        stopped.set()

    payments.between = stop
    assert stopped.wait(20)
    assert complete(database_url, "charge")[1:] == (2, {"charge": f'of "{key}"'})
    with connected(database_url) as connection:
        connection.execute("UPDATE onefold.effects SET result = '\"of the second\"'")
    sleeper.send_signal(signal.SIGCONT)
    assert sleeper.wait(20) == 0
    assert state(database_url)[:3] == (True, 2, "of the second")
    assert payments.charges == {f'"{key}"': b'{"amount":5}'}


def test_a_rebuild_makes_no_call(database_url: str, mails: Mails) -> None:
    """H9: mails on OrderShipped, two rebuilds, one more order."""

    def tell(event: Order.Shipped, call: Call) -> None:
        call.mail(to="ana@example.org", subject=f"{event.meta.key} is on its way", text="It left today.")

    shipped = Effect("shipped_mail", tell, on=Order.Shipped)
    app = App(aggregates=[Order], projections=[order_summary], effects=[shipped])

    def ship(store: Any, number: int) -> None:
        order = Order.new(str(number))
        order.record(Order.Placed(customer_id="ana", currency="EUR", placed_on=NOON.date()), at=NOON)
        order.record(Order.Shipped(), at=NOON)
        store.save(order)

    def subjects() -> list[str]:
        EffectRunner(database_url, [shipped], workers=2, once=True).run()
        return sorted(str(message["Subject"]) for message in mails.messages)

    expected = [f"{number} is on its way" for number in range(1, 7)]
    with connect(app, database_url) as store:
        for number in range(1, 6):
            ship(store, number)
        store.run()
        first = store.rows(order_summary)
        assert subjects() == expected[:5]
        for _ in range(2):
            Worker(database_url, order_summary).rebuild()
            assert store.rows(order_summary) == first
            assert subjects() == expected[:5]
        ship(store, 6)
        store.run()
        assert subjects() == expected
        assert store.rows(order_summary)[:5] == first
    assert set(mails.ids.values()) == {1}

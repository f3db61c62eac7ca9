"""`onefold up`: the whole tree as a process."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from onefold import App, publish
from onefold.domain.account import Account
from onefold.infrastructure.store import Store, connect

from .conftest import Commands, Onefold, deposits


def test_what_would_run_is_listed(onefold: Onefold, tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('[projections]\n[[consume]]\nconsumer = "p"\nurl = "amqp://u:secret@h/q"\n')
    said = onefold("up", "--check", "--json", "--file", file)
    assert said.document == [
        {"name": "projections", "runs": "onefold run", "every": None},
        {"name": "consume-p", "runs": "onefold consume amqp://***@h/q --consumer p", "every": None},
        {"name": "maintain", "runs": "onefold maintain", "every": 60.0},
    ]
    assert "onefold maintain (every 60 s)" in onefold("up", "--check", "--file", file).out


def test_a_configuration_that_cannot_be_is_wrong_use(onefold: Onefold, tmp_path: Path) -> None:
    said = onefold("up", "--file", tmp_path / "none.toml")
    assert said.code == 2
    assert "none.toml: cannot be read" in said.err


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def ready(port: int) -> Any:
    try:
        with urlopen(f"http://127.0.0.1:{port}/ready", timeout=10) as answer:
            return json.loads(answer.read())
    except HTTPError as error:
        with error:
            return json.loads(error.read())
    except URLError:
        return None


def test_the_tree_works_heals_and_ends_when_it_is_told(
    start: Commands, store: Store, application: Path
) -> None:
    (application / "onefold.toml").write_text(
        'app = "mine:steady"\ngrace = 20\n[projections]\n[maintain]\nevery = 0.5\n[health]\nport = 0\n'
    )
    command = start("up", cwd=application)
    assert command.process.stderr is not None
    lines: list[str] = []
    port = pid = 0
    while not (port and pid):
        lines.append(command.process.stderr.readline())
        assert lines[-1], lines
        if found := re.search(r"health is served on http://127.0.0.1:(\d+)", lines[-1]):
            port = int(found[1])
        if found := re.search(r"projections: started as (\d+)", lines[-1]):
            pid = int(found[1])
    deposits(store, "7", 5, 6)
    until(lambda: len(_totals(store)) == 1)
    os.kill(pid, signal.SIGKILL)
    until(lambda: "projections" in (ready(port) or {}).get("troubles", {}))
    deposits(store, "8", 5)
    until(lambda: len(_totals(store)) == 2)
    until(lambda: ready(port) == {"ready": True, "troubles": {}})
    said = command.end()
    assert said.code == 0
    assert "maintain: " in said.out
    assert "asked to stop: telling all to end what is in hand" in said.err


def _totals(store: Store) -> list[Any]:
    with store.pool.connection() as connection:
        found = connection.execute("SELECT to_regclass('read.total')").fetchone()
        if found is None or found[0] is None:
            return []
        return connection.execute("SELECT * FROM read.total").fetchall()


def test_a_part_that_is_configured_wrongly_ends_it_with_wrong_use(start: Commands, application: Path) -> None:
    (application / "onefold.toml").write_text('app = "mine:steady"\n[projections]\nnames = ["nonsense"]\n')
    said = start("up", cwd=application).end(None)
    assert said.code == 2
    assert "projections cannot work as it is configured, all are stopped" in said.err
    assert "nonsense" in said.err


def test_a_relay_is_part_of_the_tree(start: Commands, tmp_path: Path, database_url: str) -> None:
    (tmp_path / "telling.py").write_text(
        "import onefold\nfrom onefold.domain.account import Account\n"
        'app = onefold.App(aggregates=[Account], publications=[onefold.publish(Account, to="accounts")])\n'
    )
    (tmp_path / "onefold.toml").write_text(
        'app = "telling:app"\ngrace = 20\n[[relay]]\nchannel = "accounts"\nto = "file:out.jsonl"\nprocesses = 2\n'
    )
    publications = [publish(Account, to="accounts")]
    command = start("up", cwd=tmp_path)
    with connect(App(aggregates=[Account], publications=publications), database_url) as selling:
        deposits(selling, "7", 5, 6)
        events = selling.log.load(Account.stream_of("7"))
        out = tmp_path / "out.jsonl"
        until(lambda: out.exists() and out.read_text().count("\n") == 3)
    said = command.end()
    assert said.code == 0
    found = [json.loads(line)["id"] for line in out.read_text().splitlines()]
    assert found == [str(event.meta.event_id) for event in events]

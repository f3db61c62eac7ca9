"""The tree: what ends is started again, and all ends together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from onefold.infrastructure.supervision import tree as module
from onefold.infrastructure.supervision.configuration import Member
from onefold.infrastructure.supervision.tree import Tree


def member(name: str, script: str, **options: float) -> Member:
    return Member(name=name, arguments=(sys.executable, "-c", script), own=True, **options)  # type: ignore[arg-type]


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def running(*members: Member, grace: float = 10.0) -> Iterator[tuple[Tree, list[tuple[str, str]]]]:
    lines: list[tuple[str, str]] = []
    stop = threading.Event()
    tree = Tree(members, lambda name, line: lines.append((name, line)))
    thread = threading.Thread(target=tree.run, args=(stop.is_set,))
    thread.start()
    try:
        yield tree, lines
    finally:
        stop.set()
        thread.join()
        tree.end(grace)


WAIT = "import time; print('up', flush=True); time.sleep(60)"


def test_members_run_side_by_side_and_their_lines_are_told() -> None:
    with running(member("a", WAIT), member("b", WAIT)) as (tree, lines):
        until(lambda: len(lines) == 2)
        assert sorted(lines) == [("a", "up"), ("b", "up")]
        assert tree.troubles() == {}
        pids = [each["pid"] for each in tree.standings()]
    assert [each["pid"] for each in tree.standings()] == [None, None]
    for pid in pids:
        assert isinstance(pid, int)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_member_that_ends_is_in_trouble_and_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT", 0.4)
    with running(member("a", "print('the disk is full'); raise SystemExit(1)"), member("b", WAIT)) as (
        tree,
        _,
    ):
        until(lambda: tree.troubles() == {"a": "ended with 1: the disk is full"})
        until(lambda: tree.standings()[0]["restarts"] == 2)
        assert tree.standings()[1]["restarts"] == 0


def test_a_killed_member_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT", 0.05)
    with running(member("a", WAIT)) as (tree, lines):
        until(lambda: len(lines) == 1)
        pid = tree.standings()[0]["pid"]
        assert isinstance(pid, int)
        os.kill(pid, signal.SIGKILL)
        until(lambda: len(lines) == 2)
        assert tree.standings()[0]["pid"] != pid


def test_a_member_that_cannot_be_started_is_in_trouble(tmp_path: Path) -> None:
    missing = Member(name="a", arguments=(str(tmp_path / "missing"),), own=True)
    with running(missing) as (tree, _):
        until(lambda: "cannot be started: No such file" in tree.troubles().get("a", ""))


def test_a_repeated_member_is_no_trouble_between_its_runs() -> None:
    with running(member("a", "print('done')", every=0.1)) as (tree, lines):
        until(lambda: len(lines) == 3)
        assert tree.troubles() == {}
        assert tree.standings()[0]["restarts"] == 0


def test_a_member_that_does_not_end_in_time_is_killed(tmp_path: Path) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    lines: list[str] = []
    tree = Tree([member("deaf", deaf), member("a", WAIT)], lambda name, line: lines.append(line))
    tree.run(lambda: len(lines) == 2)
    began = time.monotonic()
    assert tree.end(0.3) == ["deaf"]
    assert time.monotonic() - began < 10
    assert all(each["pid"] is None for each in tree.standings())


def test_the_products_own_members_end_with_a_tree_that_was_killed(tmp_path: Path) -> None:
    """The children read a pipe to its end, which comes however the parent ends."""
    script = f"""
import sys, time
from onefold.infrastructure.supervision.configuration import Member
from onefold.infrastructure.supervision.tree import Tree
tree = Tree([Member(name="a", arguments=("run", "--app", "onefold.projections.shop:app"))],
            lambda name, line: print(line, flush=True), {{"ONEFOLD_DATABASE_URL": "host={tmp_path} connect_timeout=1"}})
class Told:
    def __call__(self):
        pid = tree.standings()[0]["pid"]
        if pid:
            print(f"pid {{pid}}", flush=True)
            self.__class__.__call__ = lambda self: False
        return False
tree.run(Told())
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        line = next(line for line in parent.stdout if line.startswith("pid "))
        child = int(line.split()[1])
        assert Path(f"/proc/{child}").exists()
    finally:
        parent.kill()
        parent.communicate()
    until(lambda: not Path(f"/proc/{child}").exists() or "Z" in state(child))


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_wrong_use_ends_the_tree(database_url: str) -> None:
    wrong = Member(name="a", arguments=("run", "nonsense"))
    tree = Tree([wrong, member("b", WAIT)], lambda name, line: None, {"ONEFOLD_DATABASE_URL": database_url})
    tree.run(lambda: False)
    assert tree.end(10) == []
    assert tree.wrong is not None
    assert "expected one of the projections" in tree.wrong.said

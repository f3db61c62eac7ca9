"""Every example of the README and the documentation runs, page by page."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from .blocks import PAGES, ROOT, Block, blocks, commands, prints

SECONDS = 90
"""Time that one block gets on a busy machine."""

KNOWN = {
    "python": ({""}, {"file"}),
    "sh": ({"run"}, {"exit"}),
    "console": ({"run"}, {"exit"}),
    "text": ({"output"}, {"file"}),
}
RUN = [page for page in PAGES if any(b.language == "python" or b.words for b in blocks(page))]


class Session:
    """Runs the Python blocks of one page in a process of their own."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        read, write = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", str(Path(__file__).with_name("session.py")), str(write)],
            stdin=subprocess.PIPE,
            pass_fds=[write],
            cwd=folder,
            env=environment,
        )
        os.close(write)
        self._answers = os.fdopen(read, encoding="utf-8")

    def run(self, block: Block) -> str:
        """Run a block and return what it printed; fails with the traceback of what it raised."""
        asked = {"code": block.text, "file": str(block.page.relative_to(ROOT)), "line": block.line}
        assert self._process.stdin is not None
        self._process.stdin.write((json.dumps(asked) + "\n").encode())
        self._process.stdin.flush()
        with selectors.DefaultSelector() as ready:
            ready.register(self._answers, selectors.EVENT_READ)
            if not ready.select(SECONDS):
                pytest.fail(f"{block.place}: still running after {SECONDS} s")
        answer = json.loads(self._answers.readline() or '{"error": "the session ended"}')
        if answer["error"]:
            pytest.fail(f"{block.place}: {answer['error']}")
        output: str = answer["output"]
        return output

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.kill()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(SECONDS)
        self._answers.close()


def shell(command: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run one command line in a folder."""
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@pytest.fixture
def environment(database_url: str) -> dict[str, str]:
    """The environment of the examples: `onefold` on the path, and a database of their own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ONEFOLD_", "PYTHON"))}
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**kept, "PATH": programs, "ONEFOLD_DATABASE_URL": database_url, "COLUMNS": "160", "NO_COLOR": "1"}


@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_examples_of_a_page_run_and_print_what_it_shows(
    page: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    printed = ""
    with Session(tmp_path, environment) as session:
        for block in blocks(page):
            if "file" in block.options:
                (tmp_path / block.options["file"]).write_text(block.text, "utf-8")
            elif block.language == "python":
                printed = session.run(block)
            elif block.language == "text" and "output" in block.words:
                assert prints(block.text, printed), f"{block.place}: shown\n{block.text}\nprinted\n{printed}"
            elif block.language in ("sh", "console") and "run" in block.words:
                printed = run_commands(block, tmp_path, environment)


def test_no_example_expects_that_the_variable_of_a_server_is_set() -> None:
    for page in PAGES:
        for block in blocks(page):
            if block.language == "python":
                assert "ONEFOLD_DATABASE_URL" not in block.text, block.place


def run_commands(block: Block, folder: Path, environment: dict[str, str]) -> str:
    printed = ""
    for command, shown in commands(block):
        done = shell(command, folder, environment)
        expected = int(block.options.get("exit", "0"))
        found = done.stdout or done.stderr
        assert done.returncode == expected, f"{block.place}: {command} ended with {done.returncode}:\n{found}"
        if shown:
            assert prints(shown, found), f"{block.place}: {command}\nshown\n{shown}\nprinted\n{found}"
        printed += found
    return printed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_asks_for_nothing_that_the_runner_does_not_know(page: Path) -> None:
    for block in blocks(page):
        words, options = KNOWN.get(block.language, (set(), set()))
        assert block.words <= words, f"{block.place}: {sorted(block.words - words)} is not known"
        assert block.options.keys() <= options, f"{block.place}: {sorted(block.options)} is not known"


def test_what_is_printed_may_differ_where_an_ellipsis_stands_and_nowhere_else() -> None:
    assert prints("a … c\n…\nend\n", "a b c\nx\ny\nend  \n")
    assert prints("…\nend", "end")
    assert not prints("a … c", "a b d")
    assert not prints("a", "a\nb")

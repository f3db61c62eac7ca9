"""The README keeps what it promises: short, and it runs without a server or a setting."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from .blocks import ROOT, blocks

README = ROOT / "README.md"


def module(name: str) -> str:
    (text,) = (block.text for block in blocks(README) if block.options.get("file") == name)
    return text


def test_the_first_aggregate_and_projection_take_fewer_than_40_lines() -> None:
    assert len(module("parcels.py").splitlines()) < 40


def test_the_first_consumer_takes_fewer_than_25_lines() -> None:
    assert len(module("payments.py").splitlines()) < 25


def test_the_example_of_the_readme_runs_on_the_embedded_server_without_any_setting(tmp_path: Path) -> None:
    (tmp_path / "parcels.py").write_text(module("parcels.py"), "utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ONEFOLD_")}
    for expected in (1, 2):
        done = subprocess.run(
            [sys.executable, "-W", "error", "parcels.py"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"[City(city='Bilbao', parcels={expected})]\n"
    assert (tmp_path / ".onefold" / "postgres" / "data").is_dir()


def test_the_readme_shows_no_figure_that_no_command_prints() -> None:
    text = README.read_text("utf-8")
    assert "events/s" not in text
    assert "ms" not in text.split()

"""The modules that the pages show are written as they would be in a project under strict types."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .blocks import PAGES, ROOT, blocks

SHOWN = [
    page
    for page in PAGES
    if any(block.language == "python" and "file" in block.options for block in blocks(page))
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What mypy knows of the product and its dependencies after the first page."""
    return tmp_path_factory.mktemp("mypy")


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_modules_of_a_page_pass_mypy_strict(page: Path, tmp_path: Path, cache: Path) -> None:
    # mypy does not see packages that are installed in place.
    (tmp_path / "onefold").symlink_to(ROOT)
    modules = {
        block.options["file"]: block.text
        for block in blocks(page)
        if block.language == "python" and "file" in block.options
    }
    for name, text in modules.items():
        (tmp_path / name).write_text(text, "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={cache}", *modules],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

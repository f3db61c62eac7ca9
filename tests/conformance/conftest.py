"""The bench of a test: one adapter with a queue of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .benches import Bench, bench_of


@pytest.fixture
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    yield from bench_of(request.param, request, tmp_path)

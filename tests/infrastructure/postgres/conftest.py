"""Connections, logs and a wire that can be cut, for the tests of what talks to PostgreSQL."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
import pytest

from onefold.infrastructure.postgres.columns import register
from onefold.infrastructure.postgres.pool import Pool, configure, open_pool


@pytest.fixture
def pool(database_url: str) -> Iterator[Pool]:
    """A pool of up to 20 connections to the test's database."""
    with open_pool(database_url, size=20) as opened:
        yield opened


Open = Callable[[], psycopg.Connection[Any]]


@pytest.fixture
def open_raw(database_url: str) -> Iterator[Open]:
    """Opens connections in autocommit mode that read raw, as the log's readers use; closed after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(connected(database_url, configure))


@pytest.fixture
def open_plain(database_url: str) -> Iterator[Open]:
    """Opens connections in autocommit mode that take packed columns, as writers of rows use."""
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(connected(database_url, register))


def connected(url: str, prepare: Callable[[psycopg.Connection[Any]], None]) -> psycopg.Connection[Any]:
    connection = psycopg.connect(url, autocommit=True, options="-c timezone=UTC")
    prepare(connection)
    return connection


def load(path: Path) -> ModuleType:
    """Load a module that stands beside the tests, where no import finds it."""
    spec = importlib.util.spec_from_file_location(f"tests_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def wire(database_url: str, tmp_path: Path) -> Iterator[Any]:
    """A wire to the test's database; `wire.url` leads through it."""
    made = load(Path(__file__).with_name("wire.py")).Wire(database_url, tmp_path)
    yield made
    made.close()

"""A database with the table that the tests' consumers write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from onefold import Consumer

from .desk import TABLE, Desk, desk


@pytest.fixture
def bank(database_url: str, connection: psycopg.Connection[Any]) -> str:
    """URL of a database with an empty table of accounts."""
    connection.execute(TABLE)
    return database_url


@pytest.fixture
def open_desk(bank: str) -> Iterator[Callable[[Consumer], Desk]]:
    with ExitStack() as stack:
        yield lambda consumer: stack.enter_context(desk(bank, consumer))

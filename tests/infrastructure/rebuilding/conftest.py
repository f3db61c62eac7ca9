"""A log of stock on the test's database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from onefold.infrastructure.postgres.log import EventLog
from onefold.infrastructure.postgres.pool import open_pool

from .warehouse import Shop, known


@pytest.fixture
def shop(database_url: str, connection: psycopg.Connection[Any]) -> Iterator[Shop]:
    with open_pool(database_url, size=4) as pool:
        yield Shop(database_url, EventLog(pool, registry=known), connection)

"""Servers with the middleware, on the test's database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from psycopg import Connection

from onefold.infrastructure.store import Store, connect
from onefold.projections.shop import app as shop

from .desk import Client, Desk
from .serving import served

Serve = Callable[..., Client]


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    with connect(shop, database_url, pool_size=6) as opened:
        yield opened


@pytest.fixture
def desk(store: Store, connection: Connection) -> Desk:
    connection.execute("CREATE TABLE runs (number serial PRIMARY KEY, path text NOT NULL)")
    return Desk(store)


@pytest.fixture
def serve(desk: Desk) -> Iterator[Serve]:
    """Serves the desk behind the middleware with some options; returns a client."""
    with ExitStack() as stack:

        def start(app: Any = None, **options: Any) -> Client:
            url = stack.enter_context(served(app or desk.app(**options)))
            client = Client(url)
            stack.callback(client.http.close)
            return client

        yield start


@pytest.fixture(params=["lease", "transaction"])
def claim(request: pytest.FixtureRequest) -> str:
    """Both ways to claim a key."""
    found: str = request.param
    return found


def rows(connection: Connection, table: str = "runs") -> int:
    query = {
        "runs": "SELECT count(*) FROM runs",
        "responses": "SELECT count(*) FROM onefold.http_responses",
        "claims": "SELECT count(*) FROM onefold.http_claims",
    }[table]
    found = connection.execute(query).fetchone()
    assert found is not None
    count: int = found[0]
    return count

"""The roles of the guide to effects can do what it says, and no more."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier

from onefold import Effect, perform
from onefold.infrastructure.connection import connected

from ...docs.blocks import blocks
from .shipping import rows, run

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "effects.md"


@pytest.fixture
def as_role(server_url: str, database_url: str) -> Iterator[dict[str, str]]:
    """The URL of the database for who asks, and for who makes the calls."""
    prefix = f"effects{os.getpid()}"
    (grants,) = (block.text for block in blocks(GUIDE) if block.language == "sql")
    with connected(database_url) as connection:
        connection.execute(SQL("CREATE ROLE {} LOGIN").format(Identifier(f"{prefix}_app")))
        connection.execute(SQL("GRANT USAGE ON SCHEMA onefold TO {}").format(Identifier(f"{prefix}_app")))
        connection.execute(grants.replace("shop_", f"{prefix}_").encode())
    yield {role: make_conninfo(database_url, user=f"{prefix}_{role}") for role in ("app", "effects")}
    with connected(database_url) as connection:
        for role in ("app", "effects"):
            name = Identifier(f"{prefix}_{role}")
            connection.execute(SQL("DROP OWNED BY {}").format(name))
            connection.execute(SQL("DROP ROLE {}").format(name))


def test_each_role_does_its_work_and_no_more(as_role: dict[str, str], database_url: str) -> None:
    with connected(as_role["app"]) as connection:
        for _ in range(2):
            with connection.transaction():
                perform(connection, "tell", {"to": "ana"}, key="k")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("UPDATE onefold.effects SET done_at = now()")
    assert run(as_role["effects"], Effect("tell", lambda data, call: "told")) == {"tell": {"done": 1}}
    assert rows(database_url, "result") == [("told",)]
    with connected(as_role["effects"]) as connection:
        for refused in ("INSERT INTO onefold.effect_keys DEFAULT VALUES", "SELECT FROM onefold.events"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(refused.encode())

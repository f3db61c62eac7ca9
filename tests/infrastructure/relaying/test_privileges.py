"""The role of the guide to the outbox can do what it says, and no more."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier

from onefold.infrastructure.connection import connected
from onefold.infrastructure.relaying.dead_letters import list_held, retry
from onefold.infrastructure.relaying.maintenance import remove_published
from onefold.infrastructure.relaying.status import orphans, relays_status

from ...docs.blocks import blocks
from .outgoing import Broker, Connection, post, posting, published

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "outbox.md"


@pytest.fixture
def as_relay(database_url: str) -> Iterator[str]:
    """The URL of the database for the role."""
    prefix = f"outbox{os.getpid()}"
    (grants,) = (block.text for block in blocks(GUIDE) if block.language == "sql")
    with connected(database_url) as connection:
        connection.execute(grants.replace("shop_", f"{prefix}_").encode())
    yield make_conninfo(database_url, user=f"{prefix}_relay")
    with connected(database_url) as connection:
        connection.execute(SQL("DROP OWNED BY {}").format(Identifier(f"{prefix}_relay")))
        connection.execute(SQL("DROP ROLE {}").format(Identifier(f"{prefix}_relay")))


def test_it_does_its_work_and_no_more(as_relay: str, connection: Connection) -> None:
    broker = Broker()
    broker.refused = {"b"}
    post(connection, posting("a"), posting("b"), posting("c"))
    published(as_relay, broker)
    with connected(as_relay) as mine:
        (letter,) = list_held(mine)
        retry(mine, letter.id)
        broker.refused.clear()
        published(as_relay, broker)
        (found,) = relays_status(mine)
        assert (found.published, found.held, orphans(mine)) == (3, 0, {})
        assert remove_published(mine, keep=0.0) == 3
        for refused in (
            "UPDATE onefold.outbox SET channel = 'x'",
            "INSERT INTO onefold.outbox DEFAULT VALUES",
            "DELETE FROM onefold.events",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                mine.execute(refused.encode())
    assert broker.ids == ["a", "b", "c"]


def test_the_log_is_read_with_it_too(as_relay: str, connection: Connection) -> None:
    from onefold import publish
    from onefold.domain.account import Account

    with connected(as_relay):
        made = published(as_relay, Broker(), publications=[publish(Account, to="news", via="log")])
    assert (made.source, made.published) == ("log", 0)

"""The role of the page on HTTP can claim keys and keep responses, and no more."""

from __future__ import annotations

import os
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier

from onefold.infrastructure.http.keeper import Keeper
from onefold.infrastructure.postgres.pool import open_pool

from ...docs.blocks import ROOT, blocks
from .test_claims import HELLO, MODES, Done, Identity, Mode, Work, timedelta


@pytest.fixture
def role(server_url: str, database_url: str) -> Iterator[str]:
    name = f"shop{os.getpid()}_http"
    (grants,) = (
        block.text for block in blocks(ROOT / "docs" / "guides" / "http.md") if block.language == "sql"
    )
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(grants.replace("shop_http", name).encode())
    yield make_conninfo(database_url, user=name)
    with (
        psycopg.connect(database_url, autocommit=True) as here,
        psycopg.connect(server_url, autocommit=True) as server,
    ):
        here.execute(SQL("DROP OWNED BY {} CASCADE").format(Identifier(name)))
        server.execute(SQL("DROP ROLE {}").format(Identifier(name)))


@pytest.mark.parametrize("mode", MODES)
def test_the_role_of_the_page_claims_and_keeps(role: str, mode: Mode) -> None:
    with open_pool(role, size=2) as pool:
        Keeper(role, 30.0).register(pool, "shop", timedelta(days=2))
        works = [Work(pool, lambda: Identity(bytes(16), bytes(16)), 30.0) for _ in range(3)]
        assert works[0].enter(mode) is None
        works[0].abandon()
        assert works[1].enter(mode) is None
        kept = works[1].finish(HELLO)
        assert works[2].enter(mode) == Done(kept, same=True)
    with (
        psycopg.connect(role) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute("DELETE FROM onefold.http_responses")

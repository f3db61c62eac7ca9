"""The roles of the page on operation can do what it says, and no more."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier

from onefold import Money, connect
from onefold.domain.account import Account
from onefold.infrastructure.status import State, status
from onefold.infrastructure.worker import Worker
from onefold.projections.shop import account_balance, app

from .blocks import ROOT, blocks

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
PAGE = ROOT / "docs" / "guides" / "operation.md"
ROLES = ("app", "worker", "reader")


@pytest.fixture
def prefix(server_url: str) -> Iterator[str]:
    """What the names of the roles begin with; they belong to the server and are removed after the database."""
    name = f"shop{os.getpid()}"
    yield name
    with psycopg.connect(server_url, autocommit=True) as connection:
        for role in ROLES:
            connection.execute(SQL("DROP ROLE IF EXISTS {}").format(Identifier(f"{name}_{role}")))


@pytest.fixture
def as_role(prefix: str, database_url: str) -> dict[str, str]:
    """The URL of the database for each role, with the privileges that the page grants."""
    (grants,) = (block.text for block in blocks(PAGE) if block.language == "sql")
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(grants.replace("shop_", f"{prefix}_").encode())
    return {role: make_conninfo(database_url, user=f"{prefix}_{role}") for role in ROLES}


def test_each_role_does_its_work_with_the_privileges_of_the_page(as_role: dict[str, str]) -> None:
    with connect(app, as_role["app"], snapshot_every={Account: 2}) as store:
        account = Account.open("ES-7", "EUR", at=NOON)
        account.deposit(Money.of("24.90", "EUR"), at=NOON)
        stored = store.save(account)
        assert Worker(as_role["worker"], account_balance).run_once().applied == 2
        store.wait_for("account_balance", stored[-1].meta.position)
        (row,) = store.rows(account_balance)
        assert (row.balance, store.get(Account, "ES-7").version) == (account.balance, 2)
    assert Worker(as_role["worker"], account_balance).rebuild().applied == 2
    with psycopg.connect(as_role["reader"]) as connection:
        assert connection.execute("SELECT account_id FROM read.account_balance").fetchall() == [("ES-7",)]
    with psycopg.connect(as_role["worker"], autocommit=True) as connection:
        states = {each.name: each.state for each in status(connection, app).projections}
    assert states["account_balance"] is State.IDLE


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        ("app", "UPDATE onefold.events SET type = 'x.y'"),
        ("app", "UPDATE onefold.checkpoints SET position = 0"),
        ("worker", "INSERT INTO onefold.events (version) VALUES (1)"),
        ("reader", "SELECT FROM onefold.events"),
    ],
)
def test_no_role_may_do_the_work_of_another(as_role: dict[str, str], role: str, statement: str) -> None:
    with (
        psycopg.connect(as_role[role]) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(statement.encode())

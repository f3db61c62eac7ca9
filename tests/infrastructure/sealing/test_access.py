"""Roles can do what their part needs, and no more."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier

from onefold import App, Consumer, Message, Money, Transaction, connect
from onefold.domain.account import Account
from onefold.infrastructure.brokers.envelope import write
from onefold.infrastructure.connection import connected
from onefold.infrastructure.consuming.consumption import Consumption
from onefold.infrastructure.rebuilding.rebuild import Rebuild
from onefold.infrastructure.sealing.access import Part, Privilege, grant
from onefold.infrastructure.sealing.errors import UnknownRole
from onefold.infrastructure.sealing.proving import prove_event
from onefold.infrastructure.sealing.sealer import Sealer
from onefold.infrastructure.sealing.verifying import verify
from onefold.infrastructure.worker import Worker
from onefold.projections.shop import account_balance
from onefold.testing import MemoryBroker

from .conftest import sealed

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
app = App(aggregates=[Account], projections=[account_balance])


@pytest.fixture
def role(server_url: str) -> Iterator[str]:
    """A role of the server without any privilege; it is removed after the database."""
    name = f"onefold_part_{os.getpid()}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(SQL("CREATE ROLE {} LOGIN").format(Identifier(name)))
    yield name
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(SQL("DROP ROLE {}").format(Identifier(name)))


@pytest.fixture
def database(role: str, url: str) -> str:
    """The database of the log; made after the role, so that it goes first."""
    return url


def given(url: str, part: Part, role: str, *, read_models: bool = False) -> str:
    """Grant a part, and return the URL of the database for the role."""
    with connected(url) as connection:
        assert grant(connection, part, role, read_models=read_models).beyond == []
    return make_conninfo(url, user=role)


def refused(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)  # type: ignore[arg-type]


CHANGES = [
    f"{change} onefold.{table}{rest}"
    for table in ("events", "events_hashes", "seals")
    for change, rest in (
        ("DELETE FROM", ""),
        ("TRUNCATE", ""),
        ("ALTER TABLE", " DISABLE TRIGGER ALL"),
        ("DROP TABLE", ""),
    )
] + ["UPDATE onefold.events SET type = 'x'", "UPDATE onefold.seals SET root = root"]


def test_an_auditor_reads_and_verifies_and_can_do_nothing_else(database: str, role: str) -> None:
    sealed(database)
    url = given(database, Part.AUDITOR, role)
    assert verify(url).intact
    with connected(url) as connection:
        assert prove_event(connection, 1)["leaf"] == 0
    refused(
        url,
        *CHANGES,
        "INSERT INTO onefold.events (version) VALUES (1)",
        "INSERT INTO onefold.seals (number) VALUES (1)",
        "SELECT FROM onefold.dead_letters",
        "SELECT FROM onefold.checkpoints",
        "CREATE TABLE onefold.x ()",
        "CREATE TABLE public.x ()",
        "CREATE TABLE read.x ()",
        "SELECT onefold.create_log('onefold', 'x')",
    )


def test_an_auditor_reads_read_models_where_that_is_granted(database: str, role: str) -> None:
    Worker(database, account_balance).run_once()
    url = given(database, Part.AUDITOR, role)
    refused(url, "SELECT FROM read.account_balance")
    given(database, Part.AUDITOR, role, read_models=True)
    with psycopg.connect(url) as connection:
        connection.execute("SELECT FROM read.account_balance")
    refused(url, "DELETE FROM read.account_balance")


def test_a_sealer_seals_and_cannot_append_or_change(database: str, role: str) -> None:
    url = given(database, Part.SEALER, role)
    with connected(url) as connection:
        assert Sealer(connection).run().events == 24
    assert verify(url).intact
    refused(
        url, *CHANGES, "INSERT INTO onefold.events (version) VALUES (1)", "SELECT FROM onefold.checkpoints"
    )


def test_an_application_does_its_work_and_cannot_change_the_log(database: str, role: str) -> None:
    sealed(database)
    url = given(database, Part.APPLICATION, role)
    with connect(app, url, snapshot_every={Account: 2}) as store:
        account = Account.open("ES-7", "EUR", at=NOON)
        account.deposit(Money.of("24.90", "EUR"), at=NOON)
        store.save(account)
        assert Worker(url, account_balance).run_once().applied == 2
        assert store.get(Account, "ES-7").version == 2
    Rebuild(url, account_balance).run()
    paid: list[str] = []

    def pay(message: Message, _tx: Transaction) -> None:
        paid.append(message.id)

    broker = MemoryBroker(role)
    broker.publish_all([write(Message("1", "/bank", "paid", {}, "7", NOON))])
    consumer = Consumer("payments", ordering="snapshot", version=lambda _m: 1, effect=pay)
    Consumption(url, consumer, f"memory://{role}", once=True, idle=0.2).run()
    assert paid == ["1"]
    refused(
        url,
        *CHANGES,
        "INSERT INTO onefold.seals (number) VALUES (1)",
        "INSERT INTO onefold.events_hashes (position) VALUES (1)",
        "DELETE FROM onefold.ledger",
    )


def test_what_a_role_may_do_beyond_is_told(database: str, role: str) -> None:
    with connected(database) as connection:
        connection.execute("CREATE TABLE public.secrets (word text)")
        connection.execute("GRANT SELECT (word) ON public.secrets TO PUBLIC")
        connection.execute(SQL("GRANT DELETE ON onefold.events TO {}").format(Identifier(role)))
        assert grant(connection, Part.AUDITOR, role).beyond == [
            Privilege("onefold", "events", "DELETE"),
            Privilege("public", "secrets", "SELECT"),
        ]
        assert grant(connection, Part.APPLICATION, role).beyond == [Privilege("onefold", "events", "DELETE")]


def test_owners_are_told_of(database: str, role: str) -> None:
    with connected(database) as connection:
        row = connection.execute("SELECT current_user").fetchone()
        assert row is not None
        beyond = grant(connection, Part.APPLICATION, row[0]).beyond
    assert ("onefold", "events") in {(each.schema, each.table) for each in beyond}
    assert all("ownership" in each.may for each in beyond)


def test_a_role_that_is_not_there_is_told(database: str) -> None:
    with connected(database) as connection, pytest.raises(UnknownRole, match="CREATE ROLE nobody_here LOGIN"):
        grant(connection, Part.AUDITOR, "nobody_here")

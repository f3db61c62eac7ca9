"""Sessions of consumers on databases that are set otherwise than usual."""

from __future__ import annotations

from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.sql import SQL, Identifier

from onefold import Consumer, Message, Transaction
from onefold.infrastructure.consuming.arrivals import Reader
from onefold.infrastructure.consuming.session import Session
from onefold.infrastructure.embedded import EmbeddedServer


def nothing(message: Message, tx: Transaction) -> None:
    """Do nothing."""


def test_claims_are_read_committed_whatever_the_database_is_set_to(database_url: str) -> None:
    database = Identifier(str(conninfo_to_dict(database_url)["dbname"]))
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            SQL("ALTER DATABASE {} SET default_transaction_isolation = 'serializable'").format(database)
        )
    consumer = Consumer("quiet", ordering="unordered", effect=nothing)
    session = Session(database_url, consumer, Reader(consumer))
    try:
        found = session.connection.execute("SHOW transaction_isolation").fetchone()
        assert found == ("read committed",)
    finally:
        session.close()


def test_a_table_of_a_user_does_not_go_into_the_schema_of_the_product(run_home: Path) -> None:
    home = run_home / "search-path"
    home.mkdir(mode=0o711)
    with EmbeddedServer(home).hold() as url, psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA onefold")
        connection.execute("CREATE TABLE balances (account text)")
        found = connection.execute("SELECT schemaname FROM pg_tables WHERE tablename = 'balances'").fetchone()
        assert found == ("public",)

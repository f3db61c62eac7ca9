"""Whatever a role or database is set to, what is stored and read is the same."""

from __future__ import annotations

from datetime import UTC, datetime

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.sql import SQL, Identifier, Literal

from onefold import Aggregate, App, Event, Instant, Projection, Registry, Row, connect
from onefold.infrastructure.connection import connected

KEPT = Registry()
AT = datetime(2026, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC)


class Guest(Aggregate, category="guest"):
    class Greeted(Event, name="guest.greeted", registry=KEPT):
        name: str
        weight: float


class Visits(Row, key="name"):
    name: str
    visits: int = 0
    weight: float = 0.0
    last: Instant | None = None


visits = Projection("guest_visits", Visits, key=lambda event: event.name, registry=KEPT)


@visits.on(Guest.Greeted)
def greeted(row: Visits | None, event: Guest.Greeted) -> Visits:
    known = row or Visits(name=event.name)
    return known.evolve(visits=known.visits + 1, weight=event.weight, last=event.meta.happened)


app = App(aggregates=[Guest], projections=[visits])


@pytest.fixture(
    params=[
        ("client_encoding", "LATIN1"),
        ("DateStyle", "German, DMY"),
        ("DateStyle", "SQL"),
        ("TimeZone", "Asia/Kathmandu"),
        ("extra_float_digits", "0"),
        ("array_nulls", "off"),
        ("bytea_output", "escape"),
        ("IntervalStyle", "sql_standard"),
        ("search_path", "pg_catalog"),
        ("default_transaction_isolation", "repeatable read"),
    ],
    ids=lambda setting: f"{setting[0]}={setting[1]}",
)
def odd_url(request: pytest.FixtureRequest, database_url: str) -> str:
    name, value = request.param
    database = Identifier(str(conninfo_to_dict(database_url)["dbname"]))
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            SQL("ALTER DATABASE {} SET {} = {}").format(database, Identifier(name), Literal(value))
        )
    return database_url


def test_a_setting_of_the_database_changes_nothing(odd_url: str) -> None:
    for run in (1, 2, 3):
        with connect(app, odd_url) as store:
            store.log.registry = KEPT
            guest = Guest.new(f"g{run}")
            guest.emit(Guest.Greeted(name="Zoë 🦊", weight=0.1 + 0.2), at=AT)
            store.save(guest)
            store.run()
            expected = Visits(name="Zoë 🦊", visits=run, weight=0.1 + 0.2, last=AT)
            assert store.rows(visits) == [expected]
            assert store.row(visits, "Zoë 🦊") == expected
            assert [event.meta.occurred_at for event in store.events()] == [AT] * run


def test_options_of_the_url_are_kept(database_url: str) -> None:
    url = make_conninfo(database_url, options="-c statement_timeout=12345")
    with connect(app, url) as store, store.pool.connection() as connection:
        assert connection.execute("SHOW statement_timeout").fetchone() == ("12345ms",)
        assert connection.execute("SHOW TimeZone").fetchone() == ("UTC",)
    with connected(url) as connection:
        assert connection.execute("SHOW statement_timeout").fetchone() == ("12345ms",)

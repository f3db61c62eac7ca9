"""The doctor: what it finds in installations that are ill in one way each, and that it says what to do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from onefold import App, Event, Projection, Row
from onefold.domain.account import Account
from onefold.domain.money import Money
from onefold.infrastructure import doctor
from onefold.infrastructure.connection import connected
from onefold.infrastructure.doctor import Finding, Severity, clocks, examine
from onefold.infrastructure.postgres import outbox
from onefold.infrastructure.store import connect
from onefold.projections.message import Message
from onefold.projections.publication import Posting
from onefold.projections.shop import app as shop
from onefold.testing import delivered

AT = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
FINE, WARNING, PROBLEM = Severity.FINE, Severity.WARNING, Severity.PROBLEM
NOBODY = App()


@pytest.fixture
def patient(database_url: str) -> Iterator[Connection]:
    with connected(database_url, application="onefold doctor") as connection:
        yield connection


def of(connection: Connection, check: str, app: App = NOBODY) -> list[Finding]:
    return [each for each in examine(connection, app, embedded=True) if each.check == check]


def test_a_fresh_database_is_sound(patient: Connection) -> None:
    findings = examine(patient, NOBODY, embedded=True)
    # The server of the tests is set for speed, and has more to do than this.
    apart = {"transactions", "fsync", "full_page_writes", "synchronous_commit"}
    assert {each.severity for each in findings if each.check not in apart} == {FINE}
    checks = [each.check for each in findings]
    for check in (
        "server",
        "clocks",
        "migrations",
        "append-only",
        "appends",
        "indexes",
        "ledgers",
        "consumers",
        "relays",
    ):
        assert check in checks


def test_whatever_is_not_fine_says_what_to_do(patient: Connection) -> None:
    patient.execute("DROP TRIGGER refuse_change ON onefold.events")
    for each in examine(patient, shop):
        assert bool(each.advice) == (each.severity is not FINE)


@pytest.mark.parametrize(
    ("skew", "severity", "says"),
    [
        (0.0, FINE, "agree within 1.1 s"),
        (1.0, FINE, "agree"),
        (-1.0, FINE, "agree"),
        (1.2, WARNING, "the server's clock is 1.2 s ahead of this machine's"),
        (-30.0, WARNING, "the server's clock is 30.0 s behind this machine's"),
        (61.0, PROBLEM, "61.0 s ahead of"),
        (-7200.0, PROBLEM, "7200.0 s behind"),
    ],
)
def test_clocks_are_compared(skew: float, severity: Severity, says: str) -> None:
    before, after = AT, AT + timedelta(seconds=0.2)
    found = clocks(before, AT + timedelta(seconds=0.1 + skew), after)
    assert found.severity is severity
    assert says in found.found


def test_settings_that_lose_data_are_problems(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        for value, number in (("off", 1), ("local", 0)):
            connection.execute("SELECT set_config('synchronous_commit', %s, false)", (value,))
            assert len(of(connection, "synchronous_commit")) == number
        on = connection.execute("SELECT current_setting('fsync')::boolean").fetchone()
        assert on is not None
        assert [each.severity for each in of(connection, "fsync")] == ([] if on[0] else [PROBLEM])


def test_a_superuser_is_warned_about_on_a_server_of_ones_own(patient: Connection) -> None:
    assert of(patient, "role") == []
    [found] = [each for each in examine(patient, NOBODY) if each.check == "role"]
    assert found.severity is WARNING
    assert "is a superuser" in found.found


def test_a_database_that_is_not_migrated_is_told_and_nothing_more_is_looked_at(
    empty_database_url: str,
) -> None:
    with connected(empty_database_url) as connection:
        findings = examine(connection, shop)
    assert findings[-1].check == "migrations"
    assert findings[-1].severity is PROBLEM
    assert "are pending, the first 0001_log" in findings[-1].found
    assert findings[-1].advice == "run `onefold db migrate`"


def test_a_migration_that_was_changed_is_a_problem(patient: Connection) -> None:
    patient.execute("UPDATE onefold.migrations SET sha256 = repeat('0', 64) WHERE number = 1")
    [found] = of(patient, "migrations")
    assert found.severity is PROBLEM
    assert "an applied file never changes" in found.found


@pytest.mark.parametrize(
    "attack",
    [
        "ALTER TABLE onefold.events DISABLE TRIGGER refuse_change",
        "ALTER TABLE onefold.events ENABLE TRIGGER refuse_change",
        "ALTER TABLE onefold.events ENABLE REPLICA TRIGGER refuse_change",
        "DROP TRIGGER refuse_change ON onefold.events",
    ],
)
def test_a_log_without_its_guards_is_a_problem(patient: Connection, attack: str) -> None:
    patient.execute(attack.encode())
    [found] = of(patient, "append-only")
    assert found.severity is PROBLEM
    assert "trigger refuse_change of log events is missing or not enabled always" in found.found


@contextmanager
def appending(url: str) -> Iterator[int]:
    """An append that is not committed; its process."""
    with connect(App(aggregates=[Account]), url) as store, psycopg.connect(url) as connection:
        store.save(Account.open("7", "EUR", at=AT), connection=connection)
        yield connection.info.backend_pid
        connection.rollback()


def test_an_append_that_stays_open_is_named(
    patient: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "IN_THE_WAY", 0.01)
    with appending(database_url) as pid:
        time.sleep(0.05)
        [found] = of(patient, "appends")
    assert found.severity is PROBLEM
    assert f"pid {pid} " in found.found
    assert f"pg_terminate_backend({pid})" in found.advice
    [found] = of(patient, "appends")
    assert found.severity is FINE


def test_long_transactions_are_named_idle_or_at_work(
    patient: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "LONG", 0.01)
    with psycopg.connect(database_url, application_name="forgotten") as connection:
        connection.execute("SELECT 1")
        time.sleep(0.05)
        pid = connection.info.backend_pid
        [found] = [each for each in of(patient, "transactions") if f"pid {pid} " in each.found]
    assert found.severity is WARNING
    assert "(forgotten, role " in found.found
    assert "silent for 0 s" in found.found


def test_an_index_that_is_not_valid_is_named(patient: Connection) -> None:
    patient.execute(
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'onefold.events_pkey'::regclass"
    )
    [found] = of(patient, "indexes")
    assert found.severity is PROBLEM
    assert found.advice == "REINDEX INDEX CONCURRENTLY onefold.events_pkey"


def test_ledgers_without_room_are_told(patient: Connection) -> None:
    patient.execute(
        "INSERT INTO onefold.consumers (consumer, ledger, ordering, retention, gap_report, gap_deadline) "
        "VALUES ('a', 'time', 'delta', '14 days', '60 s', '1 day')"
    )
    patient.execute(
        "UPDATE onefold.ledger_partitions SET ends_at = clock_timestamp() + interval '2 hours 30 s' "
        "WHERE ledger = 'time' AND ends_at > clock_timestamp()"
    )
    [found] = of(patient, "ledgers")
    assert found.severity is WARNING
    assert "has room for 2 h ahead, expected 24 h" in found.found
    patient.execute("UPDATE onefold.ledger_partitions SET ends_at = '2000-01-02' WHERE ledger = 'time'")
    [found] = of(patient, "ledgers")
    assert found.severity is PROBLEM
    patient.execute("UPDATE onefold.ledger_partitions SET ends_at = now() WHERE ledger = 'any'")
    assert "no generation takes new keys" in of(patient, "ledgers")[0].found


class Seen(Row, key="account"):
    account: str


picky = Projection("picky", Seen)


@picky.on(Account.Opened)
def seen(row: Seen | None, event: Event) -> Seen:
    if event.meta.key == "13":
        raise ValueError("bad luck")
    return Seen(account=event.meta.key)


def test_projections_that_stand_still_are_told(database_url: str, patient: Connection) -> None:
    app = App(aggregates=[Account], projections=[picky])
    [found] = of(patient, "projections", app)
    assert (found.severity, found.found) == (WARNING, "picky has never run")
    with connect(app, database_url) as store:
        store.save(Account.open("7", "EUR", at=AT))
        store.run()
        assert of(patient, "projections", app)[0].severity is FINE
        store.save(Account.open("8", "EUR", at=AT))
        store.save(Account.open("13", "EUR", at=AT))
        with pytest.raises(Exception, match="bad luck"):
            store.run()
    [found] = of(patient, "projections", app)
    assert found.severity is PROBLEM
    assert "picky stopped before position 3 (account.opened, account/13 version 1): " in found.found
    assert "bad luck" in found.found


def test_a_projection_that_nobody_works_on_is_behind(
    database_url: str, patient: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(aggregates=[Account], projections=[picky])
    monkeypatch.setattr(doctor, "BEHIND", 0.01)
    with connect(app, database_url) as store:
        store.save(Account.open("7", "EUR", at=AT))
        store.run()
        account = store.get(Account, "7")
        account.deposit(Money.of("1.00", "EUR"), at=AT)
        store.save(account)
    time.sleep(0.05)
    [found] = of(patient, "projections", app)
    assert found.severity is PROBLEM
    assert "picky is 1 events and 0 s behind, and nobody works on it" in found.found
    assert found.advice == "run `onefold run picky`"


def test_dead_letters_and_parked_messages_are_told(database_url: str, patient: Connection) -> None:
    from onefold import Consumer

    consumer = Consumer("payments", effect=_nothing, ordering="delta", version="sequence", age="received")
    app = App(consumers=[consumer])
    message: dict[str, Any] = {"id": "2", "type": "paid", "subject": "a", "sequence": "2"}
    delivered(consumer, [message, {"id": "1", "type": "paid", "subject": "b", "sequence": "x"}], database_url)
    found = of(patient, "consumers", app)
    assert [each.severity for each in found] == [PROBLEM, WARNING]
    assert "payments has 1 open dead letters" in found[0].found
    assert "payments has 1 parked messages, and nobody consumes for it" in found[1].found


def _nothing(message: Any, tx: Any) -> None:
    """Have no effect."""


def test_refused_messages_and_those_that_nobody_publishes_are_told(
    database_url: str, patient: Connection
) -> None:
    from onefold.infrastructure.brokers.memory import MemoryBroker
    from onefold.infrastructure.relaying.relay import Relay

    def post(key: str, channel: str, text: str = "") -> None:
        with patient.transaction():
            outbox.write(patient, [Posting(channel, Message(text + key, "/test", "said", {}), key)])

    MemoryBroker("doctor", largest=200)
    relay = Relay(database_url, "news", "memory://doctor", name="second", once=True)
    for key, text in (("a", "x" * 200), ("a", ""), ("b", "")):
        post(key, "news", text)
    relay.run()
    (found,) = of(patient, "relays")
    assert (found.severity, found.found) == (
        PROBLEM, "second: the broker has refused 1 messages, and 1 wait behind them in their keys",
    )  # fmt: skip
    patient.execute("UPDATE onefold.held_messages SET resolution = 'discarded', resolved_at = now()")
    (found,) = of(patient, "relays")
    assert (found.severity, found.found) == (FINE, "1 have nothing in their way")

    post("b", "news", "y")
    post("b", "unread")
    idle, unread = of(patient, "relays")
    assert (idle.severity, unread.severity) == (WARNING, WARNING)
    assert (
        "second has 1 messages to publish, the oldest for 0 s, and no process of it is at work" in idle.found
    )
    assert idle.advice == "run `onefold relay news --to URL --name second`"
    assert "channel unread has 1 messages in the outbox, and no relay" in unread.found


def test_what_cannot_be_examined_is_a_finding_and_the_rest_goes_on(
    database_url: str, patient: Connection
) -> None:
    role = f"stranger_{patient.info.backend_pid}"
    patient.execute(f"CREATE ROLE {role} LOGIN".encode())
    try:
        patient.execute(f"GRANT USAGE ON SCHEMA onefold TO {role}".encode())
        patient.execute(f"GRANT SELECT ON onefold.migrations TO {role}".encode())
        patient.execute(f"SET ROLE {role}".encode())
        findings = examine(patient, NOBODY)
        patient.execute("RESET ROLE")
    finally:
        patient.execute(f"DROP OWNED BY {role}".encode())
        patient.execute(f"DROP ROLE {role}".encode())
    told = {each.check: each for each in findings}
    assert told["ledgers"].severity is PROBLEM
    assert "it cannot be examined: permission denied" in told["ledgers"].found
    assert told["indexes"].severity is FINE

"""The roles of the pages on operation, consumers and process managers can do what these say, and no more."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier

from onefold import App, Consumer, Message, Money, Retry, Transaction, connect
from onefold.domain.account import Account
from onefold.domain.order import Order, OrderItem
from onefold.infrastructure.brokers.envelope import write
from onefold.infrastructure.consumers import consumers_status
from onefold.infrastructure.consuming.consumption import Consumption
from onefold.infrastructure.consuming.dead_letters import discard, list_dead_letters, list_parked, retry
from onefold.infrastructure.processes.running import consumption
from onefold.infrastructure.processes.status import process_status
from onefold.infrastructure.rebuilding.rebuild import Rebuild
from onefold.infrastructure.rebuilding.rows import rebuild_stream
from onefold.infrastructure.rebuilding.versions import drop_old, rollback
from onefold.infrastructure.status import State, status
from onefold.infrastructure.worker import Worker
from onefold.projections.guards import Outcome
from onefold.projections.process import process_of
from onefold.projections.shop import OrderPayment, account_balance, app, app_with_payment
from onefold.testing import MemoryBroker

from .blocks import ROOT, blocks

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
PAGES = [ROOT / "docs" / "guides" / name for name in ("operation.md", "consumers.md", "processes.md")]
ROLES = ("app", "worker", "reader", "process", "consumer")


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
    """The URL of the database for each role, with the privileges that the pages grant."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        for page in PAGES:
            (grants,) = (block.text for block in blocks(page) if block.language == "sql")
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
    assert Rebuild(as_role["worker"], account_balance, verify="full").run().swapped
    assert rollback(as_role["worker"], account_balance).caught_up
    assert rebuild_stream(as_role["worker"], account_balance, "account/ES-7").changed == 0
    drop_old(as_role["worker"], "account_balance")
    with psycopg.connect(as_role["reader"]) as connection:
        assert connection.execute("SELECT account_id FROM read.account_balance").fetchall() == [("ES-7",)]
    with psycopg.connect(as_role["worker"], autocommit=True) as connection:
        states = {each.name: each.state for each in status(connection, app).projections}
    assert states["account_balance"] is State.IDLE


def test_a_consumer_does_its_work_with_the_privileges_of_the_page(
    as_role: dict[str, str], prefix: str, database_url: str
) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE public.paid (number text, amount bigint)")
        connection.execute(SQL("GRANT INSERT ON public.paid TO {}").format(Identifier(f"{prefix}_consumer")))

    def pay(message: Message, tx: Transaction) -> None:
        tx.execute("INSERT INTO paid VALUES (%s, %s)", (message.subject, message.data["amount"]))

    payments = Consumer("payments", ordering="delta", version="sequence", effect=pay, retry=Retry(attempts=1))
    broker = MemoryBroker(prefix)
    for version, amount in ((1, "10"), (2, "many"), (3, "30"), (1, "10")):
        message = Message(
            str(version),
            "/bank",
            "paid",
            {"amount": amount},
            "7",
            NOON,
            extensions={"sequence": str(version)},
        )
        broker.publish_all([write(message)])
    url = as_role["consumer"]
    done = Consumption(url, payments, f"memory://{prefix}", once=True, idle=0.2).run()
    assert {outcome.value: count for outcome, count in done.outcomes.items() if count} == {
        "applied": 1,
        "duplicate": 1,
        "dead_lettered": 1,
        "parked": 1,
    }
    with psycopg.connect(url, autocommit=True) as connection:
        (letter,) = list_dead_letters(connection)
        (again,) = retry(url, App(consumers=[payments]), [letter], by="ops")
        assert again.became == "dead_lettered"
        discard(connection, letter.id, "ops")
        assert [each.version for each in list_parked(connection)] == [3]
        (found,) = consumers_status(connection)
        assert (found.parked, found.dead_letters) == (1, 0)
    Consumption(url, payments, f"memory://{prefix}", once=True, idle=0.2).run()
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT * FROM paid ORDER BY 2").fetchall() == [("7", 10), ("7", 30)]


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        ("app", "UPDATE onefold.events SET type = 'x.y'"),
        ("app", "UPDATE onefold.checkpoints SET position = 0"),
        ("worker", "INSERT INTO onefold.events (version) VALUES (1)"),
        ("reader", "SELECT FROM onefold.events"),
        ("consumer", "DELETE FROM onefold.ledger"),
        ("consumer", "INSERT INTO onefold.events (version) VALUES (1)"),
        ("worker", "SELECT body FROM onefold.dead_letters"),
    ],
)
def test_no_role_may_do_the_work_of_another(as_role: dict[str, str], role: str, statement: str) -> None:
    with (
        psycopg.connect(as_role[role]) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(statement.encode())


def test_a_process_manager_does_its_work_with_the_privileges_of_the_page(
    as_role: dict[str, str], database_url: str
) -> None:
    def run() -> dict[Outcome, int]:
        return consumption(as_role["process"], process_of(OrderPayment), once=True).run().outcomes

    assert run() == {}
    with connect(app_with_payment, database_url) as store:
        account = Account.open("ana", "EUR", at=NOON)
        account.deposit(Money.of(100, "EUR"), at=NOON)
        store.save(account)
        item = OrderItem(item_id="1", product_id="p", price=Money.of(40, "EUR"), freight=Money.zero("EUR"))
        store.save(Order.place("1", "ana", [item], at=NOON))
        assert run() == {Outcome.APPLIED: 1}
        with store.pool.connection() as connection:
            connection.execute("UPDATE onefold.timeouts SET due_at = clock_timestamp()")
        assert run()[Outcome.APPLIED] >= 1
        assert store.get(Order, "1").status == "cancelled"
        with store.pool.connection() as connection:
            (found,) = process_status(connection, ["order_payment"])
        assert (found.instances, found.timeouts) == (1, 0)

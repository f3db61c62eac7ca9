"""The store's shortcuts: a command that is repeated on conflict, and workers beside the body."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import psycopg
import pytest

from onefold import (
    CommandRefused,
    Money,
    OnefoldError,
    Projection,
    ProjectionFailed,
    Store,
    VersionConflict,
    connect,
)
from onefold.domain.account import Account
from onefold.infrastructure.worker import Worker
from onefold.projections.app import UnknownProjection
from onefold.projections.projection import ProjectionKeyError
from onefold.projections.shop import AccountBalance, account_balance, app

AT = datetime(2026, 7, 8, 9, tzinfo=UTC)
ONE = Money.of(1, "EUR")


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    with connect(app, database_url, pool_size=8) as opened:
        account = Account.open("a", currency="EUR", opened_on=AT.date(), at=AT)
        opened.save(account)
        yield opened


def deposit(account: Account) -> None:
    account.deposit(ONE, at=AT)


def test_commands_that_meet_each_other_are_all_carried_out_once(store: Store) -> None:
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda _: store.change(Account, "a", deposit, tries=100), range(60)))
    found = store.get(Account, "a")
    assert (found.balance, found.version) == (60, 61)


def test_a_command_that_always_comes_too_late_is_given_up(store: Store) -> None:
    tried: list[int] = []

    def overtaken(account: Account) -> None:
        tried.append(account.version)
        store.change(Account, "a", deposit)
        deposit(account)

    with pytest.raises(VersionConflict):
        store.change(Account, "a", overtaken, tries=3)
    assert tried == [1, 2, 3]
    assert store.get(Account, "a").balance == 3


def test_a_command_that_is_refused_is_not_repeated(store: Store) -> None:
    tried: list[int] = []

    def refused(account: Account) -> None:
        tried.append(account.version)
        raise CommandRefused("no")

    with pytest.raises(CommandRefused):
        store.change(Account, "a", refused)
    assert tried == [1]
    with pytest.raises(ValueError, match="tries must be 1 or more"):
        store.change(Account, "a", deposit, tries=0)


def test_projections_keep_up_while_they_are_running(store: Store) -> None:
    with store.running("account_balance") as runner:
        for _ in range(20):
            changed = store.change(Account, "a", deposit)
        stored = store.log.load("account/a")[-1].meta
        assert stored.version == changed.version
        store.wait_for("account_balance", stored.position)
        assert runner.going
    assert not runner.going
    row = store.row(account_balance, "a")
    assert row is not None
    assert row.balance == 20


def test_a_rebuild_keeps_grants_indexes_and_views_of_a_table_of_the_same_shape(
    store: Store, connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    store.change(Account, "a", deposit)
    store.run()
    for statement in (
        "CREATE VIEW rich AS SELECT account_id FROM read.account_balance WHERE balance > 0",
        "CREATE INDEX by_balance ON read.account_balance (balance)",
        "CREATE VIEW months AS SELECT month FROM read.revenue_by_month",
    ):
        connection.execute(statement.encode())
    assert Worker(store.url, account_balance).rebuild().applied == 2
    assert Worker(store.url, app.projection("revenue_by_month")).rebuild().held
    assert connection.execute("SELECT * FROM rich").fetchall() == [("a",)]
    found = connection.execute(
        "SELECT indexname FROM pg_indexes WHERE tablename = 'account_balance'"
    ).fetchall()
    assert ("by_balance",) in found


def test_a_rebuild_makes_a_table_that_somebody_dropped(
    store: Store, connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    store.run("account_balance")
    connection.execute("DROP TABLE read.account_balance")
    assert Worker(store.url, account_balance).rebuild().applied == 1
    assert store.row(account_balance, "a") is not None


def test_the_log_can_be_read_as_events(store: Store) -> None:
    for _ in range(3):
        store.change(Account, "a", deposit)
    events = list(store.events())
    assert [event.meta.version for event in events] == [1, 2, 3, 4]
    assert [type(event) for event in events] == [Account.Opened] + [Account.Deposited] * 3
    assert list(store.events(after=events[2].meta.position)) == events[3:]


def test_projections_are_named_or_given(store: Store) -> None:
    store.run(account_balance)
    store.run("account_balance")
    store.wait_for(account_balance, 1)
    with pytest.raises(UnknownProjection, match=r"order_summary, account_balance, .* found 'nope'"):
        store.wait_for("nope", 1)
    with pytest.raises(OnefoldError, match=r"SqlProjection\('revenue_by_month'\) has no row model"):
        store.rows(app.projection("revenue_by_month"))  # type: ignore[arg-type]
    with pytest.raises(ProjectionKeyError, match=r"expected a key of \(account_id\), found \('a', 'b'\)"):
        store.row(account_balance, "a", "b")


def test_a_fold_s_own_exception_is_the_cause(store: Store) -> None:
    stumbling = Projection("stumbling", account_balance.row)

    @stumbling.on(Account.Opened)
    def opened(row: AccountBalance | None, event: Account.Opened) -> AccountBalance:
        raise KeyError("nope")

    with pytest.raises(ProjectionFailed) as failed:
        Worker(store.url, stumbling).run_once()
    assert isinstance(failed.value.__cause__, KeyError)
    frames = traceback.extract_tb(failed.value.__cause__.__traceback__)
    assert frames[-1].filename == __file__

"""The shop's read models in PostgreSQL equal what their folds give in memory, however the log is cut into pages."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.sql import SQL

from onefold.domain.account import Account
from onefold.domain.event import Event, EventMeta
from onefold.domain.money import Money
from onefold.domain.order import Order
from onefold.infrastructure.postgres.log import EventLog
from onefold.infrastructure.postgres.pool import Pool
from onefold.infrastructure.postgres.reader import LogReader
from onefold.infrastructure.postgres.readmodel import ReadModelStore, prepare
from onefold.infrastructure.postgres.table import Table
from onefold.projections.engine import Engine, Progress
from onefold.projections.projection import AnyProjection
from onefold.projections.shop import (
    MonthRevenue,
    account_balance,
    order_summary,
    revenue_by_month,
    revenue_of,
)

START = datetime(2024, 1, 31, 22, 0, tzinfo=UTC)
Open = Callable[[], psycopg.Connection[Any]]


class Bench:
    """One projection on connections of its own, started anew for every example."""

    def __init__(self, projection: AnyProjection, open_raw: Open, open_plain: Open) -> None:
        self.projection = projection
        self._reading = open_raw()
        self._writing, self._loading = open_plain(), open_plain()
        self._number = 0

    def run(self, page: int, cached_rows: int = 1000) -> Progress:
        """Bring it up to the log's end as a new worker, that has nothing in memory."""
        self._number += 1
        prepare(self._writing, self.projection)
        reader = LogReader(self._reading)
        model = ReadModelStore(
            self.projection, self._writing, self._loading, reader, owner=f"worker {self._number}"
        )
        try:
            return Engine(self.projection, reader, model, page=page, cached_rows=cached_rows).run()
        finally:
            model.release()

    def set_back(self, position: int) -> None:
        self._writing.execute(
            "UPDATE onefold.checkpoints SET position = %s WHERE projection = %s",
            (position, self.projection.name),
        )


@pytest.fixture
def log(pool: Pool) -> EventLog:
    return EventLog(pool)


@pytest.fixture
def start_over(connection: psycopg.Connection[Any]) -> Callable[[], None]:
    """Empties log and read models, as no user can: by a table without triggers."""

    def empty() -> None:
        connection.execute("ALTER TABLE onefold.events DISABLE TRIGGER USER")
        connection.execute("TRUNCATE onefold.events RESTART IDENTITY")
        connection.execute("ALTER TABLE onefold.events ENABLE TRIGGER USER")
        for trigger in ("before_append", "after_append", "refuse_change"):
            connection.execute(
                SQL("ALTER TABLE onefold.events ENABLE ALWAYS TRIGGER {}").format(SQL(trigger))  # type: ignore[arg-type]
            )
        connection.execute("DELETE FROM onefold.checkpoints")
        connection.execute("DROP SCHEMA read CASCADE")
        connection.execute("CREATE SCHEMA read")
        connection.execute("DROP TABLE IF EXISTS onefold.revenue_by_month_orders")

    return empty


codes = st.sampled_from(["EUR", "USD", "BRL"])
amounts = st.decimals(min_value=-100, max_value=10**15, places=3, allow_nan=False)
orders = st.sampled_from(["order/1", "order/2", "order/3"])
days = st.dates(date(2024, 1, 30), date(2024, 3, 2))
order_facts = st.one_of(
    st.builds(lambda code, day: Order.Placed(customer_id="c", currency=code, placed_on=day), codes, days),
    st.builds(
        lambda amount, code: Order.PaymentReceived(payment_id="1", amount=Money.of(amount, code)),
        amounts | st.just(Decimal("0.00")),
        codes,
    ),
    st.just(Order.Confirmed()),
    st.just(Order.Cancelled()),
)
histories = st.lists(st.tuples(orders, order_facts), min_size=1, max_size=14)
runs = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), min_size=1, max_size=4)


def placed_in_log(history: list[tuple[str, Event]]) -> list[Event]:
    versions: dict[str, int] = {}
    events = []
    for number, (stream, fact) in enumerate(history):
        versions[stream] = versions.get(stream, 0) + 1
        at = START + timedelta(hours=7 * number % 11, minutes=number)
        events.append(fact.bound(EventMeta(stream, versions[stream], occurred_at=at)))
    return events


def append_and_run(
    log: EventLog, bench: Bench, events: list[Event], cuts: list[tuple[int, int]], cached_rows: int = 1000
) -> None:
    """Append some, run with one size of page, append more, run with another, and the rest at last."""
    left = list(events)
    for count, page in cuts:
        log.append(left[:count])
        del left[:count]
        bench.run(page, cached_rows)
    log.append(left)
    bench.run(cuts[-1][1], cached_rows)


anything_goes = settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture
def revenue(open_raw: Open, open_plain: Open) -> Bench:
    return Bench(revenue_by_month, open_raw, open_plain)


@anything_goes
@given(history=histories, cuts=runs)
def test_revenue_by_month_equals_its_fold_in_memory(
    log: EventLog,
    revenue: Bench,
    start_over: Callable[[], None],
    connection: psycopg.Connection[Any],
    history: list[tuple[str, Event]],
    cuts: list[tuple[int, int]],
) -> None:
    start_over()
    events = placed_in_log(history)
    append_and_run(log, revenue, events, cuts)
    assert revenues(connection) == revenue_of(events)
    # The same again, though the checkpoint was set back: what was counted is not counted twice.
    revenue.set_back(len(events) // 2)
    revenue.run(cuts[0][1])
    assert revenues(connection) == revenue_of(events)


def revenues(connection: psycopg.Connection[Any]) -> list[MonthRevenue]:
    found = connection.execute(
        "SELECT month, currency, orders, revenue FROM read.revenue_by_month ORDER BY month, currency"
    )
    return [MonthRevenue(*row) for row in found]


@pytest.fixture
def summaries(open_raw: Open, open_plain: Open) -> Bench:
    return Bench(order_summary, open_raw, open_plain)


@anything_goes
@given(history=histories, cuts=runs, cached_rows=st.sampled_from([0, 1, 1000]), back=st.integers(0, 14))
def test_order_summary_equals_its_fold_in_memory(
    log: EventLog,
    summaries: Bench,
    start_over: Callable[[], None],
    connection: psycopg.Connection[Any],
    history: list[tuple[str, Event]],
    cuts: list[tuple[int, int]],
    cached_rows: int,
    back: int,
) -> None:
    start_over()
    events = placed_in_log(history)
    append_and_run(log, summaries, events, cuts, cached_rows)
    expected = sorted(order_summary.fold(events).values(), key=lambda row: row.order_id)
    assert Table(order_summary).all(connection) == expected
    summaries.set_back(min(back, len(events)))
    progress = summaries.run(cuts[0][1], cached_rows)
    assert (progress.applied, progress.position) == (0, len(events))
    assert Table(order_summary).all(connection) == expected


def test_balances_are_exact_and_rebuild_from_what_was_stored(
    log: EventLog, open_raw: Open, open_plain: Open, connection: psycopg.Connection[Any]
) -> None:
    """Case H6 end to end: read back equal, of type Decimal, with the scale that was given."""
    amounts = [*["0.10"] * 10, "12345678901234567890.12", "1E-7", "24.90"]
    facts: list[Event] = [Account.Opened(currency="BRL", opened_on=START.date())]
    facts += [Account.Deposited(amount=Money.of(amount, "BRL")) for amount in amounts]
    log.append(placed_in_log([("account/1", fact) for fact in facts]))
    loaded = log.load("account/1")
    assert loaded == facts
    found = [event.amount.amount for event in loaded if isinstance(event, Account.Deposited)]
    assert [str(amount) for amount in found] == amounts
    assert {type(amount) for amount in found} == {Decimal}
    bench = Bench(account_balance, open_raw, open_plain)
    for page in (1, 4, 100):
        connection.execute("DROP TABLE IF EXISTS read.account_balance")
        connection.execute("DELETE FROM onefold.checkpoints")
        bench.run(page)
        (row,) = Table(account_balance).all(connection)
        assert str(row.balance) == "12345678901234567916.0200001"
        assert (row.currency, row.version, row.lowest_balance) == ("BRL", 14, 0)


def test_the_read_models_have_the_columns_that_they_promise(
    open_plain: Open, connection: psycopg.Connection[Any]
) -> None:
    for projection in (order_summary, account_balance, revenue_by_month):
        prepare(open_plain(), projection)
    found = connection.execute(
        "SELECT table_name::text, array_agg(column_name || ' ' || data_type ORDER BY ordinal_position) "
        "FROM information_schema.columns WHERE table_schema = 'read' GROUP BY 1"
    ).fetchall()
    assert dict(found) == {
        "order_summary": [
            "order_id text",
            "status text",
            "customer_id text",
            "placed_at timestamp with time zone",
            "delivered_at timestamp with time zone",
            "paid numeric",
            "currency text",
            "items bigint",
            "version bigint",
            "paid_otherwise jsonb",
            "_position bigint",
        ],
        "account_balance": [
            "account_id text",
            "balance numeric",
            "currency text",
            "opened_on date",
            "lowest_balance numeric",
            "version bigint",
            "balance_otherwise jsonb",
            "_position bigint",
        ],
        "revenue_by_month": ["month date", "currency text", "orders bigint", "revenue numeric"],
    }

"""Olist's mapping: orders joined from three kinds of files, whole or not at all, the same in whatever order."""

from __future__ import annotations

import csv
import os
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from onefold.domain.event import EventMeta
from onefold.domain.order import Order
from onefold.infrastructure.postgres.log import EventLog
from onefold.infrastructure.postgres.pool import open_pool
from onefold.infrastructure.reading import (
    Fact,
    HeldBack,
    Importer,
    ImportReport,
    Rows,
    Unreadable,
    load_mapping,
)

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("ONEFOLD_DATA") or ROOT.parent / "shared" / "data") / "olist"
MAPPING = load_mapping(f"{ROOT}/docs/examples/olist.py:mapping")
EXPORTS = {name: sorted(DATA.glob(f"export_{name}_*.csv")) for name in "ab"}
needs_data = pytest.mark.skipif(
    not all(len(files) == 3 for files in EXPORTS.values()),
    reason=f"Olist's exports are not in {DATA}; name the folder of the data sets in ONEFOLD_DATA",
)

ORDERS = (
    "order_id,customer_id,order_status,order_purchase_timestamp,order_approved_at,"
    "order_delivered_carrier_date,order_delivered_customer_date,order_estimated_delivery_date"
)
PAYMENTS = "order_id,payment_sequential,payment_type,payment_installments,payment_value"
ITEMS = "order_id,order_item_id,product_id,seller_id,shipping_limit_date,price,freight_value"
BOUGHT, APPROVED, SHIPPED, DELIVERED = (f"2018-06-1{day} 10:00:00" for day in range(4))
INSTANTS = [datetime(2018, 6, 10 + day, 13, tzinfo=UTC) for day in range(4)]


def order(
    order_id: str, status: str, *times: str, bought: str = BOUGHT, estimated: str = "2018-07-01 00:00:00"
) -> str:
    filled = (*times, "", "", "")[:3]
    return ",".join((order_id, f"customer-{order_id}", status, bought, *filled, estimated))


def payment(order_id: str, number: int | str = 1, value: str = "24.90") -> str:
    return f"{order_id},{number},credit_card,2,{value}"


def item(order_id: str, number: int | str = 1, price: str = "20.00") -> str:
    return f"{order_id},{number},product-{number},seller,2018-06-15 10:00:00,{price},4.90"


@pytest.fixture
def log(database_url: str) -> Iterator[EventLog]:
    with open_pool(database_url) as pool:
        yield EventLog(pool)


class Export:
    """The three files of an export."""

    def __init__(self, folder: Path, name: str = "export") -> None:
        self.folder, self.name = folder, name
        self.files: list[Path] = []

    def write(
        self,
        orders: Sequence[str] = (),
        payments: Sequence[str] = (),
        items: Sequence[str] = (),
        end: str = "\n",
    ) -> list[Path]:
        self.files = []
        for kind, header, lines in (
            ("orders", ORDERS, orders),
            ("payments", PAYMENTS, payments),
            ("items", ITEMS, items),
        ):
            path = self.folder / f"{self.name}_{kind}.csv"
            path.write_bytes(("\n".join((header, *lines)) + end).encode("utf-8", "surrogateescape"))
            self.files.append(path)
        return self.files


@pytest.fixture
def export(tmp_path: Path) -> Export:
    return Export(tmp_path)


def facts(files: Sequence[Path]) -> list[Fact]:
    found = list(MAPPING(Rows(files, MAPPING.format)))
    assert all(isinstance(outcome, Fact) for outcome in found), found
    return [outcome for outcome in found if isinstance(outcome, Fact)]


def told(files: Sequence[Path]) -> tuple[set[str], list[tuple[str, int, str]], list[tuple[str, int, str]]]:
    """Orders that were taken; unreadable rows; rows held back."""
    found = list(MAPPING(Rows(files, MAPPING.format)))
    return (
        {outcome.stream.removeprefix("order/") for outcome in found if isinstance(outcome, Fact)},
        [
            (Path(one.row.file).stem.split("_")[1], one.row.line, one.reason)
            for one in found
            if isinstance(one, Unreadable)
        ],
        [
            (Path(one.row.file).stem.split("_")[1], one.row.line, one.reason)
            for one in found
            if isinstance(one, HeldBack)
        ],
    )


def fold(facts: Sequence[Fact]) -> Order:
    found = Order.blank(facts[0].stream)
    for fact in facts:
        found.record(fact.event, at=fact.occurred_at)
    return found


def test_an_order_becomes_its_events_with_stable_keys(export: Export) -> None:
    files = export.write(
        [order("o", "delivered", APPROVED, SHIPPED, DELIVERED)],
        [payment("o", 2, "5.10"), payment("o", 1)],
        [item("o", 2, "1.5"), item("o", 1)],
    )
    found = facts(files)
    assert [(fact.key, type(fact.event), fact.occurred_at) for fact in found] == [
        ("o:placed", Order.Placed, INSTANTS[0]),
        ("o:payment:1", Order.PaymentReceived, INSTANTS[1]),
        ("o:payment:2", Order.PaymentReceived, INSTANTS[1]),
        ("o:confirmed", Order.Confirmed, INSTANTS[1]),
        ("o:shipped", Order.Shipped, INSTANTS[2]),
        ("o:delivered", Order.Delivered, INSTANTS[3]),
    ]
    assert {fact.stream for fact in found} == {"order/o"}
    whole = fold(found)
    assert (whole.status, whole.customer_id, whole.currency) == ("delivered", "customer-o", "BRL")
    assert (whole.paid, whole.total, [line.item_id for line in whole.items]) == (
        30,
        Decimal("31.30"),
        ["1", "2"],
    )
    assert whole.placed_on == date(2018, 6, 10)
    assert whole.estimated_delivery == datetime(2018, 7, 1, 3, tzinfo=UTC)
    assert not any(fact.derived for fact in found)


@pytest.mark.parametrize(
    ("status", "times", "state", "last", "at", "derived"),
    [
        ("created", (), "placed", "placed", 0, False),
        ("approved", (APPROVED,), "confirmed", "confirmed", 1, False),
        ("approved", (), "confirmed", "confirmed", 0, True),
        ("processing", (APPROVED,), "processing", "status:processing", 1, True),
        ("invoiced", (APPROVED,), "invoiced", "status:invoiced", 1, True),
        ("shipped", (APPROVED, SHIPPED), "shipped", "shipped", 2, False),
        ("shipped", (APPROVED,), "shipped", "shipped", 1, True),
        ("delivered", (APPROVED, SHIPPED), "delivered", "delivered", 2, True),
        ("delivered", ("", SHIPPED, DELIVERED), "delivered", "delivered", 3, False),
        ("unavailable", (APPROVED,), "unavailable", "status:unavailable", 1, True),
        ("canceled", (), "cancelled", "status:canceled", 0, True),
        ("canceled", (APPROVED, SHIPPED), "cancelled", "status:canceled", 2, True),
        ("canceled", (APPROVED, SHIPPED, DELIVERED), "cancelled", "status:canceled", 3, True),
    ],
)
def test_the_final_state_is_the_status_whatever_the_order_of_arrival(
    export: Export, status: str, times: tuple[str, ...], state: str, last: str, at: int, derived: bool
) -> None:
    found = facts(export.write([order("o", status, *times)], [payment("o")], [item("o")]))
    final = found[-1] if last != "placed" else found[0]
    assert (final.key, final.occurred_at, final.derived) == (f"o:{last}", INSTANTS[at], derived)
    assert getattr(final.event, "derived") is derived  # noqa: B009 - every event of an order has it
    chance = random.Random(7)
    for _ in range(20):
        assert fold(chance.sample(found, len(found))).status == state


def test_a_payment_without_approval_takes_the_time_of_purchase_and_says_so(export: Export) -> None:
    found = facts(export.write([order("o", "created")], [payment("o")], [item("o")]))
    assert [(fact.key, fact.occurred_at, fact.derived) for fact in found] == [
        ("o:placed", INSTANTS[0], False),
        ("o:payment:1", INSTANTS[0], True),
    ]


def test_files_and_rows_come_in_any_order(export: Export) -> None:
    orders = [order(name, "delivered", APPROVED, SHIPPED, DELIVERED) for name in "pqr"]
    payments = [payment(name, number) for name in "pqr" for number in (1, 2)]
    items = [item(name, number) for name in "pqr" for number in (1, 2, 3)]
    straight = {
        fact.key: (fact.event, fact.occurred_at) for fact in facts(export.write(orders, payments, items))
    }
    chance = random.Random(3)
    for _ in range(10):
        for lines in (orders, payments, items):
            chance.shuffle(lines)
        files = export.write(orders, payments, items)
        chance.shuffle(files)
        assert {fact.key: (fact.event, fact.occurred_at) for fact in facts(files)} == straight


BROKEN = [
    ("payments", payment("x", 1, "24,90"), "has 6 columns, expected 5"),
    (
        "payments",
        payment("x", 1, "much"),
        "column payment_value is 'much', expected a decimal number such as 24.90",
    ),
    ("payments", payment("x", 1, "-1"), "column payment_value is -1, expected 0 or more"),
    ("payments", payment("x", "first"), "column payment_sequential is 'first', expected a whole number"),
    ("payments", "x,1,vou", "has 3 columns, expected 5"),
    ("payments", "x,1,caf\udce9,1,5.00", "holds bytes that are not text in the file's encoding"),
    ("payments", 'x,1,"voucher,1,5.00', "is not CSV"),
    ("items", item("x", 1, ""), "column price is '', expected a decimal number such as 24.90"),
    ("items", item("x").replace("product-1", "a\0b"), "holds a NUL character"),
    ("orders", order("x", "lost"), "column order_status is 'lost', expected created, approved, shipped"),
    ("orders", order("x", "created", bought="yesterday"), "column order_purchase_timestamp is 'yesterday'"),
    (
        "orders",
        order("x", "shipped", "2018-06-11"),
        "column order_approved_at is '2018-06-11', expected a local time",
    ),
    (
        "orders",
        order("x", "shipped", APPROVED, SHIPPED, DELIVERED),
        "column order_status is 'shipped', but the row says when it was delivered",
    ),
    ("orders", order("x", "created", APPROVED), "but the row says when it was confirmed"),
    ("orders", order("x", "invoiced", APPROVED, SHIPPED), "but the row says when it was shipped"),
    (
        "orders",
        order("x", "created", bought="2017-10-15 00:30:00"),
        "column order_purchase_timestamp cannot become an instant: 2017-10-15T00:30:00 never happened",
    ),
]


@pytest.mark.parametrize(("kind", "line", "reason"), BROKEN)
def test_an_order_with_an_unreadable_row_is_held_back_whole_and_listed(
    export: Export, kind: str, line: str, reason: str
) -> None:
    lines = {
        "orders": [order("x", "created"), order("y", "created")],
        "payments": [payment("x"), payment("y")],
        "items": [item("x"), item("y")],
    }
    lines[kind][0] = line
    taken, unreadable, held_back = told(export.write(**lines))
    assert taken == {"y"}
    assert [(where, number) for where, number, _ in unreadable] == [(kind, 2)]
    assert unreadable[0][2].startswith(reason) or reason in unreadable[0][2]
    assert [(where, number) for where, number, _ in held_back] == [
        (other, 2) for other in ("orders", "payments", "items") if other != kind
    ]
    for _, _, why in held_back:
        assert why.startswith("order x is held back: ")
        assert why.endswith(f"_{kind}.csv:2 cannot be read")


@pytest.mark.parametrize(
    "torn", ["8bcbe01d,4,vou", "8bcbe01d", "8bcb", "8bcbe0\udce91d,4,voucher,1,5.00", "8bc\x00e01d,4,v,1,1"]
)
def test_a_row_whose_order_id_is_damaged_holds_back_the_orders_that_it_may_belong_to(
    export: Export, torn: str
) -> None:
    files = export.write(
        [order("8bcbe01d", "created"), order("4637ca19", "created")],
        [payment("8bcbe01d"), payment("4637ca19"), torn],
        [item("8bcbe01d"), item("4637ca19")],
        end="",
    )
    taken, unreadable, held_back = told(files)
    assert taken == {"4637ca19"}
    assert [(kind, line) for kind, line, _ in unreadable] == [("payments", 4)]
    assert {kind for kind, _, _ in held_back} == {"orders", "payments", "items"}


def test_a_broken_row_of_an_order_that_nothing_is_known_of_is_listed_alone(export: Export) -> None:
    files = export.write(
        [order("y", "created"), order("x", "lost"), "z"], [payment("y"), "9,1"], [item("y"), ",1"]
    )
    taken, unreadable, held_back = told(files)
    assert (taken, held_back) == ({"y"}, [])
    assert [(kind, line) for kind, line, _ in unreadable] == [
        ("orders", 3),
        ("orders", 4),
        ("payments", 3),
        ("items", 3),
    ]


def test_payments_and_items_without_their_order_are_told(export: Export) -> None:
    taken, unreadable, held_back = told(
        export.write([order("y", "created")], [payment("y"), payment("x")], [item("y"), item("x")])
    )
    assert (taken, held_back) == ({"y"}, [])
    reason = "no file of orders has order x; read payments and items together with their orders"
    assert unreadable == [("payments", 3, reason), ("items", 3, reason)]


@pytest.mark.parametrize(("kept", "missing"), [((0, 2), "payments"), ((0, 1), "items")])
def test_orders_without_their_other_files_are_held_back(
    export: Export, kept: tuple[int, ...], missing: str
) -> None:
    files = export.write([order("y", "created")], [payment("y")], [item("y")])
    taken, unreadable, held_back = told([files[number] for number in kept])
    assert (taken, unreadable, len(held_back)) == (set(), [], 2)
    assert held_back[0][2].startswith(f"no file of {missing} (with a column ")


def test_an_order_without_items_or_payments_is_one_when_the_files_are_there(export: Export) -> None:
    found = facts(export.write([order("o", "unavailable", APPROVED)]))
    assert (fold(found).status, fold(found).items, fold(found).paid) == ("unavailable", (), 0)


def test_a_file_of_another_kind_is_told(export: Export) -> None:
    files = export.write([order("y", "created")], [payment("y")], [item("y")])
    other = export.folder / "export_products.csv"
    other.write_text("product_id,weight\np,3\n")
    taken, unreadable, _ = told([other, *files])
    assert taken == {"y"}
    assert unreadable == [("products", 2, "column order_status is missing; the row has product_id, weight")]


def test_a_time_that_came_twice_is_the_earlier_one(export: Export) -> None:
    twice = order("o", "approved", "2018-02-17 23:46:46", bought="2018-02-17 23:33:56")
    placed, paid, confirmed = facts(export.write([twice], [payment("o")]))
    assert placed.occurred_at == datetime(2018, 2, 18, 1, 33, 56, tzinfo=UTC)
    assert paid.occurred_at == confirmed.occurred_at == datetime(2018, 2, 18, 1, 46, 46, tzinfo=UTC)
    assert placed.event.placed_on == date(2018, 2, 17)  # type: ignore[attr-defined]


def test_a_day_whose_midnight_was_skipped_begins_when_its_clocks_do(export: Export) -> None:
    (placed,) = facts(export.write([order("o", "created", estimated="2017-10-15 00:00:00")]))
    assert placed.event.estimated_delivery == datetime(2017, 10, 15, 3, tzinfo=UTC)  # type: ignore[attr-defined]
    (placed,) = facts(export.write([order("o", "created", estimated="")]))
    assert placed.event.estimated_delivery is None  # type: ignore[attr-defined]


def test_an_order_of_a_late_evening_counts_to_the_month_of_the_shop(export: Export) -> None:
    (placed,) = facts(export.write([order("o", "created", bought="2018-01-31 23:30:00")]))
    assert placed.occurred_at == datetime(2018, 2, 1, 1, 30, tzinfo=UTC)
    assert placed.event.placed_on == date(2018, 1, 31)  # type: ignore[attr-defined]


def test_another_export_with_other_scales_and_more_orders_adds_only_these(
    log: EventLog, tmp_path: Path
) -> None:
    first = Export(tmp_path, "a").write(
        [order("o", "created")], [payment("o", 1, "24.9")], [item("o", 1, "20.0")]
    )
    second = Export(tmp_path, "b").write(
        [order("p", "created"), order("o", "created")],
        [payment("o", 1, "24.90"), payment("p")],
        [item("o", 1, "20.00"), item("p")],
    )
    reports = [Importer(log).run(MAPPING, files) for files in (first, second)]
    assert [(report.appended, report.duplicate, report.conflict) for report in reports] == [
        (2, 0, 0),
        (2, 2, 0),
    ]


def test_both_exports_in_one_go_are_the_same(log: EventLog, tmp_path: Path) -> None:
    first = Export(tmp_path, "a").write(
        [order("o", "created")], [payment("o", 1, "24.9")], [item("o", 1, "20.0")]
    )
    second = Export(tmp_path, "b").write(
        [order("o", "created")], [payment("o", 1, "24.90")], [item("o", 1, "20.00")]
    )
    report = Importer(log).run(MAPPING, [*second, *first])
    assert (report.appended, report.conflict, report.unreadable, report.held_back) == (2, 0, 0, 0)


def test_a_later_export_takes_an_order_further(log: EventLog, tmp_path: Path) -> None:
    for status, times, state in (
        ("processing", (APPROVED,), "processing"),
        ("invoiced", (APPROVED,), "invoiced"),
        ("shipped", (APPROVED, SHIPPED), "shipped"),
        ("canceled", (APPROVED, SHIPPED), "cancelled"),
        ("shipped", (APPROVED, SHIPPED), "cancelled"),
    ):
        report = Importer(log).run(
            MAPPING, Export(tmp_path).write([order("o", status, *times)], [payment("o")], [item("o")])
        )
        assert report.clean
        found = Order.blank("order/o")
        for event in log.load("order/o"):
            found.follow(event)
        assert found.status == state


@pytest.mark.parametrize("together", [True, False])
def test_an_export_that_contradicts_is_listed_and_not_applied(
    log: EventLog, tmp_path: Path, together: bool
) -> None:
    first = Export(tmp_path, "a").write(
        [order("o", "created")], [payment("o", 1, "24.90")], [item("o", 1), item("o", 2)]
    )
    second = Export(tmp_path, "b").write(
        [order("o", "created")], [payment("o", 1, "24.99")], [item("o", 1), item("o", 2, "21.00")]
    )
    if together:
        report = Importer(log).run(MAPPING, [*first, *second])
    else:
        Importer(log).run(MAPPING, first)
        report = Importer(log).run(MAPPING, second)
    assert {(conflict.key, conflict.differences[0].field) for conflict in report.conflicts} == {
        ("o:placed", "items"),
        ("o:payment:1", "amount"),
    }
    placed, paid = log.load("order/o")
    assert [str(line.price.amount) for line in placed.items] == ["20.00", "20.00"]  # type: ignore[attr-defined]
    assert str(paid.amount) == "24.90 BRL"  # type: ignore[attr-defined]


# What follows reads the real exports. Expectations are computed here from the files, without the mapping.


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


STATE_OF = {
    "created": "placed",
    "approved": "confirmed",
    "canceled": "cancelled",
    **{same: same for same in ("processing", "invoiced", "shipped", "delivered", "unavailable")},
}


def expected(exports: Sequence[str]) -> tuple[dict[str, Any], set[str]]:
    """State, sum paid, item lines, month and count of events of each order; keys that two exports tell differently."""
    orders: dict[str, dict[str, str]] = {}
    payments: dict[tuple[str, str], Any] = {}
    items: dict[tuple[str, str], Any] = {}
    contradicted: set[str] = set()

    def put(there: dict[Any, Any], key: Any, value: Any) -> None:
        if there.setdefault(key, value) != value:
            contradicted.add(str(key))

    for name in exports:
        by_kind = {path.stem.split("_", 2)[2]: table(path) for path in EXPORTS[name]}
        for row in by_kind["orders"]:
            put(orders, row["order_id"], row)
        for row in by_kind["order_payments"]:
            value = row["payment_type"], row["payment_installments"], Decimal(row["payment_value"])
            put(payments, (row["order_id"], row["payment_sequential"]), value)
        for row in by_kind["order_items"]:
            content = row["product_id"], Decimal(row["price"]), Decimal(row["freight_value"])
            put(items, (row["order_id"], row["order_item_id"]), content)
    paid: dict[str, list[Decimal]] = defaultdict(list)
    lines: dict[str, list[Any]] = defaultdict(list)
    for (order_id, _), payment in payments.items():
        paid[order_id].append(payment[2])
    for (order_id, number), content in items.items():
        lines[order_id].append((number, *content))
    states = {}
    for order_id, row in orders.items():
        status = row["order_status"]
        steps = [
            bool(row["order_approved_at"]) or status == "approved",
            bool(row["order_delivered_carrier_date"]) or status == "shipped",
            bool(row["order_delivered_customer_date"]) or status == "delivered",
            status in ("processing", "invoiced", "unavailable", "canceled"),
        ]
        states[order_id] = (
            STATE_OF[status],
            sum(paid[order_id], Decimal(0)),
            sorted(lines[order_id]),
            row["order_purchase_timestamp"][:7],
            1 + len(paid[order_id]) + sum(steps),
        )
    return states, contradicted


def folded(log: EventLog) -> dict[str, Any]:
    """The same, from a fold of the log in the order of its positions."""
    orders: dict[str, Order] = {}
    with log.pool.connection() as connection:
        streams = connection.execute(
            "SELECT position, stream, version, type, schema_version, data::text FROM onefold.events ORDER BY position"
        )
        for _, stream, version, name, schema, data in streams:
            if stream not in orders:
                orders[stream] = Order.blank(stream)
            orders[stream].follow(log.registry.decode(name, schema, data, EventMeta(stream, version)))
    return {
        one.key: (
            one.status,
            one.paid,
            sorted(
                (line.item_id, line.product_id, line.price.amount, line.freight.amount) for line in one.items
            ),
            str(one.placed_on)[:7],
            one.version,
        )
        for one in orders.values()
    }


def totals(states: dict[str, Any]) -> tuple[Counter[str], Decimal, dict[str, Decimal]]:
    revenue: dict[str, Decimal] = defaultdict(Decimal)
    for _, paid, _, month, _ in states.values():
        revenue[month] += paid
    return Counter(state for state, *_ in states.values()), sum(revenue.values(), Decimal(0)), dict(revenue)


def clean(report: ImportReport) -> bool:
    return report.clean and not (report.unreadable_rows or report.conflicts or report.held_back_rows)


@needs_data
def test_the_first_export_then_the_same_again_then_the_second(log: EventLog) -> None:
    alone, _ = expected("a")
    both, contradicted = expected("ab")
    assert not contradicted
    rows = {name: sum(len(table(path)) for path in files) for name, files in EXPORTS.items()}
    events_of_a, events_of_both = (sum(state[4] for state in states.values()) for states in (alone, both))
    events_of_b = sum(state[4] for state in expected("b")[0].values())

    first = Importer(log).run(MAPPING, EXPORTS["a"])
    assert clean(first)
    assert (first.read, first.appended, first.duplicate) == (rows["a"], events_of_a, 0)
    assert folded(log) == alone

    again = Importer(log).run(MAPPING, EXPORTS["a"])
    assert clean(again)
    assert (again.read, again.appended, again.duplicate) == (rows["a"], 0, events_of_a)

    second = Importer(log).run(MAPPING, EXPORTS["b"])
    overlap = events_of_a + events_of_b - events_of_both
    assert overlap > 0
    assert clean(second)
    assert (second.read, second.appended, second.duplicate) == (
        rows["b"],
        events_of_both - events_of_a,
        overlap,
    )

    states = folded(log)
    assert states == both
    assert totals(states) == totals(both)


@needs_data
def test_the_exports_in_the_other_order_and_shuffled_end_in_the_same_states(
    log: EventLog, tmp_path: Path
) -> None:
    chance = random.Random(20181015)
    for name in "ba":
        shuffled = []
        for path in EXPORTS[name]:
            header, *lines = path.read_text("utf-8").splitlines()
            chance.shuffle(lines)
            copy = tmp_path / path.name
            copy.write_text("\n".join((header, *lines)) + "\n", "utf-8")
            shuffled.append(copy)
        chance.shuffle(shuffled)
        assert clean(Importer(log).run(MAPPING, shuffled))
    assert folded(log) == expected("ab")[0]

"""As-of states of real orders and balances are those that plain Python reads out of the files, to the microsecond."""

from __future__ import annotations

import csv
import os
import random
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from onefold import AggregateNotFound
from onefold.domain.account import Account
from onefold.domain.order import Order
from onefold.infrastructure.reading import Importer, load_mapping
from onefold.infrastructure.store import Store

ROOT = Path(__file__).parents[3]
DATA = Path(os.environ.get("ONEFOLD_DATA") or ROOT.parent / "shared" / "data")
OLIST, BERKA = DATA / "olist", DATA / "berka"
TICK = timedelta(microseconds=1)
SHOP, BANK = ZoneInfo("America/Sao_Paulo"), ZoneInfo("Europe/Prague")
RANKS = ("placed", "confirmed", "processing", "invoiced", "shipped", "delivered", "unavailable", "cancelled")
LAST = {
    "processing": "processing", "invoiced": "invoiced", "unavailable": "unavailable", "canceled": "cancelled",
    "approved": "confirmed", "shipped": "shipped", "delivered": "delivered",
}  # fmt: skip

needs_olist = pytest.mark.skipif(
    not (OLIST / "export_a_orders.csv").is_file(),
    reason=f"Olist's exports are not in {OLIST}; name the folder of the data sets in ONEFOLD_DATA",
)
needs_berka = pytest.mark.skipif(
    not (BERKA / "trans.asc").is_file(),
    reason=f"Berka's files are not in {BERKA}; name the folder of the data sets in ONEFOLD_DATA",
)


def chosen(name: str, orders: set[str] | None, folder: Path) -> tuple[list[dict[str, str]], Path]:
    """The rows of these orders, of all without any, and a file of them."""
    with (OLIST / name).open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        rows = [row for row in reader if orders is None or row["order_id"] in orders]
        fields = list(reader.fieldnames or ())
    written = folder / name
    with written.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fields)
        writer.writeheader()
        writer.writerows(rows)
    return rows, written


def local(text: str) -> datetime | None:
    return datetime.fromisoformat(text).replace(tzinfo=SHOP, fold=0).astimezone(UTC) if text else None


class Told:
    """An order as its rows tell it: what happened when."""

    def __init__(
        self, row: dict[str, str], payments: list[dict[str, str]], items: list[dict[str, str]]
    ) -> None:
        placed = local(row["order_purchase_timestamp"])
        assert placed is not None
        approved = local(row["order_approved_at"])
        steps = [("placed", placed), ("confirmed", approved)]
        steps.append(("shipped", local(row["order_delivered_carrier_date"])))
        steps.append(("delivered", local(row["order_delivered_customer_date"])))
        self.placed = placed
        self.customer = row["customer_id"]
        self.steps = [(status, at) for status, at in steps if at is not None]
        last = LAST.get(row["order_status"])
        if last is not None and last not in dict(self.steps):
            self.steps.append((last, max(at for _, at in self.steps)))
        self.payments = [(approved or placed, Decimal(each["payment_value"])) for each in payments]
        self.total = sum(
            (Decimal(each["price"]) + Decimal(each["freight_value"]) for each in items), Decimal(0)
        )
        self.items = len({each["order_item_id"] for each in items})
        self.instants = sorted({at for _, at in self.steps} | {at for at, _ in self.payments})

    def at(self, instant: datetime) -> dict[str, Any] | None:
        status = [name for name, at in self.steps if at <= instant]
        paid = [amount for at, amount in self.payments if at <= instant]
        if not status and not paid:
            return None
        placed = self.placed <= instant
        return {
            "status": max(status, key=RANKS.index) if status else "new",
            "paid": sum(paid, Decimal(0)),
            "customer": self.customer if placed else "",
            "total": self.total if placed else Decimal(0),
            "items": self.items if placed else 0,
        }


def seen(store: Store, order: str, instant: datetime) -> dict[str, Any] | None:
    try:
        found = store.as_of(Order, order, occurred=instant)
    except AggregateNotFound:
        return None
    return {
        "status": found.status,
        "paid": found.paid,
        "customer": found.customer_id,
        "total": found.total,
        "items": len(found.items),
    }


@needs_olist
def test_orders_are_as_their_rows_tell_at_any_instant(store: Store, tmp_path: Path) -> None:
    chance = random.Random(20261201)
    everything, _ = chosen("export_a_orders.csv", None, tmp_path)
    rare = [row["order_id"] for row in everything if row["order_status"] not in ("delivered", "shipped")]
    wanted = {
        *chance.sample(sorted(row["order_id"] for row in everything), 150),
        *chance.sample(sorted(rare), 50),
    }
    orders, order_file = chosen("export_a_orders.csv", wanted, tmp_path)
    payments, payment_file = chosen("export_a_order_payments.csv", wanted, tmp_path)
    items, item_file = chosen("export_a_order_items.csv", wanted, tmp_path)
    mapping = load_mapping(f"{ROOT}/docs/examples/olist.py:mapping")
    report = Importer(store.log).run(mapping, [order_file, payment_file, item_file])
    held_back = {problem.reason.split()[1] for problem in report.held_back_rows}

    of_order: dict[str, tuple[list[Any], list[Any]]] = defaultdict(lambda: ([], []))
    for payment in payments:
        of_order[payment["order_id"]][0].append(payment)
    for item in items:
        of_order[item["order_id"]][1].append(item)
    compared = 0
    for row in orders:
        order = row["order_id"]
        if order in held_back:
            continue
        told = Told(row, *of_order[order])
        first, last = told.instants[0], told.instants[-1]
        around = [at + step for at in told.instants for step in (-TICK, timedelta(), TICK)]
        anywhere = [first + chance.random() * (last - first) for _ in range(3)]
        for instant in (*around, *anywhere, datetime.now(UTC)):
            assert seen(store, order, instant) == told.at(instant), (order, instant)
            compared += 1
    assert compared > 2_000


@needs_berka
def test_balances_are_the_sums_of_their_movements_at_any_instant(store: Store, tmp_path: Path) -> None:
    chance = random.Random(19930101)
    accounts = (BERKA / "account.asc").read_text("ascii").splitlines(keepends=True)
    movements = (BERKA / "trans.asc").read_bytes().decode("ascii").splitlines(keepends=True)
    wanted = set(chance.sample(sorted(line.split(";")[0] for line in accounts[1:]), 400))
    account_file, movement_file = tmp_path / "account.asc", tmp_path / "trans.asc"
    account_file.write_text(
        "".join([accounts[0], *(line for line in accounts[1:] if line.split(";")[0] in wanted)])
    )
    records = [line.split(";") for line in movements[1:]]
    whole = [record for record in records if len(record) == 10 and record[1] in wanted]
    movement_file.write_text("".join([movements[0], *(";".join(record) for record in whole)]))
    mapping = load_mapping(f"{ROOT}/docs/examples/berka.py:mapping")
    assert Importer(store.log).run(mapping, [account_file, movement_file]).clean

    moved: dict[str, list[tuple[datetime, Decimal]]] = defaultdict(list)
    for _, account, day, kind, _, amount, *_ in whole:
        midnight = datetime(1900 + int(day[:2]), int(day[2:4]), int(day[4:]), tzinfo=BANK).astimezone(UTC)
        moved[account].append((midnight, Decimal(amount) if kind == '"PRIJEM"' else -Decimal(amount)))
    compared = 0
    for account in chance.sample(sorted(moved), 60):
        midnights = sorted({at for at, _ in moved[account]})
        span = midnights[-1] - midnights[0]
        around = [
            at + step
            for at in chance.sample(midnights, min(8, len(midnights)))
            for step in (-TICK, 0 * TICK, TICK)
        ]
        for instant in (*around, *(midnights[0] + chance.random() * span for _ in range(5))):
            expected = sum((amount for at, amount in moved[account] if at <= instant), Decimal(0))
            try:
                found = store.as_of(Account, account, occurred=instant).balances.get("CZK", Decimal(0))
            except AggregateNotFound:
                found = Decimal(0)
            assert found == expected, (account, instant)
            compared += 1
    assert compared > 500

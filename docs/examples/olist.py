"""Olist's marketplace: the files of orders, payments and items become Order events.

    onefold import --mapping docs/examples/olist.py:mapping orders.csv order_payments.csv order_items.csv

The three kinds of files are told apart by their columns; give them all in one go, in any order, with their rows in
any order. An order's events come once all files are read, because its items are part of its placing.

Times are local, of the shop in São Paulo. A time that came twice when clocks went back is the earlier one; one that
was skipped when clocks went forward is refused, and its order held back. The estimated delivery is a day, written as
midnight: where the clocks skipped that midnight it is the first moment of the day. `placed_on` keeps the shop's own
calendar day.

Where the source gives no time, the event takes the latest known time of the order and is flagged `derived`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import NamedTuple

from onefold.domain.money import Money
from onefold.domain.order import Order, OrderFact, OrderItem
from onefold.infrastructure.reading import (
    Fact,
    HeldBack,
    Outcome,
    Row,
    Rows,
    Unreadable,
    UnreadableValue,
    reads,
)

ZONE = "America/Sao_Paulo"
CURRENCY = "BRL"

STEPS = (
    ("order_approved_at", "confirmed", Order.Confirmed),
    ("order_delivered_carrier_date", "shipped", Order.Shipped),
    ("order_delivered_customer_date", "delivered", Order.Delivered),
)
"""Columns of times, with the key and the class of the event that happened then."""

STEP_OF_STATUS = {"approved": "confirmed", "shipped": "shipped", "delivered": "delivered"}
"""Statuses that an event of a step leads to."""

WITHOUT_TIME = {
    "processing": Order.ProcessingStarted,
    "invoiced": Order.Invoiced,
    "unavailable": Order.MarkedUnavailable,
    "canceled": Order.Cancelled,
}
"""Statuses whose event has no column of its own."""

STATUSES = ("created", *STEP_OF_STATUS, *WITHOUT_TIME)


class OrderLine(NamedTuple):
    """A row of orders: `times` are those that are filled, by the key of their event."""

    row: Row
    customer_id: str
    status: str
    placed_on: date
    placed_at: datetime
    times: dict[str, datetime]
    estimated_delivery: datetime | None


class PaymentLine(NamedTuple):
    """A row of payments."""

    row: Row
    sequential: int
    kind: str
    installments: int
    value: Decimal


class ItemLine(NamedTuple):
    """A row of items, with what makes it the same item in another export."""

    row: Row
    number: int
    content: tuple[str, Decimal, Decimal]


@dataclass(slots=True)
class Known:
    """All that the files say about one order; `broken` are its rows that cannot be read."""

    orders: list[OrderLine] = field(default_factory=list)
    payments: list[PaymentLine] = field(default_factory=list)
    items: list[ItemLine] = field(default_factory=list)
    broken: list[Row] = field(default_factory=list)

    def rows(self) -> Iterator[Row]:
        for lines in (self.orders, self.payments, self.items):
            for line in lines:
                yield line.row


@reads("olist", kind="csv")
def mapping(rows: Rows) -> Iterator[Outcome]:
    """Join orders, payments and items, and tell of each order from its placing to its last step."""
    known: dict[str, Known] = defaultdict(Known)
    damaged: list[Row] = []
    for row in rows:
        try:
            _sort_in(row, known)
        except ValueError as error:
            yield Unreadable(row, str(error))
            damaged.append(row)
    for row in damaged:
        for order_id in _touched(row, known):
            known[order_id].broken.append(row)
    incomplete = _missing_files(rows)
    for order_id, one in known.items():
        if one.broken:
            reason = (
                f"order {order_id} is held back: {one.broken[0].file}:{one.broken[0].line} cannot be read"
            )
            yield from (HeldBack(row, reason) for row in one.rows())
        elif incomplete:
            yield from (HeldBack(row, incomplete) for row in one.rows())
        elif not one.orders:
            reason = (
                f"no file of orders has order {order_id}; read payments and items together with their orders"
            )
            yield from (Unreadable(row, reason) for row in one.rows())
        else:
            yield from _facts(order_id, one)


def _sort_in(row: Row, known: dict[str, Known]) -> None:
    """Put a row to its order; everything is read before anything is kept."""
    if "payment_sequential" in row:
        payment = PaymentLine(
            _place(row),
            row.integer("payment_sequential"),
            row.text("payment_type"),
            row.integer("payment_installments"),
            _not_negative(row, "payment_value"),
        )
        known[row.text("order_id")].payments.append(payment)
    elif "order_item_id" in row:
        content = row.text("product_id"), _not_negative(row, "price"), _not_negative(row, "freight_value")
        item = ItemLine(_place(row), row.integer("order_item_id"), content)
        known[row.text("order_id")].items.append(item)
    else:
        order = _order_line(row)
        known[row.text("order_id")].orders.append(order)


def _order_line(row: Row) -> OrderLine:
    status = row.text("order_status")
    if status not in STATUSES:
        raise UnreadableValue("order_status", f"is {status!r}, expected {', '.join(STATUSES)}")
    times = {key: at for column, key, _ in STEPS if (at := _time(row, column)) is not None}
    beyond = times.keys() - _steps_up_to(status)
    if beyond:
        raise UnreadableValue(
            "order_status", f"is {status!r}, but the row says when it was {', '.join(sorted(beyond))}"
        )
    return OrderLine(
        _place(row),
        row.text("customer_id"),
        status,
        row.local_time("order_purchase_timestamp").date(),
        row.instant("order_purchase_timestamp", ZONE, ambiguous="earlier"),
        times,
        row.instant("order_estimated_delivery_date", ZONE, ambiguous="earlier", skipped="forward")
        if row.get("order_estimated_delivery_date")
        else None,
    )


def _steps_up_to(status: str) -> set[str]:
    """The steps that an order of this status can have behind it: their events must not outrank it."""
    if status == "created":
        return set()
    if status in ("approved", "processing", "invoiced"):
        return {"confirmed"}
    if status == "shipped":
        return {"confirmed", "shipped"}
    return {"confirmed", "shipped", "delivered"}


def _time(row: Row, column: str) -> datetime | None:
    return row.instant(column, ZONE, ambiguous="earlier") if row.get(column) else None


def _not_negative(row: Row, column: str) -> Decimal:
    amount = row.decimal(column)
    if amount < 0:
        raise UnreadableValue(column, f"is {amount}, expected 0 or more")
    return amount


def _place(row: Row) -> Row:
    """The row without its values: where it was read is all that is kept of it."""
    return Row(row.file, row.line, {})


def _touched(row: Row, known: dict[str, Known]) -> Iterable[str]:
    """The orders to which an unreadable row may belong, by what can be made out of its order_id."""
    text = row.values.get("order_id", "")
    if text in known:
        return (text,)
    cut = row.fault and list(row.values)[-1:] == ["order_id"]
    parts = re.split("[\0\ud800-\udfff]+", text)
    if not text or (len(parts) == 1 and not cut):
        return ()
    pattern = re.compile(".{0,8}".join(map(re.escape, parts)) + (".*" if cut else ""))
    return [order_id for order_id in known if pattern.fullmatch(order_id)]


def _missing_files(rows: Rows) -> str:
    for kind, column in (("payments", "payment_sequential"), ("items", "order_item_id")):
        if column not in rows.columns:
            return (
                f"no file of {kind} (with a column {column}) was given; "
                "read the orders, payments and items of an export together"
            )
    return ""


def _facts(order_id: str, one: Known) -> Iterator[Fact]:
    for order in one.orders:
        for event, row in _placed_variants(order, one.items):
            yield _fact(order_id, "placed", event, order.placed_at, row)
        for payment in sorted(one.payments, key=lambda line: line.sequential):
            yield _payment(order_id, payment, order)
        yield from _way(order_id, order)


def _placed_variants(order: OrderLine, items: list[ItemLine]) -> Iterator[tuple[Order.Placed, Row]]:
    """The placing, once more for every item that another row contradicts: the importer lists those as conflicts."""
    first: dict[int, ItemLine] = {}
    in_order = sorted(items, key=lambda line: line.number)
    others = [item for item in in_order if first.setdefault(item.number, item).content != item.content]
    yield _placed(order, first), order.row
    for item in others:
        yield _placed(order, {**first, item.number: item}), item.row


def _placed(order: OrderLine, items: dict[int, ItemLine]) -> Order.Placed:
    return Order.Placed(
        customer_id=order.customer_id,
        currency=CURRENCY,
        placed_on=order.placed_on,
        items=tuple(_item(line) for line in items.values()),
        estimated_delivery=order.estimated_delivery,
    )


def _item(line: ItemLine) -> OrderItem:
    product_id, price, freight = line.content
    return OrderItem(
        item_id=str(line.number), product_id=product_id, price=_money(price), freight=_money(freight)
    )


def _payment(order_id: str, payment: PaymentLine, order: OrderLine) -> Fact:
    approved_at = order.times.get("confirmed")
    event = Order.PaymentReceived(
        payment_id=str(payment.sequential),
        kind=payment.kind,
        installments=payment.installments,
        amount=_money(payment.value),
        derived=approved_at is None,
    )
    at = approved_at or order.placed_at
    return _fact(order_id, f"payment:{payment.sequential}", event, at, payment.row)


def _way(order_id: str, order: OrderLine) -> Iterator[Fact]:
    """The steps after placing: those whose time is known, and the one that the status tells of."""
    latest = max((order.placed_at, *order.times.values()))
    for _, key, event_class in STEPS:
        if key in order.times:
            yield _fact(order_id, key, event_class(), order.times[key], order.row)
        elif STEP_OF_STATUS.get(order.status) == key:
            yield _fact(order_id, key, event_class(derived=True), latest, order.row)
    if order.status in WITHOUT_TIME:
        event = WITHOUT_TIME[order.status](derived=True)
        yield _fact(order_id, f"status:{order.status}", event, latest, order.row)


def _fact(order_id: str, key: str, event: OrderFact, at: datetime, row: Row) -> Fact:
    return Fact(f"{order_id}:{key}", Order.stream_of(order_id), event, at, derived=event.derived, row=row)


def _money(amount: Decimal) -> Money:
    return Money(amount=amount, currency=CURRENCY)

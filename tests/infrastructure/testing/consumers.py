"""Consumers that are right, and consumers that are wrong each in a way of its own."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from onefold import (
    Aggregate,
    AsyncTransaction,
    Consumer,
    Event,
    Lifecycle,
    Message,
    Projection,
    Registry,
    Retry,
    Row,
    Transaction,
    Transition,
    applies,
)

KINDS = Registry()

TABLES = """
    CREATE TABLE balances (account text PRIMARY KEY, balance bigint NOT NULL, changed timestamptz DEFAULT now());
    CREATE TABLE entries (id bigint GENERATED ALWAYS AS IDENTITY, account text NOT NULL, amount bigint NOT NULL);
"""
ADD = """
    INSERT INTO balances AS b VALUES (%s, %s)
    ON CONFLICT (account) DO UPDATE SET balance = b.balance + excluded.balance
"""
SET = "INSERT INTO balances VALUES (%s, %s) ON CONFLICT (account) DO UPDATE SET balance = excluded.balance"


def deposit(account: str, version: int, amount: int) -> Message:
    return Message(
        f"{account}-{version}",
        "/bank",
        "bank.deposited",
        {"amount": amount, "payment": f"{account}{version}"},
        account,
        extensions={"sequence": version},
    )


DEPOSITS = [
    deposit("a", 1, 10),
    deposit("a", 2, 5),
    deposit("b", 1, 7),
    deposit("a", 3, -2),
    deposit("b", 2, 20),
]


def balances(connection: psycopg.Connection[Any]) -> dict[str, int]:
    return dict(connection.execute("SELECT account, balance FROM balances").fetchall())


@dataclass
class Subject:
    """A consumer with what its proof is made of."""

    consumer: Consumer
    messages: list[Message] = field(default_factory=lambda: DEPOSITS)
    options: dict[str, Any] = field(default_factory=dict)


def add(message: Message, tx: Transaction) -> None:
    tx.execute(ADD, (message.subject, message.data["amount"]))


async def add_later(message: Message, tx: AsyncTransaction) -> None:
    await tx.execute(ADD, (message.subject, message.data["amount"]))


def put(message: Message, tx: Transaction) -> None:
    tx.execute(SET, (message.subject, message.data["amount"]))


def enter(message: Message, tx: Transaction) -> None:
    tx.execute(
        "INSERT INTO entries (account, amount) VALUES (%s, %s)", (message.subject, message.data["amount"])
    )


def add_elsewhere(message: Message, tx: Transaction) -> None:
    with psycopg.connect(os.environ["ONEFOLD_DATABASE_URL"], autocommit=True) as connection:
        connection.execute(ADD, (message.subject, message.data["amount"]))


def read_and_write(message: Message, tx: Transaction) -> None:
    row = tx.execute("SELECT balance FROM balances WHERE account = %s", (message.subject,)).fetchone()
    tx.execute(SET, (message.subject, (row[0] if row else 0) + message.data["amount"]))


def double_and_add(message: Message, tx: Transaction) -> None:
    tx.execute(
        "INSERT INTO balances AS b VALUES (%s, %s) "
        "ON CONFLICT (account) DO UPDATE SET balance = 2 * b.balance + excluded.balance",
        (message.subject, message.data["amount"]),
    )


def add_to_all(message: Message, tx: Transaction) -> None:
    row = tx.execute("SELECT balance FROM balances WHERE account = 'all'").fetchone()
    tx.execute(SET, ("all", (row[0] if row else 0) + message.data["amount"]))


class Remembering:
    """Writes what it believes a balance to be."""

    def __init__(self) -> None:
        self.balances: dict[str | None, int] = {}

    def __call__(self, message: Message, tx: Transaction) -> None:
        balance = self.balances[message.subject] = (
            self.balances.get(message.subject, 0) + message.data["amount"]
        )
        tx.execute(SET, (message.subject, balance))


REMEMBERING = Remembering()


class Wallet(Aggregate, category="test_wallet"):
    class Filled(Event, name="test.wallet.filled", registry=KINDS):
        amount: int

    total: int = 0

    def fill(self, amount: int) -> None:
        self.emit(Wallet.Filled(amount=amount))

    @applies
    def _filled(self, event: Filled) -> None:
        self.total += event.amount


def fill(message: Message, tx: Transaction) -> None:
    assert message.subject is not None
    wallet = tx.find(Wallet, message.subject) or Wallet.new(message.subject)
    wallet.fill(message.data["amount"])
    tx.save(wallet)


class Deposited(Event, name="bank.deposited", registry=KINDS):
    amount: int
    payment: str


class Sum(Row, key="account"):
    account: str
    total: int = 0


sums = Projection("testing_sums", Sum, registry=KINDS)


@sums.on(Deposited)
def sum_up(row: Sum | None, event: Deposited) -> Sum:
    known = row or Sum(account=event.meta.key)
    return known.evolve(total=known.total + event.amount)


class Opened(Event, name="parcel.opened", registry=KINDS):
    pass


class Shipped(Event, name="parcel.shipped", registry=KINDS):
    pass


parcel = Lifecycle(
    ("new", "open", "shipped"),
    (Transition("open", Opened, ("new",), "open"), Transition("ship", Shipped, ("open",), "shipped")),
)


def move(event: Opened | Shipped, tx: Transaction) -> None:
    tx.execute(ADD, (tx.message.subject, 1 if isinstance(event, Opened) else 100))


PARCELS = [
    Message("1", "/shop", "parcel.opened", {}, "p"),
    Message("2", "/shop", "parcel.opened", {}, "q"),
    Message("3", "/shop", "parcel.shipped", {}, "p"),
]
BUSINESS_KEY = "data.payment"
IN_ORDER: dict[str, Any] = {"ordering": "delta", "version": "sequence", "key": BUSINESS_KEY}
UNORDERED: dict[str, Any] = {"ordering": "unordered", "key": BUSINESS_KEY}
LATEST: dict[str, Any] = {"ordering": "snapshot", "version": "sequence", "key": BUSINESS_KEY}


class Mails:
    """A mail server that counts: in a file, which outlives who is killed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def reset(self) -> None:
        self.path.write_text("")

    def sent(self, _: psycopg.Connection[Any]) -> list[str]:
        return sorted(self.path.read_text().split())

    def send(self, message: Message, tx: Transaction) -> None:
        with self.path.open("a") as file:
            file.write(f"{message.id}\n")

    def send_once(self, message: Message, tx: Transaction) -> None:
        """Its receiver knows it again by its key."""
        if message.id not in self.path.read_text().split():
            self.send(message, tx)


RIGHT = {
    "delta": Subject(Consumer("adds", effect=add, **IN_ORDER)),
    "delta that is async": Subject(Consumer("adds", effect=add_later, **IN_ORDER)),
    "delta that reads and writes": Subject(Consumer("adds", effect=read_and_write, **IN_ORDER)),
    "delta that refuses what is early": Subject(Consumer("adds", effect=add, on_gap="reject", **IN_ORDER)),
    "unordered sum": Subject(Consumer("adds", effect=add, retry=Retry(attempts=1), **UNORDERED)),
    "unordered entries": Subject(Consumer("enters", effect=enter, **UNORDERED)),
    "snapshot": Subject(Consumer("puts", effect=put, **LATEST)),
    "aggregate": Subject(Consumer("fills", effect=fill, registry=KINDS, **IN_ORDER)),
    "unordered aggregate": Subject(Consumer("fills", effect=fill, registry=KINDS, **UNORDERED)),
    "fold": Subject(Consumer("sums", fold=sums, registry=KINDS, **IN_ORDER)),
    "lifecycle": Subject(
        Consumer("parcels", ordering="unordered", effect=move, lifecycle=parcel, registry=KINDS),
        PARCELS,
    ),
    "sum whose state is told by a function": Subject(
        Consumer("adds", effect=add, **UNORDERED), options={"own": balances}
    ),
}
"""Consumers that are right, by what they are."""

WRONG: dict[str, tuple[Subject, dict[str, str]]] = {
    "writes over a connection of its own": (
        Subject(Consumer("adds", effect=add_elsewhere, **IN_ORDER)),
        {
            "failing_first": "something outside of its transaction",
            "connection_lost": "something outside of its transaction",
            "killed_before_commit": "something outside of its transaction",
        },
    ),
    "knows a message by its id": (
        Subject(Consumer("enters", ordering="unordered", effect=enter)),
        {"new_envelope": 'Name the business key, such as key="data.payment_id"'},
    ),
    "has another key each time": (
        Subject(Consumer("enters", ordering="unordered", effect=enter, key=lambda message: time.time_ns())),
        {"twice": "The key of a message must be the same each time"},
    ),
    "depends on the order and declares none": (
        Subject(Consumer("doubles", effect=double_and_add, **UNORDERED)),
        {"any_order": 'declared "unordered", and its effect depends on the order'},
    ),
    "sets and declares no order": (
        Subject(Consumer("puts", effect=put, **UNORDERED)),
        {"any_order": 'ordering="snapshot" if each sets it'},
    ),
    "adds and declares a snapshot": (
        Subject(Consumer("adds", effect=add, **LATEST)),
        {"any_order": 'ordering="delta" waits for those that are missing'},
    ),
    "reads and writes without a lock": (
        Subject(Consumer("adds", effect=read_and_write, **UNORDERED)),
        {"concurrently": "lock the row (SELECT … FOR UPDATE)"},
    ),
    "writes one row for all sequences": (
        Subject(Consumer("adds", effect=add_to_all, **IN_ORDER)),
        {"concurrently": "do they write the same rows?"},
    ),
    "relies on what it keeps in memory": (
        Subject(
            Consumer("adds", effect=REMEMBERING, **UNORDERED), options={"reset": REMEMBERING.balances.clear}
        ),
        {
            "killed_before_commit": "or was lost with it",
            "failing_first": "something outside of its transaction",
        },
    ),
}
"""Consumers that are wrong, by what they do, with the cases that find it and a part of what they say."""

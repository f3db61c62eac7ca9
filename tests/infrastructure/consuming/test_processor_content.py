"""What an insert by a natural key hides: other content of one id, deleted rows that come back, second emissions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from onefold import Consumer, Event, Message, Projection, Registry, Row, Transaction

from .desk import Desk, balances, dead_letters, deposits, envelope, outcomes

Open = Callable[[Consumer], Desk]
Connection = psycopg.Connection[Any]
kinds = Registry()

TABLES = """
    CREATE TABLE items (item text PRIMARY KEY, label text NOT NULL);
    CREATE TABLE emitted (id bigint GENERATED ALWAYS AS IDENTITY, what text NOT NULL);
"""


class Labelled(Event, name="item.labelled", registry=kinds):
    label: str


class Removed(Event, name="item.removed", registry=kinds): ...


class Item(Row, key="item"):
    item: str
    label: str


def keep(message: Message, tx: Transaction) -> None:
    if message.type == "item.removed":
        tx.execute("DELETE FROM items WHERE item = %s", (message.subject,))
    else:
        tx.execute(
            "INSERT INTO items VALUES (%s, %s) ON CONFLICT (item) DO UPDATE SET label = excluded.label",
            (message.subject, message.data["label"]),
        )
    tx.execute("INSERT INTO emitted (what) VALUES (%s)", (message.id,))


def labelled(version: int, label: str, **more: Any) -> Any:
    return envelope("i", version, type="item.labelled", data={"label": label}, **more)


def removed(version: int) -> Any:
    return envelope("i", version, type="item.removed", data={})


def items(connection: Connection) -> list[tuple[str, str]]:
    return connection.execute("SELECT item, label FROM items").fetchall()


def emitted(connection: Connection) -> list[str]:
    return [what for (what,) in connection.execute("SELECT what FROM emitted ORDER BY id")]


@pytest.fixture
def open_items(open_desk: Open, connection: Connection) -> Callable[[], Desk]:
    connection.execute(TABLES)
    return lambda: open_desk(Consumer("deposits", ordering="snapshot", version="sequence", effect=keep))


@pytest.mark.parametrize("limit", [1, 100])
def test_the_same_id_with_other_content_is_told(
    open_items: Callable[[], Desk], connection: Connection, limit: int
) -> None:
    """C06: neither taken for the first one nor written over it."""
    desk = open_items()
    assert desk.process(labelled(1, "red"), labelled(1, "blue"), limit=limit) == ["applied", "key_conflict"]
    assert items(connection) == [("i", "red")]
    assert [letter[:3] for letter in dead_letters(connection)] == [("i", 1, "key_conflict")]


@pytest.mark.parametrize("limit", [1, 100])
def test_a_row_that_was_deleted_does_not_come_back(
    open_items: Callable[[], Desk], connection: Connection, limit: int
) -> None:
    """C06: the version of the sequence is the tombstone, for what is late and for what comes again."""
    desk = open_items()
    first, late = labelled(1, "red"), labelled(2, "blue")
    assert desk.process(first, removed(3), late, first, late, limit=limit) == [
        "applied",
        "applied",
        "stale",
        "duplicate",
        "duplicate",
    ]
    assert items(connection) == []
    assert desk.process(labelled(4, "green")) == ["applied"]
    assert items(connection) == [("i", "green")]


def test_nothing_is_emitted_for_what_is_not_applied(
    open_items: Callable[[], Desk], connection: Connection
) -> None:
    """C06: duplicates, stale messages and conflicts emit nothing, in whatever batch they come."""
    desk = open_items()
    messages = [labelled(2, "blue"), labelled(1, "red"), labelled(2, "blue"), labelled(2, "white")]
    desk.process(*messages, limit=1)
    desk.process(*messages, *messages)
    assert emitted(connection) == ["i-2"]
    assert outcomes(connection) == {"applied": 1, "duplicate": 7, "key_conflict": 3, "stale": 1}


@pytest.mark.parametrize("limit", [1, 100])
def test_a_row_that_a_fold_deleted_does_not_come_back(
    open_desk: Open, connection: Connection, limit: int
) -> None:
    """C06, C26: also where the row that would carry the version is gone."""
    projection = Projection("items", Item, registry=kinds)

    @projection.on(Labelled)
    def labelled_so(row: Item | None, event: Labelled) -> Item:
        return Item(item=event.meta.key, label=event.label)

    @projection.on(Removed)
    def taken_away(row: Item | None, event: Removed) -> None:
        return None

    desk = open_desk(
        Consumer("deposits", ordering="snapshot", version="sequence", fold=projection, registry=kinds)
    )
    assert desk.process(labelled(1, "red"), removed(3), labelled(2, "blue"), limit=limit) == [
        "applied",
        "applied",
        "stale",
    ]
    assert connection.execute("SELECT item FROM read.items").fetchall() == []
    assert desk.process(labelled(4, "green"), limit=limit) == ["applied"]
    assert connection.execute("SELECT item, label FROM read.items").fetchall() == [("i", "green")]


@pytest.mark.parametrize("limit", [1, 100])
def test_two_equal_debits_are_two(open_desk: Open, connection: Connection, limit: int) -> None:
    """C10: without a declared key it is source and id, never the content."""
    desk = open_desk(deposits(ordering="unordered"))
    debits = [envelope(amount=-10, id=name, idempotencykey=None) for name in ("d1", "d2")]
    assert desk.process(*debits, *debits, limit=limit) == ["applied", "applied", "duplicate", "duplicate"]
    assert balances(connection) == {"a": -20}
    elsewhere = envelope(amount=-10, id="d1", idempotencykey=None, source="/other")
    assert desk.process(elsewhere) == ["applied"]
    assert balances(connection) == {"a": -30}

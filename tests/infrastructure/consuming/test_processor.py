"""The processor on a real database: keys, order, failures, and what stays of each."""

from __future__ import annotations

import contextlib
import threading
import time
import unicodedata
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import permutations
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from onefold import (
    AsyncTransaction,
    Consumer,
    Event,
    Lifecycle,
    Message,
    Projection,
    Registry,
    Rejected,
    Retention,
    Retry,
    Row,
    Transaction,
    Transition,
    VersionConflict,
)
from onefold.infrastructure.brokers import Outgoing
from onefold.infrastructure.consuming.transaction import TransactionEnded
from onefold.infrastructure.postgres.maintenance import maintain

from .desk import (
    DEPOSIT,
    Desk,
    Tally,
    balances,
    count,
    counted,
    dead_letters,
    deposit,
    deposits,
    disordered,
    envelope,
    outcomes,
    parked,
    uuid7,
)

Open = Callable[[Consumer], Desk]
Connection = psycopg.Connection[Any]


def test_a_message_is_applied_once_however_often_it_comes(open_desk: Open, connection: Connection) -> None:
    desk = open_desk(deposits())
    assert desk.process(envelope(), envelope()) == ["applied", "duplicate"]
    assert desk.process(envelope()) == ["duplicate"]
    assert balances(connection) == {"a": 1}
    assert outcomes(connection) == {"applied": 1, "duplicate": 2}
    assert len(desk.finished) == 3


def test_a_failure_after_the_effect_leaves_no_key(open_desk: Open, connection: Connection) -> None:
    """C03"""
    tries = 0

    def effect(message: Message, tx: Transaction) -> None:
        nonlocal tries
        deposit(message, tx)
        tries += 1
        if tries == 1:
            assert connection.execute("SELECT count(*) FROM onefold.ledger").fetchone() == (0,)
            raise ValueError("told to fail")

    desk = open_desk(deposits(effect))
    assert desk.process(envelope()) == ["applied"]
    assert tries == 2
    assert balances(connection) == {"a": 1}
    assert outcomes(connection) == {"applied": 1, "retried": 1}
    assert connection.execute("SELECT count(*) FROM onefold.attempts").fetchone() == (0,)


def test_two_consumers_apply_the_same_message_each(open_desk: Open, connection: Connection) -> None:
    """C04"""
    assert open_desk(deposits(name="one")).process(envelope()) == ["applied"]
    assert open_desk(deposits(name="two")).process(envelope()) == ["applied"]
    assert balances(connection) == {"a": 2}


def test_a_key_may_be_long(open_desk: Open) -> None:
    """C05"""
    desk = open_desk(deposits())
    key = "k" * 10_000
    assert desk.process(envelope(version=1, idempotencykey=key + "1")) == ["applied"]
    assert desk.process(envelope(version=2, idempotencykey=key + "2")) == ["applied"]
    assert desk.process(envelope(version=1, idempotencykey=key + "1")) == ["duplicate"]


def test_composed_and_decomposed_letters_are_two_keys(open_desk: Open, connection: Connection) -> None:
    """C05"""
    desk = open_desk(deposits(ordering="unordered"))
    composed, decomposed = (unicodedata.normalize(form, "é") for form in ("NFC", "NFD"))
    assert composed != decomposed
    found = desk.process(envelope(idempotencykey=composed), envelope(idempotencykey=decomposed))
    assert found == ["applied", "applied"]
    assert desk.process(envelope(idempotencykey=decomposed)) == ["duplicate"]


def test_a_key_with_nul_is_refused(open_desk: Open, connection: Connection) -> None:
    """C05"""
    desk = open_desk(deposits())
    desk.process(envelope(idempotencykey="k\x00"), envelope(version=1, idempotencykey="k"))
    assert balances(connection) == {"a": 1}
    ((sequence, _, outcome, cause),) = dead_letters(connection)
    assert (sequence, outcome) == (None, "rejected")
    assert "NUL" in cause


def test_a_new_envelope_with_the_same_key_has_no_effect(open_desk: Open, connection: Connection) -> None:
    """C08"""
    desk = open_desk(deposits())
    again = envelope(id="another", source="/elsewhere", time="2030-01-01T00:00:00Z")
    assert desk.process(envelope()) == ["applied"]
    assert desk.process(again) == ["duplicate"]
    assert balances(connection) == {"a": 1}


def test_equal_messages_with_different_keys_are_both_applied(open_desk: Open, connection: Connection) -> None:
    """C10"""
    desk = open_desk(deposits(ordering="unordered"))
    found = desk.process(envelope(amount=-10, idempotencykey="x"), envelope(amount=-10, idempotencykey="y"))
    assert found == ["applied", "applied"]
    assert balances(connection) == {"a": -20}


@pytest.mark.parametrize("together", [True, False])
def test_a_key_with_other_content_is_a_conflict(
    open_desk: Open, connection: Connection, together: bool
) -> None:
    """C08, H10"""
    desk = open_desk(deposits(ordering="unordered"))

    def message(text: str, account: str = "a") -> Outgoing:
        head = envelope(account, idempotencykey="k", data=None).body.decode().removesuffix("}")
        return Outgoing(f'{head}, "data": {text}}}'.encode(), envelope().headers)

    messages = (
        message('{"amount": 10, "note": "n"}'),
        message('{"note": "n", "amount": 10.0}'),
        message('{"amount": 99, "note": "n"}'),
        message('{"amount": 10, "note": "n"}', "b"),
    )
    found = desk.process(*messages) if together else [desk.process(one)[0] for one in messages]
    assert found == ["applied", "duplicate", "key_conflict", "key_conflict"]
    assert balances(connection) == {"a": 10}
    assert [letter[2] for letter in dead_letters(connection)] == ["key_conflict", "key_conflict"]


def test_a_conflict_that_comes_again_is_one_dead_letter(open_desk: Open, connection: Connection) -> None:
    desk = open_desk(deposits())
    desk.process(envelope(), envelope(amount=2))
    desk.process(envelope(amount=2))
    assert len(dead_letters(connection)) == 1


def test_twelve_workers_apply_one_key_once(open_desk: Open, bank: str, connection: Connection) -> None:
    """C02"""
    consumer = deposits()
    desks = [open_desk(consumer) for _ in range(12)]
    gate = threading.Barrier(12)
    found: list[str] = []

    def work(desk: Desk) -> None:
        for version in range(1, 6):
            gate.wait()
            found.extend(desk.process(envelope(version=version)))

    run([lambda desk=desk: work(desk) for desk in desks])
    assert (found.count("applied"), found.count("duplicate")) == (5, 55)
    assert balances(connection) == {"a": 5}


def test_who_comes_second_waits_for_the_first(open_desk: Open, connection: Connection) -> None:
    """C02"""
    entered, go_on = threading.Event(), threading.Event()

    def effect(message: Message, tx: Transaction) -> None:
        deposit(message, tx)
        entered.set()
        assert go_on.wait(10)

    consumer = deposits(effect)
    first, second = open_desk(consumer), open_desk(consumer)
    found: list[list[str]] = []
    workers = [
        threading.Thread(target=lambda desk=desk: found.append(desk.process(envelope())))
        for desk in (first, second)
    ]
    workers[0].start()
    assert entered.wait(10)
    workers[1].start()
    time.sleep(0.2)
    assert found == []
    go_on.set()
    for worker in workers:
        worker.join(10)
    assert sorted(found) == [["applied"], ["duplicate"]]


def test_who_waits_too_long_gives_the_message_back(open_desk: Open, connection: Connection) -> None:
    """C02"""
    entered, go_on = threading.Event(), threading.Event()

    def effect(message: Message, tx: Transaction) -> None:
        deposit(message, tx)
        if message.subject == "a":
            entered.set()
            assert go_on.wait(10)

    consumer = deposits(effect)
    first, second = open_desk(consumer), open_desk(consumer)
    second.connection.execute("SET lock_timeout = '50ms'")
    worker = threading.Thread(target=first.process, args=(envelope(),))
    worker.start()
    assert entered.wait(10)
    second.process(envelope("b"), envelope(), envelope("c"))
    assert [arrival.key_text for arrival in second.returned] == ["a-1"]
    assert balances(connection) == {"b": 1, "c": 1}
    go_on.set()
    worker.join(10)
    assert second.process(envelope()) == ["duplicate"]
    assert outcomes(connection) == {"applied": 3, "duplicate": 1, "in_progress": 1}


def test_batches_of_the_same_keys_do_not_block_each_other(open_desk: Open, connection: Connection) -> None:
    """C11"""
    consumer = deposits(ordering="unordered")
    desks = [open_desk(consumer) for _ in range(6)]
    messages = [envelope(f"a{number % 50}", number, idempotencykey=str(number)) for number in range(2_000)]
    orders = [messages, messages[::-1], messages[1000:] + messages[:1000]] * 2
    found: list[str] = []

    def work(desk: Desk, order: list[Outgoing]) -> None:
        found.extend(desk.process(*order, *order[:10]))

    started = time.monotonic()
    run([lambda desk=desk, order=order: work(desk, order) for desk, order in zip(desks, orders, strict=True)])
    assert (found.count("applied"), found.count("duplicate")) == (2_000, 10_060)
    assert sum(balances(connection).values()) == 2_000
    assert outcomes(connection) == {"applied": 2_000, "duplicate": 10_060}
    assert time.monotonic() - started < 60


def test_neighbouring_versions_at_the_same_time_end_in_order(open_desk: Open, connection: Connection) -> None:
    """C22"""
    consumer = deposits()
    desks = [open_desk(consumer) for _ in range(3)]
    gate = threading.Barrier(3)

    def work(number: int) -> None:
        for round_ in range(10):
            gate.wait()
            desks[number].process(envelope(f"r{round_}", number + 1))

    run([lambda number=number: work(number) for number in range(3)])
    assert balances(connection) == {f"r{round_}": 3 for round_ in range(10)}
    assert disordered(connection) == []
    assert parked(connection) == []
    assert connection.execute("SELECT min(version), max(version) FROM onefold.sequences").fetchone() == (3, 3)


def test_a_late_message_that_adds_is_not_lost(open_desk: Open, connection: Connection) -> None:
    """C23, C24"""
    desk = open_desk(deposits())
    assert desk.process(envelope(version=1, amount=1)) == ["applied"]
    assert desk.process(envelope(version=3, amount=100)) == ["parked"]
    assert parked(connection) == [("a", 3)]
    assert balances(connection) == {"a": 1}
    assert desk.process(envelope(version=2, amount=10)) == ["applied"]
    assert balances(connection) == {"a": 111}
    assert disordered(connection) == []
    assert parked(connection) == []
    assert desk.process(envelope(version=3, amount=100)) == ["duplicate"]
    assert outcomes(connection) == {"applied": 3, "parked": 1, "duplicate": 1}


def test_a_passed_version_under_a_new_key_is_stale(open_desk: Open, connection: Connection) -> None:
    """C24"""
    desk = open_desk(deposits())
    desk.process(envelope(version=1), envelope(version=2))
    assert desk.process(envelope(version=1, idempotencykey="new")) == ["stale"]
    assert balances(connection) == {"a": 2}


def test_a_gap_may_be_refused(open_desk: Open, connection: Connection) -> None:
    desk = open_desk(deposits(on_gap="reject"))
    assert desk.process(envelope(version=2), envelope(version=1)) == ["rejected", "applied"]
    assert [letter[:3] for letter in dead_letters(connection)] == [("a", 2, "rejected")]


SET = """
    INSERT INTO accounts VALUES (%s, %s, 1, %s, true)
    ON CONFLICT (account) DO UPDATE SET balance = excluded.balance, last = excluded.last
"""


def test_of_messages_that_set_the_newest_stays(open_desk: Open, connection: Connection) -> None:
    """C26"""

    def put(message: Message, tx: Transaction) -> None:
        tx.execute(SET, (message.subject, message.data["amount"], int(message.extensions["sequence"])))

    desk = open_desk(deposits(put, ordering="snapshot"))
    assert desk.process(envelope(version=2, amount=20), envelope(version=1, amount=10)) == [
        "applied",
        "stale",
    ]
    assert desk.process(envelope(version=9, amount=90)) == ["applied"]
    assert desk.process(envelope(version=5, amount=50)) == ["stale"]
    assert balances(connection) == {"a": 90}
    assert parked(connection) == []


def test_a_message_without_a_version_is_refused(open_desk: Open, connection: Connection) -> None:
    desk = open_desk(deposits())
    desk.process(envelope(sequence=None), envelope("b"))
    assert balances(connection) == {"b": 1}
    ((_, _, outcome, cause),) = dead_letters(connection)
    assert outcome == "rejected"
    assert "version" in cause


kinds = Registry()


class Placed(Event, name="o.placed", registry=kinds):
    pass


class Shipped(Event, name="o.shipped", registry=kinds):
    pass


class Delivered(Event, name="o.delivered", registry=kinds):
    pass


class OrderRow(Row, key="order"):
    order: str
    status: str = "new"
    seen: str = ""


def orders(**options: Any) -> Consumer:
    shop = Projection("orders_seen", OrderRow, registry=kinds)

    def moved(row: OrderRow | None, event: Event, status: str) -> OrderRow:
        row = row or OrderRow(order=event.meta.key)
        return row.evolve(status=status, seen=row.seen + str(event.meta.version))

    @shop.on(Placed)
    def placed(row: OrderRow | None, event: Placed) -> OrderRow:
        return moved(row, event, "placed")

    @shop.on(Shipped)
    def shipped(row: OrderRow | None, event: Shipped) -> OrderRow:
        return moved(row, event, "shipped")

    @shop.on(Delivered)
    def delivered(row: OrderRow | None, event: Delivered) -> OrderRow:
        return moved(row, event, "delivered")

    return Consumer("orders", ordering="delta", version="sequence", fold=shop, registry=kinds, **options)


def order_message(order: str, version: int, kind: type[Event]) -> Outgoing:
    return envelope(f"order/{order}", version, type=kind.event_name, data={})


def test_newer_before_older_ends_the_same_in_every_order(open_desk: Open, connection: Connection) -> None:
    """H3"""
    consumer = orders()
    desk = open_desk(consumer)
    for number, order in enumerate(permutations(((3, Delivered), (1, Placed), (2, Shipped), (2, Shipped)))):
        shown = 0
        for version, kind in order:
            desk.process(order_message(str(number), version, kind))
            row = connection.execute(
                'SELECT status, seen FROM read.orders_seen WHERE "order" = %s', (str(number),)
            ).fetchone()
            rank = 0 if row is None else ["placed", "shipped", "delivered"].index(row[0]) + 1
            assert rank >= shown
            shown = rank
        assert row == ("delivered", "123")
    assert outcomes(connection, "orders")["applied"] == 72
    assert outcomes(connection, "orders")["duplicate"] == 24
    assert parked(connection) == []


def test_a_fold_that_fails_is_isolated(open_desk: Open, connection: Connection) -> None:
    shop = Projection("picky", OrderRow, registry=kinds)

    @shop.on(Placed)
    def placed(row: OrderRow | None, event: Placed) -> OrderRow:
        if event.meta.key == "bad":
            raise ValueError("told to fail")
        return OrderRow(order=event.meta.key, status="placed")

    picky = Consumer(
        "picky", ordering="delta", version="sequence", fold=shop, registry=kinds, retry=deposits().retry
    )
    desk = open_desk(picky)
    found = desk.process(*(order_message(name, 1, Placed) for name in ("x", "bad", "y")))
    assert found == ["applied", "dead_lettered", "applied"]
    assert connection.execute('SELECT "order" FROM read.picky ORDER BY 1').fetchall() == [("x",), ("y",)]
    assert [letter[2:] for letter in dead_letters(connection)] == [
        ("dead_lettered", "ValueError: told to fail")
    ]


def test_a_row_that_the_database_refuses_is_isolated(open_desk: Open, connection: Connection) -> None:
    class Wide(Row, key="order"):
        order: str
        number: int = 0

    shop = Projection("wide", Wide, registry=kinds)

    @shop.on(Placed)
    def placed(row: Wide | None, event: Placed) -> Wide:
        return Wide(order=event.meta.key, number=2**70 if event.meta.key == "bad" else 1)

    wide = Consumer(
        "wide", ordering="delta", version="sequence", fold=shop, registry=kinds, retry=deposits().retry
    )
    desk = open_desk(wide)
    found = desk.process(*(order_message(name, 1, Placed) for name in ("v", "w", "bad", "x", "y")))
    assert found == ["applied", "applied", "dead_lettered", "applied", "applied"]
    assert connection.execute("SELECT count(*) FROM read.wide").fetchone() == (4,)


LIFECYCLE = ("new", "placed", "shipped", "delivered")


def guarded(effect: Callable[[Any, Any], Any], **options: Any) -> Consumer:
    lifecycle = Lifecycle(
        LIFECYCLE,
        (
            Transition("place", Placed, ("new",), "placed"),
            Transition("ship", Shipped, ("placed",), "shipped"),
            Transition("deliver", Delivered, ("shipped",), "delivered"),
        ),
    )
    options.setdefault("ordering", "unordered")
    return Consumer(
        "guarded",
        effect=effect,
        lifecycle=lifecycle,
        registry=kinds,
        events=(Placed, Shipped, Delivered),
        sequence="subject",
        **options,
    )


@pytest.mark.parametrize("on_gap", ["park", "reject"])
def test_a_step_that_comes_too_early_waits_or_is_refused(
    open_desk: Open, connection: Connection, on_gap: Any
) -> None:
    """C25"""
    seen: list[str] = []
    desk = open_desk(guarded(lambda event, _: seen.append(event.event_name), on_gap=on_gap))
    early, first, second, late = (
        order_message("1", version, kind)
        for version, kind in ((3, Delivered), (1, Placed), (2, Shipped), (4, Placed))
    )
    expected = "parked" if on_gap == "park" else "rejected"
    assert [desk.process(one)[0] for one in (early, first, second, late)] == [
        expected,
        "applied",
        "applied",
        "stale",
    ]
    whole = ["o.placed", "o.shipped", "o.delivered"]
    assert seen == (whole if on_gap == "park" else whole[:2])
    assert len(dead_letters(connection)) == (on_gap == "reject")


def test_bad_json_in_the_middle_does_not_stop_the_next(open_desk: Open, connection: Connection) -> None:
    """C80"""
    desk = open_desk(deposits())
    bad = Outgoing(b'{"id": "x"', envelope().headers)
    found = desk.process(envelope("a"), bad, envelope("b"), Outgoing(b"\x00\xff", {"x-a": "\x00 \ud800"}))
    assert found == ["applied", "", "applied", ""]
    assert balances(connection) == {"a": 1, "b": 1}
    assert len(dead_letters(connection)) == 2
    bodies = connection.execute("SELECT body FROM onefold.dead_letters ORDER BY id").fetchall()
    assert bodies == [(b'{"id": "x"',), (b"\x00\xff",)]
    assert outcomes(connection) == {"applied": 2, "rejected": 2}
    assert len(desk.finished) == 4


def failing_for(*bad: str) -> Callable[[Message, Transaction], None]:
    def effect(message: Message, tx: Transaction) -> None:
        deposit(message, tx)
        if message.id in bad:
            raise ValueError("told to fail")

    return effect


def test_a_poison_message_is_isolated_and_its_followers_wait(open_desk: Open, connection: Connection) -> None:
    """C80, C81, H4"""
    desk = open_desk(deposits(failing_for("x-2")))
    messages = [envelope("xy"[number % 2], number // 2 + 1) for number in range(10)]
    desk.process(*messages)
    assert balances(connection) == {"x": 1, "y": 5}
    assert dead_letters(connection) == [("x", 2, "dead_lettered", "ValueError: told to fail")]
    assert parked(connection) == [("x", 3), ("x", 4), ("x", 5)]
    assert outcomes(connection) == {"applied": 6, "retried": 2, "dead_lettered": 1, "parked": 3}
    assert connection.execute("SELECT attempts FROM onefold.dead_letters").fetchone() == (3,)
    assert len(desk.finished) == 10


def test_a_poison_message_does_not_make_the_others_run_twice(open_desk: Open, connection: Connection) -> None:
    """What others did in the transaction is rolled back, and what they did outside of it is seen at most twice more."""
    runs: dict[str, int] = {}

    def effect(message: Message, tx: Transaction) -> None:
        runs[message.id] = runs.get(message.id, 0) + 1
        failing_for("p-1")(message, tx)

    desk = open_desk(deposits(effect))
    desk.process(
        *(envelope(f"a{number}") for number in range(50)),
        envelope("p"),
        *(envelope(f"b{number}") for number in range(50)),
    )
    assert len(balances(connection)) == 100
    assert runs.pop("p-1") <= 5
    assert max(runs.values()) <= 2


def test_the_waits_between_tries_grow_and_vary(open_desk: Open) -> None:
    """C82"""
    spans: list[list[float]] = []
    for name in ("one", "two"):
        desk = open_desk(
            deposits(failing_for("a-1"), name=name, retry=Retry(attempts=8, first=0.1, longest=3.0))
        )
        desk.process(envelope())
        spans.append(desk.retried)
    for delays in spans:
        assert len(delays) == 7
        assert all(0 <= delay <= 3.0 for delay in delays)
        assert delays[0] <= 0.1 < sum(delays[4:])
    assert spans[0] != spans[1]


def test_tries_are_counted_across_processes(open_desk: Open, connection: Connection) -> None:
    """C82"""
    tries = 0

    def effect(message: Message, tx: Transaction) -> None:
        nonlocal tries
        tries += 1
        if tries == 3:
            raise KeyboardInterrupt
        raise ValueError("told to fail")

    consumer = deposits(effect)
    first = open_desk(consumer)
    with pytest.raises(KeyboardInterrupt):
        first.process(envelope())
    first.close()
    assert open_desk(consumer).process(envelope()) == ["dead_lettered"]
    assert tries == 4


def test_a_refused_message_is_not_tried_again(open_desk: Open, connection: Connection) -> None:
    def effect(message: Message, tx: Transaction) -> None:
        deposit(message, tx)
        raise Rejected("no such account")

    desk = open_desk(deposits(effect))
    assert desk.process(envelope()) == ["rejected"]
    assert balances(connection) == {}
    assert dead_letters(connection) == [("a", 1, "rejected", "no such account")]
    assert desk.retried == []


def test_a_handler_that_ends_the_program_has_failed(open_desk: Open, connection: Connection) -> None:
    def effect(message: Message, tx: Transaction) -> None:
        if message.subject == "a":
            raise SystemExit(3)
        deposit(message, tx)

    desk = open_desk(deposits(effect))
    assert desk.process(envelope("a"), envelope("b")) == ["dead_lettered", "applied"]
    assert dead_letters(connection)[0][3] == "SystemExit: 3"


def test_a_swallowed_database_error_is_a_failure(open_desk: Open, connection: Connection) -> None:
    def effect(message: Message, tx: Transaction) -> None:
        deposit(message, tx)
        if message.subject == "a":
            with contextlib.suppress(psycopg.Error):
                tx.execute("SELECT 1 / 0")

    desk = open_desk(deposits(effect))
    assert desk.process(envelope("b"), envelope("a"), envelope("c")) == [
        "applied",
        "dead_lettered",
        "applied",
    ]
    assert balances(connection) == {"b": 1, "c": 1}


def test_an_error_in_a_savepoint_may_be_swallowed(open_desk: Open, connection: Connection) -> None:
    def effect(message: Message, tx: Transaction) -> None:
        try:
            with tx.savepoint():
                deposit(message, tx)
                tx.execute("SELECT 1 / 0")
        except psycopg.errors.DivisionByZero:
            deposit(message, tx)

    assert open_desk(deposits(effect)).process(envelope()) == ["applied"]
    assert balances(connection) == {"a": 1}


@pytest.mark.parametrize("how", ["commit", "rollback", "COMMIT", "-- so\n end", "Rollback AND CHAIN"])
def test_a_handler_that_ends_the_transaction_has_failed(
    open_desk: Open, connection: Connection, how: str
) -> None:
    def effect(message: Message, tx: Transaction) -> None:
        if message.subject == "a":
            if how not in ("commit", "rollback"):
                tx.execute(how.encode())
            else:
                getattr(tx.connection, how)()
        else:
            deposit(message, tx)

    desk = open_desk(deposits(effect))
    assert desk.process(envelope("a"), envelope("b")) == ["dead_lettered", "applied"]
    assert balances(connection) == {"b": 1}


def test_savepoints_may_be_written_out(open_desk: Open, connection: Connection) -> None:
    def effect(message: Message, tx: Transaction) -> None:
        tx.execute("SAVEPOINT one")
        deposit(message, tx)
        tx.execute("ROLLBACK TO SAVEPOINT one")
        tx.execute("rollback work to one")
        tx.execute("RELEASE one")
        deposit(message, tx)

    assert open_desk(deposits(effect)).process(envelope()) == ["applied"]
    assert balances(connection) == {"a": 1}


def test_the_transaction_ends_with_its_message(open_desk: Open) -> None:
    kept: list[Transaction] = []
    desk = open_desk(deposits(lambda message, tx: kept.append(tx)))
    # Without an annotation the function gets the message itself.
    assert desk.process(envelope()) == ["applied"]
    with pytest.raises(TransactionEnded):
        kept[0].execute("SELECT 1")


def test_an_async_function_is_awaited(open_desk: Open, connection: Connection) -> None:
    async def effect(message: Message, tx: AsyncTransaction) -> None:
        import asyncio

        await asyncio.sleep(0)
        values = {"account": message.subject, "amount": message.data["amount"], "version": 1}
        await tx.execute(DEPOSIT, values)
        if message.subject == "bad":
            raise ValueError("told to fail")

    desk = open_desk(deposits(effect))
    found = desk.process(envelope("a"), envelope("bad"), envelope("a"), envelope("c"))
    assert found == ["applied", "dead_lettered", "duplicate", "applied"]
    assert balances(connection) == {"a": 1, "c": 1}


def test_an_unknown_type_is_refused_or_passed_over(open_desk: Open, connection: Connection) -> None:
    """A type that is passed over moves the version of its sequence, so that what follows need not wait."""
    seen: list[int] = []

    def effect(event: Shipped, tx: Transaction) -> None:
        seen.append(event.meta.version)

    options: dict[str, Any] = {
        "ordering": "delta",
        "version": "sequence",
        "registry": kinds,
        "effect": effect,
    }
    messages = [order_message("1", 1, Placed), order_message("1", 2, Shipped)]
    assert open_desk(Consumer("passes", unknown="pass", **options)).process(*messages) == [
        "applied",
        "applied",
    ]
    assert seen == [2]
    assert open_desk(Consumer("rejects", **options)).process(*messages) == ["rejected", "parked"]
    assert "found type 'o.placed'" in dead_letters(connection)[0][3]


def test_a_command_side_appends_once(open_desk: Open, connection: Connection) -> None:
    desk = open_desk(deposits(count, registry=counted))
    desk.process(*(envelope("a", version) for version in (2, 1, 3, 1, 2)))
    rows = connection.execute(
        "SELECT stream, version, metadata FROM onefold.events ORDER BY position"
    ).fetchall()
    assert [row[:2] for row in rows] == [("tally/a", version) for version in (1, 2, 3)]
    assert [row[2]["causation"] for row in rows] == ["a-1", "a-2", "a-3"]
    assert {row[2]["consumer"] for row in rows} == {"deposits"}


def test_a_rival_writer_of_the_same_stream_is_given_way_to(
    open_desk: Open, connection: Connection, bank: str
) -> None:
    rival = open_desk(deposits(count, name="rival", registry=counted))
    runs = 0

    def effect(message: Message, tx: Transaction) -> None:
        nonlocal runs
        runs += 1
        tally = tx.find(Tally, "a") or Tally.new("a")
        tally.add(message.data["amount"])
        if runs == 1:
            rival.process(envelope("a", 1, 100))
        tx.save(tally)

    desk = open_desk(deposits(effect, registry=counted))
    assert desk.process(envelope("a", 1, 5)) == ["applied"]
    assert runs == 2
    rows = connection.execute(
        "SELECT version, data ->> 'amount' FROM onefold.events ORDER BY version"
    ).fetchall()
    assert rows == [(1, "100"), (2, "5")]
    assert desk.retried == []
    assert outcomes(connection) == {"applied": 1}


def test_a_rival_that_never_gives_way_counts_as_a_failure(
    open_desk: Open, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onefold.infrastructure.consuming.processor.CONFLICTS", 2)

    def effect(message: Message, tx: Transaction) -> None:
        raise VersionConflict("tally/a", 0, 1)

    desk = open_desk(deposits(effect))
    assert desk.process(envelope("a"), envelope("b")) == ["dead_lettered", "dead_lettered"]
    assert len(dead_letters(connection)) == 2


def test_what_a_deadlock_rolled_back_is_run_again(open_desk: Open, connection: Connection) -> None:
    connection.execute("INSERT INTO accounts VALUES ('x', 0, 0, 0, true), ('y', 0, 0, 0, true)")
    gate = threading.Barrier(2, timeout=10)
    runs = [0, 0]

    def effect_of(number: int) -> Callable[[Message, Transaction], None]:
        names = ("x", "y") if number else ("y", "x")

        def effect(message: Message, tx: Transaction) -> None:
            runs[number] += 1
            for name in names:
                tx.execute("UPDATE accounts SET balance = balance + 1 WHERE account = %s", (name,))
                if runs[number] == 1 and name == names[0]:
                    gate.wait()

        return effect

    desks = [open_desk(deposits(effect_of(number), name=f"c{number}")) for number in range(2)]
    # The one that looks first is the one that is rolled back.
    desks[0].connection.execute("SET deadlock_timeout = '50ms'")
    desks[1].connection.execute("SET deadlock_timeout = '10s'")
    run([lambda desk=desk: desk.process(envelope()) for desk in desks])
    assert balances(connection) == {"x": 2, "y": 2}
    assert runs == [2, 1]
    assert [desk.retried for desk in desks] == [[], []]


def test_two_equal_fingerprints_of_a_time_ordered_ledger(open_desk: Open, connection: Connection) -> None:
    desk = open_desk(deposits(ledger="time", key="idempotencykey"))
    keys = [uuid7(), uuid7()]
    first, second = (envelope(version=number + 1, idempotencykey=key) for number, key in enumerate(keys))
    assert desk.process(second, first, second) == ["applied", "applied", "duplicate"]
    assert desk.process(first, envelope(version=1, amount=7, idempotencykey=keys[0])) == [
        "duplicate",
        "key_conflict",
    ]
    assert balances(connection) == {"a": 2}


def test_other_keys_than_uuid7_are_refused_by_a_time_ordered_ledger(
    open_desk: Open, connection: Connection
) -> None:
    desk = open_desk(deposits(ledger="time", key="idempotencykey"))
    desk.process(
        envelope(), envelope("b", idempotencykey=str(uuid4())), envelope("c", idempotencykey=uuid7())
    )
    assert balances(connection) == {"c": 1}
    assert [letter[2] for letter in dead_letters(connection)] == ["rejected", "rejected"]


@pytest.mark.parametrize("mode", ["any", "time"])
def test_what_is_older_than_the_ledger_is_expired_and_never_applied(
    open_desk: Open, connection: Connection, mode: Any
) -> None:
    """C92, C93"""
    options: dict[str, Any] = {"ledger": mode, "retention": Retention(ledger=40 * 86_400)}
    desk = open_desk(deposits(ordering="unordered", key="idempotencykey", **options))
    now = datetime.now(UTC)
    known, unknown, kept = (envelope(name, time=now.isoformat(), idempotencykey=uuid7(now)) for name in "abc")
    assert desk.process(known, kept) == ["applied", "applied"]
    for days in range(0, 140, 2):
        maintain(connection, now=now + timedelta(days=days))
    later = now + timedelta(days=139)
    desk = open_desk(deposits(ordering="unordered", key="idempotencykey", **options))
    fresh = envelope("d", time=later.isoformat(), idempotencykey=uuid7(later))
    assert desk.process(known, unknown) == ["expired", "expired"]
    # By this clock its time has not come.
    desk = open_desk(deposits(ordering="unordered", key="idempotencykey", age="received", **options))
    assert desk.process(fresh) == ["applied"]
    assert balances(connection) == {"a": 1, "c": 1, "d": 1}
    assert [letter[2] for letter in dead_letters(connection)] == ["expired", "expired"]
    assert desk.process(fresh) == ["duplicate"]


def test_a_redelivery_in_another_generation_is_a_duplicate(open_desk: Open, connection: Connection) -> None:
    """C93"""
    options: dict[str, Any] = {"retention": Retention(ledger=40 * 86_400)}
    desk = open_desk(deposits(ordering="unordered", **options))
    now = datetime.now(UTC)
    assert desk.process(envelope()) == ["applied"]
    made = [maintain(connection, now=now + timedelta(days=days)).sealed for days in range(0, 32, 2)]
    assert any(made)
    assert desk.process(envelope()) == ["duplicate"]
    assert balances(connection) == {"a": 1}


def run(works: list[Callable[[], None]]) -> None:
    failures: list[BaseException] = []

    def guard(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=guard, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not failures


def test_a_topic_that_is_joined_in_the_middle_goes_on_from_what_is_seen_first(
    open_desk: Open, connection: Connection
) -> None:
    desk = open_desk(deposits(begins="first-seen"))
    assert desk.process(envelope("a", 8), envelope("a", 7)) == ["applied", "applied"]
    assert desk.process(envelope("a", 10), envelope("a", 6)) == ["parked", "stale"]
    assert desk.process(envelope("a", 9)) == ["applied"]
    assert balances(connection) == {"a": 4}

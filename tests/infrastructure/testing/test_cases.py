"""The cases find consumers that are wrong, say why, and have nothing to say of those that are right."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onefold import Consumer, Message, Retry, Transaction
from onefold.infrastructure.testing import faults
from onefold.infrastructure.testing.cases import CASES, Proof
from onefold.infrastructure.testing.errors import NotExactlyOnce, ProvesNothing
from onefold.infrastructure.testing.faults import die, in_child, nothing
from onefold.infrastructure.testing.messages import deliveries
from onefold.infrastructure.testing.orders import first_of_each, orders
from onefold.infrastructure.testing.state import Sight

from .consumers import DEPOSITS, IN_ORDER, RIGHT, TABLES, UNORDERED, WRONG, Mails, Subject, add

WORST = ["concurrently", "failing_first", "killed_before_commit", "any_order"]


@pytest.fixture
def bank(onefold_database: str) -> str:
    with psycopg.connect(onefold_database, autocommit=True) as connection:
        connection.execute(TABLES)
    return onefold_database


def proof_of(subject: Subject, **more: Any) -> Proof:
    given = {"own": None, "reset": nothing, "tables": (), "ignored": ()} | subject.options | more
    ordered = subject.consumer.rule.ordering != "unordered"
    sight = Sight(given["own"], given["tables"], frozenset(given["ignored"]), ordered)
    return Proof(subject.consumer, deliveries(subject.messages), sight, given["reset"], orders=5)


@pytest.mark.parametrize(
    ("name", "cases"),
    [
        *((name, list(CASES)) for name in ("delta", "unordered entries", "fold")),
        *((name, WORST) for name in RIGHT if name not in ("delta", "unordered entries", "fold")),
    ],
)
def test_a_consumer_that_is_right_passes_every_case(name: str, cases: list[str], bank: str) -> None:
    proof = proof_of(RIGHT[name])
    for case in cases:
        proof.run(case, bank)


@pytest.mark.parametrize(("name", "case"), [(name, case) for name in WRONG for case in WRONG[name][1]])
def test_a_consumer_that_is_wrong_is_found_and_told_what_is_wrong(name: str, case: str, bank: str) -> None:
    subject, found = WRONG[name]
    with pytest.raises(NotExactlyOnce) as caught:
        proof_of(subject).run(case, bank)
    assert found[case] in str(caught.value)
    assert f"consumer {subject.consumer.name} is not exactly once: " in str(caught.value)


@pytest.mark.parametrize("case", ["failing_first", "connection_lost", "killed_before_commit"])
def test_a_mail_that_is_sent_again_is_found_and_one_whose_receiver_knows_it_is_not(
    case: str, bank: str, tmp_path: Path
) -> None:
    mails = Mails(tmp_path / "mails")
    more: dict[str, Any] = {"own": mails.sent, "reset": mails.reset}
    proof_of(Subject(Consumer("mails", effect=mails.send_once, **UNORDERED)), **more).run(case, bank)
    with pytest.raises(NotExactlyOnce, match="such as a call or a mail, needs a key of its own"):
        proof_of(Subject(Consumer("mails", effect=mails.send, **UNORDERED)), **more).run(case, bank)


def test_the_difference_is_told_row_by_row(bank: str) -> None:
    subject, _ = WRONG["writes over a connection of its own"]
    with pytest.raises(NotExactlyOnce) as caught:
        proof_of(subject, tables=["balances"]).run("failing_first", bank)
    _, table, *lines, _ = str(caught.value).splitlines()
    assert table.endswith(".balances")
    assert lines == [
        "  expected  account=a balance=13",
        "  expected  account=b balance=27",
        "  found     account=a balance=26",
        "  found     account=b balance=54",
    ]


def test_what_is_left_undone_is_told(bank: str) -> None:
    def refuse(message: Message, tx: Transaction) -> None:
        row = tx.execute("SELECT max(balance) FROM balances").fetchone()
        assert row is not None
        if message.subject == "b" and row[0] is None:
            raise ValueError("b came first")
        add(message, tx)

    consumer = Consumer("picky", effect=refuse, on_gap="reject", retry=Retry(attempts=1), **IN_ORDER)
    with pytest.raises(
        NotExactlyOnce, match=r"message 3 is a dead letter, dead_lettered: ValueError: b came first"
    ):
        proof_of(Subject(consumer)).run("any_order", bank)


def test_messages_without_an_effect_prove_nothing(bank: str) -> None:
    with pytest.raises(ProvesNothing, match="changed nothing that the test sees"):
        proof_of(Subject(Consumer("idle", effect=lambda message, tx: None, **UNORDERED))).run("twice", bank)


def test_messages_that_cannot_be_applied_are_told_with_what_was_raised(bank: str) -> None:
    def stumble(message: Message, tx: Transaction) -> None:
        raise ZeroDivisionError("nothing to divide by")

    with pytest.raises(ProvesNothing) as caught:
        proof_of(Subject(Consumer("stumbles", effect=stumble, **UNORDERED))).run("twice", bank)
    assert "message 1 is a dead letter, dead_lettered: ZeroDivisionError: nothing to divide by" in str(
        caught.value
    )
    assert 'in stumble\n    raise ZeroDivisionError("nothing to divide by")' in str(caught.value)


def test_messages_with_a_gap_are_told(bank: str) -> None:
    subject = Subject(Consumer("adds", effect=add, **IN_ORDER), [DEPOSITS[0], DEPOSITS[3]])
    with pytest.raises(ProvesNothing, match="message 2 waits: "):
        proof_of(subject).run("twice", bank)


def test_a_consumer_is_not_blamed_for_a_state_that_is_another_each_time(bank: str) -> None:
    def stamp(message: Message, tx: Transaction) -> None:
        tx.execute("INSERT INTO entries VALUES (DEFAULT, %s, %s)", (message.subject, time.time_ns()))

    subject = Subject(Consumer("stamps", effect=stamp, **UNORDERED))
    with pytest.raises(ProvesNothing, match=r"found another one the second time(.|\n)*table \w+\.entries"):
        proof_of(subject).run("twice", bank)
    proof_of(subject, ignored=["amount"]).run("twice", bank)


def test_a_table_that_is_not_there_is_told(bank: str) -> None:
    with pytest.raises(
        ProvesNothing, match=r'expected the tables balance, found: relation "balance" does not exist'
    ):
        proof_of(RIGHT["delta"], tables=["balance"]).run("twice", bank)


def test_a_database_in_use_is_told(bank: str) -> None:
    with psycopg.connect(bank), pytest.raises(ProvesNothing, match="close the connections"):
        proof_of(RIGHT["delta"]).run("twice", bank)


def test_a_run_has_the_variable_of_the_database_for_itself(
    bank: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEFOLD_DATABASE_URL", "postgresql://mine/own")
    with proof_of(RIGHT["delta"]).ground(bank) as url:
        assert os.environ["ONEFOLD_DATABASE_URL"] == url != bank
    assert os.environ["ONEFOLD_DATABASE_URL"] == "postgresql://mine/own"


def test_orders_are_the_same_for_one_seed_and_simple_ones_come_first() -> None:
    consumer, messages = RIGHT["delta"].consumer, deliveries(DEPOSITS)
    found = list(orders(consumer, messages, 6, 0))
    assert found == list(orders(consumer, messages, 6, 0)) != list(orders(consumer, messages, 6, 1))
    assert len(found) == 6
    assert found[0] == ([4, 3, 2, 1, 0], 1)
    assert sum(place != turn for turn, place in enumerate(found[1][0])) == 2
    assert all(set(order) == set(range(5)) for order, _ in found)


@pytest.mark.parametrize("number", [1, 2, 3, 10])
def test_there_are_as_many_orders_as_asked_for_of_one_message_too(number: int) -> None:
    consumer = RIGHT["delta"].consumer
    for messages in (deliveries(DEPOSITS[:1]), deliveries(DEPOSITS)):
        assert len(list(orders(consumer, messages, number, 0))) == number


def test_a_sequence_keeps_its_order_where_nothing_may_come_early() -> None:
    consumer = RIGHT["delta that refuses what is early"].consumer
    for order, _ in orders(consumer, deliveries(DEPOSITS), 10, 0):
        first = list(dict.fromkeys(order))
        assert [place for place in first if place in (0, 1, 3)] == [0, 1, 3]
        assert [place for place in first if place in (2, 4)] == [2, 4]


def test_what_begins_a_sequence_is_known() -> None:
    messages = deliveries(DEPOSITS)
    assert first_of_each(RIGHT["delta"].consumer, messages) == [0, 2]
    assert first_of_each(RIGHT["unordered sum"].consumer, messages) == [0]


def test_a_copy_of_the_process_that_fails_is_told() -> None:
    in_child(nothing)
    in_child(die)
    with pytest.raises(ProvesNothing, match="ZeroDivisionError"):
        in_child(lambda: 1 / 0)


def test_a_copy_of_the_process_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "PATIENCE", 0.1)
    with pytest.raises(ProvesNothing, match=r"processes=False"):
        in_child(lambda: time.sleep(60))

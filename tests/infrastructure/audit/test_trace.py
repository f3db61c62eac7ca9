"""Traces lead from a cause to all that came of it, through consumers and messages, and back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from psycopg import Connection

from onefold import App, Consumer, Message, Money, Rejected, Transaction, connect, publish
from onefold.domain.account import Account
from onefold.infrastructure.announcing import announcer
from onefold.infrastructure.audit.indexes import make_indexes
from onefold.infrastructure.audit.trace import NothingTraced, trace
from onefold.infrastructure.brokers.envelope import write
from onefold.infrastructure.consuming.consumption import Consumption
from onefold.testing import MemoryBroker

from .conftest import AT, Onefold


def handled(message: Message, tx: Transaction) -> None:
    account = tx.find(Account, "7") or Account.open("7", "EUR", at=AT)
    if message.data["amount"] < 0:
        raise Rejected("no such amount")
    account.deposit(Money.of(message.data["amount"], "EUR"), at=AT)
    tx.save(account)
    tx.publish("payment.booked", {"amount": message.data["amount"]}, to="ledger")


payments = Consumer(
    "payments", ordering="delta", version="sequence", sequence="subject", effect=handled, age="received"
)
app = App(
    aggregates=[Account],
    consumers=[payments],
    publications=[publish(Account.Opened, to="bank", type="bank.opened")],
)


def message(number: int, amount: int, **extensions: Any) -> Message:
    return Message(
        f"m{number}", "/bank", "payment.received", {"amount": amount}, "a", AT,
        extensions={"sequence": number, "correlationid": "c-1", **extensions},
    )  # fmt: skip


@pytest.fixture
def consumed(database_url: str) -> str:
    """Three messages: one applied, one refused, one that waits for the refused one."""
    with connect(app, database_url):
        broker = MemoryBroker("bank")
        for each in (message(1, 5, causationid="m0"), message(2, -1), message(4, 5)):
            broker.publish_all([write(each)])
        Consumption(
            database_url, payments, "memory://bank", once=True, idle=0.2, announcer=announcer(app)
        ).run()
    return database_url


def kinds(found: Any) -> list[tuple[int, str, str]]:
    return [
        (
            twig.depth,
            twig.node.kind if twig.node else "missing",
            getattr(twig.node and twig.node.content, "type", twig.id),
        )
        for twig in found.twigs
    ]


@pytest.mark.parametrize("indexed", [False, True])
def test_a_message_leads_to_its_events_and_messages(
    consumed: str, connection: Connection, indexed: bool
) -> None:
    if indexed:
        make_indexes(connection)
    expected = [
        (0, "missing", "m1"),
        (1, "event", "account.opened"),
        (2, "message", "bank.opened"),
        (1, "event", "account.deposited"),
        (1, "message", "payment.booked"),
    ]
    by_correlation = trace(connection, "c-1")
    assert kinds(by_correlation) == expected
    assert by_correlation.complete
    assert kinds(trace(connection, "m1")) == expected
    for twig in by_correlation.twigs[1:]:
        assert kinds(trace(connection, twig.id)) == expected


def test_a_message_that_was_not_applied_says_where_it_is(consumed: str, connection: Connection) -> None:
    (refused,) = trace(connection, "m2").twigs
    assert refused.node is not None
    assert (refused.node.kind, refused.node.content.reason) == ("dead letter", "no such amount")
    (parked,) = trace(connection, "m4").twigs
    assert parked.node is not None
    assert (parked.node.kind, parked.node.content.consumer) == ("parked", "payments")


def test_the_command_draws_the_tree(consumed: str, onefold: Onefold) -> None:
    said = onefold("trace", "c-1")
    lines = [" ".join(line.split()[:4]) for line in said.out.splitlines()]
    assert lines == [
        "m1 not in this",
        "├─ account/7 v1 account.opened",
        "│ └─ message to",
        "├─ account/7 v2 account.deposited",
        "└─ message to ledger",
        "",
        "2 events, 1 cause",
    ]
    assert "consumer payments, correlation c-1" in said.out
    document = onefold("trace", "c-1", "--json").document
    assert document["complete"] is True
    opened = document["tree"][1]
    assert (opened["depth"], opened["kind"], opened["cause"], opened["event"]["stream"]) == (
        1,
        "event",
        "m1",
        "account/7",
    )
    assert document["tree"][4]["message"]["channel"] == "ledger"
    assert "dead letter 1 at payments  payment.received  no such amount" in onefold("trace", "m2").out
    assert "parked at payments" in onefold("trace", "m4").out


def test_cycles_and_long_chains_are_shown(connection: Connection, onefold: Onefold) -> None:
    insert = (
        "INSERT INTO onefold.events (version, event_id, stream, type, data, metadata)"
        " VALUES (1, %s, %s, 'thing.made', '{}', %s)"
    )
    ids = [f"00000000-0000-7000-8000-{number:012}" for number in range(1_200)]
    for number, each in enumerate(ids):
        cause = ids[number - 1] if number else ids[2]
        metadata = {"causation": cause, "correlation": 7} if number < 3 else {"causation": cause}
        connection.execute(insert, (each, f"thing/{number}", json.dumps(metadata)))
    found = trace(connection, ids[600])
    assert [twig.note for twig in found.twigs].count("cycle") == 1
    assert {twig.depth for twig in found.twigs} == set(range(1_200))
    assert len(trace(connection, "7").twigs) == 1_201
    assert "again: it is a cause of its own cause" in onefold("trace", "7").out


def test_nothing_is_a_problem(onefold: Onefold, connection: Connection) -> None:
    said = onefold("trace", "c-404")
    assert (said.code, said.out) == (1, "")
    assert "expected the id of an event or message, or a correlation, found 'c-404'" in said.err
    with pytest.raises(NothingTraced):
        trace(connection, "")

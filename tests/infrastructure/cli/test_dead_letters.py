"""Dead letters and parked messages can be looked at, tried again in their order, and given up."""

from __future__ import annotations

import getpass
import json
from pathlib import Path
from typing import Any

import pytest
from psycopg import Connection

from onefold.infrastructure.brokers.memory import MemoryBroker

from .conftest import Onefold, balances, payment, written

SECRET = "SECRET-4711"


@pytest.fixture
def failed(onefold: Onefold, paying: Path) -> Path:
    """Account a: version 1 applied, 2 a dead letter, 3 and 4 parked behind it; b refused; and a line without JSON."""
    lines = [
        payment(1),
        payment(2, switch=True, note=SECRET),
        payment(3, note=SECRET),
        payment(4),
        payment(9, 1, account="b", refuse=True),
        f"{SECRET}\n",
    ]
    assert onefold("consume", written(paying, *lines), "--consumer", "payments").code == 1
    return paying


def letters(onefold: Onefold, *arguments: str) -> Any:
    return onefold("dead-letters", "list", "--json", *arguments).document["dead_letters"]


def test_they_are_listed_in_their_order_without_what_is_in_them(onefold: Onefold, failed: Path) -> None:
    said = onefold("dead-letters", "list", "--json")
    assert said.code == 0
    assert said.document["complete"]
    found = said.document["dead_letters"]
    assert [(each["sequence"], each["outcome"], each["behind"]) for each in found] == [
        (None, "rejected", 0),
        ("a", "dead_lettered", 2),
        ("b", "rejected", 0),
    ]
    assert found[1]["cause"] == "LookupError: the switch is off"
    assert (found[1]["attempts"], found[1]["version"], found[1]["key_text"]) == (2, 2, "p2")
    shown = onefold("dead-letters", "list", COLUMNS="200")
    assert "LookupError: the switch is off" in shown.out
    assert shown.out.rstrip().endswith("3 dead letters")
    for text in (said.out, shown.out):
        assert SECRET not in text
    assert [each["sequence"] for each in letters(onefold, "--sequence", "a")] == ["a"]
    assert len(letters(onefold, "--consumer", "payments")) == 3
    assert letters(onefold, "--consumer", "typed") == []


def test_one_is_shown_with_its_headers_and_its_body(onefold: Onefold, failed: Path) -> None:
    broken, late, _ = letters(onefold)
    said = onefold("dead-letters", "show", str(late["id"]), "--json")
    assert said.code == 0
    assert said.document["cause"] == "LookupError: the switch is off"
    assert said.document["headers"] == {"content-type": "application/cloudevents+json"}
    assert json.loads(said.document["body"])["data"]["note"] == SECRET
    shown = onefold("dead-letters", "show", str(late["id"]))
    assert SECRET in shown.out
    assert "content-type" in shown.out
    assert "messages.jsonl:2" in shown.out
    assert onefold("dead-letters", "show", str(broken["id"]), "--json").document["body"] == SECRET


def test_a_body_that_is_no_text_is_shown_as_base64(onefold: Onefold, paying: Path) -> None:
    broker = MemoryBroker("binary")
    broker.publish(b"\xff\x00\x1b[31m")
    onefold("consume", "memory://binary", "--consumer", "payments", "--once", "--idle", "0.3")
    (letter,) = letters(onefold)
    said = onefold("dead-letters", "show", str(letter["id"]), "--json")
    assert said.document["body_base64"] == "/wAbWzMxbQ=="
    assert "body" not in said.document
    shown = onefold("dead-letters", "show", str(letter["id"]))
    assert "/wAbWzMxbQ==" in shown.out
    assert "\x1b" not in shown.out


def test_one_that_is_not_there_is_a_problem(onefold: Onefold, failed: Path) -> None:
    high = "99999999999999999999"
    for command in (
        ("show", "99"),
        ("retry", "99", "98"),
        ("discard", "99"),
        ("show", high),
        ("retry", high),
        ("discard", high, "99"),
        ("show", "9223372036854775899"),
    ):
        said = onefold("dead-letters", *command)
        assert (said.code, said.out) == (1, "")
        assert "expected numbers of dead letters, found" in said.err
        assert "99" in said.err


def test_what_was_mended_is_applied_with_all_that_waited_behind_it(
    onefold: Onefold, failed: Path, connection: Connection
) -> None:
    said = onefold("dead-letters", "retry", "--sequence", "a", "--json")
    assert said.code == 1
    (tried,) = said.document["retried"]
    assert (tried["became"], tried["resolved"]) == ("dead_lettered", False)
    assert balances(connection) == {"a": 1}
    connection.execute("INSERT INTO switch DEFAULT VALUES")
    said = onefold("dead-letters", "retry", "--sequence", "a", "--json", "--by", "ada")
    assert said.code == 0, said.err
    assert said.document["retried"] == [{"id": tried["id"], "became": "applied", "resolved": True, "why": ""}]
    assert balances(connection) == {"a": 10}
    assert letters(onefold, "--sequence", "a") == []
    (kept,) = letters(onefold, "--sequence", "a", "--resolved")
    assert (kept["resolution"], kept["resolved_by"]) == ("applied", "ada")
    assert onefold("parked", "list", "--json").document["parked"] == []


def test_each_is_told_what_became_of_it(onefold: Onefold, failed: Path, connection: Connection) -> None:
    connection.execute("INSERT INTO switch DEFAULT VALUES")
    said = onefold("dead-letters", "retry", "--all")
    assert said.code == 1
    text = " ".join(said.out.split())
    assert "applied" in text
    assert "rejected: we do not take it" in text
    assert "1 dead letter resolved, 2 left" in text
    assert SECRET not in said.out + said.err
    again = onefold("dead-letters", "retry", "--consumer", "typed")
    assert (again.code, again.out.strip()) == (0, "there are none")


def test_a_key_conflict_holds_nobody_up(onefold: Onefold, failed: Path, connection: Connection) -> None:
    other = json.dumps({**json.loads(payment(1, amount=500)), "id": "m1-again"}) + "\n"
    onefold("consume", written(failed, other), "--consumer", "payments")
    conflict, late = letters(onefold, "--sequence", "a")
    assert (conflict["outcome"], conflict["version"], conflict["behind"]) == ("key_conflict", 1, 0)
    assert (late["version"], late["behind"]) == (2, 2)
    connection.execute("INSERT INTO switch DEFAULT VALUES")
    said = onefold("dead-letters", "retry", "--all", "--json")
    assert said.code == 1
    became = {each["id"]: each["became"] for each in said.document["retried"]}
    assert (became[conflict["id"]], became[late["id"]]) == ("key_conflict", "applied")
    assert balances(connection) == {"a": 10}


def test_what_is_left_is_all_that_is_open_of_those_consumers(
    onefold: Onefold, failed: Path, connection: Connection
) -> None:
    connection.execute("INSERT INTO switch DEFAULT VALUES")
    onefold("consume", written(failed, payment(30, refuse=True)), "--consumer", "typed")
    assert len(letters(onefold)) == 4
    late = letters(onefold, "--sequence", "a")[0]["id"]
    said = onefold("dead-letters", "retry", str(late))
    assert said.code == 0
    assert said.out.splitlines()[-1] == "1 dead letter resolved, 2 left"
    again = onefold("dead-letters", "retry", str(late))
    assert again.code == 0
    assert "gone: somebody else has dealt with it" in again.out
    assert again.out.splitlines()[-1] == "0 dead letters resolved, 2 left"
    assert (
        onefold("dead-letters", "retry", "--sequence", "b").out.splitlines()[-1].endswith("resolved, 1 left")
    )
    assert onefold("dead-letters", "retry", "--all").out.splitlines()[-1].endswith("resolved, 3 left")


def test_what_is_given_up_lets_those_behind_it_go_on(
    onefold: Onefold, failed: Path, connection: Connection
) -> None:
    said = onefold("dead-letters", "discard", "--sequence", "a", "--json")
    assert said.code == 0, said.err
    assert len(said.document["discarded"]) == 1
    (kept,) = letters(onefold, "--sequence", "a", "--resolved")
    assert (kept["resolution"], kept["resolved_by"]) == ("discarded", getpass.getuser())
    url = written(failed, payment(50, 1, account="c"))
    assert onefold("consume", url, "--consumer", "payments").code == 0
    assert balances(connection) == {"a": 8, "c": 50}
    again = onefold("dead-letters", "discard", str(kept["id"]))
    assert again.code == 1
    assert "expected the number of a dead letter that is open" in " ".join(again.out.split())


def test_a_name_is_asked_for(onefold: Onefold, failed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert onefold("dead-letters", "discard", "--all", "--by", " ").code == 2

    def nobody() -> str:
        raise KeyError("uid")

    monkeypatch.setattr("getpass.getuser", nobody)
    said = onefold("dead-letters", "discard", "--all")
    assert said.code == 2
    assert "say who decides with --by" in said.err
    assert len(letters(onefold)) == 3


def test_retrying_needs_the_application_that_has_the_consumer(onefold: Onefold, failed: Path) -> None:
    said = onefold("dead-letters", "retry", "--all", ONEFOLD_APP="onefold.projections.shop:app")
    assert said.code == 2
    assert "expected consumer 'payments', found an application without consumers" in said.err


def test_a_parked_message_says_what_it_waits_for_now(
    onefold: Onefold, failed: Path, connection: Connection
) -> None:
    def reasons() -> list[str]:
        found = onefold("parked", "list", "--json", "--sequence", "a").document["parked"]
        return [each["reason"] for each in found]

    onefold("consume", written(failed, payment(7)), "--consumer", "payments")
    assert reasons() == ["waits for version 2"] * 3
    connection.execute("INSERT INTO switch DEFAULT VALUES")
    assert onefold("dead-letters", "retry", "--sequence", "a").code == 0
    assert reasons() == ["waits for version 5"]
    connection.execute("UPDATE onefold.sequences SET version = 6 WHERE sequence = 'a'")
    assert reasons() == ["its turn has come"]


def test_what_is_piped_is_not_wrapped(onefold: Onefold, failed: Path) -> None:
    """Who reads it by a program, or with `less -S`, gets a line a thing."""
    said = onefold("dead-letters", "list", COLUMNS="")
    assert len(said.out.splitlines()) == 2 + 3 + 1
    assert "LookupError: the switch is off" in said.out
    said = onefold("status", COLUMNS="")
    assert "payments has 3 dead letters; see `onefold dead-letters list --consumer payments`" in said.out


def test_parked_messages_are_listed_in_order(onefold: Onefold, failed: Path) -> None:
    said = onefold("parked", "list", "--json")
    assert said.code == 0
    found = said.document["parked"]
    assert [(each["sequence"], each["version"], each["message_id"]) for each in found] == [
        ("a", 3, "m3"),
        ("a", 4, "m4"),
    ]
    assert [each["reason"] for each in found] == ["waits for version 2", "waits for version 2"]
    shown = onefold("parked", "list", "--consumer", "payments", "--sequence", "a")
    assert "2 messages parked" in shown.out
    assert SECRET not in said.out + shown.out
    assert "0 messages parked" in onefold("parked", "list", "--sequence", "b").out

"""`onefold relay`, and what other commands say of relays and of what brokers refused."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import psycopg
import pytest
from psycopg import Connection

from onefold import App, publish
from onefold.domain.account import Account
from onefold.infrastructure.brokers.memory import MemoryBroker
from onefold.infrastructure.postgres import outbox
from onefold.infrastructure.store import Store, connect
from onefold.projections.message import Message
from onefold.projections.publication import Posting

from .conftest import Commands, Onefold, deposits, until

PUBLICATIONS = """
import onefold
from onefold import publish
from onefold.domain.account import Account

accounts = publish(Account, to="accounts")
app = onefold.App(aggregates=[Account], publications=[accounts])
several = onefold.App(aggregates=[Account], publications=[accounts, publish(Account, to="log", via="log")])
nothing = onefold.App()
"""

SECRET = "SECRET-4711"


@pytest.fixture
def publishing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the application `publishing`, importable in this process too."""
    (tmp_path / "publishing.py").write_text(PUBLICATIONS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("ONEFOLD_APP", "publishing:app")
    yield tmp_path
    sys.modules.pop("publishing", None)


@pytest.fixture
def selling(database_url: str) -> Iterator[Store]:
    """A store whose accounts go out."""
    with connect(
        App(aggregates=[Account], publications=[publish(Account, to="accounts")]), database_url
    ) as opened:
        yield opened


def post(connection: Connection, *names: str, channel: str = "news", text: str = "") -> None:
    """Write messages with the first letter of their name as key."""
    with connection.transaction():
        outbox.write(
            connection,
            [Posting(channel, Message(name, "/test", "said", {"text": text}), name[0]) for name in names],
        )


def ids(path: Path) -> list[str]:
    return [json.loads(line)["id"] for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def refused(onefold: Onefold, connection: Connection) -> MemoryBroker:
    """A broker that has refused a2, so that a3 waits."""
    broker = MemoryBroker("narrow", largest=300)
    post(connection, "a1")
    post(connection, "a2", text=SECRET * 100)
    post(connection, "a3", "b1")
    said = onefold("relay", "news", "--to", "memory://narrow", "--once")
    assert said.code == 1
    assert "published 2 messages of news" in said.out
    assert "2 messages held back; see `onefold dead-letters list`" in said.out
    assert SECRET not in said.out + said.err
    return broker


def test_what_is_there_is_published_and_counted(
    onefold: Onefold, publishing: Path, selling: Store, tmp_path: Path
) -> None:
    deposits(selling, "7", 5, 6)
    out = tmp_path / "out.jsonl"
    said = onefold("relay", "--to", f"file:{out}", "--once", "--json")
    assert (said.code, said.document) == (
        0,
        {"relay": "accounts", "published": 3, "held": 0, "interrupted": False},
    )
    events = selling.log.load(Account.stream_of("7"))
    assert ids(out) == [str(event.meta.event_id) for event in events]
    said = onefold("relay", "accounts", "--to", f"file:{out}", "--once")
    assert (said.code, "published 0 messages of accounts" in said.out) == (0, True)
    assert len(ids(out)) == 3


def test_the_log_is_read_where_it_is_declared(
    onefold: Onefold, publishing: Path, selling: Store, tmp_path: Path
) -> None:
    deposits(selling, "7", 5, 6)
    table, log = tmp_path / "table.jsonl", tmp_path / "log.jsonl"
    onefold("relay", "accounts", "--to", f"file:{table}", "--once")
    onefold("relay", "log", "--to", f"file:{log}", "--once", "--app", "publishing:several", "--segments", "1")
    assert log.read_bytes() == table.read_bytes()
    relays = onefold("status", "--json").document["relays"]
    assert [(each["name"], each["reads"], each["published"]) for each in relays] == [
        ("accounts", "outbox", 3), ("log", "log", 3),
    ]  # fmt: skip


def test_wrong_use_is_told(onefold: Onefold, publishing: Path, connection: Connection) -> None:
    for arguments, code, words in (
        (("--once",), 2, "expected the broker's URL, found none; give it with --to"),
        (("news", "--resegment"), 2, "expected the new number of segments, found none"),
        (("news", "--to", "file:x", "--segments", "65"), 2, "less than or equal to 64"),
        (("news", "--to", "nonsense:x", "--once"), 2, "nonsense"),
        (("News", "--to", "file:x", "--once"), 2, "'News' must be lower-case"),
        (
            ("--to", "file:x", "--app", "publishing:several"),
            2,
            "accounts, log; name one: onefold relay CHANNEL",
        ),
        (("--to", "file:x", "--app", "publishing:nothing"), 2, "an application that declares none; name one"),
        (("news", "--resegment", "--segments", "3"), 1, "expected a relay that was begun, found none"),
    ):
        said = onefold("relay", *arguments, COLUMNS="300")
        assert (said.code, words in " ".join(said.err.replace("│", "").split())) == (code, True), said.err
    assert connection.execute("SELECT count(*) FROM onefold.relays").fetchone() == (0,)


def test_segments_change_when_they_are_told_to(
    onefold: Onefold, publishing: Path, connection: Connection, tmp_path: Path
) -> None:
    post(connection, "a1", "b1")
    to = f"file:{tmp_path / 'out.jsonl'}"
    onefold("relay", "news", "--to", to, "--once", "--segments", "2")
    said = onefold("relay", "news", "--to", to, "--once", "--segments", "3")
    assert (said.code, "end its processes and change it with --resegment" in " ".join(said.err.split())) == (
        1,
        True,
    )
    said = onefold("relay", "news", "--resegment", "--segments", "3")
    assert (said.code, "relay news has 3 segments, from position 2" in said.out) == (0, True)
    said = onefold("relay", "news", "--resegment", "--segments", "1", "--json")
    assert said.document == {"relay": "news", "segments": 1, "position": 2}


def test_a_new_one_may_begin_behind_the_last(
    onefold: Onefold, publishing: Path, connection: Connection, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    post(connection, "a1")
    onefold("relay", "news", "--to", f"file:{out}", "--once", "--from-head", "--name", "late")
    post(connection, "a2")
    onefold("relay", "news", "--to", f"file:{out}", "--once", "--name", "late")
    assert ids(out) == ["a2"]


def test_it_publishes_until_it_is_told_to_stop(
    start: Commands, publishing: Path, connection: Connection, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    command = start("relay", "news", "--to", f"file:{out}", "--json", "--metrics-port", "0", cwd=publishing)
    assert command.process.stderr is not None
    url = ""
    while not url:
        line = command.process.stderr.readline()
        assert line
        url = line.partition("metrics at ")[2].strip()
    post(connection, "a1", "a2", text=SECRET)
    until(lambda: ids(out) == ["a1", "a2"])
    until(lambda: b'onefold_relay_published_messages_total{relay="news"} 2.0' in urlopen(url).read())
    said = command.end()
    assert (said.code, said.document) == (
        0,
        {"relay": "news", "published": 2, "held": 0, "interrupted": False},
    )
    assert "asked to stop: ending what is under way" in said.err
    assert SECRET not in said.err
    owners = connection.execute("SELECT count(*) FROM onefold.relays WHERE owner IS NOT NULL").fetchone()
    assert owners == (0,)


def test_what_takes_too_long_to_end_is_left(
    start: Commands, publishing: Path, connection: Connection, database_url: str
) -> None:
    post(connection, "a1")
    with psycopg.connect(database_url) as other:
        onefold = start("relay", "news", "--to", "file:out.jsonl", "--grace", "1", "--json", cwd=publishing)
        until(lambda: ids(publishing / "out.jsonl") == ["a1"])
        # A segment that nobody has yet could not be taken any more.
        until(lambda: not connection.execute("SELECT FROM onefold.relays WHERE owner IS NULL").fetchall())
        # Who has locked the checkpoint keeps it from being moved.
        other.execute("SELECT * FROM onefold.relays FOR UPDATE")
        post(connection, "a2", "b2")
        until(lambda: len(ids(publishing / "out.jsonl")) == 3)
        said = onefold.end(signal.SIGINT)
    assert said.code == 1
    assert said.document["interrupted"] is True
    assert "what was not noted goes out again, with the same ids" in said.err


def test_what_a_broker_refused_is_among_the_dead_letters(onefold: Onefold, refused: MemoryBroker) -> None:
    said = onefold("dead-letters", "list", COLUMNS="200")
    assert said.code == 0
    assert "outbox:1" in said.out
    assert "expected a message of up to 300 bytes" in said.out
    assert "1 dead letter" in said.out
    (letter,) = onefold("dead-letters", "list", "--json").document["outbox"]
    assert (letter["id"], letter["relay"], letter["key"], letter["message_id"], letter["behind"]) == (
        "outbox:1", "news", "a", "a2", 1,
    )  # fmt: skip
    assert onefold("dead-letters", "list", "--json", "--consumer", "x").document["outbox"] == []
    assert SECRET not in said.out
    shown = onefold("dead-letters", "show", "outbox:1")
    assert SECRET in shown.out
    assert "header content-type" in shown.out
    document = onefold("dead-letters", "show", "outbox:1", "--json").document
    assert json.loads(document["body"])["id"] == "a2"
    assert document["headers"] == {"content-type": "application/cloudevents+json"}


def test_another_try_is_made_by_the_relay(
    onefold: Onefold, refused: MemoryBroker, connection: Connection
) -> None:
    said = onefold("dead-letters", "retry", "outbox:1")
    assert (said.code, "outbox:1 due again" in said.out) == (0, True)
    assert "asked for" in onefold("dead-letters", "show", "outbox:1").out
    assert onefold("relay", "news", "--to", "memory://narrow", "--once").code == 1
    assert onefold("dead-letters", "list", "--json").document["outbox"][0]["attempts"] == 2
    refused.largest = None
    onefold("dead-letters", "retry", "--all", "--json")
    said = onefold("relay", "news", "--to", "memory://narrow", "--once")
    assert (said.code, "published 2 messages" in said.out) == (0, True)
    (letter,) = onefold("dead-letters", "list", "--json", "--resolved").document["outbox"]
    assert letter["resolution"] == "published"
    said = onefold("dead-letters", "retry", "outbox:1", "--json")
    assert said.code == 1
    assert said.document["retried"][0]["became"] == "left"


def test_one_that_is_given_up_lets_those_behind_it_go(onefold: Onefold, refused: MemoryBroker) -> None:
    said = onefold("dead-letters", "discard", "outbox:1", "--by", "ops")
    assert (said.code, "discarded outbox:1" in said.out) == (0, True)
    assert onefold("relay", "news", "--to", "memory://narrow", "--once").code == 0
    found = refused.subscribe("anybody").receive(10, 1)
    assert [json.loads(each.body)["id"] for each in found if each.key == "a"] == ["a1", "a3"]
    assert "discarded by ops" in onefold("dead-letters", "list", "--resolved", COLUMNS="200").out
    said = onefold("dead-letters", "discard", "outbox:1", "--by", "ops", "--json")
    assert (said.code, said.document["left"][0]["id"]) == (1, "outbox:1")


def test_what_is_no_dead_letter_of_the_outbox_is_told(onefold: Onefold, connection: Connection) -> None:
    for word in ("outbox:x", "outbox:", "other:7", ":7", "effect:outbox:7"):
        said = onefold("dead-letters", "show", word)
        assert said.code == 2
        assert f"such as 7, effect:7 or outbox:7, found {word!r}" in " ".join(said.err.split())
    for command in ("show", "retry", "discard"):
        said = onefold("dead-letters", command, f"outbox:{2**70}")
        assert said.code == 1
        said = onefold("dead-letters", command, "outbox:7")
        assert (said.code, "found outbox:7" in said.err) == (1, True)


def test_the_status_tells_of_relays(onefold: Onefold, refused: MemoryBroker, connection: Connection) -> None:
    post(connection, "b2")
    post(connection, "x1", channel="unread")
    said = onefold("status", COLUMNS="200")
    assert said.code == 1
    words = " ".join(said.out.split())
    assert (
        "relay news: the broker has refused 1 message, and 1 wait behind; see `onefold dead-letters list`"
        in words
    )
    assert "channel unread has 1 messages that no relay publishes" in words
    document = onefold("status", "--json").document
    (relay,) = document["relays"]
    assert (relay["waiting"], relay["dead_letters"], relay["held"], relay["counts_exact"]) == (1, 1, 1, True)
    assert relay["oldest_waiting_seconds"] is not None
    assert document["channels_without_relay"] == {"unread": 1}


def test_old_messages_are_removed_by_maintain(
    onefold: Onefold, connection: Connection, tmp_path: Path
) -> None:
    with connection.transaction():
        connection.execute(
            "ALTER TABLE onefold.outbox ALTER written_at SET DEFAULT now() - interval '2 days'"
        )
        outbox.write(connection, [Posting("news", Message("a", "/test", "said", {}), "a")])
    onefold("relay", "news", "--to", f"file:{tmp_path / 'out.jsonl'}", "--once")
    said = onefold("maintain")
    assert (said.code, "removed 1 published message" in said.out) == (0, True), said

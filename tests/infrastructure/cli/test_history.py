"""History shows every event of a stream as it is stored, whatever its type."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from io import StringIO

import pytest
from psycopg import Connection
from rich.console import Console

from onefold.domain.account import Account
from onefold.domain.money import Money
from onefold.infrastructure.audit.history import entries
from onefold.infrastructure.cli.history import _show
from onefold.infrastructure.history import UnknownLog, history, logs
from onefold.infrastructure.store import Store

from .conftest import AT, Onefold, deposits

RAW = (
    "INSERT INTO onefold.events (version, event_id, stream, type, schema_version, data, raw, metadata, occurred_at)"
    " VALUES (%s, gen_random_uuid(), 'thing/1', %s, 7, %s, %s, %s, '2026-03-01 12:30:00.000001+00')"
)


def test_events_are_shown_with_what_is_known_about_them(onefold: Onefold, store: Store) -> None:
    account = Account.open("1", "EUR", at=AT)
    account.deposit(Money.of("24.90", "EUR"), at=AT, operation="cash")
    store.save(account, metadata={"actor": "ada", "correlation": "c-1"})
    document = onefold("history", "account/1", "--json").document
    assert (document["stream"], document["log"]) == ("account/1", "events")
    opened, deposited = document["events"]
    assert (opened["version"], opened["position"], opened["type"]) == (1, 1, "account.opened")
    assert deposited["data"]["amount"] == {"amount": "24.90", "currency": "EUR"}
    assert deposited["metadata"] == {"actor": "ada", "correlation": "c-1"}
    assert deposited["occurred_at"] == "2026-03-01T12:30:00.000000Z"
    assert deposited["schema_version"] == 1
    assert deposited["raw"] is None
    recorded = datetime.fromisoformat(deposited["recorded_at"])
    assert abs((datetime.now(UTC) - recorded).total_seconds()) < 60

    said = onefold("history", "account/1")
    assert said.code == 0
    for words in ("account.deposited", "operation cash", '"24.90"', "@actor ada", "position 2", "2 events"):
        assert words in said.out


def test_lines_are_neither_broken_nor_padded_where_nobody_looks(onefold: Onefold, store: Store) -> None:
    account = Account.open("1", "EUR", at=AT)
    account.deposit(Money.of("24.90", "EUR"), at=AT, operation="cash " * 30)
    store.save(account)
    lines = onefold("history", "account/1", COLUMNS="40").out.splitlines()
    start = "   2  account.deposited  occurred 2026-03-01 12:30:00Z  position 2, recorded "
    assert any(line.startswith(start) and line.endswith("Z") for line in lines)
    assert any(line.endswith("cash " * 29 + "cash ") for line in lines)
    assert not any(line.endswith("  ") for line in lines)


def test_a_terminal_of_80_columns_breaks_no_line_about_an_event(store: Store, connection: Connection) -> None:
    deposits(store, "1", 10)
    out = StringIO()
    console = Console(file=out, width=80, force_terminal=True, color_system=None)
    _show(console, "account/1", entries(history(connection, "account/1"), Account))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert "   2  account.deposited  occurred 2026-03-01 12:30:00Z" in lines
    assert re.fullmatch(
        r"      position 2, recorded [-0-9]{10} [0-9:.]+Z",
        lines[lines.index("   2  account.deposited  occurred 2026-03-01 12:30:00Z") + 1],
    )
    assert lines[-1] == "2 events"


def test_types_that_no_code_knows_are_shown_as_they_are(onefold: Onefold, connection: Connection) -> None:
    data = '{"n": 12345678901234567890.1234567890, "big": 9007199254740993, "note": "\\u001b[31m[red]", "é": null}'
    connection.execute(RAW, (1, "no.such.type", data, None, '{"actor": {"id": 9007199254740993}}'))
    said = onefold("history", "thing/1", "--json")
    (event,) = said.document["events"]
    assert (event["type"], event["schema_version"]) == ("no.such.type", 7)
    assert event["occurred_at"] == "2026-03-01T12:30:00.000001Z"
    assert event["metadata"] == {"actor": {"id": 9007199254740993}}
    assert '"n": 12345678901234567890.1234567890' in said.out
    assert event["data"]["big"] == 9007199254740993
    shown = onefold("history", "thing/1").out
    assert "no.such.type v7" in shown
    assert "note \\x1b[31m[red]" in shown
    assert "\x1b" not in shown


def test_data_that_is_not_json_is_shown_as_bytes(onefold: Onefold, connection: Connection) -> None:
    connection.execute(RAW, (1, "secret", None, b"\x00\xff" * 100, None))
    connection.execute(RAW, (2, "list", "[1, 2]", None, None))
    secret, plain = onefold("history", "thing/1", "--json").document["events"]
    assert (secret["data"], secret["raw"], secret["metadata"]) == (None, "00ff" * 100, None)
    assert plain["data"] == [1, 2]
    shown = onefold("history", "thing/1", COLUMNS="200").out
    assert "raw 200 bytes, 00ff" in shown
    assert "data [1, 2]" in shown


def test_a_stream_without_events_is_a_problem(onefold: Onefold) -> None:
    for arguments in (("history", "account/404"), ("history", "account/404", "--json")):
        said = onefold(*arguments)
        assert (said.code, said.out) == (1, "")
        assert said.err == (
            "onefold: stream account/404 has no events in log events; a stream is named category/key\n"
        )


def test_another_log_is_read_by_its_name(onefold: Onefold, connection: Connection) -> None:
    connection.execute("SELECT onefold.create_log('onefold', 'bookings')")
    connection.execute(RAW.replace("onefold.events", "onefold.bookings"), (1, "booked", "{}", None, None))
    said = onefold("history", "thing/1", "--log", "bookings", "--json")
    assert [event["type"] for event in said.document["events"]] == ["booked"]
    assert onefold("history", "thing/1").code == 1
    assert logs(connection) == ["bookings", "events"]
    with pytest.raises(UnknownLog, match="expected one of the logs bookings, events, found 'migrations'"):
        list(history(connection, "thing/1", log="migrations"))


def test_a_long_history_is_one_document(onefold: Onefold, store: Store) -> None:
    deposits(store, "1", *range(1, 1200))
    said = onefold("history", "account/1", "--json")
    assert [event["version"] for event in json.loads(said.out)["events"]] == list(range(1, 1201))


@pytest.mark.parametrize("form", ["", "--json"])
def test_a_reader_that_has_seen_enough_ends_it(store: Store, database_url: str, form: str) -> None:
    deposits(store, "1", *range(1, 3000))
    command = f"{sys.executable} -m onefold.infrastructure.cli history account/1 {form} | head -n 3"
    result = subprocess.run(
        ["/bin/sh", "-c", command],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "ONEFOLD_DATABASE_URL": database_url},
    )
    assert len(result.stdout.splitlines()) == 3
    assert result.stderr == ""

"""`onefold consume` applies what a broker delivers once, stops in order, and leaves to it what could not be done."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from psycopg import Connection

from onefold.infrastructure.brokers.memory import MemoryBroker

from .conftest import Commands, Onefold, balances, payment, until, written


def counted(outcomes: dict[str, int]) -> dict[str, int]:
    return {outcome: count for outcome, count in outcomes.items() if count}


def test_a_file_is_applied_once_however_often_it_is_read(
    onefold: Onefold, paying: Path, connection: Connection
) -> None:
    url = written(paying, payment(2), payment(1), payment(1), payment(3), payment(7, 1, account="b"))
    said = onefold("consume", url, "--consumer", "payments", "--json")
    assert said.code == 0, said.err
    assert said.document == {
        "consumer": "payments",
        "broker": url,
        "workers": 1,
        "received": 5,
        "outcomes": {
            "applied": 4,
            "duplicate": 1,
            "key_conflict": 0,
            "stale": 0,
            "parked": 0,
            "rejected": 0,
            "retried": 0,
            "in_progress": 0,
            "expired": 0,
            "dead_lettered": 0,
        },
        "interrupted": False,
    }
    again = onefold("consume", url, "--consumer", "payments")
    assert again.code == 0
    assert re.search(r"^applied +0$", again.out, re.MULTILINE)
    assert re.search(r"^duplicate +5$", again.out, re.MULTILINE)
    assert balances(connection) == {"a": 6, "b": 7}


def test_standard_input_is_read_to_its_end_however_slowly_it_comes(
    start: Commands, paying: Path, connection: Connection
) -> None:
    reader = start("consume", "-", "--consumer", "payments", "--idle", "0.1", "--json", cwd=paying)
    stdin = reader.process.stdin
    assert stdin is not None
    for number in (1, 2):
        stdin.write(payment(number))
        stdin.flush()
        until(lambda number=number: balances(connection).get("a", 0) >= number)
        time.sleep(0.6)
    stdin.write(payment(3))
    stdin.close()
    reader.process.stdin = None
    said = reader.end(None)
    assert said.code == 0, said.err
    assert counted(said.document["outcomes"]) == {"applied": 3}
    assert balances(connection) == {"a": 6}


def test_several_workers_share_a_queue_and_end_when_it_is_idle(
    onefold: Onefold, paying: Path, connection: Connection
) -> None:
    broker = MemoryBroker("shared", duplicates=0.3, seed=7)
    for number in range(1, 201):
        broker.publish(
            payment(number, (number + 3) // 4, account=f"a{number % 4}"),
            {"content-type": "application/cloudevents+json"},
            f"a{number % 4}",
        )
    said = onefold(
        "consume", "memory://shared", "--consumer", "payments", "--workers", "2", "--once", "--idle", "0.5",
        "--json",
    )  # fmt: skip
    assert said.code == 0, said.err
    assert said.document["workers"] == 2
    assert said.document["outcomes"]["applied"] == 200
    assert said.document["outcomes"]["duplicate"] >= 20
    assert sum(balances(connection).values()) == 201 * 100
    assert broker.unacknowledged("payments") == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(
    start: Commands, paying: Path, connection: Connection, number: signal.Signals
) -> None:
    worker = start("consume", "-", "--consumer", "payments", "--json", cwd=paying)
    stdin = worker.process.stdin
    assert stdin is not None
    stdin.write(payment(1) + payment(2, sleep=1.0))
    stdin.flush()
    until(lambda: connection.execute("SELECT 1 FROM onefold.in_hand WHERE keys <> '{}'").fetchone())
    worker.send(number)
    assert worker.process.wait(30) == 0
    assert worker.process.stdout is not None
    document = json.loads(worker.process.stdout.read())
    assert document["outcomes"]["applied"] == 2, (document, worker.process.stderr.read())
    assert not document["interrupted"]
    assert balances(connection) == {"a": 3}


@pytest.mark.parametrize("sleep", [1.5, 600])
def test_a_handler_that_does_not_end_in_time_is_rolled_back_and_said(
    start: Commands, onefold: Onefold, paying: Path, connection: Connection, sleep: float
) -> None:
    worker = start("consume", "-", "--consumer", "payments", "--grace", "0.5", "--json", cwd=paying)
    stdin = worker.process.stdin
    assert stdin is not None
    stdin.write(payment(1, sleep=sleep))
    stdin.flush()
    until(lambda: connection.execute("SELECT 1 FROM onefold.in_hand WHERE keys <> '{}'").fetchone())
    time.sleep(0.2)
    asked = time.monotonic()
    worker.send(signal.SIGTERM)
    assert worker.process.wait(30) == 1
    assert time.monotonic() - asked < 8
    assert worker.process.stdout is not None
    assert worker.process.stderr is not None
    document = json.loads(worker.process.stdout.read())
    assert document["interrupted"]
    assert document["outcomes"]["applied"] == 0
    errors = worker.process.stderr.read()
    assert "expected consumer payments to end within 0.5 seconds, found a message still in hand" in errors
    assert "Traceback" not in errors
    assert balances(connection) == {}
    assert onefold("consume", written(paying, payment(1)), "--consumer", "payments").code == 0
    assert balances(connection) == {"a": 1}


def test_a_second_signal_ends_it_at_once(start: Commands, paying: Path, connection: Connection) -> None:
    worker = start("consume", "-", "--consumer", "payments", cwd=paying)
    stdin = worker.process.stdin
    assert stdin is not None
    stdin.write(payment(1, sleep=600))
    stdin.flush()
    until(lambda: connection.execute("SELECT 1 FROM onefold.in_hand WHERE keys <> '{}'").fetchone())
    worker.send(signal.SIGTERM)
    time.sleep(0.3)
    worker.send(signal.SIGTERM)
    assert worker.process.wait(5) == 130
    assert balances(connection) == {}


@pytest.mark.parametrize(
    ("arguments", "code", "found"),
    [
        (
            ("memory://m", "--consumer", "nobody"),
            2,
            "expected one of the consumers payments, typed, forgetful",
        ),
        (("mqtt://h/t", "--consumer", "payments"), 2, "found scheme 'mqtt'"),
        (("kafka://", "--consumer", "payments"), 2, "kafka://"),
        (("-", "--consumer", "payments", "--workers", "2"), 2, "expected one worker on a file, found 2"),
        (("file:/nowhere", "--consumer", "payments"), 2, "expected a file of messages at '/nowhere'"),
        (("memory://m", "--consumer", "payments", "--trace"), 2, "expected a provider of OpenTelemetry"),
        (("memory://m", "--consumer", "payments", "--hint", "http://h"), 2, "redis:"),
        (("memory://m", "--consumer", "payments", "--metrics-port", "70000"), 2, "65535"),
        (("memory://m", "--consumer", "forgetful"), 1, "expected the ledger to remember keys for more than"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(
    onefold: Onefold, paying: Path, arguments: tuple[str, ...], code: int, found: str
) -> None:
    said = onefold("consume", *arguments, "--once", "--idle", "0.2")
    assert (said.code, said.out) == (code, "")
    assert found in " ".join(said.err.split())
    assert "Traceback" not in said.err


def test_a_consumer_that_is_declared_otherwise_is_refused(onefold: Onefold, paying: Path) -> None:
    assert onefold("consume", written(paying, payment(1)), "--consumer", "payments").code == 0
    said = onefold("consume", written(paying), "--consumer", "payments", "--app", "paying:changed")
    assert said.code == 1
    assert 'consumer payments is declared with ledger="time"' in said.err


def test_a_client_that_is_not_installed_is_named_with_its_extra(
    onefold: Onefold, paying: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pika", None)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    said = onefold("consume", "amqp://127.0.0.1/q", "--consumer", "payments")
    assert said.code == 2
    assert "pip install 'onefold[rabbitmq]'" in said.err
    said = onefold("consume", "memory://m", "--consumer", "payments", "--trace")
    assert said.code == 2
    assert "pip install 'onefold[tracing]'" in said.err


def test_a_dead_letter_of_a_file_is_a_problem(onefold: Onefold, paying: Path, connection: Connection) -> None:
    url = written(paying, payment(1), "no json\n", payment(2), payment(9, 1, account="b", refuse=True))
    said = onefold("consume", url, "--consumer", "payments")
    assert said.code == 1
    assert "2 dead letters; see `onefold dead-letters list --consumer payments`" in " ".join(said.out.split())
    assert balances(connection) == {"a": 3}


def test_duplicates_are_told_when_they_are_asked_for(onefold: Onefold, paying: Path) -> None:
    url = written(paying, payment(1), payment(1))
    quiet = onefold("consume", url, "--consumer", "payments")
    assert "duplicate of key" not in quiet.err
    assert "consuming payments by 1 worker from file:" in quiet.err
    verbose = onefold("consume", url, "--consumer", "payments", "-v")
    lines = [line for line in verbose.err.splitlines() if "duplicate of key" in line]
    assert len(lines) == 2
    for line in lines:
        assert re.search(
            r"INFO consumer payments: duplicate of key p1, first seen \d{4}-\d\d-\d\dT\S+$", line
        )


def test_every_duplicate_is_a_line_and_no_payload_is_in_the_log(
    onefold: Onefold, paying: Path, connection: Connection
) -> None:
    """C84"""
    secret = "SECRET-4711"
    lines = [
        payment(1, note=secret),
        payment(1, note=secret),
        payment(1, note=secret + "x"),
        payment(3, note=secret),
        payment(2, note=secret, switch=True),
        payment(8, 1, account="b", note=secret, refuse=True),
        payment(10, 0, account="c", note=secret),
        f'{{"specversion": "1.0", "data": "{secret}"\n',
        f"{secret}\n",
        json.dumps({**json.loads(payment(11)), "data": secret}) + "\n",
    ]
    url = written(paying, *lines)
    for _ in range(2):
        said = onefold("--debug", "consume", url, "--consumer", "payments", "-v")
        assert said.code == 1
        assert secret not in said.err
        assert secret not in said.out
    assert len(re.findall(r"duplicate of key p1, first seen \d{4}-", said.err)) == 2
    typed = written(
        paying,
        payment(20),
        payment(23, note=secret),
        payment(21, amount=secret),
        json.dumps(
            {**json.loads(payment(22)), "type": "payment.unknown", "data": {"payment": "p22", "x": secret}}
        ),
    )
    said = onefold("--debug", "consume", typed, "--consumer", "typed", "-v")
    assert said.code == 1
    assert said.err.count("is a dead letter") == 3
    assert secret not in said.err
    for shown in (onefold("dead-letters", "list"), onefold("parked", "list"), onefold("status")):
        assert secret not in shown.out
        assert secret not in shown.err
    outcomes = dict(
        connection.execute(
            "SELECT outcome, sum(count)::int FROM onefold.outcomes GROUP BY outcome"
        ).fetchall()
    )
    assert outcomes["duplicate"] >= 3


def test_what_is_no_message_is_told_by_its_place(onefold: Onefold, paying: Path) -> None:
    said = onefold("consume", written(paying, payment(1), "no json\n"), "--consumer", "payments")
    assert (
        "WARNING consumer payments: messages.jsonl:2 is a dead letter, rejected: not a CloudEvent" in said.err
    )


def test_nothing_in_a_message_changes_the_terminal_or_forges_a_line(onefold: Onefold, paying: Path) -> None:
    hostile = payment(1, payment="p1\n2026-01-01 INFO \x1b[31mall is well")
    said = onefold("consume", written(paying, hostile, hostile), "--consumer", "payments", "-v")
    assert "duplicate of key p1\\n2026-01-01 INFO \\x1b[31mall is well, first seen" in said.err
    assert "\x1b" not in said.err


def test_a_statement_ends_soon_after_its_process(
    start: Commands, paying: Path, connection: Connection
) -> None:
    worker = start("consume", "-", "--consumer", "payments", cwd=paying)
    assert worker.process.stdin is not None
    worker.process.stdin.write(payment(1, statement=600))
    worker.process.stdin.flush()
    find = (
        "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%%' AND datname = current_database()"
    )
    until(lambda: connection.execute(find).fetchone())
    worker.send(signal.SIGKILL)
    until(lambda: not connection.execute(find).fetchone(), 10)


def test_a_terminal_shows_the_consumer_at_work(database_url: str, paying: Path) -> None:
    screen, end = os.openpty()
    worker = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "onefold.infrastructure.cli",
            "consume",
            "memory://m",
            "--consumer",
            "payments",
        ],
        stdout=subprocess.PIPE,
        stderr=end,
        cwd=paying,
        env={**os.environ, "ONEFOLD_DATABASE_URL": database_url, "COLUMNS": "100", "TERM": "xterm"},
    )
    os.close(end)
    shown = b""
    try:
        while b"running" not in shown:
            shown += os.read(screen, 4096)
        worker.send_signal(signal.SIGINT)
        # Linux gives an error, others an end of file, once the last writer is gone.
        with contextlib.suppress(OSError):
            while more := os.read(screen, 4096):
                shown += more
        assert worker.wait(30) == 0
    finally:
        worker.kill()
        worker.communicate()
        os.close(screen)
    assert b"Ctrl-C ends the messages in hand and stops" in shown


def test_metrics_are_served_where_they_are_asked_for(
    start: Commands, paying: Path, connection: Connection
) -> None:
    worker = start("consume", "-", "--consumer", "payments", "--metrics-port", "0", cwd=paying)
    assert worker.process.stderr is not None
    assert worker.process.stdin is not None
    said = worker.process.stderr.readline()
    (url,) = re.findall(r"metrics at (http://127\.0\.0\.1:\d+/metrics)$", said.strip())
    worker.process.stdin.write(payment(1) + payment(1) + payment(3))
    worker.process.stdin.flush()

    def shown() -> str:
        text: str = urllib.request.urlopen(url, timeout=5).read().decode()
        return text

    until(lambda: 'onefold_outcomes_total{consumer="payments",outcome="parked"} 1.0' in shown())
    assert 'onefold_outcomes_total{consumer="payments",outcome="duplicate"} 1.0' in shown()
    until(lambda: 'onefold_parked_messages{consumer="payments"} 1.0' in shown())
    assert worker.end(signal.SIGTERM).code == 0


def test_projections_have_metrics_too(start: Commands, connection: Connection) -> None:
    worker = start("run", "account_balance", "--metrics-port", "0")
    assert worker.process.stderr is not None
    said = worker.process.stderr.readline()
    (url,) = re.findall(r"metrics at (http://127\.0\.0\.1:\d+/metrics)$", said.strip())

    def shown() -> str:
        text: str = urllib.request.urlopen(url, timeout=5).read().decode()
        return text

    until(lambda: 'onefold_projection_lag_events{projection="account_balance"} 0.0' in shown())
    assert "onefold_database_up 1.0" in shown()
    assert worker.end(signal.SIGTERM).code == 0


def test_the_status_tells_of_consumers(onefold: Onefold, paying: Path, connection: Connection) -> None:
    new = onefold("status", "--json")
    assert new.code == 0
    assert [(each["name"], each["state"]) for each in new.document["consumers"]] == [
        ("forgetful", "not started"),
        ("payments", "not started"),
        ("typed", "not started"),
    ]
    onefold("consume", written(paying, payment(1), payment(1), payment(3)), "--consumer", "payments")
    said = onefold("status", "--json")
    assert said.code == 0
    (found,) = (each for each in said.document["consumers"] if each["name"] == "payments")
    assert counted(found["outcomes"]) == {"applied": 1, "duplicate": 1, "parked": 1}
    assert (found["state"], found["ledger"], found["ordering"]) == ("idle", "any", "delta")
    assert (found["parked"], found["dead_letters"], found["workers"]) == (1, 0, [])
    assert (found["backlog"], found["lag_messages"], found["lag_seconds"]) == (None, None, None)
    assert 0 <= found["oldest_parked_seconds"] < 60
    assert found["retention_seconds"] == 30 * 86_400
    assert found["floor"] is None
    onefold("consume", written(paying, payment(9, 2, refuse=True)), "--consumer", "payments")
    said = onefold("status")
    assert said.code == 1
    assert "payments has 1 dead letter; see `onefold dead-letters list --consumer payments`" in " ".join(
        said.out.split()
    )


def test_the_status_tells_of_workers_that_are_alive(
    start: Commands, onefold: Onefold, paying: Path, connection: Connection
) -> None:
    """C83: lag in messages and in seconds, from what the workers have done and what the broker says."""
    worker = start("consume", "-", "--consumer", "payments", cwd=paying)
    assert worker.process.stdin is not None
    worker.process.stdin.write(payment(1) + payment(2, sleep=3))
    worker.process.stdin.flush()
    until(lambda: connection.execute("SELECT 1 FROM onefold.consumer_workers WHERE in_flight > 0").fetchone())
    (found,) = (
        each for each in onefold("status", "--json").document["consumers"] if each["name"] == "payments"
    )
    assert found["state"] == "running"
    assert found["in_flight"] >= 1
    (alive,) = found["workers"]
    assert alive["broker"] == "-"
    assert alive["silent_seconds"] < 15
    assert "running" in onefold("status").out
    assert worker.end(signal.SIGTERM).code == 0
    connection.execute(
        "INSERT INTO onefold.consumer_workers (worker, consumer, broker, in_flight, backlog, newest, claim_ms, seen_at)"
        " SELECT 'w' || n, id, 'kafka://h/t', 2, 10, clock_timestamp() - interval '1 minute', 0.5,"
        " clock_timestamp() - make_interval(secs => n * 10)"
        " FROM onefold.consumers, generate_series(0, 2) n WHERE consumer = 'payments'"
    )
    (found,) = (
        each for each in onefold("status", "--json").document["consumers"] if each["name"] == "payments"
    )
    assert [each["worker"] for each in found["workers"]] == ["w0", "w1"]
    assert (found["backlog"], found["in_flight"], found["lag_messages"]) == (20, 4, 24)
    assert 60 <= found["lag_seconds"] < 70
    assert found["claim_ms"] == 0.5

"""The runner: tries, leases, results, and what is never simply tried again."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import Connection
from psycopg.conninfo import conninfo_to_dict
from pydantic import BaseModel

from onefold import Again, AsyncCall, Call, Done, Effect, Rejected, Retry, perform
from onefold.infrastructure.connection import connected
from onefold.infrastructure.effects.errors import LeaseLost
from onefold.infrastructure.effects.maintenance import remove_old
from onefold.infrastructure.effects.queue import Queue, renew
from onefold.infrastructure.effects.runner import EffectRunner

from .shipping import execute, rows, run

SOON = Retry(attempts=3, first=0.01, longest=0.02)
STATE = "attempts, due_at IS NOT NULL, done_at IS NOT NULL, outcome, error"


class Odd(BaseModel):
    def model_dump(self, **_: Any) -> dict[str, Any]:
        raise LookupError("its attributes are a secret")


class Speechless(Exception):
    def __str__(self) -> str:
        raise LookupError("no words")


class Panic(BaseException): ...


def ask(url: str, name: str = "tell", **data: Any) -> str:
    with connected(url) as connection, connection.transaction():
        return perform(connection, name, data)


def until_idle(url: str, *effects: Effect) -> None:
    for _ in range(100):
        run(url, *effects)
        if not any(open_ for (open_,) in rows(url, "due_at IS NOT NULL")):
            return
        time.sleep(0.03)
    raise AssertionError("expected every task to end")


def test_a_call_that_fails_is_made_again_with_the_same_key(database_url: str) -> None:
    calls: list[tuple[str, int]] = []

    def fail_twice(data: Any, call: Call) -> str:
        calls.append((call.key, call.attempt))
        if call.attempt < 3:
            raise ConnectionError("no answer\x00")
        return "done"

    key = ask(database_url)
    effect = Effect("tell", fail_twice, retry=Retry(attempts=3, first=0.4))
    assert run(database_url, effect) == {"tell": {"retried": 1}}
    assert rows(database_url, STATE) == [(1, True, False, None, "ConnectionError: no answer\\x00")]
    until_idle(database_url, effect)
    assert calls == [(key, 1), (key, 2), (key, 3)]
    assert rows(
        database_url, "attempts, result, error, owner, round(extract(days FROM remove_at - done_at))"
    ) == [(3, "done", None, None, 30)]


def test_a_call_that_fails_for_good_is_a_dead_letter(database_url: str) -> None:
    def fail(data: Any, call: Call) -> None:
        if data.get("reject"):
            raise Rejected("no such account")
        raise SystemExit(3)

    ask(database_url)
    ask(database_url, reject=True)
    until_idle(database_url, Effect("tell", fail, retry=SOON))
    assert rows(database_url, STATE) == [
        (3, False, False, "dead_lettered", "SystemExit: 3"),
        (1, False, False, "rejected", "Rejected: no such account"),
    ]


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (Speechless(), "Speechless: its text cannot be made (LookupError)"),
        (Panic("all of it"), "Panic: all of it"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (BaseExceptionGroup("two", [Panic("one")]), "BaseExceptionGroup: two (1 sub-exception)"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_whatever_a_function_raises_is_a_failure_of_its_call(
    database_url: str, error: BaseException, cause: str, is_async: bool
) -> None:
    def fail(data: Any, call: Call) -> None:
        raise error

    async def fail_later(data: Any, call: AsyncCall) -> None:
        raise error

    ask(database_url)
    until_idle(database_url, Effect("tell", fail_later if is_async else fail, retry=SOON))
    assert rows(database_url, STATE) == [(3, False, False, "dead_lettered", cause)]


def test_an_async_function_is_awaited(database_url: str) -> None:
    async def tell(data: Any, call: AsyncCall) -> dict[str, Any]:
        await asyncio.sleep(0.001)
        return {"key": call.key}

    key = ask(database_url)
    ask(database_url)
    assert run(database_url, Effect("tell", tell)) == {"tell": {"done": 2}}
    assert rows(database_url, "result")[0] == ({"key": key},)


@pytest.mark.parametrize(
    ("result", "why"),
    [
        ("x" * 70_000, "found 70,002"),
        (object(), "cannot be written as JSON"),
        ("\x00", "NUL"),
        (float("nan"), "is nan"),
        (10**5_000, "digits"),
        (Odd(), "its attributes are a secret"),
    ],
    ids=["long", "object", "nul", "nan", "digits", "model"],
)
def test_a_result_that_cannot_be_kept_does_not_make_the_call_again(
    database_url: str, result: Any, why: str
) -> None:
    ask(database_url)
    assert run(database_url, Effect("tell", lambda data, call: result)) == {"tell": {"done": 1}}
    [(done, kept, note)] = rows(database_url, "done_at IS NOT NULL, result, error")
    assert (done, kept) == (True, None)
    assert why in note


def test_a_lease_is_renewed_while_the_call_lasts(database_url: str) -> None:
    calls: list[int] = []

    def slow(data: Any, call: Call) -> None:
        calls.append(call.attempt)
        time.sleep(2.0)

    ask(database_url)
    effect = Effect("tell", slow, lease=0.8)
    runners = [EffectRunner(database_url, [effect], workers=1) for _ in range(2)]
    for runner in runners:
        runner.start()
    time.sleep(2.2)
    for runner in runners:
        runner.stop()
    assert all(runner.join(5) for runner in runners)
    assert calls == [1]
    assert rows(database_url, STATE) == [(1, False, True, None, None)]


def test_a_lease_is_renewed_again_after_a_time_in_which_the_server_refused(database_url: str) -> None:
    calls: list[int] = []
    name = conninfo_to_dict(database_url)["dbname"]

    def slow(data: Any, call: Call) -> None:
        calls.append(call.attempt)
        execute(database_url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        time.sleep(0.9)
        execute(database_url, f"SET transaction_read_only = off; ALTER DATABASE {name} RESET ALL")
        time.sleep(2.0)

    ask(database_url)
    effect = Effect("tell", slow, lease=1.5)
    runners = [EffectRunner(database_url, [effect], workers=1) for _ in range(2)]
    for runner in runners:
        runner.start()
    time.sleep(3.5)
    for runner in runners:
        runner.stop()
    assert all(runner.join(5) for runner in runners)
    assert calls == [1]


def test_a_try_that_has_ended_has_no_lease_to_renew(connection: Connection, database_url: str) -> None:
    ask(database_url)
    queue = Queue(connection, [Effect("tell", lambda data, call: None)], "one")
    task = queue.claim()
    assert task is not None
    assert renew(connection, task, 5.0)
    assert queue.wait(task, 100.0, "busy")
    assert not renew(connection, task, 5.0)
    due = queue.next()
    assert due is not None
    assert 90 < due < 101


def test_what_a_function_leaves_running_sends_nothing_after_the_call(
    database_url: str, tmp_path: Path
) -> None:
    kept: list[Call] = []
    ask(database_url)
    assert run(database_url, Effect("tell", lambda data, call: kept.append(call))) == {"tell": {"done": 1}}
    with pytest.raises(LeaseLost, match="what a function starts must end with it"):
        kept[0].write(tmp_path / "late.txt", "late")


def test_a_runner_that_was_gone_too_long_is_not_heard(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def overtaken(data: Any, call: Call) -> str:
        if call.attempt == 1:
            # Another claims it, as if this process had been stopped for longer than the lease.
            execute(database_url, "UPDATE onefold.effects SET due_at = clock_timestamp()")
            assert run(database_url, Effect("tell", lambda data, call: "second")) == {"tell": {"done": 1}}
        return "first"

    ask(database_url)
    with caplog.at_level(logging.WARNING, "onefold.effects"):
        assert run(database_url, Effect("tell", overtaken)) == {"tell": {"lost": 1}}
    assert rows(database_url, "attempts, result") == [(2, "second")]
    assert "another runner had it" in caplog.text


def test_a_call_whose_runner_was_killed_counts_and_is_given_up_in_the_end(database_url: str) -> None:
    ask(database_url)
    # As three claims leave it whose processes were killed.
    execute(database_url, "UPDATE onefold.effects SET attempts = 3, owner = 'gone', first_try_at = now()")
    assert run(database_url, Effect("tell", lambda data, call: None, retry=SOON)) == {"tell": {"dead": 1}}
    [(outcome, why)] = rows(database_url, "outcome, error")
    assert outcome == "dead_lettered"
    assert "gone before try 3 of 3" in why


def late(url: str) -> None:
    """Make the first try of every task two hours old."""
    execute(url, "UPDATE onefold.effects SET attempts = 1, first_try_at = now() - interval '2 hours'")


HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("answer", "calls", "state"),
    [
        (Done({"receipt": 7}), 0, (True, {"receipt": 7}, None)),
        (Again(), 1, (True, "called", None)),
        (None, 0, (False, None, "expired")),
        ("yes", 0, (False, None, "expired")),
    ],
    ids=["done", "again", "unknown", "nonsense"],
)
def test_a_key_that_is_forgotten_is_asked_about_before_the_call(
    database_url: str, answer: Any, calls: int, state: Any
) -> None:
    made: list[str] = []

    def tell(data: Any, call: Call) -> str:
        made.append(call.key)
        return "called"

    key = ask(database_url)
    late(database_url)
    effect = Effect("tell", tell, keeps=HOUR, reconcile=lambda data, call: answer)
    run(database_url, effect)
    assert made == [key] * calls
    assert rows(database_url, "done_at IS NOT NULL, result, outcome") == [state]


def test_a_key_that_is_forgotten_without_anyone_to_ask_is_a_dead_letter(database_url: str) -> None:
    ask(database_url)
    late(database_url)
    effect = Effect("tell", lambda data, call: pytest.fail("was called"), keeps=HOUR)
    assert run(database_url, effect) == {"tell": {"dead": 1}}
    [(outcome, why)] = rows(database_url, "outcome, error")
    assert outcome == "expired"
    assert "first try was 7,200 s ago, and its key is known for 3,600 s" in why


def test_after_again_the_key_counts_as_new(database_url: str) -> None:
    asked: list[int] = []

    def reconcile(data: Any, call: Call) -> Again:
        asked.append(call.attempt)
        return Again()

    def fail_once(data: Any, call: Call) -> None:
        if call.attempt == 2:
            raise ConnectionError

    ask(database_url)
    late(database_url)
    until_idle(
        database_url, Effect("tell", fail_once, keeps=HOUR, reconcile=reconcile, retry=Retry(5, 0.01, 0.01))
    )
    assert asked == [2]
    assert rows(database_url, STATE) == [(3, False, True, None, None)]


def test_a_runner_that_was_overtaken_while_it_asked_makes_no_call(database_url: str) -> None:
    def overtaken(data: Any, call: Call) -> Again:
        execute(database_url, "UPDATE onefold.effects SET token = token + 1")
        return Again()

    ask(database_url)
    late(database_url)
    effect = Effect("tell", lambda data, call: pytest.fail("was called"), keeps=HOUR, reconcile=overtaken)
    assert run(database_url, effect) == {"tell": {"lost": 1}}


def test_a_failing_reconcile_is_tried_again_as_the_call_would_be(database_url: str) -> None:
    def reconcile(data: Any, call: Call) -> Done:
        raise ConnectionError("no answer")

    ask(database_url)
    late(database_url)
    effect = Effect("tell", lambda data, call: None, keeps=HOUR, reconcile=reconcile, retry=SOON)
    until_idle(database_url, effect)
    assert rows(database_url, "attempts, outcome") == [(3, "dead_lettered")]


def test_many_workers_make_each_call_once(database_url: str) -> None:
    lock, made = threading.Lock(), list[int]()

    def tell(data: Any, call: Call) -> None:
        with lock:
            made.append(data["n"])

    with connected(database_url) as connection, connection.transaction():
        for n in range(200):
            perform(connection, "tell", {"n": n})
    effect = Effect("tell", tell)
    runners = [EffectRunner(database_url, [effect], workers=4, once=True) for _ in range(2)]
    for runner in runners:
        runner.start()
    assert all(runner.join(30) for runner in runners)
    assert sorted(made) == list(range(200))


def test_a_runner_wakes_for_what_is_asked(database_url: str) -> None:
    made = threading.Event()
    runner = EffectRunner(database_url, [Effect("tell", lambda data, call: made.set())], workers=2)
    runner.start()
    time.sleep(0.3)
    ask(database_url)
    assert made.wait(3)
    runner.stop()
    assert runner.join(5)


def test_a_lost_database_is_waited_for_and_told_what_became_of_the_call(database_url: str) -> None:
    calls: list[int] = []

    def cut(data: Any, call: Call) -> str:
        calls.append(call.attempt)
        execute(
            database_url,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name LIKE 'onefold effects%%' AND datname = current_database()",
        )
        return "kept"

    ask(database_url)
    assert run(database_url, Effect("tell", cut)) == {"tell": {"done": 1}}
    assert calls == [1]
    assert rows(database_url, "attempts, result") == [(1, "kept")]


def test_what_no_application_knows_is_left_alone(database_url: str) -> None:
    ask(database_url, "another")
    assert run(database_url, Effect("tell", lambda data, call: None)) == {"tell": {}}
    assert rows(database_url) == [("another", rows(database_url)[0][1], 0)]


def test_what_is_done_is_removed_in_slices_after_its_time(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onefold.infrastructure.effects.maintenance.SLICE", 2)
    for _ in range(5):
        ask(database_url)
    run(database_url, Effect("tell", lambda data, call: None, keep=timedelta(seconds=0.001)))
    ask(database_url)
    run(database_url, Effect("tell", lambda data, call: None))
    time.sleep(0.01)
    with connected(database_url) as connection:
        assert remove_old(connection, slices=1) == 2
        assert remove_old(connection) == 3
    assert len(rows(database_url)) == 1


def test_the_database_refuses_a_task_that_is_both_open_and_done(database_url: str) -> None:
    ask(database_url)
    with pytest.raises(psycopg.errors.CheckViolation):
        execute(database_url, "UPDATE onefold.effects SET done_at = now()")

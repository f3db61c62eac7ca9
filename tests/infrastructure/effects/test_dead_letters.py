"""Calls that were given up, and what an operator does about them; the state of effects as it is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.request import urlopen

import psycopg
import pytest

from onefold import App, Call, Effect, Rejected, Retry, perform
from onefold.infrastructure.connection import connected
from onefold.infrastructure.effects.dead_letters import (
    EffectLetterError,
    content_of,
    discard,
    list_effect_letters,
    retry,
)
from onefold.infrastructure.effects.maintenance import remove_old
from onefold.infrastructure.effects.metrics import EffectMetrics
from onefold.infrastructure.effects.runner import EffectRunner
from onefold.infrastructure.effects.status import EffectStatus, effects_status
from onefold.infrastructure.metrics import serve
from onefold.infrastructure.status import status

from .shipping import Parcel, execute, parcel, rows, run, shop


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with connected(database_url) as found:
        yield found


def ask(connection: psycopg.Connection[Any], name: str = "tell", key: str | None = None, **data: Any) -> str:
    with connection.transaction():
        return perform(connection, name, data, key=key)


def failing(data: Any, call: Call) -> None:
    raise Rejected("not today")


def test_a_call_that_was_given_up_is_made_again_with_its_key(
    database_url: str, connection: psycopg.Connection[Any]
) -> None:
    made: list[tuple[str, int]] = []
    key = ask(connection, to="ana")
    run(database_url, Effect("tell", failing))
    [letter] = list_effect_letters(connection)
    assert (letter.effect, letter.outcome, letter.cause, letter.attempts, letter.call) == (
        "tell", "rejected", "Rejected: not today", 1, key,
    )  # fmt: skip
    assert json.loads(content_of(connection, letter.id)[0]) == {"to": "ana"}
    retry(connection, letter.id, "ops")
    assert list_effect_letters(connection) == []
    run(database_url, Effect("tell", lambda data, call: made.append((call.key, call.attempt))))
    assert made == [(key, 1)]
    assert rows(database_url, "done_at IS NOT NULL, resolved_by") == [(True, "ops")]
    with pytest.raises(EffectLetterError, match="that is open, found"):
        retry(connection, letter.id, "ops")


def test_one_that_was_discarded_stays_on_record_and_its_key_is_known(
    database_url: str, connection: psycopg.Connection[Any]
) -> None:
    ask(connection, key="k")
    run(database_url, Effect("tell", failing))
    [letter] = list_effect_letters(connection)
    discard(connection, letter.id, "ops")
    assert list_effect_letters(connection) == []
    [again] = list_effect_letters(connection, resolved=True)
    assert (again.resolution, again.resolved_by) == ("discarded", "ops")
    ask(connection, key="k")
    assert len(rows(database_url)) == 1
    for work in (retry, discard):
        with pytest.raises(EffectLetterError):
            work(connection, letter.id, "ops")
    assert remove_old(connection) == 0
    execute(database_url, "UPDATE onefold.effects SET remove_at = remove_at - interval '30 days'")
    assert remove_old(connection) == 1


def test_one_whose_key_is_forgotten_is_made_again_only_on_the_word_that_it_had_no_effect(
    database_url: str, connection: psycopg.Connection[Any]
) -> None:
    made: list[int] = []
    effect = Effect("tell", lambda data, call: made.append(call.attempt), keeps=timedelta(hours=1))
    ask(connection)
    connection.execute("UPDATE onefold.effects SET attempts = 1, first_try_at = now() - interval '2 hours'")
    run(database_url, effect)
    [letter] = list_effect_letters(connection)
    assert letter.outcome == "expired"
    with pytest.raises(EffectLetterError, match="--even-expired"):
        retry(connection, letter.id, "ops")
    retry(connection, letter.id, "ops", even_expired=True)
    run(database_url, effect)
    assert made == [1]


def test_a_failed_one_that_has_become_too_old_is_not_simply_made_again(
    database_url: str, connection: psycopg.Connection[Any]
) -> None:
    effect = Effect("tell", failing, keeps=timedelta(hours=1))
    ask(connection)
    run(database_url, effect)
    connection.execute("UPDATE onefold.effects SET first_try_at = now() - interval '2 hours'")
    [letter] = list_effect_letters(connection)
    retry(connection, letter.id, "ops")
    run(database_url, effect)
    assert [each.outcome for each in list_effect_letters(connection)] == ["expired"]


def test_one_whose_key_stands_for_another_can_only_be_discarded(
    database_url: str, connection: psycopg.Connection[Any]
) -> None:
    effect = Effect("tell", lambda event, call: None, on=Parcel.Shipped, key=lambda event: "k")
    with shop(database_url, effect) as store:
        store.save(parcel("1", Parcel.Shipped(to="ana"), Parcel.Shipped(to="bo")))
    [letter] = list_effect_letters(connection, effect="tell")
    assert (letter.outcome, letter.stream, letter.version) == ("key_conflict", "freight/1", 2)
    with pytest.raises(EffectLetterError, match="a key of its own"):
        retry(connection, letter.id, "ops", even_expired=True)
    discard(connection, letter.id, "ops")


def test_what_is_no_number_of_a_dead_letter_is_told(connection: psycopg.Connection[Any]) -> None:
    assert list_effect_letters(connection, ids=[-1, 2**70, 5], effect="tell") == []
    for work in (lambda: retry(connection, 5, "ops"), lambda: content_of(connection, 5)):
        with pytest.raises(EffectLetterError, match="found 5"):
            work()


def test_the_status_tells_what_is_open(database_url: str, connection: psycopg.Connection[Any]) -> None:
    for name in ("fails", "waits", "waits", "unknown", "works"):
        ask(connection, name)
    run(database_url, Effect("fails", failing), Effect("works", lambda data, call: None))
    connection.execute(
        "UPDATE onefold.effects SET owner = 'o', due_at = now() + interval '1 minute' "
        "WHERE id = (SELECT min(id) FROM onefold.effects WHERE effect = 'waits')"
    )
    connection.execute(
        "UPDATE onefold.effects SET due_at = due_at - interval '1 minute' WHERE effect = 'unknown'"
    )
    found = effects_status(connection, ["waits", "fails", "works"])
    assert [(each.name, each.declared, each.pending, each.running, each.dead) for each in found] == [
        ("fails", True, 0, 0, 1), ("unknown", False, 1, 0, 0), ("waits", True, 1, 1, 0), ("works", True, 0, 0, 0),
    ]  # fmt: skip
    assert 60 < (found[1].oldest_seconds or 0) < 90
    assert [each.sound for each in found] == [False, True, True, True]
    assert effects_status(connection, ["works"], others=False) == (EffectStatus("works"),)
    app = App(effects=[Effect("works", failing)])
    whole = status(connection, app)
    assert [each.name for each in whole.effects] == ["fails", "unknown", "waits", "works"]
    assert not whole.sound


def test_the_metrics_tell_the_same(database_url: str, connection: psycopg.Connection[Any]) -> None:
    ask(connection, "fails")
    ask(connection, "works")
    ask(connection, "unknown")
    effects = [Effect("fails", failing, retry=Retry(1)), Effect("works", lambda data, call: None)]
    runner = EffectRunner(database_url, effects, workers=1, once=True)
    with EffectMetrics(runner, database_url) as metrics, serve(0, metrics) as server:
        runner.run()
        with urlopen(server.url) as answer:
            text = answer.read().decode()
    for line in (
        'onefold_effect_calls_total{effect="works",outcome="done"} 1.0',
        'onefold_effect_calls_total{effect="fails",outcome="dead"} 1.0',
        'onefold_effect_call_seconds_count{effect="works"} 1.0',
        'onefold_effect_dead_letters{effect="fails"} 1.0',
        'onefold_effect_pending_calls{effect="works"} 0.0',
        'onefold_effect_running_calls{effect="works"} 0.0',
        'onefold_effect_oldest_due_seconds{effect="works"} 0.0',
        "onefold_database_up 1.0",
    ):
        assert line in text.splitlines(), line
    assert "unknown" not in text

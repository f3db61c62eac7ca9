"""Effects that are asked for: by events, by consumers, and by user code, in the transaction of the state change."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from pydantic import BaseModel

from onefold import AsyncTransaction, Consumer, Effect, Message, Transaction, VersionConflict, perform
from onefold.domain.errors import UnstorableValue
from onefold.infrastructure.connection import connected
from onefold.infrastructure.effects.tasks import find
from onefold.infrastructure.postgres.outbox import NoTransaction
from onefold.projections.effect import EffectConflict, EffectKeyError, call_of
from onefold.testing import Outcome, delivered

from .shipping import Parcel, application, parcel, rows, run, shop


def nothing(event: Any, call: Any) -> None: ...


def asking(**options: Any) -> Effect:
    return Effect("tell", nothing, **{"on": Parcel.Shipped, **options})


def test_an_event_asks_once_and_in_its_own_transaction(database_url: str) -> None:
    with shop(database_url, asking()) as store:
        store.save(parcel("1", Parcel.Shipped(to="ana"), Parcel.Returned(why="moved")))
        with pytest.raises(VersionConflict):
            store.save(parcel("1", Parcel.Shipped(to="bo")))
        (event, _) = store.log.load("freight/1")
    own = str(event.meta.event_id)
    assert rows(database_url, "effect, key, call::text, attempts, type, data ->> 'to', stream, version") == [
        ("tell", own, str(call_of("tell", own, of_event=True)), 0, "freight.shipped", "ana", "freight/1", 1)
    ]
    assert rows(database_url, "count(*) OVER (), due_at <= clock_timestamp(), position") == [
        (1, True, event.meta.position)
    ]


def test_the_function_gets_the_event_as_it_is_stored(database_url: str) -> None:
    seen: list[Any] = []
    effect = asking()
    effect.function = lambda event, call: seen.append((event, event.meta, call.at, call.attempt))
    with shop(database_url, effect) as store:
        store.save(parcel("1", Parcel.Shipped(to="ana")), metadata={"actor": "bo"})
        run(database_url, effect)
        (event,) = store.log.load("freight/1")
    [(found, meta, at, attempt)] = seen
    assert found == event
    assert (meta.stream, meta.version, meta.position) == ("freight/1", 1, event.meta.position)
    assert (meta.event_id, meta.occurred_at) == (event.meta.event_id, event.meta.occurred_at)
    assert (meta.recorded_at, meta.metadata) == (event.meta.recorded_at, {"actor": "bo"})
    assert (at, attempt) == (event.meta.occurred_at or at, 1)


def test_events_of_one_declared_key_ask_once(database_url: str) -> None:
    effect = asking(key=lambda event: event.meta.key if event.to != "nobody" else None)
    with shop(database_url, effect) as store:
        store.save(parcel("1", Parcel.Shipped(to="ana"), Parcel.Shipped(to="ana")))
        store.change(Parcel, "1", lambda found: found.emit(Parcel.Shipped(to="ana")))
        store.save(parcel("2", Parcel.Shipped(to="nobody")))
    assert rows(database_url) == [("tell", "1", 0)]


def test_a_key_that_stands_for_other_content_is_a_dead_letter_and_no_second_call(database_url: str) -> None:
    effect = asking(key=lambda event: "same")
    with shop(database_url, effect) as store:
        store.save(parcel("1", Parcel.Shipped(to="ana"), Parcel.Shipped(to="bo")))
        # The same content, of another stream.
        store.save(parcel("2", Parcel.Shipped(to="ana")))
        store.save(parcel("1b", Parcel.Returned(why="moved")))
    assert rows(database_url, "key, data ->> 'to', stream, outcome") == [
        ("same", "ana", "freight/1", None),
        ("same", "bo", "freight/1", "key_conflict"),
        ("same", "ana", "freight/2", "key_conflict"),
    ]
    assert run(database_url, effect) == {"tell": {"done": 1}}


def test_a_key_is_known_when_its_task_is_gone(database_url: str) -> None:
    with connected(database_url) as connection:
        for _ in range(2):
            with connection.transaction():
                perform(connection, "tell", {"to": "ana"}, key="k")
            run(database_url, Effect("tell", nothing))
            connection.execute("DELETE FROM onefold.effects")
        with connection.transaction(), pytest.raises(EffectConflict, match="key 'k'"):
            perform(connection, "tell", {"to": "bo"}, key="k")
    assert rows(database_url) == []


def test_equal_data_is_no_conflict_whatever_its_writing(database_url: str) -> None:
    with connected(database_url) as connection, connection.transaction():
        first = perform(connection, "tell", {"to": "ana", "amount": Decimal("24.90")}, key="k")
        again = perform(connection, "tell", {"amount": Decimal("24.9"), "to": "ana"}, key="k")
        other = perform(connection, "tell", {"amount": Decimal("24.9"), "to": "ana"})
        with pytest.raises(EffectConflict, match="other content"):
            perform(connection, "tell", {"amount": 99}, key="k")
    assert first == again == str(call_of("tell", "k"))
    assert other != first
    assert len(rows(database_url)) == 2


def test_a_rollback_asks_for_nothing_and_the_key_is_free(database_url: str) -> None:
    with connected(database_url) as connection:
        with connection.transaction(force_rollback=True):
            perform(connection, "tell", {"n": 1}, key="k")
        assert rows(database_url) == []
        with connection.transaction():
            perform(connection, "tell", {"n": 2}, key="k")
    assert rows(database_url) == [("tell", "k", 0)]


def test_two_transactions_with_one_key_ask_once(database_url: str) -> None:
    with connected(database_url) as one, connected(database_url) as other:
        other.execute("SET lock_timeout = '100ms'")
        with one.transaction():
            perform(one, "tell", {"n": 1}, key="k")
            with pytest.raises(psycopg.errors.LockNotAvailable), other.transaction():
                perform(other, "tell", {"n": 1}, key="k")
        with other.transaction():
            perform(other, "tell", {"n": 1}, key="k")
    assert rows(database_url) == [("tell", "k", 0)]


def test_a_consumer_asks_with_its_message(database_url: str) -> None:
    def handle(message: Message, tx: Transaction) -> None:
        tx.perform("tell", message.data, key=message.data["parcel"])
        if message.data.get("fail"):
            raise ValueError

    async def handle_async(message: Message, tx: AsyncTransaction) -> None:
        await asyncio.sleep(0)
        await tx.perform("tell", message.data)

    def consumer(effect: Any) -> Consumer:
        return Consumer("shipping", effect=effect, ordering="unordered", age="received")

    base = {"source": "/s", "type": "t"}
    one = {**base, "id": "1", "data": {"parcel": "p"}}
    other = {**base, "id": "2", "data": {"parcel": "p", "to": "bo"}}
    assert delivered(consumer(handle), [one, one, {**one, "id": "3"}, other], database_url) == [
        Outcome.APPLIED, Outcome.DUPLICATE, Outcome.APPLIED, Outcome.REJECTED,
    ]  # fmt: skip
    assert rows(database_url) == [("tell", "p", 0)]
    delivered(consumer(handle_async), [{**one, "id": "5"}, {**one, "id": "6"}], database_url)
    assert len(rows(database_url)) == 3


class Letter(BaseModel):
    to: str
    amount: Decimal


def test_data_come_as_the_function_is_annotated(database_url: str) -> None:
    seen: list[Any] = []

    def typed(letter: Letter, call: Any) -> None:
        seen.append(letter)

    def untyped(letter: Any, call: Any) -> None:
        seen.append(letter)

    letter = Letter(to="ana", amount=Decimal("1E-7"))
    with connected(database_url) as connection, connection.transaction():
        perform(connection, "typed", letter)
        perform(connection, "untyped", {"amounts": [Decimal("0.10"), 2]})
        perform(connection, "untyped", Parcel.Shipped(to="bo"))
        perform(connection, "untyped")
    run(database_url, Effect("typed", typed), Effect("untyped", untyped))
    assert seen == [letter, {"amounts": ["0.10", 2]}, Parcel.Shipped(to="bo"), None]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"a": "x\x00"}, "data.a contains a NUL"),
        (float("nan"), "data"),
        ("\ud800", "data"),
        (object(), "data"),
    ],
    ids=["nul", "nan", "surrogate", "object"],
)
def test_data_that_cannot_be_kept_are_refused_before_anything_is_written(
    database_url: str, data: Any, problem: str
) -> None:
    with connected(database_url) as connection, connection.transaction():
        with pytest.raises(UnstorableValue, match=problem):
            perform(connection, "tell", data)
        connection.execute("SELECT 1")


@pytest.mark.parametrize(
    "key", ["", "a\x00", "\ud800", "x" * 1001], ids=["empty", "nul", "surrogate", "long"]
)
def test_what_cannot_be_a_key_is_refused(database_url: str, key: str) -> None:
    with connected(database_url) as connection, connection.transaction():
        with pytest.raises(EffectKeyError, match="effect tell: "):
            perform(connection, "tell", key=key)
        with pytest.raises(EffectKeyError, match="name"):
            perform(connection, "Tell!")


def test_nothing_is_asked_for_outside_of_a_transaction(database_url: str) -> None:
    with connected(database_url) as connection, pytest.raises(NoTransaction):
        perform(connection, "tell")


def test_a_task_can_be_looked_up_with_its_result(database_url: str) -> None:
    effect = Effect("tell", lambda event, call: {"receipt": 7}, on=Parcel.Shipped)
    with shop(database_url, effect) as store, connected(database_url) as connection:
        (event,) = store.save(parcel("1", Parcel.Shipped(to="ana")))
        with connection.transaction():
            perform(connection, effect, {}, key="k")
        open_ = find(connection, effect, "k")
        assert open_ is not None
        assert (open_.done_at, open_.result) == (None, None)
        run(database_url, effect)
        for key in ("k", str(event.meta.event_id)):
            done = find(connection, "tell", key)
            assert done is not None
            assert (done.result, done.attempts, done.due_at) == ({"receipt": 7}, 1, None)
        assert find(connection, "tell", "another") is None


def test_the_application_names_its_effects_once() -> None:
    effect = asking()
    app = application(effect)
    assert app.effect("tell") is effect
    assert "effects=[tell]" in repr(app)

"""Tasks: what effects are asked for, written in the transaction of the state change that asks."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import class_row, tuple_row
from pydantic_core import to_json

from ...domain.event import Event, encode
from ...projections.effect import Effect, EffectConflict, EffectKeyError, call_of, checked_key
from ...projections.fingerprint import fingerprint, shown
from ...projections.message import Message
from ...projections.projection import NAME
from ..identity import new_event_id
from ..postgres.outbox import NoTransaction
from ..postgres.sql import statement
from .value import as_json

CHANNEL = "onefold_effects"
"""The channel of NOTIFY on which writers wake the runners."""

WAKE_INTERVAL = 0.005
"""Seconds between two wake-ups that one process sends."""

_last_wake = 0.0


class Task(NamedTuple):
    """One call that is asked for: the effect, its key, what its function is called with, and the key of the call.

    `fingerprint` is that of the content where the key was given by hand, None where nothing else can have the key.
    """

    effect: str
    key: str
    call: UUID
    fingerprint: UUID | None
    type: str | None
    schema_version: int | None
    data: str
    stream: str | None = None
    version: int | None = None
    position: int | None = None
    event_id: UUID | None = None
    occurred_at: datetime | None = None
    recorded_at: datetime | None = None
    metadata: str | None = None
    conflict: str | None = None


@dataclass(frozen=True, slots=True)
class TaskState:
    """A task as it stands: due at `due_at`, or done with a `result`, or dead of an `outcome` and an `error`."""

    id: int
    effect: str
    key: str
    call: str
    attempts: int
    asked_at: datetime
    due_at: datetime | None
    done_at: datetime | None
    result: Any
    dead_at: datetime | None
    outcome: str | None
    error: str | None


def perform(
    connection: psycopg.Connection[Any], effect: str | Effect, data: Any = None, *, key: str | None = None
) -> str:
    """Ask for an effect, in the transaction that the caller has open on the connection; return the key of the call.

    `data` is what the function gets: any JSON value, a pydantic model, or an event. `key` says what the call is made
    once for: the same key with equal data asks for nothing new, with other data it raises `EffectConflict`. Left out,
    every call of this is a call to the world outside.
    Raises `NoTransaction`, `EffectKeyError`, and `UnstorableValue` for data that JSON in PostgreSQL cannot hold.
    """
    task = task_of(effect, data, key)
    conflicts = write(connection, [task])
    if conflicts:
        raise EffectConflict(_conflict(task))
    return str(task.call)


def task_of(effect: str | Effect, data: Any, key: str | None) -> Task:
    """Return the task that `perform` writes."""
    name = effect if isinstance(effect, str) else effect.name
    if not NAME.fullmatch(name):
        raise EffectKeyError(
            f"expected an effect's name of lower-case letters, digits and underscores, at most 41, found {name!r}"
        )
    own = checked_key(name, str(new_event_id()) if key is None else key)
    call = call_of(name, own)
    if isinstance(data, Event):
        text = encode(data)
        mark = None if key is None else _print(data.event_name, _stream(data), text)
        return _of_event(name, own, call, data, text, mark)
    text = as_json(f"effect {name}", "data", data)
    return Task(name, own, call, None if key is None else _print("", None, text), None, None, text)


def asked(effect: Effect, event: Event) -> Task | None:
    """Return the task that a stored event asks for, None where it asks for nothing."""
    key = effect.key_of(event)
    if key is None:
        return None
    text = encode(event)
    own = effect.has_own_keys
    mark = _print(event.event_name, event.meta.stream, text) if own else None
    return _of_event(effect.name, key, call_of(effect.name, key, of_event=not own), event, text, mark)


def announce(connection: psycopg.Connection[Any], tasks: Sequence[Task]) -> None:
    """Write the tasks that events ask for; one whose key has stood for other content becomes a dead letter.

    An event is a fact and does not fail because of what is told of it.
    """
    conflicts = write(connection, tasks)
    if conflicts:
        write(connection, [task._replace(conflict=_conflict(task)) for task in conflicts])


def write(connection: psycopg.Connection[Any], tasks: Sequence[Task]) -> list[Task]:
    """Write tasks in the open transaction; return those whose key has stood for other content, which are not written.

    A task whose key is known with equal content is there already. Raises `NoTransaction`.
    """
    global _last_wake
    if not tasks:
        return []
    if connection.info.transaction_status != TransactionStatus.INTRANS:
        raise NoTransaction
    first: dict[UUID, Task] = {}
    again: list[Task] = []
    plain: list[Task] = []
    for task in tasks:
        if task.fingerprint is None or task.conflict is not None:
            plain.append(task)
        elif first.setdefault(task.call, task) is not task:
            again.append(task)
    new = [*plain, *first.values()]
    with connection.cursor(row_factory=tuple_row) as cursor:
        columns = [list(column) for column in zip(*new, strict=True)]
        made = {call for (call,) in cursor.execute(statement("effect_write"), columns, prepare=True)}
        known = {call: task.fingerprint for call, task in first.items()}
        if old := [call for call in first if call not in made]:
            known |= dict(cursor.execute(statement("effect_known"), (old,)).fetchall())
        if made and (now := time.monotonic()) - _last_wake >= WAKE_INTERVAL:
            _last_wake = now
            cursor.execute(statement("effect_wake"), prepare=True)
    return [task for task in (*first.values(), *again) if known[task.call] != task.fingerprint]


def find(connection: psycopg.Connection[Any], effect: str | Effect, key: str) -> TaskState | None:
    """Return the task of this effect and key, None if there is none, or none any more.

    `key` is the one that was given by hand, or the id of the event that asked.
    """
    name = effect if isinstance(effect, str) else effect.name
    with connection.cursor(row_factory=class_row(TaskState)) as cursor:
        for of_event in (False, True):
            call = call_of(name, key, of_event=of_event)
            if (found := cursor.execute(statement("effect_find"), (call,)).fetchone()) is not None:
                return found
    return None


def _of_event(name: str, key: str, call: UUID, event: Event, text: str, mark: UUID | None) -> Task:
    task = Task(name, key, call, mark, event.event_name, event.schema_version, text)
    if _stream(event) is None:
        return task
    meta = event.meta
    return task._replace(
        stream=meta.stream,
        version=meta.version,
        position=meta.position,
        event_id=meta.event_id,
        occurred_at=meta.occurred_at,
        recorded_at=meta.recorded_at,
        metadata=to_json(meta.metadata).decode() if meta.metadata else None,
    )


def _stream(event: Event) -> str | None:
    # One that was made by hand belongs to no stream.
    try:
        return event.meta.stream
    except AttributeError:
        return None


def _print(kind: str, stream: str | None, text: str) -> UUID:
    message = Message("", "", kind, json.loads(text, parse_float=Decimal), stream)
    return UUID(bytes=fingerprint(message))


def _conflict(task: Task) -> str:
    return (
        f"effect {task.effect}: expected the content that the key {shown(task.key)} was given with before, found "
        "other content; give what is another call a key of its own"
    )

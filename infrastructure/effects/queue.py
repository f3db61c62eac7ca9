"""The queue: tasks that are due, claimed by lease, and what became of them, written only under the claim's token."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import class_row

from ...domain.errors import UnstorableValue
from ...domain.event import EventMeta
from ...projections.effect import Dead, Effect, cause_of
from ..postgres.sql import statement
from .value import as_json

LARGEST_RESULT = 65_536
"""Bytes of a result as JSON; a larger one is not kept."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A task in hand. `attempts` counts this try; `age` is seconds since the first one before it, None without any."""

    id: int
    effect: str
    key: str
    call: UUID
    token: int
    attempts: int
    age: float | None
    type: str | None
    schema_version: int | None
    data: str
    stream: str | None
    version: int | None
    position: int | None
    event_id: UUID | None
    occurred_at: datetime | None
    recorded_at: datetime | None
    metadata: str | None
    asked_at: datetime

    @property
    def happened(self) -> datetime:
        """When what it tells of happened, else when it was asked for."""
        return self.occurred_at or self.asked_at

    def argument(self, effect: Effect) -> Any:
        """Return what the function is called with: the event, the data in its model, or as JSON gives them."""
        if self.type is not None:
            meta = EventMeta(
                self.stream or "",
                self.version or 0,
                self.position or 0,
                occurred_at=self.occurred_at,
                recorded_at=self.recorded_at,
                event_id=self.event_id,
                metadata=None if self.metadata is None else json.loads(self.metadata),
            )
            return effect.registry.decode(self.type, self.schema_version or 1, self.data, meta)
        if effect.model is not None:
            return effect.model.model_validate_json(self.data)
        return json.loads(self.data, parse_float=Decimal)


class Queue:
    """The tasks of some effects, on one connection in autocommit mode; each method is a transaction."""

    def __init__(self, connection: psycopg.Connection[Any], effects: Sequence[Effect], owner: str) -> None:
        self.connection = connection
        self._names = [each.name for each in effects]
        self._leases = [each.lease for each in effects]
        self._owner = owner

    def claim(self) -> Claimed | None:
        """Take the task that is due for longest and count the try; None if nothing is due that is free."""
        values = {"effects": self._names, "leases": self._leases, "owner": self._owner}
        with self.connection.cursor(row_factory=class_row(Claimed)) as cursor:
            return cursor.execute(statement("effect_claim"), values).fetchone()

    def next(self) -> float | None:
        """Return the seconds until a task is due or its lease ends, None if there is none."""
        row = self.connection.execute(statement("effect_next"), (self._names,)).fetchone()
        return None if row is None else row[0]

    def done(self, task: Claimed, result: Any, keep: float) -> bool:
        """Note that the call has had its effect; false if the task is another's by now."""
        kept, note = kept_result(task.effect, result)
        return self._say("effect_done", task, result=kept, note=note, keep=keep)

    def wait(self, task: Claimed, delay: float, error: str) -> bool:
        """Note a failed try, and make the task due in `delay` seconds; false if it is another's by now."""
        return self._say("effect_wait", task, delay=delay, error=error)

    def dead(self, task: Claimed, dead: Dead) -> bool:
        """Give the task up; false if it is another's by now."""
        return self._say("effect_dead", task, outcome=dead.outcome, error=dead.why)

    def again(self, task: Claimed) -> bool:
        """Note that no try has had an effect so far: the key counts as new."""
        return self._say("effect_again", task)

    def _say(self, name: str, task: Claimed, **values: Any) -> bool:
        values |= {"id": task.id, "token": task.token}
        return self.connection.execute(statement(name), values).rowcount == 1


def renew(connection: psycopg.Connection[Any], task: Claimed, lease: float) -> bool:
    """Make the lease last `lease` seconds from now on; false if the task is another's by now."""
    values = {"id": task.id, "token": task.token, "lease": lease}
    return connection.execute(statement("effect_renew"), values).rowcount == 1


def kept_result(effect: str, result: Any) -> tuple[str | None, str | None]:
    """Return a result as JSON to be kept, else why it is not: the call has had its effect whatever it returned."""
    if result is None:
        return None, None
    try:
        text = as_json(f"effect {effect}", "result", result)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it, the call is not made again
        why = str(error) if isinstance(error, UnstorableValue) else cause_of(error)
        return None, f"the result was not kept: {why}"
    if (size := len(text.encode())) > LARGEST_RESULT:
        return (
            None,
            f"the result was not kept: expected at most {LARGEST_RESULT:,} bytes of JSON, found {size:,}",
        )
    return text, None

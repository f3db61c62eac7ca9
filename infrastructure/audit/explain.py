"""Explaining a row of a read model: the events behind each column, and what was not applied, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import psycopg
from psycopg.rows import class_row
from psycopg.sql import Identifier
from pydantic import TypeAdapter, ValidationError

from ...domain.change import Change
from ...domain.errors import OnefoldError
from ...domain.event import Event
from ...projections.app import App
from ...projections.explanation import Explanation, differences, explain
from ...projections.ports import Key
from ...projections.projection import AnyProjection, Projection
from ...projections.row import Row
from ..history import RecordedEvent, history, logs
from ..postgres.pool import configure
from ..postgres.sql import statement
from ..postgres.table import READ, Table
from .history import decoded, meta_of
from .trace import WaitingMessage

EVENTS_AT_ONCE = 2_000
MANY = 1_000
"""Messages that wait, in one explanation at most."""

Ignored = Literal["no fold", "not applied yet", "cannot be read"]


class NotExplainable(OnefoldError):
    """A read model is not made by folds of rows, so that no event can be followed into its columns."""


class BadRowKey(OnefoldError, ValueError):
    """The key of a row does not fit the key fields of its row model."""


@dataclass(frozen=True, slots=True)
class Passed:
    """An event that the row owes nothing to, and why: the projection has no fold for it, or has not come to it."""

    event: RecordedEvent
    why: Ignored
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a consumer is in a sequence: the version applied last, the state, and how many messages wait."""

    consumer: str
    sequence: str
    version: int
    state: str | None
    parked: int


@dataclass(frozen=True, slots=True)
class RowExplanation:
    """Why a row of a read model says what it says.

    `stored` is the row in the table, None where there is none, and `row_position` the position applied to it last;
    `position` is that of the checkpoint: None where the projection was never run, or where `consumer` folds its
    messages into the table, which are not in the log. `explanation` folds the events up to the checkpoint anew,
    `differences` is how the table differs from that, and `passed` are the other events. `current` is false where the
    table was built by another declaration. `waiting` are messages of the sequence at consumers that were not applied,
    and `outcomes` what became of all messages of those consumers, of whatever sequence.
    """

    projection: str
    key: Key
    stored: Row | None
    row_position: int | None
    position: int | None
    current: bool
    failure: dict[str, Any] | None
    explanation: Explanation
    differences: tuple[Change, ...]
    passed: tuple[Passed, ...]
    consumer: str | None
    standings: tuple[Standing, ...]
    waiting: tuple[WaitingMessage, ...]
    outcomes: dict[str, dict[str, int]]

    @property
    def agrees(self) -> bool:
        """True if the table says what its events give."""
        return not self.differences


def projection_of(app: App, name: str) -> Projection[Any]:
    """Return the projection of rows of this name, or of its table's, also where a consumer folds into it.

    Raises `UnknownProjection` and `NotExplainable`.
    """
    name = name.removeprefix(f"{READ}.")
    found: AnyProjection | None = next(
        (each.fold for each in app.consumers if each.fold is not None and each.fold.name == name), None
    )
    if found is None:
        found = app.projection(name)
    if not isinstance(found, Projection):
        raise NotExplainable(
            f"expected a projection of rows, found {name}, which is made by {type(found).__name__}: its code writes "
            "what it likes, so no event can be followed into a column; look at its events with `onefold search`"
        )
    return found


def key_of_texts(projection: Projection[Any], texts: Sequence[str]) -> Key:
    """Return the key that texts give, one for each key field of the row model; raises `BadRowKey`."""
    names = projection.row.key_fields
    if len(texts) != len(names):
        raise BadRowKey(
            f"expected the key of a row of {projection.name} ({', '.join(names)}), found {len(texts)} values"
        )
    values: list[Any] = []
    for name, text in zip(names, texts, strict=True):
        try:
            values.append(TypeAdapter(projection.row.model_fields[name].annotation).validate_python(text))
        except ValidationError as error:
            (first, *_) = error.errors(include_url=False)
            raise BadRowKey(f"{projection.name}: key field {name}: {first['msg']}, found {text!r}") from error
    return tuple(values)


def explain_row(
    connection: psycopg.Connection[Any], app: App, projection: Projection[Any], key: Key
) -> RowExplanation:
    """Return why the row of a key says what it says, all of one moment. The connection is in autocommit mode.

    Where the key of a row is derived by a function of the application, all events of the projection's types are read.
    """
    configure(connection)
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        return _Look(connection, app, projection, projection.checked_key(key)).explanation()


class _Look:
    """What is read for one explanation."""

    def __init__(
        self, connection: psycopg.Connection[Any], app: App, projection: Projection[Any], key: Key
    ) -> None:
        self._connection = connection
        self._projection = projection
        self._key = key
        self._types = projection.types() or frozenset()
        self._consumer = next((each.name for each in app.consumers if each.fold is projection), None)
        classes = (each.aggregate_class for each in projection.folds)
        self._categories = {None if each is None else each.category for each in classes}
        self._streams = () if projection.key is not None else tuple(
            f"{category}/{key[0]}" for category in sorted(filter(None, self._categories))
        )  # fmt: skip

    def explanation(self) -> RowExplanation:
        projection = self._projection
        row_position, stored = self._stored()
        position, fingerprint, failure = self._checkpoint()
        recorded: list[RecordedEvent] = []
        told, passed = Explanation(), list[Passed]()
        difference: tuple[Change, ...] = ()
        if self._consumer is None and projection.log in logs(self._connection):
            recorded = self._recorded()
            told, passed = self._fold(recorded, position or 0)
            difference = differences(stored, told.row)
            if difference and projection.key is None:
                # Events of such types may stand in streams of other categories, too.
                found = {event.position: event for event in (*recorded, *self._scan(str(self._key[0])))}
                recorded = [found[place] for place in sorted(found)]
                told, passed = self._fold(recorded, position or 0)
                difference = differences(stored, told.row)
        consumers: set[str] = {*filter(None, (self._consumer, *map(_consumer, recorded)))}
        standings, waiting = self._inbox(recorded)
        consumers.update(each.consumer for each in standings)
        consumers.update(each.consumer for each in waiting)
        return RowExplanation(
            projection.name,
            self._key,
            stored,
            row_position,
            position,
            fingerprint is None or fingerprint == projection.fingerprint(),
            failure,
            told,
            difference,
            tuple(passed),
            self._consumer,
            standings,
            waiting,
            self._outcomes(consumers),
        )

    def _stored(self) -> tuple[int | None, Row | None]:
        table = self._connection.execute(
            "SELECT to_regclass(%s)", (Identifier(READ, self._projection.name).as_string(self._connection),)
        ).fetchone()
        if table is None or table[0] is None:
            return None, None
        try:
            with self._connection.transaction():
                found = Table(self._projection).load(self._connection, [self._key], binary=False)
        except psycopg.errors.UndefinedColumn:
            # Built by another declaration.
            return None, None
        return found.get(self._key, (None, None))

    def _checkpoint(self) -> tuple[int | None, str | None, dict[str, Any] | None]:
        row = self._connection.execute(
            statement("audit_explain_checkpoint"), (self._projection.name,)
        ).fetchone()
        return (None, None, None) if row is None else row

    def _recorded(self) -> list[RecordedEvent]:
        if self._projection.key is not None or None in self._categories:
            return list(self._scan(None if self._projection.key is not None else str(self._key[0])))
        found = (
            event
            for stream in self._streams
            for event in history(self._connection, stream, log=self._projection.log)
        )
        return sorted(found, key=lambda event: event.position)

    def _scan(self, key: str | None) -> Iterator[RecordedEvent]:
        query = statement("audit_explain_scan", log=Identifier("onefold", self._projection.log))
        values: dict[str, Any] = {"after": 0, "types": list(self._types), "key": key, "limit": EVENTS_AT_ONCE}
        with self._connection.cursor(row_factory=class_row(RecordedEvent)) as cursor:
            while page := cursor.execute(query, values).fetchall():
                yield from (event for event in page if key is not None or self._concerns(event))
                values["after"] = page[-1].position

    def _concerns(self, event: RecordedEvent) -> bool:
        try:
            return self._projection.key_of(decoded(event, self._projection.registry)) == self._key
        except Exception:  # noqa: BLE001 - the projection stops there, and its failure is shown
            return False

    def _fold(self, recorded: Iterable[RecordedEvent], position: int) -> tuple[Explanation, list[Passed]]:
        events: list[Event] = []
        passed: list[Passed] = []
        for event in recorded:
            if event.type not in self._types:
                passed.append(Passed(event, "no fold"))
            elif event.position > position:
                passed.append(Passed(event, "not applied yet"))
            else:
                try:
                    found = decoded(event, self._projection.registry)
                except OnefoldError as error:
                    passed.append(Passed(event, "cannot be read", str(error)))
                    continue
                if type(found) in self._projection.folds:
                    events.append(found)
                else:
                    passed.append(Passed(event, "no fold"))
        return explain(self._projection, self._key, events), passed

    def _inbox(
        self, recorded: Iterable[RecordedEvent]
    ) -> tuple[tuple[Standing, ...], tuple[WaitingMessage, ...]]:
        streams = {*self._streams, *(event.stream for event in recorded)}
        if self._consumer is not None:
            streams.add("/".join(map(str, self._key)))
        values = {"sequences": sorted(streams), "limit": MANY}
        execute = self._connection.execute
        standings = execute(statement("audit_explain_standings"), values).fetchall()
        waiting = execute(statement("audit_explain_waiting"), values).fetchall()
        return tuple(Standing(*row) for row in standings), tuple(WaitingMessage(*row) for row in waiting)

    def _outcomes(self, consumers: Iterable[str]) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        values = {"consumers": sorted(consumers)}
        for consumer, outcome, count in self._connection.execute(statement("audit_explain_outcomes"), values):
            found.setdefault(consumer, {})[outcome] = count
        return found


def _consumer(event: RecordedEvent) -> str | None:
    found = meta_of(event).metadata.get("consumer")
    return found if isinstance(found, str) else None

"""The importer: appends the events of a source, each one once."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Mapping as Values
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from psycopg import errors as refusals

from ...domain.errors import UnstorableValue
from ...domain.event import Event, EventMeta, encode
from ..identity import event_id_of
from ..postgres.errors import DuplicateEventId, VersionConflict
from ..postgres.log import EventLog, lost
from ..postgres.sql import statement
from .errors import MappingFailed
from .mapping import Fact, HeldBack, Mapping, Outcome, Unreadable, reason_of
from .report import LISTED, Conflict, Difference, ImportReport, Problem, Progress
from .row import Row
from .rows import Rows

BATCH = 1000
"""Events of one transaction."""

ATTEMPTS = 12
"""Tries of a batch against writers of the same streams; each loses only when another has won."""

RETRIED = (
    VersionConflict,
    DuplicateEventId,
    refusals.UniqueViolation,
    refusals.DeadlockDetected,
    refusals.SerializationFailure,
    refusals.LockNotAvailable,
)


class Known(NamedTuple):
    """What stands under an event id, in the log or earlier in the batch."""

    stream: str
    occurred_at: datetime
    event: Event


@dataclass(slots=True)
class _Decision:
    """What a batch comes to when its transaction commits."""

    appended: int = 0
    duplicate: int = 0
    conflicts: list[Conflict] = field(default_factory=list[Conflict])
    problems: list[Problem] = field(default_factory=list[Problem])
    first: EventMeta | None = None
    """Where the first new event was put, if the transaction commits."""

    def enter(self, report: ImportReport) -> None:
        report.appended += self.appended
        report.duplicate += self.duplicate
        for conflict in self.conflicts:
            report.note_conflict(conflict)
        for problem in self.problems:
            report.note_unreadable(problem)


class Importer:
    """Reads files through a mapping into a log.

    Each batch is one transaction: it looks up which event ids are in the log, appends the events that are not, and
    leaves the others alone. Importers of one source take turns, batch by batch. An import that was
    broken off is run again from the start.
    """

    def __init__(
        self,
        log: EventLog,
        *,
        batch: int = BATCH,
        listed: int = LISTED,
        metadata: Values[str, Any] | None = None,
    ) -> None:
        if batch < 1:
            raise ValueError(f"a batch has 1 event or more, found {batch}")
        self.log = log
        self.batch = batch
        self.listed = listed
        self.metadata = metadata
        self._turn = statement("import_turn")

    def run(
        self,
        mapping: Mapping,
        files: Sequence[str | Path],
        *,
        progress: Callable[[Progress], None] | None = None,
    ) -> ImportReport:
        """Read the files in and return what became of them; `progress` is called every few thousand rows and batches.

        Raises `InputFileError` before anything is read when a file cannot be opened, and `MappingFailed` when the
        mapping raises an error of its own.
        """
        report = ImportReport(mapping.source, listed=self.listed)
        batch: list[Fact] = []

        def tell() -> None:
            if progress is not None:
                events = report.appended + report.duplicate + report.conflict
                progress(Progress(rows.read, events, rows.bytes_read, rows.bytes_total))

        rows = Rows(files, mapping.format, tick=tell)
        for outcome in _outcomes(mapping, rows, report):
            match outcome:
                case Fact():
                    batch.append(outcome)
                    if len(batch) >= self.batch:
                        self._store(batch, mapping.source).enter(report)
                        batch.clear()
                        tell()
                case Unreadable():
                    report.note_unreadable(_problem(outcome.row, outcome.reason))
                case HeldBack():
                    report.note_held_back(_problem(outcome.row, outcome.reason))
        self._store(batch, mapping.source).enter(report)
        report.read = rows.read
        tell()
        return report

    def _store(self, facts: Sequence[Fact], source: str) -> _Decision:
        decision = _Decision()
        attempt = 1
        while facts:
            try:
                self._attempt(facts, source, decision)
                break
            except UnstorableValue:
                facts = _storable(facts, decision.problems)
                continue
            except RETRIED:
                if attempt == ATTEMPTS:
                    raise
            except psycopg.OperationalError as error:
                if attempt == ATTEMPTS or not lost(error):
                    raise
                self.log.pool.check()
            attempt += 1
            time.sleep(random.uniform(0.5, 1) * min(0.02 * 2**attempt, 2))  # noqa: S311 - only spreads tries
        return decision

    def _attempt(self, facts: Sequence[Fact], source: str, decision: _Decision) -> None:
        ids = [event_id_of(source, fact.key) for fact in facts]
        duplicate = 0
        conflicts: list[Conflict] = []
        new: list[tuple[UUID, Fact]] = []
        with self.log.pool.connection() as connection, connection.transaction():
            # An earlier try that is still under way on the server holds the turn until it has ended.
            connection.execute(self._turn, (source,), prepare=True)
            known = self._known(connection, ids)
            if _committed(decision, known):
                return
            for event_id, fact in zip(ids, facts, strict=True):
                there = known.get(event_id)
                if there is None:
                    known[event_id] = Known(fact.stream, fact.occurred_at, fact.event)
                    new.append((event_id, fact))
                elif differences := self._differences(there, fact):
                    conflicts.append(_conflict(fact, differences))
                else:
                    duplicate += 1
            stored = self._append(connection, new, source)
            decision.appended, decision.duplicate, decision.conflicts = len(new), duplicate, conflicts
            decision.first = stored[0].meta if stored else None

    def _known(self, connection: psycopg.Connection[Any], ids: Sequence[UUID]) -> dict[UUID, Known]:
        known: dict[UUID, Known] = {}
        for record in self.log.by_ids(connection, list(dict.fromkeys(ids))):
            event = self.log.event(record)
            meta = event.meta
            if meta.event_id is not None:
                known[meta.event_id] = Known(meta.stream, meta.happened, event)
        return known

    def _append(
        self, connection: psycopg.Connection[Any], new: Sequence[tuple[UUID, Fact]], source: str
    ) -> list[Event]:
        if not new:
            return []
        versions = self.log.versions(connection, list({fact.stream for _, fact in new}))
        events: list[Event] = []
        for event_id, fact in new:
            version = versions[fact.stream] = versions[fact.stream] + 1
            place = EventMeta(fact.stream, version, occurred_at=fact.occurred_at, event_id=event_id)
            events.append(fact.event.bound(place))
        metadata = {"source": source} if self.metadata is None else self.metadata
        return self.log.append(events, metadata=metadata, connection=connection)

    def _differences(self, there: Known, fact: Fact) -> tuple[Difference, ...]:
        found: list[Difference] = []
        if there.stream != fact.stream:
            found.append(Difference("stream", there.stream, fact.stream))
        if there.occurred_at != fact.occurred_at and not fact.derived:
            found.append(
                Difference("occurred_at", there.occurred_at.isoformat(), fact.occurred_at.isoformat())
            )
        if there.event != fact.event:
            found += self._differences_of_data(there.event, fact.event)
        return tuple(found)

    def _differences_of_data(self, stored: Event, event: Event) -> Iterator[Difference]:
        if type(stored) is not type(event):
            yield Difference("type", stored.event_name, event.event_name)
            return
        # What went through JSON may have other types than what comes from a row, and still say the same.
        meta = EventMeta("", 0)
        decode = self.log.registry.decode
        stored, event = (
            decode(each.event_name, each.schema_version, encode(each), meta) for each in (stored, event)
        )
        for name in type(event).model_fields:
            left, right = getattr(stored, name), getattr(event, name)
            if left != right:
                yield Difference(name, str(left), str(right))


def _committed(decision: _Decision, known: Values[UUID, Known]) -> bool:
    """Tell whether the log has what an earlier try of the batch appended before its answer was lost.

    The number of a transaction would not tell: a server that crashed before the commit gives it out again. Nor would
    the ids alone: another importer may have appended the same events since.
    """
    first = decision.first
    if first is None or first.event_id is None or first.event_id not in known:
        return False
    there = known[first.event_id].event.meta
    return (there.position, there.recorded_at) == (first.position, first.recorded_at)


def _outcomes(mapping: Mapping, rows: Rows, report: ImportReport) -> Iterator[Outcome]:
    outcomes = mapping(rows)
    while True:
        try:
            outcome = next(outcomes)
        except StopIteration:
            return
        except (Exception, SystemExit) as error:
            raise MappingFailed(mapping.source, rows.place, report.appended, error) from error
        yield outcome


def _storable(facts: Sequence[Fact], problems: list[Problem]) -> list[Fact]:
    """Report the facts that JSON in PostgreSQL cannot hold, with those of the same row, and return the others."""
    flaws: dict[tuple[str, int], str] = {}
    kept: list[Fact] = []
    for fact in facts:
        try:
            encode(fact.event)
        except UnstorableValue as error:
            flaws.setdefault(_place(fact), reason_of(error))
        else:
            kept.append(fact)
    problems += (Problem(file, line, reason) for (file, line), reason in flaws.items())
    return [fact for fact in kept if fact.row is None or _place(fact) not in flaws]


def _problem(row: Row, reason: str) -> Problem:
    return Problem(row.file, row.line, reason)


def _conflict(fact: Fact, differences: tuple[Difference, ...]) -> Conflict:
    file, line = _place(fact)
    return Conflict(fact.key, fact.stream, differences, file, line)


def _place(fact: Fact) -> tuple[str, int]:
    return ("", 0) if fact.row is None else (fact.row.file, fact.row.line)

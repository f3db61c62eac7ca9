"""The engine: reads pages, folds them in memory, and writes rows and checkpoint in one transaction a page.

While there is a backlog the next page is read, and the last one written, beside the folding. A row that was read
or written stays in memory as long as the lease is held. After any error all of that is dropped, and the work
starts again from the stored checkpoint.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from ..domain.errors import OnefoldError, UnknownEventType
from ..domain.event import Event, EventMeta, at
from ..domain.registry import Decode
from .errors import FailedEvent, Failure, ProjectionFailed, RowRefused
from .guards import DUPLICATE, judge
from .ports import Checkpoint, Kept, Key, LogReader, Page, ReadModel, Record
from .projection import AnyProjection, Handler, Projection

PAGE = 20_000
"""Events in a page while there is a backlog."""

PATIENCE = 0.3
"""Share of the lease after which a page is cut, so that slow folds do not lose the lease again and again."""

CACHED_ROWS = 100_000
"""Rows kept in memory between pages; above it they are dropped once everything is written."""

REASON = 2_000
"""Letters of an exception's text that are kept."""

_NOTHING: Kept = (-1, None)
T = TypeVar("T")
_tuple = tuple.__new__


class Folded(NamedTuple):
    """The outcome of folding a page: changed rows, the position reached, what was applied, and the failure."""

    changes: dict[Key, Kept]
    upto: int
    applied: int
    duplicates: int
    failure: Failure | None


class _Work(NamedTuple):
    write: Callable[[Checkpoint], Checkpoint]
    upto: int
    read: int
    applied: int
    duplicates: int
    failure: Failure | None


@dataclass(slots=True)
class Progress:
    """What a run of the engine did: `position` reached, `applied` events, `duplicates` that were no-ops.

    `held` is false when another worker holds the projection; `waiting` is true when an open append may still
    fill a hole in front of the reader.
    """

    position: int = 0
    applied: int = 0
    duplicates: int = 0
    read: int = 0
    held: bool = True
    waiting: bool = False

    def count(self, work: _Work) -> None:
        """Add what was done."""
        self.read += work.read
        self.applied += work.applied
        self.duplicates += work.duplicates

    def discount(self, work: _Work | None) -> None:
        """Take off what was counted before its write was refused, if anything was."""
        if work is not None:
            self.read -= work.read
            self.applied -= work.applied
            self.duplicates -= work.duplicates


class Folder:
    """Folds pages of one `Projection`, with the rows that were seen before in memory."""

    def __init__(self, projection: Projection[Any]) -> None:
        self.rows: dict[Key, Kept] = {}
        self._keys: dict[str, Key] = {}
        self._projection = projection
        registry = projection.registry
        # By stored name: the fold and decoder of the schema version that needs no upcast.
        self._folds: dict[str, tuple[Any, int, Decode | None]] = dict.fromkeys(
            projection.types() or (), (None, 0, None)
        )
        for event_class, fold in projection.folds.items():
            version = event_class.schema_version
            decoder = registry.decoder(event_class.event_name, version)
            self._folds[event_class.event_name] = (fold, version, decoder)

    def forget(self) -> None:
        """Drop every row in memory."""
        self.rows.clear()
        self._keys.clear()

    def fold(
        self, page: Page, load: Callable[[set[Key]], Mapping[Key, Kept]], *, seconds: float = math.inf
    ) -> Folded:
        """Fold a page up to its end, its first failure, or until about `seconds` have passed.

        `load` gives the rows that are not in memory.
        """
        deadline = time.monotonic() + seconds
        folds, rows = self._folds, self.rows
        if self._projection.key is None:
            keyed, failure = self._keyed_by_stream(page.records), None
        else:
            keyed, failure = self._keyed_by_event(page.records)
        missing = {key for key, _ in keyed if key not in rows}
        if missing:
            found = load(missing)
            for key in missing:
                rows[key] = found.get(key, _NOTHING)
        changes: dict[Key, Kept] = {}
        applied = duplicates = 0
        folds_of_classes, now = self._projection.folds, time.monotonic
        for key, record in keyed:
            position = record[0]
            if now() > deadline and applied:
                return Folded(changes, position - 1, applied, duplicates, None)
            seen, row = rows[key]
            if judge(position, seen) is DUPLICATE:
                duplicates += 1
                continue
            fold, schema_version, validate = folds[record[7]]
            try:
                if record[5] == schema_version and validate is not None and record[8] is not None:
                    event = at(validate(record[8]), record)
                else:
                    event = self._decode(record)
                    fold = folds_of_classes.get(type(event))
                    if fold is None:
                        continue
                after = fold(row, event)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a fold raises stops it
                failure = failed(record, self._named(record, error))
                break
            applied += 1
            if after is not row:
                rows[key] = changes[key] = (position, after)
        upto = page.upto if failure is None else failure.position - 1
        return Folded(changes, upto, applied, duplicates, failure)

    def _keyed_by_stream(self, records: Sequence[Record]) -> list[tuple[Key, Record]]:
        folds, keys = self._folds, self._keys
        concerned = [record for record in records if record[7] in folds]
        for record in concerned:
            if record[6] not in keys:
                keys[record[6]] = (record[6].partition("/")[2],)
        return [(keys[record[6]], record) for record in concerned]

    def _keyed_by_event(self, records: Sequence[Record]) -> tuple[list[tuple[Key, Record]], Failure | None]:
        folds, key_of = self._folds, self._projection.key_of
        keyed: list[tuple[Key, Record]] = []
        for record in records:
            if record[7] in folds:
                try:
                    event = self._decode(record)
                    key = key_of(event) if type(event) in self._projection.folds else None
                except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a user's key raises stops it
                    return keyed, failed(record, error)
                if key is not None:
                    keyed.append((key, record))
        return keyed, None

    def _decode(self, record: Record) -> Event:
        return self._projection.registry.decode(record[7], record[5], record[8], _tuple(EventMeta, record))

    def _named(self, record: Record, error: BaseException) -> BaseException:
        """Return the error that names the event, if it is the event that cannot be decoded."""
        try:
            self._decode(record)
        except OnefoldError as named:
            return named
        return error


@dataclass(slots=True)
class Engine:
    """Moves one projection along its log; one `run` at a time.

    `reader`, `model` and the loads of rows use connections of their own, so that a page can be read and another
    written while a third is folded.
    """

    projection: AnyProjection
    reader: LogReader
    model: ReadModel
    page: int = PAGE
    cached_rows: int = CACHED_ROWS
    on_page: Callable[[Progress], None] | None = None
    backlog: Callable[[], AbstractContextManager[None]] = nullcontext
    """Entered while there is a backlog."""
    _folder: Folder | None = field(default=None, init=False)
    _token: int = field(default=-1, init=False)
    _uncertain: _Work | None = field(default=None, init=False)

    def run(self, stop: Callable[[], bool] = lambda: False) -> Progress:
        """Apply what is in the log until its present end, or until `stop()` says so.

        Raises `ProjectionFailed` at an event that cannot be applied, after everything before it was applied;
        `Fenced` when another worker took over; the errors of the database as they come.
        """
        progress = Progress()
        self._uncertain = None
        try:
            try:
                return self._run(stop, progress)
            except RowRefused:
                self.forget()
                progress.discount(self._uncertain)
                return self._isolate(stop, progress)
        except BaseException:
            self.forget()
            raise

    def forget(self) -> None:
        """Drop every row that is held in memory."""
        self._folder = None
        self._token = -1

    def _run(self, stop: Callable[[], bool], progress: Progress) -> Progress:
        checkpoint = self.model.claim()
        if checkpoint is None:
            self.forget()
            progress.held = False
            return progress
        if checkpoint.token != self._token:
            self.forget()
            self._token = checkpoint.token
        progress.position = checkpoint.position
        types = self.projection.types()
        page = self.reader.read(checkpoint.position, self.page, types)
        if len(page.records) < self.page:
            while page.records and not stop():
                checkpoint = self._apply(page, checkpoint, progress)
                page = self.reader.read(checkpoint.position, self.page, types)
                if len(page.records) >= self.page:
                    break
        if len(page.records) >= self.page:
            page = self._run_backlog(page, checkpoint, types, progress, stop)
        progress.waiting = page.waiting
        return progress

    def _run_backlog(
        self,
        page: Page,
        checkpoint: Checkpoint,
        types: frozenset[str] | None,
        progress: Progress,
        stop: Callable[[], bool],
    ) -> Page:
        with (
            self.backlog(),
            _Beside[None]("onefold-read") as ahead,
            _Beside[Checkpoint]("onefold-write") as behind,
        ):
            while page.records and not stop():
                ahead.start(partial(self.reader.prefetch, page.upto, self.page, types))
                checkpoint = self._apply(page, checkpoint, progress, behind)
                ahead.settle()
                page = self.reader.read(checkpoint.position, self.page, types)
            behind.settle()
        return page

    def _apply(
        self,
        page: Page,
        checkpoint: Checkpoint,
        progress: Progress,
        behind: _Beside[Checkpoint] | None = None,
    ) -> Checkpoint:
        page, unknown = self._known(page)
        if unknown is not None:
            self._settle(behind)
            behind = None
        moved = self._applied(page, checkpoint, progress, behind)
        if unknown is not None:
            raise ProjectionFailed(self.projection.name, unknown.event) from unknown.cause
        return moved

    def _known(self, page: Page) -> tuple[Page, Failure | None]:
        """Return the page up to the first event of a type that nobody knows, and that event."""
        projection = self.projection
        if projection.unknown == "pass" or projection.event_classes() is None:
            return page, None
        names = {record[7] for record in page.records}
        strange = {name for name in names if not projection.registry.knows(name)}
        if not strange:
            return page, None
        place, record = next(found for found in enumerate(page.records) if found[1][7] in strange)
        error = UnknownEventType(record[7], record[5], record[6], record[1], record[0])
        return Page(page.after, record[0] - 1, page.records[:place]), failed(record, error)

    def _applied(
        self,
        page: Page,
        checkpoint: Checkpoint,
        progress: Progress,
        behind: _Beside[Checkpoint] | None,
    ) -> Checkpoint:
        if isinstance(self.projection, Handler):
            self._settle(behind)
            return self._handle(page, checkpoint, progress)
        work = self._work(page, behind)
        self._settle(behind)
        if behind is None or work.failure is not None:
            moved = work.write(checkpoint)
        else:
            moved = Checkpoint(work.upto, checkpoint.token)
            behind.start(lambda: work.write(checkpoint))
            self._uncertain = work
        progress.position = work.upto
        progress.count(work)
        if self.on_page is not None:
            self.on_page(progress)
        if work.failure is not None:
            raise ProjectionFailed(self.projection.name, work.failure.event) from work.failure.cause
        return moved

    def _handle(self, page: Page, checkpoint: Checkpoint, progress: Progress) -> Checkpoint:
        """Run handlers over a page, or over as much of it as a part of the lease allows."""
        moved = self.model.handle(page, checkpoint)
        done = [record for record in page.records if record[0] <= moved.position]
        types = self.projection.types() or frozenset()
        progress.position = moved.position
        progress.read += len(done)
        progress.applied += sum(record[7] in types for record in done)
        if self.on_page is not None:
            self.on_page(progress)
        return moved

    def _work(self, page: Page, behind: _Beside[Checkpoint] | None) -> _Work:
        projection, model = self.projection, self.model
        if not isinstance(projection, Projection):
            types = projection.types()
            concerned = sum(types is None or record[7] in types for record in page.records)
            return _Work(lambda at: model.handle(page, at), page.upto, len(page.records), concerned, 0, None)
        folder = self._folder
        if folder is None:
            folder = self._folder = Folder(projection)
        if len(folder.rows) > self.cached_rows:
            self._settle(behind)
            folder.forget()
        try:
            changes, upto, applied, duplicates, failure = folder.fold(
                page, model.load, seconds=PATIENCE * projection.lease
            )
            packed = model.pack(changes)
        except RowRefused:
            self._settle(behind)
            raise

        def write(at: Checkpoint) -> Checkpoint:
            return model.write(packed, at, upto) if upto > at.position else at

        return _Work(write, upto, len(page.records), applied, duplicates, failure)

    def _settle(self, behind: _Beside[Checkpoint] | None) -> None:
        if behind is not None:
            behind.settle()
        self._uncertain = None

    def _isolate(self, stop: Callable[[], bool], progress: Progress) -> Progress:
        """Go on in ever smaller pages until the event that the database or its handler refuses stands alone."""
        limit = self.page
        while not stop():
            checkpoint = self.model.claim()
            if checkpoint is None:
                progress.held = False
                break
            progress.position = checkpoint.position
            page = self.reader.read(checkpoint.position, limit, self.projection.types())
            progress.waiting = page.waiting
            if not page.records:
                break
            try:
                self._apply(page, checkpoint, progress)
                limit = min(2 * limit, self.page)
            except RowRefused as refused:
                self.forget()
                if len(page.records) == 1:
                    event = failed(page.records[0], refused.reason).event
                    raise ProjectionFailed(self.projection.name, event) from refused.reason
                limit = len(page.records) // 2
        return progress


class _Beside(Generic[T]):
    """One thread that does one thing at a time beside the caller."""

    def __init__(self, name: str) -> None:
        self._threads = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._going: Future[T] | None = None

    def start(self, work: Callable[[], T]) -> Future[T]:
        self._going = self._threads.submit(work)
        return self._going

    def settle(self) -> None:
        """Wait for what was started; raises what it raised."""
        going, self._going = self._going, None
        if going is not None:
            going.result()

    def __enter__(self) -> _Beside[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=True)


def failed(record: Record, error: BaseException) -> Failure:
    """Return the failure of a record's event; its reason is one line that any database can keep."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the exception is the user's, and so is what it says of itself
        text = "(it cannot be shown)"
    line = " ".join(f"{type(error).__name__}: {text[:REASON]}".split()).replace("\x00", "\\x00")
    reason = line.encode("utf-8", "backslashreplace").decode()
    return Failure(FailedEvent(record[7], record[6], record[1], record[0], reason), error)

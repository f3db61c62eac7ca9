"""Folding in bulk: streams one after the other, or any key as long as all rows fit into memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..domain.errors import OnefoldError
from ..domain.event import Event, EventMeta
from ..domain.registry import Decode
from .engine import failed
from .errors import ProjectionFailed
from .ports import Kept, Key, Record
from .projection import Projection

ADVICE = "The version that serves is as it was; mend the fold or its row model and rebuild again"

_NOTHING: Kept = (-1, None)
_tuple = tuple.__new__
_set = object.__setattr__


class _Folds:
    """The folds of a projection by stored name, each with its schema version and decoder where no upcast is needed."""

    def __init__(self, projection: Projection[Any]) -> None:
        registry = projection.registry
        self.projection = projection
        self.by_name: dict[str, tuple[Any, int, Decode | None]] = dict.fromkeys(
            projection.types() or (), (None, 0, None)
        )
        for event_class, fold in projection.folds.items():
            version = event_class.schema_version
            decoder = registry.decoder(event_class.event_name, version)
            self.by_name[event_class.event_name] = (fold, version, decoder)

    def decode(self, record: Record) -> Event:
        return self.projection.registry.decode(record[7], record[5], record[8], _tuple(EventMeta, record))

    def named(self, record: Record, error: BaseException) -> BaseException:
        """Return the error that names the event, if it is the event that cannot be decoded."""
        try:
            self.decode(record)
        except OnefoldError as named:
            return named
        return error


def failure_of(projection: str, record: Record, error: BaseException) -> ProjectionFailed:
    """Return the error of a rebuild that failed at a record's event."""
    return ProjectionFailed(projection, failed(record, error).event, advice=ADVICE)


class StreamFolder:
    """Folds records that come stream by stream, each stream in the order of its versions; one stream is one row.

    `feed` takes any run of records and returns the rows that are finished; a stream may go on in the next run.
    """

    def __init__(self, projection: Projection[Any]) -> None:
        self._folds = _Folds(projection)
        self._stream = ""
        self._row: Any = None
        self._seen = -1

    def feed(self, records: Sequence[Record]) -> dict[Key, Kept]:
        """Fold records; return the finished rows with the position that changed each last.

        Raises `ProjectionFailed` at an event that cannot be applied.
        """
        finished: dict[Key, Kept] = {}
        by_name, classes = self._folds.by_name, self._folds.projection.folds
        stream, row, seen = self._stream, self._row, self._seen
        for record in records:
            if record[6] != stream:
                if row is not None:
                    finished[(stream.partition("/")[2],)] = (seen, row)
                stream, row, seen = record[6], None, -1
            entry = by_name.get(record[7])
            if entry is None:
                continue
            fold, schema_version, validate = entry
            try:
                if record[5] == schema_version and validate is not None and record[8] is not None:
                    event = validate(record[8])
                    _set(event, "_meta", _tuple(EventMeta, record))
                else:
                    event = self._folds.decode(record)
                    fold = classes.get(type(event))
                    if fold is None:
                        continue
                after = fold(row, event)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a fold raises stops it
                named = self._folds.named(record, error)
                raise failure_of(self._folds.projection.name, record, named) from named
            if after is not row:
                row, seen = after, record[0]
        self._stream, self._row, self._seen = stream, row, seen
        return finished

    def finish(self) -> dict[Key, Kept]:
        """Return the row of the last stream, if there is one."""
        stream, row, seen = self._stream, self._row, self._seen
        self._stream, self._row, self._seen = "", None, -1
        return {} if row is None else {(stream.partition("/")[2],): (seen, row)}


class KeyFolder:
    """Folds records in the order of the log, by whatever key their events lead to; `rows` has what came of it.

    A row that was removed stands there as None.
    """

    def __init__(self, projection: Projection[Any], only: frozenset[Key] | None = None) -> None:
        self.rows: dict[Key, Kept] = {}
        self._folds = _Folds(projection)
        self._only = only

    def feed(self, records: Sequence[Record]) -> None:
        """Fold records; of `only` these keys if they were given. Raises `ProjectionFailed`."""
        folds, rows, only = self._folds, self.rows, self._only
        by_name, projection = folds.by_name, folds.projection
        for record in records:
            if record[7] not in by_name:
                continue
            try:
                event = folds.decode(record)
                fold = projection.folds.get(type(event))
                key = projection.key_of(event) if fold is not None else None
                if fold is None or key is None or (only is not None and key not in only):
                    continue
                _, row = rows.get(key, _NOTHING)
                after = fold(row, event)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a user's key or fold raises stops it
                named = folds.named(record, error)
                raise failure_of(projection.name, record, named) from named
            if after is not row:
                rows[key] = (record[0], after)

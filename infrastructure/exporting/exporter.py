"""The exporter: writes a log, or a part of it, to a file, and goes on with one that was broken off."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import psycopg
from psycopg.sql import Identifier

from ..history import require_log
from ..postgres.pool import configure
from ..postgres.reader import LogReader
from ..postgres.sql import statement
from .errors import ExportFileError, ExportStalled, NotExportable
from .formats import Format, format_of
from .manifest import (
    Manifest,
    Partial,
    Selection,
    manifest,
    manifest_file,
    partial_file,
    read_partial,
    write_beside,
)
from .stored import Stored

EVENTS_AT_ONCE = 2_000
OF_STREAM_AT_ONCE = 200
PATIENCE = 30.0
"""Seconds for which an append that is open in front of the rest is waited for."""

Report = Callable[[int, int], None]
"""Told how many events were written so far, and the position reached."""


def export(
    connection: psycopg.Connection[Any],
    file: Path,
    *,
    kind: str | None = None,
    log: str = "events",
    stream: str | None = None,
    category: str | None = None,
    first: int = 1,
    last: int | None = None,
    patience: float = PATIENCE,
    progress: Report = lambda _events, _position: None,
) -> Manifest:
    """Write events to a file, and their manifest beside it; return the manifest.

    The connection is in autocommit mode, and nobody else's meanwhile. Without `stream` or `category` all events are
    written, from position `first` to `last`, or to the log's present end. A file that was broken off under the same
    selection is gone on with after its last complete record. Nothing that commits late is skipped: an append that is
    open in front of the rest is waited for.

    Raises `UnknownLog`, `ExportFileError`, `NotExportable`, and `ExportStalled` when an append stays open.
    """
    chosen = format_of(file, kind)
    if manifest_file(file).exists():
        raise ExportFileError(
            f"expected a new file, found the complete export {file} with its manifest; "
            "name another file, or remove both"
        )
    configure(connection)
    require_log(connection, log)
    source = _Source(connection, log, patience)
    selection = Selection(log, stream, category, first, -1 if last is None else last)
    try:
        return _Export(source, chosen, file, progress).run(selection, open_end=last is None)
    except OSError as error:
        raise ExportFileError(
            f"the export cannot be written: {error}; make room or name another file. The same command "
            "goes on after what was written"
        ) from error


class _Source:
    """Reads the events of a selection in order."""

    def __init__(self, connection: psycopg.Connection[Any], log: str, patience: float) -> None:
        self._connection = connection
        self._patience = patience
        table = Identifier("onefold", log)
        self._reader = LogReader(connection, log=log)
        self._page = statement("export_page", log=table)
        self._stream = statement("export_stream", log=table)

    def head(self) -> int:
        return self._reader.head()

    def events(self, selection: Selection, last: Stored | None) -> Iterator[Stored]:
        """Yield the events after `last`, from the first if there is none."""
        if selection.stream is not None:
            return self._of_stream(selection, -1 if last is None else last.version)
        return self._in_order(selection, selection.first - 1 if last is None else last.position)

    def _of_stream(self, selection: Selection, version: int) -> Iterator[Stored]:
        values: dict[str, Any] = {
            "stream": selection.stream,
            "version": version,
            "after": selection.first - 1,
            "upto": selection.last,
            "limit": OF_STREAM_AT_ONCE,
        }
        while rows := self._connection.execute(self._stream, values).fetchall():
            yield from map(_stored, rows)
            values["version"] = rows[-1][1]

    def _in_order(self, selection: Selection, after: int) -> Iterator[Stored]:
        deadline = time.monotonic() + self._patience
        while after < selection.last:
            # Asked for without data: which positions there are, and up to where none can appear any more.
            page = self._reader.read(after, EVENTS_AT_ONCE, ())
            if not page.records:
                if not page.waiting:
                    return
                if time.monotonic() > deadline:
                    raise ExportStalled(
                        f"an append in front of position {after + 1} has been open for {self._patience:g} s; "
                        "`onefold status` names who appends; the same command goes on when it has ended"
                    )
                time.sleep(0.02)
                continue
            upto = min(page.upto, selection.last)
            values = {"after": after, "upto": upto, "category": selection.prefix}
            yield from map(_stored, self._connection.execute(self._page, values))
            after, deadline = page.upto, time.monotonic() + self._patience


def _stored(row: tuple[Any, ...]) -> Stored:
    event = Stored(*row[:-1])
    if not row[-1]:
        raise NotExportable(
            f"{event.place} has an instant outside of the years 1 to 9999, which no format of an export can hold"
        )
    return event


class _Export:
    """One file on its way to completeness."""

    def __init__(self, source: _Source, chosen: Format, file: Path, progress: Report) -> None:
        self._source = source
        self._format = chosen
        self._file = file
        self._progress = progress
        self._hash = hashlib.sha256()
        self._size = 0
        self._events = 0
        self._first: int | None = None
        self._last: Stored | None = None

    def run(self, selection: Selection, *, open_end: bool) -> Manifest:
        known = read_partial(self._file)
        if known is None:
            selection = self._begin(selection, open_end)
        else:
            selection = self._known(known, selection, open_end)
        with self._file.open("r+b") as opened:
            self._take_over(opened, selection)
            for event in self._source.events(selection, self._last):
                self._put(opened, self._format.write(event))
                self._note(event)
                if self._events % EVENTS_AT_ONCE == 0:
                    self._progress(self._events, event.position)
            opened.flush()
            os.fsync(opened.fileno())
        ends = (self._first, None if self._last is None else self._last.position)
        made = manifest(self._format.kind, selection, self._events, ends, self._size, self._hash.hexdigest())
        write_beside(manifest_file(self._file), made)
        partial_file(self._file).unlink()
        return made

    def _begin(self, selection: Selection, open_end: bool) -> Selection:
        if self._file.exists():
            raise ExportFileError(
                f"expected a new file, found {self._file}, which no export has begun; name another file, or remove it"
            )
        if open_end:
            selection = Selection(
                selection.log, selection.stream, selection.category, selection.first, self._source.head()
            )
        write_beside(partial_file(self._file), Partial(kind=self._format.kind, **asdict(selection)))
        self._file.touch(exist_ok=False)
        return selection

    def _known(self, known: Partial, selection: Selection, open_end: bool) -> Selection:
        begun = known.selection
        asked = asdict(selection) | ({"last": begun.last} if open_end else {})
        if known.kind != self._format.kind or asked != asdict(begun):
            raise ExportFileError(
                f"{self._file} was begun as {_words(known)}, which is not what is asked for now; "
                f"give the same options, or remove it and {partial_file(self._file).name}"
            )
        self._file.touch()
        return begun

    def _take_over(self, opened: IO[bytes], selection: Selection) -> None:
        """Go to the end of the last complete record, and cut off the rest; begin the file if there is none."""
        head = self._format.head()
        if opened.read(len(head)) != head:
            opened.seek(0)
            opened.truncate()
            self._put(opened, head)
            return
        self._count(head)
        last = b""
        for record in self._format.records(opened):
            last = record
            self._count(record)
            self._note(self._format.read(record, self._events + 1))
        opened.seek(self._size)
        opened.truncate()
        if self._last is not None:
            self._require_same(last, selection)

    def _require_same(self, last: bytes, selection: Selection) -> None:
        assert self._last is not None
        place = self._last.position
        only = Selection(selection.log, None, None, place, place)
        if [self._format.write(event) for event in self._source.events(only, None)] != [last]:
            raise ExportFileError(
                f"{self._file} ends with {self._last.place}, which the log does not have in that form: it is of "
                f"another database; name another file, or remove it and {partial_file(self._file).name}"
            )

    def _put(self, opened: IO[bytes], record: bytes) -> None:
        opened.write(record)
        self._count(record)

    def _count(self, record: bytes) -> None:
        self._hash.update(record)
        self._size += len(record)

    def _note(self, event: Stored) -> None:
        self._events += 1
        if self._first is None:
            self._first = event.position
        self._last = event


def _words(known: Partial) -> str:
    what = (
        f"stream {known.stream}"
        if known.stream
        else f"category {known.category}"
        if known.category
        else "all events"
    )
    return f"{known.kind} of {what} of log {known.log} from position {known.first} to {known.last}"

"""The importer of exports: makes an identical log in a database whose log is empty."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

import psycopg
from psycopg.sql import Identifier

from ..history import require_log
from ..postgres.sql import statement
from .errors import BadExport, LogNotEmpty
from .formats import Format, format_of
from .manifest import Manifest, read_manifest
from .stored import Stored

EVENTS_AT_ONCE = 10_000
PIECE = 2**20
"""Bytes that are read at once."""


def import_log(
    connection: psycopg.Connection[Any],
    file: Path,
    *,
    log: str = "events",
    progress: Callable[[int], None] = lambda _events: None,
) -> Manifest:
    """Make the log of an export in an empty one: positions, versions, ids, both times, data and metadata as they were.

    The file is held against its manifest before anything is written. All events are written in one transaction, or
    none; the database's own guards of streams stay on. Nothing is announced, and no message is written to the outbox.
    Raises `BadExport`, `LogNotEmpty` and `UnknownLog`.
    """
    made = read_manifest(file)
    chosen = format_of(file, made.kind)
    _verify(file, made)
    require_log(connection, log)
    with connection.transaction():
        _require_empty(connection, log)
        _load(connection, file, chosen, made, log, progress)
        if made.last_position is not None:
            table = Identifier("onefold", log).as_string(connection)
            connection.execute(statement("export_restart"), {"table": table, "position": made.last_position})
    return made


def _verify(file: Path, made: Manifest) -> None:
    found = hashlib.sha256()
    size = 0
    try:
        with file.open("rb") as opened:
            while piece := opened.read(PIECE):
                found.update(piece)
                size += len(piece)
    except OSError as error:
        raise BadExport(f"{file} cannot be read: {error}") from error
    if (size, found.hexdigest()) != (made.bytes, made.sha256):
        raise BadExport(
            f"{file} is not what was exported: expected {made.bytes:,} bytes with SHA-256 {made.sha256}, found "
            f"{size:,} with {found.hexdigest()}; nothing was imported. Get the file again from where it was exported"
        )


def _require_empty(connection: psycopg.Connection[Any], log: str) -> None:
    table = Identifier("onefold", log)
    connection.execute(statement("export_lock", log=table))
    row = connection.execute(statement("export_remains", log=table), {"name": log}).fetchone()
    assert row is not None
    head, projections, snapshots = row
    advice = "import into a new database"
    if head is not None:
        raise LogNotEmpty(f"expected an empty log {log}, found events up to position {head}; {advice}")
    if projections:
        raise LogNotEmpty(
            f"expected no projection that has read log {log}, found checkpoints of {projections}: they "
            f"would pass over what is imported; {advice}"
        )
    if snapshots:
        raise LogNotEmpty(
            f"expected no snapshots of streams of log {log}, found {snapshots}: they are of other events; {advice}"
        )


def _load(
    connection: psycopg.Connection[Any],
    file: Path,
    chosen: Format,
    made: Manifest,
    log: str,
    progress: Callable[[int], None],
) -> None:
    load = statement("export_load", log=Identifier("onefold", log))
    count = 0
    with file.open("rb") as opened:
        reading = _Reading(opened, chosen)
        while some := list(islice(reading, EVENTS_AT_ONCE)):
            try:
                with connection.cursor() as cursor, cursor.copy(load) as copy:
                    for event in some:
                        copy.write_row(event)
            except (psycopg.IntegrityError, psycopg.DataError) as error:
                raise BadExport(_refused(error)) from error
            count += len(some)
            progress(count)
    if (count, reading.sha256) != (made.events, made.sha256):
        raise BadExport(
            f"{file} has changed while it was read: expected {made.events:,} events, found {count:,}; "
            "nothing was imported"
        )


def _refused(error: psycopg.Error) -> str:
    text = " ".join(str(error).split())
    if error.diag.constraint_name == "no_hole_in_stream":
        return (
            f"the export does not hold its streams from their beginning: {text}; nothing was imported. "
            "Export the whole log, or streams as a whole"
        )
    return f"the export contradicts itself: {text}; nothing was imported"


class _Reading:
    """The events of a file, and the SHA-256 of what was read of it."""

    def __init__(self, opened: IO[bytes], chosen: Format) -> None:
        self._hash = hashlib.sha256()
        self._events = self._read(opened, chosen)

    def __iter__(self) -> Iterator[Stored]:
        return self._events

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def _read(self, opened: IO[bytes], chosen: Format) -> Iterator[Stored]:
        head = opened.read(len(chosen.head()))
        if head != chosen.head():
            raise BadExport(f"expected the columns {chosen.head().decode().strip()}, found others")
        self._hash.update(head)
        for number, record in enumerate(chosen.records(opened), start=1):
            self._hash.update(record)
            yield chosen.read(record, number)

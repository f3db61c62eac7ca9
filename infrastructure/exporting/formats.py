"""Formats of exports: CloudEvents as JSON lines, and CSV. Both hold every column and are read back without loss."""

from __future__ import annotations

import base64
import binascii
import csv
import io
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from json.encoder import encode_basestring
from pathlib import Path
from typing import ClassVar, Literal
from urllib.parse import quote

import msgspec

from .errors import BadExport, ExportFileError, NotExportable
from .stored import Stored

Kind = Literal["jsonl", "csv"]
COLUMNS = Stored._fields
_FIELD = re.compile(r'(?:"([^"]*(?:""[^"]*)*)"|([^",\r\n]*))(,|\r\n)')


class Format(ABC):
    """How events are written and read, one record after the other."""

    kind: ClassVar[Kind]

    @abstractmethod
    def head(self) -> bytes:
        """Return what a file begins with."""

    @abstractmethod
    def write(self, event: Stored) -> bytes:
        """Return the record of an event; raises `NotExportable`."""

    @abstractmethod
    def records(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the complete records in the lines of a file, without its head; raises `BadExport`."""

    @abstractmethod
    def read(self, record: bytes, number: int) -> Stored:
        """Return the event of the record of this number, from 1; raises `BadExport`."""


class Jsonl(Format):
    """CloudEvents 1.0, one a line, in structured mode.

    `subject` is the stream, `sequence` the version, `recordedtime` when it was recorded. `metadata` is text of JSON, as
    attributes of CloudEvents have no structure; `correlationid` and `causationid` repeat what consumers look for.
    """

    kind = "jsonl"

    def head(self) -> bytes:
        """Return nothing: every line is an event."""
        return b""

    def write(self, event: Stored) -> bytes:
        """Return the line of an event; raises `NotExportable`."""
        if not event.type:
            raise NotExportable(
                f"{event.place} has an empty type, which no CloudEvent can have; export it as CSV"
            )
        category = event.stream.partition("/")[0]
        parts = [
            '{"specversion":"1.0","id":"', event.event_id,
            '","source":', _text("/" + quote(category, safe="")),
            ',"type":', _text(event.type),
            ',"subject":', _text(event.stream),
            ',"time":"', event.occurred_at,
            '","datacontenttype":"', "application/json" if event.raw is None else "application/octet-stream",
            '","position":"', str(event.position),
            '","sequence":"', str(event.version),
            '","recordedtime":"', event.recorded_at,
            '","schemaversion":"', str(event.schema_version), '"',
        ]  # fmt: skip
        if event.metadata is not None:
            parts += _causes(event.metadata)
            parts += ',"metadata":', _text(event.metadata)
        if event.raw is not None:
            parts += ',"data_base64":"', base64.b64encode(event.raw).decode(), '"'
        else:
            parts += ',"data":', event.data or "null"
        parts.append("}\n")
        return "".join(parts).encode()

    def records(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the complete lines."""
        return (line for line in lines if line.endswith(b"\n"))

    def read(self, record: bytes, number: int) -> Stored:
        """Return the event of a line; raises `BadExport`."""
        try:
            found = _decoder.decode(record)
            data = bytes(found.data)
            if bool(data) == (found.data_base64 is not None):
                raise BadExport(f"line {number}: expected either data or data_base64")
            raw = None if found.data_base64 is None else base64.b64decode(found.data_base64, validate=True)
            return Stored(
                int(found.position),
                int(found.sequence),
                found.time,
                found.recordedtime,
                found.id,
                int(found.schemaversion),
                found.subject,
                found.type,
                data.decode() if data else None,
                raw,
                found.metadata,
            )
        except (msgspec.MsgspecError, ValueError) as error:
            raise BadExport(
                f"line {number}: expected an event of an export, found what is not: {error}"
            ) from error


class Csv(Format):
    """CSV by RFC 4180 with the columns of the log; what is NULL is empty, and bytes are in hex after a `\\x`."""

    kind = "csv"

    def head(self) -> bytes:
        """Return the names of the columns."""
        return (",".join(COLUMNS) + "\r\n").encode()

    def write(self, event: Stored) -> bytes:
        """Return the record of an event."""
        line = io.StringIO()
        raw = None if event.raw is None else f"\\x{event.raw.hex()}"
        csv.writer(line, lineterminator="\r\n").writerow(event._replace(raw=raw))  # type: ignore[arg-type]
        return line.getvalue().encode()

    def records(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the complete records, of one line or several."""
        begun: list[bytes] = []
        quotes = 0
        for line in lines:
            begun.append(line)
            quotes += line.count(b'"')
            if line.endswith(b"\r\n") and quotes % 2 == 0:
                yield b"".join(begun)
                begun, quotes = [], 0

    def read(self, record: bytes, number: int) -> Stored:
        """Return the event of a record; raises `BadExport`."""
        try:
            named = dict(zip(COLUMNS, _fields(record.decode()), strict=True))
            raw = named["raw"]
            if raw and not raw.startswith("\\x"):
                raise ValueError(f"bytes begin with \\x, found {raw[:20]!r}")
            return Stored(
                int(named["position"]),
                int(named["version"]),
                named["occurred_at"],
                named["recorded_at"],
                named["event_id"],
                int(named["schema_version"]),
                named["stream"],
                named["type"],
                named["data"] or None,
                binascii.unhexlify(raw[2:]) if raw else None,
                named["metadata"] or None,
            )
        except ValueError as error:
            raise BadExport(
                f"record {number}: expected an event of an export, found what is not: {error}"
            ) from error


FORMATS: dict[str, Format] = {"jsonl": Jsonl(), "csv": Csv()}


def format_of(file: Path, kind: str | None = None) -> Format:
    """Return the format of this kind, or else of the end of the file's name; raises `ExportFileError`."""
    found = FORMATS.get(kind or file.suffix.lower().removeprefix("."))
    if found is None:
        what = f"format {kind!r}" if kind else f"file {file}"
        raise ExportFileError(
            f"expected jsonl or csv, found {what}; name the file so, or give its format with --format"
        )
    return found


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    specversion: Literal["1.0"]
    id: str
    source: str
    type: str
    subject: str
    time: str
    datacontenttype: str
    position: str
    sequence: str
    recordedtime: str
    schemaversion: str
    correlationid: str | None = None
    causationid: str | None = None
    metadata: str | None = None
    data_base64: str | None = None
    data: msgspec.Raw = msgspec.Raw()


_decoder = msgspec.json.Decoder(_Line)


def _causes(metadata: str) -> Iterator[str]:
    found = json.loads(metadata)
    if not isinstance(found, dict):
        return
    for name, attribute in (("correlation", "correlationid"), ("causation", "causationid")):
        value = found.get(name)
        if isinstance(value, str) and value:
            yield f',"{attribute}":{_text(value)}'


def _fields(record: str) -> Iterator[str]:
    # The csv module gives up on fields beyond a limit that is one for the whole process.
    place, separator = 0, ","
    while separator == ",":
        found = _FIELD.match(record, place)
        if found is None:
            raise ValueError(f"not CSV from character {place} on")
        quoted, bare, separator = found.groups()
        place = found.end()
        yield bare if quoted is None else quoted.replace('""', '"')
    if place != len(record):
        raise ValueError(f"more than one record, from character {place} on")


def _text(value: str) -> str:
    return encode_basestring(value)

"""Readers: files of CSV or JSON lines, plain or gzipped, as a stream of rows with exact line numbers."""

from __future__ import annotations

import codecs
import csv
import errno
import gzip
import json
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from decimal import Decimal
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal, Self

from ...domain.errors import DeclarationError
from .errors import InputFileError
from .row import Row

CHUNK = 1 << 18
TICK = 2000
"""Rows between two calls of the progress callback."""

MARK = "\udcff"
"""Stands for bytes that are not text in the file's encoding; no decoder produces it by itself."""

codecs.register_error("onefold.mark", lambda error: (MARK, error.end))  # type: ignore[attr-defined]

GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Format:
    """How the files of a source are written.

    `kind` None: JSON lines for names that end in .jsonl or .ndjson (with or without .gz), CSV for all others.
    `delimiter` is one character, or "auto": the one of comma, semicolon, tab and bar that the first line holds most.
    `columns` names the columns of CSV files that have no header line. Gzip is recognised by itself.
    """

    kind: Literal["csv", "jsonl"] | None = None
    delimiter: str = ","
    encoding: str = "utf-8"
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.delimiter != "auto" and (len(self.delimiter) != 1 or self.delimiter in '"\r\n'):
            raise DeclarationError(f'delimiter must be one character or "auto", found {self.delimiter!r}')
        if not _reads_text(self.encoding):
            raise DeclarationError(
                f"encoding {self.encoding!r} is not known as one of text files; "
                "give one such as 'utf-8' or 'cp1252'"
            )


class Rows:
    """The rows of several files, one after the other; each file is read once, as the rows are asked for.

    `columns` grows by the column names of each file whose header was read, `read` by each row. `bytes_read` and
    `bytes_total` are of the files on disk, without pipes. Raises `InputFileError` at once for a file that cannot be
    opened.
    """

    def __init__(
        self,
        files: Sequence[str | Path],
        format: Format | None = None,  # noqa: A002
        *,
        tick: Callable[[], None] | None = None,
    ) -> None:
        self.columns: set[str] = set()
        self.read = 0
        self.bytes_total = 0
        self.place = "the first row"
        self._format = format or Format()
        self._files = [str(file) for file in files]
        self._tick = tick
        self._done = 0
        self._open: BufferedReader | None = None
        self._given: Iterable[Row] | None = None
        for file in self._files:
            try:
                self.bytes_total += _size(Path(file))
            except OSError as error:
                raise InputFileError(file, error.strerror or str(error)) from error

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Self:
        """Return the given rows as if they came from files."""
        self = cls(())
        self._given = rows
        return self

    @property
    def bytes_read(self) -> int:
        """Bytes of the files that were read so far, as they are on disk."""
        return self._done + (self._open.tell() if self._open is not None else 0)

    def __iter__(self) -> Iterator[Row]:
        for row in self._rows():
            self.read += 1
            self.place = f"{row.file}:{row.line}"
            if self._tick is not None and self.read % TICK == 0:
                self._tick()
            yield row

    def _rows(self) -> Iterator[Row]:
        if self._given is not None:
            for row in self._given:
                self.columns.update(row.values)
                yield row
        for file in self._files:
            with ExitStack() as stack:
                raw = stack.enter_context(Path(file).open("rb"))
                self._open = raw if raw.seekable() else None
                source: BufferedReader | gzip.GzipFile = raw
                if raw.peek(2)[:2] == GZIP:
                    source = stack.enter_context(gzip.GzipFile(fileobj=raw))
                lines = _Lines(source, self._format.encoding)
                yield from self._jsonl(file, lines) if self._is_jsonl(file) else self._csv(file, lines)
                if lines.damage:
                    yield Row(file, lines.number + 1, self._salvage(lines.rest, file), lines.damage)
                self._done = self.bytes_read
                self._open = None

    def _is_jsonl(self, file: str) -> bool:
        if self._format.kind is not None:
            return self._format.kind == "jsonl"
        name = file.lower().removesuffix(".gz")
        return name.endswith((".jsonl", ".ndjson"))

    def _csv(self, file: str, lines: _Lines) -> Iterator[Row]:
        delimiter = self._delimiter(lines)
        # Strict, so that a broken quotation is told and does not swallow the lines after it.
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        columns = self._header(reader, lines)
        if isinstance(columns, str):
            if not lines.damage:
                yield Row(file, 1, {}, columns)
            return
        self._layout = delimiter, columns
        self.columns.update(columns)
        wanted = len(columns)
        while True:
            lines.taken.clear()
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                first = lines.number - len(lines.taken) + 1
                fault = f"is not CSV: {_plain(error)}"
                yield Row(file, first, self._salvage(lines.taken[0], file), fault)
                lines.give_back(lines.taken[1:])
                continue
            if not fields:
                continue
            taken = lines.taken
            fault = _flaw(taken)
            if len(fields) != wanted:
                fault = f"has {len(fields)} columns, expected {wanted}" + (f" ({fault})" if fault else "")
                if not taken[-1].endswith("\n"):
                    fault += "; the file ends in the middle of the record"
            if fault and len(taken) > 1:
                fault += f" (the record goes on to line {lines.number})"
            yield Row(file, lines.number - len(taken) + 1, dict(zip(columns, fields, strict=False)), fault)

    _layout: tuple[str, tuple[str, ...]] = ",", ()

    def _delimiter(self, lines: _Lines) -> str:
        if self._format.delimiter != "auto":
            return self._format.delimiter
        first = next(lines, None)
        if first is None:
            return ","
        lines.give_back([first])
        return max(",;\t|", key=first.count)

    def _header(self, reader: Iterator[list[str]], lines: _Lines) -> tuple[str, ...] | str:
        if self._format.columns:
            return self._format.columns
        lines.taken.clear()
        try:
            columns = next(reader, None)
        except csv.Error as error:
            return f"is not a header: {_plain(error)}; no row of the file was read"
        if not columns:
            return "the file has no header line; no row of it was read"
        fault = _flaw(lines.taken)
        if fault:
            return f"the header {fault}; no row of the file was read"
        twice = next((column for column in columns if columns.count(column) > 1), None)
        if twice is not None:
            return f"the header names column {twice!r} twice; no row of the file was read"
        return tuple(columns)

    def _salvage(self, line: str, file: str) -> dict[str, Any]:
        """What can be made out of a broken record: good enough to tell to what it belongs, not to be applied."""
        if not line or self._is_jsonl(file):
            return {}
        delimiter, columns = self._layout
        fields = (field.strip('"') for field in line.rstrip("\r\n").split(delimiter))
        return dict(zip(columns, fields, strict=False))

    def _jsonl(self, file: str, lines: _Lines) -> Iterator[Row]:
        decode = json.JSONDecoder(
            object_pairs_hook=_object, parse_float=Decimal, parse_constant=_no_number
        ).decode
        for line in lines:
            lines.taken.clear()
            if not line.strip():
                continue
            values: Any = {}
            fault = _flaw([line])
            if not fault:
                try:
                    values = decode(line)
                    fault = "" if isinstance(values, dict) else "is JSON, but not an object"
                except (ValueError, RecursionError) as error:
                    fault = f"is not JSON: {error}"
                if "\\u" in line and not fault:
                    fault = _flaw_within(values)
            if fault and not line.endswith("\n"):
                fault += "; the file ends in the middle of the record"
            known = values if isinstance(values, dict) else {}
            self.columns.update(known)
            yield Row(file, lines.number, known, fault)


class _Lines:
    """The lines of a file, as text with their ends; `number` is that of the line given last, from 1.

    `taken` holds what was given since it was cleared, and can be given back. When the file cannot be read to its end,
    `damage` says why, and `rest` is what was read of the line after the last.
    """

    def __init__(self, source: BufferedReader | gzip.GzipFile, encoding: str) -> None:
        self.number = 0
        self.taken: list[str] = []
        self.damage = ""
        self.rest = ""
        self._again: list[str] = []
        self._fresh = self._read(source, encoding)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        line = self._again.pop() if self._again else next(self._fresh)
        self.number += 1
        self.taken.append(line)
        return line

    def give_back(self, lines: list[str]) -> None:
        """Let the lines given last come again."""
        self._again += reversed(lines)
        self.number -= len(lines)

    def _read(self, source: BufferedReader | gzip.GzipFile, encoding: str) -> Iterator[str]:
        if codecs.lookup(encoding).name == "utf-8":
            encoding = "utf-8-sig"
        decoder = codecs.getincrementaldecoder(encoding)("onefold.mark")
        # The parts of a line that is not at its end yet: joined once, since a line may be as long as the file.
        parts: list[str] = []
        while True:
            try:
                chunk = source.read1(CHUNK)
                text = decoder.decode(chunk, not chunk)
            except (OSError, EOFError, zlib.error, UnicodeError) as error:
                self.damage = f"the file cannot be read beyond this line: {error}"
                self.rest = "".join(parts)
                return
            first, *lines = text.split("\n")
            parts.append(first)
            if lines:
                yield "".join(parts) + "\n"
                parts = [lines.pop()]
                for line in lines:
                    yield line + "\n"
            if not chunk:
                break
        if rest := "".join(parts):
            yield rest


def _size(file: Path) -> int:
    """Return the size of a file that can be opened, 0 for a pipe: it can be opened but once, and waits for a writer."""
    found = file.stat()
    if stat.S_ISFIFO(found.st_mode):
        if not os.access(file, os.R_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return 0
    with file.open("rb"):
        return found.st_size


def _reads_text(encoding: str) -> bool:
    """Tell whether an encoding makes text of any bytes; some make bytes, or end at what they do not know."""
    text = "a,b\n"
    try:
        encoded = text.encode(encoding)
        return codecs.getincrementaldecoder(encoding)("onefold.mark").decode(encoded, True) == text
    except (LookupError, ValueError):
        return False


def _plain(error: csv.Error) -> str:
    text = str(error)
    return "a quoted text is not closed" if text == "unexpected end of data" else text


def _flaw(lines: Sequence[str]) -> str:
    """Say what makes a record's lines unfit to be stored, empty if nothing does."""
    for line in lines:
        if "\0" in line:
            return "holds a NUL character"
        if not line.isascii() and MARK in line:
            return "holds bytes that are not text in the file's encoding"
    return ""


def _flaw_within(value: object) -> str:
    match value:
        case str():
            if "\0" in value:
                return "holds a NUL character"
            if any("\ud800" <= letter <= "\udfff" for letter in value):
                return "holds a lone surrogate"
        case dict():
            parts: Iterable[object] = (*value.keys(), *value.values())
            return next(filter(None, map(_flaw_within, parts)), "")
        case list():
            return next(filter(None, map(_flaw_within, value)), "")
        case _:
            pass
    return ""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"member {name!r} stands twice in an object")
            seen.add(name)
    return values


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a number of JSON")

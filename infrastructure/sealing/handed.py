"""Seals that were handed out: a file of JSON lines, which lies where the database's administrators cannot reach."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...domain.seal import Seal
from .errors import SealFileError

WHOLE = b"}\n"
"""How a complete line ends; no other part of a line does."""


@dataclass(frozen=True, slots=True)
class HandedOut:
    """A seal in a file, and the byte at which its line begins."""

    seal: Seal
    public_key: bytes | None
    signature: bytes | None
    offset: int


def line_of(seal: Seal, public_key: bytes | None, signature: bytes | None, marks: bytes) -> bytes:
    """Return the line of a seal."""
    fields: dict[str, Any] = {
        **seal.fields(),
        "hash": seal.hash.hex(),
        "public_key": None if public_key is None else public_key.hex(),
        "signature": None if signature is None else signature.hex(),
        "marks_of_events": base64.b64encode(marks).decode(),
    }
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def read(file: Path) -> Iterator[HandedOut]:
    """Yield the seals of a file in order, without their marks.

    A line that is not complete is passed over: its writer was interrupted, and began a new one. Raises `SealFileError`
    for a file that cannot be read, or has a line that is no seal or does not have the hash that it tells.
    """
    offset = 0
    try:
        with file.open("rb") as opened:
            for number, line in enumerate(opened, start=1):
                if line.endswith(WHOLE):
                    yield _handed(file, number, line, offset)
                offset += len(line)
    except OSError as error:
        raise SealFileError(
            f"expected handed-out seals in {file}, found none: {error}; name another"
        ) from error


def marks_at(file: Path, offset: int) -> bytes:
    """Return the marks in the line that begins at this byte; raises `SealFileError`."""
    try:
        with file.open("rb") as opened:
            opened.seek(offset)
            return base64.b64decode(json.loads(opened.readline())["marks_of_events"], validate=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SealFileError(f"{file} has no marks at byte {offset}: {error}; get it again") from error


class Handing:
    """Appends seals to a file, each line synced to the disk before the next."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def last(self) -> HandedOut | None:
        """Return the last complete seal in the file, None if there is none; raises `SealFileError`."""
        if not self._file.exists():
            return None
        found: HandedOut | None = None
        for each in read(self._file):
            found = each
        return found

    def append(self, line: bytes) -> None:
        """Write the line of a seal; raises `SealFileError`."""
        try:
            with self._file.open("ab+") as opened:
                if opened.tell():
                    opened.seek(-1, os.SEEK_END)
                    if opened.read(1) != b"\n":
                        opened.write(b"\n")
                opened.write(line)
                opened.flush()
                os.fsync(opened.fileno())
        except OSError as error:
            raise SealFileError(
                f"the seal is in the database and cannot be handed out to {self._file}: {error}; make room or name "
                "another file, and run the same command again"
            ) from error


def _handed(file: Path, number: int, line: bytes, offset: int) -> HandedOut:
    try:
        fields = json.loads(line)
        seal = Seal.of(fields)
        key, signature = fields["public_key"], fields["signature"]
        handed = HandedOut(
            seal,
            None if key is None else bytes.fromhex(key),
            None if signature is None else bytes.fromhex(signature),
            offset,
        )
        if seal.hash.hex() != fields["hash"]:
            raise ValueError("its hash is not that of its statement")
    except (ValueError, KeyError, TypeError) as error:
        raise SealFileError(
            f"expected a seal in line {number} of {file}, found none: {error}; get it again"
        ) from error
    return handed

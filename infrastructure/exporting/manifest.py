"""What is kept beside the file of an export: its manifest when it is complete, its selection until then."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from .errors import BadExport, ExportFileError

FORMAT = "onefold-log/1"
P = TypeVar("P", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which events are exported: those of a stream, a category or all, with positions from `first` to `last`."""

    log: str
    stream: str | None
    category: str | None
    first: int
    last: int

    @property
    def prefix(self) -> str | None:
        """What the streams of the category begin with."""
        return None if self.category is None else f"{self.category}/"


class Partial(BaseModel):
    """What an export that is not complete was to be: its kind and its selection."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: str = FORMAT
    kind: str
    log: str
    stream: str | None
    category: str | None
    first: int
    last: int

    @property
    def selection(self) -> Selection:
        """The events that it was to hold."""
        return Selection(self.log, self.stream, self.category, self.first, self.last)


class Manifest(Partial):
    """What a complete export holds: how many events, between which positions, and the SHA-256 of its bytes."""

    events: int
    first_position: int | None
    last_position: int | None
    bytes: int
    sha256: str
    exported_at: datetime


def manifest_file(file: Path) -> Path:
    """Return where the manifest of an export is."""
    return file.with_name(f"{file.name}.manifest.json")


def partial_file(file: Path) -> Path:
    """Return where the selection of an export is until it is complete."""
    return file.with_name(f"{file.name}.partial.json")


def manifest(
    kind: str, selection: Selection, events: int, ends: tuple[int | None, int | None], size: int, sha256: str
) -> Manifest:
    """Return the manifest of an export that is complete now."""
    return Manifest(
        kind=kind,
        **asdict(selection),
        events=events,
        first_position=ends[0],
        last_position=ends[1],
        bytes=size,
        sha256=sha256,
        exported_at=datetime.now(UTC),
    )


def read_manifest(file: Path) -> Manifest:
    """Return the manifest of an export; raises `BadExport` when it is missing or cannot be read."""
    beside = manifest_file(file)
    try:
        text = beside.read_text("utf-8")
    except FileNotFoundError:
        more = (
            "; the export was not completed: run it again with the same options"
            if partial_file(file).exists()
            else ""
        )
        raise BadExport(f"expected the manifest of the export in {beside}, found none{more}") from None
    found = _parsed(Manifest, text, beside)
    if found.format != FORMAT:
        raise BadExport(f"{beside}: expected format {FORMAT}, found {found.format}")
    return found


def read_partial(file: Path) -> Partial | None:
    """Return what a begun export was to be, None where there is none."""
    beside = partial_file(file)
    try:
        text = beside.read_text("utf-8")
    except FileNotFoundError:
        return None
    return _parsed(Partial, text, beside)


def write_beside(target: Path, content: BaseModel) -> None:
    """Write a small file in one step, and to the disk."""
    making = target.with_name(f"{target.name}.new")
    with making.open("w", encoding="utf-8") as opened:
        opened.write(content.model_dump_json(indent=2) + "\n")
        opened.flush()
        os.fsync(opened.fileno())
    making.replace(target)


def _parsed(model: type[P], text: str, file: Path) -> P:
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        (first, *_) = error.errors(include_url=False)
        where = ".".join(map(str, first["loc"])) or "it"
        raise ExportFileError(
            f"{file}: expected what an export writes there: {where}: {first['msg']}"
        ) from error

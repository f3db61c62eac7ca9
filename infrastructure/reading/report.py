"""What became of an import: counters, and lists of what needs a look."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

LISTED = 1000


@dataclass(frozen=True, slots=True)
class Problem:
    """A row that gave no events: where it stands and why. `line` 0: the mapping did not say."""

    file: str
    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Difference:
    """A field in which an event that came in differs from the one in the log, as texts."""

    field: str
    stored: str
    found: str


@dataclass(frozen=True, slots=True)
class Conflict:
    """An event that says something else under a key that is taken; it was not applied."""

    key: str
    stream: str
    differences: tuple[Difference, ...]
    file: str
    line: int


@dataclass(slots=True)
class ImportReport:
    """Counters of an import.

    Rows: `read` (all records of the files, without headers), of those `unreadable`, and `held_back` (sound, but
    they belong with an unreadable one). Events: `appended`, `duplicate` (the log has the same already) and
    `conflict`. Of conflicts and rows without events the first `listed` each are listed; the counters count all.
    """

    source: str
    read: int = 0
    appended: int = 0
    duplicate: int = 0
    conflict: int = 0
    unreadable: int = 0
    held_back: int = 0
    listed: int = LISTED
    conflicts: list[Conflict] = field(default_factory=list[Conflict])
    unreadable_rows: list[Problem] = field(default_factory=list[Problem])
    held_back_rows: list[Problem] = field(default_factory=list[Problem])

    @property
    def clean(self) -> bool:
        """True when there is nothing to look at: no conflict, nothing unreadable, nothing held back."""
        return not (self.conflict or self.unreadable or self.held_back)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as values that JSON holds; `not_listed` counts what the lists leave out."""
        values = asdict(self)
        del values["listed"]
        values["not_listed"] = {
            "conflicts": self.conflict - len(self.conflicts),
            "unreadable_rows": self.unreadable - len(self.unreadable_rows),
            "held_back_rows": self.held_back - len(self.held_back_rows),
        }
        return values

    def note_unreadable(self, problem: Problem) -> None:
        """Count an unreadable row."""
        self.unreadable += 1
        if len(self.unreadable_rows) < self.listed:
            self.unreadable_rows.append(problem)

    def note_held_back(self, problem: Problem) -> None:
        """Count a row that was held back."""
        self.held_back += 1
        if len(self.held_back_rows) < self.listed:
            self.held_back_rows.append(problem)

    def note_conflict(self, conflict: Conflict) -> None:
        """Count a conflict."""
        self.conflict += 1
        if len(self.conflicts) < self.listed:
            self.conflicts.append(conflict)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an import is: rows read, events that were decided on, and bytes of the files on disk."""

    rows: int
    events: int
    bytes_read: int
    bytes_total: int

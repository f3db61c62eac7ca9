"""Errors of reading in."""

from __future__ import annotations

from ...domain.errors import OnefoldError


class InputFileError(OnefoldError):
    """A file to read in cannot be opened. Nothing was written."""

    def __init__(self, file: str, reason: str) -> None:
        self.file = file
        super().__init__(f"cannot read {file}: {reason}; nothing was read in. Name files that can be opened")


class UnreadableValue(OnefoldError, ValueError):
    """A column of a row does not hold what the mapping needs, or the row is broken as a whole (no column)."""

    def __init__(self, column: str, reason: str) -> None:
        self.column = column
        super().__init__(f"column {column} {reason}" if column else reason)


class MappingError(OnefoldError):
    """A mapping cannot be loaded, or is not declared as one."""


class MappingFailed(OnefoldError):
    """A mapping raised an error of its own in the middle of the rows.

    What was appended before stays; after a repair the same files can be read in again.
    """

    def __init__(self, source: str, place: str, appended: int, error: BaseException) -> None:
        events = "1 event was" if appended == 1 else f"{appended} events were"
        super().__init__(
            f"mapping {source} failed at {place} with {type(error).__name__}: {error}; "
            f"{events} appended before. Repair the mapping and import the same files again: "
            "what is in the log already will be a duplicate"
        )

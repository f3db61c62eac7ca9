"""Rows: what a line of a file says, and where it stands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from ...domain.instant import Ambiguous, Skipped, from_local
from .errors import UnreadableValue

DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
INTEGER = re.compile(r"[+-]?[0-9]{1,30}")
DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}(:[0-9]{2}([.,][0-9]{1,6})?)?")


class Row:
    """A record of a file.

    `file` is its name as it was given, `line` the physical line on which the record begins (from 1), `values` the
    columns: texts from CSV; texts, ints, Decimals, booleans, None, lists and dicts from JSON. `fault` says what is
    wrong with a record that could not be read; its `values` are then those that could be made out, the last
    of them perhaps cut, and reading a column raises `UnreadableValue`.
    """

    __slots__ = ("fault", "file", "line", "values")

    def __init__(self, file: str, line: int, values: Mapping[str, Any], fault: str = "") -> None:
        self.file = file
        self.line = line
        self.values = values
        self.fault = fault

    def __repr__(self) -> str:
        return f"Row({self.file!r}, {self.line}, {dict(self.values)!r}, {self.fault!r})"

    def __contains__(self, column: str) -> bool:
        return column in self.values

    def __getitem__(self, column: str) -> Any:
        if self.fault:
            raise UnreadableValue("", self.fault)
        try:
            return self.values[column]
        except KeyError:
            raise UnreadableValue(column, f"is missing; the row has {', '.join(self.values)}") from None

    def get(self, column: str) -> str:
        """Return the text of a column, empty where the column is empty, null or missing."""
        value = self[column] if self.fault or column in self.values else None
        if value is None:
            return ""
        if isinstance(value, str):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        raise UnreadableValue(column, f"is {value!r}, expected text")

    def text(self, column: str) -> str:
        """Return the text of a column that must not be empty."""
        self[column]
        text = self.get(column)
        if not text.strip():
            raise UnreadableValue(column, "is empty, expected text")
        return text

    def decimal(self, column: str) -> Decimal:
        """Return the decimal number of a column, exact and with its scale; `.` is the decimal point."""
        value = self[column]
        if isinstance(value, Decimal | int) and not isinstance(value, bool):
            return Decimal(value)
        if isinstance(value, str) and DECIMAL.fullmatch(value):
            return Decimal(value)
        raise UnreadableValue(column, f"is {value!r}, expected a decimal number such as 24.90")

    def integer(self, column: str) -> int:
        """Return the whole number of a column."""
        value = self[column]
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, str) and INTEGER.fullmatch(value):
            return int(value)
        raise UnreadableValue(column, f"is {value!r}, expected a whole number")

    def day(self, column: str) -> date:
        """Return the date of a column that says YYYY-MM-DD."""
        value = self[column]
        if isinstance(value, str) and DAY.fullmatch(value):
            try:
                return date.fromisoformat(value)
            except ValueError:
                pass
        raise UnreadableValue(column, f"is {value!r}, expected a date such as 2018-02-17")

    def local_time(self, column: str) -> datetime:
        """Return the time without a zone of a column that says YYYY-MM-DD HH:MM[:SS[.ffffff]]."""
        value = self[column]
        if isinstance(value, str) and TIME.fullmatch(value):
            try:
                return datetime.fromisoformat(value)
            except ValueError:
                pass
        raise UnreadableValue(column, f"is {value!r}, expected a local time such as 2018-02-17 23:33:56")

    def instant(
        self, column: str, zone: str, *, ambiguous: Ambiguous = "refuse", skipped: Skipped = "refuse"
    ) -> datetime:
        """Return the instant of a column that says a local time of `zone`; for the rules see `from_local`."""
        local = self.local_time(column)
        try:
            return from_local(local, zone, ambiguous=ambiguous, skipped=skipped)
        except ValueError as error:
            raise UnreadableValue(column, f"cannot become an instant: {error}") from error

"""State: what the effect of messages is seen by, and how two of them differ."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.rows import dict_row
from psycopg.sql import SQL, Identifier

from ..postgres.migrate import load as migrations
from ..postgres.sql import statement
from ..postgres.table import POSITION, READ
from .errors import ProvesNothing

Reading = Callable[[psycopg.Connection[Any]], Any]
"""A function from a connection to anything that can be compared."""

Rows = list[dict[str, Any]]

LOG = "the log"
OUTBOX = "the outbox"
EFFECTS = "the effects"
_MADE = re.compile(r"^CREATE (?:UNLOGGED )?TABLE onefold\.(\w+)", re.MULTILINE)
OURS = (
    "events",
    "events_hashes",
    "migrations",
    *sorted({name for each in migrations() for name in _MADE.findall(each.sql.decode())}),
)
"""Tables of the schema `onefold` that are the product's."""

SHOWN = 5
"""Differences that are told of one table."""

LONG = 300


@dataclass(frozen=True, slots=True)
class State:
    """The rows of tables, the log, the outbox and effects, without order, and what the user's own function returned."""

    tables: Mapping[str, Rows] = field(default_factory=dict)
    own: Any = None


@dataclass(frozen=True, slots=True)
class Sight:
    """What is looked at: `own`, a function; `tables`, or all of the database when neither is given.

    Columns that the database fills by itself, and those named in `ignored`, are left out. `ordered` says that the order
    of the events in a stream counts, and that of numbered messages.
    """

    own: Reading | None = None
    tables: Sequence[str] = ()
    ignored: frozenset[str] = frozenset()
    ordered: bool = True

    def state(self, connection: psycopg.Connection[Any]) -> State:
        """Return what is there now; raises `ProvesNothing` for a table that is not there."""
        own = None if self.own is None else self.own(connection)
        if self.own is not None and not self.tables:
            return State(own=own)
        return State(self._rows(connection), own)

    def _rows(self, connection: psycopg.Connection[Any]) -> dict[str, Rows]:
        found: dict[str, Rows] = {}
        values = {"tables": list(self.tables), "ours": list(OURS)}
        try:
            names = connection.execute(statement("testing_tables"), values).fetchall()
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
            raise ProvesNothing(
                f"expected the tables {', '.join(self.tables)}, found: {error.diag.message_primary}; "
                "make them with prepare="
            ) from error
        with connection.cursor(row_factory=dict_row) as cursor:
            for schema, name, every in names:
                columns = [
                    column
                    for column in every or ()
                    if column not in self.ignored and not (schema == READ and column == POSITION)
                ]
                query = SQL("SELECT {} FROM {}").format(
                    SQL(", ").join(map(Identifier, columns)), Identifier(schema, name)
                )
                found[f"table {schema}.{name}"] = cursor.execute(query).fetchall()
            if not self.tables:
                found[LOG] = cursor.execute(statement("testing_log")).fetchall()
                if not self.ordered:
                    for row in found[LOG]:
                        del row["version"]
                found[OUTBOX] = cursor.execute(statement("testing_outbox")).fetchall()
                if not self.ordered:
                    for row in found[OUTBOX]:
                        row["message"].pop("sequence", None)
                found[EFFECTS] = cursor.execute(statement("testing_effects")).fetchall()
        return found


def differences(expected: State, found: State) -> list[str]:
    """Return lines that tell how the states differ, none when they are equal."""
    lines: list[str] = []
    for name in sorted({*expected.tables, *found.tables}):
        wanted, there = expected.tables.get(name, []), found.tables.get(name, [])
        lines += _told(name, _without(wanted, there), _without(there, wanted))
    if expected.own != found.own:
        lines += _own(expected.own, found.own)
    return lines


def _own(expected: Any, found: Any) -> list[str]:
    if not (isinstance(expected, Mapping) and isinstance(found, Mapping)):
        return ["state", f"  expected  {_short(expected)}", f"  found     {_short(found)}"]
    absent = object()
    keys = [
        key for key in {**expected, **found} if expected.get(key, absent) != found.get(key, absent)
    ]  # in the order of the state
    lines: list[str] = []
    for key in keys[:SHOWN]:
        wanted = _short(expected[key]) if key in expected else "nothing"
        there = _short(found[key]) if key in found else "nothing"
        lines += [f"state of {key!r}", f"  expected  {wanted}", f"  found     {there}"]
    return lines + _rest(len(keys))


def _told(name: str, missing: Rows, surplus: Rows) -> list[str]:
    if not missing and not surplus:
        return []
    lines = [name]
    lines += [f"  expected  {row}" for row in sorted(map(_row, missing))[:SHOWN]] + _rest(len(missing))
    lines += [f"  found     {row}" for row in sorted(map(_row, surplus))[:SHOWN]] + _rest(len(surplus))
    if not missing:
        lines.append("  where nothing more was expected")
    if not surplus:
        lines.append("  and no such row was found")
    return lines


def _without(rows: Iterable[dict[str, Any]], others: Rows) -> Rows:
    """Return the rows that are not among the others, each of which stands for one."""
    left = list(others)
    rest: Rows = []
    for row in rows:
        if row in left:
            left.remove(row)
        else:
            rest.append(row)
    return rest


def _rest(number: int) -> list[str]:
    return [f"  … and {number - SHOWN} more"] if number > SHOWN else []


def _row(row: Mapping[str, Any]) -> str:
    parts = (f"{name}={_value(value)}" for name, value in row.items() if value is not None)
    return _short(" ".join(parts) or "a row", quoted=False)


def _value(value: Any) -> str:
    return str(value) if not isinstance(value, str) or value.isalnum() else repr(value)


def _short(value: Any, *, quoted: bool = True) -> str:
    text = repr(value) if quoted else str(value)
    return text if len(text) <= LONG else f"{text[:LONG]}…"

"""Folding: the rows of the projection that a consumer folds into."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import psycopg

from ...projections.inbox import Item, Plan, Standing
from ...projections.message import Message
from ...projections.ports import Kept, Key
from ...projections.projection import Projection
from ...projections.row import Row
from ..postgres.table import Table
from .failures import EffectFailed, Refused

CACHED_ROWS = 100_000
"""Rows that a fold keeps in memory at most."""

Span = Callable[[Message], AbstractContextManager[Any]]
"""Makes the span that the effect of a message runs in."""


class Folding:
    """Folds messages into the table of a projection, with the rows that were seen before in memory."""

    def __init__(self, connection: psycopg.Connection[Any], projection: Projection[Any]) -> None:
        self._connection = connection
        self._table = Table(projection)
        self._folds = projection.folds
        self._rows: dict[str, Kept] = {}
        self._changes: dict[Key, Kept] = {}

    def apply(self, plan: Plan, locked: Mapping[str, Standing], span: Span | None) -> None:
        """Fold what is to be applied, and write the rows; raises `EffectFailed` or `Refused`."""
        table = self._table
        self._changes = {}
        effects = [item for item in plan.effects() if item.event is not None]
        if not effects:
            return
        rows = self._rows_of({item.sequence for item in effects if item.sequence is not None}, locked)
        last: dict[str, Item] = {}
        folds = self._folds
        for item in effects:
            sequence = item.sequence
            assert sequence is not None
            row = rows[sequence]
            try:
                if span is None:
                    after = folds[type(item.event)](row, item.event)
                else:
                    with span(item.message):
                        after = folds[type(item.event)](row, item.event)
            except (Exception, SystemExit) as error:
                raise EffectFailed(item, error) from error
            if after is not row:
                rows[sequence] = after
                last[sequence] = item
        if not last:
            return
        changes: dict[Key, Kept] = {
            (sequence,): (item.version or 0, rows[sequence]) for sequence, item in last.items()
        }
        self._changes = changes
        try:
            table.write(self._connection, table.pack(changes))
        except (psycopg.DataError, psycopg.IntegrityError, TypeError, ValueError, ArithmeticError) as error:
            raise Refused(error) from error

    def _rows_of(self, sequences: Iterable[str], locked: Mapping[str, Standing]) -> dict[str, Row | None]:
        """Return the rows of sequences that this transaction has locked.

        A row changes only together with the version of its sequence, so one that was left at this version is the same
        still. A sequence that nobody has begun has none.
        """
        rows: dict[str, Row | None] = {}
        missing: list[Key] = []
        cached = self._rows
        for sequence in sequences:
            rows[sequence] = None
            standing = locked.get(sequence)
            if standing is not None:
                found = cached.get(sequence)
                if found is not None and found[0] == standing.version:
                    rows[sequence] = found[1]
                else:
                    missing.append((sequence,))
        if missing:
            for key, (_, row) in self._table.load(self._connection, missing, binary=False).items():
                rows[key[0]] = row
        return rows

    def keep(self) -> None:
        """Keep rows in memory, once they are committed, each with the version that its sequence was moved to."""
        if len(self._rows) > CACHED_ROWS:
            self._rows.clear()
        cached = self._rows
        for (sequence,), kept in self._changes.items():
            cached[sequence] = kept

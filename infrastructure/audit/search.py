"""Search: events by type, stream, time and what they say, a page at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row
from psycopg.sql import SQL, Composable, Composed, Identifier, Placeholder

from ...domain.errors import OnefoldError
from ...domain.instant import ensure_aware
from ...domain.point import Clock
from ..history import RecordedEvent, require_log
from ..postgres.sql import statement
from .field import Field
from .indexes import index_name, valid_indexes

HIGHEST = 10_000
"""Events in a page at most."""


class BadSearch(OnefoldError, ValueError):
    """What is searched for contradicts itself, or a page is asked for that there cannot be."""


@dataclass(frozen=True, slots=True)
class Criteria:
    """What is searched for; an event must fit all that is given.

    `types` are stored names, of which it has one. `since` is included, `until` is not, both by `clock`. With one of
    these two, events are ordered by that clock, otherwise by position.
    """

    types: tuple[str, ...] = ()
    stream: str | None = None
    category: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    clock: Clock = "occurred"
    fields: tuple[Field, ...] = ()

    @property
    def timed(self) -> bool:
        """True if a time is given, so that events are ordered by it."""
        return self.since is not None or self.until is not None


@dataclass(frozen=True, slots=True)
class Page:
    """Events that were found, in order, and the position after which the next page begins: None where there is none.

    `ordered_by` names the order: position, occurred_at or recorded_at.
    """

    events: tuple[RecordedEvent, ...]
    after: int | None
    ordered_by: str


def search(
    connection: psycopg.Connection[Any],
    criteria: Criteria,
    *,
    after: int | None = None,
    limit: int = 100,
    newest_first: bool = False,
    log: str = "events",
) -> Page:
    """Return a page of the events that fit, in rising order or with the newest first.

    `after` is the position of the last event of the page before. Raises `BadSearch`, `NaiveInstant` and `UnknownLog`.
    """
    if not 1 <= limit <= HIGHEST:
        raise BadSearch(f"expected 1 to {HIGHEST:,} events in a page, found {limit:,}")
    if criteria.stream is not None and criteria.category is not None:
        raise BadSearch("expected either a stream or a category, found both")
    require_log(connection, log)
    query = _Query(connection, criteria, after, newest_first, log)
    with connection.cursor(row_factory=class_row(RecordedEvent)) as cursor:
        text, values = query.composed()
        found = cursor.execute(text, {**values, "limit": limit + 1}, prepare=False).fetchall()
    more = len(found) > limit
    events = tuple(found[:limit])
    return Page(events, events[-1].position if more else None, query.ordered_by)


class _Query:
    """A statement in the making: its conditions and their values."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        criteria: Criteria,
        after: int | None,
        newest_first: bool,
        log: str,
    ) -> None:
        self._criteria = criteria
        self._table = Identifier("onefold", log)
        self._values: dict[str, Any] = {}
        self.ordered_by = f"{criteria.clock}_at" if criteria.timed else "position"
        self._down = newest_first
        self._cursor = None if after is None else _cursor(connection, self._table, after)
        self._after = after
        names = valid_indexes(connection, log)
        self._driver = next(
            (
                field
                for field in criteria.fields
                if field.path.indexable and field.texts() and index_name(log, str(field.path)) in names
            ),
            None,
        )

    def composed(self) -> tuple[bytes, dict[str, Any]]:
        """Return the statement and its values."""
        shared = list(self._conditions())
        order = self._order()
        if self._driver is None:
            return self._select(shared, order), self._values
        # Sent with parameters, a sign of per cent in a name would be taken for one.
        value = _raw(self._driver.path.value().as_string(None).replace("%", "%%"))
        texts = self._driver.texts()
        if self._criteria.timed or len(texts) == 1:
            any_of = SQL("{} = ANY ({})").format(value, self._value(list(texts), "text[]"))
            one = self._equals(value, texts[0]) if len(texts) == 1 else any_of
            return self._select([*shared, one], order), self._values
        # Each of them is read from the index in order; all at once they would have to be sorted.
        parts = [
            _raw(f"({self._select([*shared, self._equals(value, text)], order).decode()})") for text in texts
        ]
        query = statement("audit_search_of_several", parts=SQL(" UNION ALL ").join(parts), order=order)
        return query, self._values

    def _equals(self, value: Composable, text: str) -> Composed:
        return SQL("{} = {}").format(value, self._value(text, "text"))

    def _select(self, conditions: Sequence[Composable], order: Composable) -> bytes:
        joined = SQL(" AND ").join(conditions) if conditions else SQL("true")
        return statement("audit_search", log=self._table, conditions=joined, order=order)

    def _order(self) -> Composed:
        names = ["position"] if self.ordered_by == "position" else [self.ordered_by, "position"]
        way = SQL("{} DESC") if self._down else SQL("{}")
        return SQL(", ").join(way.format(Identifier(name)) for name in names)

    def _conditions(self) -> Iterator[Composable]:
        criteria = self._criteria
        yield from self._beyond()
        if len(criteria.types) == 1:
            yield SQL("type = {}").format(self._value(criteria.types[0], "text"))
        elif criteria.types:
            yield SQL("type = ANY ({})").format(self._value(list(criteria.types), "text[]"))
        if criteria.stream is not None:
            yield SQL("stream = {}").format(self._value(criteria.stream, "text"))
        if criteria.category is not None:
            # What comes after the slash in the alphabet of bytes is the digit 0.
            yield SQL("stream >= {}").format(self._value(f"{criteria.category}/", "text"))
            yield SQL("stream < {}").format(self._value(f"{criteria.category}0", "text"))
        clock = Identifier(f"{criteria.clock}_at")
        if criteria.since is not None:
            since = ensure_aware("since", criteria.since)
            yield SQL("{} >= {}").format(clock, self._value(since, "timestamptz"))
        if criteria.until is not None:
            until = ensure_aware("until", criteria.until)
            yield SQL("{} < {}").format(clock, self._value(until, "timestamptz"))
        for field in criteria.fields:
            # Where the index of the field leads the way, the planner must not take the condition for a second one.
            fits = SQL("coalesce({} @@ {}, false)") if field is self._driver else SQL("{} @@ {}")
            yield fits.format(Identifier(field.path.root), self._value(field.jsonpath(), "jsonpath"))

    def _beyond(self) -> Iterator[Composable]:
        if self._cursor is None:
            return
        stream, version, occurred_at, recorded_at = self._cursor
        beyond = SQL("<") if self._down else SQL(">")
        if self._criteria.timed:
            at = occurred_at if self._criteria.clock == "occurred" else recorded_at
            yield SQL("({}, position) {} ({}, {})").format(
                Identifier(self.ordered_by),
                beyond,
                self._value(at, "timestamptz"),
                self._value(self._after, "bigint"),
            )
            return
        yield SQL("position {} {}").format(beyond, self._value(self._after, "bigint"))
        if stream == self._criteria.stream:
            yield SQL("version {} {}").format(beyond, self._value(version, "bigint"))

    def _value(self, value: Any, kind: str) -> Composed:
        name = f"v{len(self._values)}"
        self._values[name] = value
        return SQL("{}::{}").format(Placeholder(name), _raw(kind))


def _raw(text: Any) -> SQL:
    # Not literal to a type checker, though nothing but this package can write it.
    return SQL(text)


def _cursor(connection: psycopg.Connection[Any], table: Identifier, after: int) -> tuple[Any, ...]:
    row: tuple[Any, ...] | None = None
    if 0 < after < 2**63:
        row = connection.execute(statement("audit_cursor", log=table), {"after": after}).fetchone()
    if row is None:
        raise BadSearch(
            f"expected the position of the last event of a page, found {after}, where no event is"
        )
    return row

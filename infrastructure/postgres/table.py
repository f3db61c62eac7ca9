"""The table of a read model: made from the row model, read by keys, written set by set."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import NoneType
from typing import Any, NamedTuple

import psycopg
from psycopg.sql import SQL, Composable, Composed, Identifier

from ...projections.ports import Kept, Key
from ...projections.projection import Projection
from ...projections.row import Row
from .columns import PACK_BOOLEAN, PACK_POSITION, Column, Packed, columns_of

READ = "read"
"""Schema of the read models."""

POSITION = "_position"
"""Column that holds the position last applied to a row."""

_set = object.__setattr__


class PackedRows(NamedTuple):
    """Rows as binary arrays, one a column, and whether some are to be removed."""

    columns: list[Packed]
    removals: bool


class Content(NamedTuple):
    """How many rows, and a sum of the hashes of what stands in them, whatever order they are in."""

    rows: int
    hash: Any


class Table:
    """The table `read.<projection>`, or its like in another schema; its primary key is the row model's key."""

    def __init__(self, projection: Projection[Any], schema: str = READ) -> None:
        self.row: type[Row] = projection.row
        self.columns = columns_of(projection.row)
        self.keys = tuple(
            next(column for column in self.columns if column.name == name)
            for name in projection.row.key_fields
        )
        self.name = Identifier(schema, projection.name)
        self._reads = tuple(
            (place, column.read) for place, column in enumerate(self.columns) if column.read is not None
        )
        self._names = tuple(column.name for column in self.columns)
        self._key_places = tuple(self._names.index(column.name) for column in self.keys)
        self._select = self._select_statement()
        self._merges = {
            (fenced, removing): self._merge_statement(fenced=fenced, removing=removing)
            for fenced in (False, True)
            for removing in (False, True)
        }
        self._fill = self._fill_statement()
        self._compare = self._compare_statement()

    def create(self, connection: psycopg.Connection[Any], *, keyed: bool = True) -> None:
        """Make the table; an older one of this name is dropped. Without its primary key unless `keyed`."""
        connection.execute(SQL("DROP TABLE IF EXISTS {}").format(self.name))
        lines = [
            SQL("{} {}{}").format(
                Identifier(column.name),
                SQL(column.sql_type),
                SQL(' COLLATE "C" NOT NULL' if column.sql_type == "text" else " NOT NULL")
                if column in self.keys
                else SQL(""),
            )
            for column in self.columns
        ]
        lines.append(SQL("{} bigint NOT NULL").format(Identifier(POSITION)))
        if keyed:
            lines.append(SQL("PRIMARY KEY ({})").format(_joined(self.keys)))
        connection.execute(
            SQL("CREATE TABLE {} ({}) WITH (fillfactor = 70)").format(self.name, SQL(", ").join(lines))
        )

    def add_key(self, connection: psycopg.Connection[Any]) -> None:
        """Make the primary key of a table that was made without."""
        connection.execute(SQL("ALTER TABLE {} ADD PRIMARY KEY ({})").format(self.name, _joined(self.keys)))

    def load(
        self, connection: psycopg.Connection[Any], keys: Collection[Key], *, binary: bool = True
    ) -> dict[Key, Kept]:
        """Return the stored rows of `keys`, each with the position last applied.

        A connection that reads records raw needs `binary=False`: its binary results give no datetimes.
        """
        packed: list[Packed] = [
            self._packed(column, [key[place] for key in keys], keys) for place, column in enumerate(self.keys)
        ]
        found = connection.execute(self._select, packed, prepare=True, binary=binary).fetchall()
        if self._reads:
            found = [self._read(values) for values in found]
        places, build = self._key_places, self._built
        return {tuple(values[place] for place in places): (values[-1], build(values)) for values in found}

    def all(self, connection: psycopg.Connection[Any]) -> list[Any]:
        """Return every row, in the order of the key."""
        found = connection.execute(
            SQL("SELECT {} FROM {} t ORDER BY {}").format(
                SQL(", ").join(_stored(column) for column in self.columns), self.name, _joined(self.keys)
            )
        )
        return [self._built(self._read(values)) for values in found]

    def count(self, connection: psycopg.Connection[Any]) -> int:
        """Return the number of rows."""
        found = connection.execute(SQL("SELECT count(*) FROM {}").format(self.name)).fetchone()
        return 0 if found is None else int(found[0])

    def some_keys(self, connection: psycopg.Connection[Any], percent: float, most: int) -> list[Key]:
        """Return the keys of about so many percent of the rows, drawn at random, and at most so many."""
        found = connection.execute(
            SQL("SELECT {} FROM {} TABLESAMPLE BERNOULLI (%s) LIMIT %s").format(
                _joined(self.keys), self.name
            ),
            (percent, most),
        ).fetchall()
        reads = [column.read for column in self.keys]
        return [
            tuple(value if read is None else read(value) for value, read in zip(values, reads, strict=True))
            for values in found
        ]

    def merge(self, connection: psycopg.Connection[Any], changes: Mapping[Key, Kept]) -> None:
        """Write changed rows in one statement; a row that is None is removed. Raises as `pack` does."""
        self.write(connection, self.pack(changes))

    def pack(self, changes: Mapping[Key, Kept]) -> PackedRows:
        """Return changed rows as the parameters of one statement.

        Raises TypeError or ValueError naming the row and the field that does not fit.
        """
        removals = self._has_removals(changes)
        if removals:
            rows = [self._blank(key) if row is None else row.__dict__ for key, (_, row) in changes.items()]
        else:
            rows = [row.__dict__ for _, row in changes.values()]
        columns = list(zip(*(row.values() for row in rows), strict=True))
        for place, key_place in enumerate(self._key_places):
            self._require_same(columns[key_place], [key[place] for key in changes], changes)
        packed = [
            self._packed(column, values, changes)
            for column, values in zip(self.columns, columns, strict=True)
        ]
        packed.append(PACK_POSITION([position for position, _ in changes.values()]))
        if removals:
            packed.append(PACK_BOOLEAN([row is None for _, row in changes.values()]))
        return PackedRows(packed, removals)

    def write(self, connection: psycopg.Connection[Any], rows: PackedRows, move: Sequence[Any] = ()) -> None:
        """Write packed rows in one statement.

        With `move`, the parameters of `onefold.move_checkpoint`, the statement moves the checkpoint first.
        """
        statement = self._merges[bool(move), rows.removals]
        connection.execute(statement, [*move, *rows.columns], prepare=True)

    def fill(self, connection: psycopg.Connection[Any], rows: PackedRows) -> None:
        """Write packed rows, none of them a removal, that are not in the table yet."""
        connection.execute(self._fill, rows.columns, prepare=True)

    def compare(
        self, connection: psycopg.Connection[Any], keys: Collection[Key], rows: Mapping[Key, Any]
    ) -> tuple[Content, Content]:
        """Return the content that `rows` would have in the table, and what the table has under `keys`.

        The position last applied is not compared. Raises as `pack` does.
        """
        packed = self.pack({key: (0, row) for key, row in rows.items()}) if rows else self._no_rows()
        chosen = [
            self._packed(column, [key[place] for key in keys], keys) for place, column in enumerate(self.keys)
        ]
        found = connection.execute(self._compare, [*packed.columns[:-1], *chosen], prepare=True).fetchone()
        assert found is not None
        return Content(*found[:2]), Content(*found[2:])

    def _no_rows(self) -> PackedRows:
        return PackedRows([*(column.pack([]) for column in self.columns), PACK_POSITION([])], removals=False)

    def _has_removals(self, changes: Mapping[Key, Kept]) -> bool:
        kinds = {type(row) for _, row in changes.values()}
        if not kinds <= {self.row, NoneType}:
            for key, (_, row) in changes.items():
                if type(row) not in (self.row, NoneType):
                    raise TypeError(
                        f"row {_shown(key)}: expected {self.row.__name__} or None from the fold, "
                        f"found {type(row).__name__}"
                    )
        return NoneType in kinds

    def _blank(self, key: Key) -> dict[str, Any]:
        return dict.fromkeys(self._names) | dict(zip(self.row.key_fields, key, strict=True))

    def _packed(self, column: Column, values: Sequence[Any], keys: Iterable[Key]) -> Packed:
        try:
            return column.pack(values)
        except (TypeError, ValueError, struct.error) as error:
            for key, value in zip(keys, values, strict=True):
                try:
                    column.pack([value])
                except (TypeError, ValueError, struct.error) as found:
                    raise ValueError(
                        f"row {_shown(key)}: field {column.name} does not fit {column.sql_type}: {found}"
                    ) from error
            raise

    def _require_same(self, found: Sequence[Any], expected: Sequence[Any], keys: Iterable[Key]) -> None:
        if list(found) != expected:
            for key, one, other in zip(keys, found, expected, strict=True):
                if one != other:
                    raise ValueError(
                        f"row {_shown(key)}: expected a row with this key, found one with the key {one}; "
                        "a fold must keep the key that the event leads to"
                    )

    def _read(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        fields = list(values)
        for place, read in self._reads:
            if fields[place] is not None:
                fields[place] = read(fields[place])
        return tuple(fields)

    def _built(self, values: tuple[Any, ...]) -> Row:
        cls = self.row
        row = cls.__new__(cls)
        _set(row, "__dict__", dict(zip(self._names, values, strict=False)))
        _set(row, "__pydantic_fields_set__", set(self._names))
        _set(row, "__pydantic_extra__", None)
        _set(row, "__pydantic_private__", None)
        return row

    def _select_statement(self) -> bytes:
        return (
            SQL(
                "SELECT {columns}, t.{position} FROM {table} t JOIN unnest({arrays}) AS k ({keys}) ON {match}"
            )
            .format(
                columns=SQL(", ").join(_stored(column) for column in self.columns),
                position=Identifier(POSITION),
                table=self.name,
                arrays=SQL(", ").join(_array(column) for column in self.keys),
                keys=_joined(self.keys),
                match=_match(self.keys, "k"),
            )
            .as_bytes(None)
        )

    def _fill_statement(self) -> bytes:
        arrays: list[Composable] = [*(_array(column) for column in self.columns), SQL("%b::bigint[]")]
        names = SQL(", ").join([*(Identifier(name) for name in self._names), Identifier(POSITION)])
        values = [*(_value(column) for column in self.columns), SQL("s.{}").format(Identifier(POSITION))]
        return (
            SQL("INSERT INTO {table} ({names}) SELECT {values} FROM unnest({arrays}) AS s ({names})")
            .format(
                table=self.name,
                names=names,
                values=SQL(", ").join(values),
                arrays=SQL(", ").join(arrays),
            )
            .as_bytes(None)
        )

    def _compare_statement(self) -> bytes:
        columns = SQL(", ").join(SQL("t.{}").format(Identifier(name)) for name in self._names)
        content = SQL("SELECT count(*), coalesce(sum(hashtextextended(r::text, 0)), 0) FROM ({}) r")
        expected = SQL("SELECT {values} FROM unnest({arrays}) AS s ({names})").format(
            values=SQL(", ").join(
                SQL("{} AS {}").format(_value(column), Identifier(column.name)) for column in self.columns
            ),
            arrays=SQL(", ").join(_array(column) for column in self.columns),
            names=SQL(", ").join(map(Identifier, self._names)),
        )
        found = SQL("SELECT {columns} FROM {table} t JOIN unnest({arrays}) AS k ({keys}) ON {match}").format(
            columns=columns,
            table=self.name,
            arrays=SQL(", ").join(_array(column) for column in self.keys),
            keys=_joined(self.keys),
            match=_match(self.keys, "k"),
        )
        return (
            SQL("SELECT * FROM ({expected}) expected, ({found}) found")
            .format(expected=content.format(expected), found=content.format(found))
            .as_bytes(None)
        )

    def _merge_statement(self, *, fenced: bool, removing: bool) -> bytes:
        rest = [column for column in self.columns if column not in self.keys]
        arrays: list[Composable] = [_array(column) for column in self.columns]
        arrays.append(SQL("%b::bigint[]"))
        names = [*(Identifier(name) for name in self._names), Identifier(POSITION)]
        source = list(names)
        if removing:
            arrays.append(SQL("%b::boolean[]"))
            source.append(Identifier("_removed"))
        values = [_value(column) for column in self.columns]
        values.append(SQL("s.{}").format(Identifier(POSITION)))
        changed = [SQL("{} = {}").format(Identifier(column.name), _value(column)) for column in rest]
        changed.append(SQL("{0} = s.{0}").format(Identifier(POSITION)))
        return (
            SQL(
                "WITH fence AS MATERIALIZED ({fence})"
                " MERGE INTO {table} AS t"
                " USING (SELECT s.* FROM fence CROSS JOIN unnest({arrays}) AS s ({source})) AS s ON {match} {removal}"
                "WHEN MATCHED THEN UPDATE SET {changed} WHEN NOT MATCHED {kept}THEN INSERT ({names}) VALUES ({values})"
            )
            .format(
                fence=SQL("SELECT onefold.move_checkpoint(%s, %s, %s, %s, %s, %s)" if fenced else "SELECT 1"),
                table=self.name,
                arrays=SQL(", ").join(arrays),
                source=SQL(", ").join(source),
                match=_match(self.keys, "s"),
                removal=SQL("WHEN MATCHED AND s._removed THEN DELETE " if removing else ""),
                changed=SQL(", ").join(changed),
                kept=SQL("AND NOT s._removed " if removing else ""),
                names=SQL(", ").join(names),
                values=SQL(", ").join(values),
            )
            .as_bytes(None)
        )


def _shown(key: Key) -> str:
    return ", ".join(str(part) for part in key)


def _array(column: Column) -> Composed:
    return SQL("%b::{}[]").format(SQL(column.sent_as))


def _stored(column: Column) -> Composed:
    return SQL("t.{}::text" if column.sql_type == "jsonb" else "t.{}").format(Identifier(column.name))


def _value(column: Column) -> Composed:
    if column.sent_as == column.sql_type:
        return SQL("s.{}").format(Identifier(column.name))
    return SQL("s.{}::{}").format(Identifier(column.name), SQL(column.sql_type))


def _joined(columns: Iterable[Column]) -> Composed:
    return SQL(", ").join(Identifier(column.name) for column in columns)


def _match(keys: Iterable[Column], other: str) -> Composed:
    return SQL(" AND ").join(
        SQL("t.{0} = {1}.{0}::{2}").format(
            Identifier(column.name),
            Identifier(other),
            SQL(column.sql_type),
        )
        for column in keys
    )

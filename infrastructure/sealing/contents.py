"""The contents of events as they stand in the log, in canonical form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any

import psycopg
from psycopg.rows import tuple_row
from psycopg.sql import Identifier, Literal

from ...domain.content import COLUMNS, JSON, canonical_json, fields_of, joined
from ..postgres.sql import statement

SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_HEADER = len(SIGNATURE) + 8
_COUNT = len(COLUMNS).to_bytes(2, "big")
_END = b"\xff\xff"
_POSITION = Struct(">q").unpack_from

# Each rule of the form once; what the server makes of it is compared with what the definition says.
PROBE = (
    '{"bb": [1e2, -0.0, 24.90, 1E-7, 12345678901234567890123], "a": {"z": null, "y": [true, false, {}, []]}, '
    '"\\u00e4": "\\u0041\\/\\"\\\\\\b\\f\\n\\r\\t\\u0001\\u007f\\u20ac"}'
)


class Contents:
    """Reads the contents of one log on a connection; not for several threads at once.

    PostgreSQL's binary COPY gives a row in the canonical form, byte for byte. That it does is looked at once: a server
    that writes JSON or instants in another way has its rows rewritten, which is slower and gives the same hashes.
    """

    def __init__(self, connection: psycopg.Connection[Any], log: str) -> None:
        self._connection = connection
        self._log = Identifier("onefold", log)
        self.direct = is_canonical(connection)

    def between(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """Yield position and content of each event from position `first` to `last`, in order."""
        return self._copied(
            statement("seal_contents", log=self._log, first=Literal(first), last=Literal(last))
        )

    def at(self, positions: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """Yield position and content of each event that stands at one of these positions, in order."""
        return self._copied(statement("seal_contents_at", log=self._log, positions=Literal(list(positions))))

    def _copied(self, query: bytes) -> Iterator[tuple[int, bytes]]:
        with self._connection.cursor() as cursor, cursor.copy(query) as copy:
            # The server sends each row in a message of its own, the first one behind the header.
            for number, message in enumerate(copy):
                row = bytes(message)
                if number == 0:
                    row = row[_HEADER:]
                if row[:2] == _COUNT:
                    content = row[2:] if self.direct else _canonical(row[2:])
                    yield _POSITION(content, 4)[0], content
                elif row != _END:
                    raise psycopg.DataError(f"expected a row of {len(COLUMNS)} columns, found {row[:2]!r}")


def is_canonical(connection: psycopg.Connection[Any]) -> bool:
    """Tell whether the server writes values in the canonical form."""
    with connection.cursor(row_factory=tuple_row, binary=True) as cursor:
        found = cursor.execute(statement("seal_form"), {"text": PROBE}).fetchone()
    expected = (
        JSON + canonical_json(PROBE).encode(),
        (825_683_400_000_001).to_bytes(8, "big"),
        (7).to_bytes(8, "big"),
    )
    if found is None or found[1:] != expected[1:]:
        raise psycopg.NotSupportedError("expected instants as microseconds since 2000, found another form")
    return bool(found == expected)


def _canonical(content: bytes) -> bytes:
    fields = fields_of(content)
    for place in (8, 10):
        if (field := fields[place]) is not None:
            fields[place] = JSON + canonical_json(field[1:].decode()).encode()
    return joined(fields)

"""Access: the privileges of roles that only audit, that only seal, and that run the application."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, LiteralString, NamedTuple

import psycopg
from psycopg.rows import tuple_row
from psycopg.sql import SQL, Composed, Identifier

from ..postgres.sql import statement
from .errors import UnknownRole


class Part(Enum):
    """What a role is for.

    An `auditor` reads logs, hashes and seals. A `sealer` writes hashes and seals, too. An `application` appends, and
    works on everything else; seals it only reads. None of them can change or remove what is in a log.
    """

    AUDITOR = "auditor"
    SEALER = "sealer"
    APPLICATION = "application"


class Privilege(NamedTuple):
    """What a role may do with a table, or in a schema if `table` is empty."""

    schema: str
    table: str
    may: str


class Granted(NamedTuple):
    """What a role was granted, and what it may do beyond its part: by itself, by other roles, or as everybody."""

    granted: list[Privilege]
    beyond: list[Privilege]


_READ: LiteralString = "SELECT"
_APPEND: LiteralString = "SELECT, INSERT"
_ALL: LiteralString = "SELECT, INSERT, UPDATE, DELETE"

_TABLES: dict[Part, dict[str, LiteralString]] = {
    Part.AUDITOR: {"log": _READ, "seals": _READ, "migrations": _READ},
    Part.SEALER: {"log": _READ, "seals": _APPEND, "migrations": _READ},
    Part.APPLICATION: {
        "log": _APPEND,
        "ledger": _APPEND,
        "seals": _READ,
        "migrations": _READ,
        "state": _ALL,
        "read model": _ALL,
    },
}
_SCHEMAS: dict[Part, dict[str, LiteralString]] = {
    Part.AUDITOR: {"onefold": "USAGE"},
    Part.SEALER: {"onefold": "USAGE"},
    Part.APPLICATION: {
        "onefold": "USAGE",
        "read": "USAGE, CREATE",
        "read_next": "USAGE, CREATE",
        "read_before": "USAGE, CREATE",
    },
}


def grant(
    connection: psycopg.Connection[Any], part: Part, role: str, *, read_models: bool = False
) -> Granted:
    """Grant a role what its part needs, in one transaction; return that, and what it may do beyond.

    With `read_models` an auditor or a sealer may read the read models that there are now. Nothing is revoked. Raises
    `UnknownRole`, and `psycopg.errors.InsufficientPrivilege` unless the caller owns what is granted.
    """
    with connection.transaction(), connection.cursor(row_factory=tuple_row) as cursor:
        found = cursor.execute(statement("grant_role"), {"role": role}).fetchone()
        if found is None:
            raise UnknownRole(
                f"expected a role of the server, found none named {role}; make it first: CREATE ROLE {role} LOGIN"
            )
        tables = cursor.execute(statement("grant_tables")).fetchall()
        granted = list(_wanted(part, tables, read_models))
        for each in granted:
            cursor.execute(_statement(each, role))
        if part is Part.APPLICATION:
            cursor.execute(
                SQL("GRANT USAGE ON ALL SEQUENCES IN SCHEMA onefold TO {}").format(Identifier(role))
            )
        may = cursor.execute(statement("grant_privileges"), {"role": role}).fetchall()
    kinds = {(schema, table): kind for schema, table, kind in tables}
    return Granted(
        granted, list(_beyond(part, may, kinds, {(each.schema, each.table): each.may for each in granted}))
    )


def _wanted(part: Part, tables: list[tuple[Any, ...]], read_models: bool) -> Iterator[Privilege]:
    schemas, kinds = dict(_SCHEMAS[part]), dict(_TABLES[part])
    if read_models:
        schemas.setdefault("read", "USAGE")
        kinds.setdefault("read model", _READ)
    for schema, may in schemas.items():
        yield Privilege(schema, "", may)
    for schema, table, kind in tables:
        if kind in kinds and schema in schemas:
            yield Privilege(schema, table, kinds[kind])


def _statement(privilege: Privilege, role: str) -> Composed:
    # The words are among those above.
    may: Any = privilege.may
    if not privilege.table:
        return SQL("GRANT {} ON SCHEMA {} TO {}").format(
            SQL(may), Identifier(privilege.schema), Identifier(role)
        )
    return SQL("GRANT {} ON {} TO {}").format(
        SQL(may), Identifier(privilege.schema, privilege.table), Identifier(role)
    )


def _beyond(
    part: Part,
    may: list[tuple[Any, ...]],
    kinds: dict[tuple[str, str], str],
    granted: dict[tuple[str, str], str],
) -> Iterator[Privilege]:
    for schema, table, privileges in may:
        guarded = kinds.get((schema, table)) in ("log", "seals", "ledger", "migrations")
        if part is Part.APPLICATION and not guarded:
            continue
        wanted = granted.get((schema, table), "").split(", ")
        if beyond := [each for each in privileges if each not in wanted]:
            yield Privilege(schema, table, ", ".join(beyond))

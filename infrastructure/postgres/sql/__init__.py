"""SQL statements, one file each, with `{name}` for the identifiers that a caller fills in."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from psycopg.sql import SQL, Composable


@cache
def _text(name: str) -> Any:
    # Not literal to a type checker, though nothing but this package can write it.
    return resources.files(__name__).joinpath(f"{name}.sql").read_text("utf-8")


def statement(name: str, **identifiers: Composable) -> bytes:
    """Return the statement of file `name`.sql with its identifiers filled in, ready to be sent.

    As bytes, because psycopg keeps what it learned of a text by the text; a composed one is joined at every call.
    """
    return SQL(_text(name)).format(**identifiers).as_bytes(None)

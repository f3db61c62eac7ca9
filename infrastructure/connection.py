"""Connections for looking around and for administration, and how a URL and an error are shown."""

from __future__ import annotations

import re
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

CONNECT_SECONDS = 10
QUESTION = re.compile(r" Is the server running [^?]*\?")
"""What libpq asks back when it is refused."""


def connected(url: str, *, application: str = "onefold command") -> psycopg.Connection[Any]:
    """Return a new connection in autocommit mode with its clock in UTC.

    Gives up on a silent server after ten seconds unless the URL says otherwise. Raises `psycopg.OperationalError`.
    """
    if "connect_timeout" not in conninfo_to_dict(url):
        url = make_conninfo(url, connect_timeout=CONNECT_SECONDS)
    return psycopg.connect(url, autocommit=True, application_name=application, options="-c timezone=UTC")


def without_password(url: str) -> str:
    """Return a connection string that may be shown: the same if there is no password in it."""
    parameters = conninfo_to_dict(url)
    if "password" not in parameters:
        return url
    shown: dict[str, Any] = {name: value for name, value in parameters.items() if name != "password"}
    return make_conninfo("", **shown)


def one_line(error: BaseException) -> str:
    """Return what an error of the database says, in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return QUESTION.sub("", text)

"""Connections for looking around and for administration, and how a URL and an error are shown."""

from __future__ import annotations

import re
import time
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

CONNECT_SECONDS = 10
QUESTION = re.compile(r" Is the server running [^?]*\?")
"""What libpq asks back when it is refused."""


STARTING = "the database system is "
"""What a server says that starts, recovers or stops (SQLSTATE 57P03), which libpq gives only as text."""

SESSION = (
    "-c TimeZone=UTC -c DateStyle=ISO -c IntervalStyle=postgres -c extra_float_digits=1 -c array_nulls=on"
)
"""Settings that what is sent and read depends on; a role or database may have set them otherwise."""


def conninfo(url: str, *, application: str, **more: Any) -> str:
    """Return the connection string for a session of the product, whatever its role or database is set to.

    `options` of the URL stay; the encoding is always UTF-8. `more` are parameters of libpq.
    """
    given = conninfo_to_dict(url).get("options")
    options = f"{given} {SESSION}" if given else SESSION
    return make_conninfo(url, application_name=application, client_encoding="UTF8", options=options, **more)


def connected(url: str, *, application: str = "onefold command", **more: Any) -> psycopg.Connection[Any]:
    """Return a new connection in autocommit mode, set as `conninfo` says.

    Gives up on a silent server after ten seconds unless the URL says otherwise, and waits as long for one that is
    starting. Raises `psycopg.OperationalError`.
    """
    if "connect_timeout" not in conninfo_to_dict(url):
        more.setdefault("connect_timeout", CONNECT_SECONDS)
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            return psycopg.connect(conninfo(url, application=application, **more), autocommit=True)
        except psycopg.OperationalError as error:
            if STARTING not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def of_database(url: str, name: str) -> str:
    """Return the connection string of another database on the same server; a URL stays a URL."""
    scheme, separator, rest = url.partition("://")
    if not separator or not scheme.startswith("postgres"):
        return make_conninfo(url, dbname=name)
    address, question, query = rest.partition("?")
    if "dbname" in query and "dbname" in conninfo_to_dict(url):
        return make_conninfo(url, dbname=name)
    return f"{scheme}://{address.partition('/')[0]}/{name}{question}{query}"


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

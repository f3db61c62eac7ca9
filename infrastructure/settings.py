"""Settings: which database a process uses, and where it keeps its own files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psycopg
from psycopg.conninfo import conninfo_to_dict

from ..domain.errors import OnefoldError

DATABASE_URL = "ONEFOLD_DATABASE_URL"
HOME = "ONEFOLD_HOME"
SMTP_URL = "ONEFOLD_SMTP_URL"


class SettingsError(OnefoldError):
    """An environment variable holds a value that cannot be used."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Where the data lives.

    `database_url` is a connection string of libpq (URL or `key=value`), or None for the embedded server. It may hold a
    password, so it is left out of the representation. `home` is the absolute folder of the embedded server's files.
    """

    database_url: str | None = field(default=None, repr=False)
    home: Path = field(default_factory=lambda: Path(".onefold").absolute())

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Self:
        """Read ONEFOLD_DATABASE_URL and ONEFOLD_HOME from `env` (default: the process's environment).

        A variable that is missing or blank means the default: the embedded server, and `.onefold` in the current
        folder. Raises SettingsError for a home that cannot be a folder, and for a connection string that libpq cannot
        read; the value, which may hold a password, is not in the message.
        """
        env = os.environ if env is None else env
        url = env.get(DATABASE_URL, "").strip() or None
        if url is not None:
            check_database_url(url)
        try:
            home = Path(env.get(HOME, "").strip() or ".onefold").expanduser().absolute()
            is_file = home.exists() and not home.is_dir()
        except (OSError, RuntimeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise SettingsError(
                f"{HOME} must name a folder; {env.get(HOME, '')!r} cannot: {reason}. Name another"
            ) from error
        if is_file:
            raise SettingsError(
                f"{HOME} must name a folder; {home} is a file. Name a folder, or move the file"
            )
        return cls(database_url=url, home=home)


def check_database_url(url: str) -> None:
    """Raise SettingsError unless libpq can read `url` as a connection string."""
    expected = f"{DATABASE_URL} must look like postgresql://user:password@host:5432/database"
    try:
        url.encode()
    except UnicodeEncodeError:
        # The cause quotes the value, which may hold a password.
        raise SettingsError(
            f"{expected}; its value is not UTF-8. Percent-encode special characters in user and password"
        ) from None
    scheme, separator, _ = url.partition("://")
    if separator and "=" not in scheme and scheme not in ("postgresql", "postgres"):
        raise SettingsError(f"{expected}; its scheme is {scheme!r}. Use the URL of a PostgreSQL server")
    try:
        parameters = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        # The cause quotes the value, which may hold a password.
        raise SettingsError(
            f"{expected}; libpq cannot read its value. Percent-encode special characters in user and password"
        ) from None
    for port in filter(None, str(parameters.get("port") or "").split(",")):
        if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise SettingsError(f"{expected}; its port is {port!r}. Use a number from 1 to 65535")

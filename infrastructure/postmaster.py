"""The server process of a data directory; as a script, the keeper that stops a server when nobody holds it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

DATA = "data"
GATE = "gate.lock"
HOLDERS = "holders.lock"
KEEPER = "keeper.lock"
KEPT = "kept"

FAST_SHUTDOWN_SECONDS = 60.0
IMMEDIATE_SHUTDOWN_SECONDS = 10.0
_POLL_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Postmaster:
    """A running server: its process, when it started, and where its socket is."""

    pid: int
    started: str
    socket_directory: Path
    ready: bool

    @property
    def mark(self) -> str:
        """What tells this run of the server from any other."""
        return f"{self.pid} {self.started}"


def find(data: Path) -> Postmaster | None:
    """Return the server that runs on `data`, or None.

    A pid file whose process has ended, or whose pid belongs to another process by now, counts as none.
    """
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
        pid = int(lines[0])
    except (FileNotFoundError, NotADirectoryError, IndexError, ValueError):
        return None
    if len(lines) < 5 or not _runs_on(pid, data):
        return None
    ready = len(lines) > 7 and lines[7].strip() == "ready"
    return Postmaster(pid, lines[2].strip(), Path(lines[4]), ready)


def leftovers(data: Path) -> list[int]:
    """Return the pids of every server process that works in `data`, with or without a postmaster."""
    return [process.pid for process in psutil.process_iter() if _runs_on(process.pid, data)]


def alive(pid: int) -> bool:
    """Return whether a process runs under `pid`; one that ended and was not waited for does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def stop(data: Path) -> bool:
    """Shut down the server on `data` and wait for its end; return False if none ran.

    Clients are disconnected and what they had not committed is rolled back. Raises TimeoutError if the server
    survives a fast and then an immediate shutdown, after 70 seconds.
    """
    server = find(data)
    if server is None:
        return False
    for number, seconds in (
        (signal.SIGINT, FAST_SHUTDOWN_SECONDS),
        (signal.SIGQUIT, IMMEDIATE_SHUTDOWN_SECONDS),
    ):
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.pid, number)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not alive(server.pid):
                if server.socket_directory.parent != data.parent:
                    with contextlib.suppress(OSError):
                        server.socket_directory.rmdir()
                return True
            time.sleep(_POLL_SECONDS)
    raise TimeoutError(
        f"expected the server with pid {server.pid} on {data} to end within "
        f"{FAST_SHUTDOWN_SECONDS + IMMEDIATE_SHUTDOWN_SECONDS:.0f} seconds, found it still running; "
        "look into its log, server.log in the same folder, and end it by its pid"
    )


def kept(directory: Path, server: Postmaster) -> bool:
    """Return whether `server` was started to stay until it is stopped by command."""
    try:
        return (directory / KEPT).read_text() == server.mark
    except FileNotFoundError:
        return False


def unheld(directory: Path) -> bool:
    """Return whether nobody holds the server of `directory`; the caller has the gate."""
    descriptor = os.open(directory / HOLDERS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)


def keeper(directory: Path) -> None:
    """Wait until nobody holds the server of `directory`, and stop it unless it is kept; one keeper is on duty."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    duty = os.open(directory / KEEPER, flags, 0o600)
    try:
        fcntl.flock(duty, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    holders = os.open(directory / HOLDERS, flags, 0o600)
    gate = os.open(directory / GATE, flags, 0o600)
    while True:
        # Holders share this lock while they live; the kernel drops a killed one's share.
        fcntl.flock(holders, fcntl.LOCK_EX)
        fcntl.flock(holders, fcntl.LOCK_UN)
        # A newcomer takes the gate first, then its share: the other order here would wait for it for ever.
        fcntl.flock(gate, fcntl.LOCK_EX)
        if unheld(directory):
            server = find(directory / DATA)
            if server is not None and not kept(directory, server):
                stop(directory / DATA)
            # Off duty before the gate opens, so that the next start sees that it needs a keeper.
            os.close(duty)
            return
        fcntl.flock(gate, fcntl.LOCK_UN)


def _runs_on(pid: int, data: Path) -> bool:
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE or not process.name().startswith("postgres"):
            return False
        return Path(process.cwd()) == data.resolve()
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        # Another account's process: that of a server which this one may not look into, rather than a reused pid.
        return True


if __name__ == "__main__":
    keeper(Path(sys.argv[1]))

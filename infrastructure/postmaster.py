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
LAUNCH = "launch"

FAST_SHUTDOWN_SECONDS = 60.0
IMMEDIATE_SHUTDOWN_SECONDS = 10.0
LAUNCH_SECONDS = 2.0
_POLL_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Postmaster:
    """A running server: its process, when it started, where its socket is, and its state as PostgreSQL puts it."""

    pid: int
    started: str
    socket_directory: Path
    state: str

    @property
    def ready(self) -> bool:
        """Whether it takes connections."""
        return self.state == "ready"

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
    if len(lines) < 5 or not works_in(pid, data):
        return None
    state = lines[7].strip() if len(lines) > 7 else "starting"
    return Postmaster(pid, lines[2].strip(), Path(lines[4]), state)


def find_launched(directory: Path) -> Postmaster | None:
    """Return the server of `directory`, or None; the caller has the gate.

    Where a launch was cut short by a kill, its server gets two seconds to show itself: it has no pid file at first.
    """
    launch = directory / LAUNCH
    deadline = time.monotonic() + (LAUNCH_SECONDS if launch.exists() else 0.0)
    while (server := find(directory / DATA)) is None and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    launch.unlink(missing_ok=True)
    return server


def stale(data: Path) -> bool:
    """Return whether the pid file is sure to be wrong in a way at which PostgreSQL would refuse to start.

    A pid of no process is not: PostgreSQL replaces that itself, once no process of the killed server is left.
    """
    try:
        pid = int((data / "postmaster.pid").read_text().splitlines()[0])
    except FileNotFoundError:
        return False
    except (IndexError, ValueError):
        return True
    return psutil.pid_exists(pid) and works_in(pid, data) is False


def killed(data: Path) -> bool:
    """Return whether the last server on `data` ended without a shutdown: that leaves its pid file."""
    try:
        pid = int((data / "postmaster.pid").read_text().splitlines()[0])
    except (OSError, IndexError, ValueError):
        return False
    return works_in(pid, data) is False


def leftovers(data: Path) -> list[int]:
    """Return the pids of the server processes that work in `data`, with or without a postmaster."""
    return [process.pid for process in psutil.process_iter() if works_in(process.pid, data)]


def works_in(pid: int, data: Path) -> bool | None:
    """Return whether `pid` is a server process of `data`; None if this process may not know."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE or not process.name().startswith("postgres"):
            return False
        try:
            return Path(process.cwd()) == data.resolve()
        except psutil.AccessDenied:
            # Root in a container may not look into other accounts' processes; all may read the words of a command.
            return True if str(data) in process.cmdline() else None
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return None


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


def unheld(holders: int) -> bool:
    """Return whether nobody else holds the server, and if so take `holders`, the open lock; the caller has the gate."""
    while not take(holders, fcntl.LOCK_EX):
        if take(holders, fcntl.LOCK_SH):
            # Those who share it are holders, unless the keeper had it all and gave it back just now.
            return take(holders, fcntl.LOCK_EX)
        # The keeper has it all for a moment: the kernel hands it over before the keeper even wakes.
        time.sleep(_POLL_SECONDS / 5)
    return True


def take(descriptor: int, kind: int) -> bool:
    """Take the lock of an open file, shared or exclusive; return False if others are in the way."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def keeper(directory: Path) -> None:
    """Wait until nobody holds the server of `directory`, and stop it unless it is kept; one keeper is on duty."""
    try:
        # Nothing is created: a home that was removed meanwhile stays removed.
        duty, holders, gate = (os.open(directory / name, os.O_RDWR) for name in (KEEPER, HOLDERS, GATE))
    except FileNotFoundError:
        return
    if not take(duty, fcntl.LOCK_EX):
        return
    while True:
        # Holders share this lock while they live; the kernel drops a killed one's share.
        fcntl.flock(holders, fcntl.LOCK_EX)
        fcntl.flock(holders, fcntl.LOCK_UN)
        # A newcomer takes the gate first, then its share: the other order here would wait for it for ever.
        fcntl.flock(gate, fcntl.LOCK_EX)
        if unheld(holders):
            server = find_launched(directory)
            if server is not None and not kept(directory, server):
                stop(directory / DATA)
            # Off duty before the gate opens, so that the next start sees that it needs a keeper.
            os.close(duty)
            return
        fcntl.flock(holders, fcntl.LOCK_UN)
        fcntl.flock(gate, fcntl.LOCK_UN)


if __name__ == "__main__":
    keeper(Path(sys.argv[1]))

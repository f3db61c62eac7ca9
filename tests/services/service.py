"""A private server for the tests: started on demand, shared by the workers of one run, and ended by pid."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from .keeper import END_SECONDS, alive

KEEPER = Path(__file__).with_name("keeper.py")
TRIES = 3


class Unavailable(Exception):
    """The service cannot be had on this machine; says what to install."""


class NotStarted(Exception):
    """The service was started and does not answer."""


class NotEnded(Exception):
    """The service was told to end and still runs."""


@dataclass(frozen=True, slots=True)
class Command:
    """A program and its arguments, and what it finds in its environment besides PATH and HOME."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to start a service.

    `commands` gets the service's folder and its ports, and gives the programs to run, the service itself the last; it
    raises Unavailable where the machine lacks them. `answers` tells whether the service at a port is ready, `url`
    where clients find it; both get the first port.
    """

    name: str
    commands: Callable[[Path, Sequence[int]], Sequence[Command]]
    answers: Callable[[int], bool]
    url: Callable[[int], str]
    ports: int = 1
    seconds: float = 90.0


@dataclass(frozen=True, slots=True)
class Service:
    """A service in a folder of its own, on ports of 127.0.0.1 that it keeps when it is started again.

    `owner` is the pid of the process with which the service ends, at the latest.
    """

    recipe: Recipe
    folder: Path
    owner: int

    @property
    def port(self) -> int:
        return self._ports()[0]

    @property
    def url(self) -> str:
        """Where clients find it; raises FileNotFoundError before the first start."""
        return self.recipe.url(self.port)

    @property
    def running(self) -> bool:
        return running(self.folder)

    def start(self) -> str:
        """Start the service unless it runs, wait until it answers, and return its URL."""
        self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        with gate(self.folder):
            if self.running:
                return self.url
            fresh = not (self.folder / "ports").exists()
            for attempt in range(TRIES):
                if fresh:
                    (self.folder / "ports").write_text(json.dumps(free_ports(self.recipe.ports)))
                try:
                    self._launch()
                    return self.url
                except NotStarted:
                    # Somebody else may have been given one of the ports in between.
                    if not fresh or attempt == TRIES - 1:
                        raise
        raise AssertionError

    def stop(self) -> None:
        """Ask the service to end, and wait until it has."""
        with gate(self.folder):
            end(self.folder, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the service, as a power cut would."""
        with gate(self.folder):
            end(self.folder, signal.SIGUSR1)

    def log(self) -> str:
        """What the service has printed."""
        return (self.folder / "log").read_text(errors="replace")

    def _ports(self) -> list[int]:
        ports: list[int] = json.loads((self.folder / "ports").read_text())
        return ports

    def _launch(self) -> None:
        ports = self._ports()
        common = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "LANG": "C.UTF-8"}
        commands = [
            {"argv": list(one.argv), "env": {**common, **one.env}}
            for one in self.recipe.commands(self.folder, ports)
        ]
        born = psutil.Process(self.owner).create_time()
        pid = launch(
            [sys.executable, "-P", str(KEEPER), str(self.owner), repr(born), json.dumps(commands)],
            self.folder,
        )
        (self.folder / "keeper").write_text(json.dumps([pid, psutil.Process(pid).create_time()]))
        deadline = time.monotonic() + self.recipe.seconds
        while not answers(self.recipe, ports[0]):
            if not self.running or time.monotonic() > deadline:
                end(self.folder, signal.SIGUSR1)
                raise NotStarted(
                    f"expected {self.recipe.name} to answer at port {ports[0]} within {self.recipe.seconds:.0f} "
                    f"seconds, found that it does not; it has printed: {self.log()[-2000:]}"
                )
            time.sleep(0.02)


@contextmanager
def gate(folder: Path) -> Iterator[None]:
    """Be the only one who starts or ends the service of a folder."""
    with (folder / "gate").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def launch(argv: Sequence[str], folder: Path) -> int:
    """Start a program as nobody's child, so that it survives whoever starts it; return its pid."""
    script = 'log=$1; shift; "$@" >>"$log" 2>&1 </dev/null & echo $!'
    started = subprocess.run(
        ["/bin/sh", "-c", script, "sh", str(folder / "log"), *argv],
        check=True,
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    return int(started.stdout)


def answers(recipe: Recipe, port: int) -> bool:
    try:
        return recipe.answers(port)
    except OSError:
        return False


def running(folder: Path) -> bool:
    try:
        pid, born = json.loads((folder / "keeper").read_text())
    except (FileNotFoundError, ValueError):
        return False
    return alive(pid, born)


def end(folder: Path, how: int) -> None:
    """End the service of a folder, if it runs, and wait until it has ended."""
    if not running(folder):
        return
    pid, born = json.loads((folder / "keeper").read_text())
    with suppress(ProcessLookupError):
        os.kill(pid, how)
    deadline = time.monotonic() + 3 * END_SECONDS
    # Not until its pid is free: whoever inherited it may take seconds to notice that it ended.
    while alive(pid, born):
        if time.monotonic() > deadline:
            raise NotEnded(f"expected the process {pid} to end within {3 * END_SECONDS:.0f} seconds; kill it")
        time.sleep(0.01)


def end_all(home: Path) -> None:
    """End every service of a run, whose data nobody will read again."""
    for mark in home.glob("services/*/keeper"):
        end(mark.parent, signal.SIGUSR1)


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listened on a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def connects(port: int) -> bool:
    """Whether somebody listens at a port; raises OSError if not."""
    with socket.create_connection(("127.0.0.1", port), timeout=2):
        return True


def replies(port: int, request: bytes, beginning: bytes) -> bool:
    """Whether the answer to a request begins as it should."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(request)
        answer = b""
        while len(answer) < len(beginning):
            more = connection.recv(len(beginning) - len(answer))
            if not more:
                return False
            answer += more
        return answer == beginning

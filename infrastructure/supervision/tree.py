"""The tree: processes that are started, watched, started again and ended together."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from ..backoff import Backoff
from .configuration import Member

log = logging.getLogger("onefold.up")

FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0
"""Seconds before a process that has ended is started again: the first time, and at most."""

STEADY = 60.0
"""Seconds after which a process counts as steady: the next wait is short again."""

WRONG_USE = 2
"""Exit code of a process whose arguments cannot be right at any later time either."""

TICK = 0.05
LONGEST_LINE = 500


@dataclass(slots=True, eq=False)
class Standing:
    """How a member stands: its process, and what became of those before it."""

    member: Member
    process: subprocess.Popen[str] | None = None
    reader: threading.Thread | None = None
    started: float = 0.0
    restarts: int = 0
    code: int | None = None
    said: str = ""
    due: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_WAIT, LONGEST_WAIT))

    @property
    def trouble(self) -> str | None:
        """What is wrong with it, None while it runs or has ended well and is to run again later."""
        if self.process is not None or (self.member.every is not None and self.code in (None, 0)):
            return None
        said = f": {self.said}" if self.said else ""
        return f"ended with {self.code}{said}" if self.code is not None else "is not started yet"


class Tree:
    """Runs members until `stop`; a member that ends is started again, after waits that grow.

    `tell` gets each line that a member writes. Members end with the process that has the tree, however that ends.
    """

    def __init__(
        self,
        members: Sequence[Member],
        tell: Callable[[str, str], object],
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._standings = [Standing(member) for member in members]
        self._tell = tell
        self._env = None if env is None else {**os.environ, **env}
        self._lock = threading.Lock()
        self._ours, self._theirs = -1, -1
        self.wrong: Standing | None = None

    def troubles(self) -> dict[str, str]:
        """Return what is wrong, by the member's name; empty while all run."""
        with self._lock:
            return {
                each.member.name: trouble for each in self._standings if (trouble := each.trouble) is not None
            }

    def standings(self) -> list[dict[str, object]]:
        """Return how each member stands, in the order of the configuration."""
        with self._lock:
            return [
                {
                    "name": each.member.name,
                    "pid": None if each.process is None else each.process.pid,
                    "restarts": each.restarts,
                    "trouble": each.trouble,
                }
                for each in self._standings
            ]

    def run(self, stopping: Callable[[], bool]) -> None:
        """Run the members until `stopping` says so, or one of them ends with wrong use (`wrong` says which)."""
        # What the children hold is read to its end once this process is gone.
        self._theirs, self._ours = os.pipe()
        while not stopping() and self.wrong is None:
            now = time.monotonic()
            for each in self._standings:
                if each.process is not None:
                    self._look(each, now)
                elif now >= each.due:
                    self._start(each, now)
            time.sleep(TICK)

    def end(self, grace: float, hurry: Callable[[], bool] = lambda: False) -> list[str]:
        """Tell all members to stop, and return the names of those that had to be killed after `grace` seconds."""
        for each in self._standings:
            if each.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    each.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + grace
        late: list[str] = []
        for each in self._standings:
            process = each.process
            if process is None:
                continue
            while process.poll() is None and time.monotonic() < deadline and not hurry():
                time.sleep(TICK)
            if process.poll() is None:
                late.append(each.member.name)
                process.kill()
            each.code = process.wait()
            if each.reader is not None:
                each.reader.join(1.0)
            each.process = None
        for descriptor in (self._ours, self._theirs):
            if descriptor >= 0:
                os.close(descriptor)
        self._ours = self._theirs = -1
        return late

    def _start(self, standing: Standing, now: float) -> None:
        member = standing.member
        if member.own:
            command, passed = list(member.arguments), tuple[int, ...]()
        else:
            child = f"{__package__}.child"
            command = [sys.executable, "-m", child, str(self._theirs), *member.arguments]
            passed = (self._theirs,)
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="backslashreplace",
                env=self._env,
                pass_fds=passed,
                # Ctrl-C is for the tree, which tells its members.
                process_group=0,
            )
        except OSError as error:
            with self._lock:
                standing.code, standing.said = 127, f"{command[0]} cannot be started: {error.strerror}"
                standing.due = now + standing.backoff.next()
            log.warning("%s: %s", member.name, standing.said)
            return
        assert process.stdout is not None
        reader = threading.Thread(target=self._read, args=(standing, process.stdout), daemon=True)
        with self._lock:
            standing.process, standing.started, standing.reader = process, now, reader
        reader.start()
        if member.every is None:
            log.info("%s: started as %d", member.name, process.pid)

    def _look(self, standing: Standing, now: float) -> None:
        process = standing.process
        assert process is not None
        code = process.poll()
        if code is None:
            if now - standing.started > STEADY:
                standing.backoff.reset()
            return
        if standing.reader is not None:
            standing.reader.join(1.0)
        member = standing.member
        with self._lock:
            standing.process, standing.code = None, code
            if code == WRONG_USE and not member.own:
                self.wrong = standing
            elif member.every is not None and code == 0:
                standing.backoff.reset()
                standing.due = now + member.every
            else:
                standing.restarts += 1
                standing.due = now + standing.backoff.next()
        if member.every is None or code:
            log.warning(
                "%s: ended with %d; started again in %.1f s", member.name, code, max(0.0, standing.due - now)
            )

    def _read(self, standing: Standing, lines: IO[str]) -> None:
        with lines:
            for line in lines:
                text = line.rstrip("\n")
                if text.strip():
                    standing.said = text.strip()[:LONGEST_LINE]
                self._tell(standing.member.name, text)

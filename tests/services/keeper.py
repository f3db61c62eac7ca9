"""Keeps the processes of one service: they start together, end together, and never outlive the run of the tests.

`keeper.py OWNER BORN COMMANDS`: the pid and the birth of the process to outlive none of, and a JSON list of
`{"argv": [...], "env": {...}}`. The last command is the service, those before it are what it needs. On SIGTERM all
are asked to end, last first; on SIGUSR1 all are killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from types import FrameType
from typing import Any

import psutil

POLL_SECONDS = 0.1
END_SECONDS = 20.0


def alive(pid: int, born: float) -> bool:
    """Whether the process `pid` that was born at `born` runs: its pid may be another process's by now."""
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - born) < 1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def keep(owner: int, born: float, commands: list[dict[str, Any]]) -> int:
    asked: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        asked.append(number)

    signal.signal(signal.SIGTERM, note)
    signal.signal(signal.SIGUSR1, note)
    children: list[subprocess.Popen[bytes]] = []
    try:
        children.extend(
            subprocess.Popen(one["argv"], env=one["env"], start_new_session=True) for one in commands
        )
        while not asked and children[-1].poll() is None and alive(owner, born):
            time.sleep(POLL_SECONDS)
        if signal.SIGTERM in asked:
            for child in reversed(children):
                child.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(END_SECONDS)
    finally:
        for child in reversed(children):
            # The group, because a service may have helpers of its own.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    return 0


if __name__ == "__main__":
    sys.exit(keep(int(sys.argv[1]), float(sys.argv[2]), json.loads(sys.argv[3])))

"""Effects of every kind, and a process of `onefold effects` that is killed at a point of the way.

Run as a program with the name of an effect and of a point; see `POINTS`.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onefold import App, Call, Effect
from onefold.infrastructure.effects.queue import Queue

LEASE = 0.8
CONTENT = b"receipt " * 20_000

die_here: Callable[[str], None] = lambda point: None  # noqa: E731 - what does nothing, until it does


def charge(data: Any, call: Call) -> Any:
    response = call.http.post(f"{data['at']}/charges", json={"amount": data["amount"]})
    die_here("answered")
    response.raise_for_status()
    return response.json()


def mail(data: Any, call: Call) -> str:
    identity = call.mail(to=data["to"], subject="Receipt", text="5.00 EUR")
    die_here("answered")
    return identity


def receipt(data: Any, call: Call) -> None:
    call.write(Path(data["folder"]) / "receipt.txt", CONTENT)
    die_here("answered")


effects = {
    name: Effect(name, function, lease=LEASE)
    for name, function in (("charge", charge), ("mail", mail), ("receipt", receipt))
}
app = App(effects=effects.values())

POINTS = {
    "charge": ("claimed", "answered", "decided", "noted"),
    "mail": ("claimed", "answered", "decided", "noted"),
    "receipt": (
        "claimed", "opened", "half written", "written", "synced", "renamed", "folder synced", "answered", "decided",
        "noted",
    ),
}  # fmt: skip


def be_killed_at(point: str) -> None:
    """Arrange that this process kills itself at a point."""

    def die(reached: str) -> None:
        if reached == point:
            os.kill(os.getpid(), signal.SIGKILL)

    # The functions above belong to another copy of this module.
    sys.modules["tests.faults.effects_victim"].die_here = die  # type: ignore[attr-defined]
    claim, done, fsync, plain = Queue.claim, Queue.done, os.fsync, Path.open
    synced: list[int] = []

    def claim_and_die(queue: Queue) -> Any:
        found = claim(queue)
        die("claimed")
        return found

    def done_and_die(queue: Queue, *arguments: Any) -> bool:
        die("decided")
        found = done(queue, *arguments)
        die("noted")
        return found

    def sync_and_die(number: int) -> None:
        die("renamed" if synced else "written")
        fsync(number)
        synced.append(number)
        die("synced" if len(synced) == 1 else "folder synced")

    class Part(io.BufferedWriter):
        def write(self, data: Any) -> int:
            super().write(data[: len(data) // 2])
            self.flush()
            die("half written")
            return super().write(data[len(data) // 2 :])

    def open_and_die(path: Path, mode: str = "r", *rest: Any, **more: Any) -> Any:
        if not path.name.startswith(".onefold-"):
            return plain(path, mode, *rest, **more)
        opened = Part(io.FileIO(path, mode.removesuffix("b")))
        die("opened")
        return opened

    Queue.claim, Queue.done = claim_and_die, done_and_die  # type: ignore[method-assign]
    os.fsync = sync_and_die
    Path.open = open_and_die  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    from onefold.infrastructure.cli import main
    from tests.faults import effects_victim

    name, point = sys.argv[1:]
    assert effects_victim.app
    be_killed_at(point)
    sys.argv = [
        "onefold",
        "effects",
        name,
        "--once",
        "--workers",
        "1",
        "--app",
        "tests.faults.effects_victim:app",
    ]
    main()

"""A process that forks consumers which die at a chosen point, and the journal that stands for their broker.

Run as a program it reads one JSON object a line: `url`, `journal` (a path), `point`, `at` and options; it forks a
consumer, waits for its end, and answers with its exit code, negative for a signal.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from onefold import Message, Retry, Transaction
from onefold.infrastructure.brokers import Delivery, Outgoing
from onefold.infrastructure.consuming import claims
from onefold.infrastructure.consuming.consumption import Consumption
from onefold.infrastructure.consuming.intake import Intake
from onefold.infrastructure.postgres.inbox import Inbox

from .desk import TYPE, deposit, deposits

POINTS = ("before the transaction", "claim", "effect", "before commit", "commit", "acknowledgement")


class Journal:
    """A subscription to messages in a file, one a line. What was acknowledged is written beside it, and durable."""

    lease: float | None = None
    joined = True

    def __init__(self, path: Path) -> None:
        self._acknowledged = path.with_suffix(".acknowledged")
        gone = set(acknowledged(path))
        self._waiting = deque(
            Delivery(body, {"content-type": TYPE}, f"journal@{number}", handle=number)
            for number, body in enumerate(path.read_bytes().splitlines())
            if number not in gone
        )

    @property
    def ended(self) -> bool:
        return not self._waiting

    def receive(self, limit: int, timeout: float) -> Sequence[Delivery]:
        if not limit or not self._waiting:
            time.sleep(timeout)
        return [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        with self._acknowledged.open("a") as file:
            file.writelines(f"{delivery.handle}\n" for delivery in deliveries)

    def give_back(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> None:
        self._waiting.extend(deliveries)

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        pass

    def backlog(self) -> int | None:
        return len(self._waiting)

    def retention(self) -> float | None:
        return None

    def close(self) -> None:
        pass


def write(path: Path, messages: Sequence[Outgoing]) -> None:
    path.write_bytes(b"".join(message.body + b"\n" for message in messages))


def acknowledged(path: Path) -> list[int]:
    """Return the numbers of the lines that were acknowledged."""
    found = path.with_suffix(".acknowledged")
    return [int(line) for line in found.read_text().splitlines()] if found.exists() else []


class Death:
    """Kills this process at the n-th time that it is told."""

    def __init__(self, at: int) -> None:
        self._left = at

    def __call__(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def after(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*values: Any, **named: Any) -> Any:
            found = call(*values, **named)
            self()
            return found

        return called

    def before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*values: Any, **named: Any) -> Any:
            self()
            return call(*values, **named)

        return called


def consume(options: dict[str, Any]) -> None:
    point = options.get("point")
    death = Death(options.get("at", 0))
    kills = set(options.get("kills", ()))
    added: Any = deposit
    match point:
        case "before the transaction":
            Inbox.mark = death.before(Inbox.mark)  # type: ignore[method-assign]
        case "claim":
            claims.claim = death.after(claims.claim)  # type: ignore[attr-defined]
        case "effect":
            added = death.after(deposit)
        case "before commit":
            Inbox.write = death.after(Inbox.write)  # type: ignore[method-assign]
        case "commit":
            Intake.done = death.before(Intake.done)  # type: ignore[method-assign]
        case "acknowledgement":
            Journal.acknowledge = death.after(Journal.acknowledge)  # type: ignore[method-assign]

    def effect(message: Message, tx: Transaction) -> None:
        if message.id in kills:
            os.kill(os.getpid(), signal.SIGKILL)
        added(message, tx)

    consumer = deposits(effect, retry=Retry(attempts=options.get("attempts", 1_000), first=0.01))
    journal = Path(options["journal"])
    Consumption(
        options["url"],
        consumer,
        "memory://unused",
        batch=options["batch"],
        subscription=lambda: Journal(journal),
    ).run()


def main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid:
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
            continue
        code = 1
        try:
            consume(json.loads(line))
            code = 0
        except BaseException as error:  # noqa: BLE001 - told by the exit code
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)


if __name__ == "__main__":
    main()

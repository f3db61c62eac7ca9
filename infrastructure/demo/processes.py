"""The processes of the demonstration: one that delivers, and workers that can be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from ...domain.errors import OnefoldError
from ..settings import DATABASE_URL

PATIENCE = 60.0
"""Seconds that a process gets to end."""


class DemoFailed(OnefoldError):
    """A process of the demonstration ended, or stayed silent, where it should not."""


class _Process:
    """A Python module run as a process that ends with this one: its standard input ends then."""

    def __init__(self, what: str, url: str, *arguments: str, answers: bool = False) -> None:
        self.what = what
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        kept = {name: value for name, value in os.environ.items() if name != "ONEFOLD_APP"}
        # In a session of its own, so that Ctrl-C reaches this process alone, which then ends the others in order.
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if answers else subprocess.DEVNULL,
            stderr=self._log,
            env={**kept, DATABASE_URL: url},
            start_new_session=True,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def require_alive(self) -> None:
        """Raise `DemoFailed` with the last words of the process if it has ended."""
        code = self.process.poll()
        if code is not None:
            raise DemoFailed(
                f"expected {self.what} to go on, found that it ended with {code}: {self.last_words()}"
            )

    def last_words(self) -> str:
        """The end of what the process wrote to standard error."""
        self._log.seek(0)
        text = self._log.read().decode(errors="replace").strip()
        return text.splitlines()[-1] if text else "it said nothing"

    def kill(self) -> None:
        """End the process with SIGKILL, wherever it is."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.kill()
        for stream in (self.process.stdin, self.process.stdout, self._log):
            if stream is not None:
                stream.close()


class Worker(_Process):
    """`onefold run` on all projections of the shop."""

    def __init__(self, number: int, url: str, *, page: int) -> None:
        super().__init__(
            f"worker {number}",
            url,
            "onefold.infrastructure.cli",
            "run",
            "--app",
            "onefold.infrastructure.demo.shop:app",
            "--stop-on-eof",
            "--page",
            str(page),
        )

    def stop(self) -> None:
        """Ask it to stop, as an operator would, and wait until it has; raises `DemoFailed` unless it ends well."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired as error:
            raise DemoFailed(
                f"expected {self.what} to stop within {PATIENCE:.0f} s, found it going"
            ) from error
        if code != 0:
            raise DemoFailed(f"expected {self.what} to end with 0, found {code}: {self.last_words()}")


class Deliverer(_Process):
    """The delivering process."""

    def __init__(self, url: str) -> None:
        super().__init__("the delivering process", url, "onefold.infrastructure.demo.delivery", answers=True)

    def deliver(self, path: Path) -> dict[str, Any]:
        """Have a file of deliveries delivered, and return the report."""
        sink, source = self.process.stdin, self.process.stdout
        assert sink is not None
        assert source is not None
        try:
            sink.write(f"{path}\n")
            sink.flush()
            answer = source.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self.process.wait(PATIENCE)
            self.require_alive()
        report: dict[str, Any] = json.loads(answer)
        return report

"""A consumption that runs in a thread beside the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from onefold.infrastructure.consuming.consumption import Consumed, Consumption

_errors: list[BaseException] = []


def until(condition: Callable[[], Any], seconds: float = 20.0) -> None:
    """Wait for a condition, as long as no consumption has failed."""
    deadline = time.monotonic() + seconds
    while not condition():
        if _errors:
            raise _errors[0]
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Running:
    """A consumption at work. Its error is raised by whoever waits for it."""

    def __init__(self, consumption: Consumption) -> None:
        _errors.clear()
        self.consumption = consumption
        self.result: Consumed | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self, seconds: float = 20.0) -> float:
        """Stop, and return how many seconds it took."""
        started = time.monotonic()
        self.consumption.stop()
        return self.wait(seconds) - started

    def wait(self, seconds: float = 30.0) -> float:
        """Wait for its end, and return when that was."""
        self._thread.join(seconds)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error
        return time.monotonic()

    def finish(self) -> None:
        """Stop it, whatever has become of it."""
        self.consumption.stop()
        self._thread.join(20)

    def _run(self) -> None:
        try:
            self.result = self.consumption.run()
        except BaseException as error:  # noqa: BLE001 - raised again in the test's own thread
            self._error = error
            _errors.append(error)

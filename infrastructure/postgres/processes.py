"""What is kept beside the streams of process managers: how far each instance is, and its timeouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import psycopg

from ...projections.process import Taken
from ..identity import new_event_id
from .sql import statement

Execute = Callable[[Any, Mapping[str, Any]], psycopg.Cursor[Any]]

_TAKE_EVENT = statement("process_begin_event")
_TAKE_TIMEOUT = statement("process_begin_timeout")
_SET = statement("timeout_set")
_FORGET = statement("timeout_forget")


class ProcessRecords:
    """Implements `projections.process.Records` by statements of one transaction."""

    def __init__(self, execute: Execute) -> None:
        self._execute = execute

    def take_event(self, process: str, instance: str, message: str, position: int) -> Taken:
        """Take an event of the log for an instance; see `Taken`."""
        values = {"process": process, "instance": instance, "message": message, "position": position}
        return self._taken(_TAKE_EVENT, values)

    def take_timeout(self, process: str, instance: str, message: str) -> Taken:
        """Take a timeout of an instance; see `Taken`."""
        return self._taken(_TAKE_TIMEOUT, {"process": process, "instance": instance, "message": message})

    def set_timeout(self, process: str, instance: str, name: str, due: datetime) -> None:
        """Set a timeout, in the place of one of the same name."""
        values = {"process": process, "instance": instance, "name": name}
        self._execute(_SET, {**values, "id": new_event_id(), "due": due})

    def forget_timeout(self, process: str, instance: str, name: str) -> None:
        """Forget a timeout, if it is set."""
        self._execute(_FORGET, {"process": process, "instance": instance, "name": name})

    def _taken(self, query: bytes, values: Mapping[str, Any]) -> Taken:
        row = self._execute(query, values).fetchone()
        assert row is not None
        return Taken(*row)

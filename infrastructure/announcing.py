"""Announcing: what an application sends out for events, written in the transaction that appends them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from ..domain.event import Event
from ..projections.app import App
from .postgres import outbox


class Announcer:
    """Writes the messages that an application publishes through the outbox; see `postgres.log.Announcer`."""

    def __init__(self, app: App) -> None:
        self._publications = [each for each in app.publications if each.via == "outbox"]
        self._concerned: dict[type[Event], bool] = {}

    def concerns(self, event_class: type[Event]) -> bool:
        """Tell whether anything is to be written for events of this class."""
        found = self._concerned.get(event_class)
        if found is None:
            found = any(each.takes(event_class) for each in self._publications)
            self._concerned[event_class] = found
        return found

    def announce(self, connection: psycopg.Connection[Any], events: Sequence[Event]) -> None:
        """Write what goes out for stored events, in the transaction that is open on the connection."""
        postings = (each.posting(event) for event in events for each in self._publications)
        outbox.write(connection, [posting for posting in postings if posting is not None])


def announcer(app: App) -> Announcer | None:
    """Return the application's announcer, None where nothing that it declares is written with its events."""
    return Announcer(app) if any(each.via == "outbox" for each in app.publications) else None

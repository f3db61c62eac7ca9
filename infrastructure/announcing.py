"""Announcing: what an application sends out for events, written in the transaction that appends them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from ..domain.event import Event
from ..projections.app import App
from .effects import tasks
from .postgres import outbox


class Announcer:
    """Writes the messages that an application publishes through the outbox, and the effects that its events ask for.

    See `postgres.log.Announcer`.
    """

    def __init__(self, app: App) -> None:
        self._publications = [each for each in app.publications if each.via == "outbox"]
        self._effects = [each for each in app.effects if each.on]
        self._concerned: dict[type[Event], bool] = {}

    def concerns(self, event_class: type[Event]) -> bool:
        """Tell whether anything is to be written for events of this class."""
        found = self._concerned.get(event_class)
        if found is None:
            found = any(each.takes(event_class) for each in self._publications) or any(
                each.takes(event_class) for each in self._effects
            )
            self._concerned[event_class] = found
        return found

    def announce(self, connection: psycopg.Connection[Any], events: Sequence[Event]) -> None:
        """Write what goes out for stored events, in the transaction that is open on the connection."""
        postings = (each.posting(event) for event in events for each in self._publications)
        outbox.write(connection, [posting for posting in postings if posting is not None])
        asked = (
            tasks.asked(each, event) for event in events for each in self._effects if each.takes(type(event))
        )
        tasks.announce(connection, [task for task in asked if task is not None])


def announcer(app: App) -> Announcer | None:
    """Return the application's announcer, None where nothing that it declares is written with its events."""
    announces = any(each.via == "outbox" for each in app.publications) or any(each.on for each in app.effects)
    return Announcer(app) if announces else None

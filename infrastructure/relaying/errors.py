"""Errors of relays."""

from __future__ import annotations

from ...domain.errors import OnefoldError
from ...domain.event import Event
from ...projections.publication import Publication


class RelayChanged(OnefoldError):
    """A relay is asked for otherwise than it was begun: another channel, source or number of segments."""


class RelayBusy(OnefoldError):
    """A relay is to be changed while processes of it are at work."""


class RelayFenced(OnefoldError):
    """Another process has taken a segment over; what this one published after that goes out again."""

    def __init__(self, relay: str, segment: int) -> None:
        super().__init__(f"relay {relay}: segment {segment} is in the hands of another process")


class UnknownChannel(OnefoldError, LookupError):
    """A channel is not named, and the application has none or several."""


class PublicationFailed(OnefoldError):
    """No message can be made of an event as it is declared; nothing after it goes out until it can."""

    def __init__(self, publication: Publication, event: Event, error: Exception) -> None:
        meta = event.meta
        super().__init__(
            f"expected {publication!r} to make a message of {event.event_name} ({meta.stream}, version "
            f"{meta.version}), found {type(error).__name__}: {error}; correct its key or data, and start the relay "
            "again"
        )

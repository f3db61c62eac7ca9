"""Refusing: messages that a broker would never take are left out, and so is what follows them in their keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from .port import Outgoing


def screened(
    messages: Sequence[Outgoing], flaw: Callable[[Outgoing], str | None]
) -> tuple[list[int], dict[int, str]]:
    """Return the places of the messages that may go out, and why others are refused, by their place.

    `flaw` says what is wrong with a message, None for nothing. What follows a refused message in its key is in neither.
    """
    refused = {place: why for place, each in enumerate(messages) if (why := flaw(each)) is not None}
    if not refused:
        return list(range(len(messages))), refused
    going = [place for place in range(len(messages)) if place not in refused]
    return without_followers(messages, going, refused), refused


def without_followers(
    messages: Sequence[Outgoing], places: Sequence[int], refused: Mapping[int, str]
) -> list[int]:
    """Return those of the places that do not follow a refused message in its key."""
    first: dict[str, int] = {}
    for place in sorted(refused):
        if (key := messages[place].key) is not None:
            first.setdefault(key, place)
    return [
        place
        for place in places
        if (key := messages[place].key) is None or place < first.get(key, len(messages))
    ]


def size_of(message: Outgoing) -> int:
    """Return the bytes of body, headers and key, without what a protocol adds."""
    headers = sum(len(name.encode()) + len(value.encode()) for name, value in message.headers.items())
    return len(message.body) + headers + len((message.key or "").encode())

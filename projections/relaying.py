"""Relaying: the decisions of a relay, as values: its share of the segments, and what is held back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ..domain.event import flaw_of_text

LONGEST_KEY = 2_000
"""Bytes of what messages are kept in order by: what is held back is looked up by it."""


class Leaving(NamedTuple):
    """A message on its way to the broker.

    `position` is its place in what the relay reads. `sequence` is what it must keep its order by, `key` the same as the
    broker gets it, None where it gets none. `headers` are text.
    """

    position: int
    sequence: str
    key: str | None
    id: str
    type: str
    body: bytes
    headers: Mapping[str, str]


class Kept(NamedTuple):
    """A message that is held back: `cause` says why the broker refused it, None where it waits behind another."""

    message: Leaving
    cause: str | None


def can_order(key: object) -> bool:
    """Tell whether messages can be kept in order by this: text that a database can hold, not empty and not too long."""
    return (
        isinstance(key, str)
        and 0 < len(key.encode("utf-8", "surrogatepass")) <= LONGEST_KEY
        and not flaw_of_text(key)
    )


def share(segments: int, members: int, place: int) -> int:
    """Return how many segments one of so many processes may hold, by its place among them, from 0: all, and evenly."""
    each, left = divmod(segments, max(members, 1))
    return each + (place < left)


def parted(page: Sequence[Leaving], held: Collection[str]) -> tuple[list[Leaving], list[Kept]]:
    """Return what may go out, and what waits because an earlier message of its sequence is held back."""
    going: list[Leaving] = []
    waiting: list[Kept] = []
    for message in page:
        if message.sequence in held:
            waiting.append(Kept(message, None))
        else:
            going.append(message)
    return going, waiting


def refusals(sent: Sequence[Leaving], refused: Mapping[int, str]) -> list[Kept]:
    """Return what is held back after the broker has refused some: these, and what follows them in their sequences.

    `refused` gives the reason by the place in `sent`. A follower may have been published already; it goes out again
    after the one before it, so that the last word of a sequence is always in order.
    """
    if not refused:
        return []
    kept: list[Kept] = []
    stopped: set[str] = set()
    for place, message in enumerate(sent):
        if message.sequence in stopped:
            kept.append(Kept(message, None))
        elif place in refused:
            stopped.add(message.sequence)
            kept.append(Kept(message, refused[place]))
    return kept

"""Lag: how far a consumer is behind its broker, from what each of its workers says."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple
from urllib.parse import urlsplit

OWN = frozenset({"kafka"})
"""Schemes of brokers that give each worker a share of its own, so that shares add up; others have one queue for all."""

WHOLE = frozenset({"sqs", "redis", "rediss"})
"""Schemes of brokers that count what workers hold among what waits."""


class Share(NamedTuple):
    """What one worker says: the broker's URL, what waits in the broker, what it holds undone itself (messages).

    `backlog` is None where the broker cannot be asked. `newest` is when the newest message that it has done was
    published, by the broker's clock.
    """

    broker: str
    backlog: int | None
    in_flight: int
    newest: datetime | None


def backlog(shares: Iterable[Share]) -> int | None:
    """Return how many messages wait in the brokers, None where nobody can say."""
    total: int | None = None
    queues: dict[str, int] = {}
    for broker, waiting, _, _ in shares:
        if waiting is None:
            continue
        if _scheme(broker) in OWN:
            total = (total or 0) + waiting
        else:
            queues[broker] = max(queues.get(broker, 0), waiting)
    return total if not queues else (total or 0) + sum(queues.values())


def lag_messages(shares: Iterable[Share]) -> int | None:
    """Return how many messages are published and not done, None where nobody can say."""
    shares = list(shares)
    waiting = backlog(shares)
    if waiting is None:
        return None
    held: dict[bool, int] = {True: 0, False: 0}
    for share in shares:
        held[_scheme(share.broker) in WHOLE] += share.in_flight
    return max(waiting, held[True]) + held[False]


def lag_seconds(shares: Iterable[Share], now: datetime) -> float | None:
    """Return for how long the newest message that is done has been published, 0 while none is left to do.

    Of several queues, and of shares that are each worker's own, the one furthest behind counts: others that keep up
    must not hide it. None where nobody can say: there is something to do, and nothing with a time was done yet.
    """
    queues: dict[str | int, list[Share]] = {}
    for number, share in enumerate(shares):
        queues.setdefault(number if _scheme(share.broker) in OWN else share.broker, []).append(share)
    busy = [queue for queue in queues.values() if any(share.in_flight or share.backlog for share in queue)]
    if not busy:
        return 0.0 if queues else None
    newest = [
        max(times)
        for queue in busy
        if (times := [share.newest for share in queue if share.newest is not None])
    ]
    return max(0.0, (now - min(newest)).total_seconds()) if newest else None


def _scheme(broker: str) -> str:
    return urlsplit(broker).scheme

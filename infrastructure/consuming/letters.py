"""Letters: what is kept of a message that failed for good, or waits."""

from __future__ import annotations

from typing import Any, cast

from ...projections.guards import Outcome
from ...projections.inbox import Item, Step
from ..postgres.inbox import DeadLetter
from .arrivals import Arrival


def arrival_of(item: Item) -> Arrival:
    """Return what an item of a plan is here."""
    return cast("Arrival", item)


def letter(step: Step) -> DeadLetter:
    """Return the dead letter of a message that failed for good."""
    _, outcome, cause = step
    item = arrival_of(step.item)
    return DeadLetter(
        outcome,
        cause,
        item.delivery,
        item.identity,
        None if item.unclaimed else item.key,
        item.fingerprint,
        item.key_text,
        item.message.id,
        item.message.type,
        item.sequence,
        item.version,
        item.attempts,
        item.parked,
    )


def letter_of_broken(arrival: Arrival) -> DeadLetter:
    """Return the dead letter of a delivery that cannot be read, or has no key."""
    message = arrival.message
    return DeadLetter(
        Outcome.REJECTED,
        arrival.problem,
        arrival.delivery,
        arrival.identity,
        message_id=message.id or None,
        type=message.type or None,
    )


def parked_values(step: Step) -> tuple[Any, ...]:
    """Return the row of a message that is parked; see `Inbox.park`."""
    item = arrival_of(step.item)
    return (
        item.sequence,
        item.version,
        item.key,
        item.fingerprint,
        item.message.id,
        item.message.type,
        step.cause,
        item.delivery,
    )

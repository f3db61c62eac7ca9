"""Orders: in which messages of a test come, beside their own."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from ...projections.consumer import Consumer
from ..brokers.port import Delivery
from ..consuming.arrivals import Reader
from ..consuming.processor import LARGEST


def keeps_order(consumer: Consumer) -> bool:
    """Tell whether messages of a sequence must come in order, as what comes before its turn is refused."""
    return consumer.ordered and consumer.rule.on_gap == "reject"


def orders(
    consumer: Consumer, messages: Sequence[Delivery], number: int, seed: int
) -> Iterator[tuple[list[int], int]]:
    """Yield so many orders of the messages, as their places from 0, each with the size of its batches.

    Simple ones come first; the others have repeats. One seed gives the same ones each time.
    """
    count = len(messages)
    sequences = _sequences(consumer, messages) if keeps_order(consumer) else None
    chance = random.Random(seed)  # noqa: S311 - repeatable
    every = list(range(count))
    yield _allowed(every[::-1], sequences), 1
    swaps = chance.sample(range(count - 1), min(count - 1, (number - 1) // 3))
    for place in swaps:
        order = every.copy()
        order[place], order[place + 1] = order[place + 1], order[place]
        yield _allowed(order, sequences), 1
    for _ in range(number - 1 - len(swaps)):
        order = every + [place for place in every if chance.random() < 1 / 3]
        chance.shuffle(order)
        yield _allowed(order, sequences), chance.choice((1, 2, 3, LARGEST))


def first_of_each(consumer: Consumer, messages: Sequence[Delivery]) -> list[int]:
    """Return the places, from 0, of the messages that begin a sequence; without sequences, that of the first."""
    first: dict[str | None, int] = {}
    for place, sequence in enumerate(_sequences(consumer, messages)):
        first.setdefault(sequence, place)
    return list(first.values())


def _allowed(order: list[int], sequences: Sequence[str | None] | None) -> list[int]:
    """Return the order, or with `sequences` one in which the messages of each keep theirs."""
    if sequences is None:
        return order
    turns: dict[str | None, list[int]] = {}
    for turn, place in enumerate(order):
        turns.setdefault(sequences[place], []).append(turn)
    kept = order.copy()
    for theirs in turns.values():
        for turn, place in zip(theirs, sorted(order[turn] for turn in theirs), strict=True):
            kept[turn] = place
    return kept


def _sequences(consumer: Consumer, messages: Sequence[Delivery]) -> list[str | None]:
    reader = Reader(consumer)
    return [reader.arrival(message).sequence for message in messages]

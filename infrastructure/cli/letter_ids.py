"""Ids of dead letters: a number for a consumer's, `effect:7` for a call, `outbox:7` for a message that goes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from . import effect_letters, outbox_letters
from .problems import WrongUse


class Numbers(NamedTuple):
    """The numbers of dead letters by their kind."""

    messages: list[int]
    calls: list[int]
    outgoing: list[int]


def sorted_out(ids: Sequence[str]) -> Numbers:
    """Return the numbers that ids name, by kind; raises `WrongUse` for what is no id."""
    found = Numbers([], [], [])
    kinds = {effect_letters.PREFIX: found.calls, outbox_letters.PREFIX: found.outgoing}
    for each in ids:
        prefix, colon, number = each.rpartition(":")
        numbers = kinds.get(prefix + colon) if colon else found.messages
        if numbers is None or not (number.isascii() and number.isdigit()):
            raise WrongUse(
                f"expected a dead letter as listed, such as 7, {effect_letters.PREFIX}7 or {outbox_letters.PREFIX}7, "
                f"found {each!r}"
            )
        numbers.append(int(number))
    return found

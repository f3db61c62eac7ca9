"""Guards: what an event means to a row, and a delivery to its consumer.

Pure decisions with a closed set of outcomes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from ..domain.lifecycle import Verdict

Ordering = Literal["delta", "snapshot", "unordered"]
OnGap = Literal["park", "reject"]
Begins = Literal["first", "first-seen"]


class Outcome(Enum):
    """What became of an event or a delivery."""

    APPLIED = "applied"
    """Its effect is committed, in this transaction."""
    DUPLICATE = "duplicate"
    """It was decided before, with the same content."""
    KEY_CONFLICT = "key_conflict"
    """Its key was decided before, with other content; a dead letter."""
    STALE = "stale"
    """Its sequence is past it: a no-op."""
    PARKED = "parked"
    """It is ahead of its sequence, and waits in the database."""
    REJECTED = "rejected"
    """It can never be applied as it is; a dead letter."""
    RETRIED = "retried"
    """It failed, and is tried again."""
    IN_PROGRESS = "in_progress"
    """Another worker is at its key or sequence; the broker delivers it again."""
    EXPIRED = "expired"
    """It is older than what the ledger remembers; a dead letter."""
    DEAD_LETTERED = "dead_lettered"
    """It failed for good; a dead letter."""


APPLIED, DUPLICATE = Outcome.APPLIED, Outcome.DUPLICATE

FAILED_FOR_GOOD = frozenset({Outcome.KEY_CONFLICT, Outcome.REJECTED, Outcome.EXPIRED, Outcome.DEAD_LETTERED})
"""Outcomes that leave a dead letter."""


def judge(position: int, applied: int) -> Outcome:
    """Tell whether an event at `position` is new to a row whose last applied position is `applied`."""
    return APPLIED if position > applied else DUPLICATE


@dataclass(frozen=True, slots=True)
class Rule:
    """What a consumer has declared of its messages."""

    ordering: Ordering
    on_gap: OnGap = "park"
    begins: Begins = "first"


def identify(fingerprint: bytes, decided: bytes | None, *, forgotten: bool = False) -> Outcome | None:
    """Judge a key: was it decided before, with this content?

    `decided` is the fingerprint that the ledger holds for the key, None if it holds none; `forgotten` is true for a
    message older than what the ledger remembers. None means that the key is new.
    """
    if decided is not None:
        return Outcome.DUPLICATE if decided == fingerprint else Outcome.KEY_CONFLICT
    return Outcome.EXPIRED if forgotten else None


def order(rule: Rule, version: int | None, applied: int, verdict: Verdict | None = None) -> Outcome:
    """Judge the order of a message whose key is new: applied now, stale, parked or rejected.

    `version` is the message's, `applied` the last version of its sequence, `verdict` what the lifecycle says of the
    event in the sequence's present state (None without a lifecycle).
    """
    if rule.ordering == "unordered":
        following = False
    else:
        if version is None:
            return Outcome.REJECTED
        if version <= applied:
            return Outcome.STALE
        following = rule.ordering == "delta"
        if following and version > applied + 1:
            return _early(rule)
    if verdict is None or verdict is Verdict.POSSIBLE:
        return Outcome.APPLIED
    if verdict is Verdict.PASSED:
        return Outcome.STALE
    # Of the next version of a sequence without holes, nothing can still come that would make it possible.
    return Outcome.REJECTED if following or verdict is Verdict.NEVER else _early(rule)


class Memory(Enum):
    """What a ledger can say of a message by its age alone."""

    CLAIMABLE = "claimable"
    """Whether its key was claimed before is known."""
    FORGOTTEN = "forgotten"
    """Its key may have been claimed, and forgotten."""
    EARLY = "early"
    """It is of the future: its key would be forgotten while it is too young to expire, and it applied again."""
    BEYOND = "beyond"
    """The ledger has no place for its key yet."""


def recall(aged: int | None, *, floor: int, latest: int, ceiling: int | None, at_floor: bool) -> Memory:
    """Judge the age of a message, `aged` being when it came to be, None if it was promised to be young.

    What was before `floor` is forgotten, and what was at it where `at_floor`; `latest` is the last instant that is not
    of the future; from `ceiling` on there is no place. All in one unit.
    """
    if aged is None:
        return Memory.CLAIMABLE
    if aged > latest:
        return Memory.EARLY
    if aged < floor or (at_floor and aged == floor):
        return Memory.FORGOTTEN
    return Memory.BEYOND if ceiling is not None and aged >= ceiling else Memory.CLAIMABLE


SUSPECTS = 16
"""Messages in a transaction when one of them was in hand when a process ended; one by one when that comes again."""

DEATHS = 3
"""Processes that must have ended over a message alone, at least, before it is a dead letter."""


def max_suspects(troubles: Iterable[tuple[int, int, int]]) -> int:
    """Tell how many messages are tried together, of which these are under suspicion.

    Of each its failed tries, and the processes that ended with it alone in hand, and among others.
    """
    worst = max(attempts + 2 * alone + among for attempts, alone, among in troubles)
    return SUSPECTS if worst == 1 else 1


def after_deaths(attempts: int, alone: int, allowed: int) -> Outcome:
    """Judge a message that failed `attempts` times, of `allowed`, and was alone in hand when `alone` processes ended.

    Only one that was alone is proved to end its process; and that may still be chance, once or twice.
    """
    if alone >= max(allowed, DEATHS):
        return Outcome.DEAD_LETTERED
    return after_failure(attempts, allowed)


def advances(rule: Rule, outcome: Outcome, version: int | None, applied: int) -> bool:
    """Tell whether a message with this outcome moves the version of its sequence.

    The next version of a delta sequence moves it also when the lifecycle is past it: those behind it must not wait.
    """
    if version is None or version <= applied:
        return False
    return outcome is Outcome.APPLIED or (outcome is Outcome.STALE and rule.ordering != "unordered")


def after_failure(attempts: int, allowed: int) -> Outcome:
    """Judge a message that has failed `attempts` times, of `allowed`: tried again, or a dead letter."""
    return Outcome.RETRIED if attempts < allowed else Outcome.DEAD_LETTERED


def _early(rule: Rule) -> Outcome:
    return Outcome.PARKED if rule.on_gap == "park" else Outcome.REJECTED

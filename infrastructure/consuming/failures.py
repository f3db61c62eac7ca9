"""Failures: why a batch was not committed."""

from __future__ import annotations

import psycopg

from ...domain.errors import OnefoldError
from ...projections.inbox import Item
from ..postgres.errors import VersionConflict


class Interrupted(OnefoldError):
    """The consumer stops, and its time to end has passed; the batch was rolled back."""


class LedgerBehind(OnefoldError):
    """The time-ordered ledger has no place for the keys of today, and waits for its upkeep."""

    def __init__(self, consumer: str) -> None:
        super().__init__(
            f"consumer {consumer}: expected a ledger with room for keys of today, found one that was not kept up; run "
            "`onefold maintain` as the owner of the tables"
        )


class EffectFailed(Exception):
    """The effect of a message raised; the transaction is to be rolled back."""

    def __init__(self, item: Item, cause: BaseException) -> None:
        self.item = item
        self.cause = cause
        super().__init__(str(cause))


class Refused(Exception):
    """What the batch as a whole wrote was refused, by one of its messages' fault.

    `waited` is true when messages that had waited took part in it.
    """

    def __init__(self, reason: Exception) -> None:
        self.reason = reason
        self.waited = False
        super().__init__(str(reason))


def passing(error: BaseException) -> bool:
    """Tell whether the same may go well at once, as somebody else's transaction was in the way."""
    if isinstance(error, VersionConflict):
        return True
    return isinstance(error, psycopg.Error) and (error.sqlstate or "").startswith("40")

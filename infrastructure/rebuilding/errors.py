"""Errors of rebuilds."""

from __future__ import annotations

from collections.abc import Sequence

from ...domain.errors import OnefoldError


class RebuildRefused(OnefoldError):
    """A projection cannot be rebuilt in the way that was asked for."""


class RebuildBlocked(RebuildRefused):
    """Something hangs on the serving table that another table cannot take over.

    Attributes: `projection` and `obstacles`, each described in the words of the database.
    """

    def __init__(self, projection: str, obstacles: Sequence[str]) -> None:
        self.projection = projection
        self.obstacles = tuple(obstacles)
        super().__init__(
            f"projection {projection}: expected nothing on table read.{projection} but grants, comments, indexes, "
            f"constraints of its own and views, found {'; '.join(obstacles)}; drop it and make it anew after the "
            f"rebuild, or rebuild in place with `onefold rebuild {projection} --in-place`"
        )


class RebuildRunning(OnefoldError):
    """Another process rebuilds the projection now."""

    def __init__(self, projection: str, pids: Sequence[int]) -> None:
        who = f" (server process {', '.join(map(str, pids))})" if pids else ""
        super().__init__(
            f"projection {projection}: expected no other rebuild of it, found one that is under way{who}; "
            "wait for it, or end it"
        )


class VerificationFailed(OnefoldError):
    """The new version is not what an independent fold of the log gives. Nothing was put in place.

    Attributes: `projection`, and `rows`: some of the keys that differ.
    """

    def __init__(self, projection: str, expected: int, found: int, rows: Sequence[str]) -> None:
        self.projection = projection
        self.rows = tuple(rows)
        super().__init__(
            f"projection {projection}: expected {expected} rows as folded one by one, found {found} in "
            f"read_next.{projection}, which differ at {'; '.join(rows)}. The version that serves is as it was. A fold "
            "that is not pure (a clock, a global, a row changed in place) gives another row each time"
        )


class SwapBlocked(OnefoldError):
    """The new version is ready, and the table that serves was in use for all the time that was allowed.

    Attributes: `projection`, and `holders`: who held it, as text.
    """

    def __init__(self, projection: str, seconds: float, holders: Sequence[str]) -> None:
        self.projection = projection
        self.holders = tuple(holders)
        who = "; ".join(holders) or "transactions that follow each other"
        super().__init__(
            f"projection {projection}: expected read.{projection} to be free for a moment within {seconds:g} s, found "
            f"it held by {who}. The new version waits in read_next: end that transaction, and go on with "
            f"`onefold rebuild {projection} --resume`"
        )


class NoOtherVersion(OnefoldError):
    """There is no version of the read model from before its last rebuild."""

    def __init__(self, projection: str) -> None:
        super().__init__(
            f"projection {projection}: expected the version from before its last rebuild in read_before, found none; "
            "it was dropped, or the projection was never rebuilt beside the serving table"
        )

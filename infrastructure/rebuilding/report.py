"""What a rebuild has done, and how far it is."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Step:
    """How far a rebuild is: `done` of `total` events of its present `phase`; the total is None where nobody knows.

    Phases are load, finish, follow, verify and swap.
    """

    phase: str
    done: int = 0
    total: int | None = None


@dataclass(slots=True)
class Report:
    """What a rebuild did: events `applied`, `rows` of the new version, `position` up to which it is folded.

    `verified` counts the rows that were compared. `swapped` is false where the new version was left in read_next.
    `left_behind` are statements for things on the old table that the new one has no column for. `seconds` are by phase.
    """

    projection: str
    position: int = 0
    applied: int = 0
    rows: int = 0
    verified: int = 0
    swapped: bool = False
    resumed: bool = False
    left_behind: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict[str, float])

"""Guards: what an event means to a row, and a delivery to its consumer, as decision tables."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.domain.lifecycle import Verdict
from onefold.projections.guards import (
    DEATHS,
    FAILED_FOR_GOOD,
    SUSPECTS,
    Memory,
    OnGap,
    Ordering,
    Outcome,
    Rule,
    advances,
    after_deaths,
    after_failure,
    identify,
    judge,
    max_suspects,
    order,
    recall,
)


@pytest.mark.parametrize(
    ("position", "applied", "outcome"),
    [
        (1, -1, Outcome.APPLIED),
        (1, 0, Outcome.APPLIED),
        (1, 1, Outcome.DUPLICATE),
        (1, 2, Outcome.DUPLICATE),
        (2, 1, Outcome.APPLIED),
        (9, 1, Outcome.APPLIED),
        (2**53 + 1, 2**53, Outcome.APPLIED),
        (2**53, 2**53 + 1, Outcome.DUPLICATE),
        (2**53 + 1, 2**53 + 1, Outcome.DUPLICATE),
    ],
)
def test_an_event_at_or_below_the_row_s_position_is_a_duplicate(
    position: int, applied: int, outcome: Outcome
) -> None:
    assert judge(position, applied) is outcome


SAME, OTHER = b"s" * 16, b"o" * 16


@pytest.mark.parametrize(
    ("decided", "forgotten", "outcome"),
    [
        (None, False, None),
        (None, True, Outcome.EXPIRED),
        (SAME, False, Outcome.DUPLICATE),
        (SAME, True, Outcome.DUPLICATE),
        (OTHER, False, Outcome.KEY_CONFLICT),
        (OTHER, True, Outcome.KEY_CONFLICT),
        (b"", False, Outcome.KEY_CONFLICT),
    ],
)
def test_a_key_is_new_or_decided_with_this_content_or_with_other_content_or_forgotten(
    decided: bytes | None, forgotten: bool, outcome: Outcome | None
) -> None:
    """What the ledger still holds is judged by it, however old the message is."""
    assert identify(SAME, decided, forgotten=forgotten) is outcome


def test_a_message_counts_as_remembered_unless_it_is_said_to_be_older() -> None:
    assert identify(SAME, None) is None


VERSIONS = {"none": None, "below": 6, "same": 7, "next": 8, "beyond": 9}
VERDICTS = {"-": None, **{verdict.value: verdict for verdict in Verdict}}
APPLIED_SO_FAR = 7

# `early` is parked, or rejected where on_gap="reject".
ORDER = """
ordering  | lifecycle says | none     | below   | same    | next     | beyond
delta     | -              | rejected | stale   | stale   | applied  | early
delta     | possible       | rejected | stale   | stale   | applied  | early
delta     | already passed | rejected | stale   | stale   | stale    | early
delta     | not yet        | rejected | stale   | stale   | rejected | early
delta     | never          | rejected | stale   | stale   | rejected | early
snapshot  | -              | rejected | stale   | stale   | applied  | applied
snapshot  | possible       | rejected | stale   | stale   | applied  | applied
snapshot  | already passed | rejected | stale   | stale   | stale    | stale
snapshot  | not yet        | rejected | stale   | stale   | early    | early
snapshot  | never          | rejected | stale   | stale   | rejected | rejected
unordered | -              | applied  | applied | applied | applied  | applied
unordered | possible       | applied  | applied | applied | applied  | applied
unordered | already passed | stale    | stale   | stale   | stale    | stale
unordered | not yet        | early    | early   | early   | early    | early
unordered | never          | rejected | rejected| rejected| rejected | rejected
"""
EARLY: dict[OnGap, Outcome] = {"park": Outcome.PARKED, "reject": Outcome.REJECTED}


def decisions() -> dict[tuple[Ordering, OnGap, str, str], Outcome]:
    header, *lines = ([cell.strip() for cell in line.split("|")] for line in ORDER.strip().splitlines())
    found: dict[tuple[Ordering, OnGap, str, str], Outcome] = {}
    for ordering, verdict, *cells in lines:
        for column, cell in zip(header[2:], cells, strict=True):
            for on_gap, early in EARLY.items():
                outcome = early if cell == "early" else Outcome(cell)
                found[ordering, on_gap, column, verdict] = outcome  # type: ignore[index]
    return found


DECISIONS = decisions()


@pytest.mark.parametrize(
    ("ordering", "on_gap", "version", "verdict", "outcome"),
    [(*case, outcome) for case, outcome in DECISIONS.items()],
)
def test_order_is_decided_as_the_table_says(
    ordering: Ordering, on_gap: OnGap, version: str, verdict: str, outcome: Outcome
) -> None:
    """C22 to C26: newer wins, early waits, and late is stale only where nothing is lost by it."""
    rule = Rule(ordering, on_gap)
    assert order(rule, VERSIONS[version], APPLIED_SO_FAR, VERDICTS[verdict]) is outcome


def test_the_table_of_orders_has_every_combination() -> None:
    every = product(("delta", "snapshot", "unordered"), ("park", "reject"), VERSIONS, VERDICTS)
    assert set(DECISIONS) == set(every)


def test_gaps_park_unless_the_rule_says_otherwise_and_no_lifecycle_is_the_default() -> None:
    assert Rule("delta") == Rule("delta", "park")
    assert order(Rule("delta"), 3, 1) is Outcome.PARKED


def test_a_rule_does_not_change_while_messages_are_judged_by_it() -> None:
    with pytest.raises(FrozenInstanceError):
        Rule("delta").on_gap = "reject"  # type: ignore[misc]


def test_of_two_versions_decided_one_after_the_other_the_higher_stays() -> None:
    """C22: the sequence is locked while it is decided, so two at the same time are one after the other."""
    for first, second in ((2, 3), (3, 2)):
        applied = 1
        for version in (first, second):
            if order(Rule("snapshot"), version, applied) is Outcome.APPLIED:
                applied = version
        assert applied == 3


def test_a_late_delta_is_not_lost_behind_a_newer_one() -> None:
    """C23: of v1, v3, v2 the third waits, and the second is applied."""
    rule = Rule("delta")
    assert order(rule, 1, 0) is Outcome.APPLIED
    assert order(rule, 3, 1) is Outcome.PARKED
    assert order(rule, 2, 1) is Outcome.APPLIED
    assert order(rule, 3, 2) is Outcome.APPLIED


def test_stale_and_premature_are_told_apart() -> None:
    """C24: both would be no row for `WHERE version = expected`."""
    assert order(Rule("delta"), 2, 3) is Outcome.STALE
    assert order(Rule("delta"), 5, 3) is Outcome.PARKED


@pytest.mark.parametrize(("on_gap", "outcome"), EARLY.items())
@pytest.mark.parametrize("ordering", ["snapshot", "unordered"])
def test_an_event_that_is_early_by_its_lifecycle_is_parked_or_rejected_as_declared(
    ordering: Ordering, on_gap: OnGap, outcome: Outcome
) -> None:
    """C25: an early cancellation is not lost."""
    assert order(Rule(ordering, on_gap), 2, 0, Verdict.NOT_YET) is outcome


def test_a_snapshot_that_comes_late_changes_nothing() -> None:
    """C26: v2, then v1, stays v2."""
    assert order(Rule("snapshot"), 2, 0) is Outcome.APPLIED
    assert order(Rule("snapshot"), 1, 2) is Outcome.STALE


MOVES: dict[Ordering, set[Outcome]] = {
    "delta": {Outcome.APPLIED, Outcome.STALE},
    "snapshot": {Outcome.APPLIED, Outcome.STALE},
    "unordered": {Outcome.APPLIED},
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("outcome", Outcome)
@pytest.mark.parametrize("ordering", MOVES)
def test_a_sequence_moves_to_a_newer_version_that_is_applied_or_that_its_lifecycle_has_passed(
    ordering: Ordering, outcome: Outcome, version: str
) -> None:
    moves = version in ("next", "beyond") and outcome in MOVES[ordering]
    assert advances(Rule(ordering), outcome, VERSIONS[version], APPLIED_SO_FAR) is moves


@settings(deadline=None)
@given(st.sampled_from(sorted(DECISIONS)), st.integers(0, 2**63 - 3), st.integers(-2, 2))
def test_a_sequence_never_moves_back_and_a_delta_sequence_never_skips(
    case: tuple[Ordering, OnGap, str, str], applied: int, distance: int
) -> None:
    ordering, on_gap, _, verdict = case
    rule, version = Rule(ordering, on_gap), applied + distance
    outcome = order(rule, version, applied, VERDICTS[verdict])
    if advances(rule, outcome, version, applied):
        assert version > applied
        assert ordering != "delta" or version == applied + 1


@pytest.mark.parametrize(
    ("attempts", "allowed", "outcome"),
    [
        (0, 1, Outcome.RETRIED),
        (1, 1, Outcome.DEAD_LETTERED),
        (1, 3, Outcome.RETRIED),
        (2, 3, Outcome.RETRIED),
        (3, 3, Outcome.DEAD_LETTERED),
        (4, 3, Outcome.DEAD_LETTERED),
        (1, 0, Outcome.DEAD_LETTERED),
    ],
)
def test_a_failed_message_is_tried_again_until_its_tries_are_used_up(
    attempts: int, allowed: int, outcome: Outcome
) -> None:
    assert after_failure(attempts, allowed) is outcome


def test_the_outcomes_are_these_ten_and_four_of_them_leave_a_dead_letter() -> None:
    """The names are kept in the database and in metrics."""
    assert {outcome.value for outcome in Outcome} == {
        "applied",
        "duplicate",
        "key_conflict",
        "stale",
        "parked",
        "rejected",
        "retried",
        "in_progress",
        "expired",
        "dead_lettered",
    }
    assert {outcome.value for outcome in FAILED_FOR_GOOD} == {
        "key_conflict",
        "rejected",
        "expired",
        "dead_lettered",
    }


# Of a ledger that has forgotten what was before 10 and has places up to 20.
AGES = """
aged | latest | ceiling | before the floor | at the floor too
-    | 30     | 20      | claimable        | claimable
9    | 30     | 20      | forgotten        | forgotten
10   | 30     | 20      | claimable        | forgotten
11   | 30     | 20      | claimable        | claimable
19   | 30     | 20      | claimable        | claimable
20   | 30     | 20      | beyond           | beyond
30   | 30     | 20      | beyond           | beyond
31   | 30     | 20      | early            | early
20   | 30     | -       | claimable        | claimable
31   | 30     | -       | early            | early
9    | 8      | 20      | early            | early
9    | 30     | 9       | forgotten        | forgotten
"""


@pytest.mark.parametrize("line", AGES.strip().splitlines()[1:])
def test_what_a_ledger_can_say_by_the_age_alone_is_as_the_table_says(line: str) -> None:
    aged, latest, ceiling, before, too = (cell.strip() for cell in line.split("|"))
    for at_floor, expected in ((False, before), (True, too)):
        found = recall(
            None if aged == "-" else int(aged),
            floor=10,
            latest=int(latest),
            ceiling=None if ceiling == "-" else int(ceiling),
            at_floor=at_floor,
        )
        assert found is Memory(expected)


@pytest.mark.parametrize(
    ("troubles", "expected"),
    [
        # failed tries, processes that ended with it alone, and with it among others
        ([(0, 0, 1)], SUSPECTS),
        ([(1, 0, 0)], SUSPECTS),
        ([(0, 1, 0)], 1),
        ([(0, 0, 2)], 1),
        ([(1, 0, 1)], 1),
        ([(0, 0, 1), (0, 0, 1)], SUSPECTS),
        ([(0, 0, 1), (0, 0, 2)], 1),
    ],
)
def test_the_first_suspicion_makes_the_group_smaller_and_the_next_leaves_one(
    troubles: list[tuple[int, int, int]], expected: int
) -> None:
    assert max_suspects(troubles) == expected


@pytest.mark.parametrize(
    ("attempts", "alone", "allowed", "outcome"),
    [
        (0, 0, 1, Outcome.RETRIED),
        (1, 0, 1, Outcome.DEAD_LETTERED),
        (4, 0, 5, Outcome.RETRIED),
        (5, 0, 5, Outcome.DEAD_LETTERED),
        (0, DEATHS - 1, 1, Outcome.RETRIED),
        (0, DEATHS, 1, Outcome.DEAD_LETTERED),
        (0, DEATHS, 5, Outcome.RETRIED),
        (0, 5, 5, Outcome.DEAD_LETTERED),
        (4, 4, 5, Outcome.RETRIED),
    ],
)
def test_a_message_that_ends_its_process_alone_dies_of_it_after_three_times_at_least(
    attempts: int, alone: int, allowed: int, outcome: Outcome
) -> None:
    assert after_deaths(attempts, alone, allowed) is outcome

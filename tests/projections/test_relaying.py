"""What a relay decides, as tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.projections.relaying import Kept, Leaving, parted, refusals, share


def message(position: int, sequence: str, key: str | None = None) -> Leaving:
    return Leaving(position, sequence, key or sequence, f"m{position}", "test.said", b"", {})


@pytest.mark.parametrize(
    ("segments", "members", "expected"),
    [(4, 0, 4), (4, 1, 4), (4, 2, 2), (4, 3, 2), (4, 4, 1), (4, 9, 1), (1, 2, 1), (64, 3, 22)],
)
def test_a_process_may_hold_its_share_rounded_up(segments: int, members: int, expected: int) -> None:
    assert share(segments, members) == expected


@given(st.integers(1, 64), st.integers(1, 100))
def test_shares_are_enough_for_all_segments_and_not_one_more_than_needed(segments: int, members: int) -> None:
    each = share(segments, members)
    assert each * members >= segments
    assert (each - 1) * members < segments


def test_what_follows_a_held_message_waits_and_others_go() -> None:
    page = [message(1, "a"), message(2, "b"), message(3, "a"), message(4, "c")]
    going, waiting = parted(page, {"a"})
    assert [each.position for each in going] == [2, 4]
    assert waiting == [Kept(page[0], None), Kept(page[2], None)]


def test_of_what_was_sent_the_refused_is_kept_with_all_that_follows_it() -> None:
    sent = [message(1, "a"), message(2, "b"), message(3, "a"), message(4, "b"), message(5, "a")]
    assert refusals(sent, {}) == []
    assert refusals(sent, {2: "too large"}) == [Kept(sent[2], "too large"), Kept(sent[4], None)]
    # One that waits behind another is no dead letter of its own yet.
    assert refusals(sent, {0: "x", 2: "y"}) == [Kept(sent[0], "x"), Kept(sent[2], None), Kept(sent[4], None)]


@given(
    st.lists(st.sampled_from("abc"), max_size=20),
    st.sets(st.integers(0, 19)),
    st.sets(st.sampled_from("abc")),
)
def test_nothing_of_a_sequence_goes_after_what_is_kept_of_it(
    sequences: list[str], bad: set[int], held: set[str]
) -> None:
    page = [message(position, sequence) for position, sequence in enumerate(sequences)]
    going, waiting = parted(page, held)
    kept = [*waiting, *refusals(going, {place: "bad" for place in bad if place < len(going)})]
    out = [each for each in page if each not in [one.message for one in kept]]
    assert sorted([*(each.position for each in out), *(each.message.position for each in kept)]) == [
        each.position for each in page
    ]
    for each in kept:
        assert not [one for one in out if one.sequence == each.message.sequence and one > each.message]

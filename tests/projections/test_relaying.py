"""The decisions of a relay: how segments are shared, and what is held back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.projections.relaying import Kept, Leaving, parted, refusals, share


def leaving(position: int, sequence: str) -> Leaving:
    return Leaving(position, sequence, sequence, f"m{position}", "said", b"{}", {})


def page_of(sequences: str) -> list[Leaving]:
    return [leaving(position, sequence) for position, sequence in enumerate(sequences, 1)]


def places(messages: list[Leaving]) -> list[int]:
    return [message.position for message in messages]


def causes(kept: list[Kept]) -> list[tuple[int, str | None]]:
    return [(each.message.position, each.cause) for each in kept]


@pytest.mark.parametrize(
    ("segments", "members", "shares"),
    [
        (4, 1, [4]),
        (4, 2, [2, 2]),
        (4, 3, [2, 1, 1]),
        (4, 5, [1, 1, 1, 1, 0]),
        (1, 2, [1, 0]),
        (64, 3, [22, 21, 21]),
        # A process that does not see itself yet.
        (4, 0, [4]),
    ],
)
def test_segments_are_shared_evenly(segments: int, members: int, shares: list[int]) -> None:
    assert [share(segments, members, place) for place in range(max(members, 1))] == shares


@given(segments=st.integers(1, 64), members=st.integers(1, 100))
def test_shares_leave_nothing_over_and_differ_by_one_at_most(segments: int, members: int) -> None:
    shares = [share(segments, members, place) for place in range(members)]
    assert sum(shares) == segments
    assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize(
    ("page", "held", "going", "waiting"),
    [
        ("", {"a"}, [], []),
        ("abab", set[str](), [1, 2, 3, 4], []),
        ("abab", {"a"}, [2, 4], [1, 3]),
        ("abab", {"a", "b", "c"}, [], [1, 2, 3, 4]),
    ],
)
def test_what_belongs_to_a_held_sequence_waits(
    page: str, held: set[str], going: list[int], waiting: list[int]
) -> None:
    found = parted(page_of(page), held)
    assert (places(found[0]), causes(found[1])) == (going, [(place, None) for place in waiting])


@pytest.mark.parametrize(
    ("sent", "refused", "kept"),
    [
        ("abab", {}, []),
        ("abab", {1: "too large"}, [(2, "too large"), (4, None)]),
        ("abab", {3: "too large"}, [(4, "too large")]),
        # One that is refused behind another is told when its turn comes.
        ("aab", {0: "x", 1: "y"}, [(1, "x"), (2, None)]),
        ("abc", {0: "x", 2: "z"}, [(1, "x"), (3, "z")]),
    ],
)
def test_what_follows_a_refused_message_in_its_sequence_waits(
    sent: str, refused: dict[int, str], kept: list[tuple[int, str | None]]
) -> None:
    assert causes(refusals(page_of(sent), refused)) == kept


@given(
    sent=st.text("abc", max_size=12),
    refused=st.dictionaries(st.integers(0, 11), st.just("no"), max_size=4),
    held=st.sets(st.sampled_from("abc")),
)
def test_no_message_gets_past_an_earlier_one_of_its_sequence(
    sent: str, refused: dict[int, str], held: set[str]
) -> None:
    page = page_of(sent)
    going, waiting = parted(page, held)
    known = {place: why for place, why in refused.items() if place < len(going)}
    kept = [*waiting, *refusals(going, known)]
    back = {each.message.position for each in kept}
    for sequence in "abc":
        positions = [message.position for message in page if message.sequence == sequence]
        out = [position for position in positions if position not in back]
        assert out == positions[: len(out)]
        if sequence in held:
            assert not out
        first = [each for each in kept if each.message.sequence == sequence][:1]
        assert all((each.cause is None) == (sequence in held) for each in first)
    assert len(back) == len(kept)

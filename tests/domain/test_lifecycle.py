"""Lifecycles: strict for commands, a guard for what arrives, and the same end for facts in any order."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.domain.errors import DeclarationError, IllegalTransition
from onefold.domain.event import Event
from onefold.domain.lifecycle import Lifecycle, Transition, Verdict
from onefold.domain.order import Order
from onefold.domain.registry import Registry

KEPT = Registry()


class Drafted(Event, name="paper.drafted", registry=KEPT):
    pass


class Signed(Event, name="paper.signed", registry=KEPT):
    pass


class Filed(Event, name="paper.filed", registry=KEPT):
    pass


class Noted(Event, name="paper.noted", registry=KEPT):
    pass


class Reopened(Event, name="paper.reopened", registry=KEPT):
    pass


PAPER = Lifecycle(
    ("blank", "draft", "signed", "filed"),
    (
        Transition("draft", Drafted, ("blank",), "draft"),
        Transition("sign", Signed, ("draft",), "signed"),
        Transition("file", Filed, ("draft", "signed"), "filed"),
    ),
)
TABLE = [
    # state, event, verdict, state after the fact
    ("blank", Drafted, Verdict.POSSIBLE, "draft"),
    ("draft", Drafted, Verdict.PASSED, "draft"),
    ("filed", Drafted, Verdict.PASSED, "filed"),
    ("blank", Signed, Verdict.NOT_YET, "signed"),
    ("draft", Signed, Verdict.POSSIBLE, "signed"),
    ("signed", Signed, Verdict.PASSED, "signed"),
    ("filed", Signed, Verdict.PASSED, "filed"),
    ("blank", Filed, Verdict.NOT_YET, "filed"),
    ("signed", Filed, Verdict.POSSIBLE, "filed"),
    ("filed", Filed, Verdict.PASSED, "filed"),
    ("blank", Noted, Verdict.POSSIBLE, "blank"),
    ("filed", Noted, Verdict.POSSIBLE, "filed"),
]


@pytest.mark.parametrize(("state", "event", "verdict", "after"), TABLE)
def test_decision_table(state: str, event: type[Event], verdict: Verdict, after: str) -> None:
    assert PAPER.judge(state, event) is verdict
    assert PAPER.advance(state, event) == after
    if verdict is Verdict.POSSIBLE:
        PAPER.require("paper/1", state, event)
    else:
        with pytest.raises(IllegalTransition):
            PAPER.require("paper/1", state, event)


class Dropped(Event, name="paper.dropped", registry=KEPT):
    pass


DROPPABLE = Lifecycle(
    ("blank", "draft", "dropped", "signed", "filed"),
    (*PAPER.transitions, Transition("drop", Dropped, ("blank", "draft"), "dropped")),
)


@pytest.mark.parametrize(
    ("state", "event", "verdict", "reachable"),
    [
        ("blank", Signed, Verdict.NOT_YET, "blank draft dropped signed filed"),
        ("draft", Signed, Verdict.POSSIBLE, "draft dropped signed filed"),
        ("dropped", Drafted, Verdict.PASSED, "dropped"),
        ("dropped", Signed, Verdict.NEVER, "dropped"),
        ("dropped", Filed, Verdict.NEVER, "dropped"),
        ("dropped", Noted, Verdict.POSSIBLE, "dropped"),
        ("signed", Dropped, Verdict.PASSED, "signed filed"),
        ("filed", Filed, Verdict.PASSED, "filed"),
    ],
)
def test_what_no_way_leads_to_is_never_possible(
    state: str, event: type[Event], verdict: Verdict, reachable: str
) -> None:
    assert DROPPABLE.judge(state, event) is verdict
    assert DROPPABLE.reachable(state) == set(reachable.split())


def test_a_way_back_makes_possible_again() -> None:
    undone = DROPPABLE.with_transitions(Transition("reopen", Reopened, ("dropped",), "draft"))
    assert undone.judge("dropped", Signed) is Verdict.NOT_YET


def test_a_refused_command_names_itself_the_state_and_the_states_in_which_it_is_possible() -> None:
    with pytest.raises(IllegalTransition) as caught:
        PAPER.require("paper/1", "blank", Filed)
    error = caught.value
    assert (error.stream, error.command, error.state, error.allowed) == (
        "paper/1",
        "file",
        "blank",
        ("draft", "signed"),
    )
    assert str(error) == "cannot file paper/1: it is blank; file is possible when draft or signed"


def test_a_command_that_is_never_possible_says_so() -> None:
    stuck = Lifecycle(("a", "b"), (Transition("move", Drafted, (), "b"),))
    with pytest.raises(IllegalTransition, match="move is possible when no state"):
        stuck.require("x/1", "a", Drafted)


def test_states_are_known_by_rank_and_events_by_target() -> None:
    assert PAPER.initial == "blank"
    assert [PAPER.rank(state) for state in PAPER.states] == [0, 1, 2, 3]
    assert PAPER.target(Signed) == "signed"
    assert PAPER.target(Noted) is None


def test_more_transitions_make_another_lifecycle() -> None:
    more = PAPER.with_transitions(Transition("reopen", Reopened, ("filed",), "draft"))
    assert more.advance("filed", Reopened) == "draft"
    assert more.advance("signed", Reopened) == "signed"
    assert PAPER.target(Reopened) is None


@pytest.mark.parametrize(
    ("states", "transitions", "message"),
    [
        ((), (), "at least one state"),
        (("a", "a"), (), "no state twice"),
        (("a",), (Transition("go", Drafted, ("a",), "b"),), "transition 'go' names an unknown state 'b'"),
        (("a",), (Transition("go", Drafted, ("b",), "a"),), "transition 'go' names an unknown state 'b'"),
        (
            ("a", "b"),
            (Transition("go", Drafted, ("a",), "b"), Transition("come", Drafted, ("b",), "a")),
            "an event class stands in two transitions",
        ),
    ],
)
def test_a_lifecycle_that_cannot_work_is_refused(
    states: tuple[str, ...], transitions: tuple[Transition, ...], message: str
) -> None:
    with pytest.raises(DeclarationError, match=message):
        Lifecycle(states, transitions)


def test_the_order_of_arrival_of_a_papers_facts_does_not_matter() -> None:
    for size in range(5):
        for facts in permutations((Drafted, Signed, Filed, Noted), size):
            state = PAPER.initial
            for fact in facts:
                state = PAPER.advance(state, fact)
            ranks = [PAPER.rank(PAPER.target(fact) or "blank") for fact in facts]
            assert state == PAPER.states[max(ranks, default=0)]


FACTS = [transition.event for transition in Order.lifecycle.transitions]


@settings(deadline=None, max_examples=300)
@given(st.lists(st.sampled_from(FACTS), min_size=1, max_size=9), st.randoms(use_true_random=False))
def test_an_orders_facts_end_in_the_state_of_highest_rank_whatever_their_order(
    facts: list[type[Event]], random
) -> None:
    lifecycle = Order.lifecycle
    highest = max((lifecycle.target(fact) or "" for fact in facts), key=lifecycle.rank)
    shuffled = random.sample(facts, len(facts))
    for way in (facts, shuffled, facts + shuffled):
        state = lifecycle.initial
        for fact in way:
            before, state = state, lifecycle.advance(state, fact)
            assert lifecycle.rank(state) >= lifecycle.rank(before)
        assert state == highest


@given(st.sampled_from(Order.lifecycle.states), st.sampled_from(FACTS))
def test_an_order_takes_a_fact_strictly_exactly_when_the_guard_calls_it_possible(
    state: str, fact: type[Event]
) -> None:
    if Order.lifecycle.judge(state, fact) is Verdict.POSSIBLE:
        Order.lifecycle.require("order/1", state, fact)
    else:
        with pytest.raises(IllegalTransition, match=f"it is {state};"):
            Order.lifecycle.require("order/1", state, fact)


def test_a_path_backwards_is_for_commands_and_does_not_converge_for_facts() -> None:
    """A lifecycle with a way back is order-dependent by nature: it needs versions, not ranks."""
    circle = PAPER.with_transitions(Transition("reopen", Reopened, ("filed",), "draft"))
    forth = circle.advance(circle.advance("draft", Filed), Reopened)
    back = circle.advance(circle.advance("draft", Reopened), Filed)
    assert (forth, back) == ("draft", "filed")

"""Lifecycles: the states of an aggregate and the events that move it, as data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Self

from .errors import DeclarationError, IllegalTransition
from .event import Event


class Verdict(Enum):
    """What an event means to an aggregate in its present state."""

    POSSIBLE = "possible"
    PASSED = "already passed"
    NOT_YET = "not yet"
    NEVER = "never"
    """No way leads from the present state to one in which it is possible."""


@dataclass(frozen=True, slots=True)
class Transition:
    """`event` moves from any of `sources` to `target`; `command` is the verb that people use for it."""

    command: str
    event: type[Event]
    sources: tuple[str, ...]
    target: str


class Lifecycle:
    """The states of an aggregate from lowest to highest rank, and its transitions.

    The first state is the one before any event. Used strictly by commands (`require`), as a guard for
    events that arrive (`judge`), and for facts from outside that may come in any order (`advance`).
    """

    def __init__(self, states: Iterable[str], transitions: Iterable[Transition]) -> None:
        self.states = tuple(states)
        self.transitions = tuple(transitions)
        self._rank = {state: rank for rank, state in enumerate(self.states)}
        self._by_event = {transition.event: transition for transition in self.transitions}
        if not self.states or len(self._rank) != len(self.states):
            raise DeclarationError("a lifecycle needs at least one state and no state twice")
        if len(self._by_event) != len(self.transitions):
            raise DeclarationError(
                "an event class stands in two transitions of a lifecycle; join their sources"
            )
        for transition in self.transitions:
            for state in (*transition.sources, transition.target):
                if state not in self._rank:
                    raise DeclarationError(
                        f"transition {transition.command!r} names an unknown state {state!r}"
                    )

    @property
    def initial(self) -> str:
        """The state before any event."""
        return self.states[0]

    def rank(self, state: str) -> int:
        """Return the rank of `state`, from 0."""
        return self._rank[state]

    def target(self, event: type[Event]) -> str | None:
        """Return the state that an event of this class leads to, None if it moves nothing."""
        transition = self._by_event.get(event)
        return None if transition is None else transition.target

    def require(self, stream: str, state: str, event: type[Event]) -> None:
        """Raise `IllegalTransition` unless an event of this class is possible in `state`."""
        transition = self._by_event.get(event)
        if transition is not None and state not in transition.sources:
            raise IllegalTransition(stream, transition.command, state, transition.sources)

    def judge(self, state: str, event: type[Event]) -> Verdict:
        """Tell whether an event is possible in `state`, was passed already, is not possible yet, or can never be."""
        transition = self._by_event.get(event)
        if transition is None or state in transition.sources:
            return Verdict.POSSIBLE
        if self._rank[transition.target] <= self._rank[state]:
            return Verdict.PASSED
        if self.reachable(state).isdisjoint(transition.sources):
            return Verdict.NEVER
        return Verdict.NOT_YET

    def reachable(self, state: str) -> frozenset[str]:
        """Return the states that `state` can lead to, by any number of transitions, and itself."""
        found = {state}
        grown = True
        while grown:
            more = {step.target for step in self.transitions if not found.isdisjoint(step.sources)}
            grown = not more <= found
            found |= more
        return frozenset(found)

    def advance(self, state: str, event: type[Event]) -> str:
        """Return the state after a fact: the transition's target if it is possible or ranks higher, else `state`."""
        transition = self._by_event.get(event)
        if transition is None:
            return state
        if state in transition.sources or self._rank[transition.target] > self._rank[state]:
            return transition.target
        return state

    def with_transitions(self, *more: Transition) -> Self:
        """Return a lifecycle of the same states with `more` transitions."""
        return type(self)(self.states, (*self.transitions, *more))

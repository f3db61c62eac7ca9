"""The inbox's plan: what is to be done about a batch of messages, given what the database knows. Pure.

A plan is made anew for every try of a batch. It applies messages in the order of their arrival, and each parked one in
the place where its turn comes.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from msgspec import Struct

from ..domain.event import Event
from ..domain.lifecycle import Lifecycle, Verdict
from .guards import APPLIED, Outcome, Rule, advances, identify, order
from .message import Message

_LATE = 2**63
PARKED = Outcome.PARKED
_tuple = tuple.__new__


class Item(Struct, eq=False, gc=False):
    """A message made ready to be decided: its key and fingerprint (16 bytes each), its place in its sequence.

    `event` is what the effect gets, None for a message of a type that is passed over. `forgotten` is true for a message
    older than what the ledger remembers, `unclaimed` for one whose key it has no place for. `ruled` is an outcome that
    is settled beforehand, with its cause: the message lacks something, its handler refused it, or its tries are used
    up. `parked` is the number of its row if it was parked before; `held` is true while such a one waits for its next
    try.
    """

    key: bytes
    fingerprint: bytes
    message: Message
    event: Any = None
    sequence: str | None = None
    version: int | None = None
    forgotten: bool = False
    unclaimed: bool = False
    ruled: tuple[Outcome, str] | None = None
    parked: int | None = None
    held: bool = False
    attempts: int = 0


class Standing(NamedTuple):
    """How far a sequence is: the last version applied, the state of its lifecycle (None before any), how many wait."""

    version: int = 0
    state: str | None = None
    parked: int = 0


_NOWHERE = Standing()


class Step(NamedTuple):
    """One message and what becomes of it; `cause` says why, where that is not plain."""

    item: Item
    outcome: Outcome
    cause: str = ""


@dataclass(slots=True)
class Plan:
    """What is to be done, in order. `standings` are those that changed, by sequence."""

    steps: list[Step] = field(default_factory=list)
    standings: dict[str, Standing] = field(default_factory=dict)

    def effects(self) -> list[Item]:
        """Return the messages to be applied, in order."""
        return [item for item, outcome, _ in self.steps if outcome is APPLIED]

    def counts(self) -> Counter[Outcome]:
        """Return how many messages have each outcome."""
        return Counter(step[1] for step in self.steps)


class Planner:
    """Plans batches for one consumer: its rule and its lifecycle."""

    def __init__(self, rule: Rule, lifecycle: Lifecycle | None = None) -> None:
        self.rule = rule
        self.lifecycle = lifecycle
        # What waits already is not refused when the declaration changes.
        self._waiting_rule = replace(rule, on_gap="park")
        # Where the version alone decides, what is to be applied at once is told by one comparison.
        self._by_version = lifecycle is None and rule.ordering != "unordered"
        self._farthest = 1 if rule.ordering == "delta" else _LATE

    def plan(
        self,
        items: Sequence[Item],
        decided: Mapping[bytes, bytes],
        standings: Mapping[str, Standing],
        parked: Mapping[str, Iterable[Item]],
    ) -> Plan:
        """Return what is to be done about `items`, in the order of their arrival.

        `decided` are the fingerprints that the ledger holds for keys of the batch, `standings` the sequences that are
        known, `parked` what waits, by sequence. None of them is changed.
        """
        if not decided and not parked and (plan := self._in_turn(items, standings)) is not None:
            return plan
        plan = Plan(standings=self._begun(items, decided, standings))
        fresh: dict[bytes, bytes] = {}
        waiting: dict[str, list[Item]] = {
            sequence: sorted(found, key=_turn) for sequence, found in parked.items() if found
        }
        by_version, farthest = self._by_version, self._farthest
        steps, changed = plan.steps, plan.standings
        for item in items:
            key = item.key
            if key in decided or key in fresh or item.forgotten:
                known = decided.get(key)
                if known is None:
                    known = fresh.get(key)
                outcome = identify(item.fingerprint, known, forgotten=item.forgotten)
                if outcome is not None:
                    steps.append(_tuple(Step, (item, outcome, _CAUSES.get(outcome, ""))))
                    continue
            fresh[key] = item.fingerprint
            sequence, version = item.sequence, item.version
            if by_version and sequence is not None and version is not None and item.ruled is None:
                standing = changed.get(sequence) or standings.get(sequence) or _NOWHERE
                if 0 < version - standing[0] <= farthest:
                    # `order` says the same.
                    steps.append(_tuple(Step, (item, APPLIED, "")))
                    changed[sequence] = _tuple(Standing, (version, standing[1], standing[2]))
                    if waiting and waiting.get(sequence):
                        self._drain(plan, sequence, standings, waiting)
                    continue
            self._take(plan, item, standings, waiting)
        # Of those that came with the batch; the others were parked before.
        for found in waiting.values():
            for item in found:
                if item.parked is None:
                    plan.steps.append(
                        Step(item, PARKED, self._why(item, self._standing(plan, item, standings)))
                    )
        return plan

    def _begun(
        self, items: Sequence[Item], decided: Mapping[bytes, bytes], standings: Mapping[str, Standing]
    ) -> dict[str, Standing]:
        """Return where sequences stand that begin with what is seen of them first: before the lowest of the batch.

        They stand there also when that one is not applied: what follows it must wait for it.
        """
        if self.rule.begins == "first" or self.rule.ordering != "delta":
            return {}
        lowest: dict[str, int] = {}
        for item in items:
            sequence, version = item.sequence, item.version
            if sequence is None or version is None or sequence in standings:
                continue
            if item.key not in decided and not item.forgotten:
                lowest[sequence] = min(version, lowest.get(sequence, version))
        return {sequence: Standing(version - 1) for sequence, version in lowest.items()}

    def _in_turn(self, items: Sequence[Item], standings: Mapping[str, Standing]) -> Plan | None:
        """Return the plan of a batch of which each message is to be applied at once, None of any other.

        It is the one that `plan` makes; that takes twice as long.
        """
        if not self._by_version or len({item.key for item in items}) < len(items):
            return None
        versions: dict[str, int] = {}
        farthest = self._farthest
        for item in items:
            sequence, version = item.sequence, item.version
            if sequence is None or version is None or item.forgotten or item.ruled is not None:
                return None
            last = versions.get(sequence)
            if last is None:
                last = standings[sequence][0] if sequence in standings else 0
            if not 0 < version - last <= farthest:
                return None
            versions[sequence] = version
        changed = {
            sequence: _tuple(Standing, (version, *standings.get(sequence, _NOWHERE)[1:]))
            for sequence, version in versions.items()
        }
        return Plan([_tuple(Step, (item, APPLIED, "")) for item in items], changed)

    def drain(
        self, sequence: str, standing: Standing, parked: Iterable[Item], *, ruled: Sequence[Item] = ()
    ) -> Plan:
        """Return what is to be done about messages that wait in one sequence, now that it stands here.

        `ruled` are those among them whose outcome is settled beforehand.
        """
        plan = Plan()
        gone = {item.parked for item in ruled}
        for item in ruled:
            assert item.ruled is not None
            plan.steps.append(Step(item, *item.ruled))
        waiting = {sequence: sorted((item for item in parked if item.parked not in gone), key=_turn)}
        self._drain(plan, sequence, {sequence: standing}, waiting)
        return plan

    def _take(
        self,
        plan: Plan,
        item: Item,
        standings: Mapping[str, Standing],
        waiting: MutableMapping[str, list[Item]],
    ) -> None:
        if item.ruled is not None:
            plan.steps.append(Step(item, *item.ruled))
            return
        sequence = item.sequence
        if sequence is None:
            plan.steps.append(Step(item, APPLIED))
            return
        standing = self._standing(plan, item, standings)
        verdict = None if self.lifecycle is None else self._verdict(item, standing)
        outcome = order(self.rule, item.version, standing.version, verdict)
        if outcome is PARKED:
            insort(waiting.setdefault(sequence, []), item, key=_turn)
            return
        plan.steps.append(
            _tuple(Step, (item, outcome, "" if outcome is APPLIED else self._why(item, standing)))
        )
        if self._advance(plan, item, outcome, standing) and waiting.get(sequence):
            self._drain(plan, sequence, standings, waiting)

    def _drain(
        self,
        plan: Plan,
        sequence: str,
        standings: Mapping[str, Standing],
        waiting: MutableMapping[str, list[Item]],
    ) -> None:
        moved = True
        while moved and waiting[sequence]:
            moved = False
            found, left = waiting[sequence], list[Item]()
            for place, item in enumerate(found):
                standing = self._standing(plan, item, standings)
                verdict = None if self.lifecycle is None else self._verdict(item, standing)
                outcome = order(self._waiting_rule, item.version, standing.version, verdict)
                if outcome is PARKED and self.rule.ordering == "delta":
                    # They go by version, so those behind one that is early are early too.
                    left += found[place:]
                    break
                if outcome is PARKED or item.held:
                    left.append(item)
                    continue
                if outcome is APPLIED and item.ruled is not None:
                    plan.steps.append(Step(item, *item.ruled))
                    continue
                plan.steps.append(
                    Step(item, outcome, "" if outcome is APPLIED else self._why(item, standing))
                )
                moved = self._advance(plan, item, outcome, standing) or moved
            waiting[sequence] = left

    def _standing(self, plan: Plan, item: Item, standings: Mapping[str, Standing]) -> Standing:
        assert item.sequence is not None
        return plan.standings.get(item.sequence) or standings.get(item.sequence) or _NOWHERE

    def _verdict(self, item: Item, standing: Standing) -> Verdict | None:
        assert self.lifecycle is not None
        if not isinstance(item.event, Event):
            return None
        return self.lifecycle.judge(standing.state or self.lifecycle.initial, type(item.event))

    def _advance(self, plan: Plan, item: Item, outcome: Outcome, standing: Standing) -> bool:
        """Move the item's sequence; true if it stands elsewhere now."""
        version, state = standing.version, standing.state
        if advances(self.rule, outcome, item.version, version):
            assert item.version is not None
            version = item.version
        if outcome is APPLIED and self.lifecycle is not None and isinstance(item.event, Event):
            state = self.lifecycle.target(type(item.event)) or state
        if version == standing.version and state == standing.state:
            return False
        assert item.sequence is not None
        plan.standings[item.sequence] = _tuple(Standing, (version, state, standing.parked))
        return True

    def _why(self, item: Item, standing: Standing) -> str:
        if self.rule.ordering != "unordered":
            if item.version is None:
                return "it has no version"
            if item.version <= standing.version:
                return f"version {item.version} of {item.sequence} is passed: {standing.version} is applied"
            if self.rule.ordering == "delta" and item.version > standing.version + 1:
                missing = f"{standing.version + 1}"
                if item.version > standing.version + 2:
                    missing += f" to {item.version - 1}"
                return f"version {item.version} of {item.sequence} waits for {missing}"
        assert self.lifecycle is not None
        state = standing.state or self.lifecycle.initial
        never = ", and never will be" if self._verdict(item, standing) is Verdict.NEVER else ""
        return f"{item.message.type} is not possible for {item.sequence}, which is {state}{never}"


def _turn(item: Item) -> tuple[int, int]:
    return (
        _LATE if item.version is None else item.version,
        _LATE if item.parked is None else item.parked,
    )


_CAUSES = {
    Outcome.KEY_CONFLICT: "its key was decided before, with other content",
    Outcome.EXPIRED: "it is older than what the ledger remembers, so it may have been applied before",
}

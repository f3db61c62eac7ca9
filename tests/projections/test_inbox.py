"""The inbox's plan: examples, and an inbox in memory that crashes and is redelivered to, against the fold in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import count, permutations, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from onefold.domain.event import Event
from onefold.domain.lifecycle import Lifecycle, Transition
from onefold.domain.registry import Registry
from onefold.projections.fingerprint import digest_of, fingerprint
from onefold.projections.guards import FAILED_FOR_GOOD, OnGap, Ordering, Outcome, Rule, order
from onefold.projections.inbox import Item, Plan, Planner, Standing, Step
from onefold.projections.message import Message

KEPT = Registry()
APPLIED, DUPLICATE, KEY_CONFLICT, STALE = (
    Outcome.APPLIED,
    Outcome.DUPLICATE,
    Outcome.KEY_CONFLICT,
    Outcome.STALE,
)
PARKED, REJECTED, EXPIRED, DEAD_LETTERED = (
    Outcome.PARKED,
    Outcome.REJECTED,
    Outcome.EXPIRED,
    Outcome.DEAD_LETTERED,
)
ORDER = "order/1"


class Placed(Event, name="order.placed", registry=KEPT):
    pass


class Packed(Event, name="order.packed", registry=KEPT):
    pass


class Shipped(Event, name="order.shipped", registry=KEPT):
    pass


class Delivered(Event, name="order.delivered", registry=KEPT):
    pass


class Closed(Event, name="order.closed", registry=KEPT):
    pass


class Cancelled(Event, name="order.cancelled", registry=KEPT):
    pass


class Noted(Event, name="order.noted", registry=KEPT):
    pass


WAY = (Placed, Packed, Shipped, Delivered, Closed)
LIFE = Lifecycle(
    ("blank", "placed", "packed", "shipped", "delivered", "closed", "cancelled"),
    (
        Transition("place", Placed, ("blank",), "placed"),
        Transition("pack", Packed, ("placed",), "packed"),
        Transition("ship", Shipped, ("packed",), "shipped"),
        Transition("deliver", Delivered, ("shipped",), "delivered"),
        Transition("close", Closed, ("delivered",), "closed"),
        Transition("cancel", Cancelled, ("placed", "packed"), "cancelled"),
    ),
)
DELTA, SNAPSHOT, UNORDERED = Rule("delta"), Rule("snapshot"), Rule("unordered")


def sixteen(text: str) -> bytes:
    return text.encode().ljust(16, b".")


def item(
    version: int | None = None,
    event: Any = None,
    *,
    key: str = "",
    content: str = "",
    sequence: str | None = ORDER,
    **more: Any,
) -> Item:
    name = type(event).event_name if isinstance(event, Event) else "order.changed"
    key = key or f"{sequence} {version or name[6:]}"
    return Item(
        sixteen(key),
        sixteen(content or key),
        Message(key, "/shop", name, subject=sequence),
        event,
        sequence,
        version,
        **more,
    )


@dataclass
class Inbox:
    """What the database keeps, as dictionaries; a batch is planned and written, or planned and forgotten."""

    planner: Planner
    ledger: dict[bytes, bytes] = field(default_factory=dict)
    standings: dict[str, Standing] = field(default_factory=dict)
    parked: dict[str, list[Item]] = field(default_factory=dict)
    dead: list[Step] = field(default_factory=list)
    effects: list[Item] = field(default_factory=list)
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    numbers: Any = field(default_factory=lambda: count(1))

    def take(self, *batch: Item, crash: bool = False) -> Plan:
        """Plan a batch, and commit it unless the worker crashes before."""
        sequences = {each.sequence for each in batch if each.sequence is not None}
        given = (
            {each.key: self.ledger[each.key] for each in batch if each.key in self.ledger},
            {sequence: self.standings[sequence] for sequence in sequences & self.standings.keys()},
            {sequence: self.parked[sequence] for sequence in sequences & self.parked.keys()},
        )
        before = deepcopy(given[1]), {sequence: list(found) for sequence, found in given[2].items()}
        plan = self.planner.plan(batch, *given)
        assert (given[1], given[2]) == before, "a plan changes nothing that it is given"
        arrived = [id(step.item) for step in plan.steps if step.item.parked is None]
        assert sorted(arrived) == sorted(map(id, batch)), "each message of the batch has one outcome"
        if not crash:
            self.commit(plan)
        return plan

    def drain(self, sequence: str, *, ruled: Sequence[Item] = ()) -> Plan:
        standing = self.standings.get(sequence, Standing())
        plan = self.planner.drain(sequence, standing, self.parked.get(sequence, ()), ruled=ruled)
        self.commit(plan)
        return plan

    def commit(self, plan: Plan) -> None:
        gone = [step.item.parked for step in plan.steps if step.item.parked is not None]
        assert len(gone) == len(set(gone)), "what waits is decided once"
        for sequence, found in self.parked.items():
            self.parked[sequence] = [each for each in found if each.parked not in gone]
        for step in plan.steps:
            each, outcome, cause = step
            assert outcome in (APPLIED, DUPLICATE) or cause, "what is not plain has a cause"
            if outcome not in (DUPLICATE, KEY_CONFLICT, EXPIRED):
                self.ledger[each.key] = each.fingerprint
            if outcome is PARKED:
                assert each.sequence is not None
                self.parked.setdefault(each.sequence, []).append(replace(each, parked=next(self.numbers)))
            if outcome in FAILED_FOR_GOOD:
                self.dead.append(step)
        self.effects += plan.effects()
        self.standings |= plan.standings
        self.outcomes += plan.counts()

    def versions(self, sequence: str = ORDER) -> list[int | None]:
        return [each.version for each in self.effects if each.sequence == sequence]

    def waiting(self, sequence: str = ORDER) -> list[int | None]:
        return sorted(each.version or 0 for each in self.parked.get(sequence, ()))


def inbox(ordering: Ordering = "delta", on_gap: OnGap = "park", lifecycle: Lifecycle | None = None) -> Inbox:
    return Inbox(Planner(Rule(ordering, on_gap), lifecycle))


def told(plan: Plan) -> list[tuple[int | None, Outcome]]:
    return [(step.item.version, step.outcome) for step in plan.steps]


def causes(plan: Plan) -> list[str]:
    return [step.cause for step in plan.steps]


# Keys


def test_a_new_key_is_applied_and_a_decided_one_is_a_duplicate() -> None:
    found = inbox("unordered")
    assert told(found.take(item(key="a", sequence=None))) == [(None, APPLIED)]
    plan = found.take(item(key="a", sequence=None))
    assert told(plan) == [(None, DUPLICATE)]
    assert causes(plan) == [""]
    assert len(found.effects) == 1


def test_the_same_key_twice_in_a_batch_is_applied_once() -> None:
    """C11."""
    found = inbox()
    plan = found.take(item(1), item(1), item(2), item(1))
    assert told(plan) == [(1, APPLIED), (1, DUPLICATE), (2, APPLIED), (1, DUPLICATE)]
    assert found.versions() == [1, 2]


def test_the_same_key_with_other_content_in_a_batch_is_a_conflict() -> None:
    """C08, C11."""
    plan = inbox().take(item(1, key="a"), item(2, key="a", content="other"), item(1, key="a"))
    assert told(plan) == [(1, APPLIED), (2, KEY_CONFLICT), (1, DUPLICATE)]
    assert causes(plan) == ["", "its key was decided before, with other content", ""]
    assert plan.standings == {ORDER: Standing(1)}


def test_the_ledger_goes_before_the_batch() -> None:
    found = inbox("unordered")
    found.take(item(key="a", sequence=None, content="first"))
    plan = found.take(
        item(key="a", sequence=None, content="second"), item(key="a", sequence=None, content="first")
    )
    assert told(plan) == [(None, KEY_CONFLICT), (None, DUPLICATE)]


def test_a_message_older_than_the_ledger_is_expired_and_never_applied() -> None:
    """C92."""
    plan = inbox().take(item(1, forgotten=True), item(1, forgotten=True))
    assert told(plan) == [(1, EXPIRED), (1, EXPIRED)]
    assert (
        causes(plan) == ["it is older than what the ledger remembers, so it may have been applied before"] * 2
    )
    assert plan.standings == {}
    assert plan.effects() == []


def test_a_message_older_than_the_ledger_whose_key_is_still_there_is_a_duplicate() -> None:
    found = inbox()
    found.take(item(1))
    assert told(found.take(item(1, forgotten=True))) == [(1, DUPLICATE)]


def test_an_expired_message_does_not_make_a_duplicate_of_another_with_its_key() -> None:
    plan = inbox("unordered").take(item(key="a", sequence=None, forgotten=True), item(key="a", sequence=None))
    assert [step.outcome for step in plan.steps] == [EXPIRED, APPLIED]


def test_one_key_with_two_payloads() -> None:
    """H10: of four messages with one key the first counts, its repeat does nothing, and two are conflicts."""
    planner = Planner(UNORDERED)
    found = Inbox(planner)

    def deposit(amount: str, account: str, *, turned: bool = False) -> Item:
        data = {"amount": Decimal(amount), "account": account}
        if turned:
            data = dict(reversed(data.items()))
        message = Message("any", "/bank", "account.deposited", data, f"account/{account}")
        return Item(digest_of("k"), fingerprint(message), message, message)

    for each, outcome in (
        (deposit("10", "a"), APPLIED),
        (deposit("10.00", "a", turned=True), DUPLICATE),
        (deposit("99", "a"), KEY_CONFLICT),
        (deposit("10", "b"), KEY_CONFLICT),
    ):
        assert [step.outcome for step in found.take(each).steps] == [outcome]
    assert sum(each.event.data["amount"] for each in found.effects) == 10
    assert [step.item.message.data["account"] for step in found.dead] == ["a", "b"]


def test_two_equal_debits_are_two_debits() -> None:
    """C10: identity is the key, never the content."""
    found = inbox("unordered")
    debit = Message("", "/bank", "account.debited", {"amount": -10}, "account/1")
    for key in ("first", "second", "first"):
        found.take(Item(digest_of(key), fingerprint(debit), debit, debit))
    assert sum(each.event.data["amount"] for each in found.effects) == -20


# Order


def test_a_late_delta_is_not_lost_and_the_early_one_follows_it() -> None:
    """C23, C24: v1, v3, v2."""
    found = inbox()
    assert told(found.take(item(1))) == [(1, APPLIED)]
    plan = found.take(item(3))
    assert told(plan) == [(3, PARKED)]
    assert causes(plan) == ["version 3 of order/1 waits for 2"]
    plan = found.take(item(2))
    assert told(plan) == [(2, APPLIED), (3, APPLIED)]
    assert causes(plan) == ["", ""]
    assert plan.standings == {ORDER: Standing(3)}
    assert found.waiting() == []


def test_the_missing_one_brings_all_that_wait_behind_it_up_to_the_next_hole() -> None:
    found = inbox()
    plan = found.take(item(9), item(4), item(6), item(2), item(3))
    assert told(plan) == [(2, PARKED), (3, PARKED), (4, PARKED), (6, PARKED), (9, PARKED)]
    assert causes(plan) == [
        "version 2 of order/1 waits for 1",
        "version 3 of order/1 waits for 1 to 2",
        "version 4 of order/1 waits for 1 to 3",
        "version 6 of order/1 waits for 1 to 5",
        "version 9 of order/1 waits for 1 to 8",
    ]
    assert told(found.take(item(1))) == [(1, APPLIED), (2, APPLIED), (3, APPLIED), (4, APPLIED)]
    assert found.waiting() == [6, 9]


def test_what_is_parked_and_reached_in_one_batch_is_applied_in_its_turn() -> None:
    plan = inbox().take(item(3), item(1), item(5), item(2), item(4), item(7))
    assert told(plan) == [(1, APPLIED), (2, APPLIED), (3, APPLIED), (4, APPLIED), (5, APPLIED), (7, PARKED)]
    assert causes(plan)[-1] == "version 7 of order/1 waits for 6"


def test_what_waits_behind_a_hole_is_not_looked_at_for_every_message_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judged = Counter[int | None]()

    def counted(rule: Rule, version: int | None, *more: Any) -> Outcome:
        judged[version] += 1
        return order(rule, version, *more)

    monkeypatch.setattr("onefold.projections.inbox.order", counted)
    waiting = [item(version, parked=version) for version in range(200, 300)]
    plan = Planner(DELTA).plan([item(version) for version in range(1, 101)], {}, {}, {ORDER: waiting})
    assert len(plan.effects()) == 100
    assert sum(judged[version] for version in range(201, 300)) == 0


def test_sequences_do_not_wait_for_each_other() -> None:
    found = inbox()
    found.take(item(2, sequence="a"), item(2, sequence="b"))
    plan = found.take(item(1, sequence="a"), item(1, sequence="c"))
    assert [(step.item.sequence, step.item.version) for step in plan.steps] == [("a", 1), ("a", 2), ("c", 1)]
    assert plan.standings == {"a": Standing(2), "c": Standing(1)}
    assert (found.waiting("a"), found.waiting("b")) == ([], [2])


def test_a_repeat_of_what_waits_is_a_duplicate() -> None:
    found = inbox()
    found.take(item(2))
    assert told(found.take(item(2))) == [(2, DUPLICATE)]
    assert told(found.take(item(1))) == [(1, APPLIED), (2, APPLIED)]


def test_a_version_that_is_passed_under_another_key_is_stale() -> None:
    found = inbox()
    found.take(item(1), item(2))
    plan = found.take(item(2, key="again"))
    assert told(plan) == [(2, STALE)]
    assert causes(plan) == ["version 2 of order/1 is passed: 2 is applied"]
    assert plan.standings == {}


def test_of_two_that_wait_with_one_version_the_first_is_applied() -> None:
    found = inbox()
    found.take(item(2, key="first"))
    found.take(item(2, key="second"))
    plan = found.take(item(1), item(2, key="third"))
    assert [(step.item.message.id, step.outcome) for step in plan.steps[1:]] == [
        ("first", APPLIED),
        ("second", STALE),
        ("third", STALE),
    ]
    assert found.waiting() == []


def test_a_gap_is_rejected_where_that_is_declared() -> None:
    """C24: told from stale, and left as a dead letter."""
    found = inbox(on_gap="reject")
    plan = found.take(item(1), item(3), item(2))
    assert told(plan) == [(1, APPLIED), (3, REJECTED), (2, APPLIED)]
    assert causes(plan)[1] == "version 3 of order/1 waits for 2"
    assert [step.item.version for step in found.dead] == [3]


def test_what_waits_already_is_not_refused_when_the_declaration_changes() -> None:
    found = inbox()
    found.take(item(3), item(5))
    found.planner = Planner(Rule("delta", "reject"))
    assert told(found.take(item(1), item(2))) == [(1, APPLIED), (2, APPLIED), (3, APPLIED)]
    assert found.waiting() == [5]


def test_an_older_snapshot_changes_nothing() -> None:
    """C26: v2, then late v1, stays v2."""
    found = inbox("snapshot")
    assert told(found.take(item(2))) == [(2, APPLIED)]
    plan = found.take(item(1))
    assert told(plan) == [(1, STALE)]
    assert causes(plan) == ["version 1 of order/1 is passed: 2 is applied"]
    assert found.standings == {ORDER: Standing(2)}


@pytest.mark.parametrize("rule", [DELTA, SNAPSHOT])
def test_a_message_without_a_version_is_rejected_where_there_is_an_order(rule: Rule) -> None:
    plan = Planner(rule).plan([item(None)], {}, {}, {})
    assert told(plan) == [(None, REJECTED)]
    assert causes(plan) == ["it has no version"]


def test_a_message_of_no_sequence_is_applied() -> None:
    plan = inbox("unordered").take(item(sequence=None))
    assert told(plan) == [(None, APPLIED)]
    assert plan.standings == {}


def test_without_order_and_lifecycle_a_sequence_holds_nothing_back() -> None:
    found = inbox("unordered")
    plan = found.take(item(key="b"), item(key="a"), item(key="b"))
    assert [step.outcome for step in plan.steps] == [APPLIED, APPLIED, DUPLICATE]
    assert plan.standings == {}


def test_a_type_that_is_passed_over_takes_its_place_in_the_sequence() -> None:
    found = inbox(lifecycle=LIFE)
    plan = found.take(item(1, None), item(2, Placed()))
    assert told(plan) == [(1, APPLIED), (2, APPLIED)]
    assert plan.standings == {ORDER: Standing(2, "placed")}


def test_a_plan_lists_its_effects_and_counts_its_outcomes() -> None:
    first, second = item(1), item(2)
    plan = inbox().take(second, first, item(1), item(5))
    assert plan.effects() == [first, second]
    assert plan.counts() == Counter({APPLIED: 2, DUPLICATE: 1, PARKED: 1})


def test_an_empty_batch_has_an_empty_plan() -> None:
    waiting = {ORDER: [item(1, parked=1)]}
    assert Planner(DELTA).plan([], {}, {}, waiting) == Plan()


# Lifecycle


@pytest.mark.parametrize("ordering", ["unordered", "snapshot"])
def test_an_early_cancellation_waits_for_the_order(ordering: Ordering) -> None:
    """C25."""
    found = inbox(ordering, lifecycle=LIFE)
    versions = (None, None) if ordering == "unordered" else (1, 2)
    plan = found.take(item(versions[1], Cancelled()))
    assert told(plan) == [(versions[1], PARKED)]
    assert causes(plan) == ["order.cancelled is not possible for order/1, which is blank"]
    plan = found.take(item(versions[0], Placed()))
    assert [type(each.event) for each in plan.effects()] == [Placed, Cancelled]
    assert found.standings == {ORDER: Standing(versions[1] or 0, "cancelled")}


@pytest.mark.parametrize("ordering", ["unordered", "snapshot"])
def test_an_early_cancellation_is_rejected_where_that_is_declared(ordering: Ordering) -> None:
    """C25: a dead letter, and so not lost."""
    found = inbox(ordering, "reject", LIFE)
    plan = found.take(item(None if ordering == "unordered" else 2, Cancelled()))
    assert [step.outcome for step in plan.steps] == [REJECTED]
    assert causes(plan) == ["order.cancelled is not possible for order/1, which is blank"]
    assert plan.standings == {}
    assert len(found.dead) == 1


def test_a_status_never_goes_back() -> None:
    """C25: what the lifecycle has passed is a no-op."""
    found = inbox("unordered", lifecycle=LIFE)
    found.take(item(event=Placed()), item(event=Packed()))
    plan = found.take(item(event=Placed(), key="again"))
    assert told(plan) == [(None, STALE)]
    assert causes(plan) == ["order.placed is not possible for order/1, which is packed"]
    assert found.standings == {ORDER: Standing(0, "packed")}


def test_the_next_delta_that_is_not_possible_is_rejected_and_its_followers_wait() -> None:
    """C81: nothing can still come that would make it possible."""
    found = inbox(lifecycle=LIFE)
    plan = found.take(item(1, Placed()), item(2, Delivered()), item(3, Noted()))
    assert told(plan) == [(1, APPLIED), (2, REJECTED), (3, PARKED)]
    assert causes(plan) == [
        "",
        "order.delivered is not possible for order/1, which is placed",
        "version 3 of order/1 waits for 2",
    ]
    assert plan.standings == {ORDER: Standing(1, "placed")}


def test_a_delta_that_waited_and_is_not_possible_in_its_turn_is_rejected() -> None:
    found = inbox(lifecycle=LIFE)
    found.take(item(3, Noted()), item(2, Delivered()))
    plan = found.take(item(1, Placed()))
    assert told(plan) == [(1, APPLIED), (2, REJECTED)]
    assert causes(plan)[1] == "order.delivered is not possible for order/1, which is placed"
    assert found.waiting() == [3]
    assert [step.item.version for step in found.dead] == [2]


def test_a_delta_that_its_lifecycle_has_passed_lets_its_followers_through() -> None:
    found = inbox(lifecycle=LIFE)
    found.take(item(3, Packed()))
    plan = found.take(item(1, Placed()), item(2, Placed()))
    assert told(plan) == [(1, APPLIED), (2, STALE), (3, APPLIED)]
    assert causes(plan)[1] == "order.placed is not possible for order/1, which is placed"
    assert plan.standings == {ORDER: Standing(3, "packed")}


def test_an_event_that_moves_no_state_brings_nothing_forward() -> None:
    found = inbox("unordered", lifecycle=LIFE)
    found.take(item(event=Packed()))
    plan = found.take(item(event=Noted()))
    assert [step.outcome for step in plan.steps] == [APPLIED]
    assert plan.standings == {}
    plan = found.take(item(event=Placed()), item(event=Noted(), key="note"))
    assert [type(each.event) for each in plan.effects()] == [Placed, Packed, Noted]


@pytest.mark.parametrize("ordering", ["delta", "snapshot", "unordered"])
def test_an_event_that_moves_no_state_leaves_it_as_it_was(ordering: Ordering) -> None:
    found = inbox(ordering, lifecycle=LIFE)
    for version, event in enumerate((Placed(), Noted(), Packed()), 1):
        numbered = None if ordering == "unordered" else version
        assert told(found.take(item(numbered, event))) == [(numbered, APPLIED)]
        assert found.standings[ORDER].state == ("packed" if version == 3 else "placed")


def test_what_waits_by_its_lifecycle_follows_in_any_number_of_rounds_in_the_order_that_is_possible() -> None:
    found = inbox("unordered", lifecycle=LIFE)
    found.take(*(item(event=kind()) for kind in reversed(WAY[1:])))
    plan = found.take(item(event=Placed()))
    assert [type(each.event) for each in plan.effects()] == list(WAY)
    assert found.standings == {ORDER: Standing(0, "closed")}


def test_one_that_is_passed_does_not_end_the_rounds_of_those_that_wait() -> None:
    found = inbox("unordered", lifecycle=LIFE)
    found.take(item(event=Shipped()), item(event=Packed()), item(event=Packed(), key="again"))
    plan = found.take(item(event=Placed()))
    assert [(type(step.item.event), step.outcome) for step in plan.steps] == [
        (Placed, APPLIED),
        (Packed, APPLIED),
        (Packed, STALE),
        (Shipped, APPLIED),
    ]
    assert found.waiting() == []


def test_a_state_goes_on_from_where_it_was_left() -> None:
    plan = Planner(UNORDERED, LIFE).plan([item(event=Shipped())], {}, {ORDER: Standing(0, "packed")}, {})
    assert plan.standings == {ORDER: Standing(0, "shipped")}


def test_a_waiting_snapshot_that_a_newer_one_overtakes_is_stale() -> None:
    found = inbox("snapshot", lifecycle=LIFE)
    found.take(item(2, Packed()))
    plan = found.take(item(5, Noted()))
    assert told(plan) == [(5, APPLIED), (2, STALE)]
    assert causes(plan)[1] == "version 2 of order/1 is passed: 5 is applied"
    assert found.waiting() == []


@pytest.mark.parametrize("deliveries", list(permutations((3, 1, 2, 22))))
@pytest.mark.parametrize("ordering", ["delta", "snapshot"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_newer_before_older(ordering: Ordering, deliveries: tuple[int, ...], size: int) -> None:
    """H3: v3 Delivered, v1 Placed, v2 Shipped twice, in all 24 orders."""
    life = Lifecycle(
        ("blank", "placed", "shipped", "delivered"),
        (
            Transition("place", Placed, ("blank",), "placed"),
            Transition("ship", Shipped, ("placed",), "shipped"),
            Transition("deliver", Delivered, ("shipped",), "delivered"),
        ),
    )
    kinds = {1: Placed, 2: Shipped, 22: Shipped, 3: Delivered}
    found = inbox(ordering, lifecycle=life)
    shown = ["blank"]
    for start in range(0, 4, size):
        batch = (item(number % 20, kinds[number]()) for number in deliveries[start : start + size])
        found.take(*batch)
        shown.append(found.standings.get(ORDER, Standing()).state or "blank")
    assert found.versions() == [1, 2, 3]
    assert found.standings == {ORDER: Standing(3, "delivered")}
    assert shown == sorted(shown, key=life.rank)
    assert found.outcomes[DUPLICATE] == 1
    assert found.waiting() == []


# What failed, and what waits behind it


def test_what_is_settled_beforehand_is_not_judged_again() -> None:
    found = inbox()
    plan = found.take(item(1), item(2, ruled=(DEAD_LETTERED, "it failed five times")), item(3))
    assert told(plan) == [(1, APPLIED), (2, DEAD_LETTERED), (3, PARKED)]
    assert causes(plan) == ["", "it failed five times", "version 3 of order/1 waits for 2"]
    assert plan.standings == {ORDER: Standing(1)}


def test_a_repeat_of_what_is_settled_is_a_duplicate_and_not_settled_twice() -> None:
    ruled = (DEAD_LETTERED, "it failed")
    found = inbox()
    plan = found.take(item(1, ruled=ruled), item(1, ruled=ruled))
    assert told(plan) == [(1, DEAD_LETTERED), (1, DUPLICATE)]
    assert told(found.take(item(1, ruled=ruled))) == [(1, DUPLICATE)]


def test_a_message_that_lacks_its_sequence_is_settled_and_holds_up_nobody() -> None:
    """C80: n+1 goes on."""
    plan = inbox().take(item(sequence=None, ruled=(REJECTED, "expected a sequence")), item(1))
    assert told(plan) == [(None, REJECTED), (1, APPLIED)]
    assert causes(plan) == ["expected a sequence", ""]


def test_followers_of_a_dead_letter_wait_and_are_applied_when_it_is_retried() -> None:
    """C81, H4."""
    found = inbox()
    found.take(item(1), item(2, ruled=(DEAD_LETTERED, "no")), item(1, sequence="b"))
    assert told(found.take(item(4), item(3))) == [(3, PARKED), (4, PARKED)]
    assert told(found.take(item(2, sequence="b"))) == [(2, APPLIED)]
    del found.ledger[item(2).key]
    assert told(found.take(item(2))) == [(2, APPLIED), (3, APPLIED), (4, APPLIED)]
    assert found.versions() == [1, 2, 3, 4]


def test_followers_of_a_dead_letter_are_applied_when_it_is_discarded() -> None:
    """C81: discarding moves the sequence past it."""
    found = inbox()
    found.take(item(1), item(2, ruled=(DEAD_LETTERED, "no")), item(4), item(3), item(6))
    found.standings[ORDER] = Standing(2)
    plan = found.drain(ORDER)
    assert told(plan) == [(3, APPLIED), (4, APPLIED)]
    assert plan.standings == {ORDER: Standing(4)}
    assert found.waiting() == [6]


def test_draining_a_sequence_that_stands_where_it_stood_does_nothing() -> None:
    found = inbox()
    found.take(item(3), item(5))
    assert found.drain(ORDER) == Plan()
    assert found.drain("another") == Plan()
    assert found.waiting() == [3, 5]


def test_draining_goes_by_version_whatever_the_order_in_which_they_are_found() -> None:
    waiting = [item(version, parked=number) for number, version in enumerate((4, 2, 3), 1)]
    plan = Planner(DELTA).drain(ORDER, Standing(1), iter(waiting))
    assert told(plan) == [(2, APPLIED), (3, APPLIED), (4, APPLIED)]


def test_what_waits_past_its_deadline_is_settled_and_the_rest_goes_on_waiting() -> None:
    found = inbox()
    found.take(item(3), item(4), item(6))
    overdue = [
        replace(each, ruled=(DEAD_LETTERED, "it waited for a day"))
        for each in found.parked[ORDER]
        if each.version in (3, 6)
    ]
    plan = found.drain(ORDER, ruled=overdue)
    assert told(plan) == [(3, DEAD_LETTERED), (6, DEAD_LETTERED)]
    assert causes(plan) == ["it waited for a day"] * 2
    assert found.waiting() == [4]
    assert found.standings == {}


def test_what_is_settled_in_a_drain_is_not_applied_by_it() -> None:
    waiting = [item(2, parked=1), item(3, parked=2)]
    ruled = replace(waiting[0], ruled=(DEAD_LETTERED, "too late"))
    plan = Planner(DELTA).drain(ORDER, Standing(1), waiting, ruled=[ruled])
    assert told(plan) == [(2, DEAD_LETTERED)]
    assert plan.standings == {}


@pytest.mark.parametrize("how", ["plan", "drain"])
def test_one_that_waits_and_is_settled_becomes_so_in_its_turn(how: str) -> None:
    """Its tries are used up, or its handler has refused it; those behind it go on waiting."""
    waiting = [item(2, parked=1, ruled=(REJECTED, "the handler refused it")), item(3, parked=2)]
    planner = Planner(DELTA)
    if how == "plan":
        plan = planner.plan([item(1)], {}, {}, {ORDER: waiting})
        assert told(plan) == [(1, APPLIED), (2, REJECTED)]
        assert plan.standings == {ORDER: Standing(1)}
    else:
        plan = planner.drain(ORDER, Standing(1), waiting)
        assert told(plan) == [(2, REJECTED)]
        assert plan.standings == {}
    assert causes(plan)[-1] == "the handler refused it"


def test_one_that_waits_and_is_settled_is_stale_all_the_same_when_its_sequence_is_past_it() -> None:
    waiting = [item(2, parked=1, ruled=(REJECTED, "the handler refused it"))]
    plan = Planner(DELTA).plan([item(3)], {}, {ORDER: Standing(2)}, {ORDER: waiting})
    assert told(plan) == [(3, APPLIED), (2, STALE)]


def test_one_that_waits_for_its_next_try_holds_up_those_behind_it() -> None:
    waiting = [item(2, parked=1, held=True), item(3, parked=2)]
    planner = Planner(DELTA)
    plan = planner.plan([item(1), item(4)], {}, {}, {ORDER: waiting})
    assert told(plan) == [(1, APPLIED), (4, PARKED)]
    assert planner.drain(ORDER, Standing(1), waiting) == Plan()
    waiting[0].held = False
    assert told(planner.drain(ORDER, Standing(1), waiting)) == [(2, APPLIED), (3, APPLIED)]


def test_one_that_waits_for_its_next_try_holds_up_nobody_where_order_does_not_matter() -> None:
    waiting = [item(event=Packed(), parked=1, held=True), item(event=Cancelled(), parked=2)]
    plan = Planner(UNORDERED, LIFE).plan([item(event=Placed())], {}, {}, {ORDER: waiting})
    assert [type(each.event) for each in plan.effects()] == [Placed, Cancelled]


def test_those_that_wait_without_a_version_follow_in_the_order_of_their_arrival() -> None:
    waiting = [
        item(event=Cancelled(), key="second", parked=9),
        item(event=Cancelled(), key="first", parked=8),
    ]
    plan = Planner(UNORDERED, LIFE).plan(
        [item(event=Cancelled(), key="third"), item(event=Placed())], {}, {}, {ORDER: waiting}
    )
    assert [(step.item.message.id, step.outcome) for step in plan.steps[1:]] == [
        ("first", APPLIED),
        ("second", STALE),
        ("third", STALE),
    ]


def test_one_that_waited_before_goes_before_one_of_the_same_version_that_arrives() -> None:
    waiting = [item(2, key="old", parked=7)]
    plan = Planner(DELTA).plan([item(2, key="new"), item(1)], {}, {}, {ORDER: waiting})
    assert [(step.item.message.id, step.outcome) for step in plan.steps[1:]] == [
        ("old", APPLIED),
        ("new", STALE),
    ]


def test_one_that_waits_without_a_version_is_last_and_rejected_where_an_order_is_declared_since() -> None:
    waiting = [item(None, parked=1), item(2, parked=2)]
    plan = Planner(DELTA).plan([item(1)], {}, {}, {ORDER: waiting})
    assert told(plan) == [(1, APPLIED), (2, APPLIED), (None, REJECTED)]


def test_a_lifecycle_that_is_no_longer_declared_holds_nobody_back() -> None:
    waiting = [item(event=Packed(), parked=1)]
    plan = Planner(UNORDERED).drain(ORDER, Standing(), waiting)
    assert [step.outcome for step in plan.steps] == [APPLIED]
    assert plan.standings == {}


# C20: however they arrive, the end is that of the sequence


@dataclass(frozen=True)
class Kind:
    """One way to consume five events of an order: its planner, its messages, and what it makes of the effects."""

    name: str
    planner: Planner
    messages: Callable[[str], list[Item]]
    state: Callable[[list[Item]], Any]
    each_once: bool

    def __str__(self) -> str:
        return self.name


def numbered(sequence: str) -> list[Item]:
    return [item(version, version * version, sequence=sequence) for version in range(1, 6)]


def typed(sequence: str) -> list[Item]:
    return [item(None, kind(), sequence=sequence) for kind in WAY]


def typed_and_numbered(sequence: str) -> list[Item]:
    return [item(version, kind(), sequence=sequence) for version, kind in enumerate(WAY, 1)]


def total(effects: list[Item]) -> int:
    return sum(each.event for each in effects)


def last(effects: list[Item]) -> Any:
    return effects[-1].event if effects else None


KINDS = [
    Kind("delta", Planner(DELTA), numbered, total, each_once=True),
    Kind("snapshot", Planner(SNAPSHOT), numbered, last, each_once=False),
    Kind("lifecycle", Planner(UNORDERED, LIFE), typed, last, each_once=True),
    Kind("delta with lifecycle", Planner(DELTA, LIFE), typed_and_numbered, last, each_once=True),
    Kind("snapshot with lifecycle", Planner(SNAPSHOT, LIFE), typed_and_numbered, last, each_once=True),
    Kind("unordered", Planner(UNORDERED), numbered, total, each_once=True),
]
kinds = pytest.mark.parametrize("kind", KINDS, ids=str)


def place(kind: Kind, each: Item) -> int:
    """The number of a message within its sequence."""
    return each.version or WAY.index(type(each.event)) + 1


def check_the_end(kind: Kind, found: Inbox, sequences: Iterable[str]) -> None:
    for sequence in sequences:
        once = Inbox(kind.planner)
        for each in kind.messages(sequence):
            once.take(each)
        assert len(once.effects) == 5
        effects = [each for each in found.effects if each.sequence == sequence]
        assert kind.state(effects) == kind.state(once.effects)
        assert found.standings.get(sequence) == once.standings.get(sequence)
        applied = [place(kind, each) for each in effects]
        assert len(set(applied)) == len(applied)
        if kind.each_once:
            assert len(applied) == 5
        if kind.name != "unordered":
            assert applied == sorted(applied), "what was shown never goes back"
        assert not found.parked.get(sequence)
    assert not found.dead


@kinds
def test_all_orders_of_five_events_end_the_same_however_they_are_cut(kind: Kind) -> None:
    """C20."""
    for arrival, cuts in product(permutations(range(5)), product((True, False), repeat=4)):
        messages = kind.messages(ORDER)
        found = Inbox(kind.planner)
        batch: list[Item] = []
        for number, cut in zip(arrival, (*cuts, True), strict=True):
            batch.append(messages[number])
            if cut:
                found.take(*batch)
                batch = []
        check_the_end(kind, found, [ORDER])


@kinds
def test_all_orders_of_five_events_and_a_repeat_of_any_end_the_same(kind: Kind) -> None:
    """C20: with a duplicate, one at a time and all at once."""
    for again in range(5):
        for arrival in set(permutations((*range(5), again))):
            messages = kind.messages(ORDER)
            batch = [replace(messages[number]) for number in arrival]
            one_by_one, at_once = Inbox(kind.planner), Inbox(kind.planner)
            for each in batch:
                one_by_one.take(each)
            at_once.take(*(replace(each) for each in batch))
            for found in (one_by_one, at_once):
                check_the_end(kind, found, [ORDER])
                assert found.outcomes[DUPLICATE] == 1


FATES = ("committed", "crashed before the commit", "crashed before the acknowledgement")


@st.composite
def deliveries(draw: st.DrawFn, messages: int) -> tuple[list[int], list[tuple[int, str, int]]]:
    """The order in which messages arrive, some repeatedly, and the fates of the batches that they are cut into."""
    repeats = draw(st.lists(st.integers(0, messages - 1), max_size=4))
    arrival = draw(st.permutations([*range(messages), *repeats]))
    batches = draw(
        st.lists(st.tuples(st.integers(1, 5), st.sampled_from(FATES), st.integers(0, 6)), max_size=12)
    )
    return arrival, batches


def run(found: Inbox, messages: list[Item], arrival: list[int], batches: list[tuple[int, str, int]]) -> None:
    """Deliver until nothing is left; what was not acknowledged comes again, in another order and place."""
    queue, fates = list(arrival), iter(batches)
    while queue:
        size, fate, place = next(fates, (3, "committed", 0))
        batch, queue = queue[:size], queue[size:]
        found.take(*(replace(messages[number]) for number in batch), crash=fate == FATES[1])
        if fate != FATES[0]:
            # Acknowledgements may be lost for a part of a batch only.
            again = batch if fate == FATES[1] else batch[: place + 1]
            queue[place:place] = again[::-1]


@kinds
@settings(max_examples=60, deadline=None)
@given(case=deliveries(5))
def test_five_events_end_the_same_with_repeats_and_crashes(
    kind: Kind, case: tuple[list[int], list[tuple[int, str, int]]]
) -> None:
    """C20, C01: a crash drops what was planned, or only the acknowledgement."""
    found = Inbox(kind.planner)
    run(found, kind.messages(ORDER), *case)
    check_the_end(kind, found, [ORDER])


@kinds
@settings(max_examples=30, deadline=None)
@given(case=deliveries(15))
def test_many_sequences_end_the_same_with_repeats_and_crashes(
    kind: Kind, case: tuple[list[int], list[tuple[int, str, int]]]
) -> None:
    """C20 over three orders at once."""
    sequences = ("order/1", "order/2", "order/3")
    found = Inbox(kind.planner)
    run(found, [each for sequence in sequences for each in kind.messages(sequence)], *case)
    check_the_end(kind, found, sequences)


@settings(max_examples=80, deadline=None)
@given(case=deliveries(5), poison=st.integers(0, 4), kind=st.sampled_from([KINDS[0], KINDS[3]]))
def test_a_sequence_with_a_dead_letter_ends_the_same_once_that_is_retried(
    case: tuple[list[int], list[tuple[int, str, int]]], poison: int, kind: Kind
) -> None:
    """C81, H4: those behind it wait, and a retry gives what a fresh run gives."""
    messages = kind.messages(ORDER)
    mended = replace(messages[poison])
    messages[poison].ruled = (DEAD_LETTERED, "the handler fails")
    found = Inbox(kind.planner)
    run(found, messages, *case)
    assert found.versions() == list(range(1, poison + 1))
    assert found.waiting() == list(range(poison + 2, 6))
    assert [step.item.version for step in found.dead] == [poison + 1]
    del found.ledger[mended.key]
    found.dead.clear()
    found.take(mended)
    check_the_end(kind, found, [ORDER])


@kinds
@settings(max_examples=60, deadline=None)
@given(case=deliveries(10), first=st.integers(0, 4))
def test_a_batch_whose_turn_has_come_is_planned_as_any_other(
    kind: Kind, case: tuple[list[int], list[tuple[int, str, int]]], first: int
) -> None:
    messages = [each for sequence in ("order/1", "order/2") for each in kind.messages(sequence)]
    begun = {"order/1": Standing(first), "order/2": Standing(2, parked=3)}
    in_order = sorted(messages, key=lambda each: each.version or 0)
    for batch in ([messages[number] for number in case[0]], messages, in_order, messages[first:5]):
        for standings in ({}, begun):
            found = kind.planner.plan(batch, {}, standings, {})
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Planner, "_in_turn", lambda *_: None)
                assert found == kind.planner.plan(batch, {}, standings, {})


class Withdrawn(Event, name="order.withdrawn", registry=KEPT):
    pass


def test_what_waits_for_what_can_never_be_is_rejected_when_that_is_known() -> None:
    states = Lifecycle(
        ("new", "placed", "cancelled", "shipped", "delivered"),
        (
            Transition("place", Placed, ("new",), "placed"),
            Transition("cancel", Withdrawn, ("placed",), "cancelled"),
            Transition("ship", Shipped, ("placed",), "shipped"),
            Transition("deliver", Delivered, ("shipped",), "delivered"),
        ),
    )
    planner = Planner(Rule("unordered"), states)
    waits = Item(b"1", b"1", Message("1", "/s", "order.delivered"), Delivered(), ORDER, parked=1)
    cancels = Item(b"2", b"2", Message("2", "/s", "order.withdrawn"), Withdrawn(), ORDER)
    late = Item(b"3", b"3", Message("3", "/s", "order.shipped"), Shipped(), ORDER)
    plan = planner.plan([cancels, late], {}, {ORDER: Standing(0, "placed", 1)}, {ORDER: [waits]})
    never = "is not possible for order/1, which is cancelled, and never will be"
    assert [(step.item, step.outcome, step.cause) for step in plan.steps] == [
        (cancels, APPLIED, ""),
        (waits, REJECTED, f"order.delivered {never}"),
        (late, REJECTED, f"order.shipped {never}"),
    ]


def numbered(version: int, sequence: str = ORDER) -> Item:
    key = f"{sequence}@{version}".encode()
    return Item(key, key, Message(key.decode(), "/s", "t"), None, sequence, version)


@pytest.mark.parametrize(
    ("versions", "known", "outcomes", "stands"),
    [
        # versions that arrive, where the sequence stands before, what becomes of them, where it stands after
        ([7, 8], None, [APPLIED, APPLIED], 8),
        ([8, 7], None, [APPLIED, APPLIED], 8),
        ([9, 7], None, [APPLIED, PARKED], 7),
        ([1, 2], None, [APPLIED, APPLIED], 2),
        ([7], 6, [APPLIED], 7),
        ([8], 6, [PARKED], None),
        ([6], 6, [STALE], None),
        ([5], 0, [PARKED], None),
    ],
)
def test_a_sequence_that_is_joined_in_the_middle_begins_with_the_lowest_that_is_seen_first(
    versions: list[int], known: int | None, outcomes: list[Outcome], stands: int | None
) -> None:
    planner = Planner(Rule("delta", begins="first-seen"))
    plan = planner.plan(
        [numbered(version) for version in versions], {}, {} if known is None else {ORDER: Standing(known)}, {}
    )
    assert [step.outcome for step in plan.steps] == outcomes
    assert plan.standings.get(ORDER) == (None if stands is None else Standing(stands))


def test_what_follows_a_first_one_that_is_refused_waits_for_it() -> None:
    first, second = numbered(7), numbered(8)
    first.ruled = (REJECTED, "it does not fit")
    plan = Planner(Rule("delta", begins="first-seen")).plan([first], {}, {}, {})
    assert plan.standings == {ORDER: Standing(6)}
    plan = Planner(Rule("delta", begins="first-seen")).plan([second], {}, plan.standings, {})
    assert [step.outcome for step in plan.steps] == [PARKED]


def test_a_repeat_begins_no_sequence() -> None:
    again = numbered(7)
    plan = Planner(Rule("delta", begins="first-seen")).plan([again], {again.key: again.fingerprint}, {}, {})
    assert (plan.standings, [step.outcome for step in plan.steps]) == ({}, [DUPLICATE])


def test_a_sequence_begins_with_version_1_unless_it_is_declared_otherwise() -> None:
    plan = Planner(Rule("delta")).plan([numbered(7)], {}, {}, {})
    assert [step.outcome for step in plan.steps] == [PARKED]

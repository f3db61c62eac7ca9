"""The order-payment process under whatever happens in whatever order (case C46, as a state machine)."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from onefold import CommandRefused, IllegalTransition
from onefold.domain.order import Order
from onefold.projections.guards import FAILED_FOR_GOOD

from .shopping import CUSTOMER, Shop, money, now, shopping

BUDGET = 350
"""Money of the customer: enough for some of the orders."""


class Ordering(RuleBasedStateMachine):
    """Orders of one customer, paid, cancelled and timed out, with a process that runs now and then."""

    url: str
    orders = Bundle("orders")

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.shop: Shop = self.stack.enter_context(shopping(self.url))
        self.keys: list[str] = []
        self.payments = 0

    @initialize()
    def begin(self) -> None:
        shop = self.shop
        tables = "onefold.events, onefold.timeouts, onefold.process_instances, onefold.sequences"
        # The machine's runs share one database: a new one each would take longer than the run.
        for each in tables.split(", "):
            shop.connection.execute(f"ALTER TABLE {each} DISABLE TRIGGER USER".encode())
        shop.connection.execute(f"TRUNCATE {tables}".encode())
        for each in tables.split(", "):
            shop.connection.execute(f"ALTER TABLE {each} ENABLE TRIGGER USER".encode())
        shop.connection.execute(
            "ALTER TABLE onefold.events ENABLE ALWAYS TRIGGER before_append, ENABLE ALWAYS TRIGGER after_append, "
            "ENABLE ALWAYS TRIGGER refuse_change"
        )
        shop.run()
        shop.open(BUDGET)

    @rule(target=orders, amount=st.sampled_from([60, 100, 200]))
    def place(self, amount: int) -> Any:
        if len(self.keys) == 4:
            return multiple()
        key = f"{len(self.keys) + 1}"
        self.keys.append(key)
        self.shop.place(key, amount)
        return key

    @rule(key=orders, part=st.sampled_from([30, 60, 100, 200]), fact=st.booleans())
    def pay(self, key: str, part: int, fact: bool) -> None:
        """As a fact that comes at any time, or as a command that is refused when it is too late."""
        self.payments += 1
        if fact:
            self.shop.pay(key, f"p-{self.payments}", part)
        else:
            self.command(
                key,
                lambda order: order.receive_payment(f"p-{self.payments}", money(part), at=now()),
            )

    @rule(key=orders)
    def cancel(self, key: str) -> None:
        self.command(key, lambda order: order.cancel(at=now()))

    @rule(key=orders)
    def mark_unavailable(self, key: str) -> None:
        self.command(key, lambda order: order.mark_unavailable(at=now()))

    @rule(key=orders)
    def time_out(self, key: str) -> None:
        self.shop.make_due(key)

    @rule(batch=st.sampled_from([1, 3, 100]))
    def work(self, batch: int) -> None:
        outcomes = self.shop.run(batch=batch).outcomes
        assert not any(outcomes.get(outcome, 0) for outcome in FAILED_FOR_GOOD)

    @invariant()
    def money_is_conserved(self) -> None:
        balances = self.shop.balances()
        if balances:
            assert sum(balances.values()) == BUDGET

    @invariant()
    def what_is_held_and_kept_is_what_the_instances_say(self) -> None:
        held = 0
        for key in self.keys:
            if not self.shop.types(f"order_payment/{key}"):
                continue
            instance = self.shop.instance(key)
            rest = instance.rest
            held += 0 if rest is None else int(rest.amount)
            assert self.shop.purse(key) == sum(kept.amount for kept in instance.kept.values())
            noted = self.shop.order(key).refunds
            assert len(noted) == self.shop.types(f"order_payment/{key}").count("refunded")
        if self.keys:
            assert self.shop.account(CUSTOMER).held == held

    def teardown(self) -> None:
        try:
            if self.keys:
                self.work(100)
                self.shop.make_due()
                self.work(100)
                for key in self.keys:
                    self.shop.check_ended(key)
        finally:
            self.stack.close()

    def command(self, key: str, command: Any) -> None:
        with suppress(IllegalTransition, CommandRefused):
            self.shop.store.change(Order, key, command)


@pytest.fixture
def machine(database_url: str) -> type[Ordering]:
    return type("Ordering", (Ordering,), {"url": database_url})


@pytest.mark.parametrize("examples", [12, pytest.param(400, marks=pytest.mark.soak)])
def test_money_is_conserved_and_every_order_ends_whatever_happens_in_whatever_order(
    machine: type[Ordering], examples: int
) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=14,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )

"""Exactly once: one line that makes the tests of a consumer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import psycopg

from ...domain.errors import DeclarationError
from ...projections.consumer import Consumer
from ..connection import connected
from .cases import CASES, Proof, new_envelope
from .errors import NotExactlyOnce, ProvesNothing
from .faults import nothing
from .messages import AnyMessage, deliveries
from .state import Reading, Sight

FIXTURE = "onefold_database"


def exactly_once(
    consumer: Consumer,
    messages: Iterable[AnyMessage] | Callable[[], Iterable[AnyMessage]],
    *,
    prepare: str | Callable[[psycopg.Connection[Any]], object] | None = None,
    state: Reading | None = None,
    tables: Iterable[str] = (),
    ignore: Iterable[str] = (),
    reset: Callable[[], object] = nothing,
    database: str = FIXTURE,
    producer_keeps_ids: bool = False,
    processes: bool = True,
    workers: int = 4,
    orders: int = 10,
    seed: int = 0,
) -> Callable[..., None]:
    """Return the tests that show that a consumer has the effect of each message once, for pytest to find.

        test_payments = exactly_once(payments, messages=[...], prepare="CREATE TABLE …")

    The messages, in their order, are applied once each; then they come in every other way that a broker may choose,
    and the state must be the same.

    `prepare` makes the consumer's own tables: SQL, or a function of a connection in autocommit mode. `state` returns
    what the messages change, as anything that can be compared; without it all tables are compared, or `tables` alone,
    and the events of the log, without columns that the database fills by itself and without those that `ignore` names.
    What the function changes outside of the database is for `state` to return and for `reset` to undo; `reset` is
    called before each run. `database` is the fixture with the URL of a migrated database; each run gets a copy of it,
    which ONEFOLD_DATABASE_URL names meanwhile.

    `producer_keeps_ids` leaves out the messages that are sent again under another id, `processes` set to False those
    cases that kill a process, which is a copy of the one that tests. `workers` deliver at the same time; the messages
    come in so many `orders`, drawn from `seed`.
    """
    import pytest

    found = deliveries(messages() if callable(messages) else messages)
    if not found:
        raise DeclarationError(f"consumer {consumer.name}: expected messages to test with, found none")
    if workers < 1 or orders < 1:
        raise DeclarationError(
            f"consumer {consumer.name}: expected 1 worker and 1 order or more, found {workers=}, {orders=}"
        )
    sight = Sight(state, tuple(tables), frozenset(ignore), ordered=consumer.rule.ordering != "unordered")
    proof = Proof(consumer, found, sight, reset, workers, orders, seed)
    cases = [
        name
        for name in CASES
        if not (name == new_envelope.__name__ and producer_keeps_ids)
        and not (name.startswith("killed") and not processes)
    ]

    @pytest.mark.parametrize("case", cases)
    def test(request: pytest.FixtureRequest, case: str) -> None:
        url = request.getfixturevalue(database)
        problem = None
        try:
            if prepare is not None:
                with connected(url) as connection:
                    if callable(prepare):
                        prepare(connection)
                    else:
                        connection.execute(prepare.encode())
            proof.run(case, url)
        except (NotExactlyOnce, ProvesNothing) as error:
            problem = str(error)
        if problem is not None:
            # Outside of the handler, or it would be told twice.
            pytest.fail(problem, pytrace=False)

    # Pytest can be told to find only what a module has defined itself.
    test.__module__ = sys._getframe(1).f_globals.get("__name__", test.__module__)
    test.__name__ = test.__qualname__ = f"test_{consumer.name}"
    test.__doc__ = None
    return test

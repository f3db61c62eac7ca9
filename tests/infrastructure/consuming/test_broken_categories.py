"""What was once broken: sequences of two categories that were folded into the same rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from onefold import App, Consumer
from onefold.infrastructure.consuming.dead_letters import discard, list_dead_letters, retry
from onefold.infrastructure.consuming.waiting import Waiting

from .desk import Desk, dead_letters, envelope, outcomes, parked
from .test_processor_folds import folding, totals

Open = Callable[[Consumer], Desk]
Connection = psycopg.Connection[Any]


@pytest.mark.parametrize(
    ("first", "second", "expected", "found"),
    [
        ("account/z", "other/z", "'account'", "'other'"),
        ("account/z", "z", "'account'", "'sums'"),
        ("z", "account/z", "'sums'", "'account'"),
    ],
)
@pytest.mark.parametrize("together", [True, False])
def test_two_categories_do_not_meet_in_a_row(
    open_desk: Open,
    connection: Connection,
    first: str,
    second: str,
    expected: str,
    found: str,
    together: bool,
) -> None:
    batch = [envelope(first), envelope(second, 1, 10), envelope(second, 2, 10), envelope(first, 2)]
    if together:
        assert open_desk(folding()).process(*batch) == ["applied", "rejected", "rejected", "applied"]
    else:
        assert [open_desk(folding()).process(each) for each in batch] == [
            ["applied"],
            ["rejected"],
            ["rejected"],
            ["applied"],
        ]
    assert totals(connection) == [("z", 2)]
    letters = dead_letters(connection)
    # They are of no sequence of this consumer: none of its messages waits behind them.
    assert [letter[:3] for letter in letters] == [(None, None, "rejected")] * 2
    assert f"expected a sequence of category {expected}" in letters[0][3]
    assert f"found one of {found}" in letters[0][3]


def test_a_bare_subject_is_of_the_category_that_is_named_as_the_fold(
    open_desk: Open, connection: Connection
) -> None:
    assert open_desk(folding()).process(envelope("z"), envelope("sums/z", 2)) == ["applied", "applied"]
    assert totals(connection) == [("z", 2)]


def test_what_was_refused_does_not_say_which_category_it_is(open_desk: Open, connection: Connection) -> None:
    desk = open_desk(folding())
    assert desk.process(envelope("other/z", type="bank.audited")) == ["rejected"]
    assert desk.process(envelope("other/z", 2, "many"), envelope("account/z")) == ["rejected", "applied"]
    assert totals(connection) == [("z", 1)]


def test_a_batch_that_was_rolled_back_has_not_settled_the_category(
    open_desk: Open, connection: Connection
) -> None:
    desk = open_desk(folding())
    assert desk.process(envelope("other/z", 1, 2**70), envelope("account/y")) == ["rejected", "applied"]
    assert desk.process(envelope("account/z")) == ["applied"]
    assert totals(connection) == [("y", 1), ("z", 1)]


def test_a_dead_letter_of_another_category_is_not_applied_by_a_retry_and_passes_nothing(
    open_desk: Open, bank: str, connection: Connection
) -> None:
    """C81"""
    consumer = folding()
    desk = open_desk(consumer)
    assert desk.process(envelope("account/y"), envelope("other/z")) == ["applied", "rejected"]
    letters = list_dead_letters(connection)
    tried = retry(bank, App(consumers=[consumer]), letters, by="ops")
    assert [each.became for each in tried] == ["rejected"]
    discard(connection, letters[0].id, "ops")
    assert desk.process(envelope("account/z")) == ["applied"]
    assert totals(connection) == [("y", 1), ("z", 1)]


def test_a_retry_of_the_first_message_settles_the_category(
    open_desk: Open, bank: str, connection: Connection
) -> None:
    assert open_desk(folding()).process(envelope("account/z", data={"amount": "many"})) == ["rejected"]
    letter = list_dead_letters(connection)[0]
    connection.execute("UPDATE onefold.dead_letters SET body = %s", (envelope("account/z").body,))
    tried = retry(bank, App(consumers=[folding()]), [letter], by="ops")
    assert [each.became for each in tried] == ["applied"]
    assert open_desk(folding()).process(envelope("other/z", 2)) == ["rejected"]
    assert totals(connection) == [("z", 1)]


def test_another_category_is_passed_over_where_its_types_are(open_desk: Open, connection: Connection) -> None:
    desk = open_desk(folding(unknown="pass"))
    batch = [envelope("account/z"), envelope("other/z", 2, type="bank.audited"), envelope("account/z", 2)]
    assert desk.process(*batch) == ["applied"] * 3
    assert (totals(connection), dead_letters(connection)) == ([("z", 2)], [])


def test_one_that_waits_has_settled_the_category(open_desk: Open, connection: Connection) -> None:
    desk = open_desk(folding())
    assert desk.process(envelope("account/z", 2)) == ["parked"]
    assert open_desk(folding()).process(envelope("other/z")) == ["rejected"]
    assert desk.process(envelope("account/z")) == ["applied"]
    Waiting(desk.processor).look(now=True)
    assert (totals(connection), parked(connection)) == ([("z", 2)], [])
    assert outcomes(connection) == {"applied": 2, "parked": 1, "rejected": 1}

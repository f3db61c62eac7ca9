"""Reports fit the terminal, and nothing that is printed can change it."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from rich.console import Console

from onefold.infrastructure.cli.output import (
    cell,
    counted,
    fitted,
    is_unicode,
    plain,
    progress,
    seconds,
    sign,
    table,
)


def console(width: int, *, encoding: str = "utf-8", terminal: bool = False) -> Console:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    return Console(file=file, width=width, force_terminal=terminal, markup=False)


def printed(made: Console) -> str:
    made.file.flush()
    return made.file.buffer.getvalue().decode()


def test_a_table_leaves_out_its_spare_columns_where_there_is_no_room() -> None:
    rows = table("key", "amount", "note", right=("amount",))
    rows.add_row("order-000001", "1,204.00", "a note of some length")
    for width, headers in ((80, "key amount note"), (30, "key amount"), (15, "key")):
        made = console(width)
        made.print(fitted(made, rows, "note", "amount"))
        lines = printed(made).splitlines()
        assert lines[0].split() == headers.split()
        assert lines[2].startswith("order-000001")
        assert all(len(line) <= width for line in lines)


def test_control_characters_are_shown_and_not_sent() -> None:
    assert plain("a\x1b[31mred\x07\n") == "a\\x1b[31mred\\x07\\n"
    assert plain("Grüße 你好 [bold]") == "Grüße 你好 [bold]"
    assert plain("\ud800") == "\\ud800"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (True, "yes"),
        (2**53 + 1, "9,007,199,254,740,993"),
        (Decimal("-1234.50"), "-1,234.50"),
        (Decimal("1E+3"), "1,000"),
        (datetime(2026, 3, 1, 12, 30, 0, 5, tzinfo=UTC), "2026-03-01 12:30:00Z"),
        ("text\t", "text\\t"),
    ],
)
def test_a_cell_shows_values_for_people(value: object, shown: str) -> None:
    assert cell(value) == shown


@pytest.mark.parametrize(
    ("span", "shown"),
    [
        (0.0004, "0 ms"),
        (0.25, "250 ms"),
        (5.04, "5.0 s"),
        (125, "2 min 05 s"),
        (7260, "2 h 01 min"),
        (400_000, "4 days"),
    ],
)
def test_spans_of_time_have_the_unit_that_fits(span: float, shown: str) -> None:
    assert seconds(span) == shown


def test_signs_are_words_where_the_encoding_has_no_signs() -> None:
    assert (sign(console(80), True).plain, sign(console(80), False).plain) == ("✓", "✗")
    plain_console = console(80, encoding="ascii")
    assert (sign(plain_console, True).plain, sign(plain_console, False).plain) == ("ok", "!!")
    assert is_unicode("UTF-8")
    assert not is_unicode(None)


@pytest.mark.parametrize(
    ("terminal", "wanted", "shown"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_progress_is_shown_on_a_terminal_alone(terminal: bool, wanted: bool, shown: bool) -> None:
    made = console(80, terminal=terminal)
    with progress(made, wanted=wanted) as bars:
        bars.add_task("reading in", total=2)
        bars.refresh()
    assert ("reading in" in printed(made)) is shown


def test_one_of_something_is_not_several() -> None:
    assert [counted(number, "event") for number in (0, 1, 2, 1000)] == [
        "0 events",
        "1 event",
        "2 events",
        "1,000 events",
    ]

"""`onefold import` reads files in, and its exit code tells whether something needs a look."""

from __future__ import annotations

from pathlib import Path

import pytest

from onefold.infrastructure.reading import Difference

from .conftest import Onefold

MAPPING = """
from datetime import UTC, datetime
from onefold.domain.account import Account
from onefold.domain.money import Money
from onefold.infrastructure.reading import Fact, each, reads

@reads("till")
@each
def mapping(row):
    amount = Money.of(row.decimal("amount"), "EUR")
    at = datetime(2026, 3, 1, tzinfo=UTC)
    yield Fact(row.text("id"), Account.stream_of(row.text("account")), Account.Deposited(amount=amount), at)
"""


@pytest.fixture
def till(tmp_path: Path) -> Path:
    (tmp_path / "till.py").write_text(MAPPING)
    (tmp_path / "monday.csv").write_text("id,account,amount\n1,a,10.00\n2,b,24.9\n3,a,5\n")
    (tmp_path / "tuesday.csv").write_text("id,account,amount\n2,b,24.90\n3,a,6\n4,[b],x\n5,b,1\n")
    return tmp_path


def test_each_event_is_read_in_once(onefold: Onefold, till: Path) -> None:
    line = ("import", "--mapping", f"{till}/till.py:mapping", f"{till}/monday.csv", "--json")
    first, again = onefold(*line), onefold(*line)
    assert first.code == again.code == 0
    counters = ("read", "appended", "duplicate", "conflict", "unreadable")
    assert [first.document[name] for name in counters] == [3, 3, 0, 0, 0]
    assert [again.document[name] for name in counters] == [3, 0, 3, 0, 0]
    assert again.document["conflicts"] == again.document["unreadable_rows"] == []


def test_conflicts_and_unreadable_rows_are_listed_and_exit_with_1(onefold: Onefold, till: Path) -> None:
    line = ("import", "-m", f"{till}/till.py:mapping", f"{till}/monday.csv", f"{till}/tuesday.csv")
    said = onefold(*line, "--json")
    assert said.code == 1
    found = said.document
    assert (found["read"], found["appended"], found["duplicate"]) == (7, 4, 1)
    (conflict,) = found["conflicts"]
    assert (conflict["key"], conflict["stream"], conflict["line"]) == ("3", "account/a", 3)
    assert [Difference(**each) for each in conflict["differences"]] == [
        Difference("amount", "5 EUR", "6 EUR")
    ]
    (problem,) = found["unreadable_rows"]
    assert (problem["file"], problem["line"]) == (f"{till}/tuesday.csv", 4)
    assert "column amount is 'x'" in problem["reason"]

    shown = onefold(*line, COLUMNS="200")
    assert shown.code == 1
    for words in ("duplicate", "5 EUR", "6 EUR", "tuesday.csv:4", "column amount is 'x'"):
        assert words in shown.out


def test_long_lists_are_cut_in_reports_and_whole_in_json(onefold: Onefold, till: Path) -> None:
    (till / "bad.csv").write_text("id,account,amount\n" + "".join(f"{n},a,x\n" for n in range(25)))
    line = ("import", "-m", f"{till}/till.py:mapping", f"{till}/bad.csv")
    assert len(onefold(*line, "--json").document["unreadable_rows"]) == 25
    shown = onefold(*line, COLUMNS="200").out
    assert shown.count("bad.csv:") == 10
    assert "and 15 more; --json lists them" in shown


def test_a_file_that_is_not_there_is_wrong_use(onefold: Onefold, till: Path) -> None:
    said = onefold("import", "-m", f"{till}/till.py:mapping", f"{till}/monday.csv", f"{till}/nowhere.csv")
    assert said.code == 2
    assert f"cannot read {till}/nowhere.csv" in said.err


def test_a_mapping_that_fails_is_a_problem(onefold: Onefold, till: Path) -> None:
    (till / "till.py").write_text(MAPPING.replace('row.text("id")', "1 + row"))
    said = onefold("import", "-m", f"{till}/till.py:mapping", f"{till}/monday.csv")
    assert said.code == 1
    assert "mapping till failed at" in said.err
    assert "Traceback" not in said.err

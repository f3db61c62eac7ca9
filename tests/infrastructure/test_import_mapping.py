"""Mappings: declared with the name of their source, loaded from a file, a row taken whole or not at all."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from onefold.domain.account import Account
from onefold.domain.errors import DeclarationError
from onefold.domain.instant import NaiveInstant
from onefold.domain.money import Money
from onefold.infrastructure.reading import (
    Fact,
    Mapping,
    MappingError,
    Outcome,
    Row,
    Rows,
    Unreadable,
    each,
    load_mapping,
    reads,
)

AT = datetime(1993, 1, 1, tzinfo=UTC)


def deposit(amount: Any = "5", key: str = "1", stream: str = "account/1", at: datetime = AT) -> Fact:
    return Fact(key, stream, Account.Deposited(amount=Money.of(amount, "CZK")), at)


@reads("bank", delimiter=";")
@each
def bank(row: Row) -> Iterator[Fact]:
    """Two facts a row."""
    yield deposit(1, key=f"{row.text('id')}:in")
    yield deposit(row.decimal("amount"), key=f"{row.text('id')}:out")


def outcomes(mapping: Mapping, rows: Iterable[Row]) -> list[Outcome]:
    return list(mapping(rows))


def test_a_mapping_knows_its_source_and_format() -> None:
    assert (bank.source, bank.format.delimiter, bank.format.encoding) == ("bank", ";", "utf-8")


def test_a_row_gives_its_facts_and_they_know_their_row() -> None:
    row = Row("bank.csv", 2, {"id": "7", "amount": "24.90"})
    first, second = outcomes(bank, [row])
    assert isinstance(first, Fact)
    assert isinstance(second, Fact)
    assert (first.key, second.key) == ("7:in", "7:out")
    assert (first.row, second.row) == (row, row)
    assert repr(first).startswith("Fact('7:in', 'account/1', Deposited(amount=Money(")


def test_a_row_is_taken_whole_or_not_at_all() -> None:
    """The first fact of the row is sound, the second cannot be made: neither counts."""
    rows = [
        Row("bank.csv", 2, {"id": "7", "amount": "much"}),
        Row("bank.csv", 3, {"id": "8"}, "has 1 columns, expected 2"),
        Row("bank.csv", 4, {"id": "9", "amount": "1"}),
    ]
    found = outcomes(bank, rows)
    assert found[:2] == [
        Unreadable(rows[0], "column amount is 'much', expected a decimal number such as 24.90"),
        Unreadable(rows[1], "has 1 columns, expected 2"),
    ]
    assert [fact.key for fact in found[2:] if isinstance(fact, Fact)] == ["9:in", "9:out"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (lambda: {"a": 1}["b"], "'b' is not known"),
        (lambda: int("x"), "invalid literal for int() with base 10: 'x' (ValueError)"),
        (lambda: Decimal("x"), "[<class 'decimal.ConversionSyntax'>] (InvalidOperation)"),
        (lambda: 1 // 0, "integer division or modulo by zero (ZeroDivisionError)"),
        (
            lambda: Account.Opened(currency="korun", opened_on="never"),  # type: ignore[arg-type]
            "field currency of Opened: String should match pattern '^[A-Z]{3}$'; field opened_on of Opened: Input",
        ),
        (
            lambda: deposit(at=datetime.fromisoformat("1993-01-01")),
            "occurred_at is 1993-01-01T00:00:00 without a zone",
        ),
        (lambda: deposit(key=""), "the key of a fact is empty; give what identifies the event in its source"),
        (
            lambda: deposit(stream="order/1"),
            "event account.deposited belongs to a stream account/..., found 'order/1'",
        ),
        (
            lambda: deposit(stream="account/" + "9" * 500),
            "the stream's name has 508 characters, expected at most 500",
        ),
    ],
)
def test_a_row_that_a_mapping_cannot_read_says_why(error: Any, reason: str) -> None:
    @reads("odd")
    @each
    def odd(_: Row) -> Iterable[Fact]:
        error()
        return []

    row = Row("odd.csv", 2, {})
    (found,) = outcomes(odd, [row])
    assert isinstance(found, Unreadable)
    assert found.row is row
    assert found.reason.startswith(reason)


def test_other_errors_of_a_mapping_are_not_taken_for_unreadable_rows() -> None:
    @reads("odd")
    @each
    def odd(row: Row) -> Iterable[Fact]:
        return row.nothing  # type: ignore[attr-defined,no-any-return]

    with pytest.raises(AttributeError):
        outcomes(odd, [Row("odd.csv", 2, {})])


def test_instants_of_facts_are_kept_in_utc() -> None:
    fact = deposit(at=datetime(1993, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))))
    assert (fact.occurred_at, fact.occurred_at.tzinfo) == (AT, UTC)
    with pytest.raises(NaiveInstant):
        deposit(at=datetime.fromisoformat("1993-01-01"))


def test_a_mapping_of_all_rows_gets_broken_ones_and_the_columns_that_were_seen() -> None:
    @reads("all")
    def whole(rows: Rows) -> Iterator[Outcome]:
        for row in rows:
            if row.fault:
                yield Unreadable(row, row.fault)
        assert rows.columns == {"a", "b"}

    broken = Row("all.csv", 3, {"b": "1"}, "torn")
    assert outcomes(whole, [Row("all.csv", 2, {"a": "1"}), broken]) == [Unreadable(broken, "torn")]


def test_rows_are_mapped_as_they_are_read(tmp_path: Path) -> None:
    """Memory does not grow with the rows: ten times the file, the same peak."""
    peaks = []
    for count in (1_500, 15_000):
        path = tmp_path / f"{count}.csv"
        path.write_text("id;amount\n" + "".join(f"{number};24.90\n" for number in range(count)))
        tracemalloc.start()
        facts = sum(1 for _ in bank(Rows([path], bank.format)))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert facts == 2 * count
    assert peaks[1] < peaks[0] * 2 + 2_000_000


@pytest.mark.parametrize("source", ["", " olist", "a\nb"])
def test_the_name_of_a_source_is_plain_text(source: str) -> None:
    with pytest.raises(DeclarationError, match="the name of a source must be plain text"):
        reads(source)


MODULE = """
from onefold.infrastructure.reading import each, reads

@reads("shop")
@each
def mapping(row):
    return []

other = reads("other")(lambda rows: [])
plain = print
"""


def test_a_mapping_is_loaded_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(MODULE)
    mapping = load_mapping(f"{tmp_path}/shop.py:mapping")
    assert mapping.source == "shop"
    assert load_mapping(f"{tmp_path}/shop.py:other").source == "other"


def test_a_mapping_can_import_what_lies_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", ["/usr/lib"])
    (tmp_path / "events_of_the_shop.py").write_text("SOURCE = 'beside'")
    (tmp_path / "shop.py").write_text(
        "from events_of_the_shop import SOURCE\n" + MODULE.replace('"shop"', "SOURCE")
    )
    assert load_mapping(f"{tmp_path}/shop.py:mapping").source == "beside"


def test_a_file_that_declares_events_can_be_loaded_again(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from onefold.domain.event import Event\nclass Seen(Event, name='shop.seen'): pass\n" + MODULE
    )
    for _ in range(2):
        assert load_mapping(f"{tmp_path}/shop.py:mapping").source == "shop"


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("shop.py", "expected a mapping as FILE.py:NAME, found 'shop.py'"),
        (":mapping", "expected a mapping as FILE.py:NAME"),
        ("shop.py:not a name", "expected a mapping as FILE.py:NAME"),
        ("missing.py:mapping", "there is no file missing.py; give the path of a Python file"),
        ("shop.txt:mapping", "shop.txt is not a Python file; its name must end in .py"),
        ("shop.py:missing", "shop.py has nothing named missing; of mappings it has mapping, other"),
        (
            "shop.py:plain",
            "plain is a builtin_function_or_method, not a mapping; of mappings it has mapping, other",
        ),
        (
            "empty.py:mapping",
            "empty.py has nothing named mapping; of mappings it has none; declare one with @reads",
        ),
        ("broken.py:mapping", "running broken.py failed with ZeroDivisionError: division by zero"),
        ("ending.py:mapping", "running ending.py failed with SystemExit: 0"),
        ("wrong.py:mapping", "running wrong.py failed with SyntaxError"),
    ],
)
def test_a_mapping_that_cannot_be_loaded_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "shop.py": MODULE,
        "shop.txt": MODULE,
        "empty.py": "",
        "broken.py": "1 / 0",
        "ending.py": "raise SystemExit(0)",
        "wrong.py": "def",
    }.items():
        Path(name).write_text(text)
    with pytest.raises(MappingError, match=re.escape(message)):
        load_mapping(reference)


def test_the_mapping_of_the_guide_reads_the_file_of_the_guide(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "import.md").read_text("utf-8")
    blocks = re.findall(r"```(\w+)[^\n]*\n(.*?)```", guide, flags=re.DOTALL)
    (tmp_path / "bank.py").write_text(next(text for kind, text in blocks if kind == "python"))
    (tmp_path / "export.csv").write_text(next(text for kind, text in blocks if kind == "text"))
    mapping = load_mapping(f"{tmp_path}/bank.py:mapping")
    found = outcomes(mapping, Rows([tmp_path / "export.csv"], mapping.format))
    assert [(fact.key, fact.stream, fact.occurred_at) for fact in found if isinstance(fact, Fact)] == [
        ("1", "account/ES-7", datetime(2026, 3, 2, 8, 15, tzinfo=UTC)),
        ("2", "account/ES-7", datetime(2026, 3, 2, 8, 15, tzinfo=UTC)),
    ]
    for kind, text in blocks:
        if kind == "python":
            compile(text, "import.md", "exec")

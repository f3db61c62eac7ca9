"""Readers: every record with its physical line, every fault told, the rest read on."""

from __future__ import annotations

import gzip
import os
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.domain.errors import DeclarationError
from onefold.infrastructure.reading import Format, InputFileError, Row, Rows, UnreadableValue


def read(path: Path, content: str | bytes, **options: Any) -> list[tuple[int, dict[str, Any], str]]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return [(row.line, dict(row.values), row.fault) for row in Rows([path], Format(**options))]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "rows.csv"


def test_rows_know_their_physical_lines(file: Path) -> None:
    rows = read(file, 'id,note\r\n1,"two\r\nlines, with ""quotes"""\r\n\r\n2,x\n3,"a\rb"\n4,no newline')
    assert rows == [
        (2, {"id": "1", "note": 'two\r\nlines, with "quotes"'}, ""),
        (5, {"id": "2", "note": "x"}, ""),
        (6, {"id": "3", "note": "a\rb"}, ""),
        (7, {"id": "4", "note": "no newline"}, ""),
    ]


def test_a_broken_record_is_told_and_the_rest_read_on(file: Path) -> None:
    rows = read(file, "id,a,b\n1,x\n2,x,y\n3,x,y,z\n4,x,y\n")
    assert rows == [
        (2, {"id": "1", "a": "x"}, "has 2 columns, expected 3"),
        (3, {"id": "2", "a": "x", "b": "y"}, ""),
        (4, {"id": "3", "a": "x", "b": "y"}, "has 4 columns, expected 3"),
        (5, {"id": "4", "a": "x", "b": "y"}, ""),
    ]


@pytest.mark.parametrize(
    ("end", "values", "fault"),
    [
        (
            "2,x",
            {"id": "2", "a": "x"},
            "has 2 columns, expected 3; the file ends in the middle of the record",
        ),
        ("2", {"id": "2"}, "has 1 columns, expected 3; the file ends in the middle of the record"),
        ('2,x,"y', {"id": "2", "a": "x", "b": "y"}, "is not CSV: a quoted text is not closed"),
        ('2,"x', {"id": "2", "a": "x"}, "is not CSV: a quoted text is not closed"),
    ],
)
def test_a_torn_last_record_is_told(file: Path, end: str, values: dict[str, str], fault: str) -> None:
    assert read(file, f"id,a,b\n1,x,y\n{end}")[1:] == [(3, values, fault)]


def test_a_quote_that_is_not_closed_does_not_swallow_the_lines_after_it(file: Path) -> None:
    rows = read(file, 'id,a\n1,"lost\n2,x\n3,"y"\n4,"z"\n')
    assert [(line, values["id"], bool(fault)) for line, values, fault in rows] == [
        (2, "1", True),
        (3, "2", False),
        (4, "3", False),
        (5, "4", False),
    ]


def test_a_quote_that_is_never_closed_costs_one_line(file: Path) -> None:
    lines = "".join(f"{number},x\n" for number in range(2, 5000))
    rows = read(file, f'id,a\n1,"lost\n{lines}')
    assert [line for line, _, fault in rows if fault] == [2]
    assert len(rows) == 4999


def test_a_text_longer_than_a_field_may_be_is_told(file: Path) -> None:
    rows = read(file, "id,a\n1," + "x" * 200_000 + "\n2,y\n")
    assert [(line, fault) for line, _, fault in rows] == [
        (2, "is not CSV: field larger than field limit (131072)"),
        (3, ""),
    ]


def test_a_record_of_several_lines_with_a_fault_is_told_as_a_whole(file: Path) -> None:
    rows = read(file, 'id,a\n1,"x\ny",z\n2,b\n')
    assert rows[0][0::2] == (2, "has 3 columns, expected 2 (the record goes on to line 3)")
    assert rows[1][0] == 4


def test_bytes_that_are_not_text_are_told(file: Path) -> None:
    rows = read(file, b"id,a\n1,caf\xe9\n2,caf\xc3\xa9\n3,\xed\xa0\x80\n")
    assert [(line, fault) for line, _, fault in rows] == [
        (2, "holds bytes that are not text in the file's encoding"),
        (3, ""),
        (4, "holds bytes that are not text in the file's encoding"),
    ]
    assert rows[1][1]["a"] == "café"


def test_a_nul_is_told_and_the_six_characters_are_text(file: Path) -> None:
    """Case H5 at the reader."""
    rows = read(file, "id,a\n1,x\0y\n2,x\\u0000y\n")
    assert rows[0][0::2] == (2, "holds a NUL character")
    assert rows[1] == (3, {"id": "2", "a": "x\\u0000y"}, "")


@pytest.mark.parametrize(
    ("encoding", "text"), [("cp1252", "café €"), ("utf-16", "žluťoučký 😀"), ("iso8859-2", "žluťoučký")]
)
def test_other_encodings_are_read_when_they_are_said(file: Path, encoding: str, text: str) -> None:
    rows = read(file, f"id,a\n1,{text}\n2,x\n".encode(encoding), encoding=encoding)
    assert rows == [(2, {"id": "1", "a": text}, ""), (3, {"id": "2", "a": "x"}, "")]


def test_half_a_character_at_the_end_is_told(file: Path) -> None:
    rows = read(file, "id,a\n1,x\n2,é".encode()[:-1])
    assert rows[1][0::2] == (3, "holds bytes that are not text in the file's encoding")


def test_a_byte_order_mark_is_not_part_of_the_first_column(file: Path) -> None:
    assert read(file, "\ufeffid,a\n1,x\n") == [(2, {"id": "1", "a": "x"}, "")]


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_another_delimiter_is_said_or_found_in_the_header(file: Path, delimiter: str) -> None:
    content = f'"id"{delimiter}"a,b"{delimiter}c\n1{delimiter}x{delimiter}y\n'
    for said in (delimiter, "auto"):
        assert read(file, content, delimiter=said) == [(2, {"id": "1", "a,b": "x", "c": "y"}, "")]


def test_columns_can_be_named_for_files_without_header(file: Path) -> None:
    assert read(file, "1,x\n", columns=("id", "a")) == [(1, {"id": "1", "a": "x"}, "")]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "the file has no header line"),
        (b"\n1,x\n", "the file has no header line"),
        (b"id,id\n1,x\n", "the header names column 'id' twice"),
        (b"id,\xff\n1,x\n", "the header holds bytes that are not text"),
        (b'id,"a\n1,x\n', "is not a header: a quoted text is not closed"),
    ],
)
@pytest.mark.parametrize("delimiter", [",", "auto"])
def test_a_file_without_a_usable_header_is_told_once(
    file: Path, content: bytes, fault: str, delimiter: str
) -> None:
    rows = read(file, content, delimiter=delimiter)
    assert len(rows) == 1
    assert rows[0][0] == 1
    assert rows[0][2].startswith(fault)
    assert "no row of" in rows[0][2]


def test_gzip_is_recognised_whatever_the_name(tmp_path: Path) -> None:
    content = gzip.compress(b"id,a\n1,x\n") + gzip.compress(b"2,y\n")
    for name in ("rows.csv.gz", "rows.csv"):
        assert [row[0] for row in read(tmp_path / name, content)] == [2, 3]


@pytest.mark.parametrize("cut", [9, 12, 200, 3000, -9, -4])
def test_a_truncated_gzip_gives_what_can_be_read_and_tells_the_rest(file: Path, cut: int) -> None:
    lines = ["id,a\n", *(f"{number},{number * 7919 % 10007}\n" for number in range(5000))]
    rows = read(file, gzip.compress("".join(lines).encode())[:cut])
    *sound, (line, _, fault) = rows
    assert "cannot be read" in fault
    assert [(number, f"{values['id']},{values['a']}\n", told) for number, values, told in sound] == [
        (number + 2, text, "") for number, text in enumerate(lines[1 : len(sound) + 1])
    ]
    assert line == (len(sound) + 2 if sound or cut >= 200 else 1)
    if cut < 0:
        assert len(sound) == 5000


def test_a_damaged_gzip_is_told_at_its_end(file: Path) -> None:
    content = bytearray(gzip.compress(b"id,a\n1,x\n"))
    content[-8] ^= 0xFF
    rows = read(file, bytes(content))
    assert rows[0] == (2, {"id": "1", "a": "x"}, "")
    assert rows[1][0] == 3
    assert "CRC check failed" in rows[1][2]


def test_what_is_left_of_a_record_where_the_gzip_ends_is_kept(file: Path) -> None:
    whole = gzip.compress(b"id,a\n1,x\nabc,long", compresslevel=0)
    rows = read(file, whole[:-10])
    assert rows[-1][1] == {"id": "abc", "a": "lo"}
    assert "Compressed file ended" in rows[-1][2]


def test_json_lines_are_read_exactly(tmp_path: Path) -> None:
    content = (
        '{"id":1,"amount":24.90,"big":12345678901234567890.12,"small":1E-7}\n'
        "\n"
        '{"id":"2","list":[1.10,{"k":null}],"text":"a\\\\u0000b"}\r\n'
        '{"id":3}'
    )
    for name in ("rows.jsonl", "rows.ndjson", "rows.jsonl.gz"):
        data = gzip.compress(content.encode()) if name.endswith("gz") else content
        rows = read(tmp_path / name, data)
        assert [row[0] for row in rows] == [1, 3, 4]
        first = rows[0][1]
        assert [str(first[name]) for name in ("amount", "big", "small")] == [
            "24.90",
            "12345678901234567890.12",
            "1E-7",
        ]
        assert rows[1][1]["list"] == [Decimal("1.10"), {"k": None}]
        assert rows[1][1]["text"] == "a\\u0000b"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('{"id":1', "is not JSON: Expecting ',' delimiter"),
        ("[1]", "is JSON, but not an object"),
        ('{"id":NaN}', "is not JSON: NaN is not a number of JSON"),
        ('{"id":-Infinity}', "is not JSON: -Infinity is not a number of JSON"),
        ('{"id":1,"id":2}', "is not JSON: member 'id' stands twice in an object"),
        ('{"id":{"a":1,"a":1}}', "is not JSON: member 'a' stands twice in an object"),
        ('{"id":"a\\u0000b"}', "holds a NUL character"),
        ('{"id":[{"k\\u0000":1}]}', "holds a NUL character"),
        ('{"id":"\\ud800"}', "holds a lone surrogate"),
        ('{"id":"\0"}', "holds a NUL character"),
        ("[" * 100_000, "is not JSON: maximum recursion depth exceeded"),
    ],
)
def test_a_line_that_is_no_json_object_is_told_and_the_rest_read_on(
    tmp_path: Path, line: str, fault: str
) -> None:
    rows = read(tmp_path / "rows.jsonl", f'{line}\n{{"id":"\\ud83d\\ude00"}}\n')
    assert rows[0][0] == 1
    assert rows[0][2].startswith(fault)
    assert rows[1] == (2, {"id": "😀"}, "")


def test_a_torn_last_json_line_is_told(tmp_path: Path) -> None:
    rows = read(tmp_path / "rows.jsonl", '{"id":1}\n{"id":')
    assert rows[1][0] == 2
    assert rows[1][2].endswith("; the file ends in the middle of the record")


def test_the_kind_of_file_can_be_said(tmp_path: Path) -> None:
    assert read(tmp_path / "rows.log", '{"id":1}\n', kind="jsonl") == [(1, {"id": 1}, "")]
    assert read(tmp_path / "rows.jsonl", "id\n1\n", kind="csv") == [(2, {"id": "1"}, "")]


def test_several_files_are_read_one_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,a\n1,x\n")
    (tmp_path / "b.csv").write_text("id,b\n2,y\n")
    rows = Rows([tmp_path / "a.csv", str(tmp_path / "b.csv")])
    assert [(Path(row.file).name, row.line) for row in rows] == [("a.csv", 2), ("b.csv", 2)]
    assert (rows.read, rows.columns) == (2, {"id", "a", "b"})
    assert rows.bytes_read == rows.bytes_total == 18


def test_a_file_that_cannot_be_opened_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match=r"cannot read .*missing\.csv: No such file or directory"):
        Rows([tmp_path / "missing.csv"])
    with pytest.raises(InputFileError, match="Is a directory"):
        Rows([tmp_path])


@pytest.mark.parametrize("delimiter", ["", ";;", '"', "\n"])
def test_a_delimiter_is_one_character(delimiter: str) -> None:
    with pytest.raises(DeclarationError, match="delimiter must be one character"):
        Format(delimiter=delimiter)


def test_an_encoding_is_one_that_python_knows() -> None:
    with pytest.raises(DeclarationError, match="encoding 'utf-9' is not known"):
        Format(encoding="utf-9")


@pytest.mark.parametrize("encoding", ["base64", "bz2", "rot13", "idna", "punycode", "undefined", "utf\0"])
def test_an_encoding_is_one_of_text(encoding: str) -> None:
    with pytest.raises(DeclarationError, match="is not known as one of text files"):
        Format(encoding=encoding)


def test_a_file_without_the_mark_that_its_encoding_begins_with_is_told(file: Path) -> None:
    ((line, values, fault),) = read(file, "id\n1\n".encode("utf-16-le"), encoding="utf-16")
    assert (line, values) == (1, {})
    assert "cannot be read beyond this line" in fault
    assert "BOM" in fault


@contextmanager
def piped(path: Path, content: bytes) -> Iterator[Path]:
    """A named pipe to which another thread writes as soon as it is read."""
    os.mkfifo(path)
    with ThreadPoolExecutor(1) as threads:
        written = threads.submit(path.write_bytes, content)
        yield path
        written.result()


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_pipe_is_read_once_and_has_no_size(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    plain = tmp_path / "plain.csv"
    plain.write_text("id\n1\n2\n")
    told: list[int] = []
    content = pack(b"id\n" + b"7\n" * 4000)
    with piped(tmp_path / "rows.csv", content) as pipe:
        rows = Rows([plain, pipe], tick=lambda: told.append(rows.bytes_read))
        assert sum(1 for _ in rows) == 4002
    assert (told, rows.bytes_read, rows.bytes_total) == ([7, 7], 7, 7)


def test_a_pipe_without_a_writer_is_not_opened_before_it_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows.csv")
    assert Rows([tmp_path / "rows.csv"]).bytes_total == 0


def test_a_line_as_long_as_the_file_is_read_in_a_time_like_its_length(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    seconds = []
    for size in (8_000_000, 64_000_000):
        path.write_bytes(b'{"a": "' + b"x" * size + b'"}\n')
        started = time.process_time()
        assert [len(row["a"]) for row in Rows([path])] == [size]
        seconds.append(time.process_time() - started)
    # A text joined anew for each chunk took 64 times as long.
    assert seconds[1] < seconds[0] * 24 + 0.5


fields = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12).filter(
    lambda text: text != ""
)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(fields, fields), min_size=1, max_size=20), st.sampled_from([",", ";", "\t"]))
def test_whatever_csv_can_quote_is_read_back_with_its_lines(
    tmp_path_factory: pytest.TempPathFactory, records: list[tuple[str, str]], delimiter: str
) -> None:
    content = f"a{delimiter}b\n"
    expected = []
    for record in records:
        expected.append((content.count("\n") + 1, dict(zip("ab", record, strict=True)), ""))
        content += delimiter.join('"' + field.replace('"', '""') + '"' for field in record) + "\n"
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    assert read(path, content, delimiter=delimiter) == expected


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=300))
def test_no_bytes_make_the_reader_fail(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("rows")
    for name in ("rows.csv", "rows.jsonl"):
        for row in read(folder / name, b"a,b\n" + data):
            assert row[0] >= 1
        read(folder / name, b"\x1f\x8b" + data)


def row(**values: Any) -> Row:
    return Row("rows.csv", 2, values)


@pytest.mark.parametrize(
    ("read_column", "value", "expected"),
    [
        (Row.text, "x", "x"),
        (Row.text, 7, "7"),
        (Row.get, "", ""),
        (Row.get, None, ""),
        (Row.decimal, "24.90", Decimal("24.90")),
        (Row.decimal, "-1E-7", Decimal("-1E-7")),
        (Row.decimal, ".5", Decimal("0.5")),
        (Row.decimal, Decimal("1.10"), Decimal("1.10")),
        (Row.decimal, 3, Decimal(3)),
        (Row.integer, "007", 7),
        (Row.integer, -3, -3),
    ],
)
def test_columns_are_read_as_what_they_are(read_column: Any, value: Any, expected: Any) -> None:
    found = read_column(row(c=value), "c")
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("read_column", "value", "reason"),
    [
        (Row.text, "", "column c is empty, expected text"),
        (Row.text, " ", "column c is empty, expected text"),
        (Row.text, None, "column c is empty, expected text"),
        (Row.text, 1.5, "column c is 1.5, expected text"),
        (Row.get, True, "column c is True, expected text"),
        (Row.get, [], "column c is [], expected text"),
        (Row.decimal, "", "column c is '', expected a decimal number such as 24.90"),
        (Row.decimal, "1_000", "expected a decimal number"),
        (Row.decimal, "1,5", "expected a decimal number"),
        (Row.decimal, "NaN", "expected a decimal number"),
        (Row.decimal, "Infinity", "expected a decimal number"),
        (Row.decimal, "1E999999", "expected a decimal number"),
        (Row.decimal, "٣", "expected a decimal number"),
        (Row.decimal, " 1", "expected a decimal number"),
        (Row.decimal, True, "expected a decimal number"),
        (Row.decimal, 0.1, "expected a decimal number"),
        (Row.integer, "1.0", "expected a whole number"),
        (Row.integer, True, "expected a whole number"),
        (Row.integer, "9" * 31, "expected a whole number"),
        (Row.day, "2018-02-30", "column c is '2018-02-30', expected a date such as 2018-02-17"),
        (Row.day, "20180217", "expected a date"),
        (Row.local_time, "2018-02-17", "expected a local time such as 2018-02-17 23:33:56"),
        (Row.local_time, "2018-02-17 24:00:01", "expected a local time"),
        (Row.local_time, "2018-02-17T10:00:00Z", "expected a local time"),
    ],
)
def test_a_column_that_holds_something_else_is_named(read_column: Any, value: Any, reason: str) -> None:
    with pytest.raises(UnreadableValue, match=re.escape(reason)) as caught:
        read_column(row(c=value), "c")
    assert caught.value.column == "c"


def test_days_and_times_are_read() -> None:
    one = row(day="2018-02-17", time="2018-02-17 23:33:56", short="2018-06-12T20:07")
    assert one.day("day").isoformat() == "2018-02-17"
    assert one.local_time("time").isoformat() == "2018-02-17T23:33:56"
    assert one.instant("short", "America/Sao_Paulo").isoformat() == "2018-06-12T23:07:00+00:00"
    with pytest.raises(UnreadableValue, match=r"column time cannot become an instant: .* happened twice"):
        one.instant("time", "America/Sao_Paulo")
    assert one.instant("time", "America/Sao_Paulo", ambiguous="earlier").hour == 1


def test_a_missing_column_is_named_with_those_that_are_there() -> None:
    with pytest.raises(UnreadableValue, match="column c is missing; the row has a, b"):
        row(a=1, b=2)["c"]
    assert row(a=1).get("c") == ""
    assert "a" in row(a=1)
    assert "c" not in row(a=1)


def test_no_column_of_a_broken_row_can_be_used() -> None:
    broken = Row("rows.csv", 3, {"a": "1"}, "has 1 columns, expected 2")
    for use in (
        lambda: broken["a"],
        lambda: broken.get("a"),
        lambda: broken.get("b"),
        lambda: broken.integer("a"),
    ):
        with pytest.raises(UnreadableValue, match=r"^has 1 columns, expected 2$"):
            use()
    assert repr(broken) == "Row('rows.csv', 3, {'a': '1'}, 'has 1 columns, expected 2')"

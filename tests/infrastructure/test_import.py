"""The importer: every event once, contradictions listed, nothing half applied, whoever else is writing."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from threading import Barrier
from typing import Any

import psutil
import psycopg
import pytest

from onefold.domain.account import Account
from onefold.domain.event import Event
from onefold.domain.money import Money
from onefold.domain.registry import Registry
from onefold.infrastructure.embedded import EmbeddedServer
from onefold.infrastructure.identity import event_id_of
from onefold.infrastructure.postgres.errors import VersionConflict
from onefold.infrastructure.postgres.log import EventLog
from onefold.infrastructure.postgres.migrate import migrate
from onefold.infrastructure.postgres.pool import open_pool
from onefold.infrastructure.postgres.repository import Repository
from onefold.infrastructure.reading import (
    Conflict,
    Difference,
    Fact,
    HeldBack,
    Importer,
    ImportReport,
    InputFileError,
    Mapping,
    MappingFailed,
    Outcome,
    Problem,
    Progress,
    Row,
    Rows,
    Unreadable,
    each,
    reads,
)

AT = datetime(1993, 1, 1, tzinfo=UTC)


@pytest.fixture
def log(database_url: str) -> Iterator[EventLog]:
    with open_pool(database_url) as pool:
        yield EventLog(pool)


@reads("bank")
@each
def bank(row: Row) -> Iterator[Fact]:
    kind = {"in": Account.Deposited, "out": Account.Withdrawn}[row.text("kind")]
    event = kind(amount=Money.of(row.decimal("amount"), "CZK"), operation=row.get("note"))
    at = AT + timedelta(days=row.integer("day")) if row.get("day") else AT
    yield Fact(row.text("id"), Account.stream_of(row.text("account")), event, at)


HEADER = "id,account,kind,amount,note,day\n"


def write(folder: Path, *lines: str, name: str = "bank.csv") -> Path:
    path = folder / name
    path.write_text(HEADER + "".join(f"{line}\n" for line in lines))
    return path


def counters(report: ImportReport) -> tuple[int, int, int, int, int]:
    return report.read, report.appended, report.duplicate, report.conflict, report.unreadable


def balance(log: EventLog, account: str) -> Decimal:
    return Repository(log, Account).get(account).balance


def test_rows_become_events_with_the_next_versions_of_their_streams(log: EventLog, tmp_path: Path) -> None:
    file = write(tmp_path, "1,a,in,24.90,x,0", "2,b,in,5,,1", "3,a,out,30.00,,2")
    report = Importer(log, batch=2).run(bank, [file])
    assert counters(report) == (3, 3, 0, 0, 0)
    assert report.clean
    events = log.load("account/a")
    assert [(type(event), event.meta.version, event.meta.occurred_at) for event in events] == [
        (Account.Deposited, 1, AT),
        (Account.Withdrawn, 2, AT + timedelta(days=2)),
    ]
    assert [event.meta.event_id for event in events] == [event_id_of("bank", "1"), event_id_of("bank", "3")]
    assert events[0].meta.metadata == {"source": "bank"}
    assert balance(log, "a") == Decimal("-5.10")


def test_the_same_rows_again_are_no_ops(log: EventLog, tmp_path: Path) -> None:
    file = write(tmp_path, "1,a,in,24.90,,0", "2,a,in,5,,1")
    Importer(log).run(bank, [file])
    again = write(tmp_path, "2,a,in,5.00,,1", "3,a,in,1,,1", "1,a,in,24.9,,0", name="later.csv")
    assert counters(Importer(log).run(bank, [file])) == (2, 0, 2, 0, 0)
    assert counters(Importer(log).run(bank, [again, file])) == (5, 1, 4, 0, 0)
    assert [event.meta.version for event in log.load("account/a")] == [1, 2, 3]


def test_a_row_that_says_something_else_under_the_same_key_is_listed_and_not_applied(
    log: EventLog, tmp_path: Path
) -> None:
    Importer(log).run(bank, [write(tmp_path, "k,a,in,10,,0")])
    other = write(
        tmp_path,
        "k,a,in,99,salary,0",
        "k,b,in,10,,0",
        "k,a,out,10,,0",
        "k,a,in,10,,3",
        "k,a,in,10.0,,0",
        name="other.csv",
    )
    report = Importer(log).run(bank, [other])
    assert counters(report) == (5, 0, 1, 4, 0)
    assert not report.clean
    assert report.conflicts == [
        Conflict(
            "k",
            "account/a",
            (Difference("amount", "10 CZK", "99 CZK"), Difference("operation", "", "salary")),
            str(other),
            2,
        ),
        Conflict("k", "account/b", (Difference("stream", "account/a", "account/b"),), str(other), 3),
        Conflict(
            "k", "account/a", (Difference("type", "account.deposited", "account.withdrawn"),), str(other), 4
        ),
        Conflict(
            "k",
            "account/a",
            (Difference("occurred_at", "1993-01-01T00:00:00+00:00", "1993-01-04T00:00:00+00:00"),),
            str(other),
            5,
        ),
    ]
    assert balance(log, "a") == 10
    assert log.load("account/b") == []


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_a_key_repeated_within_a_run_is_a_duplicate_or_a_conflict(
    log: EventLog, tmp_path: Path, batch: int
) -> None:
    file = write(tmp_path, "k,a,in,10,,0", "k,a,in,10.0,,0", "k,a,in,99,,0", "k,a,in,10,,0")
    report = Importer(log, batch=batch).run(bank, [file])
    assert counters(report) == (4, 1, 2, 1, 0)
    assert balance(log, "a") == 10


def test_the_same_key_of_two_sources_is_two_events(log: EventLog, tmp_path: Path) -> None:
    file = write(tmp_path, "k,a,in,10,,0")
    Importer(log).run(bank, [file])
    assert counters(Importer(log).run(Mapping("other bank", bank.function, bank.format), [file])) == (
        1,
        1,
        0,
        0,
        0,
    )
    assert balance(log, "a") == 20


def test_equal_looking_rows_with_keys_of_their_own_are_all_applied(log: EventLog, tmp_path: Path) -> None:
    """Two equal debits are two debits: identity is the key, never the content."""
    report = Importer(log).run(bank, [write(tmp_path, "1,a,out,10,,0", "2,a,out,10,,0")])
    assert counters(report) == (2, 2, 0, 0, 0)
    assert balance(log, "a") == -20


def test_unreadable_rows_are_listed_with_file_line_and_reason_and_the_rest_goes_on(
    log: EventLog, tmp_path: Path
) -> None:
    file = write(
        tmp_path, "1,a,in,ten,,0", "2,a,in", "3,a,gift,1,,0", "4,a,in,1,,0", ",a,in,1,,0", "6,a,in,1,\0,0"
    )
    report = Importer(log).run(bank, [file])
    assert counters(report) == (6, 1, 0, 0, 5)
    assert not report.clean
    assert report.unreadable_rows == [
        Problem(str(file), 2, "column amount is 'ten', expected a decimal number such as 24.90"),
        Problem(str(file), 3, "has 3 columns, expected 6"),
        Problem(str(file), 4, "'gift' is not known"),
        Problem(str(file), 6, "column id is empty, expected text"),
        Problem(str(file), 7, "holds a NUL character"),
    ]


def test_an_unreadable_row_is_mended_by_a_later_import(log: EventLog, tmp_path: Path) -> None:
    Importer(log).run(bank, [write(tmp_path, "1,a,in,ten,,0", "2,a,in,5,,0")])
    report = Importer(log).run(bank, [write(tmp_path, "1,a,in,10,,0", "2,a,in,5,,0")])
    assert counters(report) == (2, 1, 1, 0, 0)
    assert balance(log, "a") == 15


def test_the_lists_are_capped_and_the_rest_is_counted(log: EventLog, tmp_path: Path) -> None:
    @reads("odd")
    def odd(rows: Rows) -> Iterator[Outcome]:
        for number, row in enumerate(rows):
            yield Unreadable(row, "odd") if number % 2 else HeldBack(row, "even")
            event = Account.Deposited(amount=Money.of(number, "CZK"))
            yield Fact("k", "account/a", event, AT, row=row)

    report = Importer(log, listed=2).run(odd, [write(tmp_path, *("1,a,in,1,,0" for _ in range(10)))])
    assert (report.unreadable, report.held_back, report.conflict) == (5, 5, 9)
    assert [len(rows) for rows in (report.unreadable_rows, report.held_back_rows, report.conflicts)] == [
        2,
        2,
        2,
    ]
    values = json.loads(json.dumps(report.as_dict()))
    assert values["not_listed"] == {"conflicts": 7, "unreadable_rows": 3, "held_back_rows": 3}
    assert {
        name: values[name] for name in ("source", "read", "appended", "duplicate", "conflict", "unreadable")
    } == {
        "source": "odd",
        "read": 10,
        "appended": 1,
        "duplicate": 0,
        "conflict": 9,
        "unreadable": 5,
    }
    assert values["conflicts"][0]["differences"] == [{"field": "amount", "stored": "0 CZK", "found": "1 CZK"}]


def test_progress_is_told_and_ends_at_the_end(log: EventLog, tmp_path: Path) -> None:
    file = write(tmp_path, *(f"{number},a,in,1,,0" for number in range(4100)))
    told: list[Progress] = []
    Importer(log, batch=1500).run(bank, [file], progress=told.append)
    assert told[-1] == Progress(4100, 4100, file.stat().st_size, file.stat().st_size)
    assert {2000, 4000} <= {progress.rows for progress in told}
    assert [progress.events for progress in told] == sorted(progress.events for progress in told)
    assert [progress.bytes_read for progress in told] == sorted(progress.bytes_read for progress in told)


def test_a_missing_file_is_refused_before_anything_is_written(log: EventLog, tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="nothing was read in"):
        Importer(log).run(bank, [write(tmp_path, "1,a,in,1,,0"), tmp_path / "missing.csv"])
    assert log.load("account/a") == []


def test_a_batch_has_at_least_one_event(log: EventLog) -> None:
    with pytest.raises(ValueError, match="a batch has 1 event or more, found 0"):
        Importer(log, batch=0)


def test_a_mapping_that_fails_says_where_and_what_was_appended(log: EventLog, tmp_path: Path) -> None:
    @reads("bank")
    @each
    def failing(row: Row) -> Iterator[Fact]:
        if row["id"] == "3":
            raise RuntimeError("no such table")
        yield from bank.function(Rows.of([row]))  # type: ignore[misc]

    file = write(tmp_path, *(f"{number},a,in,1,,0" for number in range(1, 6)))
    with pytest.raises(
        MappingFailed,
        match=r"mapping bank failed at .*bank\.csv:4 with RuntimeError: no such table; 2 events were",
    ):
        Importer(log, batch=1).run(failing, [file])
    assert counters(Importer(log).run(bank, [file])) == (5, 3, 2, 0, 0)


def test_a_mapping_that_is_no_generator_is_told_so(log: EventLog, tmp_path: Path) -> None:
    """Without `yield` a function returns None, or a single fact."""

    def forgetful(row: Any) -> Any:
        for _ in [row]:
            pass

    def single(row: Row) -> Any:
        return next(iter(bank.function(Rows.of([row]))))

    def bare(row: Row) -> Iterator[Any]:
        yield Account.Deposited(amount=Money.of(1, "CZK"))

    def all_bare(rows: Rows) -> Any:
        return [Account.Deposited(amount=Money.of(1, "CZK"))]

    file = write(tmp_path, "1,a,in,1,,0")
    for function, words in (
        (each(forgetful), r"bank\.csv:2 with TypeError: forgetful must be a generator.*it returned None"),
        (each(single), "single must be a generator.*it returned one Fact"),
        (forgetful, "at the first row with TypeError: forgetful must be a generator"),
        (each(bare), "expected Fact, Unreadable or HeldBack from bare, found Deposited"),
        (all_bare, "expected Fact, Unreadable or HeldBack from all_bare, found Deposited"),
    ):
        with pytest.raises(MappingFailed, match=words):
            Importer(log).run(reads("bank")(function), [file])
    assert log.load("account/a") == []


def test_a_mapping_that_would_end_the_program_fails_instead(log: EventLog, tmp_path: Path) -> None:
    @each
    def ending(row: Row) -> Iterator[Fact]:
        raise SystemExit(0)

    with pytest.raises(MappingFailed, match=r"failed at .*bank\.csv:2 with SystemExit: 0"):
        Importer(log).run(reads("bank")(ending), [write(tmp_path, "1,a,in,1,,0")])


@pytest.mark.parametrize("text", ["\0", "\ud800"])
def test_a_row_whose_key_or_stream_no_log_can_keep_is_unreadable(
    log: EventLog, tmp_path: Path, text: str
) -> None:
    @reads("bank")
    @each
    def odd(row: Row) -> Iterator[Fact]:
        key = text if row["id"] == "1" else row["id"]
        stream = f"account/{text if row['id'] == '2' else 'a'}"
        yield Fact(key, stream, Account.Deposited(amount=Money.of(1, "CZK")), AT)

    file = write(tmp_path, *(f"{number},a,in,1,,0" for number in range(1, 4)))
    report = Importer(log).run(odd, [file])
    assert counters(report) == (3, 1, 0, 0, 2)
    flaw = "contains a NUL character" if text == "\0" else "contains a lone surrogate"
    assert [problem.reason for problem in report.unreadable_rows] == [
        f"the key of a fact {flaw}, which PostgreSQL cannot hold (ValueError)",
        f"the stream's name {flaw}, which PostgreSQL cannot hold (ValueError)",
    ]


def test_values_that_no_log_can_keep_are_listed_with_the_facts_of_their_row(
    log: EventLog, tmp_path: Path
) -> None:
    """Case H5: what a mapping made of a sound row can still hold a NUL; the batch goes on without that row."""

    @reads("bank")
    @each
    def odd(row: Row) -> Iterator[Fact]:
        note = "\0" if row["id"] == "2" else "x"
        for part in ("a", "b"):
            event = Account.Deposited(amount=Money.of(1, "CZK"), operation=note if part == "b" else "x")
            yield Fact(f"{row['id']}:{part}", "account/a", event, AT)

    file = write(tmp_path, *(f"{number},a,in,1,,0" for number in range(1, 4)))
    report = Importer(log).run(odd, [file])
    assert counters(report) == (3, 4, 0, 0, 1)
    assert report.unreadable_rows == [
        Problem(
            str(file),
            3,
            "Account.Deposited: field operation contains a NUL character; nothing was written (UnstorableValue)",
        )
    ]
    assert [event.meta.version for event in log.load("account/a")] == [1, 2, 3, 4]


def test_a_flawed_fact_without_a_row_is_listed_without_a_place(log: EventLog, tmp_path: Path) -> None:
    @reads("bank")
    def placeless(rows: Rows) -> Iterator[Outcome]:
        for row in rows:
            note = "\0" if row["id"] == "1" else ""
            yield Fact(
                row["id"], "account/a", Account.Deposited(amount=Money.of(1, "CZK"), operation=note), AT
            )

    report = Importer(log).run(placeless, [write(tmp_path, "1,a,in,1,,0", "2,a,in,1,,0")])
    assert counters(report) == (2, 1, 0, 0, 1)
    assert (report.unreadable_rows[0].file, report.unreadable_rows[0].line) == ("", 0)
    only = Importer(log).run(placeless, [write(tmp_path, "1,a,in,1,,0")])
    assert counters(only) == (1, 0, 0, 0, 1)


def test_a_derived_time_that_comes_out_otherwise_contradicts_nothing(log: EventLog, tmp_path: Path) -> None:
    def at(days: int, *, derived: bool) -> Mapping:
        @reads("bank")
        def mapping(rows: Rows) -> Iterator[Outcome]:
            for row in rows:
                event = Account.Deposited(amount=Money.of(1, "CZK"))
                yield Fact(row["id"], "account/a", event, AT + timedelta(days=days), derived=derived)

        return mapping

    file = write(tmp_path, "1,a,in,1,,0")
    assert counters(Importer(log).run(at(0, derived=True), [file])) == (1, 1, 0, 0, 0)
    assert counters(Importer(log).run(at(1, derived=True), [file])) == (1, 0, 1, 0, 0)
    assert counters(Importer(log).run(at(1, derived=False), [file])) == (1, 0, 0, 1, 0)


def test_what_was_stored_under_an_old_schema_is_compared_as_it_is_read_today(
    database_url: str, tmp_path: Path
) -> None:
    """Case H7: a renamed type and a split field are the same event still."""
    old, new = Registry(), Registry()

    class Placed(Event, name="shop.placed", registry=old):
        name: str

    class Submitted(Event, name="shop.submitted", version=2, registry=new):
        given: str
        family: str
        channel: str = "web"

    @new.upcast("shop.placed", 1, to="shop.submitted", to_version=2)
    def split(data: dict[str, Any]) -> dict[str, Any]:
        given, family = data["name"].split(" ", 1)
        return {"given": given, "family": family}

    def mapping(make: Callable[[str], Event]) -> Mapping:
        @reads("shop")
        @each
        def of_row(row: Row) -> Iterator[Fact]:
            yield Fact(row.text("id"), f"shop/{row['id']}", make(row.text("name")), AT)

        return of_row

    file = tmp_path / "shop.jsonl"
    file.write_text('{"id":"1","name":"Ana Lima"}\n')
    with open_pool(database_url) as pool:
        Importer(EventLog(pool, registry=old)).run(mapping(lambda name: Placed(name=name)), [file])
        today = mapping(lambda name: Submitted(given=name.split()[0], family=name.split()[1]))
        assert counters(Importer(EventLog(pool, registry=new)).run(today, [file])) == (1, 0, 1, 0, 0)
        app = mapping(lambda name: Submitted(given=name.split()[0], family=name.split()[1], channel="app"))
        report = Importer(EventLog(pool, registry=new)).run(app, [file])
        assert report.conflicts[0].differences == (Difference("channel", "web", "app"),)


def test_values_are_compared_as_they_come_back_from_json(database_url: str, tmp_path: Path) -> None:
    kept = Registry()

    class Seen(Event, name="shop.seen", registry=kept):
        tags: Any = None

    @reads("shop")
    @each
    def shop(row: Row) -> Iterator[Fact]:
        yield Fact("1", "shop/1", Seen(tags=tuple(row["tags"])), AT)

    file = tmp_path / "shop.jsonl"
    file.write_text('{"tags":["a","b"]}\n')
    with open_pool(database_url) as pool:
        log = EventLog(pool, registry=kept)
        assert counters(Importer(log).run(shop, [file, file])) == (2, 1, 1, 0, 0)
        assert counters(Importer(log).run(shop, [file])) == (1, 0, 1, 0, 0)


def test_metadata_can_be_given(log: EventLog, tmp_path: Path) -> None:
    Importer(log, metadata={"actor": "ana"}).run(bank, [write(tmp_path, "1,a,in,1,,0")])
    assert log.load("account/a")[0].meta.metadata == {"actor": "ana"}


def at_once(runs: Sequence[Callable[[], ImportReport]]) -> list[ImportReport]:
    start = Barrier(len(runs))

    def run(one: Callable[[], ImportReport]) -> ImportReport:
        start.wait()
        return one()

    with ThreadPoolExecutor(len(runs)) as threads:
        return list(threads.map(run, runs))


def versions_without_holes(log: EventLog, streams: Sequence[str]) -> bool:
    return all(
        [event.meta.version for event in log.load(stream)] == list(range(1, len(log.load(stream)) + 1))
        for stream in streams
    )


def test_importers_of_one_source_at_once_append_each_event_once(log: EventLog, tmp_path: Path) -> None:
    lines = [f"{number},{number % 7},in,1,,0" for number in range(600)]
    forth = write(tmp_path, *lines)
    back = write(tmp_path, *reversed(lines), name="back.csv")
    reports = at_once(
        [lambda file=file: Importer(log, batch=37).run(bank, [file]) for file in (forth, back, forth)]
    )
    assert sum(report.appended for report in reports) == 600
    assert sum(report.duplicate for report in reports) == 1200
    assert all(report.clean for report in reports)
    assert versions_without_holes(log, [f"account/{number}" for number in range(7)])
    assert sum(balance(log, str(number)) for number in range(7)) == 600


def test_importers_of_two_sources_into_the_same_streams_do_not_disturb_each_other(
    log: EventLog, tmp_path: Path
) -> None:
    file = write(tmp_path, *(f"{number},{number % 3},in,1,,0" for number in range(300)))
    sources = [Mapping(f"bank {number}", bank.function, bank.format) for number in range(2)]
    reports = at_once(
        [lambda source=source: Importer(log, batch=50).run(source, [file]) for source in sources]
    )
    assert [counters(report) for report in reports] == [(300, 300, 0, 0, 0)] * 2
    assert versions_without_holes(log, [f"account/{number}" for number in range(3)])


def test_an_application_that_writes_to_the_same_stream_meanwhile_loses_nothing(
    log: EventLog, tmp_path: Path
) -> None:
    file = write(tmp_path, *(f"{number},a,in,1,,0" for number in range(200)))
    repository = Repository(log, Account)
    account = Account.open("a", "CZK", at=AT)
    repository.save(account)

    def application() -> ImportReport:
        done = 0
        while done < 40:
            account = repository.get("a")
            account.deposit(Money.of(1000, "CZK"), at=AT)
            try:
                repository.save(account)
            except VersionConflict:
                continue
            done += 1
        return ImportReport("application")

    report, _ = at_once([lambda: Importer(log, batch=20).run(bank, [file]), application])
    assert counters(report) == (200, 200, 0, 0, 0)
    assert balance(log, "a") == 40 * 1000 + 200
    assert versions_without_holes(log, ["account/a"])


def test_a_stream_that_is_always_taken_ends_in_its_own_error(
    log: EventLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "versions", lambda _, streams: dict.fromkeys(streams, 5))
    monkeypatch.setattr("onefold.infrastructure.reading.importer.ATTEMPTS", 2)
    with pytest.raises(VersionConflict, match="stream account/a: expected version 5"):
        Importer(log).run(bank, [write(tmp_path, "1,a,in,1,,0")])


def terminate_others(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )


def test_connections_that_end_between_batches_cost_nothing(
    log: EventLog, database_url: str, tmp_path: Path
) -> None:
    """Case H12 for reading in: the backend dies, the batch is tried again."""

    @reads("bank")
    def cut(rows: Rows) -> Iterator[Outcome]:
        for number, outcome in enumerate(bank.function(rows)):
            if number % 40 == 5:
                terminate_others(database_url)
            yield outcome

    file = write(tmp_path, *(f"{number},a,in,1,,0" for number in range(100)))
    assert counters(Importer(log, batch=10).run(cut, [file])) == (100, 100, 0, 0, 0)
    assert balance(log, "a") == 100


def test_a_connection_that_ends_inside_a_batch_costs_nothing(
    log: EventLog, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case H12: ended after the insert, before the commit: the batch was rolled back and is applied once."""
    append = log.append
    tries: list[int] = []

    def append_and_lose(events: Sequence[Event], **options: Any) -> list[Event]:
        stored = append(events, **options)
        tries.append(len(events))
        if len(tries) == 1:
            terminate_others(database_url)
        return stored

    monkeypatch.setattr(log, "append", append_and_lose)
    file = write(tmp_path, *(f"{number},a,in,1,,0" for number in range(10)), "0,a,in,1,,0")
    assert counters(Importer(log).run(bank, [file])) == (11, 10, 1, 0, 0)
    assert tries == [10, 10]
    assert balance(log, "a") == 10


def test_a_commit_whose_answer_was_lost_is_counted_as_what_it_was(
    log: EventLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = Importer._attempt
    tries: list[int] = []

    def attempt_and_lose(self: Importer, *arguments: Any) -> None:
        attempt(self, *arguments)
        tries.append(1)
        if len(tries) % 2:
            raise psycopg.OperationalError("the connection is lost")

    monkeypatch.setattr(Importer, "_attempt", attempt_and_lose)
    file = write(tmp_path, *(f"{number},a,in,1,,0" for number in range(10)), "0,a,in,9,,0", "0,a,in,1,,0")
    assert counters(Importer(log, batch=6).run(bank, [file])) == (12, 10, 1, 1, 0)
    assert len(tries) == 4
    assert balance(log, "a") == 10


def test_a_batch_that_was_lost_and_then_appended_by_another_importer_is_a_duplicate(
    log: EventLog, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, *(f"{number},a,in,1,,0" for number in range(10)))
    append, check = log.append, log.pool.check
    others: list[ImportReport] = []

    def append_and_lose(events: Sequence[Event], **options: Any) -> list[Event]:
        stored = append(events, **options)
        monkeypatch.setattr(log, "append", append)
        terminate_others(database_url)
        return stored

    def check_late() -> None:
        check()
        monkeypatch.setattr(log.pool, "check", check)
        with open_pool(database_url) as pool:
            others.append(Importer(EventLog(pool)).run(bank, [file]))

    monkeypatch.setattr(log, "append", append_and_lose)
    monkeypatch.setattr(log.pool, "check", check_late)
    assert counters(Importer(log).run(bank, [file])) == (10, 0, 10, 0, 0)
    assert [counters(report) for report in others] == [(10, 10, 0, 0, 0)]
    assert balance(log, "a") == 10


def test_a_batch_that_a_crash_of_the_server_took_is_appended_again(
    run_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the crash another transaction gets the number of the one that was lost, and is committed."""
    home = run_home / "import-crash"
    numbers: list[str] = []

    def number(connection: psycopg.Connection[Any]) -> str:
        (found,) = connection.execute("SELECT pg_current_xact_id()::text").fetchone() or ("",)
        return str(found)

    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        stack.callback(EmbeddedServer(home).stop)
        url = stack.enter_context(EmbeddedServer(home).hold())

        def crash() -> None:
            pid = EmbeddedServer(home).status().pid
            assert pid is not None
            os.kill(pid, signal.SIGQUIT)
            psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=20)
            stack.enter_context(EmbeddedServer(home).hold())

        with psycopg.connect(url, autocommit=True) as connection:
            migrate(connection)
            connection.execute("CHECKPOINT")
        log = EventLog(stack.enter_context(open_pool(url)))
        append = log.append

        def append_and_crash(events: Sequence[Event], **options: Any) -> list[Event]:
            stored = append(events, **options)
            monkeypatch.setattr(log, "append", append)
            numbers.append(number(options["connection"]))
            crash()
            with psycopg.connect(url, autocommit=True) as other:
                numbers.extend(number(other) for _ in range(5))
            return stored

        monkeypatch.setattr(log, "append", append_and_crash)
        file = write(tmp_path, *(f"{number},a,in,1,,0" for number in range(10)))
        assert counters(Importer(log).run(bank, [file])) == (10, 10, 0, 0, 0)
        assert numbers[0] in numbers[1:]
        assert balance(log, "a") == 10


def test_another_fault_of_the_database_is_not_tried_again(
    log: EventLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise psycopg.errors.DiskFull("no space left")

    monkeypatch.setattr(log, "append", full)
    with pytest.raises(psycopg.errors.DiskFull):
        Importer(log).run(bank, [write(tmp_path, "1,a,in,1,,0")])

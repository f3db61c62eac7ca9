"""Berka's mapping: accounts and movements, days kept, balances to the haléř, the torn record told."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from onefold.domain.account import Account
from onefold.domain.event import Event, EventMeta
from onefold.domain.money import Money
from onefold.infrastructure.postgres.log import EventLog
from onefold.infrastructure.postgres.pool import open_pool
from onefold.infrastructure.reading import Fact, Importer, Problem, Rows, Unreadable, load_mapping

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("ONEFOLD_DATA") or ROOT.parent / "shared" / "data") / "berka"
MAPPING = load_mapping(f"{ROOT}/docs/examples/berka.py:mapping")
needs_data = pytest.mark.skipif(
    not (DATA / "trans.asc").is_file() or not (DATA / "account.asc").is_file(),
    reason=f"Berka's files are not in {DATA}; name the folder of the data sets in ONEFOLD_DATA",
)
ACCOUNTS = '"account_id";"district_id";"frequency";"date"\r\n'
MOVEMENTS = (
    '"trans_id";"account_id";"date";"type";"operation";"amount";"balance";"k_symbol";"bank";"account"\r\n'
)


@pytest.fixture
def log(database_url: str) -> Iterator[EventLog]:
    with open_pool(database_url) as pool:
        yield EventLog(pool)


def outcomes(folder: Path, content: str) -> list[Any]:
    file = folder / "berka.asc"
    file.write_bytes(content.encode("ascii"))
    return list(MAPPING(Rows([file], MAPPING.format)))


def test_an_account_is_opened_on_its_day(tmp_path: Path) -> None:
    (fact,) = outcomes(tmp_path, ACCOUNTS + '5760;55;"POPLATEK MESICNE";930701\r\n')
    assert isinstance(fact, Fact)
    assert (fact.key, fact.stream) == ("5760:opened", "account/5760")
    assert fact.occurred_at == datetime(1993, 6, 30, 22, tzinfo=UTC)
    assert fact.event == Account.Opened(
        currency="CZK", opened_on=date(1993, 7, 1), frequency="POPLATEK MESICNE", district="55"
    )


@pytest.mark.parametrize(
    ("kind", "event_class"),
    [("PRIJEM", Account.Deposited), ("VYDAJ", Account.Withdrawn), ("VYBER", Account.Withdrawn)],
)
def test_a_movement_keeps_all_that_the_bank_noted(tmp_path: Path, kind: str, event_class: Any) -> None:
    line = f'9001;5760;930101;"{kind}";"PREVOD NA UCET";700.50;-12.00;" ";"AB";12345678\r\n'
    (fact,) = outcomes(tmp_path, MOVEMENTS + line)
    assert (fact.key, fact.stream, fact.occurred_at) == (
        "9001",
        "account/5760",
        datetime(1992, 12, 31, 23, tzinfo=UTC),
    )
    assert fact.event == event_class(
        amount=Money.of("700.50", "CZK"),
        operation="PREVOD NA UCET",
        k_symbol=" ",
        bank="AB",
        counterparty="12345678",
        booked_on=date(1993, 1, 1),
        reported_balance=Money.of("-12.00", "CZK"),
    )


def test_years_are_those_of_the_nineteen_hundreds(tmp_path: Path) -> None:
    (fact,) = outcomes(tmp_path, ACCOUNTS + '1;55;"x";681231\r\n')
    assert fact.event.opened_on == date(1968, 12, 31)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('9;1;930101;"DAR";"";1.00;1.00;"";;', "column type is 'DAR', expected PRIJEM, VYDAJ, VYBER"),
        ('9;1;930101;"PRIJEM";"";-1.00;1.00;"";;', "column amount is -1.00, expected 0 or more"),
        ('9;1;930101;"PRIJEM";"";1,00;1.00;"";;', "column amount is '1,00', expected a decimal number"),
        ('9;1;930101;"PRIJEM";"";1.00;;"";;', "column balance is '', expected a decimal number"),
        (
            '9;1;930231;"PRIJEM";"";1.00;1.00;"";;',
            "column date is '930231', expected a date YYMMDD such as 930101",
        ),
        ('9;1;19930101;"PRIJEM";"";1.00;1.00;"";;', "column date is '19930101', expected a date YYMMDD"),
        (';1;930101;"PRIJEM";"";1.00;1.00;"";;', "column trans_id is empty, expected text"),
        ('9;;930101;"PRIJEM";"";1.00;1.00;"";;', "column account_id is empty, expected text"),
        ('9;1;930101;"PRIJEM";"";1.00;1.00;"";', "has 9 columns, expected 10"),
        ('9;1;930101;"PRIJE', "is not CSV: a quoted text is not closed"),
    ],
)
def test_a_row_that_cannot_be_read_says_why(tmp_path: Path, line: str, reason: str) -> None:
    (found,) = outcomes(tmp_path, MOVEMENTS + line)
    assert isinstance(found, Unreadable)
    assert (found.row.line, found.reason[: len(reason)]) == (2, reason)


def test_withdrawals_below_zero_happened_and_the_torn_record_is_told(log: EventLog, tmp_path: Path) -> None:
    account, movements = tmp_path / "account.asc", tmp_path / "trans.asc"
    account.write_bytes((ACCOUNTS + '1;55;"x";930101\r\n').encode())
    movements.write_bytes(
        (
            MOVEMENTS
            + '7;1;930101;"VYDAJ";"";700.10;-700.10;"";;\r\n'
            + '8;1;930102;"PRIJEM";"";700.05;-0.05;"";;\r\n'
            + '9;1;930103;"PRI'
        ).encode()
    )
    report = Importer(log).run(MAPPING, [movements, account])
    assert (report.read, report.appended, report.unreadable) == (4, 3, 1)
    assert report.unreadable_rows == [Problem(str(movements), 4, "is not CSV: a quoted text is not closed")]
    (found,) = fold(log).values()
    assert (found.balance, found.status, found.opened_on) == (Decimal("-0.05"), "open", date(1993, 1, 1))


def events(log: EventLog) -> Iterator[Event]:
    with log.pool.connection() as connection:
        for stream, version, name, schema, data in connection.execute(
            "SELECT stream, version, type, schema_version, data::text FROM onefold.events ORDER BY position"
        ):
            yield log.registry.decode(name, schema, data, EventMeta(stream, version))


def fold(log: EventLog) -> dict[str, Account]:
    accounts: dict[str, Account] = {}
    for event in events(log):
        if event.meta.key not in accounts:
            accounts[event.meta.key] = Account.blank(event.meta.stream)
        accounts[event.meta.key].follow(event)
    return accounts


def days_below_zero(movements: dict[tuple[str, Any], Decimal]) -> list[tuple[str, Any]]:
    """Accounts and days at whose end the sum of all movements was below zero."""
    sums: dict[str, Decimal] = defaultdict(Decimal)
    found = []
    for account, day in sorted(movements, key=lambda key: (key[0], str(key[1]))):
        sums[account] += movements[account, day]
        if sums[account] < 0:
            found.append((account, str(day)))
    return found


@needs_data
def test_the_banks_files_give_balances_to_the_cent_and_keep_what_was_below_zero(log: EventLog) -> None:
    # Straight from the bytes: no reader of ours, and no csv module either.
    _, *lines = (DATA / "trans.asc").read_bytes().split(b"\r\n")
    records = [line.decode("ascii").split(";") for line in lines]
    whole = [record for record in records if len(record) == 10]
    torn = [number for number, record in enumerate(records, 2) if len(record) != 10 and record != [""]]
    openings = (DATA / "account.asc").read_text("ascii").splitlines()[1:]
    balances: dict[str, Decimal] = {line.split(";")[0]: Decimal(0) for line in openings}
    by_day: dict[tuple[str, Any], Decimal] = defaultdict(Decimal)
    for _, account, day, kind, _, amount, *_ in whole:
        change = Decimal(amount) if kind == '"PRIJEM"' else -Decimal(amount)
        balances[account] += change
        by_day[account, date(1900 + int(day[:2]), int(day[2:4]), int(day[4:]))] += change

    files = [DATA / "account.asc", DATA / "trans.asc"]
    report = Importer(log).run(MAPPING, files)
    assert (report.read, report.appended) == (len(openings) + len(records), len(openings) + len(whole))
    assert (report.duplicate, report.conflict, report.held_back) == (0, 0, 0)
    assert [(Path(problem.file).name, problem.line) for problem in report.unreadable_rows] == [
        ("trans.asc", number) for number in torn
    ]
    assert len(torn) == 1

    accounts = fold(log)
    assert {key: account.balance for key, account in accounts.items()} == balances
    assert {account.currency for account in accounts.values()} == {"CZK"}

    seen: dict[tuple[str, Any], Decimal] = defaultdict(Decimal)
    for event in events(log):
        if isinstance(event, Account.Deposited):
            seen[event.meta.key, event.booked_on] += event.amount.amount
        elif isinstance(event, Account.Withdrawn):
            seen[event.meta.key, event.booked_on] -= event.amount.amount
    assert days_below_zero(seen) == days_below_zero(by_day)
    assert days_below_zero(seen)

    again = Importer(log).run(MAPPING, files)
    assert (again.appended, again.duplicate, again.conflict) == (0, report.appended, 0)

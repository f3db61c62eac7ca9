"""An export holds every event as it is stored, and an identical log is made of it."""

from __future__ import annotations

import hashlib
import json
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onefold import Money, connect
from onefold.domain.account import Account
from onefold.infrastructure.brokers.envelope import read
from onefold.infrastructure.brokers.port import Delivery
from onefold.infrastructure.exporting.errors import (
    BadExport,
    ExportFileError,
    ExportStalled,
    LogNotEmpty,
    NotExportable,
)
from onefold.infrastructure.exporting.manifest import manifest_file, partial_file
from onefold.projections.shop import app as shop

from .conftest import AT, appending, everything, exported, imported

INSERT = (
    "INSERT INTO onefold.events (version, event_id, stream, type, schema_version, data, raw, metadata, occurred_at)"
    " VALUES (%s, gen_random_uuid(), %s, %s, %s, %s, %s, %s, %s)"
)
KINDS = pytest.mark.parametrize("kind", ["jsonl", "csv"])
STRANGE = "é/\"\\\r\n\t ,;\u2028{}'x"


@pytest.fixture
def strange(database_url: str) -> str:
    """A log with what is hard to write: all kinds of values, and holes."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        rows: list[tuple[Any, ...]] = [
            (
                1,
                "thing/1",
                "thing.made",
                1,
                '{"n": 12345678901234567890.1234567890, "e": 1e-30}',
                None,
                None,
                AT,
            ),
            (2, "thing/1", "thing.made", 7, "null", None, "{}", datetime(1, 1, 1, tzinfo=UTC)),
            (1, STRANGE, STRANGE, 2**31 - 1, json.dumps({STRANGE: STRANGE}), None, json.dumps(STRANGE), AT),
            (
                3,
                "thing/1",
                "thing.secret",
                1,
                None,
                bytes(range(256)),
                '{"correlation": "c\\"1", "causation": 7}',
                AT,
            ),
            (4, "thing/1", "thing.secret", 1, None, b"", '{"correlation": "c-1", "causation": "m-1"}', AT),
            (1, "no-slash", "x", 1, '"\\"quoted\\", \\\\ and \\u001f"', None, None, AT),
            (2, "no-slash", "x", 1, "[]", None, None, datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
            (1, "big/1", "x", 1, json.dumps({"text": '"x' * 150_000}), None, None, AT),
        ]
        for row in rows:
            with appending(database_url) as rolled_back:
                rolled_back.execute(INSERT, row)
            connection.execute(INSERT, row)
    return database_url


def deposits(url: str, key: str, *amounts: int) -> None:
    with connect(shop, url) as store:
        account = Account.open(key, "EUR", at=AT)
        for amount in amounts:
            account.deposit(Money.of(amount, "EUR"), at=AT)
        store.save(account, metadata={"actor": "ada"})


@KINDS
def test_an_identical_log_is_made_of_an_export(
    strange: str, other_url: str, tmp_path: Path, kind: str
) -> None:
    file = tmp_path / f"log.{kind}"
    made = exported(strange, file)
    content = file.read_bytes()
    assert (made.events, made.bytes, made.sha256) == (8, len(content), hashlib.sha256(content).hexdigest())
    assert (made.first_position, made.last_position) == (2, 16)
    imported(other_url, file)
    assert everything(other_url) == everything(strange)
    again = tmp_path / f"again.{kind}"
    assert exported(other_url, again).sha256 == made.sha256
    with psycopg.connect(other_url, autocommit=True) as connection:
        connection.execute(INSERT, (5, "thing/1", "thing.made", 1, "{}", None, None, AT))
        found = connection.execute("SELECT max(position) FROM onefold.events").fetchone()
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("DELETE FROM onefold.events")
    assert found == (17,)


def test_lines_are_cloudevents(strange: str, tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    exported(strange, file)
    messages = [
        read(Delivery(line, {"content-type": "application/cloudevents+json"}, "here"))
        for line in file.read_bytes().splitlines(keepends=True)
    ]
    assert [message.subject for message in messages][:3] == ["thing/1", "thing/1", STRANGE]
    assert str(messages[0].data["n"]) == "12345678901234567890.1234567890"
    assert messages[0].time == AT
    assert messages[0].extensions["sequence"] == "1"
    assert messages[3].data == bytes(range(256))
    assert "causationid" not in messages[3].extensions
    assert (messages[4].extensions["correlationid"], messages[4].extensions["causationid"]) == ("c-1", "m-1")


@KINDS
def test_what_was_broken_off_anywhere_becomes_the_same_file(strange: str, tmp_path: Path, kind: str) -> None:
    whole = tmp_path / f"whole.{kind}"
    exported(strange, whole, last=16)
    content = whole.read_bytes()
    ends = [place + 1 for place, byte in enumerate(content) if byte == 10]
    cuts = sorted(
        {
            0,
            1,
            7,
            len(content) - 1,
            len(content),
            *ends,
            *(end - 1 for end in ends),
            *(end + 9 for end in ends),
        }
    )
    selection = {"format": "onefold-log/1", "kind": kind, "log": "events", "stream": None, "category": None}
    for cut in cuts:
        file = tmp_path / f"cut-{cut}.{kind}"
        file.write_bytes(content[:cut])
        partial_file(file).write_text(json.dumps({**selection, "first": 1, "last": 16}))
        made = exported(strange, file)
        assert file.read_bytes() == content, cut
        assert (made.events, made.sha256) == (8, hashlib.sha256(content).hexdigest())
        assert not partial_file(file).exists()


def test_an_export_that_is_gone_on_with_ends_where_it_was_to_end(database_url: str, tmp_path: Path) -> None:
    deposits(database_url, "1", 1, 2, 3)
    file = tmp_path / "log.jsonl"

    def stop(*_: Any) -> bytes:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onefold.infrastructure.exporting.formats.Jsonl.write", stop)
        with pytest.raises(KeyboardInterrupt):
            exported(database_url, file)
    deposits(database_url, "2", 1)
    made = exported(database_url, file)
    assert (made.events, made.last, made.last_position) == (4, 4, 4)
    assert exported(database_url, tmp_path / "later.jsonl").events == 6


def test_parts_are_chosen_by_range_stream_and_category(
    database_url: str, other_url: str, tmp_path: Path
) -> None:
    deposits(database_url, "1", 1, 2, 3)
    deposits(database_url, "2", 1)
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(INSERT, (1, "account", "x", 1, "{}", None, None, AT))
    chosen: dict[str, dict[str, Any]] = {
        "all": {},
        "range": {"first": 2, "last": 5},
        "stream": {"stream": "account/2"},
        "category": {"category": "account"},
        "none": {"stream": "account/3"},
        "both": {"stream": "account/1", "first": 2, "last": 3},
    }
    counts = {
        name: exported(database_url, tmp_path / f"{name}.jsonl", **options).events
        for name, options in chosen.items()
    }
    assert counts == {"all": 7, "range": 4, "stream": 2, "category": 6, "none": 0, "both": 2}
    imported(other_url, tmp_path / "stream.jsonl")
    assert everything(other_url) == everything(database_url)[4:6]


def test_a_part_that_begins_in_the_middle_of_a_stream_makes_no_log(
    database_url: str, other_url: str, tmp_path: Path
) -> None:
    deposits(database_url, "1", 1, 2, 3)
    exported(database_url, tmp_path / "part.jsonl", first=2)
    with pytest.raises(
        BadExport, match="does not hold its streams from their beginning: hole in stream account/1"
    ):
        imported(other_url, tmp_path / "part.jsonl")
    assert everything(other_url) == []


def test_an_append_that_is_open_is_waited_for_and_not_skipped(database_url: str, tmp_path: Path) -> None:
    row = (1, "slow/1", "x", 1, "{}", None, None, AT)
    with psycopg.connect(database_url) as slow:
        slow.execute(INSERT, row)
        deposits(database_url, "1", 1)
        with pytest.raises(ExportStalled, match="an append in front of position 1 has been open for"):
            exported(database_url, tmp_path / "log.jsonl", patience=0.1)
        threading.Timer(0.3, slow.commit).start()
        made = exported(database_url, tmp_path / "log.jsonl")
    assert (made.events, made.first_position) == (3, 1)


def test_a_file_that_is_not_the_exports_own_is_left_alone(strange: str, tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text("mine\n")
    with pytest.raises(ExportFileError, match="which no export has begun"):
        exported(strange, file)
    assert file.read_text() == "mine\n"
    file.unlink()
    exported(strange, file)
    with pytest.raises(ExportFileError, match="found the complete export"):
        exported(strange, file)
    with pytest.raises(ExportFileError, match=r"expected jsonl or csv, found file .*log\.xml"):
        exported(strange, tmp_path / "log.xml")
    with pytest.raises(ExportFileError, match="expected jsonl or csv, found format 'xml'"):
        exported(strange, file, kind="xml")
    with pytest.raises(ExportFileError, match="cannot be written"):
        exported(strange, tmp_path / "no" / "log.csv")


def test_what_was_begun_otherwise_is_not_gone_on_with(strange: str, other_url: str, tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    content = tmp_path / "whole.jsonl"
    exported(strange, content)
    file.write_bytes(content.read_bytes()[:-50])
    selection = {
        "format": "onefold-log/1",
        "kind": "jsonl",
        "log": "events",
        "stream": None,
        "category": None,
    }
    partial_file(file).write_text(json.dumps({**selection, "first": 1, "last": 16}))
    with pytest.raises(
        ExportFileError, match="was begun as jsonl of all events of log events from position 1 to 16"
    ):
        exported(strange, file, category="thing")
    deposits(other_url, "1", *range(1, 30))
    with pytest.raises(ExportFileError, match="which the log does not have in that form"):
        exported(other_url, file)
    partial_file(file).write_text("{}")
    with pytest.raises(ExportFileError, match="expected what an export writes there: kind: Field required"):
        exported(strange, file)


@KINDS
def test_a_file_that_was_changed_is_refused(strange: str, other_url: str, tmp_path: Path, kind: str) -> None:
    file = tmp_path / f"log.{kind}"
    exported(strange, file)
    content = file.read_bytes()
    for changed in (content.replace(b"1234567890", b"1234567891", 1), content[:-2], content + b"\n", b""):
        file.write_bytes(changed)
        with pytest.raises(BadExport, match=r"is not what was exported: expected .* bytes with SHA-256"):
            imported(other_url, file)
    file.unlink()
    with pytest.raises(BadExport, match="cannot be read"):
        imported(other_url, file)
    manifest_file(file).unlink()
    with pytest.raises(BadExport, match=r"expected the manifest of the export in .*, found none$"):
        imported(other_url, file)
    partial_file(file).write_text("")
    with pytest.raises(BadExport, match="the export was not completed: run it again"):
        imported(other_url, file)
    assert everything(other_url) == []


def forged(file: Path, content: bytes) -> None:
    """Write a file whose manifest agrees with it."""
    made = json.loads(manifest_file(file).read_text())
    file.write_bytes(content)
    made |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest_file(file).write_text(json.dumps(made))


@pytest.mark.parametrize(
    ("kind", "old", "new", "words"),
    [
        ("jsonl", b'"sequence":"2"', b'"sequence":"two"', "line 2: expected an event of an export"),
        ("jsonl", b'"data":null', b'"more":null', "line 2: expected an event of an export"),
        ("jsonl", b',"data":null', b"", "line 2: expected either data or data_base64"),
        ("jsonl", b'"data_base64":"AAEC', b'"data_base64":"!AEC', "line 4: expected an event of an export"),
        ("jsonl", b'"sequence":"2"', b'"sequence":"1"', "the export contradicts itself: duplicate key"),
        ("jsonl", b'"data":null', b'"data":[1,]', "line 2: expected an event of an export"),
        ("jsonl", b'"time":"0001-', b'"time":"0001-99-', "the export contradicts itself"),
        ("jsonl", b"\n", b"\n\n", "line 2: expected an event of an export"),
        ("csv", b"position,version", b"version,position", "expected the columns position,version"),
        ("csv", b"\\x0001", b"0001", "record 4: expected an event of an export"),
        ("csv", b"\\x0001", b"\\x001", "record 4: expected an event of an export"),
        ("csv", b",2,0001", b",2,,0001", "record 2: expected an event of an export"),
        ("csv", b",[],", b',[]"",', "record 7: expected an event of an export"),
    ],
)
def test_what_is_no_export_makes_no_log(
    strange: str, other_url: str, tmp_path: Path, kind: str, old: bytes, new: bytes, words: str
) -> None:
    file = tmp_path / f"log.{kind}"
    exported(strange, file)
    content = file.read_bytes()
    assert old in content
    forged(file, content.replace(old, new, 1))
    with pytest.raises(BadExport, match=words):
        imported(other_url, file)
    assert everything(other_url) == []


def test_fewer_events_than_the_manifest_says_make_no_log(
    strange: str, other_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "log.jsonl"
    exported(strange, file)
    forged(file, b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(BadExport, match="expected 8 events, found 7"):
        imported(other_url, file)
    assert everything(other_url) == []


def test_a_database_that_has_something_already_is_refused(
    strange: str, other_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "log.jsonl"
    exported(strange, file)
    with pytest.raises(LogNotEmpty, match="expected an empty log events, found events up to position 16"):
        imported(strange, file)
    with psycopg.connect(other_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO onefold.checkpoints (projection, log, position, fingerprint) VALUES ('p', 'events', 5, '')"
        )
        with pytest.raises(LogNotEmpty, match="found checkpoints of p: they would pass over"):
            imported(other_url, file)
        connection.execute("DELETE FROM onefold.checkpoints")
        connection.execute(
            "INSERT INTO onefold.snapshots (log, stream, version, fingerprint, state)"
            " VALUES ('events', 's', 1, '', '{}')"
        )
        with pytest.raises(LogNotEmpty, match="expected no snapshots of streams of log events, found 1"):
            imported(other_url, file)
        connection.execute("DELETE FROM onefold.snapshots")
        connection.execute("SELECT onefold.create_log('onefold', 'bookings')")
    imported(other_url, file, log="bookings")
    assert everything(other_url, "bookings") == everything(strange)
    assert everything(other_url) == []


def test_an_empty_log_is_an_export_too(database_url: str, other_url: str, tmp_path: Path) -> None:
    for kind in ("jsonl", "csv"):
        made = exported(database_url, tmp_path / f"log.{kind}")
        assert (made.events, made.first_position, made.last_position) == (0, None, None)
        assert imported(other_url, tmp_path / f"log.{kind}").events == 0


def test_an_event_that_the_format_cannot_hold_is_named(database_url: str, tmp_path: Path) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(INSERT, (1, "thing/1", "", 1, "{}", None, None, AT))
        with pytest.raises(NotExportable, match=r"version 1 of thing/1 \(position 1\) has an empty type"):
            exported(database_url, tmp_path / "log.jsonl")
        assert exported(database_url, tmp_path / "log.csv").events == 1
        connection.execute(INSERT, (2, "thing/1", "x", 1, "{}", None, None, "infinity"))
        connection.execute(INSERT, (1, "thing/2", "x", 1, "{}", None, None, "0044-03-15 12:00:00+00 BC"))
    for stream in ("thing/1", "thing/2"):
        with pytest.raises(
            NotExportable, match=f"of {stream} .* has an instant outside of the years 1 to 9999"
        ):
            exported(database_url, tmp_path / f"{stream[-1]}.csv", stream=stream)

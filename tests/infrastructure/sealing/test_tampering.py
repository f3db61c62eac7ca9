"""Whatever is done to a sealed log by somebody who may do everything is found, and named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import Connection
from psycopg.types.json import Jsonb

from onefold.infrastructure.identity import new_event_id
from onefold.infrastructure.sealing.finding import Finding, Kind
from onefold.infrastructure.sealing.verifying import verify

from .conftest import append, recompute, reseal, sealed, superuser

Attack = Callable[[Connection[Any]], object]


def found(url: str, attack: Attack, **options: Any) -> list[Finding]:
    with superuser(url) as connection:
        attack(connection)
    return verify(url, **options).findings


def told(findings: list[Finding]) -> list[tuple[Any, ...]]:
    return [(each.kind.value, each.position, each.stream, each.version, each.columns) for each in findings]


def change(column: str, value: Any, position: int = 7) -> Attack:
    query = f"UPDATE onefold.events SET {column} = %s WHERE position = {position}"
    return lambda connection: connection.execute(query, (value,))  # type: ignore[arg-type]


def remove(condition: str, *, hashes: bool = False) -> Attack:
    def attack(connection: Connection[Any]) -> None:
        connection.execute(f"DELETE FROM onefold.events WHERE {condition}")  # type: ignore[arg-type]
        if hashes:
            connection.execute(f"DELETE FROM onefold.events_hashes WHERE {condition}")  # type: ignore[arg-type]

    return attack


def insert(position: int, stream: str, version: int) -> Attack:
    query = (
        "INSERT INTO onefold.events (position, version, event_id, stream, type, data)"
        " OVERRIDING SYSTEM VALUE VALUES (%s, %s, %s, %s, 'order.placed', '{}')"
    )
    return lambda connection: connection.execute(query, (position, version, new_event_id(), stream))


def test_a_log_that_nobody_touched_is_as_it_was_sealed(sealed_url: str, file: Path) -> None:
    verdict = verify(sealed_url, against=file)
    assert (verdict.events, verdict.seals, verdict.upto, verdict.unsealed) == (24, 3, 24, 0)
    assert verdict.intact


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("data", Jsonb({"amount": "99999.90"})),
        ("data", Jsonb({"amount": "32.9"})),
        ("metadata", None),
        ("metadata", Jsonb({"actor": "eve"})),
        ("occurred_at", "2026-03-01 12:30:00.000002+00"),
        ("recorded_at", "2026-03-01 12:30:00+00"),
        ("event_id", new_event_id()),
        ("schema_version", 2),
        ("type", "order.paid"),
    ],
)
def test_an_altered_column_is_named(sealed_url: str, column: str, value: Any) -> None:
    assert told(found(sealed_url, change(column, value))) == [("altered", 7, "order/3", 2, (column,))]


def test_data_that_were_made_raw_are_named(sealed_url: str) -> None:
    def attack(connection: Connection[Any]) -> None:
        connection.execute("UPDATE onefold.events SET data = NULL, raw = '\\x00' WHERE position = 7")

    assert told(found(sealed_url, attack)) == [("altered", 7, "order/3", 2, ("data", "raw"))]


def test_an_event_that_goes_by_another_name_is_named(sealed_url: str) -> None:
    (finding,) = found(sealed_url, change("stream", "order/9"))
    assert told([finding]) == [("altered", 7, "order/3", 2, ("stream",))]
    assert finding.detail == "order/9 version 2 stands there now"


@pytest.mark.parametrize("position", [1, 10, 11, 24])
def test_a_removed_event_is_named(sealed_url: str, position: int) -> None:
    number, version = (position - 1) % 4 + 1, (position - 1) // 4 + 1
    assert told(found(sealed_url, remove(f"position = {position}"))) == [
        ("removed", position, f"order/{number}", version, ())
    ]


def test_a_removed_event_is_found_too_when_its_hash_is_gone(sealed_url: str) -> None:
    findings = found(sealed_url, remove("position = 7", hashes=True))
    assert told(findings)[0] == ("removed", 7, None, None, ())
    assert all(each.kind in (Kind.REMOVED, Kind.SEAL) for each in findings)


def test_each_event_of_a_removed_stream_is_named(sealed_url: str) -> None:
    assert told(found(sealed_url, remove("stream = 'order/2'"))) == [
        ("removed", 2 + 4 * (version - 1), "order/2", version, ()) for version in range(1, 7)
    ]


def test_a_stream_that_was_removed_with_its_hashes_is_found(sealed_url: str) -> None:
    findings = found(sealed_url, remove("stream = 'order/2'", hashes=True))
    assert [each.position for each in findings if each.kind is Kind.REMOVED] == [2, 6, 10, 14, 18, 22]


@pytest.mark.parametrize("position", [0, -5])
def test_an_event_in_front_of_all_is_named(sealed_url: str, position: int) -> None:
    assert told(found(sealed_url, insert(position, "order/9", 1))) == [
        ("inserted", position, "order/9", 1, ())
    ]


def test_an_event_that_was_inserted_into_a_hole_is_named(url: str) -> None:
    with psycopg.connect(url) as connection:
        append(connection, "order/5", 1)
        connection.rollback()
    with psycopg.connect(url, autocommit=True) as connection:
        append(connection, "order/6", 1)
    assert sealed(url).upto == 26
    assert told(found(url, insert(25, "order/1", 7))) == [("inserted", 25, "order/1", 7, ())]


def swap(one: int, other: int, columns: str) -> Attack:
    """Let two events change places; with `columns` only these of them."""

    def attack(connection: Connection[Any]) -> None:
        names = ", ".join(f"e.{name}" for name in columns.split(", "))
        connection.execute("ALTER TABLE onefold.events DROP CONSTRAINT events_stream_version_key")
        connection.execute("ALTER TABLE onefold.events DROP CONSTRAINT events_event_id_key")
        connection.execute(
            f"UPDATE onefold.events t SET ({columns}) = (SELECT {names} FROM onefold.events e"  # type: ignore[arg-type]
            f" WHERE e.position = {one} + {other} - t.position) WHERE t.position IN ({one}, {other})"
        )

    return attack


ALL = "version, occurred_at, recorded_at, event_id, schema_version, stream, type, data, raw, metadata"


@pytest.mark.parametrize(("one", "other"), [(7, 8), (7, 22)])
def test_two_events_that_changed_places_are_named(sealed_url: str, one: int, other: int) -> None:
    findings = found(sealed_url, swap(one, other, ALL))
    assert [(each.kind, each.position, each.stream, each.version) for each in findings] == [
        (Kind.MOVED, each, f"order/{(each - 1) % 4 + 1}", (each - 1) // 4 + 1) for each in (one, other)
    ]
    assert findings[0].detail.endswith(f"stands there now, which was sealed at position {other}")
    assert findings[1].detail.endswith(f"stands there now, which was sealed at position {one}")


def test_two_versions_of_a_stream_that_changed_places_are_named(sealed_url: str) -> None:
    findings = found(sealed_url, swap(7, 11, ALL))
    assert [(each.kind, each.position, each.version) for each in findings] == [
        (Kind.MOVED, 7, 2),
        (Kind.MOVED, 11, 3),
    ]


def test_two_events_that_changed_what_they_say_are_named(sealed_url: str) -> None:
    assert told(found(sealed_url, swap(7, 8, "data"))) == [
        ("altered", 7, "order/3", 2, ("data",)),
        ("altered", 8, "order/4", 2, ("data",)),
    ]


def alter_and_recompute(connection: Connection[Any]) -> None:
    change("data", Jsonb({"amount": "99999.90"}))(connection)
    recompute(connection, "order/3")


def test_an_altered_event_is_named_when_the_hashes_of_its_stream_were_made_anew(sealed_url: str) -> None:
    first, *others = found(sealed_url, alter_and_recompute)
    assert told([first]) == [("altered", 7, "order/3", 2, ())]
    assert first.detail == "its hash was recomputed"
    assert [(each.kind, each.seal) for each in others] == [(Kind.SEAL, 2), (Kind.SEAL, 3)]


def test_the_marks_of_a_seal_cannot_be_changed_unseen(sealed_url: str, file: Path) -> None:
    def attack(connection: Connection[Any]) -> None:
        alter_and_recompute(connection)
        connection.execute(
            "UPDATE onefold.seals SET marks = overlay(marks PLACING '\\x00' FROM 80) WHERE number = 1"
        )

    findings = found(sealed_url, attack)
    assert (findings[0].kind, findings[0].seal, findings[0].detail) == (
        Kind.SEAL,
        1,
        "its marks were altered",
    )
    # What was handed out has the marks that were sealed.
    assert ("altered", 7, "order/3", 2, ()) in told(verify(sealed_url, against=file).findings)


@pytest.mark.parametrize(
    "attack", [change("data", Jsonb({})), remove("position = 7"), remove("stream = 'order/3'")]
)
def test_a_log_that_was_sealed_anew_is_found_by_what_was_handed_out(
    sealed_url: str, file: Path, attack: Attack
) -> None:
    def all_anew(connection: Connection[Any]) -> None:
        attack(connection)
        if "3" in {row[0][-1] for row in connection.execute("SELECT stream FROM onefold.events")}:
            # Versions without a hole, as the sealer wants them.
            connection.execute(
                "UPDATE onefold.events SET version = version - 1 WHERE stream = 'order/3' AND version > 2"
                " AND NOT EXISTS (SELECT FROM onefold.events e WHERE e.position = 7)"
            )
        reseal(connection, sealed_url)

    assert found(sealed_url, all_anew) == []
    findings = verify(sealed_url, against=file).findings
    assert 7 in {each.position for each in findings if each.kind in (Kind.ALTERED, Kind.REMOVED)}
    assert next(each.seal for each in findings if "not the one that was handed out" in each.detail) == 1


def test_the_last_events_that_were_removed_with_their_seals_are_found_by_what_was_handed_out(
    sealed_url: str, file: Path
) -> None:
    def attack(connection: Connection[Any]) -> None:
        remove("position > 20", hashes=True)(connection)
        connection.execute("DELETE FROM onefold.seals WHERE number = 3")

    assert found(sealed_url, attack) == []
    findings = verify(sealed_url, against=file).findings
    assert [each.position for each in findings if each.kind is Kind.REMOVED] == [21, 22, 23, 24]
    assert any(each.detail == "handed out, and gone from the database" for each in findings)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_removed_seal_is_found(sealed_url: str, number: int) -> None:
    findings = found(
        sealed_url, lambda c: c.execute("DELETE FROM onefold.seals WHERE number = %s", (number,))
    )
    assert any(each.kind in (Kind.SEAL, Kind.HASH) for each in findings)


@pytest.mark.parametrize(
    "assignment",
    [
        "root = sha256('x')",
        "marks_hash = sha256('x')",
        "previous = sha256('x')",
        "sealed_at = sealed_at - interval '1 day'",
        "size = size + 1",
        "events = events - 1",
        "hash = sha256('x')",
        "last_position = last_position - 1",
    ],
)
def test_an_altered_seal_is_named(sealed_url: str, assignment: str) -> None:
    query = f"UPDATE onefold.seals SET {assignment} WHERE number = 2"
    findings = found(sealed_url, lambda connection: connection.execute(query))  # type: ignore[arg-type]
    assert 2 in {each.seal for each in findings if each.kind is Kind.SEAL}


def test_altered_peaks_of_a_seal_change_nothing(sealed_url: str) -> None:
    query = "UPDATE onefold.seals SET peaks = sha256('x') || sha256('y') WHERE number = 1"
    assert found(sealed_url, lambda connection: connection.execute(query)) == []


@pytest.mark.parametrize(
    ("query", "position", "detail"),
    [
        ("UPDATE onefold.events_hashes SET hash = sha256('x') WHERE position = 7", 7, "the hash was altered"),
        ("UPDATE onefold.events_hashes SET previous = 2 WHERE position = 7", 7, "the hash was altered"),
        ("DELETE FROM onefold.events_hashes WHERE position = 7", 7, "the hash was removed"),
        (
            "INSERT INTO onefold.events_hashes SELECT 99, NULL, 1, 'x', sha256('x'), ''",
            99,
            "no seal speaks of it: seals were removed",
        ),
    ],
)
def test_what_is_done_to_the_hashes_alone_is_named(
    sealed_url: str, query: str, position: int, detail: str
) -> None:
    findings = found(sealed_url, lambda connection: connection.execute(query))  # type: ignore[arg-type]
    assert (findings[-1].kind, findings[-1].position, findings[-1].detail) == (Kind.HASH, position, detail)


def test_hashes_that_are_gone_do_not_keep_altered_events_from_being_named(sealed_url: str) -> None:
    def attack(connection: Connection[Any]) -> None:
        change("data", Jsonb({}))(connection)
        connection.execute("DROP TABLE onefold.events_hashes")

    findings = found(sealed_url, attack)
    assert [(each.position, each.stream) for each in findings if each.kind is Kind.ALTERED] == [
        (7, "order/3")
    ]


def test_a_log_without_its_guards_and_hashes_is_verified_still(sealed_url: str) -> None:
    def attack(connection: Connection[Any]) -> None:
        change("data", Jsonb({}))(connection)
        for trigger in ("refuse_change", "before_append", "after_append"):
            connection.execute(f"DROP TRIGGER {trigger} ON onefold.events")  # type: ignore[arg-type]
        connection.execute("DROP TABLE onefold.events_hashes")

    findings = found(sealed_url, attack, stream="order/3")
    assert [each.position for each in findings if each.kind is Kind.ALTERED] == [7]


def test_an_event_that_is_not_sealed_yet_and_was_removed_leaves_a_hole_in_its_stream(sealed_url: str) -> None:
    with psycopg.connect(sealed_url, autocommit=True) as connection:
        append(connection, "order/1", 7)
        append(connection, "order/1", 8)
    assert told(found(sealed_url, remove("position = 25"))) == [("removed", None, "order/1", 7, ())]
    assert verify(sealed_url).unsealed == 1


def test_a_stream_or_a_range_is_verified_alone(sealed_url: str) -> None:
    with superuser(sealed_url) as connection:
        change("data", Jsonb({}))(connection)
        change("data", Jsonb({}), position=22)(connection)
    assert [each.position for each in verify(sealed_url, stream="order/3").findings] == [7]
    assert [each.position for each in verify(sealed_url, stream="order/2").findings] == [22]
    assert verify(sealed_url, stream="order/1").intact
    assert [each.position for each in verify(sealed_url, first=1, last=9).findings] == [7]
    assert verify(sealed_url, first=11, last=20).intact
    assert [each.position for each in verify(sealed_url, first=21).findings] == [22]


def test_a_stream_of_which_nothing_is_left_is_verified_by_its_hashes(sealed_url: str) -> None:
    found(sealed_url, remove("stream = 'order/2'"))
    assert len(verify(sealed_url, stream="order/2").findings) == 6

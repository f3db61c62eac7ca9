"""Search finds what fits, all of it and nothing else, a page at a time, with indexes and without."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from onefold.domain.instant import NaiveInstant
from onefold.infrastructure.audit.field import BadField, Field, field, field_of, path_of
from onefold.infrastructure.audit.indexes import drop_indexes, list_indexes, make_indexes
from onefold.infrastructure.audit.search import BadSearch, Criteria, search

from .conftest import Onefold

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
INSERT = (
    "INSERT INTO onefold.events (version, event_id, stream, type, data, metadata, occurred_at, recorded_at)"
    " VALUES (%s, gen_random_uuid(), %s, %s, %s, %s, %s, %s)"
)
TYPES = ("order.placed", "order.paid", "account.opened")


@pytest.fixture
def events(connection: Connection) -> list[dict[str, Any]]:
    """Four hundred events, in an order of their own by each clock; what each says."""
    chance = random.Random(7)
    versions: dict[str, int] = {}
    said: list[dict[str, Any]] = []
    for number in range(400):
        stream = chance.choice(("order/1", "order/2", "order0/9", "account/1", "orders"))
        versions[stream] = versions.get(stream, 0) + 1
        event = {
            "version": versions[stream],
            "stream": stream,
            "type": chance.choice(TYPES),
            "data": {
                "customer_id": chance.choice(("c-1", "c-2", 7, "7", "7.0", None)),
                "amount": chance.choice(("24.9", "24.90", 24.9, 24, "24.91")),
                "items": [{"product": chance.choice("ab")} for _ in range(chance.randrange(3))],
                'a"b%s': chance.choice((True, False)),
            },
            "metadata": chance.choice((None, {"actor": "ada"}, {"actor": "bob", "correlation": "c-9"})),
            "occurred_at": NOON + chance.randrange(-50, 50) * HOUR,
            "recorded_at": NOON + chance.randrange(-2, 3) * HOUR + number * timedelta(minutes=1),
        }
        said.append(event)
        with connection.transaction(force_rollback=number % 9 == 0):
            connection.execute(INSERT, _row(event))
        if number % 9 == 0:
            connection.execute(INSERT, _row(event))
    positions = connection.execute("SELECT position FROM onefold.events ORDER BY position").fetchall()
    for event, (position,) in zip(said, positions, strict=True):
        event["position"] = position
    return said


def _row(event: dict[str, Any]) -> tuple[Any, ...]:
    metadata = None if event["metadata"] is None else json.dumps(event["metadata"])
    return (
        event["version"], event["stream"], event["type"], json.dumps(event["data"]), metadata, event["occurred_at"],
        event["recorded_at"],
    )  # fmt: skip


def everything(
    connection: Connection, criteria: Criteria, limit: int, newest_first: bool = False
) -> list[int]:
    """Positions on all pages, in order."""
    found: list[int] = []
    after = None
    while True:
        page = search(connection, criteria, after=after, limit=limit, newest_first=newest_first)
        assert len(page.events) == limit or page.after is None
        found += [event.position for event in page.events]
        if page.after is None:
            return found
        after = page.after


CASES: list[tuple[Criteria, Any]] = [
    (Criteria(), lambda e: True),
    (Criteria(types=("order.paid",)), lambda e: e["type"] == "order.paid"),
    (Criteria(types=("order.paid", "order.placed")), lambda e: e["type"] != "account.opened"),
    (Criteria(stream="order/2"), lambda e: e["stream"] == "order/2"),
    (Criteria(stream="order/404"), lambda e: False),
    (Criteria(category="order"), lambda e: e["stream"].startswith("order/")),
    (Criteria(since=NOON), lambda e: e["occurred_at"] >= NOON),
    (Criteria(until=NOON), lambda e: e["occurred_at"] < NOON),
    (Criteria(since=NOON, until=NOON + HOUR), lambda e: e["occurred_at"] == NOON),
    (
        Criteria(since=NOON, until=NOON + 2 * HOUR, clock="recorded"),
        lambda e: NOON <= e["recorded_at"] < NOON + 2 * HOUR,
    ),
    (Criteria(stream="order/1", since=NOON), lambda e: e["stream"] == "order/1" and e["occurred_at"] >= NOON),
    (Criteria(fields=(field_of("data.customer_id=c-1"),)), lambda e: e["data"]["customer_id"] == "c-1"),
    (
        Criteria(fields=(field_of("data.customer_id=7"),)),
        lambda e: e["data"]["customer_id"] in (7, "7", "7.0"),
    ),
    (Criteria(fields=(field_of('data.customer_id="7"'),)), lambda e: e["data"]["customer_id"] == "7"),
    (Criteria(fields=(field("data.customer_id", "7.0"),)), lambda e: e["data"]["customer_id"] == "7.0"),
    (Criteria(fields=(field_of("data.customer_id=null"),)), lambda e: e["data"]["customer_id"] is None),
    (
        Criteria(fields=(field_of("data.amount=24.9"),)),
        lambda e: e["data"]["amount"] in ("24.9", "24.90", 24.9),
    ),
    (
        Criteria(fields=(field("data.amount", Decimal("24.900")),)),
        lambda e: e["data"]["amount"] in ("24.9", "24.90", 24.9),
    ),
    (Criteria(fields=(field_of("data.amount=24"),)), lambda e: e["data"]["amount"] == 24),
    (
        Criteria(fields=(field_of("data.items[].product=a"),)),
        lambda e: {"product": "a"} in e["data"]["items"],
    ),
    (Criteria(fields=(field_of("data.items.product=a"),)), lambda e: False),
    (Criteria(fields=(field_of(r'data."a\"b%s"=true'),)), lambda e: e["data"]['a"b%s']),
    (
        Criteria(fields=(field_of("metadata.actor=ada"),)),
        lambda e: (e["metadata"] or {}).get("actor") == "ada",
    ),
    (
        Criteria(
            types=("order.paid",),
            category="order",
            since=NOON - 20 * HOUR,
            fields=(field_of("metadata.actor=bob"), field_of("data.customer_id=7")),
        ),
        lambda e: (
            e["type"] == "order.paid"
            and e["stream"].startswith("order/")
            and e["occurred_at"] >= NOON - 20 * HOUR
            and (e["metadata"] or {}).get("actor") == "bob"
            and e["data"]["customer_id"] in (7, "7", "7.0")
        ),
    ),
]


def test_every_page_has_what_fits_in_order(connection: Connection, events: list[dict[str, Any]]) -> None:
    def compare() -> None:
        for criteria, fits in CASES:
            clock = f"{criteria.clock}_at" if criteria.timed else "position"
            expected = [
                e["position"] for e in sorted(filter(fits, events), key=lambda e: (e[clock], e["position"]))
            ]
            for limit in (1_000, 7):
                assert everything(connection, criteria, limit) == expected, criteria
            assert everything(connection, criteria, 13, newest_first=True) == expected[::-1], criteria

    compare()
    assert list_indexes(connection) == []
    made = make_indexes(
        connection, fields=["data.customer_id", "data.amount", r'data."a\"b%s"'], payload=True
    )
    assert [each.of for each in made if each.of.startswith("data")].count("data") == 1
    assert len(made) == 9
    for plan in ("seqscan", "bitmapscan"):
        connection.execute(f"SET enable_{plan} = off")  # type: ignore[call-overload]
        compare()
    assert drop_indexes(connection) == made
    assert list_indexes(connection) == []
    compare()


def test_an_index_is_used_for_each_kind_of_criterion(
    connection: Connection, events: list[dict[str, Any]]
) -> None:
    made = {
        each.of: each.name for each in make_indexes(connection, fields=["data.customer_id"], payload=True)
    }
    connection.execute("SET enable_seqscan = off")
    connection.execute("ALTER TABLE onefold.events DROP CONSTRAINT events_pkey")
    used: dict[str, Criteria] = {
        "type": Criteria(types=("order.paid",)),
        "occurred_at": Criteria(since=NOON),
        "recorded_at": Criteria(since=NOON, clock="recorded"),
        "metadata.actor": Criteria(fields=(field_of("metadata.actor=ada"),)),
        "data.customer_id": Criteria(fields=(field_of("data.customer_id=7"),)),
    }
    for of, criteria in used.items():
        assert made[of] in plan_of(connection, criteria), of
    for of, found in (("metadata", "metadata.correlation=c-9"), ("data", "data.items[].product=a")):
        assert made[of] in plan_of(connection, Criteria(fields=(field_of(found),))), of


def plan_of(connection: Connection, criteria: Criteria) -> str:
    from onefold.infrastructure.audit.search import _Query

    text, values = _Query(connection, criteria, None, False, "events").composed()
    rows = connection.execute(b"EXPLAIN " + text, {**values, "limit": 10}).fetchall()
    return "\n".join(row[0] for row in rows)


def test_a_broken_index_is_made_anew_and_not_relied_upon(connection: Connection, database_url: str) -> None:
    with psycopg.connect(database_url) as blocker:
        blocker.execute("LOCK TABLE onefold.events IN ROW EXCLUSIVE MODE")
        connection.execute("SET lock_timeout = 100")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            make_indexes(connection)
    connection.execute("SET lock_timeout = 0")
    assert list_indexes(connection) == []
    assert len(make_indexes(connection)) == 5
    assert make_indexes(connection) == list_indexes(connection)


def test_a_long_value_breaks_no_append(connection: Connection) -> None:
    make_indexes(connection, fields=["data.text"], payload=True)
    text = "".join(chr(0x4E00 + number * 7 % 20_000) for number in range(20_000))
    row = (1, "thing/1", "thing.said", json.dumps({"text": text}), json.dumps({"actor": text}), NOON, NOON)
    connection.execute(INSERT, row)
    for found in (field("data.text", text), field("metadata.actor", text)):
        assert len(search(connection, Criteria(fields=(found,))).events) == 1
    assert search(connection, Criteria(fields=(field("data.text", text[:500]),))).events == ()


@pytest.mark.parametrize(
    "text",
    ["customer_id=1", "data=1", "data.=1", "data.a", "data.a b=1", 'data."a=1', "data.a[0]=1", "meta.a=1", 'data.a="x',
     "data.a\x00=1", "data.a=\x00", "data..a=1", 'data."\\u0000"=1', 'data.a="\\ud800"'],
)  # fmt: skip
def test_what_is_no_field_is_refused(text: str) -> None:
    with pytest.raises(BadField):
        field_of(text)


def test_a_path_is_shown_as_it_is_written() -> None:
    for text in ("data.a", "data.items[].b-c", r'metadata."a.b"', r'data."x\"[]"[].é'):
        assert str(path_of(text)) == text
    assert isinstance(field("data.a", True), Field)
    for value in (Decimal("NaN"), 1.5, b"x"):
        with pytest.raises(BadField):
            field("data.a", value)  # type: ignore[arg-type]


def test_what_cannot_be_searched_is_refused(connection: Connection) -> None:
    with pytest.raises(BadSearch, match="expected 1 to 10,000 events in a page, found 0"):
        search(connection, Criteria(), limit=0)
    with pytest.raises(BadSearch, match="either a stream or a category"):
        search(connection, Criteria(stream="a/1", category="a"))
    with pytest.raises(BadSearch, match="found 5, where no event is"):
        search(connection, Criteria(), after=5)
    with pytest.raises(NaiveInstant):
        search(connection, Criteria(since=NOON.replace(tzinfo=None)))
    with pytest.raises(BadField, match=r"found data.items\[\].product, which has many"):
        make_indexes(connection, fields=["data.items[].product"])


def test_the_command_shows_pages_and_names_their_order(
    onefold: Onefold, events: list[dict[str, Any]]
) -> None:
    said = onefold("search", "--type", "order.paid", "--actor", "ada", "--limit", 2, "--full")
    assert said.code == 0
    assert "@actor ada" in said.out
    first = onefold("search", "--type", "order.paid", "--actor", "ada", "--limit", 2, "--json").document
    assert first["ordered_by"] == "position"
    assert f"2 events in the order of position; more with --after {first['after']}" in said.out
    second = onefold(
        "search", "--type", "order.paid", "--actor", "ada", "--limit", 2, "--after", first["after"], "--json"
    ).document
    wanted = [
        e["position"] for e in events if e["type"] == "order.paid" and e["metadata"] == {"actor": "ada"}
    ]
    assert [event["position"] for page in (first, second) for event in page["events"]] == wanted[:4]
    timed = onefold("search", "--since", "2026-03-01T12:00:00Z", "--clock", "recorded", "--newest", "-n", 3)
    assert "3 events in the order of recorded_at" in timed.out
    fields = ("-w", "data.amount=24.9", "-w", 'data.customer_id="7"')
    where = onefold("search", *fields, "--limit", 1000, "--json").document
    assert where["after"] is None
    assert {json.dumps(event["data"]["amount"]) for event in where["events"]} <= {'"24.9"', '"24.90"', "24.9"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("search --since 2026-03-01T12:00:00", "write 2026-03-01T12:00:00Z for UTC"),
        ("search --where customer=1", "expected a field such as data.customer_id=c-1"),
        ("search --clock wall", "expected --clock occurred or recorded"),
        ("search --limit 0", "expected 1 to 10,000 events"),
        ("search --after 999", "found 999, where no event is"),
        ("search --log nothing", "expected one of the logs events"),
        ("db index-search --list --payload", "expected --list or --drop alone"),
        ("db index-search --field data", "expected a field such as"),
    ],
)
def test_wrong_use_is_told(onefold: Onefold, arguments: str, words: str) -> None:
    said = onefold(*arguments.split(" "))
    assert (said.code, said.out) == (2, "")
    assert words in said.err


def test_indexes_are_made_listed_and_removed_from_the_command_line(onefold: Onefold) -> None:
    assert "there are no indexes for searching" in onefold("db", "index-search", "--list").out
    made = onefold("db", "index-search", "--field", "data.customer_id")
    assert "metadata.actor" in made.out
    assert "indexing data.customer_id" in made.err
    listed = onefold("db", "index-search", "--list", "--json").document["indexes"]
    assert {each["of"] for each in listed} == {
        "type", "occurred_at", "recorded_at", "metadata", "metadata.actor", "data.customer_id",
    }  # fmt: skip
    assert "removed the index of type" in onefold("db", "index-search", "--drop").out
    assert onefold("db", "index-search", "--list", "--json").document["indexes"] == []

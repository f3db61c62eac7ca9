"""Read models in PostgreSQL: rows and checkpoint change together, under a lease, or not at all."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from onefold.domain.event import Event, EventMeta
from onefold.domain.registry import Registry
from onefold.infrastructure.postgres.errors import Fenced, ReadModelChanged
from onefold.infrastructure.postgres.log import EventLog
from onefold.infrastructure.postgres.pool import Pool
from onefold.infrastructure.postgres.reader import LogReader
from onefold.infrastructure.postgres.readmodel import ReadModelStore, prepare, worker_name
from onefold.infrastructure.postgres.table import Table
from onefold.projections.engine import Engine, Progress
from onefold.projections.errors import FailedEvent, ProjectionFailed, RowRefused
from onefold.projections.ports import Checkpoint
from onefold.projections.projection import AnyProjection, Handler, Projection, SqlProjection
from onefold.projections.row import Row

known = Registry()
Open = Callable[[], psycopg.Connection[Any]]


class Put(Event, name="readmodel.put", registry=known):
    amount: int = 1
    text: str = ""


class Cleared(Event, name="readmodel.cleared", registry=known):
    pass


class Other(Event, name="readmodel.other", registry=known):
    pass


class Stock(Row, key="item"):
    item: str
    amount: int = 0
    text: str | None = None


def stock(name: str = "stock", **given: Any) -> Projection[Stock]:
    made = Projection(name, Stock, registry=known, **given)

    @made.on(Put)
    def put(row: Stock | None, event: Put) -> Stock:
        row = row or Stock(item=event.meta.key)
        return row.evolve(amount=row.amount + event.amount, text=event.text)

    @made.on(Cleared)
    def cleared(row: Stock | None, event: Cleared) -> None:
        return None

    return made


class Bench:
    """Makes workers of projections, each with connections and a name of its own."""

    def __init__(self, log: EventLog, open_raw: Open, open_plain: Open) -> None:
        self.log = log
        self._open_raw, self._open_plain = open_raw, open_plain
        self._shared: list[psycopg.Connection[Any]] = []
        self._streams: dict[str, int] = {}

    def append(self, *facts: tuple[str, Event]) -> list[Event]:
        events = []
        for stream, fact in facts:
            self._streams[stream] = self._streams.get(stream, 0) + 1
            events.append(fact.bound(EventMeta(f"stock/{stream}", self._streams[stream])))
        return self.log.append(events)

    def model(self, projection: AnyProjection, owner: str = "") -> ReadModelStore:
        return self._model(projection, self._open_plain(), self._open_plain(), self._open_raw(), owner)

    def run(self, projection: AnyProjection, page: int = 3, **given: Any) -> Progress:
        """Run to the log's end as a new worker, and let go."""
        model = self._model(projection, *self._connections())
        reader = LogReader(self._shared[2], registry=known)
        try:
            return Engine(projection, reader, model, page=page, **given).run()
        finally:
            model.release()

    def run_with_crashes(
        self, projection: AnyProjection, page: int, cached_rows: int, crashes: list[tuple[str, int]]
    ) -> None:
        """Run to the log's end; a crash is before or after the n-th write of a worker, and ends that worker."""
        for crash in [*crashes, ("never", 0)]:
            model = self._model(projection, *self._connections(), owner="the same")
            crashing = Crashing(model, *crash)
            reader = LogReader(self._shared[2], registry=known)
            with contextlib.suppress(psycopg.OperationalError):
                Engine(projection, reader, crashing, page=page, cached_rows=cached_rows).run()  # type: ignore[arg-type]

    def _connections(self) -> list[psycopg.Connection[Any]]:
        if not self._shared:
            self._shared = [self._open_plain(), self._open_plain(), self._open_raw()]
        return self._shared

    def _model(
        self,
        projection: AnyProjection,
        writer: psycopg.Connection[Any],
        loader: psycopg.Connection[Any],
        reading: psycopg.Connection[Any],
        owner: str = "",
    ) -> ReadModelStore:
        prepare(writer, projection)
        reader = LogReader(reading, registry=known)
        return ReadModelStore(projection, writer, loader, reader, owner=owner or worker_name())


class Crashing:
    """A read model whose worker crashes at a chosen write, before it or when its answer is under way."""

    def __init__(self, model: ReadModelStore, when: str, nth: int) -> None:
        self._model = model
        self._when = when
        self._left = nth

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def write(self, *given: Any) -> Checkpoint:
        return self._crashing(self._model.write, *given)

    def handle(self, *given: Any) -> Checkpoint:
        return self._crashing(self._model.handle, *given)

    def _crashing(self, step: Callable[..., Checkpoint], *given: Any) -> Checkpoint:
        self._left -= 1
        if self._left == 0 and self._when == "before":
            raise psycopg.OperationalError("crash before the write")
        moved = step(*given)
        if self._left == 0 and self._when == "after":
            raise psycopg.OperationalError("crash after the write")
        return moved


@pytest.fixture
def bench(pool: Pool, open_raw: Open, open_plain: Open) -> Bench:
    return Bench(EventLog(pool, registry=known), open_raw, open_plain)


def checkpoint(connection: psycopg.Connection[Any], name: str = "stock") -> dict[str, Any]:
    with connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        found = cursor.execute("SELECT * FROM onefold.checkpoints WHERE projection = %s", (name,)).fetchone()
    assert found is not None
    return found


# --- tables and leases -----------------------------------------------------------------------------------------------


def test_several_processes_may_prepare_a_projection_at_once(
    database_url: str, connection: psycopg.Connection[Any]
) -> None:
    projection = stock()
    start = threading.Barrier(8)

    def make(_: int) -> None:
        with psycopg.connect(database_url, autocommit=True) as own:
            start.wait()
            prepare(own, projection)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(make, range(8)))
    assert checkpoint(connection)["position"] == 0
    assert Table(projection).all(connection) == []


def test_a_read_model_that_other_code_has_built_is_not_touched(
    bench: Bench, open_plain: Open, connection: psycopg.Connection[Any]
) -> None:
    bench.append(("a", Put(amount=5)))
    bench.run(stock())
    with pytest.raises(ReadModelChanged, match=r"projection stock: .*onefold rebuild stock"):
        prepare(open_plain(), stock(version=2))
    # A worker of the old code notices at its next claim that a rebuild has replaced its table.
    old = bench.model(stock())
    connection.execute("UPDATE onefold.checkpoints SET fingerprint = 'other'")
    with pytest.raises(ReadModelChanged):
        old.claim()
    assert Table(stock()).all(connection) == [Stock(item="a", amount=5, text="")]


def test_one_worker_holds_a_projection_at_a_time(bench: Bench, connection: psycopg.Connection[Any]) -> None:
    first, second = bench.model(stock(), "first"), bench.model(stock(), "second")
    assert first.claim() == Checkpoint(0, 1)
    assert second.claim() is None
    assert first.claim() == Checkpoint(0, 1)
    assert checkpoint(connection)["owner"] == "first"
    first.release()
    assert second.claim() == Checkpoint(0, 2)
    assert first.claim() is None
    # Who does not hold it cannot give it up.
    first.release()
    assert checkpoint(connection)["owner"] == "second"


def test_of_many_who_claim_at_the_same_moment_exactly_one_is_given_the_lease(bench: Bench) -> None:
    projection = stock(lease=0.1)
    models = [bench.model(projection, f"worker {number}") for number in range(8)]
    for round_ in range(1, 11):
        start = threading.Barrier(8)

        def claim(model: ReadModelStore, start: threading.Barrier = start) -> Checkpoint | None:
            start.wait()
            return model.claim()

        with ThreadPoolExecutor(8) as threads:
            claims = list(threads.map(claim, models))
        winners = [model for model, claimed in zip(models, claims, strict=True) if claimed is not None]
        assert [claimed for claimed in claims if claimed is not None] == [Checkpoint(0, round_)]
        winners[0].release()


def test_a_lease_that_ran_out_is_taken_over_and_the_old_holder_is_refused(bench: Bench) -> None:
    projection = stock(lease=0.2)
    bench.append(("a", Put(amount=5)))
    first, second = bench.model(projection, "first"), bench.model(projection, "second")
    held = first.claim()
    assert held is not None
    assert second.claim() is None
    time.sleep(0.25)
    taken = second.claim()
    assert taken == Checkpoint(0, 2)
    with pytest.raises(Fenced, match="projection stock was taken over by another worker"):
        first.write(first.pack({("a",): (1, Stock(item="a", amount=99))}), held, 1)
    with pytest.raises(Fenced):
        first.write(first.pack({}), held, 1)
    assert second.load([("a",)]) == {}
    second.write(second.pack({("a",): (1, Stock(item="a", amount=5))}), taken, 1)
    assert second.load([("a",)]) == {("a",): (1, Stock(item="a", amount=5))}
    assert first.claim() is None


def test_writing_renews_the_lease(bench: Bench) -> None:
    projection = stock(lease=0.3)
    first, second = bench.model(projection, "first"), bench.model(projection, "second")
    held = first.claim()
    assert held is not None
    for position in range(1, 7):
        time.sleep(0.1)
        held = first.write(first.pack({}), held, position)
        assert second.claim() is None
    time.sleep(0.35)
    assert second.claim() == Checkpoint(6, 2)


def test_a_checkpoint_that_was_moved_by_hand_refuses_a_write_from_where_it_was(
    bench: Bench, connection: psycopg.Connection[Any]
) -> None:
    model = bench.model(stock())
    held = model.claim()
    assert held is not None
    held = model.write(model.pack({}), held, 5)
    connection.execute("UPDATE onefold.checkpoints SET position = 2")
    with pytest.raises(Fenced):
        model.write(model.pack({("a",): (6, Stock(item="a"))}), held, 6)
    # The refusal made it look again.
    assert model.claim() == Checkpoint(2, 1)
    assert Table(stock()).all(connection) == []


def test_rows_and_checkpoint_are_written_together_or_not_at_all(
    bench: Bench, connection: psycopg.Connection[Any]
) -> None:
    model = bench.model(stock())
    held = model.claim()
    assert held is not None
    rows = {(item,): (1, Stock(item=item, text=text)) for item, text in [("a", "fine"), ("b", "a\0b")]}
    with pytest.raises(RowRefused):
        model.write(model.pack(rows), held, 1)
    assert Table(stock()).all(connection) == []
    assert checkpoint(connection)["position"] == 0


def test_a_key_that_does_not_fit_is_refused_on_loading(bench: Bench) -> None:
    model = bench.model(stock())
    with pytest.raises(RowRefused, match="row 5: field item does not fit text"):
        model.load([(5,)])
    with pytest.raises(RowRefused):
        model.load([("a\0b",)])


def test_failures_in_a_row_are_counted_until_the_checkpoint_moves(
    bench: Bench, connection: psycopg.Connection[Any]
) -> None:
    model = bench.model(stock())
    held = model.claim()
    assert held is not None
    event = FailedEvent("readmodel.put", "stock/a", 3, 2**53 + 1, "KeyError: 'ü'")
    assert [model.note_failure(event) for _ in range(3)] == [1, 2, 3]
    kept = checkpoint(connection)
    assert kept["attempts"] == 3
    assert {name: kept["failure"][name] for name in event._fields} == event._asdict()
    assert kept["failure"]["at"] is not None
    model.write(model.pack({}), held, 1)
    assert (checkpoint(connection)["attempts"], checkpoint(connection)["failure"]) == (0, None)


# --- what the database refuses ---------------------------------------------------------------------------------------


class Keyed(Row, key="uid"):
    uid: UUID
    count: int = 0


def fails_at(bench: Bench, projection: AnyProjection, page: int, reason: str, position: int = 4) -> None:
    for _ in range(2):
        with pytest.raises(ProjectionFailed, match=reason) as caught:
            bench.run(projection, page)
        assert caught.value.event.position == position


REFUSED = {
    "text with NUL": ({"text": "a\0b"}, "CharacterNotInRepertoire"),
    "half a pair of surrogates": ({"text": "\ud83d"}, "row a: field text does not fit text"),
    "a number beyond bigint": ({"amount": 2**63}, "row a: field amount does not fit bigint"),
    "a value of another type": ({"amount": 1.5}, "expected int, found float 1.5"),
    "another key": ({"item": "b"}, "row a: expected a row with this key, found one with the key b"),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("page", [1, 2, 7, 100])
def test_a_row_that_the_database_refuses_stops_the_projection_right_before_its_event(
    bench: Bench, connection: psycopg.Connection[Any], what: str, page: int
) -> None:
    changes, reason = REFUSED[what]
    projection = stock()

    def put(row: Stock | None, event: Put) -> Stock:
        row = row or Stock(item=event.meta.key)
        changed = row.evolve(amount=row.amount + 1)
        return changed.evolve(**changes) if event.text == "bad" else changed

    projection.folds[Put] = put
    good = ("a", Put())
    bench.append(good, ("b", Put()), good, ("a", Put(text="bad")), ("b", Put()), good)
    fails_at(bench, projection, page, reason)
    assert Table(projection).all(connection) == [Stock(item="a", amount=2), Stock(item="b", amount=1)]
    assert checkpoint(connection)["position"] == 3
    projection.folds[Put] = stock().folds[Put]
    bench.run(projection, page)
    assert [row.amount for row in Table(projection).all(connection)] == [4, 2]


@pytest.mark.parametrize("page", [1, 3, 100])
def test_a_fold_that_returns_no_row_stops_the_projection_right_before_its_event(
    bench: Bench, connection: psycopg.Connection[Any], page: int
) -> None:
    class Alike(Row, key="item"):
        item: str
        amount: int = 0
        text: str | None = None

    good = ("a", Put())
    bench.append(good, good, good, ("a", Put(text="bad")), good)
    for wrong, name in [(Alike(item="a"), "Alike"), ({"item": "a"}, "dict"), (True, "bool")]:
        projection = stock()
        fold = projection.folds[Put]

        def put(row: Any, event: Put, wrong: Any = wrong, fold: Any = fold) -> Any:
            return wrong if event.text == "bad" else fold(row, event)

        projection.folds[Put] = put
        fails_at(bench, projection, page, f"row a: expected Stock or None from the fold, found {name}")
        assert Table(projection).all(connection) == [Stock(item="a", amount=3, text="")]


@pytest.mark.parametrize("page", [1, 3, 100])
@pytest.mark.parametrize(
    ("bad", "reason"),
    [("no uuid", "row no uuid: field uid does not fit uuid: expected UUID, found str"), (17, "found int 17")],
)
def test_a_key_of_the_wrong_type_stops_the_projection_right_before_its_event(
    bench: Bench, connection: psycopg.Connection[Any], page: int, bad: Any, reason: str
) -> None:
    uid = uuid4()
    projection = Projection("keyed", Keyed, key=lambda e: bad if e.text == "bad" else uid, registry=known)

    @projection.on(Put)
    def put(row: Keyed | None, event: Put) -> Keyed:
        row = row or Keyed(uid=uid)
        return row.evolve(count=row.count + 1)

    good = ("a", Put())
    bench.append(good, good, good, ("a", Put(text="bad")), good)
    fails_at(bench, projection, page, reason)
    assert Table(projection).all(connection) == [Keyed(uid=uid, count=3)]


@pytest.mark.parametrize("page", [1, 100])
def test_a_key_too_long_for_an_index_stops_the_projection_right_before_its_event(
    bench: Bench, connection: psycopg.Connection[Any], page: int
) -> None:
    """PostgreSQL reports it in the class of errors that trying again may mend; it never does."""
    long = "".join(chr(0x4E00 + number * 37 % 20_000) for number in range(4_000))
    projection = Projection("stock", Stock, key=lambda e: e.text or "a", registry=known)

    @projection.on(Put)
    def put(row: Stock | None, event: Put) -> Stock:
        row = row or Stock(item=event.text or "a")
        return row.evolve(amount=row.amount + 1)

    good = ("a", Put())
    bench.append(good, good, good, ("a", Put(text=long)), good)
    fails_at(bench, projection, page, "ProgramLimitExceeded: index row")
    assert Table(projection).all(connection) == [Stock(item="a", amount=3)]


# --- handlers and statements -----------------------------------------------------------------------------------------


def ledger(name: str = "ledger", **given: Any) -> Handler:
    made = Handler(
        name,
        tables=(f"read.{name}",),
        create=f"CREATE TABLE read.{name} (position bigint PRIMARY KEY, stream text, data jsonb)",
        registry=known,
        **given,
    )

    @made.on(Put)
    def put(event: Put, connection: psycopg.Connection[Any]) -> None:
        connection.execute(
            f"INSERT INTO read.{name} VALUES (%s, %s, %s)".encode(),
            (event.meta.position, event.meta.stream, Jsonb(event.model_dump())),
        )

    return made


def entries(connection: psycopg.Connection[Any], name: str = "ledger") -> list[int]:
    found = connection.execute(f"SELECT position FROM read.{name} ORDER BY position".encode()).fetchall()
    return [position for (position,) in found]


@pytest.mark.parametrize("page", [1, 2, 100])
def test_a_handler_writes_in_the_transaction_that_moves_the_checkpoint(
    bench: Bench, connection: psycopg.Connection[Any], page: int
) -> None:
    bench.append(("a", Put()), ("a", Other()), ("b", Put()), ("b", Cleared()), ("a", Put()))
    progress = bench.run(ledger(), page)
    assert entries(connection) == [1, 3, 5]
    assert (progress.applied, progress.read, progress.position) == (3, 5, 5)
    assert bench.run(ledger(), page).applied == 0
    assert entries(connection) == [1, 3, 5]


def swallow(connection: psycopg.Connection[Any]) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        connection.execute("SELECT 1 / 0")


BREAKS: dict[str, tuple[Callable[[psycopg.Connection[Any]], Any], str]] = {
    "raises": (lambda _: 1 / 0, "ZeroDivisionError: division by zero"),
    "violates a constraint": (
        lambda c: c.execute("INSERT INTO read.ledger SELECT * FROM read.ledger"),
        "UniqueViolation",
    ),
    "sends what is no SQL": (lambda c: c.execute("SELEC 1"), "SyntaxError"),
    "divides by zero in the database": (lambda c: c.execute("SELECT 1 / 0"), "DivisionByZero"),
    "swallows an error": (
        swallow,
        "BrokenTransaction: expected the transaction to be open after the handler",
    ),
    "commits": (lambda c: c.commit(), "ProgrammingError"),
    "commits by hand": (lambda c: c.execute("ROLLBACK"), "BrokenTransaction"),
}


@pytest.mark.parametrize("how", BREAKS)
@pytest.mark.parametrize("page", [1, 2, 100])
def test_a_handler_that_fails_takes_back_its_page_and_stops_right_before_its_event(
    bench: Bench, connection: psycopg.Connection[Any], page: int, how: str
) -> None:
    action, reason = BREAKS[how]
    projection, mended = ledger(), ledger()
    fine = projection.handlers[Put]

    def put(event: Put, own: psycopg.Connection[Any]) -> None:
        fine(event, own)
        if event.text == "bad":
            action(own)

    projection.handlers[Put] = put
    good = ("a", Put())
    bench.append(good, good, ("b", Other()), ("a", Put(text="bad")), good)
    fails_at(bench, projection, page, reason)
    assert entries(connection) == [1, 2]
    assert checkpoint(connection, "ledger")["position"] == 3
    bench.run(mended, page)
    assert entries(connection) == [1, 2, 4, 5]


def test_a_handler_may_roll_back_to_a_savepoint_of_its_own(
    bench: Bench, connection: psycopg.Connection[Any]
) -> None:
    projection = ledger()
    fine = projection.handlers[Put]

    def put(event: Put, own: psycopg.Connection[Any]) -> None:
        fine(event, own)
        with pytest.raises(psycopg.errors.DivisionByZero), own.transaction():
            own.execute("SELECT 1 / 0")

    projection.handlers[Put] = put
    bench.append(("a", Put()), ("a", Put()))
    bench.run(projection)
    assert entries(connection) == [1, 2]


def test_an_event_that_cannot_be_decoded_stops_a_handler_right_before_it(
    bench: Bench, connection: psycopg.Connection[Any]
) -> None:
    bench.append(("a", Put()), ("a", Put()))
    connection.execute(
        "INSERT INTO onefold.events (stream, version, type, schema_version, event_id, data) VALUES "
        "('stock/a', 3, 'readmodel.put', 1, gen_random_uuid(), '{\"amount\": \"many\"}')"
    )
    fails_at(bench, ledger(), 100, "UndecodableEvent: data of event 'readmodel.put' .* amount", position=3)
    assert entries(connection) == [1, 2]


@pytest.mark.parametrize("page", [1, 3, 100])
def test_an_event_of_a_schema_version_nobody_knows_stops_right_before_it(
    bench: Bench, connection: psycopg.Connection[Any], page: int
) -> None:
    bench.append(("a", Put(amount=2)), ("b", Put(amount=3)))
    connection.execute(
        "INSERT INTO onefold.events (stream, version, type, schema_version, event_id, data) VALUES "
        "('stock/a', 2, 'readmodel.put', 9, gen_random_uuid(), '{}'), "
        "('stock/a', 3, 'nobody.knows', 1, gen_random_uuid(), '{}')"
    )
    reason = (
        r"UnknownEventType: no event class is registered for type 'readmodel\.put' schema version 9 "
        r"\(stream stock/a, version 2, position 3\)"
    )
    fails_at(bench, stock(), page, reason, position=3)
    fails_at(bench, ledger(), page, reason, position=3)
    assert [row.amount for row in Table(stock()).all(connection)] == [2, 3]


def test_a_type_that_nobody_knows_is_passed_over_only_where_that_is_declared(
    bench: Bench, connection: psycopg.Connection[Any]
) -> None:
    connection.execute(
        "INSERT INTO onefold.events (stream, version, type, event_id, raw) VALUES "
        "('stock/a', 1, 'nobody.knows', gen_random_uuid(), '\\x00')"
    )
    with pytest.raises(ProjectionFailed, match=r"'nobody\.knows' .*version 1, position 1"):
        bench.run(stock())
    assert bench.run(stock(unknown="pass")).position == 1


SHARES = """
    INSERT INTO read.shares SELECT position, 100 / (data ->> 'amount')::bigint FROM onefold.events
    WHERE position > %(after)s AND position <= %(upto)s AND type = 'readmodel.put'
"""


def shares(**given: Any) -> SqlProjection:
    return SqlProjection(
        "shares",
        tables=("read.shares",),
        create="CREATE TABLE read.shares (position bigint PRIMARY KEY, share bigint)",
        statements=[SHARES],
        events=[Put],
        registry=known,
        **given,
    )


@pytest.mark.parametrize("page", [1, 2, 100])
def test_a_statement_that_fails_takes_back_its_page_and_stops_right_before_its_event(
    bench: Bench, connection: psycopg.Connection[Any], page: int
) -> None:
    amounts = [1, 2, 4, 0, 5]
    bench.append(*(("a", Put(amount=amount)) for amount in amounts))
    fails_at(bench, shares(), page, "DivisionByZero")
    assert entries(connection, "shares") == [1, 2, 3]
    assert checkpoint(connection, "shares")["position"] == 3


@pytest.mark.parametrize("make", [stock, ledger, shares])
def test_a_table_that_is_gone_is_reported_and_not_tried_for_ever(
    bench: Bench, connection: psycopg.Connection[Any], make: Callable[[], AnyProjection]
) -> None:
    projection = make()
    bench.append(("a", Put()))
    bench.run(projection)
    connection.execute(f"DROP TABLE read.{projection.name}".encode())
    bench.append(("a", Put()))
    with pytest.raises(
        ProjectionFailed, match=f'UndefinedTable: relation "read.{projection.name}" does not exist'
    ):
        bench.run(projection)


# --- everything at once ----------------------------------------------------------------------------------------------

facts = st.one_of(
    st.builds(Put, amount=st.integers(1, 9)),
    st.builds(Put, amount=st.integers(1, 9)),
    st.just(Cleared()),
    st.just(Other()),
)
histories = st.lists(st.tuples(st.sampled_from("abc"), facts), max_size=20)
ways = st.tuples(st.integers(1, 12), st.sampled_from([0, 1, 1000]))


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(history=histories, cuts=st.lists(st.tuples(st.integers(0, 8), ways), min_size=1, max_size=4))
def test_any_pages_and_caches_give_the_rows_of_a_plain_fold(
    bench: Bench,
    connection: psycopg.Connection[Any],
    history: list[tuple[str, Event]],
    cuts: list[tuple[int, tuple[int, int]]],
) -> None:
    """Three kinds of projection follow a log that goes on growing; each run is by another worker."""
    number = len(bench._streams)
    named = [(f"{stream}{number}", fact) for stream, fact in history]
    left = list(named)
    for count, (page, cached_rows) in [*cuts, (len(named), cuts[-1][1])]:
        if left[:count]:
            bench.append(*left[:count])
        del left[:count]
        for projection in (stock(), ledger(), shares()):
            bench.run(projection, page, cached_rows=cached_rows)
    require_rows_of_a_plain_fold(bench, connection)


crash_points = st.lists(
    st.tuples(st.sampled_from(["before", "after"]), st.integers(1, 4)), min_size=1, max_size=4
)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(history=histories.filter(bool), way=ways, crashes=crash_points)
def test_any_crashes_give_the_rows_of_a_plain_fold(
    bench: Bench,
    connection: psycopg.Connection[Any],
    history: list[tuple[str, Event]],
    way: tuple[int, int],
    crashes: list[tuple[str, int]],
) -> None:
    number = len(bench._streams)
    bench.append(*((f"{stream}{number}", fact) for stream, fact in history))
    for projection in (stock(), ledger(), shares()):
        bench.run_with_crashes(projection, *way, crashes)
    require_rows_of_a_plain_fold(bench, connection)


def require_rows_of_a_plain_fold(bench: Bench, connection: psycopg.Connection[Any]) -> None:
    events = [event for stream in bench._streams for event in bench.log.load(f"stock/{stream}")]
    events.sort(key=lambda event: event.meta.position)
    assert Table(stock()).all(connection) == sorted(stock().fold(events).values(), key=lambda row: row.item)
    puts = [event.meta.position for event in events if isinstance(event, Put)]
    assert entries(connection) == entries(connection, "shares") == puts


@pytest.mark.parametrize(
    ("what", "stored", "token", "upto", "may"),
    [
        ("forward from what was read", 3, 1, 9, True),
        ("to where it stands", 3, 1, 3, True),
        ("backward", 3, 1, 2, False),
        ("someone else went on", 5, 1, 9, False),
        ("someone set it back", 1, 1, 9, False),
        ("someone else is where this one wants to go", 9, 1, 9, False),
        ("someone else took it over and has not moved it", 3, 2, 9, False),
    ],
)
def test_a_checkpoint_moves_forward_and_only_from_where_its_worker_left_it(
    connection: psycopg.Connection[Any], what: str, stored: int, token: int, upto: int, may: bool
) -> None:
    connection.execute(
        "INSERT INTO onefold.checkpoints (projection, fingerprint, position, token) VALUES ('fence', '', %s, %s)",
        (stored, token),
    )
    move = "SELECT onefold.move_checkpoint('fence', 0, 3, 1, %s, 5)"
    if may:
        connection.execute(move, (upto,))
    else:
        with pytest.raises(psycopg.DatabaseError) as refused:
            connection.execute(move, (upto,))
        assert refused.value.sqlstate == "OF001", what
    found = connection.execute("SELECT position FROM onefold.checkpoints").fetchone()
    assert found == (upto if may else stored,), what

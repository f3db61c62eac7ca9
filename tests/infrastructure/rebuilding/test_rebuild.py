"""Rebuilds beside the serving table: what they build, whom they refuse, and where they go on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from onefold.domain.event import Event
from onefold.domain.registry import Registry
from onefold.infrastructure.postgres.errors import Fenced, ReadModelChanged, ReadModelReplaced
from onefold.infrastructure.rebuilding import loading, verifying
from onefold.infrastructure.rebuilding.errors import (
    RebuildBlocked,
    RebuildRefused,
    RebuildRunning,
    SwapBlocked,
    VerificationFailed,
)
from onefold.infrastructure.rebuilding.rebuild import Rebuild, take_lock
from onefold.infrastructure.rebuilding.report import Report, Step
from onefold.infrastructure.worker import Worker
from onefold.projections.errors import ProjectionFailed
from onefold.projections.projection import Handler, Projection, SqlProjection
from onefold.projections.row import Row

from .warehouse import Cleared, Put, Shop, Stock, known, running, shelves, stock, until


def rebuild(shop: Shop, projection: Any, **given: Any) -> Report:
    return Rebuild(shop.url, projection, **given).run()


# --- what is built ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [1, 7, 20_000])
@pytest.mark.parametrize("make", [stock, shelves])
def test_a_rebuild_equals_a_fresh_fold_byte_for_byte(
    shop: Shop, make: Callable[..., Projection[Any]], page: int
) -> None:
    projection = make()
    shop.fill(300, 37)
    Worker(shop.url, projection).run_once()
    shop.fill(50, 37)
    shop.put("late", shelf="none")
    done = rebuild(shop, projection, page=page, verify="full")
    expected = shop.fresh(make())
    assert shop.dump(projection.name) == expected
    assert done.rows == done.verified == len(expected)
    assert done.swapped
    assert done.position == shop.position(projection.name) == 351
    assert shop.versions(projection.name).keys() == {0, -2}
    # The old version is kept as it was left.
    assert len(shop.dump(projection.name, "read_before")) > 0
    assert shop.position(projection.name, -2) == 300


def test_a_damaged_table_is_right_again_and_the_damaged_one_is_kept(shop: Shop) -> None:
    shop.fill(100, 9)
    Worker(shop.url, stock()).run_once()
    right = shop.dump()
    shop.connection.execute("UPDATE read.stock SET amount = 99")
    rebuild(shop, stock())
    assert shop.dump() == right
    assert shop.dump(schema="read_before") != right


def test_a_projection_that_never_ran_and_one_whose_table_is_gone_can_be_rebuilt(shop: Shop) -> None:
    shop.put("a", "b")
    assert rebuild(shop, stock()).rows == 2
    shop.connection.execute("DROP TABLE read.stock")
    assert rebuild(shop, stock()).rows == 2
    assert rebuild(shop, stock()).rows == 2


def test_an_empty_log_gives_an_empty_table(shop: Shop) -> None:
    done = rebuild(shop, stock(), verify="full")
    assert (done.rows, done.position, done.swapped) == (0, 0, True)
    shop.put("a")
    assert Worker(shop.url, stock()).run_once().applied == 1


def test_streams_of_several_categories_that_lead_to_one_row_are_folded_in_the_order_of_the_log(
    shop: Shop,
) -> None:
    for number in range(40):
        shop.put(f"{('stock', 'spare')[number % 2]}/a", amount=number, shelf=str(number))
    shop.put("bare")
    rebuild(shop, stock(), page=7, verify="full")
    assert shop.dump() == shop.fresh(stock())
    assert len(shop.dump()) == 2


def test_streams_of_other_categories_without_events_of_the_projection_do_not_matter(shop: Shop) -> None:
    class Noise(Event, name="rebuild.noise", registry=known):
        pass

    for number in range(30):
        shop.put(f"stock/{number}")
        shop.append(
            (f"noise/{number}", Noise()), (f"stock-{number}/1", Noise()), (f"stock/{number}", Noise())
        )
    done = rebuild(shop, stock(), page=4, verify="full")
    assert (done.applied, done.rows) == (30, 30)
    assert shop.dump() == shop.fresh(stock())


def test_more_rows_than_fit_into_memory_are_written_by_the_engine(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "ROWS_IN_MEMORY", 5)
    monkeypatch.setattr(verifying, "ROWS_AT_ONCE", 2)
    shop.fill(400, 37)
    rebuild(shop, shelves(), page=10, verify="full")
    assert shop.dump("shelves") == shop.fresh(shelves())


def test_a_changed_row_model_serves_after_the_rebuild_and_the_old_code_until_then(shop: Shop) -> None:
    class Wider(Row, key="item"):
        item: str
        amount: int = 0
        largest: int = 0

    wider = Projection("stock", Wider, registry=known)

    @wider.on(Put)
    def put(row: Wider | None, event: Put) -> Wider:
        row = row or Wider(item=event.meta.key)
        return row.evolve(amount=row.amount + event.amount, largest=max(row.largest, event.amount))

    shop.put("a", "b", amount=5)
    with running(shop.url, stock()) as old:
        shop.reached(2)
        with pytest.raises(ReadModelChanged, match="run `onefold rebuild stock`"):
            Worker(shop.url, wider).run_once()
        # The old code goes on while the new version is built.
        done = Rebuild(
            shop.url, wider, on_step=lambda step: shop.put("a") if step.phase == "finish" else None
        ).run()
        assert done.swapped
        shop.put("a", amount=7)
        with pytest.raises(ReadModelReplaced, match="put another one in its place; this worker ends"):
            old.result(20)
    assert Worker(shop.url, wider).run_once().applied == 1
    assert shop.all("SELECT item, amount, largest FROM read.stock ORDER BY 1") == [("a", 13, 7), ("b", 5, 5)]


def test_a_worker_of_the_same_code_goes_on_with_the_new_table(shop: Shop) -> None:
    shop.fill(100, 10)
    with running(shop.url, stock(lease=0.4)) as worker:
        shop.reached(100)
        assert rebuild(shop, stock()).swapped
        shop.reached(shop.fill(10, 10))
        assert not worker.done()
    assert shop.dump() == shop.fresh(stock())


# --- up to a position, and what is refused ---------------------------------------------------------------------------


def test_a_version_as_of_a_position_is_left_beside_and_can_be_brought_up_and_swapped(shop: Shop) -> None:
    shop.fill(100, 10)
    Worker(shop.url, stock()).run_once()
    serving = shop.dump()
    done = rebuild(shop, stock(), upto=40, verify="full")
    assert (done.swapped, done.position) == (False, 40)
    assert shop.dump() == serving
    assert len(shop.dump(schema="read_next")) == done.rows > 0
    assert shop.all("SELECT max(_position) <= 40 FROM read_next.stock") == [(True,)]
    with pytest.raises(RebuildRefused, match="expected a position up to 100"):
        rebuild(shop, stock(), upto=101)
    rebuild(shop, stock(), upto=40)
    done = rebuild(shop, stock(), resume=True)
    assert (done.swapped, done.resumed, done.position) == (True, True, 100)
    assert shop.dump() == serving


@pytest.mark.parametrize(
    "projection",
    [
        Handler("entries", registry=known),
        SqlProjection("sums", tables=["read.sums"], create="", statements=[], registry=known),
    ],
)
def test_projections_with_statements_of_their_own_are_refused_with_the_reason(projection: Any) -> None:
    with pytest.raises(RebuildRefused, match=r"statements name the tables .* --in-place"):
        Rebuild("", projection)


def test_one_rebuild_at_a_time(shop: Shop) -> None:
    shop.put("a")
    with psycopg.connect(shop.url, autocommit=True) as other:
        take_lock(other, "stock")
        with pytest.raises(RebuildRunning, match=f"server process {other.info.backend_pid}"):
            rebuild(shop, stock())
    until(lambda: not shop.all("SELECT 1 FROM pg_locks WHERE locktype = 'advisory'"))
    assert rebuild(shop, stock()).swapped


def test_an_event_that_cannot_be_applied_is_named_and_the_old_version_serves_on(shop: Shop) -> None:
    def unlucky(event: Put) -> None:
        if event.amount == 13:
            raise ValueError("13")

    shop.put("a", "b")
    Worker(shop.url, stock()).run_once()
    serving = shop.dump()
    shop.put("b", amount=13)
    with pytest.raises(
        ProjectionFailed, match=r"stream stock/b, version 2, position 3\).*serves is as it was"
    ) as failed:
        rebuild(shop, stock(unlucky))
    assert isinstance(failed.value.__cause__, ValueError)
    assert shop.dump() == serving
    assert "position 3" in shop.all("SELECT failure FROM onefold.rebuilds")[0][0]
    assert shop.all("SELECT attempts FROM onefold.checkpoints WHERE segment = 0") == [(0,)]
    # The fold is mended.
    assert rebuild(shop, stock()).swapped


def test_an_event_of_the_tail_that_cannot_be_applied_is_named_too(shop: Shop) -> None:
    def unlucky(event: Put) -> None:
        if event.amount == 13:
            raise ValueError("13")

    shop.put("a", "b")

    def late(step: Step) -> None:
        if step.phase == "finish":
            shop.put("b", amount=13)

    with pytest.raises(ProjectionFailed, match=r"position 3\).*serves is as it was"):
        rebuild(shop, stock(unlucky), on_step=late)


def test_an_unknown_type_is_named_before_anything_is_built(shop: Shop) -> None:
    elsewhere = Registry()

    class Strange(Event, name="rebuild.strange", registry=elsewhere):
        pass

    shop.put("a")
    shop.append(("a", Strange()), ("b", Strange()))
    with pytest.raises(ProjectionFailed, match=r"rebuild.strange \(stream stock/a, version 2, position 2\)"):
        rebuild(shop, stock())
    assert rebuild(shop, stock(unknown="pass")).rows == 1


@pytest.mark.parametrize("make", [stock, shelves])
def test_a_row_that_a_column_refuses_is_found_among_many(
    shop: Shop, make: Callable[..., Projection[Any]]
) -> None:
    projection = make()
    shop.fill(60, 20)
    position = shop.put("bad", shelf="bad", amount=2**63 if make is stock else 1)
    if make is shelves:

        @projection.on(Cleared)
        def cleared(row: Any, event: Cleared) -> None:
            return None

        projection.folds[Put] = lambda row, event: (
            projection.row(shelf=event.shelf, amount=event.amount % 3, count=2**63)
            if event.shelf == "bad"
            else None
        )
        projection.key = lambda event: (event.shelf, event.amount % 3) if isinstance(event, Put) else None
    with pytest.raises(ProjectionFailed, match=rf"stream stock/bad, version 1, position {position}\)"):
        rebuild(shop, projection)


def test_a_fold_that_is_not_pure_is_found_by_the_verification(shop: Shop) -> None:
    seen: list[int] = []
    impure = Projection("stock", Stock, registry=known)

    @impure.on(Put)
    def put(row: Stock | None, event: Put) -> Stock:
        seen.append(1)
        return Stock(item=event.meta.key, amount=len(seen))

    shop.fill(20, 5)
    Worker(shop.url, stock()).run_once()
    serving = shop.dump()
    for extent in ("sample", "full"):
        with pytest.raises(VerificationFailed, match=r"i0000.: expected Stock"):
            rebuild(shop, impure, verify=extent)
    assert shop.dump() == serving


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE read_next.stock SET amount = amount + 1 WHERE item = 'i00003'",
        "DELETE FROM read_next.stock WHERE item = 'i00003'",
        "INSERT INTO read_next.stock SELECT 'surplus', amount, price, shelves, _position FROM read_next.stock LIMIT 1",
    ],
)
def test_a_full_verification_finds_one_wrong_one_missing_and_one_surplus_row(shop: Shop, damage: str) -> None:
    shop.fill(100, 10)

    def spoil(step: Step) -> None:
        if step.phase == "verify" and step.done == 0:
            with contextlib.suppress(psycopg.errors.UniqueViolation):
                shop.connection.execute(damage.encode())

    with pytest.raises(VerificationFailed, match=r"i00003|no event of the log"):
        rebuild(shop, stock(), verify="full", on_step=spoil)


# --- broken off, and resumed -----------------------------------------------------------------------------------------


class Broken(Exception):
    """Ends a rebuild at a chosen step."""


@pytest.mark.parametrize("make", [stock, shelves])
@pytest.mark.parametrize("phase", ["load", "finish", "follow", "verify", "swap"])
def test_a_rebuild_that_was_broken_off_goes_on_or_begins_anew(
    shop: Shop, make: Callable[..., Projection[Any]], phase: str
) -> None:
    name = make().name
    shop.fill(200, 20)
    Worker(shop.url, make()).run_once()
    serving = shop.dump(name)

    def at(step: Step) -> None:
        if step.phase == phase and (phase != "load" or step.done > 80):
            raise Broken

    for resume in (False, True, False):
        with pytest.raises(Broken):
            Rebuild(shop.url, make(), page=20, resume=resume, on_step=at).run()
        assert shop.dump(name) == serving
        assert shop.position(name) == 200
    shop.fill(30, 20)
    done = rebuild(shop, make(), resume=True, page=20, verify="full")
    assert (done.resumed, done.position) == (True, 230)
    assert shop.dump(name) == shop.fresh(make())


def test_a_rebuild_that_is_stopped_goes_on_where_it_was(shop: Shop) -> None:
    shop.fill(200, 20)
    seen: list[Step] = []

    def look(step: Step) -> None:
        seen.append(step)
        if step.done >= 60:
            first.stop()

    first = Rebuild(shop.url, stock(), page=20, on_step=look)
    assert not first.run().swapped
    seen.clear()
    done = rebuild(shop, stock(), page=20, resume=True, on_step=seen.append)
    assert done.swapped
    assert seen[0].done >= 60
    assert shop.dump() == shop.fresh(stock())


def test_a_rebuild_of_another_version_does_not_go_on_with_what_is_there(shop: Shop) -> None:
    shop.fill(50, 5)
    rebuild(shop, stock(), upto=30)
    assert not rebuild(shop, stock(version=2), resume=True).resumed
    assert shop.dump() == shop.fresh(stock())


def test_a_rebuild_that_hung_and_was_replaced_writes_nothing_any_more(shop: Shop) -> None:
    shop.fill(200, 20)
    once: list[int] = []

    def replaced(step: Step) -> None:
        if step.phase == "load" and step.done >= 60 and not once:
            once.append(1)
            shop.connection.execute("UPDATE onefold.checkpoints SET token = token + 1 WHERE segment = -1")

    with pytest.raises(Fenced):
        rebuild(shop, stock(), page=20, on_step=replaced)
    assert rebuild(shop, stock(), page=20).swapped
    assert shop.dump() == shop.fresh(stock())


def test_an_append_that_is_open_is_waited_for_and_not_lost(
    shop: Shop, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onefold.infrastructure.rebuilding import rebuild as module

    monkeypatch.setattr(module, "OPEN_APPENDS", 0.3)
    shop.put("a")
    with psycopg.connect(database_url) as other:
        shop.append(("b", Put(amount=7)), connection=other)
        shop.put("c")
        done = rebuild(shop, stock(), verify="full")
        assert (done.rows, done.position) == (1, 1)
        other.commit()
    Worker(shop.url, stock()).run_once()
    assert shop.dump() == shop.fresh(stock())
    assert len(shop.dump()) == 3


def test_a_table_in_use_for_long_is_named_and_the_version_waits(shop: Shop) -> None:
    shop.fill(50, 5)
    Worker(shop.url, stock()).run_once()
    with psycopg.connect(shop.url, application_name="report") as reader:
        reader.execute("SELECT FROM read.stock")
        with pytest.raises(SwapBlocked, match=r"pid \d+ \(report\).*--resume"):
            rebuild(shop, stock(), patience=0.5)
    assert rebuild(shop, stock(), resume=True).resumed
    assert shop.versions().keys() == {0, -2}


def test_a_version_that_is_there_already_is_replaced_by_the_one_that_served(shop: Shop) -> None:
    for items in (3, 5, 7):
        shop.fill(30, items)
        rebuild(shop, stock())
    assert shop.position(segment=-2) == 60
    shop.connection.execute("CREATE MATERIALIZED VIEW m AS SELECT item FROM read.stock")
    with pytest.raises(RebuildBlocked, match="materialized view"):
        rebuild(shop, stock())

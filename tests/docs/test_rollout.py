"""Rolling out a new version of an event goes as the page on events says: readers first, and nothing is skipped."""

from __future__ import annotations

from typing import Any

import pytest

from onefold import App, Event, EventMeta, Projection, ProjectionFailed, Registry, Row, SqlProjection, connect
from onefold.domain.errors import UndecodableEvent, UnknownEventType
from onefold.infrastructure.postgres.errors import ReadModelChanged
from onefold.infrastructure.postgres.log import EventLog
from onefold.infrastructure.worker import Worker

OLD, NEW, GROWN = Registry(), Registry(), Registry()


class OldSold(Event, name="stall.sold", registry=OLD):
    qty: int


class NewSold(Event, name="stall.sold", version=2, registry=NEW):
    quantity: int


class GrownSold(Event, name="stall.sold", registry=GROWN):
    qty: int
    seller: str = ""


@NEW.upcast("stall.sold", 1)
def renamed(data: dict[str, Any]) -> dict[str, Any]:
    return {"quantity": data["qty"]}


class Sold(Row, key="stall"):
    stall: str
    total: int = 0


def totals(event_class: type[Event], registry: Registry) -> Projection[Sold]:
    """The projection as the release with this event class has it."""
    projection = Projection("totals", Sold, registry=registry)

    @projection.on(event_class)
    def sold(row: Sold | None, event: Any) -> Sold:
        known = row or Sold(stall=event.meta.key)
        return known.evolve(total=known.total + getattr(event, "quantity", getattr(event, "qty", 0)))

    return projection


def sums(event_class: type[Event], registry: Registry, amount: str) -> SqlProjection:
    return SqlProjection(
        "sums",
        registry=registry,
        events=[event_class],
        tables=["read.sums"],
        create="CREATE TABLE read.sums (stream text PRIMARY KEY, total bigint)",
        statements=[
            f"""
            INSERT INTO read.sums AS s SELECT stream, sum(({amount})::bigint) FROM onefold.events
            WHERE position > %(after)s AND position <= %(upto)s AND type = 'stall.sold' GROUP BY 1
            ON CONFLICT (stream) DO UPDATE SET total = s.total + excluded.total
            """
        ],
    )


def append(database_url: str, stream: str, event: Event, version: int) -> None:
    with connect(App(), database_url) as store:
        store.log.append([event.bound(EventMeta(stream, version))])


@pytest.mark.parametrize(
    ("written", "total", "error"),
    [(NewSold(quantity=5), 7, "UnknownEventType"), (GrownSold(qty=5, seller="ana"), 7, "UndecodableEvent")],
    ids=["a new version", "a new field"],
)
def test_an_old_worker_stops_before_what_a_new_writer_wrote_and_a_new_worker_goes_on(
    database_url: str, written: Event, total: int, error: str
) -> None:
    append(database_url, "stall/1", OldSold(qty=2), 1)
    append(database_url, "stall/1", written, 2)
    with pytest.raises(ProjectionFailed, match=error) as failed:
        Worker(database_url, totals(OldSold, OLD)).run_once()
    assert failed.value.event.version == 2
    new = totals(NewSold, NEW) if isinstance(written, NewSold) else totals(GrownSold, GROWN)
    assert Worker(database_url, new).run_once().applied == 1
    with connect(App(projections=[new]), database_url) as store:
        assert store.rows(new) == [Sold(stall="1", total=total)]


def test_a_new_worker_reads_what_old_writers_still_write(database_url: str) -> None:
    new = totals(NewSold, NEW)
    append(database_url, "stall/1", NewSold(quantity=5), 1)
    assert Worker(database_url, new).run_once().applied == 1
    append(database_url, "stall/1", OldSold(qty=2), 2)
    assert Worker(database_url, new).run_once().applied == 1
    with connect(App(projections=[new]), database_url) as store:
        assert store.rows(new) == [Sold(stall="1", total=7)]


def test_statements_over_stored_data_ask_for_a_rebuild_when_the_version_of_their_event_has_changed(
    database_url: str,
) -> None:
    append(database_url, "stall/1", OldSold(qty=2), 1)
    Worker(database_url, sums(OldSold, OLD, "data ->> 'qty'")).run_once()
    append(database_url, "stall/1", NewSold(quantity=5), 2)
    both = "coalesce(data ->> 'quantity', data ->> 'qty')"
    # The same statements and another schema version: nothing else tells that they may be wrong.
    with pytest.raises(ReadModelChanged):
        Worker(database_url, sums(NewSold, NEW, "data ->> 'qty'")).run_once()
    new = sums(NewSold, NEW, both)
    with pytest.raises(ReadModelChanged):
        Worker(database_url, new).run_once()
    assert Worker(database_url, new).rebuild().applied == 2
    with connect(App(projections=[new]), database_url) as store, store.pool.connection() as connection:
        assert connection.execute("SELECT * FROM read.sums").fetchall() == [("stall/1", 7)]


def test_an_old_process_that_loads_a_stream_with_a_new_event_gets_an_error(database_url: str) -> None:
    append(database_url, "stall/1", NewSold(quantity=5), 1)
    append(database_url, "stall/2", GrownSold(qty=5), 1)
    with connect(App(), database_url) as store:
        old = EventLog(store.pool, registry=OLD)
        with pytest.raises(UnknownEventType, match="schema version 2"):
            list(old.load("stall/1"))
        with pytest.raises(UndecodableEvent, match="seller"):
            list(old.load("stall/2"))

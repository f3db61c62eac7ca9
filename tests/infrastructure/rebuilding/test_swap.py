"""The swap: nobody sees a missing, a partial or an older row, nobody waits long, and there is a way back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from onefold.infrastructure.postgres.errors import ReadModelChanged
from onefold.infrastructure.rebuilding.errors import NoOtherVersion, SwapBlocked
from onefold.infrastructure.rebuilding.rebuild import Rebuild
from onefold.infrastructure.rebuilding.versions import drop_next, drop_old, list_versions, rollback
from onefold.infrastructure.worker import Worker

from .warehouse import Put, Shop, running, shelves, stock, until

PATIENT = "-c lock_timeout=200ms"
"""A reader fails that is kept waiting for longer; what a busy machine adds to its queries does not count."""


@dataclass
class Watch:
    """What a reader saw of rows that only ever grow: how often, and what was wrong."""

    reads: int = 0
    wrong: list[str] = field(default_factory=list)


def watch(url: str, items: int, stop: threading.Event, query: str = "read.stock") -> Watch:
    """Read all rows again and again; every item is there, and no row gets older."""
    found = Watch()
    last: dict[str, int] = {}
    statement = f"SELECT item, amount, _position FROM {query}".encode()
    with psycopg.connect(url, autocommit=True, options=PATIENT) as connection:
        while not stop.is_set():
            rows = connection.execute(statement).fetchall()
            found.reads += 1
            if len(rows) != items:
                found.wrong.append(f"{len(rows)} rows")
            for item, amount, position in rows:
                if position < last.get(item, 0) or amount <= 0:
                    found.wrong.append(f"{item}: {position} after {last.get(item)}, amount {amount}")
                last[item] = position
    return found


@contextmanager
def watched(shop: Shop, items: int, readers: int, query: str = "read.stock") -> Iterator[list[Future[Watch]]]:
    stop = threading.Event()
    with ThreadPoolExecutor(readers) as threads:
        futures = [threads.submit(watch, shop.url, items, stop, query) for _ in range(readers)]
        try:
            yield futures
        finally:
            stop.set()


@contextmanager
def appending(shop: Shop, items: int, pause: float) -> Iterator[None]:
    """Append to one item after the other, until the body ends."""
    stop = threading.Event()

    def append() -> None:
        number = 0
        while not stop.is_set():
            shop.append((f"i{number % items:03}", Put(amount=1)))
            number += 1
            time.sleep(pause)

    with ThreadPoolExecutor(1) as threads:
        going = threads.submit(append)
        try:
            yield
        finally:
            stop.set()
            going.result()


def filled(shop: Shop, items: int, each: int) -> None:
    facts = [(f"i{number % items:03}", Put(amount=1, shelf=str(number))) for number in range(items * each)]
    for first in range(0, len(facts), 1000):
        shop.append(*facts[first : first + 1000])


@pytest.mark.parametrize("query", ["read.stock", "public.seen"])
def test_readers_see_whole_and_ever_newer_rows_while_events_are_appended_and_versions_are_swapped(
    shop: Shop, query: str
) -> None:
    filled(shop, 30, 10)
    Worker(shop.url, stock()).run_once()
    shop.connection.execute("CREATE VIEW public.seen AS SELECT * FROM read.stock")
    with running(shop.url, stock(lease=1.0)) as worker, appending(shop, 30, 0.005):
        with watched(shop, 30, 4, query) as watches:
            for _ in range(3):
                assert Rebuild(shop.url, stock(), page=50).run().swapped
            rollback(shop.url, stock())
        assert not worker.done()
    seen = [each.result() for each in watches]
    assert [each.wrong for each in seen] == [[]] * 4
    assert min(each.reads for each in seen) > 20
    Worker(shop.url, stock()).run_once()
    assert shop.dump() == shop.fresh(stock())


def test_a_long_reader_holds_up_the_swap_and_nobody_else(shop: Shop) -> None:
    filled(shop, 30, 10)
    Worker(shop.url, stock()).run_once()
    with (
        running(shop.url, stock(lease=0.4)),
        watched(shop, 30, 2) as watches,
        ThreadPoolExecutor(1) as threads,
    ):
        with psycopg.connect(shop.url) as reader:
            reader.execute("SELECT FROM read.stock")
            going = threads.submit(Rebuild(shop.url, stock()).run)
            with pytest.raises(TimeoutError):
                going.result(1.5)
            # The serving version moves on all the time.
            shop.reached(shop.append(("i001", Put())), seconds=3)
        assert going.result(10).swapped
        shop.reached(shop.append(("i001", Put())), seconds=5)
    seen = [each.result() for each in watches]
    assert [each.wrong for each in seen] == [[], []]


def test_nobody_queues_behind_the_swap_for_longer_than_it_waits_for_its_lock(shop: Shop) -> None:
    filled(shop, 10, 3)
    Worker(shop.url, stock()).run_once()
    shop.connection.execute("CREATE VIEW public.seen AS SELECT * FROM read.stock")
    # Transactions that follow each other and overlap: the table is never free for a moment.
    stop = threading.Event()

    def hold(url: str) -> None:
        with psycopg.connect(url) as reader:
            while not stop.is_set():
                reader.execute("SELECT FROM public.seen")
                time.sleep(0.3)
                reader.rollback()

    with ThreadPoolExecutor(3) as threads, watched(shop, 10, 2) as watches:
        for _ in range(3):
            threads.submit(hold, shop.url)
            time.sleep(0.1)
        with pytest.raises(SwapBlocked):
            Rebuild(shop.url, stock(), patience=2.0).run()
        stop.set()
    seen = [each.result() for each in watches]
    assert [each.wrong for each in seen] == [[], []]


def test_a_swap_that_its_view_refuses_changes_nothing(shop: Shop) -> None:
    shop.put("a")
    Worker(shop.url, stock()).run_once()

    def spoil(step: Any) -> None:
        if step.phase == "swap":
            shop.connection.execute("ALTER TABLE read_next.stock RENAME COLUMN price TO cost")
            shop.connection.execute("CREATE OR REPLACE VIEW v AS SELECT price FROM read.stock")

    with pytest.raises(psycopg.errors.UndefinedColumn):
        Rebuild(shop.url, stock(), on_step=spoil).run()
    assert shop.versions().keys() == {0, -1}
    shop.put("a")
    assert Worker(shop.url, stock()).run_once().applied == 1
    assert shop.all("SELECT price FROM v") == shop.all("SELECT price FROM read.stock")


# --- versions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [stock, shelves])
def test_a_rollback_by_the_code_that_built_it_is_brought_up_first_and_goes_there_and_back(
    shop: Shop, make: Callable[..., Any]
) -> None:
    shop.fill(60, 7)
    name = make().name
    Worker(shop.url, make()).run_once()
    Rebuild(shop.url, make()).run()
    shop.fill(30, 7)
    Worker(shop.url, make()).run_once()
    for _ in range(3):
        back = rollback(shop.url, make())
        assert (back.position, back.caught_up) == (90, True)
        assert shop.dump(name) == shop.fresh(make())
    assert shop.versions(name) == {0: 90, -2: 90}


def test_a_rollback_to_other_code_serves_from_where_it_was_and_that_code_goes_on(shop: Shop) -> None:
    shop.fill(60, 7)
    old, new = stock(), stock(version=2)
    Worker(shop.url, old).run_once()
    Rebuild(shop.url, new).run()
    shop.fill(30, 7)
    Worker(shop.url, new).run_once()
    back = rollback(shop.url, new)
    assert (back.position, back.caught_up) == (60, False)
    with pytest.raises(ReadModelChanged):
        Worker(shop.url, new).run_once()
    assert Worker(shop.url, old).run_once().position == 90
    assert shop.dump() == shop.fresh(old)
    # And forward again, to where the new one was.
    assert rollback(shop.url, old).position == 90


def test_versions_are_listed_and_dropped(shop: Shop) -> None:
    shop.put("a")
    with pytest.raises(NoOtherVersion):
        drop_old(shop.url, "stock")
    with pytest.raises(NoOtherVersion):
        rollback(shop.url, stock())
    Rebuild(shop.url, stock()).run()
    Rebuild(shop.url, stock(), upto=0).run()

    def listed() -> list[tuple[str, str | None, bool]]:
        return [(each.role, each.phase, each.there) for each in list_versions(shop.connection)]

    assert listed() == [("serving", None, True), ("next", "follow", True), ("before", None, True)]
    drop_next(shop.url, "stock")
    drop_old(shop.url, "stock")
    assert listed() == [("serving", None, True)]
    assert shop.all("SELECT schemaname FROM pg_tables WHERE tablename = 'stock'") == [("read",)]
    with pytest.raises(NoOtherVersion):
        drop_old(shop.url, "stock")


def test_a_rollback_drops_what_a_broken_off_rebuild_has_left(shop: Shop) -> None:
    shop.put("a")
    Rebuild(shop.url, stock()).run()
    Rebuild(shop.url, stock(), upto=0).run()
    rollback(shop.url, stock())
    assert shop.versions().keys() == {0, -2}
    assert until(lambda: Rebuild(shop.url, stock()).run().swapped)

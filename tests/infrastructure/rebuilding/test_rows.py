"""Single rows are folded anew under the fence, without stopping anybody."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from onefold.infrastructure.postgres.errors import ReadModelChanged
from onefold.infrastructure.rebuilding.errors import RebuildRefused
from onefold.infrastructure.rebuilding.rows import rebuild_stream
from onefold.infrastructure.worker import Worker
from onefold.projections.errors import ProjectionFailed
from onefold.projections.projection import Projection

from .warehouse import Cleared, Put, Shop, running, shelves, stock, until


@pytest.mark.parametrize("make", [stock, shelves])
@pytest.mark.parametrize("damage", ["UPDATE read.{} SET {} = 77", "DELETE FROM read.{}"])
def test_rows_of_a_stream_are_right_again_and_others_are_left_alone(
    shop: Shop, make: Callable[..., Projection[Any]], damage: str
) -> None:
    shop.fill(100, 10)
    shop.put("alone", shelf="alone", amount=4)
    Worker(shop.url, make()).run_once()
    name, column = (make().name, "amount" if make is stock else "count")
    right = shop.dump(name)
    shop.connection.execute(damage.format(name, column).encode())
    wrong = shop.dump(name)
    # Behind the log's end: what the checkpoint has not reached is the worker's.
    shop.put("alone", shelf="alone", amount=4)
    done = rebuild_stream(shop.url, make(), "stock/alone")
    assert (done.changed, done.position) == (1, 101)
    now = shop.dump(name)
    assert [row for row in now if row not in wrong] == [row for row in right if "alone" in row]
    assert len(now) == (len(wrong) if "UPDATE" in damage else 1)
    Worker(shop.url, make()).run_once()
    (mended,) = [row for row in shop.dump(name) if "alone" in row]
    assert mended in shop.fresh(make())
    assert rebuild_stream(shop.url, make(), "stock/alone").changed == 0


def test_a_row_that_the_log_does_not_give_is_removed(shop: Shop) -> None:
    shop.append(("a", Put()), ("a", Cleared()))
    Worker(shop.url, stock()).run_once()
    shop.connection.execute("INSERT INTO read.stock VALUES ('a', 1, 1, NULL, 1)")
    assert rebuild_stream(shop.url, stock(), "stock/a").changed == 1
    assert shop.dump() == []


def test_a_row_that_several_streams_lead_to_is_folded_from_all_of_them(shop: Shop) -> None:
    for number in range(20):
        shop.put(f"{('stock', 'spare')[number % 2]}/a", amount=number, shelf=str(number))
    Worker(shop.url, stock()).run_once()
    right = shop.dump()
    shop.connection.execute("UPDATE read.stock SET amount = 0")
    assert rebuild_stream(shop.url, stock(), "spare/a").changed == 1
    assert shop.dump() == right


def test_a_worker_that_has_the_row_in_memory_goes_on_from_the_mended_one(shop: Shop) -> None:
    shop.put("a", "b", amount=1)
    with running(shop.url, stock(lease=0.4)) as worker:
        shop.reached(2)
        shop.connection.execute("UPDATE read.stock SET amount = 50 WHERE item = 'a'")
        assert rebuild_stream(shop.url, stock(), "stock/a").changed == 1
        shop.reached(shop.put("a", amount=1))
        assert not worker.done()
    assert shop.all("SELECT item, amount FROM read.stock ORDER BY 1") == [("a", 2), ("b", 1)]


def test_rows_are_right_however_often_they_are_mended_under_a_worker_and_appends(shop: Shop) -> None:
    shop.fill(50, 5)
    with running(shop.url, stock(lease=0.4)), ThreadPoolExecutor(1) as threads:
        appending = threads.submit(lambda: [shop.fill(10, 5) for _ in range(20)])
        until(lambda: shop.position() is not None)
        while not appending.done():
            rebuild_stream(shop.url, stock(), "stock/i00003")
        shop.reached(appending.result()[-1])
    assert shop.dump() == shop.fresh(stock())


def test_what_cannot_be_mended_is_refused(shop: Shop) -> None:
    def unlucky(event: Put) -> None:
        if event.amount == 13:
            raise ValueError("13")

    shop.put("a", amount=13)
    Worker(shop.url, stock()).run_once()
    right = shop.dump()
    with pytest.raises(RebuildRefused, match="found none in stock/b"):
        rebuild_stream(shop.url, stock(), "stock/b")
    with pytest.raises(ReadModelChanged):
        rebuild_stream(shop.url, stock(version=2), "stock/a")
    with pytest.raises(ProjectionFailed, match="version 1, position 1"):
        rebuild_stream(shop.url, stock(unlucky), "stock/a")
    projection = stock()
    projection.folds[Put] = lambda row, event: (row or projection.row(item="a")).evolve(amount="many")
    with pytest.raises(RebuildRefused, match="field amount does not fit bigint"):
        rebuild_stream(shop.url, projection, "stock/a")
    assert shop.dump() == right
    assert shop.all("SELECT position FROM onefold.checkpoints") == [(1,)]
    with psycopg.connect(shop.url) as other:
        assert other.execute(
            "SELECT count(*) FROM onefold.checkpoints WHERE owner IS NOT NULL"
        ).fetchone() == (0,)

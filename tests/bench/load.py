"""Load of an aggregate of 10, 100 and 1,000 events, with and without a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg

from onefold.infrastructure.postgres.log import EventLog
from onefold.infrastructure.postgres.pool import open_pool
from onefold.infrastructure.postgres.repository import Repository

from .measure import Case, milliseconds
from .model import Order, PeerOrder, script
from .peer import Peer

SELECT = (
    "SELECT version, type, data::text, occurred_at FROM onefold.events WHERE stream = %s ORDER BY version"
)
SNAPSHOT = "SELECT version, state::text FROM onefold.snapshots WHERE stream = %s"
AT = datetime(2026, 1, 1, tzinfo=UTC)


@contextmanager
def cases(url: str, peer: Peer, *, times: int = 60) -> Iterator[list[Case]]:
    """Make the aggregates once and give the cases; loads are read-only."""
    with (
        open_pool(url, size=1) as pool,
        peer.application() as plain,
        peer.application(snapshots=True) as snapshotting,
        psycopg.connect(url, autocommit=True) as connection,
    ):
        log = EventLog(pool)
        repository = Repository(log, Order)
        with_snapshots = Repository(log, Order, snapshot_every=1_000_000)
        found: list[Case] = []
        for size in (10, 100, 1000):
            key = f"load-{size}"
            order = _order(key, size)
            repository.save(order)
            with_snapshots.snapshot(order)
            peer_id = _peer_order(plain, size)
            peer_snapshot_id = _peer_order(snapshotting, size)
            snapshotting.take_snapshot(peer_snapshot_id)

            def ours(key: str = key) -> object:
                return repository.get(key)

            def ours_from_snapshot(key: str = key) -> object:
                return with_snapshots.get(key)

            def theirs(peer_id: UUID = peer_id) -> object:
                return plain.repository.get(peer_id)

            def theirs_from_snapshot(peer_id: UUID = peer_snapshot_id) -> object:
                return snapshotting.repository.get(peer_id)

            def rows(key: str = key) -> object:
                return connection.execute(SELECT, (f"order/{key}",), prepare=True, binary=True).fetchall()

            def row(key: str = key) -> object:
                return connection.execute(SNAPSHOT, (f"order/{key}",), prepare=True, binary=True).fetchone()

            _assert_same(repository.get(key), plain.repository.get(peer_id))
            found.append(_case(f"load of {size} events", times, ours, theirs, rows))
            found.append(
                _case(
                    f"load of {size} events with a snapshot",
                    times,
                    ours_from_snapshot,
                    theirs_from_snapshot,
                    row,
                )
            )
        yield found


def _case(
    name: str,
    times: int,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    rows: Callable[[], object],
) -> Case:
    contenders = {
        "onefold": lambda: milliseconds(ours, times),
        "eventsourcing": lambda: milliseconds(theirs, times),
        "limit": lambda: milliseconds(rows, times),
    }
    return Case(name, "ms", contenders, higher_is_better=False)


def _order(key: str, size: int) -> Order:
    order = Order.new(key)
    for version in range(1, size + 1):
        kind, data = script(7, version)
        order.emit({"placed": Order.Placed, "paid": Order.Paid, "moved": Order.Moved}[kind](**data), at=AT)
    return order


def _peer_order(application: Any, size: int) -> UUID:
    order = PeerOrder(**script(7, 1)[1])
    for version in range(2, size + 1):
        kind, data = script(7, version)
        if kind == "paid":
            order.pay(**data)
        else:
            order.move(**data)
        # The library's own insert can hang on hundreds of events in one call.
        if version % 100 == 0:
            application.save(order)
    application.save(order)
    return order.id


def _assert_same(ours: Order, theirs: Any) -> None:
    if (ours.status, ours.paid, ours.version) != (theirs.status, theirs.paid, theirs.version):
        raise AssertionError(f"the contenders disagree: {ours!r} and {theirs!r}")

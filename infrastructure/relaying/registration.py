"""Registration: a relay's segments in the database, made at its first start and changed by request only."""

from __future__ import annotations

import time
from typing import Any, Literal

import psycopg
from psycopg.sql import Identifier

from ..postgres.horizon import Horizon
from ..postgres.outbox import SLOTS, slot_of
from ..postgres.sql import statement
from .errors import RelayBusy, RelayChanged

Reads = Literal["outbox", "log"]

PATIENCE = 30.0
"""Seconds for which a relay that begins at the end waits for those who write at the moment."""


def begin(
    connection: psycopg.Connection[Any],
    relay: str,
    channel: str,
    source: Reads,
    segments: int | None,
    *,
    at_head: bool = False,
    log: str = "events",
) -> int:
    """Make the relay's segments if there are none; return how many it has.

    A new one begins with the first message there is, or behind the last with `at_head`: what was written by then does
    not go out, all else does. Raises `RelayChanged` when it was begun for another channel or source, or with another
    number of segments than is asked for.
    """
    known = _known(connection, relay)
    if known is None:
        position = 0
        if at_head:
            position = _settled(connection, "outbox" if source == "outbox" else log)
        values = {
            "relay": relay,
            "segments": segments or 1,
            "channel": channel,
            "source": source,
            "position": position,
        }
        # Another process that begins it at the same time, with another number of segments, must find these or none.
        with connection.transaction():
            connection.execute("LOCK TABLE onefold.relays IN SHARE ROW EXCLUSIVE MODE")
            connection.execute(statement("relay_begin"), values)
        known = _known(connection, relay)
        assert known is not None
    found, of_channel, of_source = known
    if (of_channel, of_source) != (channel, source):
        raise RelayChanged(
            f"expected relay {relay} to publish channel {of_channel} from the {of_source}, as it was begun, found "
            f"channel {channel} from the {source}; give the new one another --name"
        )
    if segments is not None and segments != found:
        raise RelayChanged(
            f"expected relay {relay} with {found} segments, as it was begun, found {segments}; end its processes and "
            f"change it with --resegment"
        )
    return found


def resegment(connection: psycopg.Connection[Any], relay: str, segments: int) -> int:
    """Give the relay another number of segments, which begin where the last of the present ones is; return where.

    What the others have published beyond it goes out again, with the same ids and in order. Raises `RelayBusy` while
    one of its processes is at work, `RelayChanged` where there is no such relay.
    """
    if not 1 <= segments <= SLOTS:
        raise RelayChanged(f"expected 1 to {SLOTS} segments, found {segments}")
    with connection.transaction():
        rows = connection.execute(statement("relay_lock_segments"), (relay,)).fetchall()
        if not rows:
            raise RelayChanged(f"expected a relay that was begun, found none of the name {relay!r}")
        if any(busy for _, busy in rows):
            raise RelayBusy(
                f"expected no process of relay {relay} at work, found some; end them, or wait for their leases to end"
            )
        connection.execute(statement("relay_resegment"), {"relay": relay, "segments": segments})
        keys = connection.execute(statement("relay_held_anywhere"), (relay,)).fetchall()
        columns = [key for (key,) in keys], [slot_of(key) % segments for (key,) in keys]
        connection.execute(statement("relay_move_held"), (*columns, relay))
    return int(min(position for position, _ in rows))


def _settled(connection: psycopg.Connection[Any], table: str) -> int:
    """Return the present end, once nothing can be written before it any more."""
    row = connection.execute(statement("head", log=Identifier("onefold", table))).fetchone()
    head = 0 if row is None else int(row[0])
    horizon, deadline = Horizon("onefold", table), time.monotonic() + PATIENCE
    while horizon.settle(connection) < head:
        if time.monotonic() > deadline:
            raise RelayBusy(
                f"expected those who write to onefold.{table} now to end within {PATIENCE:g} s, found one that does "
                "not; look for it with onefold status, and begin the relay again"
            )
        time.sleep(0.02)
    return head


def _known(connection: psycopg.Connection[Any], relay: str) -> tuple[int, str, str] | None:
    row = connection.execute(statement("relay_known"), (relay,)).fetchone()
    return None if row is None else (row[0], row[1], row[2])

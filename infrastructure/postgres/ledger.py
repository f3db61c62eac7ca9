"""The ledger: which keys a consumer has claimed, in the transaction of what it does about them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple

import psycopg
from psycopg.pq import TransactionStatus

from ...domain.errors import OnefoldError
from ...domain.instant import ensure_aware, instant
from .columns import UUID_BYTES, pack_uuids, register
from .pool import Connection, raw_cursor
from .sql import statement

Mode = Literal["any", "time"]
"""The kind of keys that a ledger takes: of any kind, or UUIDv7."""

SEALED = "ledger_sealed"
"""The constraint of a generation that takes no more keys."""

MOVED, ISOLATED = "OF002", "OF003"
"""SQLSTATE of a floor that has risen, and of a claim in another isolation level; see migration 0003."""

_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_LAST = (datetime.max.replace(tzinfo=UTC) - _UNIX_EPOCH) // _MILLISECOND

_CLAIM = {"any": statement("ledger_claim_any"), "time": statement("ledger_claim_time")}
_CLAIMED = {"any": statement("ledger_claimed_any"), "time": statement("ledger_claimed_time")}
_WINDOW = statement("ledger_window")


class LedgerRotated(OnefoldError):
    """The ledger moved on under a claim. Roll back, ask for the window anew, and run the batch again."""

    def __init__(self) -> None:
        super().__init__(
            "expected the ledger as it was when the batch began, found it rotated, or its window moved, in the "
            "meantime; nothing is claimed: roll back, ask for the window, and run the batch again"
        )


class OutsideWindow(OnefoldError, ValueError):
    """A key of a time-ordered ledger lies outside the window, where it cannot be claimed. Nothing was sent."""


class NotTimeOrdered(OnefoldError, ValueError):
    """A key of a time-ordered ledger is not a UUIDv7."""


class UnfitTransaction(OnefoldError):
    """A claim needs an open transaction at READ COMMITTED, which its effect is part of; maintenance needs none."""


class Entry(NamedTuple):
    """What the ledger holds for a key that was claimed before."""

    fingerprint: bytes
    first_seen: datetime


class Window(NamedTuple):
    """What a ledger remembers.

    Of any keys: one that was claimed at `floor` or before may be forgotten (None: none is); there is no ceiling. Of
    time-ordered keys: those whose time is before `floor` are forgotten, and those from `ceiling` on have no place yet.
    """

    floor: datetime | None
    ceiling: datetime | None


def window(connection: psycopg.Connection[Any], mode: Mode) -> Window:
    """Return what the ledger remembers now; one cheap statement."""
    with raw_cursor(connection) as cursor:
        row = cursor.execute(_WINDOW, {"ledger": mode}, prepare=True).fetchone()
    assert row is not None
    return Window(*(None if at is None else instant(at) for at in row))


def claim(
    connection: psycopg.Connection[Any],
    mode: Mode,
    consumer: int,
    keys: Sequence[bytes],
    fingerprints: Sequence[bytes],
    *,
    within: Window,
) -> dict[bytes, Entry]:
    """Claim the keys that this consumer has not claimed yet; return the entries of those that it has.

    `consumer` is its number; `keys` are 16 bytes each and different from each other, `fingerprints` are theirs, of 16
    bytes, in the same order. `within` is the window by which the caller judges what is forgotten; one that is
    some minutes old will do. The claims end with the connection's transaction. One round trip.

    A key that another transaction is about to claim is waited for, up to the `lock_timeout` of the session
    (`psycopg.errors.LockNotAvailable`). Raises `LedgerRotated` when the ledger or its window has moved in the meantime;
    `UnfitTransaction` outside a transaction, or in another isolation level than READ COMMITTED; `OutsideWindow` or
    `NotTimeOrdered` for keys that a time-ordered ledger cannot hold; ValueError for keys that are none.
    """
    if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
        raise UnfitTransaction(
            "expected a transaction that is open, found a connection in autocommit mode outside one: the claim would "
            "be kept whatever becomes of its effect; claim inside `with connection.transaction():`"
        )
    if not keys:
        return {}
    if len(keys) != len(fingerprints):
        raise ValueError(f"expected a fingerprint for each of {len(keys)} keys, found {len(fingerprints)}")
    if len(set(keys)) != len(keys):
        raise ValueError("expected keys that are different from each other, found one of them twice")
    values: list[Any] = [consumer, pack_uuids(keys), pack_uuids(fingerprints)]
    if mode == "time":
        _ensure_within(keys, within)
    else:
        values.append(within.floor)
    try:
        rows = _rows(connection, _CLAIM[mode], values)
    except psycopg.errors.CheckViolation as error:
        # The generation is sealed; or there is no partition: not any more, or none that this session knows of yet.
        if error.diag.constraint_name == SEALED or error.diag.table_name in ("ledger", "ledger_by_time"):
            raise LedgerRotated from error
        raise
    except psycopg.DatabaseError as error:
        if error.sqlstate == MOVED:
            raise LedgerRotated from error
        if error.sqlstate == ISOLATED:
            raise UnfitTransaction(
                f"expected a claim in isolation level read committed, found a {error.diag.message_primary}; set "
                "the isolation level of the connection"
            ) from error
        raise
    entries = {key: Entry(fingerprint, instant(seen)) for key, fingerprint, seen in rows if seen is not None}
    if len(entries) < len(rows):
        # Others have claimed and committed while this claim was on its way.
        entries |= claimed(connection, mode, consumer, [key for key, _, seen in rows if seen is None])
        if len(entries) < len(rows):
            raise LedgerRotated
    return entries


def claimed(
    connection: psycopg.Connection[Any], mode: Mode, consumer: int, keys: Sequence[bytes]
) -> dict[bytes, Entry]:
    """Return what the ledger holds for keys, of 16 bytes each, and claim none."""
    rows = _rows(connection, _CLAIMED[mode], (consumer, pack_uuids(keys)))
    return {key: Entry(fingerprint, instant(seen)) for key, fingerprint, seen in rows}


def time_of(key: bytes) -> datetime:
    """Return the instant in a UUIDv7 of 16 bytes, to the millisecond; raises `NotTimeOrdered` for any other key."""
    if len(key) != UUID_BYTES or not _is_time_ordered(key):
        raise NotTimeOrdered(
            f"expected a UUIDv7 (version 7, 16 bytes) as key of a time-ordered ledger, found {key[:32].hex()}; "
            "declare a ledger of any keys for this consumer"
        )
    # The milliseconds of a UUID reach to the year 10889, a datetime to 9999.
    return _UNIX_EPOCH + min(int.from_bytes(key[:6], "big"), _LAST) * _MILLISECOND


def bound_of(at: datetime) -> bytes:
    """Return the 16 bytes that every UUIDv7 from this instant on is greater than."""
    return ((ensure_aware("the bound", at) - _UNIX_EPOCH) // _MILLISECOND).to_bytes(6, "big") + bytes(10)


def _rows(connection: psycopg.Connection[Any], query: bytes, values: Sequence[Any]) -> list[tuple[Any, ...]]:
    with raw_cursor(connection) as cursor:
        if not isinstance(connection, Connection):
            register(cursor)
        return cursor.execute(query, values, prepare=True).fetchall()


def _is_time_ordered(key: bytes) -> bool:
    return key[6] >> 4 == 7 and key[8] >> 6 == 2


def _ensure_within(keys: Sequence[bytes], within: Window) -> None:
    if {(0x70, 0x80)} != {(key[6] & 0xF0, key[8] & 0xC0) for key in keys}:
        for key in keys:
            time_of(key)
    first, last = min(keys), max(keys)
    if within.floor is not None and first < bound_of(within.floor):
        raise OutsideWindow(
            f"expected keys from {within.floor.isoformat()} on, found one of {time_of(first).isoformat()}: what was "
            "claimed then is forgotten; a message with such a key is expired"
        )
    if within.ceiling is not None and last >= bound_of(within.ceiling):
        raise OutsideWindow(
            f"expected keys from before {within.ceiling.isoformat()}, found one of {time_of(last).isoformat()}: the "
            "ledger has no place for it yet; run `onefold maintain`, or mend the clock that made the key"
        )

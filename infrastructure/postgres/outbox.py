"""The outbox: messages written in the transaction of the state change, in the bytes in which they will go out."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any
from zlib import crc32

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from pydantic_core import to_json

from ...domain.errors import OnefoldError
from ...projections.fingerprint import shown
from ...projections.projection import NAME
from ...projections.publication import Posting
from ...projections.relaying import LONGEST_KEY, can_order
from ..brokers.envelope import write as written
from .sql import statement

SLOTS = 64
"""Parts into which a channel is divided by key; a relay's segments are groups of them."""

CHANNEL = "onefold_outbox"
"""The channel of NOTIFY on which writers wake the relays."""

WAKE_INTERVAL = 0.005
"""Seconds between two wake-ups that one process sends."""

_NUMBER = statement("outbox_number")
_WRITE = statement("outbox_write")
_WAKE = statement("outbox_wake")
_last_wake = 0.0


class NoTransaction(OnefoldError):
    """A message was to be written outside of a transaction, where nothing would tie it to a state change."""

    def __init__(self) -> None:
        super().__init__(
            "expected a connection with an open transaction, found none: a message is written together with the "
            "state change that it tells of; write both inside of `with connection.transaction():`"
        )


class BadPosting(OnefoldError, ValueError):
    """A message cannot be written to the outbox as it was given."""


def slot_of(key: str) -> int:
    """Return the slot of a key, from 0 to `SLOTS` - 1; the same in every process and release."""
    return crc32(key.encode("utf-8", "surrogatepass")) % SLOTS


def write(connection: psycopg.Connection[Any], postings: Sequence[Posting]) -> None:
    """Write messages to the outbox, in the transaction that the caller has open on the connection.

    Relays publish the messages of one key in the order in which they were written. Where two transactions write
    messages of one key at the same time that are not numbered, the order is that in which they came to write.
    Raises `NoTransaction`, `BadPosting`, and `BadEnvelope` for what cannot travel as a CloudEvent.
    """
    global _last_wake
    if not postings:
        return
    if connection.info.transaction_status != TransactionStatus.INTRANS:
        raise NoTransaction
    for posting in postings:
        _require_fit(posting)
    with connection.cursor(row_factory=tuple_row) as cursor:
        rows = [_row(posting) for posting in _numbered(cursor, postings)]
        columns = [list(column) for column in zip(*rows, strict=True)]
        cursor.execute(_WRITE, columns, prepare=True)
        if (now := time.monotonic()) - _last_wake >= WAKE_INTERVAL:
            _last_wake = now
            cursor.execute(_WAKE, prepare=True)


def _require_fit(posting: Posting) -> None:
    if not NAME.fullmatch(posting.channel):
        raise BadPosting(
            f"expected a channel of lower-case letters, digits and underscores, at most 41, found "
            f"{posting.channel!r}"
        )
    if posting.key is not None and not can_order(posting.key):
        raise BadPosting(
            f"expected a key of text without NUL or lone surrogates, of 1 to {LONGEST_KEY:,} bytes, or None, found "
            f"{shown(posting.key)}"
        )
    # A message without a key waits by its id; what is no id at all is for the envelope to say.
    if posting.key is None and (size := len(str(posting.message.id).encode(errors="replace"))) > LONGEST_KEY:
        raise BadPosting(
            f"expected an id of at most {LONGEST_KEY:,} bytes for a message without a key, found {size:,}; give a "
            "digest of it"
        )
    if posting.numbered and posting.key is None:
        raise BadPosting(f"expected a key for a numbered message to {posting.channel}, found None")


def _numbered(cursor: psycopg.Cursor[Any], postings: Sequence[Posting]) -> Sequence[Posting]:
    """Return the postings with the extension `sequence` where they are to have the next number of their key."""
    wanted = Counter((posting.channel, posting.key) for posting in postings if posting.numbered)
    if not wanted:
        return postings
    channels, keys = zip(*wanted, strict=True)
    found = cursor.execute(_NUMBER, (list(channels), list(keys), list(wanted.values())), prepare=True)
    numbers = {
        (channel, key): count(last - wanted[channel, key] + 1) for channel, key, last in found.fetchall()
    }
    return [
        posting._replace(message=_with_sequence(posting, next(numbers[posting.channel, posting.key])))
        if posting.numbered
        else posting
        for posting in postings
    ]


def _with_sequence(posting: Posting, number: int) -> Any:
    message = posting.message
    return replace(message, extensions={**message.extensions, "sequence": str(number)})


def _row(posting: Posting) -> tuple[Any, ...]:
    message = posting.message
    outgoing = written(message)
    slot = slot_of(message.id if posting.key is None else posting.key)
    headers = to_json(dict(outgoing.headers)).decode()
    return posting.channel, posting.key, slot, message.id, message.type, outgoing.body, headers

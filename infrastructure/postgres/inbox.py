"""The inbox's tables: sequences, parked messages, dead letters, attempts and outcomes of one consumer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from pydantic_core import from_json, to_json

from ...domain.errors import OnefoldError
from ...projections.consumer import Consumer
from ...projections.guards import Outcome
from ...projections.inbox import Standing
from ..brokers.port import Delivery
from .columns import PACK_POSITION, PACK_TEXT, pack_integers, pack_uuids
from .sql import statement

COMMITTED_EARLY = "OF004"
"""SQLSTATE of a commit by somebody else than the consumer."""

SLOTS = 16
"""Rows that the counts of one outcome are spread over."""

_tuple = tuple.__new__

PARKED_AT_ONCE = 5_000
"""Parked messages that are looked at in one transaction."""

PARKED_BYTES = 32 * 2**20
"""Bytes of their bodies at most, of which the last one may go beyond."""


class ConsumerChanged(OnefoldError):
    """A consumer is declared otherwise than its tables were made."""


class SequenceAppeared(OnefoldError):
    """Another worker began a sequence of the batch at the same time; the batch is run again."""

    def __init__(self) -> None:
        super().__init__(
            "another worker began one of the batch's sequences at the same time; the batch is run again"
        )


class Trouble(NamedTuple):
    """What is known of a key that was tried before, and the last error.

    `attempts` failed; a process ended with it in hand, `alone` or `among` others, so many times.
    """

    attempts: int
    alone: int
    among: int
    error: str


class ParkedRow(NamedTuple):
    """A parked message as it is stored; `held` while it waits for its next try."""

    id: int
    sequence: str
    version: int | None
    key: bytes
    fingerprint: bytes
    delivery: Delivery
    attempts: int
    held: bool
    error: str | None
    reason: str
    overdue: bool


@dataclass(slots=True)
class DeadLetter:
    """What is kept of a message that failed for good."""

    outcome: Outcome
    cause: str
    delivery: Delivery
    identity: bytes
    key: bytes | None = None
    fingerprint: bytes | None = None
    key_text: str | None = None
    message_id: str | None = None
    type: str | None = None
    sequence: str | None = None
    version: int | None = None
    attempts: int = 0
    parked: int | None = None


def register(connection: psycopg.Connection[Any], consumer: Consumer) -> int:
    """Enter the consumer, or what has changed in its declaration, and return its number.

    Raises `ConsumerChanged` when its keys are kept in the other ledger, when messages were decided by another ordering,
    or when it has folded into another read model.
    """
    model = None if consumer.fold is None else f"{consumer.fold.name} {consumer.fold.fingerprint()}"
    values = {
        "consumer": consumer.name,
        "ledger": consumer.ledger,
        "ordering": consumer.rule.ordering,
        "retention": consumer.retention.ledger,
        "gap_report": consumer.gap_report,
        "gap_deadline": consumer.gap_deadline,
        "read_model": model,
    }
    connection.execute(statement("inbox_register"), values)
    row = connection.execute(statement("inbox_registered"), (consumer.name,)).fetchone()
    assert row is not None
    number, ledger, ordering, built = row
    if ledger != consumer.ledger:
        raise ConsumerChanged(
            f'consumer {consumer.name} is declared with ledger="{consumer.ledger}", its keys are in the ledger '
            f'"{ledger}", and would be forgotten; declare ledger="{ledger}", or give the consumer another name'
        )
    if ordering != consumer.rule.ordering:
        raise ConsumerChanged(
            f'consumer {consumer.name} is declared with ordering="{consumer.rule.ordering}", and has decided messages '
            f'with ordering="{ordering}": where its sequences stand would mean something else; declare '
            f'ordering="{ordering}", or give the consumer another name, and consume anew from the broker'
        )
    if built != model:
        raise ConsumerChanged(
            f"consumer {consumer.name} folds into {model or 'nothing'}, and was registered with {built or 'nothing'}: "
            "what it has applied is not in the log and cannot be folded again; give consumer and projection other "
            "names, and consume anew from the broker"
        )
    return int(number)


def delivery_of(
    body: bytes, headers: Mapping[str, str], place: str, published_at: datetime | None
) -> Delivery:
    """Return a stored message as the delivery that it was."""
    return Delivery(bytes(body), headers, place, published_at=published_at)


class Inbox:
    """The tables of one consumer, for one worker; every call is made on its connection, in its transaction."""

    def __init__(self, connection: psycopg.Connection[Any], number: int, worker: int) -> None:
        self.connection = connection
        self.number = number
        self._worker = worker
        self._slot = worker % SLOTS
        self._lock = statement("inbox_lock")
        self._lock_free = statement("inbox_lock_free")
        self._mark = statement("inbox_mark")
        self._open = statement("inbox_open")
        self._write = statement("inbox_write")
        self._write_new = statement("inbox_write_new")

    def mark(self, keys: Sequence[bytes]) -> dict[bytes, Trouble]:
        """Note what this worker takes in hand, and return those of the keys that were tried before."""
        values = {"worker": self._worker, "consumer": self.number, "keys": pack_uuids(keys)}
        found = self.connection.execute(self._mark, values, prepare=True).fetchall()
        return {_bytes(key): Trouble(*rest) for key, *rest in found}

    def open(self) -> None:
        """Have every commit of this transaction refused until `write`, with SQLSTATE `OF004`."""
        self.connection.execute(self._open, (self._worker, self.number), prepare=True)

    def category(self) -> str | None:
        """Return the category whose sequences this consumer folds, None before the first."""
        row = self.connection.execute(statement("inbox_category"), (self.number,)).fetchone()
        return None if row is None else row[0]

    def settle_category(self, category: str) -> str:
        """Return the category whose sequences this consumer folds: from now on this one, if there was none."""
        row = self.connection.execute(statement("inbox_settle_category"), (category, self.number)).fetchone()
        assert row is not None
        return str(row[0])

    def lock(self, sequences: Collection[str], *, wait: bool = True) -> dict[str, Standing]:
        """Lock those of the sequences that are known, in their order, and return where they stand.

        Without `wait` those are left out that another worker has locked.
        """
        values = (self.number, PACK_TEXT(sorted(sequences)))
        query = self._lock if wait else self._lock_free
        found = self.connection.execute(query, values, prepare=True, binary=True).fetchall()
        return {row[0]: _tuple(Standing, row[1:]) for row in found}

    def busy(self, sequences: Collection[str]) -> set[str]:
        """Return those of the sequences that another worker has locked."""
        values = {"consumer": self.number, "sequences": list(sequences)}
        return {name for (name,) in self.connection.execute(statement("inbox_busy"), values).fetchall()}

    def parked(self, sequences: Iterable[str]) -> list[ParkedRow]:
        """Return messages that wait in these sequences, in order; at most `PARKED_AT_ONCE`, and few large ones."""
        values = {
            "consumer": self.number,
            "sequences": list(sequences),
            "limit": PARKED_AT_ONCE,
            "bytes": PARKED_BYTES,
        }
        return [
            parked_row(row) for row in self.connection.execute(statement("inbox_parked"), values).fetchall()
        ]

    def write(
        self,
        counts: Mapping[Outcome, int],
        standings: Mapping[str, Standing],
        parked: Mapping[str, int],
        locked: Mapping[str, Standing],
    ) -> bool:
        """Write where sequences stand, how many wait in them (more or fewer by `parked`), and the counts of outcomes.

        True if `open` was called in this transaction. Raises `SequenceAppeared` when a sequence that was not there is
        now.
        """
        known: list[tuple[str, int, str | None, int]] = []
        fresh: list[tuple[str, int, str | None, int]] = []
        for sequence in standings if not parked else standings.keys() | parked.keys():
            at = locked.get(sequence)
            standing = standings.get(sequence) or at or Standing()
            row = (sequence, standing.version, standing.state, parked.get(sequence, 0))
            (fresh if at is None else known).append(row)
        if fresh:
            values = (self.number, *_packed(fresh))
            made = self.connection.execute(self._write_new, values, prepare=True).rowcount
            if made != len(fresh):
                raise SequenceAppeared
        number = self.number
        worker = self._worker
        values = (*_packed(known), number, self._slot, *_counts(counts), number, worker, worker)
        marked = self.connection.execute(self._write, values, prepare=True).fetchone()
        return marked is not None and bool(marked[0])

    def count(self, counts: Mapping[Outcome, int]) -> None:
        """Add to the counts of outcomes."""
        values = (self.number, self._slot, *_counts(counts))
        self.connection.execute(statement("inbox_count"), values, prepare=True)

    def park(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Keep messages that came before their turn.

        A row is sequence, version, key, fingerprint, message id, type, reason, and the delivery.
        """
        values = []
        for *fields, key, fingerprint, message_id, kind, why, delivery in rows:
            head = (self.number, *fields, _uuid(key), _uuid(fingerprint), message_id, kind, why)
            tail = (
                delivery.body,
                headers_json(delivery.headers),
                storable(delivery.place),
                delivery.published_at,
            )
            values.append((*head, *tail))
        with self.connection.cursor() as cursor:
            cursor.executemany(statement("inbox_park"), values)

    def unpark(self, ids: Sequence[int]) -> None:
        """Remove messages that wait no more."""
        self.connection.execute(statement("inbox_unpark"), (list(ids),))

    def dead_letter(self, letter: DeadLetter) -> bool:
        """Keep a dead letter; false if it was there already."""
        delivery = letter.delivery
        values = {
            "consumer": self.number,
            "sequence": letter.sequence,
            "version": letter.version,
            "outcome": letter.outcome.value,
            "cause": letter.cause,
            "attempts": letter.attempts,
            "key": _uuid(letter.key),
            "fingerprint": _uuid(letter.fingerprint),
            "key_text": None if letter.key_text is None else letter.key_text[:1_000],
            "message_id": letter.message_id,
            "type": letter.type,
            "body": delivery.body,
            "headers": headers_json(delivery.headers),
            "place": storable(delivery.place),
            "published_at": delivery.published_at,
            "parked": letter.parked,
            "identity": _uuid(letter.identity),
        }
        return self.connection.execute(statement("inbox_dead_letter"), values).rowcount == 1

    def attempt(self, key: bytes, error: str) -> int:
        """Count a failed try of a message, and return how many there were."""
        row = self.connection.execute(statement("inbox_attempt"), (self.number, _uuid(key), error)).fetchone()
        assert row is not None
        return int(row[0])

    def parked_attempt(self, parked: int, error: str, delay: float, attempts: int) -> None:
        """Note a failed try of a parked message, its `attempts`-th; it is tried again after `delay` seconds."""
        self.connection.execute(statement("inbox_parked_attempt"), (attempts, error, delay, parked))

    def forget_attempts(self, keys: Iterable[bytes]) -> None:
        """Drop the counts of messages that are decided."""
        self.connection.execute(
            statement("inbox_forget_attempts"), (self.number, [_uuid(key) for key in keys])
        )

    def unmark(self) -> None:
        """Note that this worker has nothing in hand."""
        self.connection.execute(statement("inbox_unmark"), (self._worker,))


def parked_row(row: Sequence[Any]) -> ParkedRow:
    """Return a row of `inbox_parked.sql` as what it means."""
    number, sequence, version, key, fingerprint, body, headers, place, published_at, *rest = row
    delivery = delivery_of(body, headers_of(headers), place, published_at)
    return ParkedRow(number, sequence, version, _bytes(key), _bytes(fingerprint), delivery, *rest)


def headers_json(headers: Mapping[str, str]) -> str:
    """Return headers as JSON that jsonb can keep: a NUL or a lone surrogate is written out."""
    return to_json({storable(name): storable(value) for name, value in headers.items()}).decode()


def headers_of(text: str) -> dict[str, str]:
    """Return the headers of stored JSON."""
    found: dict[str, str] = from_json(text)
    return found


def storable(text: str) -> str:
    """Return text that PostgreSQL can keep."""
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()


def _packed(rows: Sequence[tuple[str, int, str | None, int]]) -> tuple[Any, ...]:
    if not rows:
        return PACK_TEXT([]), PACK_POSITION([]), PACK_TEXT([]), pack_integers([])
    sequences, versions, states, parked = zip(*rows, strict=True)
    return PACK_TEXT(sequences), PACK_POSITION(versions), PACK_TEXT(states), pack_integers(parked)


def _counts(counts: Mapping[Outcome, int]) -> tuple[Any, ...]:
    return PACK_TEXT([outcome.value for outcome in counts]), PACK_POSITION(list(counts.values()))


def _bytes(key: Any) -> bytes:
    return key.bytes if isinstance(key, UUID) else bytes(key)


def _uuid(key: bytes | None) -> UUID | None:
    return None if key is None else UUID(bytes=key)

"""Dead letters: messages that failed for good, and what an operator does about them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row

from ...domain.errors import OnefoldError
from ...projections.app import App
from ...projections.guards import Outcome
from ..announcing import announcer
from ..postgres.inbox import delivery_of, headers_of
from ..postgres.sql import statement
from .arrivals import Reader
from .session import Session

MANY = 10_000
"""Dead letters in one listing at most."""

HIGHEST = 2**63 - 1
"""The highest number that a dead letter can have."""


class DeadLetterError(OnefoldError):
    """What is asked for cannot be done about a dead letter, or there is none of this number."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter without what is in it; `behind` is how many messages are parked because of it."""

    id: int
    consumer: str
    outcome: str
    cause: str
    attempts: int
    sequence: str | None
    version: int | None
    key_text: str | None
    message_id: str | None
    type: str | None
    place: str
    published_at: datetime | None
    first_seen: datetime
    dead_at: datetime
    resolved_at: datetime | None
    resolution: str | None
    resolved_by: str | None
    behind: int


@dataclass(frozen=True, slots=True)
class Parked:
    """A message that came before its turn, without what is in it."""

    id: int
    consumer: str
    sequence: str
    version: int | None
    reason: str
    message_id: str
    type: str
    place: str
    published_at: datetime | None
    parked_at: datetime
    reported_at: datetime | None
    attempts: int
    due_at: datetime
    error: str | None


@dataclass(frozen=True, slots=True)
class Retried:
    """What became of a dead letter that was tried again: an outcome by name, or "waits" behind one before it."""

    id: int
    became: str
    why: str = ""

    @property
    def resolved(self) -> bool:
        """True when it is a dead letter no more."""
        return self.became in ("applied", "duplicate", "stale", "parked")


def list_dead_letters(
    connection: psycopg.Connection[Any],
    *,
    consumer: str | None = None,
    sequence: str | None = None,
    ids: Iterable[int] | None = None,
    resolved: bool = False,
    limit: int = MANY,
) -> list[DeadLetter]:
    """Return dead letters in the order in which they are retried; with `resolved` also those dealt with."""
    values = {
        "consumer": consumer,
        "sequence": sequence,
        # A number beyond those of the database is none of a dead letter.
        "ids": None if ids is None else [each for each in ids if 0 < each <= HIGHEST],
        "resolved": resolved,
        "limit": limit,
    }
    with connection.cursor(row_factory=class_row(DeadLetter)) as cursor:
        return cursor.execute(statement("dead_letters_list"), values).fetchall()


def list_parked(
    connection: psycopg.Connection[Any],
    *,
    consumer: str | None = None,
    sequence: str | None = None,
    limit: int = MANY,
) -> list[Parked]:
    """Return messages that wait for their turn, in order."""
    values = {"consumer": consumer, "sequence": sequence, "limit": limit}
    with connection.cursor(row_factory=class_row(Parked)) as cursor:
        return cursor.execute(statement("parked_list"), values).fetchall()


def message_of(connection: psycopg.Connection[Any], letter: int) -> tuple[bytes, dict[str, str]]:
    """Return the original body and headers of a dead letter; raises `DeadLetterError`."""
    row = connection.execute(statement("dead_letters_message"), (letter,)).fetchone()
    if row is None:
        raise DeadLetterError(f"expected the number of a dead letter, found {letter}; list those there are")
    return bytes(row[0]), headers_of(row[1])


def discard(connection: psycopg.Connection[Any], letter: int, by: str) -> None:
    """Give a dead letter up, on the word of `by`; its record stays.

    In a delta sequence its version counts as passed from then on, so that what waits behind it goes on: the earliest
    of a sequence first. Raises `DeadLetterError`.
    """
    with connection.transaction():
        row = connection.execute(statement("dead_letters_take"), (letter,)).fetchone()
        if row is None:
            raise _gone(letter)
        consumer, sequence, version = row[0], row[3], row[4]
        if sequence is not None and version is not None:
            _pass_over(connection, letter, consumer, sequence, version)
        connection.execute(statement("dead_letters_resolve"), ("discarded", by, letter))


def retry(
    url: str, app: App, letters: Sequence[DeadLetter], *, by: str, even_expired: bool = False
) -> list[Retried]:
    """Try dead letters again, each in a transaction of its own, in the given order; return what became of each.

    One that fails again stays, with its new cause, and those of its sequence that follow are left alone: a later call
    goes on from there. A `key_conflict` cannot be retried, an `expired` one only with `even_expired`, as it may have
    been applied before it was forgotten; these are passed over. Raises `UnknownConsumer`.
    """
    sessions: dict[str, Session] = {}
    stopped: set[tuple[str, str]] = set()
    results: list[Retried] = []
    try:
        for letter in letters:
            consumer = app.consumer(letter.consumer)
            if letter.consumer not in sessions:
                sessions[letter.consumer] = Session(url, consumer, Reader(consumer), announcer=announcer(app))
            place = None if letter.sequence is None else (letter.consumer, letter.sequence)
            if place in stopped:
                results.append(
                    Retried(letter.id, "waits", "one before it in its sequence is still a dead letter")
                )
                continue
            result = _retried(sessions[letter.consumer], letter, by, even_expired)
            results.append(result)
            if place is not None and _holds(result):
                stopped.add(place)
    finally:
        for session in sessions.values():
            session.close()
    return results


def _holds(result: Retried) -> bool:
    """Tell whether those behind it in its sequence are left alone: it may be applied yet, and before them."""
    return not result.resolved and result.became not in (
        Outcome.KEY_CONFLICT.value,
        Outcome.EXPIRED.value,
        "gone",
    )


def _retried(session: Session, letter: DeadLetter, by: str, even_expired: bool) -> Retried:
    if letter.outcome == Outcome.KEY_CONFLICT.value:
        why = "its key was decided with other content; publish it with a key of its own, and discard this one"
        return Retried(letter.id, Outcome.KEY_CONFLICT.value, why)
    if letter.outcome == Outcome.EXPIRED.value and not even_expired:
        why = "it may have been applied before its key was forgotten; say that it was not, or discard it"
        return Retried(letter.id, Outcome.EXPIRED.value, why)
    connection = session.connection

    def taken() -> tuple[Any, ...] | None:
        return connection.execute(statement("dead_letters_take"), (letter.id,)).fetchone()

    def resolved(outcome: Outcome) -> None:
        connection.execute(statement("dead_letters_resolve"), (outcome.value, by, letter.id))

    with connection.transaction():
        row = taken()
    if row is None:
        return Retried(letter.id, "gone", "somebody else has dealt with it")
    arrival = session.processor.reader.arrival(delivery_of(row[5], headers_of(row[6]), row[7], row[8]))
    problem = arrival.problem or (arrival.ruled or (None, ""))[1]
    outcome, why = Outcome.REJECTED, problem
    if not problem:
        # A message that was unreadable, or too old, has not claimed its key yet.
        fresh = row[2] is None or letter.outcome == Outcome.EXPIRED.value
        outcome, why = session.processor.decide_again(
            arrival, fresh=fresh, taken=lambda: taken() is not None, resolved=resolved
        )
    result = Retried(letter.id, outcome.value, why)
    if not result.resolved and outcome is not Outcome.IN_PROGRESS:
        connection.execute(statement("dead_letters_fail"), (1, why, letter.id))
    return result


def _pass_over(
    connection: psycopg.Connection[Any], letter: int, consumer: int, sequence: str, version: int
) -> None:
    row = connection.execute(statement("dead_letters_standing"), (sequence, consumer)).fetchone()
    ordering, applied = ("unordered", 0) if row is None else (row[0], row[1] or 0)
    if ordering != "delta" or version <= applied:
        return
    if version > applied + 1:
        raise DeadLetterError(
            f"dead letter {letter} is version {version} of {sequence}, which stands at {applied}: expected the "
            f"earliest to be dealt with first; retry or discard what is before it, or wait for version {applied + 1}"
        )
    values = {"consumer": consumer, "sequence": sequence, "version": version}
    if connection.execute(statement("dead_letters_skip"), values).rowcount != 1:
        raise DeadLetterError(f"{sequence} has moved on in the meantime; discard dead letter {letter} again")


def _gone(letter: int) -> DeadLetterError:
    return DeadLetterError(
        f"expected the number of a dead letter that is open, found {letter}; list those there are"
    )

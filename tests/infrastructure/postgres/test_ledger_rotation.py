"""No interleaving of claims and a rotation lets one key be claimed twice.

Every step of every session is taken in every order. A step that blocks is seen to block, by the locks of the server,
and the others go on; so the order in which the steps end is the server's.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillRunning
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel
from psycopg.sql import Identifier

from onefold.infrastructure.identity import new_event_id
from onefold.infrastructure.postgres.ledger import LedgerRotated, claim, window
from onefold.infrastructure.postgres.sql import statement

Open = Callable[[], psycopg.Connection[Any]]
Step = Callable[[], None]
TWIN = bytes(16)


class Session:
    """A connection with a thread of its own, in which one step after the other is taken."""

    def __init__(self, connection: psycopg.Connection[Any], watcher: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self.blocked = 0
        self._watcher = watcher
        self._thread = ThreadPoolExecutor(1)
        self._running: Future[None] | None = None

    def close(self) -> None:
        self._thread.shutdown()

    def take(self, step: Step) -> None:
        """Begin a step, and return when it has ended or is seen to wait for a lock."""
        self._running = self._thread.submit(step)
        if not self.settled():
            self.blocked += 1

    def settled(self) -> bool:
        """Tell whether the last step has ended; false once it is seen to wait."""
        if self._running is None:
            return True
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                self._running.result(0.001)
            except StillRunning:
                if self._waits():
                    return False
                continue
            self._running = None
            return True
        raise AssertionError("a step has neither ended nor is it waiting for a lock")

    def _waits(self) -> bool:
        row = self._watcher.execute(
            "SELECT pg_blocking_pids(%s) <> '{}'", (self.connection.info.backend_pid,)
        ).fetchone()
        return row == (True,)


class Claimer(Session):
    """Claims one key, then commits or rolls back; runs the claim again when it is told that the ledger rotated."""

    def __init__(
        self, connection: psycopg.Connection[Any], watcher: psycopg.Connection[Any], *, commits: bool = True
    ) -> None:
        super().__init__(connection, watcher)
        self.commits = commits
        self.rotated = 0
        self.won: bool | None = None

    def steps(self, key: bytes) -> list[Step]:
        self.won = None

        def claim_it() -> None:
            while True:
                self.connection.execute("BEGIN")
                try:
                    within = window(self.connection, "any")
                    self.won = not claim(self.connection, "any", 1, [key], [TWIN], within=within)
                    return
                except LedgerRotated:
                    self.rotated += 1
                    self.connection.execute("ROLLBACK")

        def end() -> None:
            self.connection.execute("COMMIT" if self.commits else "ROLLBACK")

        return [claim_it, end]


class Rotator(Session):
    """Rotates the ledger by the statements of the product, one a step."""

    def __init__(
        self, connection: psycopg.Connection[Any], watcher: psycopg.Connection[Any], *, commits: bool = True
    ) -> None:
        super().__init__(connection, watcher)
        self.commits = commits

    def steps(self) -> list[Step]:
        row = self._watcher.execute(
            "SELECT generation, name FROM onefold.ledger_partitions WHERE ledger = 'any' AND ends_at IS NULL"
        ).fetchone()
        assert row is not None
        generation, active = row
        name = f"ledger_{generation + 1}"

        def seal() -> None:
            self.connection.execute("BEGIN")
            self.connection.execute(statement("ledger_make"), (name, generation + 1))
            self.connection.execute(statement("ledger_seal", partition=Identifier(active)))

        def end() -> None:
            values = {"now": datetime.now(UTC), "generation": generation, "name": name}
            self.connection.execute(statement("ledger_rotate"), values)
            self.connection.execute("COMMIT" if self.commits else "ROLLBACK")

        return [seal, end]


def run_in_order(order: Sequence[int], sessions: Sequence[Session], steps: Sequence[list[Step]]) -> None:
    """Take the steps in this order of sessions. What cannot be taken yet, because its session waits, comes later."""
    left = [iter(each) for each in steps]
    due = list(order)
    deadline = time.monotonic() + 60
    while due:
        assert time.monotonic() < deadline, "the sessions wait for each other"
        number = next((each for each in due if sessions[each].settled()), None)
        if number is not None:
            due.remove(number)
            sessions[number].take(next(left[number]))
    while not all(session.settled() for session in sessions):
        assert time.monotonic() < deadline, "the sessions wait for each other"


def orders(*counts: int) -> Iterator[tuple[int, ...]]:
    """Yield every order in which sessions can take these numbers of steps."""
    numbers = [number for number, count in enumerate(counts) for _ in range(count)]
    yield from sorted(set(itertools.permutations(numbers)))


@pytest.fixture
def sessions(open_raw: Open) -> Iterator[Callable[..., list[Any]]]:
    with ExitStack() as stack:

        def make(*kinds: Callable[[Any, Any], Session]) -> list[Session]:
            watcher = open_raw()
            made = [kind(open_raw(), watcher) for kind in kinds]
            for session in made:
                stack.callback(session.close)
            return made

        yield make


def copies(connection: psycopg.Connection[Any], key: bytes) -> int:
    row = connection.execute(
        "SELECT count(*) FROM onefold.ledger WHERE uuid_send(key) = %s", (key,)
    ).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("owner_commits", [True, False])
@pytest.mark.parametrize("rotation_commits", [True, False])
def test_two_claims_and_a_rotation_in_every_order(
    sessions: Callable[..., list[Any]], open_plain: Open, *, owner_commits: bool, rotation_commits: bool
) -> None:
    """C90: the 90 orders of the steps of two claimers of one key and a rotation."""
    one, two, rotator = made = sessions(
        lambda *args: Claimer(*args, commits=owner_commits),
        Claimer,
        lambda *args: Rotator(*args, commits=rotation_commits),
    )
    looking = open_plain()
    for order in orders(2, 2, 2):
        key = new_event_id().bytes
        run_in_order(order, made, [one.steps(key), two.steps(key), rotator.steps()])
        winners = [each for each in (one, two) if each.won and each.commits]
        assert len(winners) == copies(looking, key) == 1, order
    # The orders did meet: claims have waited for claims and for the seal, and the seal for claims.
    assert one.blocked
    assert two.blocked
    assert rotator.blocked


def test_a_writer_whose_snapshot_is_older_than_the_rotation_meets_the_seal(open_plain: Open) -> None:
    """The seal is a constraint: it holds for a snapshot that sees neither it, nor the new generation, nor its keys."""
    old, other, rotator = open_plain(), open_plain(), open_plain()
    old.isolation_level = IsolationLevel.REPEATABLE_READ
    key = new_event_id()
    with old.transaction(force_rollback=True):
        old.execute("SELECT 1 FROM onefold.consumers")
        with rotator.transaction():
            rotator.execute(statement("ledger_make"), ("ledger_2", 2))
            rotator.execute(statement("ledger_seal", partition=Identifier("ledger_1")))
            values = {"now": datetime.now(UTC), "generation": 1, "name": "ledger_2"}
            rotator.execute(statement("ledger_rotate"), values)
        with other.transaction():
            assert claim(other, "any", 1, [key.bytes], [TWIN], within=window(other, "any")) == {}
        row = old.execute("SELECT generation FROM onefold.ledger_partitions WHERE ends_at IS NULL").fetchone()
        assert row == (1,)
        assert old.execute("SELECT FROM onefold.ledger WHERE key = %s", (key,)).fetchone() is None
        late = (
            "INSERT INTO onefold.ledger (generation, consumer, key, fingerprint) VALUES (1, 1, %s, %s)"
            " ON CONFLICT DO NOTHING"
        )
        with pytest.raises(psycopg.errors.CheckViolation) as caught, old.transaction():
            old.execute(late, (key, key))
    assert caught.value.diag.constraint_name == "ledger_sealed"
    assert copies(other, key.bytes) == 1


def test_a_claim_that_waited_for_the_seal_goes_to_the_next_generation(
    sessions: Callable[..., list[Any]], open_plain: Open
) -> None:
    claimer, rotator = made = sessions(Claimer, Rotator)
    key = new_event_id().bytes
    # The seal is set; the claim waits for it; the rotation is committed.
    run_in_order([1, 0, 1, 0], made, [claimer.steps(key), rotator.steps()])
    assert claimer.blocked == 1
    row = (
        open_plain()
        .execute("SELECT generation FROM onefold.ledger WHERE uuid_send(key) = %s", (key,))
        .fetchone()
    )
    assert row == (2,)
    assert claimer.won

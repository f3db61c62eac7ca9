"""The processor: decides and applies batches of arrivals, each batch in one transaction.

A batch in which something fails is rolled back and run again in parts: first what came before the failing message, then
that message by itself. So a message that cannot be applied costs the others one more try, and no more.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import islice
from typing import Any, Protocol

import psycopg
from psycopg.pq import TransactionStatus

from ...projections.consumer import Consumer, Rejected
from ...projections.fingerprint import shown
from ...projections.guards import APPLIED, FAILED_FOR_GOOD, Outcome, after_deaths, after_failure, max_suspects
from ...projections.inbox import Item, Plan, Planner, Standing, Step
from ...projections.retention import duration
from ..backoff import Backoff
from ..postgres.errors import BrokenTransaction
from ..postgres.inbox import (
    COMMITTED_EARLY,
    PARKED_AT_ONCE,
    Inbox,
    ParkedRow,
    SequenceAppeared,
    Trouble,
)
from ..postgres.ledger import LedgerRotated, OutsideWindow
from ..postgres.log import lost
from .arrivals import Arrival, Reader, reason
from .claims import Claims
from .failures import EffectFailed, Interrupted, Refused, passing
from .folding import Folding, Span
from .letters import arrival_of, letter, letter_of_broken, parked_values
from .notices import Notices
from .observed import Observed
from .transaction import AsyncTransaction, Repositories, Transaction, TransactionNotYours

LARGEST = 20_000
"""Messages in one transaction at most."""

CONFLICTS = 8
"""Times that a message is run again at once because of somebody else's transaction; then it counts as a failed try."""

LOCKED = 1.0
"""Seconds until a message is tried again whose function has waited for a lock in vain."""

_NOTHING: Mapping[Any, Any] = {}


class Sink(Protocol):
    """Where the processor tells what has become of arrivals; each is told once, after what it says is committed."""

    def done(self, arrivals: Sequence[Arrival]) -> None:
        """These are decided for good."""
        ...

    def again(self, arrival: Arrival, delay: float) -> None:
        """This one is to be processed again after `delay` seconds."""
        ...

    def back(self, arrival: Arrival) -> None:
        """This one is in another worker's hands, and is best delivered again later."""
        ...


class Processor:
    """Processes the arrivals of one consumer over one connection, which is in autocommit mode and not shared."""

    def __init__(
        self,
        consumer: Consumer,
        inbox: Inbox,
        repositories: Repositories,
        reader: Reader,
        *,
        observed: Observed | None = None,
        notices: Notices | None = None,
        span: Span | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.consumer = consumer
        self.inbox = inbox
        self.reader = reader
        self.observed = observed or Observed()
        self._connection = inbox.connection
        self._repositories = repositories
        self._planner = Planner(consumer.rule, consumer.lifecycle)
        self._folding = None if consumer.fold is None else Folding(inbox.connection, consumer.fold)
        self._claims = Claims(inbox.connection, consumer, inbox.number, self.observed)
        self._category = None if consumer.fold is None else inbox.category()
        self._unsettled: list[tuple[Item, tuple[tuple[Outcome, str] | None, str | None, int | None]]] = []
        self._notices = notices or Notices(consumer.name)
        self._span = span
        self._stopping = stopping
        self._opened = False
        self._loop: asyncio.Runner | None = asyncio.Runner() if consumer.is_async else None

    def close(self) -> None:
        """End the event loop of an async consumer."""
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    def process(self, todo: deque[Arrival], sink: Sink, *, limit: int = LARGEST) -> None:
        """Decide and apply `todo` from its front, which shrinks as its arrivals are told to `sink`.

        Raises `psycopg.OperationalError` when the connection is lost, and `Interrupted`; what is left in `todo` is not
        done.
        """
        size = limit = min(limit, LARGEST)
        conflicts = 0
        drains = True
        backoff = Backoff(0.005, 0.5)
        while todo:
            if self._stopping():
                raise Interrupted
            part = list(islice(todo, size))
            try:
                part, troubled = self._mark(part)
                plan = self._transact(part, troubled, drains=drains)
            except (SequenceAppeared, LedgerRotated, OutsideWindow):
                self._claims.look_again()
                continue
            except EffectFailed as failed:
                if passing(failed.cause) and conflicts < CONFLICTS:
                    conflicts += 1
                    time.sleep(backoff.next())
                    continue
                size = self._failed(part, failed, todo, sink)
                conflicts = 0
            except Refused as refused:
                # One that waited may be at fault: one by itself is run without them, and they by the clock.
                drains = len(part) > 1 or not refused.waited
                size = self._refused(part, refused, todo, sink)
            except psycopg.errors.LockNotAvailable:
                size = self._locked(part, todo, sink) or limit
            except psycopg.OperationalError as error:
                if lost(error) or not passing(error):
                    raise
                conflicts += 1
                if conflicts > CONFLICTS:
                    size = max(1, len(part) // 2)
                time.sleep(backoff.next())
            else:
                for _ in part:
                    todo.popleft()
                self._tell(plan, part)
                sink.done(part)
                size = min(limit, size * 2) if len(part) == size else size
                conflicts = 0
                drains = True
                backoff.reset()

    def _mark(self, part: list[Arrival]) -> tuple[list[Arrival], dict[bytes, Trouble]]:
        """Note what is taken in hand; of what is under suspicion take less."""
        troubled = self.inbox.mark([arrival.key for arrival in part if arrival.key])
        if not troubled:
            return part, troubled
        first = next(place for place, arrival in enumerate(part) if arrival.key in troubled)
        least = first or max_suspects(
            (trouble.attempts, trouble.alone, trouble.among) for trouble in troubled.values()
        )
        if len(part) > least:
            part = part[:least]
            troubled = self.inbox.mark([arrival.key for arrival in part if arrival.key])
        return part, troubled

    def drain(self, sequence: str) -> bool:
        """Apply messages that wait in a sequence and whose turn has come; make those past their deadline dead letters.

        True if something was done; a sequence that another worker has in hand is left to it.
        """
        limit, conflicts = PARKED_AT_ONCE, 0
        plan = Plan()
        while True:
            try:
                with self._transaction():
                    locked = self.inbox.lock([sequence], wait=False)
                    if sequence not in locked or not locked[sequence].parked:
                        return False
                    rows = self.inbox.parked([sequence])
                    plan = self._planner.drain(
                        sequence,
                        locked[sequence],
                        [self.item_of(row) for row in rows if not row.overdue][:limit],
                        ruled=[self._overdue(row) for row in rows if row.overdue],
                    )
                    if not plan.steps:
                        return False
                    self._apply(plan, locked)
                    counts = self._write(plan, locked, (), {})
            except EffectFailed as failed:
                conflicts += 1
                if not passing(failed.cause) or conflicts > CONFLICTS:
                    self._failed_in_waiting(failed.item, failed.cause)
                    conflicts = 0
                continue
            except Refused as refused:
                effects = plan.effects()
                if not effects:
                    raise refused.reason from refused
                limit = len(effects) // 2
                if not limit:
                    self._failed_in_waiting(effects[0], refused.reason)
                    limit = 1
                continue
            self.observed.count(counts)
            self._tell(plan)
            return True

    def decide_again(
        self,
        arrival: Arrival,
        *,
        fresh: bool,
        taken: Callable[[], bool],
        resolved: Callable[[Outcome], None],
    ) -> tuple[Outcome, str]:
        """Decide and apply a message that was a dead letter; return what became of it, and why where it is one still.

        `fresh` says that it has not claimed its key. In the transaction `taken` tells first whether it is still a dead
        letter, and `resolved` is called at the end with the outcome, where that is a better one.
        """
        item = arrival
        drains = True
        backoff = Backoff(0.005, 0.5)
        for _ in range(CONFLICTS):
            plan, settled = Plan(), self._category
            try:
                with self._transaction():
                    if not taken():
                        return Outcome.DUPLICATE, "somebody else has dealt with it"
                    category = self._sort_out([item])
                    locked = self.inbox.lock([] if item.sequence is None else [item.sequence])
                    entries = self._claims.claim([item])
                    item.forgotten = False
                    plan = self._planner.plan(
                        [item],
                        {key: entry.fingerprint for key, entry in entries.items()} if fresh else {},
                        locked,
                        self._waiting(locked, [item]) if drains else _NOTHING,
                    )
                    self._apply(plan, locked)
                    counts = self._write(plan, locked, (), {}, known=item)
                    (_, outcome, cause) = next(step for step in plan.steps if step.item is item)
                    if outcome in FAILED_FOR_GOOD:
                        # It stays as it was: a key that it has not claimed before must not be claimed now.
                        raise psycopg.Rollback
                    resolved(outcome)
                    settled = category
            except (SequenceAppeared, LedgerRotated, OutsideWindow):
                self._claims.look_again()
                continue
            except EffectFailed as failed:
                if failed.item is not item:
                    # A message behind it: this one is applied without it.
                    self._failed_in_waiting(failed.item, failed.cause)
                    continue
                if passing(failed.cause):
                    time.sleep(backoff.next())
                    continue
                by_handler = isinstance(failed.cause, Rejected)
                return Outcome.REJECTED if by_handler else Outcome.DEAD_LETTERED, reason(failed.cause)
            except Refused as refused:
                if _waited(plan):
                    drains = False
                    continue
                return Outcome.DEAD_LETTERED, reason(refused.reason)
            except psycopg.errors.LockNotAvailable:
                break
            except psycopg.OperationalError as error:
                if lost(error) or not passing(error):
                    raise
                time.sleep(backoff.next())
                continue
            self._settle(settled)
            self.observed.count(counts)
            self._tell(plan)
            return outcome, cause
        return Outcome.IN_PROGRESS, "others are at its key or sequence; try again"

    def _overdue(self, row: ParkedRow) -> Arrival:
        item = self.item_of(row)
        deadline = duration(self.consumer.gap_deadline)
        item.ruled = (
            Outcome.DEAD_LETTERED,
            f"it waited for {deadline}, and what it waits for did not come: {row.reason}",
        )
        return item

    def _transact(
        self, part: Sequence[Arrival], troubled: Mapping[bytes, Trouble], *, drains: bool = True
    ) -> Plan:
        items = [arrival for arrival in part if arrival.key]
        broken = [arrival for arrival in part if not arrival.key]
        for item in items if troubled else ():
            trouble = troubled.get(item.key)
            if trouble is not None:
                item.attempts = trouble.attempts + trouble.alone
                outcome = after_deaths(trouble.attempts, trouble.alone, self.consumer.retry.attempts)
                if item.ruled is None and outcome is Outcome.DEAD_LETTERED:
                    item.ruled = (outcome, trouble.error)
        started = time.monotonic()
        inbox = self.inbox
        plan = Plan()
        try:
            with self._transaction():
                category = self._sort_out(items)
                sequences = {item.sequence for item in items if item.sequence is not None}
                locked = inbox.lock(sequences) if sequences else {}
                entries = self._claims.claim(items) if items else {}
                waiting = self._waiting(locked, items) if drains else _NOTHING
                plan = self._planner.plan(
                    items,
                    {key: entry.fingerprint for key, entry in entries.items()},
                    locked,
                    waiting,
                )
                self._apply(plan, locked)
                counts = self._write(plan, locked, broken, troubled)
        except Refused as refused:
            refused.waited = _waited(plan)
            raise
        if self._folding is not None:
            self._settle(category)
            self._folding.keep()
        self.observed.count(counts)
        self.observed.batched(time.monotonic() - started)
        self._notices.first_seen(entries)
        return plan

    def _sort_out(self, items: Sequence[Arrival]) -> str | None:
        """Reject what is of another category than this consumer folds; return that one, None before the first.

        A row is known by the key after the category, so two categories would meet in it. Their messages have no place
        in the sequence: nothing waits behind them.
        """
        known = self._category
        if self._folding is None:
            return None
        # Their transaction was rolled back, and with it the category.
        while self._unsettled:
            item, place = self._unsettled.pop()
            item.ruled, item.sequence, item.version = place
        if known is None:
            first = (item.category for item in items if item.ruled is None)
            found = next((category for category in first if category is not None), None)
            if found is None:
                return None
            known = self.inbox.settle_category(found)
        if {item.category for item in items} <= {known, None}:
            return known
        for item in items:
            found = item.category
            if found is None or found == known:
                continue
            if self._category is None:
                self._unsettled.append((item, (item.ruled, item.sequence, item.version)))
            item.sequence = item.version = None
            # One of a type that is passed over is passed over here, too.
            if item.ruled is None and item.event is not None:
                cause = (
                    f"expected a sequence of category {shown(known)}, which this consumer has begun with, found one of "
                    f"{shown(found)}: both would have the same rows; give each category a consumer and a projection "
                    "of its own"
                )
                item.ruled = (Outcome.REJECTED, cause)
        return known

    def _settle(self, category: str | None) -> None:
        self._category = category
        self._unsettled.clear()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Run the body in a transaction; what its commit refuses, as by a deferred constraint, is `Refused`."""
        try:
            with self._connection.transaction():
                yield
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            raise Refused(error) from error

    def _waiting(self, locked: Mapping[str, Standing], items: Sequence[Item]) -> Mapping[str, list[Item]]:
        sequences = [sequence for sequence, found in locked.items() if found.parked]
        if sequences and self.consumer.rule.ordering == "delta":
            # Only the next one can be what others wait for.
            following = {
                item.sequence
                for item in items
                if item.sequence is not None
                and item.version == locked.get(item.sequence, Standing()).version + 1
            }
            sequences = [sequence for sequence in sequences if sequence in following]
        if not sequences:
            return _NOTHING
        waiting: dict[str, list[Item]] = {}
        for row in self.inbox.parked(sequences):
            waiting.setdefault(row.sequence, []).append(self.item_of(row))
        return waiting

    def item_of(self, row: ParkedRow) -> Arrival:
        """Return a parked message made ready again, in the place that it was parked for."""
        item = self.reader.arrival(row.delivery)
        if not item.key:
            item.ruled = (Outcome.REJECTED, item.problem)
        item.key, item.fingerprint = row.key, row.fingerprint
        item.sequence, item.version = row.sequence, row.version
        item.parked, item.held, item.attempts = row.id, row.held, row.attempts
        if row.attempts >= self.consumer.retry.attempts and item.ruled is None:
            item.ruled = (Outcome.DEAD_LETTERED, row.error or "its tries are used up")
            item.held = False
        return item

    def _apply(self, plan: Plan, locked: Mapping[str, Standing]) -> None:
        if self._folding is not None:
            self._folding.apply(plan, locked, self._span)
            return
        self._opened = False
        for item, outcome, _ in plan.steps:
            if outcome is APPLIED and item.event is not None:
                if not self._opened:
                    self.inbox.open()
                    self._opened = True
                self._handle(item)

    def _handle(self, item: Item) -> None:
        tx = Transaction(self._connection, self._repositories, item.message, self.consumer.name)
        effect = self.consumer.effect
        assert effect is not None
        try:
            with nullcontext() if self._span is None else self._span(item.message):
                if self._loop is not None:
                    # In the context of the span; a runner has one of its own.
                    self._loop.run(
                        effect(item.event, AsyncTransaction(tx)), context=contextvars.copy_context()
                    )
                else:
                    effect(item.event, tx)
            if self._connection.info.transaction_status != TransactionStatus.INTRANS:
                raise BrokenTransaction
        except psycopg.OperationalError as error:
            if lost(error) and self._connection.broken:
                raise
            raise EffectFailed(item, error) from error
        except psycopg.DatabaseError as error:
            cause = TransactionNotYours() if error.sqlstate == COMMITTED_EARLY else error
            raise EffectFailed(item, cause) from error
        # Also of what an async function has cancelled itself: nobody else cancels it.
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            raise EffectFailed(item, error) from error
        finally:
            tx.end()
        if self._stopping():
            raise Interrupted

    def _write(
        self,
        plan: Plan,
        locked: Mapping[str, Standing],
        broken: Sequence[Arrival],
        troubled: Mapping[bytes, Trouble],
        *,
        known: Item | None = None,
    ) -> Mapping[Outcome, int]:
        """Write what the plan leaves; `known` is a message that is a dead letter already."""
        counts = plan.counts()
        parked: dict[str, int] = {}
        gone: list[int] = []
        new: list[Step] = []
        if len(plan.steps) != counts[APPLIED] or any(found.parked for found in locked.values()):
            for step in plan.steps:
                item, outcome = step.item, step.outcome
                if outcome in FAILED_FOR_GOOD and item is not known:
                    self.inbox.dead_letter(letter(step))
                if outcome is Outcome.PARKED:
                    new.append(step)
                elif item.parked is not None:
                    gone.append(item.parked)
                else:
                    continue
                assert item.sequence is not None
                change = 1 if outcome is Outcome.PARKED else -1
                parked[item.sequence] = parked.get(item.sequence, 0) + change
        for arrival in broken:
            counts[Outcome.REJECTED] += 1
            self.inbox.dead_letter(letter_of_broken(arrival))
        try:
            if new:
                self.inbox.park(parked_values(step) for step in new)
            if gone:
                self.inbox.unpark(gone)
            if troubled:
                self.inbox.forget_attempts(troubled)
            is_open = self.inbox.write(counts, plan.standings, parked, locked)
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            raise Refused(error) from error
        if self._opened and not is_open:
            # This is another transaction than that of the keys: a function has rolled back, and begun anew.
            raise Refused(TransactionNotYours())
        return counts

    def _locked(self, part: Sequence[Arrival], todo: deque[Arrival], sink: Sink) -> int:
        """Give back what another worker has in hand; return how many are to be tried together next, 0 for as many."""
        away = set(part)
        if len(part) > 1:
            # Each try waits for the lock anew, so those that have none to wait for go on at once.
            busy = self.inbox.busy({arrival.sequence for arrival in part if arrival.sequence is not None})
            away = {arrival for arrival in part if arrival.sequence in busy}
        if not away:
            return len(part) // 2
        self._count({Outcome.IN_PROGRESS: len(away)})
        self.inbox.unmark()
        for _ in part:
            todo.popleft()
        todo.extendleft(arrival for arrival in reversed(part) if arrival not in away)
        for arrival in part:
            if arrival in away:
                sink.back(arrival)
        return 0

    def _refused(self, part: Sequence[Arrival], refused: Refused, todo: deque[Arrival], sink: Sink) -> int:
        """Find out whose fault it is that the batch was refused; return how many are to be tried together next."""
        if len(part) > 1 or refused.waited:
            return max(1, len(part) // 2)
        if not part[0].key:
            raise refused.reason from refused
        return self._failed(part, EffectFailed(part[0], refused.reason), todo, sink)

    def _failed(self, part: Sequence[Arrival], failed: EffectFailed, todo: deque[Arrival], sink: Sink) -> int:
        """Deal with a message whose effect failed; return how many are to be tried together next."""
        item, cause = failed.item, failed.cause
        if item.parked is not None:
            self._failed_in_waiting(item, cause)
            return len(part)
        place = next(index for index, arrival in enumerate(part) if arrival is item)
        if place > 0:
            return place
        if len(part) > 1:
            return 1
        text = reason(cause)
        if isinstance(cause, Rejected):
            item.ruled = (Outcome.REJECTED, text)
            return 1
        attempts, delay = self._next_try(item, cause, lambda: self.inbox.attempt(item.key, text))
        if after_failure(attempts, self.consumer.retry.attempts) is Outcome.DEAD_LETTERED:
            item.ruled = (Outcome.DEAD_LETTERED, text)
            return 1
        self._count({Outcome.RETRIED: 1})
        self.inbox.unmark()
        self._notices.failed(arrival_of(item), text, attempts, delay, cause)
        sink.again(todo.popleft(), delay)
        return 1

    def _failed_in_waiting(self, item: Item, cause: BaseException) -> None:
        """Deal with a parked message whose turn had come, and whose effect failed: it waits on, for its next try."""
        assert item.parked is not None
        text = reason(cause)
        allowed = self.consumer.retry.attempts
        # One that is refused, or was tried often enough, becomes a dead letter in the next run of the batch.
        counted = allowed if isinstance(cause, Rejected) else item.attempts + 1
        attempts, delay = self._next_try(item, cause, lambda: counted)
        self.inbox.parked_attempt(item.parked, text, delay, attempts)
        if after_failure(attempts, allowed) is Outcome.RETRIED:
            self._count({Outcome.RETRIED: 1})
            self._notices.failed(arrival_of(item), text, attempts, delay, cause)

    def _next_try(self, item: Item, cause: BaseException, counted: Callable[[], int]) -> tuple[int, float]:
        """Return how often a message has failed now, and the seconds until it is tried again."""
        retry = self.consumer.retry
        if isinstance(cause, psycopg.errors.LockNotAvailable):
            # Whoever holds the lock is at fault, as a migration that runs for minutes: no message dies of that.
            attempts, pause = item.attempts, LOCKED
        else:
            attempts = counted()
            pause = retry.delay(attempts) or 0.0
        return attempts, Backoff(pause, max(pause, retry.longest)).next()

    def _count(self, counts: Mapping[Outcome, int]) -> None:
        self.inbox.count(counts)
        self.observed.count(counts)

    def count_hinted(self, arrivals: Sequence[Arrival]) -> None:
        """Count duplicates that were told by a hint, without the ledger."""
        self._count({Outcome.DUPLICATE: len(arrivals)})
        for arrival in arrivals:
            self._notices.decided(arrival, Outcome.DUPLICATE)

    def _tell(self, plan: Plan, part: Sequence[Arrival] = ()) -> None:
        for arrival in part:
            if not arrival.key:
                self._notices.unreadable(arrival)
        for item, outcome, cause in plan.steps:
            arrival = arrival_of(item)
            arrival.outcome = outcome
            if outcome is not APPLIED:
                self._notices.decided(arrival, outcome, cause)


def _waited(plan: Plan) -> bool:
    return any(step.item.parked is not None for step in plan.steps)

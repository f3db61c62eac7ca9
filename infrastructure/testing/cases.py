"""Cases: the ways in which messages arrive, and the proof that a consumer comes to the same state by each."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass
from functools import partial
from threading import Barrier
from typing import Any

from ...projections.consumer import Consumer
from ...projections.guards import Outcome
from ..brokers.port import Delivery
from ..connection import connected
from ..consuming.dead_letters import list_dead_letters, list_parked
from ..settings import DATABASE_URL
from .courier import Courier
from .databases import copy_of
from .errors import NotExactlyOnce, ProvesNothing
from .faults import Hook, ToldToFail, die, end_connections, hooked, in_child, nothing, slowed
from .messages import in_new_envelope
from .orders import first_of_each, keeps_order, orders
from .state import Sight, State, differences

FIT = frozenset({Outcome.APPLIED, Outcome.STALE, Outcome.DUPLICATE, Outcome.PARKED})
"""What may become of a message of a test in the run that the others are compared with."""

PAUSES = 1.0
"""Seconds that all messages are slowed down together, where each has one statement."""

LONGEST_PAUSE = 0.05

UNDONE = (
    "What the function did in a try that was undone is still there, or was lost with it: it does something outside of "
    "its transaction. Write through tx alone (tx.execute, tx.connection, tx.save); what must leave the database, such "
    "as a call or a mail, needs a key of its own by which its receiver knows it again."
)


@dataclass(frozen=True, slots=True)
class Proof:
    """A consumer, messages for it, and what their effect is seen by.

    Every run has a copy of one database. `reset` is called before each, for what is outside of the database. `workers`
    is how many deliver at the same time, `orders` in how many orders the messages come, drawn from `seed`.
    """

    consumer: Consumer
    messages: Sequence[Delivery]
    sight: Sight
    reset: Callable[[], object] = nothing
    workers: int = 4
    orders: int = 10
    seed: int = 0

    def run(self, case: str, url: str) -> None:
        """Run the case of this name; `url` is of a migrated database with the consumer's tables.

        Raises `NotExactlyOnce`, or `ProvesNothing` when the messages have no effect or cannot be applied.
        """
        expected = self.applied_once(url)
        with self.ground(url) as ground:
            untouched = self.state(ground)
        if not differences(untouched, expected):
            raise ProvesNothing(
                f"consumer {self.consumer.name}: the messages changed nothing that the test sees; name what they "
                "change with state=, a function of a connection, or look whether they do what they should"
            )
        CASES[case](Trial(self, url, expected))

    @contextmanager
    def ground(self, url: str) -> Iterator[str]:
        """Yield the URL of a database for one run, which is the one that ONEFOLD_DATABASE_URL names meanwhile."""
        before = os.environ.get(DATABASE_URL)
        with copy_of(url) as copied:
            os.environ[DATABASE_URL] = copied
            try:
                self.reset()
                yield copied
            finally:
                if before is None:
                    del os.environ[DATABASE_URL]
                else:
                    os.environ[DATABASE_URL] = before

    def state(self, url: str) -> State:
        """Return the state of a run's database."""
        with connected(url) as connection:
            return self.sight.state(connection)

    def left(self, url: str) -> list[str]:
        """Return lines that tell which messages were not applied, and why."""
        name = self.consumer.name
        with connected(url) as connection:
            letters = list_dead_letters(connection, consumer=name)
            waiting = list_parked(connection, consumer=name)
        return [
            *(f"{letter.place} is a dead letter, {letter.outcome}: {letter.cause}" for letter in letters),
            *(f"{parked.place} waits: {parked.error or parked.reason}" for parked in waiting),
        ]

    def applied_once(self, url: str) -> State:
        """Return the state after each message once, in order; raises `ProvesNothing`."""
        with self.ground(url) as ground:
            self._apply_once(ground)
            return self.state(ground)

    def _apply_once(self, url: str) -> None:
        errors: list[BaseException] = []
        with Courier(url, _watched(self.consumer, errors)) as courier:
            outcomes = courier.deliver(self.messages, together=1)
        left = self.left(url)
        if left or not FIT.issuperset(outcomes):
            # The last frames are the function's own.
            raised = "".join(traceback.format_exception(errors[-1], limit=-3)) if errors else ""
            problem = (
                f"consumer {self.consumer.name}: expected messages that can be applied in order, once each, found that "
                "they cannot; correct the messages, or the consumer"
            )
            raise ProvesNothing("\n".join([problem, *left, raised]).rstrip())


@contextmanager
def _keeping(errors: list[BaseException]) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        errors.append(error)
        raise


def _watched(consumer: Consumer, errors: list[BaseException]) -> Consumer:
    """Return the consumer, whose errors are kept."""
    effect = consumer.effect
    if effect is None:
        return consumer

    def called(event: Any, tx: Any) -> Any:
        with _keeping(errors):
            return effect(event, tx)

    async def awaited(event: Any, tx: Any) -> None:
        with _keeping(errors):
            await effect(event, tx)

    made = copy(consumer)
    made.effect = awaited if consumer.is_async else called
    return made


@dataclass(frozen=True, slots=True)
class Trial:
    """One case at work: a proof, the database that it copies, and the state that is to come out."""

    proof: Proof
    url: str
    expected: State

    @contextmanager
    def ground(self, what: str, why: str) -> Iterator[str]:
        """Yield a database to deliver in; afterwards its state is compared. `what` happened, `why` it may be wrong."""
        proof = self.proof
        with proof.ground(self.url) as url:
            yield url
            told = differences(self.expected, proof.state(url))
            left = proof.left(url)
        if told or left:
            self._require_repeatable()
            lines = [f"consumer {proof.consumer.name} is not exactly once: {what}", *told, *left, why]
            raise NotExactlyOnce("\n".join(lines))

    def _require_repeatable(self) -> None:
        """Refuse to blame the consumer where already the same run gives two states."""
        proof = self.proof
        told = differences(self.expected, proof.applied_once(self.url))
        if told:
            problem = (
                f"consumer {proof.consumer.name}: expected the same state whenever the messages are applied in order, "
                "once each, found another one the second time. Columns that hold a time or chance are left out with "
                "ignore=; what the function keeps in memory, or outside of the database, is for reset= to undo"
            )
            raise ProvesNothing("\n".join([problem, *told]))

    def deliver_again(self, url: str) -> None:
        """Deliver every message once more, by another worker."""
        with Courier(url, self.proof.consumer) as courier:
            courier.deliver(self.proof.messages, together=1)


def twice(trial: Trial) -> None:
    """Every message comes twice in one batch, and once more to another worker."""
    why = (
        "The key of a message must be the same each time that it comes: key= must not depend on a clock, on chance "
        "or on what the broker adds. And what the function does must be done through tx."
    )
    with trial.ground("every message was delivered three times", why) as url:
        with Courier(url, trial.proof.consumer) as courier:
            courier.deliver([each for each in trial.proof.messages for _ in range(2)])
        trial.deliver_again(url)


def new_envelope(trial: Trial) -> None:
    """Every message is sent a second time by its producer, under another id."""
    why = (
        "The consumer knows a message by its id, which a producer gives anew when it sends the same again. Name the "
        'business key, such as key="data.payment_id", or have the producer set the attribute idempotencykey. Where it '
        "keeps its ids for certain: exactly_once(..., producer_keeps_ids=True)."
    )
    with (
        trial.ground("the producer sent every message again, under another id", why) as url,
        Courier(url, trial.proof.consumer) as courier,
    ):
        courier.deliver(trial.proof.messages, together=1)
        courier.deliver([in_new_envelope(each) for each in trial.proof.messages], together=1)


def concurrently(trial: Trial) -> None:
    """Several workers get all messages at the same time, each beginning with another one."""
    proof = trial.proof
    consumer = slowed(proof.consumer, min(LONGEST_PAUSE, PAUSES / len(proof.messages)))
    if proof.consumer.rule.ordering == "unordered" and proof.consumer.fold is None:
        why = (
            "Two workers of an unordered consumer may read a row, and then both write it: one change is lost. Let the "
            "statement compute (SET balance = balance + %s), lock the row (SELECT … FOR UPDATE), or declare an "
            "ordering, by which messages of one sequence are handled one after the other."
        )
    else:
        why = (
            "Messages of one sequence are handled one after the other, those of different sequences side by side: do "
            "they write the same rows? Name with sequence= what belongs together. And a try that comes in the way of "
            "another worker is undone, but not what it did outside of its transaction."
        )
    barrier = Barrier(proof.workers)

    def work(messages: Sequence[Delivery], number: int, courier: Courier) -> None:
        first = 0 if keeps_order(proof.consumer) else number * len(messages) // proof.workers
        barrier.wait()
        courier.deliver([*messages[first:], *messages[:first]], together=1)

    # A sequence that is new is begun by one worker alone, which would hide what goes wrong later.
    begun = first_of_each(proof.consumer, proof.messages)
    rest = [number for number in range(len(proof.messages)) if number not in begun]
    what = f"{proof.workers} workers were delivered every message at the same time"
    for early in ([], begun) if rest else ([],):
        messages = [proof.messages[number] for number in rest] if early else proof.messages
        with trial.ground(what, why) as url, ExitStack() as stack:
            couriers = [stack.enter_context(Courier(url, consumer)) for _ in range(proof.workers)]
            couriers[0].deliver([proof.messages[number] for number in early])
            pool = stack.enter_context(ThreadPoolExecutor(proof.workers))
            list(pool.map(partial(work, messages), range(proof.workers), couriers))


def failing_first(trial: Trial) -> None:
    """The function fails for every message once, after its effect."""
    struck: set[int] = set()

    def fail() -> None:
        if courier.index not in struck:
            struck.add(courier.index)
            raise ToldToFail("told to fail by the test, after the effect")

    what = "the function failed after its effect, and the message was delivered again"
    with trial.ground(what, UNDONE) as url:
        with Courier(url, hooked(trial.proof.consumer, after=fail)) as courier:
            courier.deliver(trial.proof.messages, together=1)
        trial.deliver_again(url)


def connection_lost(trial: Trial) -> None:
    """The connection to the database is lost for every message once, after the effect and before the commit."""
    struck: set[int] = set()

    def lose() -> None:
        if courier.index not in struck:
            struck.add(courier.index)
            end_connections(url, trial.proof.consumer)

    what = "the connection was lost before the commit, and the message was delivered again"
    with trial.ground(what, UNDONE) as url:
        with Courier(url, hooked(trial.proof.consumer, after=lose)) as courier:
            courier.deliver(trial.proof.messages, together=1)
        trial.deliver_again(url)


def killed_before_effect(trial: Trial) -> None:
    """The process is killed with a message in hand, before its effect."""
    _killed(trial, "before the effect", lambda hook: {"before": hook})


def killed_before_commit(trial: Trial) -> None:
    """The process is killed after the effect of a message, before the commit."""
    _killed(trial, "after the effect, before the commit", lambda hook: {"after": hook})


def killed_before_acknowledgement(trial: Trial) -> None:
    """The process is killed after the commit of a message, before the broker is told."""
    _killed(trial, "after the commit, before the acknowledgement", None)


def any_order(trial: Trial) -> None:
    """The messages come in other orders, with repeats, in batches of any size."""
    proof = trial.proof
    match proof.consumer.rule.ordering:
        case "unordered":
            why = (
                'The consumer is declared "unordered", and its effect depends on the order. Declare version=, and '
                'ordering="delta" if each message adds to what was before, or ordering="snapshot" if each sets it.'
            )
        case "snapshot":
            why = (
                "A snapshot that comes late is passed over, as a newer one has set all that it would set. Where each "
                'message adds to what was before, ordering="delta" waits for those that are missing.'
            )
        case _:
            why = (
                "Messages of one sequence were applied in order, yet the effect differs: it depends on the order of "
                "different sequences. Name with sequence= what belongs together."
            )
    for numbers, batch in orders(proof.consumer, proof.messages, proof.orders, proof.seed):
        order = ", ".join(str(number + 1) for number in numbers)
        with (
            trial.ground(f"the messages came in the order {order} ({batch} at a time)", why) as url,
            Courier(url, proof.consumer) as courier,
        ):
            courier.deliver([proof.messages[number] for number in numbers], together=batch)


CASES: Mapping[str, Callable[[Trial], None]] = {
    case.__name__: case
    for case in (
        twice,
        new_envelope,
        concurrently,
        failing_first,
        connection_lost,
        killed_before_effect,
        killed_before_commit,
        killed_before_acknowledgement,
        any_order,
    )
}


def _killed(trial: Trial, when: str, at: Callable[[Hook], dict[str, Hook]] | None) -> None:
    """Kill a process that delivers everything at the first message, another at one in the middle, and at the last."""
    proof = trial.proof
    last = len(proof.messages) - 1

    def work(victim: int) -> None:
        def strike() -> None:
            if courier.index == victim:
                die()

        if at is None:
            courier = Courier(url, proof.consumer, acknowledging=strike)
        else:
            courier = Courier(url, hooked(proof.consumer, **at(strike)))
        courier.deliver(proof.messages, together=1)

    with trial.ground(f"the process was killed {when}, and the message delivered again", UNDONE) as url:
        for victim in sorted({0, last // 2, last}):
            in_child(partial(work, victim))
        trial.deliver_again(url)

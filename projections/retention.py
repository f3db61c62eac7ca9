"""Retention: for how long keys are remembered, and how late a message may come again."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from ..domain.errors import DeclarationError

MINUTE, HOUR, DAY = 60.0, 3_600.0, 86_400.0

UNASKED = 7 * DAY
"""Redelivery window, in seconds, of a broker that cannot say how long it keeps a message."""


class RetentionTooShort(DeclarationError):
    """A consumer would forget keys while their messages can still come again.

    Attributes: `consumer`, `kept` (seconds for which keys are remembered) and `required` (seconds that must pass first,
    `math.inf` for a broker that keeps messages for ever).
    """

    def __init__(self, consumer: str, kept: float, required: float, reason: str) -> None:
        self.consumer = consumer
        self.kept = kept
        self.required = required
        super().__init__(f"consumer {consumer}: {reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """For how long the ledger remembers a key, and what it must outlast; all in seconds.

    `ledger` is how long a key is remembered at least. `redelivery` is for how long the broker may deliver a message
    again; by default it is what the broker says of itself, or seven days where it cannot be asked. A message may
    further wait for the consumer to come up again (`downtime`), in the producer's outbox (`outbox_backlog`), and among
    the dead letters until somebody retries it (`dead_letter_age`); and clocks differ (`clock_skew`).
    """

    ledger: float = 30 * DAY
    redelivery: float | None = None
    downtime: float = DAY
    clock_skew: float = 5 * MINUTE
    outbox_backlog: float = HOUR
    dead_letter_age: float = 7 * DAY

    def __post_init__(self) -> None:
        for each in fields(self):
            value: float | None = getattr(self, each.name)
            if value is None:
                continue
            # Written so that NaN is refused too.
            if not 0 <= value < math.inf or (each.name == "ledger" and value == 0):
                least = "a positive number" if each.name == "ledger" else "a number from 0"
                raise DeclarationError(
                    f"retention: expected {each.name} to be {least} of seconds, found {value}"
                )

    def window(self, broker: float | None) -> float:
        """Return for how many seconds the broker may deliver a message again.

        `broker` is what the broker says: seconds, `math.inf` for ever, None where it cannot be asked. What is declared
        never makes a window shorter that the broker itself bounds.
        """
        if self.redelivery is None:
            return UNASKED if broker is None else broker
        if broker is None or math.isinf(broker):
            return self.redelivery
        return max(self.redelivery, broker)

    def required(self, broker: float | None) -> float:
        """Return the seconds after which no message can come again; `broker` as in `window`."""
        return sum(seconds for _, seconds in self._terms(broker))

    def refuse_if_short(self, consumer: str, broker: float | None) -> None:
        """Raise `RetentionTooShort`, with every term, unless keys are remembered for longer than `required`."""
        required = self.required(broker)
        if math.isinf(required):
            raise RetentionTooShort(
                consumer,
                self.ledger,
                required,
                "expected a broker that deletes old messages, found one that keeps them for ever, while the ledger "
                f"remembers a key for {duration(self.ledger)}; give the queue or topic a retention, or declare how "
                "old a message may be that is delivered again: Retention(redelivery=seconds)",
            )
        if self.ledger > required:
            return
        terms = ", ".join(f"{name} {duration(seconds)}" for name, seconds in self._terms(broker))
        raise RetentionTooShort(
            consumer,
            self.ledger,
            required,
            f"expected the ledger to remember keys for more than {duration(required)} ({terms}), found "
            f"{duration(self.ledger)}; declare a longer one, Retention(ledger=seconds), or lower a term that is "
            "too high",
        )

    def _terms(self, broker: float | None) -> tuple[tuple[str, float], ...]:
        return (
            ("redelivery window", self.window(broker)),
            ("downtime", self.downtime),
            ("clock skew", self.clock_skew),
            ("outbox backlog", self.outbox_backlog),
            ("dead-letter age", self.dead_letter_age),
        )


def duration(seconds: float) -> str:
    """Return seconds for a person, in the largest unit that fits: `7 days`, `1.5 hours`, `22.0451 days`."""
    units = (("day", DAY), ("hour", HOUR), ("minute", MINUTE))
    unit, size = next((each for each in units if seconds >= each[1]), ("second", 1.0))
    number = f"{seconds / size:,.6g}"
    return f"{number} {unit}" if number == "1" else f"{number} {unit}s"

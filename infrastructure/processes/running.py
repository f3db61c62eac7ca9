"""Running process managers: each as a consumer of the log and of its timeouts."""

from __future__ import annotations

from ...projections.process import Process
from ..consuming.consumption import GRACE, Consumption
from ..consuming.folding import Span
from ..consuming.observed import Observed
from ..postgres.log import Announcer
from .subscription import ProcessSubscription

BATCH = 100
"""Messages in one transaction unless told otherwise; one that fails costs the others of its transaction a try."""


def source_of(process: Process) -> str:
    """Return what the process manager consumes, as its workers say it."""
    return f"log:{process.log}"


def consumption(
    url: str,
    process: Process,
    *,
    announcer: Announcer | None = None,
    once: bool = False,
    batch: int = BATCH,
    lanes: int = 1,
    grace: float = GRACE,
    span: Span | None = None,
    observed: Observed | None = None,
) -> Consumption:
    """Return what runs a process manager on the database at `url`; see `Consumption`.

    `announcer` is the application's, so that what it publishes of its aggregates goes out too. With `once` it ends when
    it has come to the log's end and no timeout is due.
    """
    return Consumption(
        url,
        process.consumer,
        source_of(process),
        batch=batch,
        lanes=lanes,
        grace=grace,
        span=span,
        observed=observed,
        event_log=process.log,
        announcer=announcer,
        subscription=lambda: ProcessSubscription(url, process, once=once),
    )

"""Sealing as the log grows, until told to stop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import psycopg

from ..backoff import Backoff
from ..connection import connected, one_line
from .sealer import Report, Sealed, Sealer, Signs

EVERY = 1.0
"""Seconds between two looks for something to seal."""

TICK = 0.05

log = logging.getLogger("onefold.seal")


def follow(
    url: str,
    stopped: Callable[[], bool],
    *,
    name: str = "events",
    to: Path | None = None,
    signer: Signs | None = None,
    every: float = EVERY,
    progress: Report = lambda _seal: None,
) -> Sealed:
    """Seal log `name` every few seconds until `stopped` says so; return what was done in all.

    A connection that is lost is made anew. While another sealer is at the log this one stands by. Raises as `Sealer`.
    """
    made = events = handed = upto = 0
    backoff = Backoff(0.2, 10.0)
    waiting = busy = False
    while not stopped():
        try:
            with connected(url, application="onefold seal") as connection:
                sealer = Sealer(connection, log=name, to=to, signer=signer)
                while not stopped():
                    done = sealer.run(progress=progress)
                    made, events = made + done.seals, events + done.events
                    handed, upto = handed + done.handed_out, max(upto, done.upto)
                    waiting, busy = done.waiting, done.busy
                    backoff = Backoff(0.2, 10.0)
                    _pause(every, stopped)
        except psycopg.OperationalError as error:
            pause = backoff.next()
            log.warning("the connection is lost: %s; trying again in %.1f s", one_line(error), pause)
            _pause(pause, stopped)
    return Sealed(made, events, handed, upto, waiting, busy)


def _pause(seconds: float, stopped: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not stopped() and (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, TICK))

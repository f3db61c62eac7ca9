"""Deposits, three kinds of projection that add them up, and a process that forks workers of them.

Run as a program it reads one JSON object a line: `url`, `projection` and options; it forks a worker and answers with
its pid. What the worker prints and logs goes to `<pid>.log` in the folder that is the program's argument.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from onefold.domain.event import Event, EventMeta
from onefold.domain.registry import Registry
from onefold.infrastructure.wakeup import Wakeup
from onefold.infrastructure.worker import Worker
from onefold.projections.errors import ProjectionFailed
from onefold.projections.policies import Policy, Retry
from onefold.projections.projection import AnyProjection, Handler, Projection, SqlProjection
from onefold.projections.row import Row

known = Registry()


class Deposited(Event, name="bank.deposited", registry=known):
    amount: int


def deposit(account: str, version: int, amount: int = 1) -> Event:
    return Deposited(amount=amount).bound(EventMeta(f"account/{account}", version))


class Balance(Row, key="account"):
    account: str
    balance: int = 0
    count: int = 0
    last: int = 0
    in_order: bool = True


class Disturbance:
    """What happens to a worker at its n-th event, counted over the life of the process."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._at: int | None = options.get("at")
        self._what: str = options.get("what", "nothing")
        self._pause: float = options.get("pause", 0.0)
        self._seen = 0

    def __call__(self) -> None:
        """Called when the outcome of an event is ready and its position is not stored yet."""
        self._seen += 1
        if self._pause:
            time.sleep(self._pause)
        if self._at is not None and self._what == "fail" and self._seen >= self._at:
            raise ValueError("told to fail")
        if self._seen != self._at:
            return
        if self._what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._what == "linger":
            print("lingering", flush=True)
            time.sleep(1.0)
            print("lingered", flush=True)


def balance(disturb: Callable[[], None] = lambda: None, **given: Any) -> Projection[Balance]:
    made = Projection("balance", Balance, registry=known, **given)

    @made.on(Deposited)
    def deposited(row: Balance | None, event: Deposited) -> Balance:
        row = row or Balance(account=event.meta.key)
        changed = row.evolve(
            balance=row.balance + event.amount,
            count=row.count + 1,
            last=event.meta.version,
            in_order=row.in_order and event.meta.version == row.last + 1,
        )
        disturb()
        return changed

    return made


def booked(disturb: Callable[[], None] = lambda: None, **given: Any) -> Handler:
    """Not idempotent by itself: it adds to what is there."""
    made = Handler(
        "booked",
        tables=["read.booked"],
        create="CREATE TABLE read.booked (account text PRIMARY KEY, balance bigint, count bigint)",
        registry=known,
        **given,
    )

    @made.on(Deposited)
    def deposited(event: Deposited, connection: psycopg.Connection[Any]) -> None:
        connection.execute(
            "INSERT INTO read.booked AS b VALUES (%s, %s, 1) ON CONFLICT (account) DO UPDATE "
            "SET balance = b.balance + excluded.balance, count = b.count + 1",
            (event.meta.key, event.amount),
        )
        disturb()

    return made


SUMS = """
    MERGE INTO read.summed t USING (
        SELECT split_part(stream, '/', 2) AS account, sum((data ->> 'amount')::bigint) AS balance, count(*) AS count
        FROM onefold.events WHERE position > %(after)s AND position <= %(upto)s AND type = 'bank.deposited' GROUP BY 1
    ) s ON t.account = s.account
    WHEN MATCHED THEN UPDATE SET balance = t.balance + s.balance, count = t.count + s.count
    WHEN NOT MATCHED THEN INSERT VALUES (s.account, s.balance, s.count)
"""


def summed(disturb: Callable[[], None] = lambda: None, **given: Any) -> SqlProjection:
    """Not idempotent by itself either."""
    return SqlProjection(
        "summed",
        tables=["read.summed"],
        create="CREATE TABLE read.summed (account text PRIMARY KEY, balance bigint, count bigint)",
        statements=[SUMS],
        events=[Deposited],
        registry=known,
        **given,
    )


PROJECTIONS: dict[str, Callable[..., AnyProjection]] = {
    "balance": balance,
    "booked": booked,
    "summed": summed,
}


def work(options: dict[str, Any]) -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(levelname)s %(message)s")
    policy: Policy | None = Retry(**options["retry"]) if "retry" in options else None
    projection = PROJECTIONS[options["projection"]](
        Disturbance(options), lease=options.get("lease", 5.0), on_failure=policy
    )
    url = options["url"]
    with Wakeup(url, "onefold_events") as wakeup:
        worker = Worker(url, projection, page=options.get("page", 10_000), wakeup=wakeup)
        signal.signal(signal.SIGTERM, lambda *_: worker.stop())
        print("ready", flush=True)
        try:
            if options.get("rebuild"):
                worker.rebuild()
            worker.run()
        except ProjectionFailed as error:
            print(f"failed: {error}", flush=True)


def main(folder: Path) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        pid = os.fork()
        if pid:
            print(pid, flush=True)
            continue
        os.dup2(os.open(folder / f"{os.getpid()}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600), 1)
        os.dup2(1, 2)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            work(json.loads(line))
        finally:
            os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

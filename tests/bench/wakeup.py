"""Wake-up: from the commit of an append to its row in the read model, one event at a time."""

from __future__ import annotations

import statistics
import threading
import time
import uuid
from datetime import UTC, datetime

import psycopg

from onefold.infrastructure.postgres.log import EventLog
from onefold.infrastructure.postgres.pool import open_pool
from onefold.infrastructure.postgres.readmodel import prepare
from onefold.infrastructure.postgres.repository import Repository
from onefold.infrastructure.wakeup import Wakeup
from onefold.infrastructure.worker import Worker

from .append import DATA
from .model import Order, summary

SEEN = "SELECT version FROM read.bench_summary WHERE order_id = %s"
PAUSE = 0.012


def wakeups(url: str, *, times: int = 400) -> tuple[float, float]:
    """Return median and 99th percentile in milliseconds; the row is looked for every 0.2 ms or so.

    Looking without a pause would keep both the interpreter and a core of the server from the worker.
    """
    delays: list[float] = []
    with open_pool(url, size=1) as pool, psycopg.connect(url, autocommit=True) as connection:
        prepare(connection, summary)
        log = EventLog(pool)
        repository = Repository(log, Order)
        with Wakeup(url, log.channel) as wakeup:
            worker = Worker(url, summary, wakeup=wakeup)
            thread = threading.Thread(target=worker.run)
            thread.start()
            try:
                for number in range(times + 20):
                    order = Order.new(str(uuid.uuid4()))
                    order.emit(Order.Placed(**DATA), at=datetime.now(UTC))
                    repository.save(order)
                    appended = time.perf_counter()
                    while connection.execute(SEEN, (order.key,), prepare=True).fetchone() is None:
                        if time.perf_counter() - appended > 30:
                            raise AssertionError("the row did not appear in 30 s")
                        time.sleep(0.0002)
                    if number >= 20:
                        delays.append((time.perf_counter() - appended) * 1000)
                    time.sleep(PAUSE)
            finally:
                worker.stop()
                thread.join()
    return statistics.median(delays), statistics.quantiles(delays, n=100)[98]

"""The log of the consumer's own database as a source of messages: each event as a CloudEvent, in the log's order."""

from __future__ import annotations

import json
import logging
import math
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal
from urllib.parse import SplitResult, unquote

import psycopg
from psycopg.sql import SQL, Identifier

from ...domain.instant import instant
from ...domain.registry import Registry
from ...domain.registry import registry as shared_registry
from ...projections.ports import Record
from ...projections.publication import carried
from ..connection import connected, one_line
from ..history import logs
from ..postgres.log import channel_of
from ..postgres.pool import configure
from ..postgres.reader import LogReader
from ..postgres.readmodel import worker_name
from ..postgres.sql import statement
from .options import Options
from .port import BadBrokerURL, BrokerLost, BrokerMisconfigured, Delivery

log = logging.getLogger("onefold.consumer")

STRUCTURED: Final = "application/cloudevents+json"
_HEADERS: Final = {"content-type": STRUCTURED}
_FORM: Final = "log: or log:NAME?from=head"

LEASE: Final = 10.0
"""Seconds after which a worker that says nothing loses its hold on the log."""

PAGE: Final = 500
"""Events that are read at once."""

AHEAD: Final = 5_000
"""Events that are read and not handed out at most; with more that wait for others, no more are read."""

POLL: Final = 0.1
"""Seconds between looks at the log when no wake-up comes."""

MOVE: Final = 0.05
"""Seconds between two moves of the position at least."""

CLAIM: Final = 0.5
"""Seconds between two tries of a worker that stands by."""

SETTLING: Final = 10.0
"""Seconds for which a new consumer waits for appends of which it cannot tell since when they are under way."""

PATIENCE: Final = 3 * LEASE
"""Seconds for which a worker that is to end by itself waits for another one's hold to end."""


@dataclass(slots=True, eq=False)
class Entry:
    """A message on its way: its place in the log (None for what is not of the log), and what its order is kept by."""

    delivery: Delivery
    position: int | None
    key: str | None = None
    due: float = 0.0


class LogSubscription:
    """Delivers the events of a log by a position that is kept in the database, by the name of the consumer.

    The position is that before the first event that is not acknowledged, and nothing that commits late is skipped.
    One worker of a consumer reads at a time, under a lease; the others stand by (`joined` is False), and take over at
    once when its session ends. Only events of `types`, stored names, are delivered, all without. A new consumer begins
    at the "start" of the log, or at its "head": with the events that are committed from then on, and perhaps a few that
    were just before. With `once` it has ended when it has come to the log's end.
    """

    lease: float | None = None

    def __init__(
        self,
        database: str,
        consumer: str,
        *,
        log: str = "events",
        begin: Literal["start", "head"] = "start",
        types: Collection[str] | None = None,
        registry: Registry = shared_registry,
        once: bool = False,
        lease: float = LEASE,
    ) -> None:
        self.name = consumer
        self.log = log
        self._types = None if types is None else sorted(types)
        self._wanted = None if types is None else frozenset(types)
        self._once = once
        self._seconds = lease
        self._owner = worker_name()
        self._since = time.monotonic()
        self._entries: dict[int, Entry] = {}
        self._queue: deque[Entry] = deque()
        self._blocked: dict[str, deque[Entry]] = {}
        self._busy: set[str] = set()
        self._out: set[Entry] = set()
        self._again: list[Entry] = []
        self._after = self._moved = 0
        self._token: int | None = None
        self._at_end = self._closed = self._alone = False
        self._claim_at = self._renew_at = self._move_at = 0.0
        with _losing():
            self.connection = connected(
                database, application=f"onefold {consumer} log", target_session_attrs="read-write"
            )
        try:
            with _losing():
                self._open(begin)
                self.reader = LogReader(self.connection, log=log, registry=registry)
        except BaseException:
            self.connection.close()
            raise

    @property
    def joined(self) -> bool:
        """Whether this worker is the one that reads."""
        return self._token is not None

    @property
    def ended(self) -> bool:
        """Whether the log's end was reached, where that is the end; also where another worker does not let go."""
        if not self._once:
            return False
        if not self.joined:
            return time.monotonic() - self._since > PATIENCE
        return self._at_end and not (self._out or self._queue or self._again or self._blocked)

    def receive(self, limit: int, timeout: float) -> Sequence[Delivery]:
        """Return up to `limit` events; see `Subscription`."""
        if self._closed:
            raise BrokerLost(f"expected the subscription to log {self.log} to be open; subscribe again")
        until = time.monotonic() + timeout
        with _losing():
            while True:
                if self._hold() and limit and (taken := self._take(limit)):
                    return taken
                rest = until - time.monotonic()
                if rest <= 0 or (limit and self.ended):
                    return []
                self._wait(min(rest, POLL))

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Be done with these for good: the position moves on over them."""
        with _losing():
            self.settle([entry for entry in self._held(deliveries) if entry.position is None])
        for entry in self._held(deliveries):
            self._out.discard(entry)
            if entry.position is not None:
                self._entries.pop(entry.position, None)
            if entry.key is not None:
                self._free(entry.key)
            self._at_end = False

    def give_back(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> None:
        """Deliver these again after `delay` seconds; what its key holds back waits on."""
        for entry in self._held(deliveries):
            self._out.discard(entry)
            entry.due = time.monotonic() + delay
            self._again.append(entry)

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Do nothing: the hold is on the log as a whole."""

    def backlog(self) -> int | None:
        """Return how many events of the log are not handed out yet, of any type; None for a worker that stands by."""
        if not self.joined:
            return None
        with _losing():
            blocked = sum(map(len, self._blocked.values()))
            return max(0, self.reader.head() - self._after) + len(self._queue) + blocked

    def retention(self) -> float | None:
        """Return 0: what was acknowledged does not come again, whatever its age."""
        return 0.0

    def close(self) -> None:
        """Keep the position, and let the next worker read; see `Subscription`."""
        if self._closed:
            return
        self._closed = True
        with suppress(psycopg.Error, BrokerLost):
            if self._token is not None and not self.connection.broken:
                self._move()
                self.connection.execute(statement("process_log_release"), self._place())
                self._token = None
        self.connection.close()

    def key_of(self, record: Record) -> tuple[bool, str | None]:
        """Tell whether an event is delivered, and by what its order is kept: one of a key at a time, None for any."""
        return True, None

    def attributes_of(self, record: Record, key: str | None) -> dict[str, str]:
        """Return more extensions of an event."""
        return {}

    def beside(self, limit: int) -> Sequence[Entry]:
        """Return up to `limit` messages that are to be delivered now and are not of the log; their keys are free."""
        return ()

    def settle(self, entries: Sequence[Entry]) -> None:
        """Take note that what is not of the log was dealt with."""

    def is_free(self, key: str) -> bool:
        """Tell whether nothing of this key is under way."""
        return key not in self._busy

    def has_handed_out(self, position: int) -> bool:
        """Tell whether all that the log has up to a position was read, and waits for nothing but others of its key."""
        if self._after < position:
            return False
        first = self._queue[0].position if self._queue else None
        return first is None or first > position

    def _open(self, begin: str) -> None:
        connection = self.connection
        configure(connection)
        if self.log not in logs(connection):
            raise BrokerMisconfigured(
                f"expected a log named {self.log}, found none of that name in this database; correct the URL or the "
                "declaration, or write to it first"
            )
        table = Identifier("onefold", self.log)
        known = connection.execute(
            "SELECT FROM onefold.log_subscriptions WHERE consumer = %s AND log = %s", (self.name, self.log)
        ).fetchone()
        if known is None:
            values = {
                "consumer": self.name,
                "log": self.log,
                "head": begin == "head",
                "since": self._settled_since(table.as_string(connection)) if begin == "head" else None,
            }
            connection.execute(statement("process_log_begin", log=table), values)
        connection.execute(SQL("LISTEN {}").format(Identifier(channel_of(self.log))))

    def _settled_since(self, table: str) -> datetime:
        """Return an instant before which nothing was recorded that is not committed, or given up, by now."""
        rows = self.connection.execute(statement("process_log_clock"), (table,)).fetchall()
        since: datetime = min(each for clock, _, begun in rows for each in (clock, begun) if each is not None)
        unknown = {holder for _, holder, begun in rows if holder is not None and begun is None}
        until = time.monotonic() + SETTLING
        while unknown:
            time.sleep(0.02)
            found = self.connection.execute(statement("process_log_clock"), (table,)).fetchall()
            unknown &= {holder for _, holder, _ in found}
            if unknown and time.monotonic() > until:
                raise BrokerLost(
                    f"expected the appends to log {self.log} that were under way to end, found one that goes on for "
                    f"more than {SETTLING:.0f} s; end it, or wait for it"
                )
        return since

    def _place(self) -> dict[str, Any]:
        return {
            "consumer": self.name,
            "log": self.log,
            "owner": self._owner,
            "token": self._token,
            "lease": self._seconds,
        }

    def _hold(self) -> bool:
        """Claim the log, or keep the hold on it; raises `BrokerLost` when another worker has taken over."""
        now = time.monotonic()
        if self._token is None:
            if now < self._claim_at:
                return False
            self._claim_at = now + min(CLAIM, self._seconds / 4)
            values = {**self._place(), "alone": self._is_alone()}
            row = self.connection.execute(statement("process_log_claim"), values).fetchone()
            if row is None:
                return False
            self._after = self._moved = row[0]
            self._token = row[1]
            self._renew_at = time.monotonic() + self._seconds / 3
            return True
        if now > self._renew_at:
            self._is_alone()
            self._move()
        elif now > self._move_at and self._upto() > self._moved:
            self._move()
        return True

    def _is_alone(self) -> bool:
        """Tell whether every other worker that has read is gone; from then on they know that this one lives."""
        if not self._alone:
            row = self.connection.execute(statement("process_log_alone"), self._place()).fetchone()
            self._alone = row is not None and bool(row[0])
        return self._alone

    def _upto(self) -> int:
        # Entries are in the order of the log, and what is taken out leaves it so.
        return next(iter(self._entries)) - 1 if self._entries else self._after

    def _move(self) -> None:
        upto, now = self._upto(), time.monotonic()
        moved = self.connection.execute(
            statement("process_log_move"), {**self._place(), "position": upto}
        ).rowcount
        if not moved:
            self._token = None
            raise BrokerLost(
                f"expected to hold log {self.log} for {self.name}, found that another worker has taken over; this "
                "one stands by"
            )
        self._moved = upto
        self._move_at = now + MOVE
        self._renew_at = now + self._seconds / 3

    def _take(self, limit: int) -> list[Delivery]:
        taken = self._due_again(limit)
        if len(taken) < limit:
            taken += self._locked(self.beside(limit - len(taken)))
        while len(taken) < limit and (self._queue or self._read()):
            while self._queue and len(taken) < limit:
                entry = self._queue.popleft()
                if entry.key is not None and entry.key in self._busy:
                    self._blocked.setdefault(entry.key, deque()).append(entry)
                else:
                    taken += self._locked([entry])
        self._out.update(taken)
        return [entry.delivery for entry in taken]

    def _locked(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        self._busy.update(entry.key for entry in entries if entry.key is not None)
        return entries

    def _due_again(self, limit: int) -> list[Entry]:
        if not self._again:
            return []
        now = time.monotonic()
        due = [entry for entry in self._again if entry.due <= now][:limit]
        for entry in due:
            self._again.remove(entry)
        return due

    def _read(self) -> bool:
        """Read a page into the queue; return whether there is anything in it."""
        if sum(map(len, self._blocked.values())) >= AHEAD:
            return False
        while True:
            page = self.reader.read(self._after, PAGE, self._types)
            for record in page.records:
                if self._wanted is not None and record[7] not in self._wanted:
                    continue
                wanted, key = self.key_of(record)
                if wanted:
                    self._enter(record, key)
            self._after = page.upto
            self._at_end = not page.records and not page.waiting
            if self._queue or not page.records:
                return bool(self._queue)

    def _enter(self, record: Record, key: str | None) -> None:
        position: int = record[0]
        recorded = instant(record[3])
        delivery = Delivery(
            _event(record, self.attributes_of(record, key)),
            _HEADERS,
            f"{self.log}@{position}",
            record[6],
            recorded,
        )
        entry = Entry(delivery, position, key)
        delivery.handle = entry
        self._entries[position] = entry
        self._queue.append(entry)

    def _free(self, key: str) -> None:
        blocked = self._blocked.get(key)
        if not blocked:
            self._busy.discard(key)
            return
        entry = blocked.popleft()
        if not blocked:
            del self._blocked[key]
        # It is the key's next, and first of all.
        entry.due = -math.inf
        self._again.append(entry)

    def _held(self, deliveries: Sequence[Delivery]) -> list[Entry]:
        return [delivery.handle for delivery in deliveries if delivery.handle in self._out]

    def _wait(self, seconds: float) -> None:
        for _ in self.connection.notifies(timeout=seconds, stop_after=1):
            return


def subscribe(
    parts: SplitResult,
    consumer: str,
    *,
    database: str | None,
    types: Collection[str] | None,
    once: bool = False,
) -> LogSubscription:
    """Return a subscription to the log that `parts` names, in the consumer's own database."""
    options = Options(parts, _FORM)
    begin = options.text("from", "start")
    if begin not in ("start", "head"):
        raise options.bad("from=start or from=head")
    options.finish()
    name = unquote(parts.path)
    if parts.netloc or "/" in name:
        raise options.bad("the name of a log, or nothing for the log named events,")
    if database is None:
        raise BadBrokerURL(
            "log: reads the database that a consumer works on, found no consumer at work; use it there"
        )
    return LogSubscription(
        database,
        consumer,
        log=name or "events",
        begin="head" if begin == "head" else "start",
        types=types,
        once=once,
    )


def publisher(parts: SplitResult) -> Any:
    """Refuse: events are appended by aggregates."""
    raise Options(parts, _FORM).bad("a broker that messages are published to; log: can only be read,")


@contextmanager
def _losing() -> Iterator[None]:
    """Turn errors that a new connection may not meet into `BrokerLost`."""
    try:
        yield
    except (psycopg.OperationalError, psycopg.InternalError) as error:
        raise BrokerLost(f"the log cannot be read: {one_line(error)}") from error


def _event(record: Record, more: dict[str, str]) -> bytes:
    """Return a stored event as a CloudEvent in structured mode; its data are the text that is stored."""
    _, version, occurred, _, event_id, schema_version, stream, kind, data, metadata = record
    attributes: dict[str, Any] = {
        "specversion": "1.0",
        "id": _uuid(event_id),
        "source": f"/{stream.partition('/')[0]}",
        "type": kind,
        "subject": stream,
        "time": instant(occurred).isoformat(),
        "datacontenttype": "application/json",
        "sequence": str(version),
    }
    if schema_version != 1:
        attributes["schemaversion"] = str(schema_version)
    if metadata is not None:
        attributes |= carried(json.loads(metadata))
    attributes |= more
    text = json.dumps(attributes, ensure_ascii=False, separators=(",", ":"))
    # What another mapper has compressed or encrypted has no data that can be read here.
    return (text if data is None else f'{text[:-1]},"data":{data}}}').encode()


def _uuid(value: bytes) -> str:
    text = bytes(value).hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

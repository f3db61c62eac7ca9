"""The relay: one process's part in publishing a channel, with its fair share of the segments."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.sql import Identifier

from ...domain.errors import DeclarationError
from ...domain.registry import Registry
from ...domain.registry import registry as shared_registry
from ...projections.projection import NAME
from ...projections.publication import Publication
from ...projections.relaying import share
from ..backoff import Backoff
from ..brokers import publisher as publisher_of
from ..brokers.port import BrokerLost, Publisher
from ..connection import connected, one_line
from ..postgres.log import channel_of
from ..postgres.outbox import CHANNEL, SLOTS
from ..postgres.readmodel import worker_name
from ..postgres.sql import statement
from ..wakeup import Wakeup
from .errors import RelayBusy
from .maintenance import remove_published
from .registration import Reads, begin
from .segment import LEASE, PASSING, Claim, Segment
from .source import LogSource, OutboxSource, Source

log = logging.getLogger("onefold.relay")

SEGMENTS = 4
BATCH = 1_000
BEATS = 5
"""How often in a lease a process looks at its leases, and at who else is there."""

PATIENCE = 3.0
"""Leases for which one that runs once waits for segments in the hands of others."""

UPKEEP = 60.0
"""Seconds between two removals of what was published long ago."""


class Relay:
    """Publishes a channel to a broker; any number of processes may run the same relay, each with a part of it.

    `to` is the URL of the broker. `publications` are those of the application to this channel: with `via="log"` the
    log is read and messages are made as they say, otherwise the outbox is read. `name` tells relays of one channel
    apart, the channel when left out. `segments` is the number of parts among which processes share, fixed when the
    relay is begun; left out, it is as it was begun, or 4. `batch` is how many messages are published before they are
    noted, `lease` the seconds after which others take over from a process that says nothing. `at_head` begins a new
    relay behind the last message. With `once`, what is there at the start is published and `run` ends.
    """

    def __init__(
        self,
        url: str,
        channel: str,
        to: str,
        *,
        publications: Sequence[Publication] = (),
        registry: Registry = shared_registry,
        event_log: str = "events",
        name: str | None = None,
        segments: int | None = None,
        batch: int = BATCH,
        lease: float = LEASE,
        at_head: bool = False,
        once: bool = False,
        publisher: Callable[[], Publisher] | None = None,
    ) -> None:
        for word in (channel, name or channel):
            if not NAME.fullmatch(word):
                raise DeclarationError(
                    f"channel or relay {word!r} must be lower-case letters, digits and underscores, at most 41"
                )
        if segments is not None and not 1 <= segments <= SLOTS:
            raise DeclarationError(f"expected 1 to {SLOTS} segments, found {segments}")
        if batch < 1:
            raise DeclarationError(f"expected a batch of 1 message or more, found {batch}")
        if not lease >= 1:
            raise DeclarationError(f"expected a lease of 1 second or more, found {lease:g}")
        mine = [each for each in publications if each.channel == channel]
        self.channel = channel
        self.name = name or channel
        self.source: Reads = "log" if any(each.via == "log" for each in mine) else "outbox"
        self.owner = worker_name()
        self.error: Exception | None = None
        self._url = url
        self._publications = mine
        self._registry = registry
        self._event_log = event_log
        self._segments = segments
        self._batch = batch
        self._lease = lease
        self._beat = lease / BEATS
        self._at_head = at_head
        self._once = once
        self._publisher = publisher or (lambda: publisher_of(to))
        self._stopping = threading.Event()
        self._held: dict[int, Segment] = {}
        self._ended: list[Segment] = []
        self._done: set[int] = set()

    @property
    def published(self) -> int:
        """How many messages this process has published, and noted as such."""
        return sum(each.published for each in (*self._ended, *self._held.values()))

    @property
    def held(self) -> int:
        """How many messages this process has held back: refused ones, and those that wait behind them."""
        return sum(each.held for each in (*self._ended, *self._held.values()))

    def stop(self) -> None:
        """Make `run` end what is under way and return."""
        self._stopping.set()

    def run(self) -> None:
        """Publish until `stop` is called, or with `once` until all that was there is out.

        Raises `RelayChanged`, `BrokerMisconfigured` and other errors that waiting does not mend; a lost broker or
        database is waited for.
        """
        # A wrong URL or a missing topic is told at once, not by a thread later.
        with suppress(BrokerLost):
            self._publisher().close()
        with connected(self._url, application=f"onefold relay {self.name}") as connection:
            begin(
                connection,
                self.name,
                self.channel,
                self.source,
                self._segments if self._segments is not None or self._known(connection) else SEGMENTS,
                at_head=self._at_head,
                log=self._event_log,
            )
            upto = self._head(connection) if self._once else None
        channel = CHANNEL if self.source == "outbox" else channel_of(self._event_log)
        with Wakeup(self._url, channel) as wakeup:
            try:
                self._attend(wakeup, upto)
            finally:
                for each in self._held.values():
                    each.end()
                for each in self._held.values():
                    each.join()
                self._leave()
        if self.error is not None:
            raise self.error

    def _attend(self, wakeup: Wakeup, upto: int | None) -> None:
        backoff = Backoff(0.1, self._beat)
        kept, reached = 0.0, 0
        patience = time.monotonic() + PATIENCE * self._lease
        while not self._stopping.is_set():
            try:
                with connected(
                    self._url,
                    application=f"onefold relay {self.name} keep",
                    target_session_attrs="read-write",
                ) as connection:
                    while not self._stopping.is_set():
                        if self._gather():
                            return
                        if upto is not None and not self._held:
                            before = reached
                            count, reached, due = self._reached(connection)
                            if len(self._done) == count or (reached >= upto and not due):
                                return
                            if reached > before:
                                patience = time.monotonic() + PATIENCE * self._lease
                        self._renew(connection)
                        taken = self._balance(connection, wakeup, upto)
                        if self._held:
                            patience = time.monotonic() + PATIENCE * self._lease
                        backoff.reset()
                        if self.source == "outbox" and time.monotonic() - kept > UPKEEP:
                            kept = time.monotonic()
                            remove_published(connection, slices=10)
                        if not taken:
                            if self._once and not self._held and time.monotonic() > patience:
                                raise RelayBusy(
                                    f"expected relay {self.name} to publish what is there, found segments in the hands "
                                    "of other processes that do not go on; look at them with onefold status"
                                )
                            self._stopping.wait(
                                0.05 if self._once else self._beat if self._held else self._beat / 4
                            )
            except PASSING as error:
                log.warning("relay %s: %s; trying again", self.name, one_line(error))
                self._stopping.wait(backoff.next())

    def _reached(self, connection: psycopg.Connection[Any]) -> tuple[int, int, bool]:
        """Return the number of segments, up to where everything is out, and if another try of a held one is due."""
        row = connection.execute(statement("relay_reached"), {"relay": self.name}).fetchone()
        assert row is not None
        return row[0], row[1], row[2]

    def _gather(self) -> bool:
        """Take note of segments that have ended; true if one of them has met what waiting does not mend."""
        for number, each in list(self._held.items()):
            if each.going:
                continue
            del self._held[number]
            self._ended.append(each)
            if each.error is not None:
                self.error = each.error
                return True
            if each.complete:
                self._done.add(number)
        return False

    def _renew(self, connection: psycopg.Connection[Any]) -> None:
        if not any(each.lost for each in self._held.values()):
            # Who cannot end what was taken from it does not count: others have its part until it can.
            connection.execute(statement("relay_member"), (self.name, self.owner), prepare=True)
        if not self._held:
            return
        asked = time.monotonic()
        values = {
            "relay": self.name,
            "owner": self.owner,
            "lease": self._lease,
            "segments": list(self._held),
            "tokens": [each.claim.token for each in self._held.values()],
        }
        renewed = {number for (number,) in connection.execute(statement("relay_renew"), values, prepare=True)}
        for number, each in self._held.items():
            if number in renewed:
                each.renewed(asked)
            elif each.going:
                each.lose()

    def _balance(self, connection: psycopg.Connection[Any], wakeup: Wakeup, upto: int | None) -> bool:
        """Take a segment that is free, or give up one too many; true if one was taken."""
        among = {"relay": self.name, "owner": self.owner, "lease": self._lease}
        row = connection.execute(statement("relay_members"), among, prepare=True).fetchone()
        assert row is not None
        allowed = share(*row)
        if len(self._held) > allowed:
            self._held[max(self._held)].end()
            return False
        if len(self._held) == allowed:
            return False
        since = time.monotonic()
        # One that has let go of its lease may not have ended yet.
        apart = [*self._done, *self._held]
        values = {"relay": self.name, "owner": self.owner, "lease": self._lease, "apart": apart}
        found = connection.execute(statement("relay_claim"), values, prepare=True).fetchone()
        if found is None:
            return False
        claim = Claim(self.name, *found)
        segment = Segment(
            self._url,
            claim,
            self._source_of,
            self._publisher,
            wakeup,
            batch=self._batch,
            lease=self._lease,
            since=since,
            upto=upto,
        )
        self._held[claim.segment] = segment
        log.info("relay %s: segment %d from position %d", self.name, claim.segment, claim.position)
        segment.start()
        return True

    def _source_of(self, connection: psycopg.Connection[Any], claim: Claim) -> Source:
        if self.source == "outbox":
            return OutboxSource(connection, self.channel, claim.segment, claim.segments)
        return LogSource(
            connection,
            self._publications,
            self._registry,
            claim.segment,
            claim.segments,
            log=self._event_log,
        )

    def _known(self, connection: psycopg.Connection[Any]) -> bool:
        return connection.execute(statement("relay_known"), (self.name,)).fetchone() is not None

    def _head(self, connection: psycopg.Connection[Any]) -> int:
        table = Identifier("onefold", "outbox" if self.source == "outbox" else self._event_log)
        row = connection.execute(statement("head", log=table)).fetchone()
        return 0 if row is None else int(row[0])

    def _leave(self) -> None:
        try:
            with connected(
                self._url, application=f"onefold relay {self.name}", connect_timeout=2
            ) as connection:
                connection.execute(statement("relay_leave"), {"relay": self.name, "owner": self.owner})
        except psycopg.Error as error:
            log.warning("relay %s: its leases end by themselves: %s", self.name, one_line(error))

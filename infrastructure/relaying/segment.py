"""A segment at work: reads, publishes, and moves the checkpoint, as long as its lease lasts."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import psycopg
from pydantic_core import to_json

from ...projections.relaying import Kept, Leaving, parted, refusals
from ..backoff import Backoff
from ..brokers.port import BrokerLost, Outgoing, Publisher
from ..connection import connected, one_line
from ..postgres.pool import configure
from ..postgres.sql import statement
from ..wakeup import Wakeup
from .errors import RelayFenced
from .source import Source

log = logging.getLogger("onefold.relay")

LEASE = 10.0
"""Seconds after which another process may take over a segment whose own has said nothing, unless it says otherwise."""

LOOK = 0.5
"""Seconds between two looks at the messages that are held back."""

IDLE_MOVE = 5.0
"""Seconds after which the checkpoint is moved over what is not this segment's."""

POLL, POLL_FIRST = 0.1, 0.001
"""Seconds between two looks at the source when nothing comes: at most, and at first."""

PASSING = (psycopg.OperationalError, psycopg.InternalError)

_MOVE = statement("relay_move")
_HOLD = statement("relay_hold")
_HELD = statement("relay_held")
_HELD_KEYS = statement("relay_held_keys")
_DISCARDED = statement("relay_discarded")
_RESOLVE = statement("relay_resolve")
_FENCE = statement("relay_fence")
_POSITION = statement("relay_position")
_RELEASE = statement("relay_release")


class Claim(NamedTuple):
    """A segment as it was claimed."""

    relay: str
    segment: int
    segments: int
    position: int
    token: int


class Segment:
    """One thread, with a connection and a publisher of its own. What it publishes and cannot note goes out again."""

    def __init__(
        self,
        url: str,
        claim: Claim,
        source: Callable[[psycopg.Connection[Any], Claim], Source],
        publisher: Callable[[], Publisher],
        wakeup: Wakeup,
        *,
        batch: int,
        lease: float,
        since: float,
        upto: int | None = None,
    ) -> None:
        self.claim = claim
        self.published = 0
        self.held = 0
        self.complete = False
        self.error: Exception | None = None
        self._url = url
        self._lease = lease
        self._source = source
        self._publisher = publisher
        self._wakeup = wakeup
        self._batch = batch
        self._upto = upto
        self._until = since + lease
        self._ending = threading.Event()
        self._at = claim.position
        self._thread = threading.Thread(
            target=self._run, name=f"onefold-relay-{claim.relay}-{claim.segment}", daemon=True
        )

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def end(self) -> None:
        """Make it note what is under way, let go of its lease, and end."""
        self._ending.set()
        self._wakeup.wake()

    def lose(self) -> None:
        """Tell it that its lease is another's."""
        self._until = 0.0
        self.end()

    @property
    def lost(self) -> bool:
        """Whether its lease is another's."""
        return self._until == 0.0

    def renewed(self, asked: float) -> None:
        """Tell it that its lease was prolonged by a question asked at this time (`time.monotonic`)."""
        self._until = max(self._until, asked + self._lease)

    def join(self, timeout: float | None = None) -> bool:
        """Wait for its end; false if it is still at work after `timeout` seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def going(self) -> bool:
        """Whether it is at work."""
        return self._thread.is_alive()

    def _run(self) -> None:
        claim = self.claim
        backoff = Backoff()
        while not self._ending.is_set():
            before = self.published
            try:
                with connected(
                    self._url, application=f"onefold relay {claim.relay}", target_session_attrs="read-write"
                ) as connection:
                    configure(connection)
                    self._catch_up(connection)
                    with closing(self._publisher()) as publisher:
                        self._work(connection, publisher)
                    if self.lost:
                        break
                    connection.execute(_RELEASE, (claim.relay, claim.segment, claim.token))
                return
            except RelayFenced as error:
                log.warning("%s", error)
                return
            except (*PASSING, BrokerLost) as error:
                log.warning(
                    "relay %s, segment %d: %s; trying again", claim.relay, claim.segment, one_line(error)
                )
            except Exception as error:  # noqa: BLE001 - raised again by who waits for the relay
                self.error = error
                return
            if self.published > before:
                backoff.reset()
            self._ending.wait(backoff.next())
        if self.lost:
            log.warning("%s", RelayFenced(claim.relay, claim.segment))

    def _catch_up(self, connection: psycopg.Connection[Any]) -> None:
        """Take the position as the database has it: a move whose answer was lost may have been made."""
        claim = self.claim
        row = connection.execute(_POSITION, (claim.relay, claim.segment, claim.token)).fetchone()
        if row is None:
            raise RelayFenced(claim.relay, claim.segment)
        self._at = row[0]

    def _work(self, connection: psycopg.Connection[Any], publisher: Publisher) -> None:
        source = self._source(connection, self.claim)
        cursor = self._at
        # Where the checkpoint was set back, what was given up since does not go out after all.
        rows = connection.execute(_DISCARDED, (self.claim.relay, cursor)).fetchall()
        discarded = {position for (position,) in rows}
        held: set[str] = set()
        looked = moved = 0.0
        pause = POLL_FIRST
        seen = self._wakeup.count
        while not self._ending.is_set():
            now = time.monotonic()
            self._require_lease(now)
            if now - looked > LOOK or not looked:
                held = self._look(connection, publisher)
                looked = now
            page = source.read(cursor, self._batch)
            cursor = max(cursor, page.upto)
            if messages := [each for each in page.messages if each.position not in discarded]:
                held |= self._relay(connection, publisher, messages, held, page.upto)
                moved, pause = now, POLL_FIRST
                continue
            done = self._upto is not None and cursor >= self._upto
            if cursor > self._at and (done or now - moved > IDLE_MOVE):
                self._move(connection, cursor, 0, [])
                moved = now
            if done:
                self.complete = True
                return
            if page.more:
                continue
            seen, pause = self._wakeup.wait(seen, pause), min(2 * pause, POLL)
        if cursor > self._at:
            self._move(connection, cursor, 0, [])

    def _relay(
        self,
        connection: psycopg.Connection[Any],
        publisher: Publisher,
        page: Sequence[Leaving],
        held: set[str],
        upto: int,
    ) -> set[str]:
        """Publish what may go out, and move over the page; return the sequences that are held back now."""
        going, waiting = parted(page, held)
        kept = [*waiting, *refusals(going, _publish(publisher, going))]
        self._move(connection, upto, len(page) - len(kept), kept)
        self._tell(kept)
        return {each.message.sequence for each in kept}

    def _look(self, connection: psycopg.Connection[Any], publisher: Publisher) -> set[str]:
        """Return the sequences that are held back, after another try of those for which one was asked."""
        claim = self.claim
        rows = connection.execute(_HELD_KEYS, (claim.relay, claim.segment), prepare=True).fetchall()
        return {key for key, due in rows if not due or not self._again(connection, publisher, key)}

    def _again(self, connection: psycopg.Connection[Any], publisher: Publisher, key: str) -> bool:
        """Publish what is held of a sequence, in order; false when something of it is refused again."""
        claim = self.claim
        while not self._ending.is_set():
            self._require_lease(time.monotonic())
            rows = connection.execute(
                _HELD, (claim.relay, claim.segment, key, self._batch), prepare=True
            ).fetchall()
            if not rows:
                return True
            messages = [Leaving._make((*row[:5], bytes(row[5]), row[6])) for row in rows]
            kept = refusals(messages, _publish(publisher, messages))
            done = len(messages) - len(kept)
            with connection.transaction():
                self._fence(connection, done)
                positions = [message.position for message in messages[:done]]
                out = {"relay": claim.relay, "segment": claim.segment, "positions": positions}
                connection.execute(_RESOLVE, out)
                self._hold(connection, kept)
            self.published += done
            self._tell(kept)
            if kept:
                return False
        return False

    def _move(
        self, connection: psycopg.Connection[Any], upto: int, published: int, kept: Sequence[Kept]
    ) -> None:
        claim, asked = self.claim, time.monotonic()
        values = {
            "relay": claim.relay,
            "segment": claim.segment,
            "token": claim.token,
            "position": self._at,
            "upto": upto,
            "published": published,
            "lease": self._lease,
        }
        with connection.transaction():
            if connection.execute(_MOVE, values, prepare=True).rowcount != 1:
                raise RelayFenced(claim.relay, claim.segment)
            self._hold(connection, kept)
        self._at = upto
        self.published += published
        self.renewed(asked)

    def _hold(self, connection: psycopg.Connection[Any], kept: Sequence[Kept]) -> None:
        if not kept:
            return
        messages = [each.message for each in kept]
        connection.execute(
            _HOLD,
            {
                "relay": self.claim.relay,
                "segment": self.claim.segment,
                "positions": [message.position for message in messages],
                "keys": [message.sequence for message in messages],
                "keyed": [message.key is not None for message in messages],
                "ids": [message.id for message in messages],
                "types": [message.type for message in messages],
                "bodies": [message.body for message in messages],
                "headers": [to_json(dict(message.headers)).decode() for message in messages],
                "causes": [None if each.cause is None else each.cause.replace("\x00", "") for each in kept],
            },
        )
        self.held += len(kept)

    def _fence(self, connection: psycopg.Connection[Any], published: int) -> None:
        claim = self.claim
        values = (published, claim.relay, claim.segment, claim.token)
        if connection.execute(_FENCE, values).rowcount != 1:
            raise RelayFenced(claim.relay, claim.segment)

    def _require_lease(self, now: float) -> None:
        if now >= self._until:
            raise RelayFenced(self.claim.relay, self.claim.segment)

    def _tell(self, kept: Sequence[Kept]) -> None:
        for each in kept:
            if each.cause is not None:
                log.error(
                    "relay %s: message %s of %s is refused by the broker, and %s waits: %s",
                    self.claim.relay,
                    each.message.id,
                    each.message.type,
                    each.message.sequence,
                    each.cause,
                )


def _publish(publisher: Publisher, messages: Sequence[Leaving]) -> Mapping[int, str]:
    if not messages:
        return {}
    return publisher.publish([Outgoing(each.body, each.headers, each.key) for each in messages])

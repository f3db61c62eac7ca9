"""Redis Streams: consumer groups, whose abandoned entries are claimed again."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import platform
import secrets
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final
from urllib.parse import SplitResult

import redis

from .options import Options
from .port import BrokerLost, Delivery, Outgoing, Refusals
from .redis_entry import delivery, fields_of
from .redis_server import RedisServer, call
from .refusing import screened

log = logging.getLogger("onefold.brokers.redis")

_FORM = "redis://user:password@host:6379/0?stream=payments&group=ledger"
_PREFIX = "onefold-"
_BEGIN = b"0-0"
_LONGEST_BLOCK = 5.0  # half the time within which the server has to answer
_SHORT_BLOCK = 0.1
_CHUNK = 500
_LARGEST: Final = 512 * 2**20
_SLACK = 0.005  # two clocks count
_SWEEP_CALLS = 16
_GONE = ("NOGROUP", "UNBLOCKED", "no such key")

# XCLAIM alone would take an entry back from a consumer that has claimed it since. It forgets a deleted one.
_SET_IDLE: Final = """
local gone = {}
for i = 4, #ARGV do
  local pending = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2])
  if #pending > 0 then
    local claimed = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'IDLE', ARGV[3], 'JUSTID')
    if #claimed == 0 then gone[#gone + 1] = ARGV[i] end
  end
end
return gone
"""
# XGROUP DELCONSUMER would forget what the consumer still holds.
_REMOVE_EMPTY: Final = """
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) > 0 then return 0 end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return 1
"""


class RedisSubscription:
    """One consumer of a group on one or more streams.

    Its name in the group is its own. What a consumer neither acknowledges nor extends for `lease` seconds is claimed
    by whoever of the group comes by, which counts as another attempt. An acknowledgement is no fence: it succeeds also
    for what another has claimed since. A group or stream that was deleted (FLUSHALL, a failover that lost it) is made
    again and read from its beginning, with a warning: repeats are harmless to a consumer, losses are not.
    """

    joined = True

    def __init__(
        self, server: RedisServer, streams: Sequence[str], group: str, start: str, lease: float
    ) -> None:
        self.lease: float | None = lease
        self._lease = lease
        self._server = server
        self._streams = tuple(streams)
        self._group = group
        self._name = f"{_PREFIX}{platform.node()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._client = server.client()
        self._set_idle = self._client.register_script(_SET_IDLE)
        self._remove_empty = self._client.register_script(_REMOVE_EMPTY)
        self._held: set[tuple[str, bytes]] = set()
        self._sweep: list[tuple[str, bytes]] = []
        self._next_sweep = 0.0
        self._returned: list[float] = []
        self._turn = 0
        self._counted: tuple[float, int | None] = (-math.inf, None)
        self._trimmed: dict[str, int] = {}
        self._closed = self._lost = False
        try:
            with self._errors():
                for stream in self._streams:
                    self._make_group(stream, start)
                    self._remove_abandoned(stream)
                    self._lag(stream)
        except BaseException:
            self._lost = True
            self.close()
            raise

    @property
    def ended(self) -> bool:
        """False: more may always come."""
        return False

    def receive(self, limit: int, timeout: float) -> Sequence[Delivery]:
        """Return up to `limit` deliveries, those that others abandoned first; see `Subscription`."""
        self._require_open()
        until = time.monotonic() + timeout
        if not limit:
            with self._errors():
                call(self._client, "PING")
            time.sleep(max(0.0, until - time.monotonic()))
            return []
        while True:
            with self._errors(), self._remaking_groups():
                taken = self._claim(limit)
                if len(taken) < limit:
                    now = time.monotonic()
                    wait = 0.0 if taken else min(until - now, self._next_sweep - now, _LONGEST_BLOCK)
                    taken += self._read(limit - len(taken), wait)
                if taken:
                    self._held.update(one.handle for one in taken)
                    return taken
            if time.monotonic() >= until:
                return []

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Be done with these for good, whoever holds them now; see `Subscription`."""
        self._require_open()
        with self._errors():
            pipeline = self._client.pipeline(transaction=False)
            for stream, entries in _chunks(one.handle for one in deliveries):
                call(pipeline, "XACK", stream, self._group, *entries)
            pipeline.execute()
        self._held.difference_update(one.handle for one in deliveries)

    def give_back(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> None:
        """Return these undone, to whoever of the group comes after `delay`, at most a lease; see `Subscription`."""
        self._require_open()
        delay = min(delay, self._lease)
        with self._errors(), self._remaking_groups():
            self._be_idle((one.handle for one in deliveries), self._lease - delay)
        self._held.difference_update(one.handle for one in deliveries)
        self._returned.append(time.monotonic() + delay + _SLACK)
        self._plan_sweep()

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Hold these for another lease, those that nobody else has claimed since; see `Subscription`."""
        self._require_open()
        with self._errors(), self._remaking_groups():
            self._be_idle((one.handle for one in deliveries), 0.0)

    def backlog(self) -> int | None:
        """Return how many entries the group has not read or not acknowledged; asked once a second at most.

        None where Redis does not know, because entries were deleted in between.
        """
        self._require_open()
        now = time.monotonic()
        if now - self._counted[0] >= 1:
            with self._errors(), self._remaking_groups():
                lags = [self._lag(stream) for stream in self._streams]
                known = [lag for lag in lags if lag is not None]
                self._counted = now, sum(known) if len(known) == len(lags) else None
        return self._counted[1]

    def retention(self) -> float | None:
        """Return None: whoever adds to a stream may trim it at any time."""
        return None

    def close(self) -> None:
        """Make what is held free to be claimed, and leave the group; see `Subscription`."""
        if not (self._closed or self._lost):
            with contextlib.suppress(Exception):
                self._be_idle(self._held, self._lease)
                for stream in self._streams:
                    self._remove_empty(keys=[stream], args=[self._group, self._name])
        self._closed = True
        self._held.clear()
        with contextlib.suppress(Exception):
            self._client.close()

    def _claim(self, limit: int) -> list[Delivery]:
        now = time.monotonic()
        if not self._sweep and now >= self._next_sweep:
            self._sweep = [(stream, _BEGIN) for stream in reversed(self._streams)]
            self._returned = [due for due in self._returned if due > now]
        taken: list[Delivery] = []
        for _ in range(_SWEEP_CALLS):
            if not self._sweep or len(taken) >= limit:
                break
            stream, cursor = self._sweep.pop()
            cursor, entries = self._claim_some(stream, cursor, limit - len(taken))
            if cursor != _BEGIN:
                self._sweep.append((stream, cursor))
            attempts = self._attempts(stream, [entry for entry, _ in entries])
            taken += (
                delivery(stream, entry, fields, attempt)
                for (entry, fields), attempt in zip(entries, attempts, strict=True)
            )
        if not self._sweep and now >= self._next_sweep:
            self._next_sweep = now + self._lease / 4
            self._plan_sweep()
        return taken

    def _claim_some(self, stream: str, cursor: bytes, count: int) -> tuple[bytes, list[tuple[bytes, Any]]]:
        reply = call(
            self._client,
            "XAUTOCLAIM",
            stream,
            self._group,
            self._name,
            _milliseconds(self._lease),
            cursor,
            "COUNT",
            count,
        )
        self._warn_of_deleted(stream, reply[2] if len(reply) > 2 else ())
        # Before Redis 7 those have no fields, and no id that would tell which they were.
        return reply[0], [(entry, fields) for entry, fields in reply[1] if fields is not None]

    def _attempts(self, stream: str, entries: Sequence[bytes]) -> list[int | None]:
        if not entries:
            return []
        pipeline = self._client.pipeline(transaction=False)
        for entry in entries:
            pipeline.xpending_range(stream, self._group, entry, entry, 1)
        return [found[0]["times_delivered"] if found else None for found in pipeline.execute()]

    def _read(self, limit: int, wait: float) -> list[Delivery]:
        count = len(self._streams)
        first = self._turn % count
        self._turn += 1
        chosen = (self._streams[first:] + self._streams[:first])[:limit]
        if len(chosen) < count:
            wait = min(wait, _SHORT_BLOCK)
        block = ("BLOCK", max(1, _milliseconds(wait))) if wait > 0 else ()
        reply = call(self._client,
            "XREADGROUP", "GROUP", self._group, self._name, "COUNT", limit // len(chosen), *block,
            "STREAMS", *chosen, *([">"] * len(chosen)),
        )  # fmt: skip
        return [
            delivery(stream.decode(), entry, fields, 1)
            for stream, entries in reply or ()
            for entry, fields in entries
        ]

    def _be_idle(self, handles: Iterable[tuple[str, bytes]], seconds: float) -> None:
        for stream, entries in _chunks(handles):
            gone: Any = self._set_idle(
                keys=[stream], args=[self._group, self._name, _milliseconds(seconds), *entries]
            )
            self._warn_of_deleted(stream, gone)

    def _warn_of_deleted(self, stream: str, entries: Sequence[bytes]) -> None:
        if entries:
            log.warning(
                "stream %s, group %s: entries that were delivered and not acknowledged were deleted or trimmed, "
                "and cannot be delivered again: %s",
                stream,
                self._group,
                ", ".join(entry.decode() for entry in entries),
            )

    def _plan_sweep(self) -> None:
        self._next_sweep = min([self._next_sweep, *self._returned])

    def _make_group(self, stream: str, start: str) -> bool:
        try:
            call(self._client, "XGROUP CREATE", stream, self._group, start, "MKSTREAM")
        except redis.ResponseError as error:
            if str(error).startswith("BUSYGROUP"):
                return False
            raise
        return True

    def _remove_abandoned(self, stream: str) -> None:
        for consumer in self._client.xinfo_consumers(stream, self._group):
            name = consumer["name"].decode(errors="replace")
            long_idle = consumer["idle"] > _milliseconds(self._lease) * 10
            if name.startswith(_PREFIX) and long_idle and not consumer["pending"]:
                self._remove_empty(keys=[stream], args=[self._group, name])

    def _lag(self, stream: str) -> int | None:
        for group in self._client.xinfo_groups(stream):
            if group["name"] == self._group.encode():
                self._warn_of_trimmed(stream, group.get("entries-read"))
                lag = group.get("lag")
                return None if lag is None else int(lag) + int(group["pending"])
        raise redis.ResponseError(f"NOGROUP {self._group}")

    def _warn_of_trimmed(self, stream: str, read: int | None) -> None:
        """Warn when fewer entries are left than the group has not read yet."""
        if read is None:
            return
        found = self._client.xinfo_stream(stream)
        unread = found["entries-added"] - found["length"] - read
        if unread > self._trimmed.get(stream, 0):
            log.warning(
                "stream %s, group %s: at least %s entries were deleted or trimmed before the group read them; "
                "trim later, or let more consumers run",
                stream,
                self._group,
                unread - self._trimmed.get(stream, 0),
            )
        self._trimmed[stream] = max(unread, 0)

    def _require_open(self) -> None:
        if self._closed:
            raise BrokerLost(
                f"expected an open subscription to {', '.join(self._streams)}, found it closed; subscribe again"
            )

    @contextlib.contextmanager
    def _remaking_groups(self) -> Iterator[None]:
        try:
            yield
        except redis.ResponseError as error:
            if not str(error).startswith(_GONE):
                raise
            self._sweep.clear()
            self._held.clear()
            for stream in self._streams:
                if self._make_group(stream, "0"):
                    log.warning(
                        "stream %s, group %s: expected the group, found it deleted (%s); it was made again and is "
                        "read from the beginning of what is there",
                        stream,
                        self._group,
                        error,
                    )

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with self._server.errors(f"group {self._group!r} of {', '.join(self._streams)}"):
                yield
        except BrokerLost:
            self._lost = True
            raise


class RedisPublisher:
    """Adds to one stream. How durably Redis takes an entry is its own setting (`appendfsync`), and `wait`'s."""

    def __init__(self, server: RedisServer, stream: str, replicas: int) -> None:
        self._server = server
        self._stream = stream
        self._replicas = replicas
        self._closed = False
        self._client = server.client()
        with self._errors():
            call(self._client, "PING")

    def publish(self, messages: Sequence[Outgoing]) -> Refusals:
        """Publish in order; see `Publisher`. Of each part that is sent, Redis takes all or nothing."""
        if self._closed:
            raise BrokerLost(f"expected an open publisher to {self._server.shown}, found it closed")
        going, refused = screened(messages, _flaw)
        entries = [fields_of(messages[place]) for place in going]
        for begin in range(0, len(entries), _CHUNK):
            with self._errors():
                # What is refused for now, as where memory is full, is so before anything is done.
                pipeline = self._client.pipeline(transaction=True)
                for fields in entries[begin : begin + _CHUNK]:
                    call(pipeline, "XADD", self._stream, "*", *itertools.chain(*fields.items()))
                pipeline.execute()
                having = self._replicas and int(
                    call(self._client, "WAIT", self._replicas, _milliseconds(_LONGEST_BLOCK))
                )
            if having < self._replicas:
                raise BrokerLost(
                    f"expected {self._replicas} replicas to have stream {self._stream!r} within "
                    f"{_LONGEST_BLOCK:g} s, found {having}; check the replicas, or lower wait in the URL"
                )
        return refused

    def close(self) -> None:
        """Close the connection; see `Publisher`."""
        self._closed = True
        with contextlib.suppress(Exception):
            self._client.close()

    def _errors(self) -> contextlib.AbstractContextManager[None]:
        return self._server.errors(f"stream {self._stream!r}")


def subscribe(parts: SplitResult, consumer: str) -> RedisSubscription:
    """Return a subscription to streams, which are made with their group where they are missing.

    `redis://user:password@host:6379/db?stream=S[,S2]` (`rediss:` for TLS), with these options: `group` (default
    `onefold.CONSUMER`), `start` (`0`, `$` or an id: where a new group begins, default 0), `lease` (seconds, default
    30), `ca` (file of certificates to trust). Needs Redis 6.2, better 7; no cluster for more than one stream.

    Raises `BadBrokerURL`, `BrokerMisconfigured` or `BrokerLost`.
    """
    options = Options(parts, _FORM)
    streams = options.text("stream", "").split(",")
    if not all(streams) or len(set(streams)) < len(streams):
        raise options.bad("option stream with one or more different names")
    group = options.text("group", f"onefold.{consumer}")
    start = options.text("start", "0")
    lease = options.number("lease", 30, least=0.1)
    server = RedisServer(parts, options)
    options.finish()
    return RedisSubscription(server, streams, group, start, lease)


def publisher(parts: SplitResult) -> RedisPublisher:
    """Return a publisher to one stream: `?stream=S`.

    `wait` is how many replicas must have what was published (default 0). Options of `subscribe` may stand in the URL.
    Raises `BadBrokerURL`, `BrokerMisconfigured` or `BrokerLost`.
    """
    options = Options(parts, _FORM)
    stream = options.text("stream", "")
    if not stream or "," in stream:
        raise options.bad("option stream with one name")
    for name in ("group", "start", "lease"):
        options.text(name, "-")
    replicas = options.number("wait", 0)
    if replicas != int(replicas):
        raise options.bad("a whole number for option wait")
    server = RedisServer(parts, options)
    options.finish()
    return RedisPublisher(server, stream, int(replicas))


def _flaw(message: Outgoing) -> str | None:
    size = max(map(len, (message.body, *(value.encode() for value in message.headers.values()))))
    if size <= _LARGEST:
        return None
    return f"expected a body and headers of up to {_LARGEST:,} bytes, as Redis takes them, found {size:,}"


def _chunks(handles: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, list[bytes]]]:
    streams: defaultdict[str, list[bytes]] = defaultdict(list)
    for stream, entry in handles:
        streams[stream].append(entry)
    for stream, entries in streams.items():
        for begin in range(0, len(entries), _CHUNK):
            yield stream, entries[begin : begin + _CHUNK]


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)

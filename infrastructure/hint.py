"""A hint in front of the ledger: Redis remembers for a while what was done, so that the database is asked less."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

from .backoff import Backoff
from .brokers.options import Options
from .brokers.port import BadBrokerURL, MissingExtra

log = logging.getLogger("onefold.hint")

_FORM = "redis://user:password@host:6379/0"
_TIMEOUT = 0.05
_WARN_EVERY = 60.0
_Answer = TypeVar("_Answer")


class RedisHint:
    """Keys that were done lately, by consumer; may forget any of them at any time, and is never needed.

    It is not in the database's transaction: a key is noted after the commit of what it stands for, never before, and
    a key that is not found must be claimed in the ledger. A Redis that fails or takes longer than 50 ms is as good as
    an empty one: it is not asked again for a while (a second at first, half a minute at most), and a WARNING says so
    once a minute.
    """

    def __init__(self, url: str, ttl: float) -> None:
        """`url` as `redis://user:password@host:6379/0` (`rediss:` for TLS, `?ca=FILE`); keys last `ttl` seconds.

        Connects at the first question. Raises `BadBrokerURL`, `ValueError` for a `ttl` below a millisecond, and
        `MissingExtra` when the client of Redis is not installed.
        """
        if not 0.001 <= ttl < 10**9:
            raise ValueError(f"expected the ttl of a hint as seconds from 0.001 to {10**9 - 1}, found {ttl}")
        try:
            import redis

            from .brokers.redis_server import RedisServer
        except ImportError as error:
            raise MissingExtra(
                "a hint needs the package redis, which is not installed; install it with: pip install 'onefold[redis]'"
            ) from error
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise BadBrokerURL(f"expected a URL such as {_FORM}, found one that cannot be read") from error
        options = Options(parts, _FORM)
        if parts.scheme not in ("redis", "rediss"):
            raise options.bad("scheme redis: or rediss:")
        server = RedisServer(parts, options, timeout=_TIMEOUT, connect_timeout=_TIMEOUT)
        options.finish()
        self._shown = server.shown
        self._client = server.client()
        self._failures = (redis.RedisError, OSError)
        self._milliseconds = round(ttl * 1000)
        self._backoff = Backoff(first=1.0, longest=30.0)
        self._silent_until = 0.0
        self._warn_at = 0.0

    def seen(self, consumer: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the fingerprints of those keys that were noted and are not forgotten; empty when Redis fails.

        What is not in the answer may have been done all the same. A fingerprint that differs from the message's is
        no proof of a conflict: ask the ledger.
        """
        if not keys:
            return {}
        names = [_name(consumer, key) for key in keys]
        nothing: list[bytes | str | None] = []
        found = self._ask(lambda: self._client.mget(names), nothing)
        return {key: value for key, value in zip(keys, found, strict=False) if isinstance(value, bytes)}

    def note(self, consumer: str, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Remember (key, fingerprint) of what is committed. Only ever call this after the commit."""
        if not entries:
            return

        def write() -> None:
            pipeline = self._client.pipeline(transaction=False)
            for key, fingerprint in entries:
                pipeline.set(_name(consumer, key), fingerprint, px=self._milliseconds)
            pipeline.execute()

        self._ask(write, None)

    def close(self) -> None:
        """Close the connections; may be called twice."""
        with contextlib.suppress(*self._failures):
            self._client.close()

    def _ask(self, question: Callable[[], _Answer], otherwise: _Answer) -> _Answer:
        now = time.monotonic()
        if now < self._silent_until:
            return otherwise
        try:
            answer = question()
        except self._failures as error:
            pause = self._backoff.next()
            self._silent_until = time.monotonic() + pause
            if now >= self._warn_at:
                self._warn_at = now + _WARN_EVERY
                log.warning(
                    "Redis at %s gives no hints, so the database answers for all: %s; it is asked again in %.1f s",
                    self._shown,
                    error,
                    pause,
                )
            return otherwise
        self._backoff.reset()
        return answer


def _name(consumer: str, key: bytes) -> str:
    return f"onefold:{consumer}:{key.hex()}"

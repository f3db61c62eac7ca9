"""Bench of Redis Streams."""

from __future__ import annotations

import redis

from .benches import Bench, unused_port

LEASE = 2


class RedisBench(Bench):
    """A stream, with a short lease."""

    name = "redis"
    patience = LEASE + 3.0
    # A message would have to be larger than 512 MB.
    refuses = False

    def prepare(self) -> None:
        self.client = redis.Redis.from_url(self.request.getfixturevalue("redis_url"))
        wire = self.request.getfixturevalue("through_proxy")("redis")
        self.wired, self.proxy = wire.url, wire.proxy

    def at(self, server: str, stream: str) -> str:
        return f"{server}?stream={stream}&lease={LEASE}"

    @property
    def url(self) -> str:
        return self.at(self.wired, self.queue)

    @property
    def missing(self) -> str:
        # A stream that is missing is made; what is there may be something else.
        stream = f"missing-{self.queue}"
        self.client.set(stream, "text", ex=60)
        return self.at(self.wired, stream)

    @property
    def unreachable(self) -> str:
        return self.at(f"redis://127.0.0.1:{unused_port()}/0", self.queue)

    def cut(self) -> None:
        self.proxy.cut()

    def restore(self) -> None:
        self.proxy.mend()

    def close(self) -> None:
        super().close()
        self.client.delete(self.queue)
        self.client.close()


BENCHES = (RedisBench,)

from __future__ import annotations

import builtins
import logging
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from onefold.infrastructure import hint as module
from onefold.infrastructure.brokers import BadBrokerURL, MissingExtra
from onefold.infrastructure.hint import RedisHint

from ..services.fixtures import StartService, ThroughProxy
from ..services.redis import REDIS

MINUTE = 60.0


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as opened:
        yield opened


@pytest.fixture
def consumer() -> str:
    return f"hinted-{os.getpid()}-{time.time_ns()}"


@pytest.fixture(autouse=True)
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask again a moment after a failure."""
    real = module.Backoff
    monkeypatch.setattr(module, "Backoff", lambda first, longest: real(first / 5, longest))


def keys(count: int) -> list[bytes]:
    return [os.urandom(16) for _ in range(count)]


def test_what_was_noted_is_seen_by_the_same_consumer_only(redis_url: str, consumer: str) -> None:
    hint = RedisHint(redis_url, MINUTE)
    first, second, third = keys(3)
    hint.note(consumer, [(first, b"a\xff"), (second, b"b")])
    assert hint.seen(consumer, [first, third, second]) == {first: b"a\xff", second: b"b"}
    assert hint.seen(f"{consumer}-other", [first, second]) == {}
    hint.close()
    hint.close()


def test_nothing_is_asked_about_nothing(redis_url: str, consumer: str) -> None:
    hint = RedisHint(redis_url, MINUTE)
    hint.note(consumer, [])
    assert hint.seen(consumer, []) == {}


def test_names_tell_the_consumer_and_the_key(redis_url: str, consumer: str, client: redis.Redis) -> None:
    RedisHint(redis_url, MINUTE).note(consumer, [(b"\x01" * 16, b"print")])
    name = f"onefold:{consumer}:{'01' * 16}"
    assert client.get(name) == b"print"
    assert 0 < client.pttl(name) <= MINUTE * 1000


def test_keys_are_forgotten_after_their_time(redis_url: str, consumer: str) -> None:
    hint = RedisHint(redis_url, 0.05)
    [key] = keys(1)
    hint.note(consumer, [(key, b"a")])
    time.sleep(0.1)
    assert hint.seen(consumer, [key]) == {}


def test_a_flush_in_mid_run_forgets_everything_and_harms_nothing(
    start_service: StartService, consumer: str, caplog: pytest.LogCaptureFixture
) -> None:
    """C13."""
    own = start_service(REDIS)
    hint = RedisHint(own.url, MINUTE)
    before, after = keys(50), keys(50)
    hint.note(consumer, [(key, b"a") for key in before])
    assert len(hint.seen(consumer, before)) == 50
    with redis.Redis.from_url(own.url) as client:
        client.flushall()
    assert hint.seen(consumer, before) == {}
    hint.note(consumer, [(key, b"b") for key in after])
    assert hint.seen(consumer, [*before, *after]) == dict.fromkeys(after, b"b")
    hint.close()
    assert not caplog.records


def test_a_value_of_another_kind_is_not_an_answer(redis_url: str, consumer: str, client: redis.Redis) -> None:
    key, other = keys(2)
    client.lpush(f"onefold:{consumer}:{key.hex()}", "x")
    hint = RedisHint(redis_url, MINUTE)
    hint.note(consumer, [(other, b"a")])
    assert hint.seen(consumer, [key, other]) == {other: b"a"}


def test_a_server_that_is_gone_is_an_empty_answer_and_is_asked_again_later(
    through_proxy: ThroughProxy, consumer: str, caplog: pytest.LogCaptureFixture
) -> None:
    wire = through_proxy("redis")
    hint = RedisHint(wire.url, MINUTE)
    [key] = keys(1)
    hint.note(consumer, [(key, b"a")])
    wire.proxy.cut()
    with caplog.at_level(logging.WARNING, logger="onefold.hint"):
        assert hint.seen(consumer, [key]) == {}
        for _ in range(100):
            hint.note(consumer, [(key, b"a")])
            assert hint.seen(consumer, [key]) == {}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    wire.proxy.mend()
    end = time.monotonic() + 10
    while not hint.seen(consumer, [key]) and time.monotonic() < end:
        time.sleep(0.02)
    assert hint.seen(consumer, [key]) == {key: b"a"}


def test_a_server_that_does_not_answer_costs_one_short_wait(
    through_proxy: ThroughProxy, consumer: str
) -> None:
    wire = through_proxy("redis")
    hint = RedisHint(wire.url, MINUTE)
    [key] = keys(1)
    hint.note(consumer, [(key, b"a")])
    wire.proxy.freeze()
    began = time.monotonic()
    assert hint.seen(consumer, [key]) == {}
    first = time.monotonic() - began
    for _ in range(1000):
        hint.seen(consumer, [key])
    assert first < 1
    # A thousand waits of 50 ms would be 50 s.
    assert time.monotonic() - began < 10
    wire.proxy.thaw()


def test_a_refused_password_is_an_empty_answer(redis_url: str, consumer: str) -> None:
    hint = RedisHint(redis_url.replace("redis://", "redis://nobody:secret@"), MINUTE)
    assert hint.seen(consumer, keys(1)) == {}


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1/0", "redis:///0", "redis://127.0.0.1/zero", "redis://127.0.0.1:no/0",
     "redis://127.0.0.1/0?lease=3", "redis://127.0.0.1/0?ca=x", "redis://[::1/0"],
)  # fmt: skip
def test_urls_that_cannot_be_used_are_refused(url: str) -> None:
    with pytest.raises(BadBrokerURL):
        RedisHint(url, MINUTE)


def test_a_password_is_not_shown() -> None:
    with pytest.raises(BadBrokerURL) as caught:
        RedisHint("redis://user:secret@127.0.0.1/zero", MINUTE)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("ttl", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(ttl: float) -> None:
    with pytest.raises(ValueError, match="ttl"):
        RedisHint("redis://127.0.0.1/0", ttl)


def test_a_client_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "redis":
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(MissingExtra, match=r"onefold\[redis\]"):
        RedisHint("redis://127.0.0.1/0", MINUTE)

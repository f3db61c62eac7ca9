from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from onefold.infrastructure.brokers import (
    BadBrokerURL,
    BrokerLost,
    BrokerMisconfigured,
    Delivery,
    Outgoing,
    Subscription,
    publisher,
    subscribe,
)
from onefold.infrastructure.brokers.redis_entry import delivery, fields_of

from ...services.fixtures import StartService, ThroughProxy, UniqueName
from ...services.redis import REDIS

SOON = 15.0
GROUP = "onefold.test"
LEASE = 0.5

Open = Callable[..., Subscription]


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as opened:
        yield opened


@pytest.fixture
def stream(unique_name: UniqueName, client: redis.Redis) -> Iterator[str]:
    name = unique_name()
    yield name
    client.delete(name)


@pytest.fixture
def subscribed(redis_url: str) -> Iterator[Open]:
    """Subscribes to a stream, with a lease of half a second unless the options say other."""
    opened: list[Subscription] = []

    def open_one(stream: str, options: str = f"&lease={LEASE}", server: str = redis_url) -> Subscription:
        opened.append(subscribe(f"{server}?stream={stream}{options}", "test"))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def fill(client: redis.Redis, stream: str, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        client.xadd(stream, {"body": str(number)})


def take(subscription: Subscription, count: int, *, quiet: float = 0.0) -> list[Delivery]:
    found: list[Delivery] = []
    end = time.monotonic() + SOON
    while len(found) < count and time.monotonic() < end:
        found.extend(subscription.receive(count, 0.2))
    if quiet:
        found.extend(subscription.receive(100, quiet))
    return found


def bodies(deliveries: list[Delivery]) -> list[bytes]:
    return [delivery.body for delivery in deliveries]


def consumers(client: redis.Redis, stream: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.xinfo_consumers(stream, GROUP)  # type: ignore[assignment]
    return found


class TestGroups:
    """C64."""

    def test_group_and_stream_are_made_and_the_group_begins_with_what_is_there(
        self, client: redis.Redis, stream: str, subscribed: Open
    ) -> None:
        subscribed(f"{stream}-new")
        assert client.xlen(f"{stream}-new") == 0
        client.delete(f"{stream}-new")
        fill(client, stream, 3)
        assert bodies(take(subscribed(stream), 3)) == [b"0", b"1", b"2"]

    def test_a_new_group_may_begin_elsewhere_and_an_old_one_goes_on(
        self, client: redis.Redis, stream: str, subscribed: Open
    ) -> None:
        fill(client, stream, 3)
        first = subscribed(stream, "&start=$&group=late")
        fill(client, stream, 2, first=3)
        assert bodies(take(first, 2)) == [b"3", b"4"]
        assert [group["name"] for group in client.xinfo_groups(stream)] == [b"late"]
        first.acknowledge(take(first, 0))
        second = subscribed(stream, "&start=0&group=late")
        fill(client, stream, 1, first=5)
        assert bodies(take(second, 1)) == [b"5"]

    def test_members_of_a_group_share_its_entries(
        self, client: redis.Redis, stream: str, subscribed: Open
    ) -> None:
        first, second = subscribed(stream, ""), subscribed(stream, "")
        fill(client, stream, 10)
        shares = bodies(list(first.receive(5, 1))), bodies(list(second.receive(10, 1)))
        assert [len(share) for share in shares] == [5, 5]
        assert sorted(shares[0] + shares[1]) == sorted(str(n).encode() for n in range(10))

    def test_several_streams_are_read_in_turn_and_never_more_than_asked_for(
        self, client: redis.Redis, stream: str, unique_name: UniqueName, subscribed: Open
    ) -> None:
        others = [unique_name(), unique_name()]
        for name in (stream, *others):
            fill(client, name, 5)
        subscription = subscribed(",".join((stream, *others)))
        assert subscription.backlog() == 15
        found: list[Delivery] = []
        for limit in (1, 2, 4, 1, 3, 1, 1, 5, 5):
            some = list(subscription.receive(limit, 0.3))
            assert len(some) <= limit
            found += some
        found += take(subscription, 15 - len(found))
        assert sorted({one.place for one in found}) == sorted(one.place for one in found)
        assert {one.place.partition("@")[0] for one in found} == {stream, *others}
        subscription.acknowledge(found)
        assert all(client.xpending(name, GROUP)["pending"] == 0 for name in (stream, *others))
        client.delete(*others)

    def test_a_group_that_was_deleted_is_made_again_at_the_beginning_with_a_warning(
        self, client: redis.Redis, stream: str, subscribed: Open, caplog: pytest.LogCaptureFixture
    ) -> None:
        fill(client, stream, 3)
        subscription = subscribed(stream, "&start=$")
        subscription.receive(1, 0)
        client.xgroup_destroy(stream, GROUP)
        assert bodies(take(subscription, 3)) == [b"0", b"1", b"2"]
        assert caplog.text.count("was made again") == 1

    def test_a_stream_that_was_deleted_while_it_was_waited_for_is_made_again(
        self, client: redis.Redis, stream: str, subscribed: Open, caplog: pytest.LogCaptureFixture
    ) -> None:
        fill(client, stream, 2)
        subscription = subscribed(stream)
        found = take(subscription, 2)
        # What FLUSHALL does to this stream: others use the same server.
        client.delete(stream)
        subscription.extend(found)
        subscription.give_back(found[:1], 0.1)
        subscription.acknowledge(found)
        assert subscription.backlog() in (0, None)
        fill(client, stream, 1, first=7)
        assert bodies(take(subscription, 1, quiet=0.3)) == [b"7"]
        assert caplog.text.count("was made again") == 1

    def test_a_flush_in_mid_run_loses_nothing_that_is_added_afterwards(
        self, start_service: StartService, subscribed: Open
    ) -> None:
        own = start_service(REDIS)
        with redis.Redis.from_url(own.url) as client:
            subscription = subscribed("orders", server=own.url)
            fill(client, "orders", 3)
            held = take(subscription, 2)
            client.flushall()
            fill(client, "orders", 4, first=10)
            assert bodies(take(subscription, 4, quiet=0.3)) == [b"10", b"11", b"12", b"13"]
            subscription.acknowledge(held)
            subscription.close()

    def test_a_server_that_comes_back_empty_is_lost_first_and_then_served(
        self, start_service: StartService, subscribed: Open
    ) -> None:
        own = start_service(REDIS)
        first = subscribed("orders", server=own.url)
        own.kill()
        with pytest.raises(BrokerLost):
            first.receive(1, 1)
        first.close()
        own.start()
        second = subscribed("orders", server=own.url)
        with redis.Redis.from_url(own.url) as client:
            fill(client, "orders", 1)
        assert bodies(take(second, 1)) == [b"0"]
        second.close()


class TestLeases:
    def test_what_another_abandoned_is_claimed_after_the_lease_and_counted(
        self, client: redis.Redis, stream: str, subscribed: Open
    ) -> None:
        fill(client, stream, 30)
        client.xgroup_create(stream, GROUP, "0")
        client.xreadgroup(GROUP, "dead", {stream: ">"}, count=25)
        subscription = subscribed(stream)
        assert len(take(subscription, 5)) == 5
        began = time.monotonic()
        found = list(subscription.receive(7, 5))
        while len(found) < 25 and time.monotonic() < began + SOON:
            some = subscription.receive(7, 0.2)
            assert len(some) <= 7
            found += [one for one in some if one.body not in bodies(found)]
        assert {int(body) for body in bodies(found)} >= set(range(25))
        assert {one.attempt for one in found if int(one.body) < 25} == {2}

    def test_what_another_has_claimed_is_not_taken_back_by_extending(
        self, client: redis.Redis, stream: str, subscribed: Open
    ) -> None:
        fill(client, stream, 2)
        slow = subscribed(stream)
        held = take(slow, 2)
        time.sleep(LEASE + 0.1)
        client.xclaim(stream, GROUP, "thief", 0, [held[0].handle[1]])
        slow.extend(held)
        slow.give_back(held, 0.0)
        owners = {
            entry["message_id"]: entry["consumer"]
            for entry in client.xpending_range(stream, GROUP, "-", "+", 9)
        }
        assert owners[held[0].handle[1]] == b"thief"
        assert owners[held[1].handle[1]] != b"thief"

    def test_an_acknowledgement_stands_also_for_what_was_claimed_since(
        self, client: redis.Redis, stream: str, subscribed: Open
    ) -> None:
        fill(client, stream, 1)
        slow = subscribed(stream)
        held = take(slow, 1)
        client.xclaim(stream, GROUP, "thief", 0, [held[0].handle[1]])
        slow.acknowledge(held)
        assert client.xpending(stream, GROUP)["pending"] == 0

    def test_given_back_entries_come_after_their_delay_at_most_a_lease(
        self, client: redis.Redis, stream: str, subscribed: Open
    ) -> None:
        fill(client, stream, 3)
        subscription = subscribed(stream, "&lease=2")
        found = take(subscription, 3)
        began = time.monotonic()
        subscription.give_back(found[:1], 0.6)
        subscription.give_back(found[1:2])
        subscription.give_back(found[2:], 3600)
        assert bodies(take(subscription, 1)) == [b"1"]
        [second] = take(subscription, 1)
        assert (second.body, second.attempt) == (b"0", 2)
        assert 0.6 <= time.monotonic() - began < 1.5
        subscription.extend([second])
        while not (last := subscription.receive(1, 0.1)):
            subscription.extend([second, found[1]])
        assert last[0].body == b"2"
        assert 2 <= time.monotonic() - began < 4

    def test_what_is_closed_is_free_at_once(self, client: redis.Redis, stream: str, subscribed: Open) -> None:
        fill(client, stream, 3)
        first = subscribed(stream, "&lease=60")
        found = take(first, 3)
        first.acknowledge(found[:1])
        first.close()
        began = time.monotonic()
        assert bodies(take(subscribed(stream, "&lease=60"), 2)) == [b"1", b"2"]
        assert time.monotonic() - began < 10

    @pytest.mark.parametrize("returned", [True, False])
    def test_entries_that_were_deleted_undone_are_named(
        self,
        client: redis.Redis,
        stream: str,
        subscribed: Open,
        caplog: pytest.LogCaptureFixture,
        returned: bool,
    ) -> None:
        fill(client, stream, 3)
        subscription = subscribed(stream)
        found = take(subscription, 3)
        gone = found[1].handle[1]
        client.xdel(stream, gone)
        if returned:
            subscription.give_back(found)
        assert bodies(take(subscription, 2)) == [b"0", b"2"]
        assert gone.decode() in caplog.text
        assert "cannot be delivered again" in caplog.text

    def test_entries_that_were_trimmed_before_they_were_read_are_counted(
        self, client: redis.Redis, stream: str, subscribed: Open, caplog: pytest.LogCaptureFixture
    ) -> None:
        fill(client, stream, 4)
        first = subscribed(stream)
        first.acknowledge(take(first, 4))
        first.close()
        fill(client, stream, 6, first=4)
        client.xtrim(stream, maxlen=2, approximate=False)
        second = subscribed(stream)
        assert "at least 4 entries were deleted or trimmed before" in caplog.text
        second.backlog()
        assert caplog.text.count("before the group read them") == 1
        assert bodies(take(second, 2)) == [b"8", b"9"]


class TestMembers:
    def test_a_member_that_holds_nothing_leaves_at_the_close(
        self, client: redis.Redis, stream: str, subscribed: Open
    ) -> None:
        fill(client, stream, 2)
        first, second = subscribed(stream), subscribed(stream)
        for member in (first, second):
            member.acknowledge(take(member, 1))
        assert len(consumers(client, stream)) == 2
        first.close()
        second.close()
        assert consumers(client, stream) == []

    def test_a_member_that_holds_something_stays_until_that_is_done(
        self, client: redis.Redis, stream: str, subscribed: Open
    ) -> None:
        fill(client, stream, 1)
        first = subscribed(stream, "&lease=0.1")
        take(first, 1)
        first.close()
        [left] = consumers(client, stream)
        assert left["pending"] == 1
        second = subscribed(stream, "&lease=0.1")
        second.acknowledge(take(second, 1))
        client.xgroup_createconsumer(stream, GROUP, "somebody-else")
        fill(client, stream, 1)
        take(second, 1)
        time.sleep(1.2)
        subscribed(stream, "&lease=0.1")
        names = {one["name"] for one in consumers(client, stream)}
        assert left["name"] not in names
        assert b"somebody-else" in names
        assert len(names) == 2


class TestBacklog:
    def test_it_counts_what_is_unread_and_what_is_not_acknowledged(
        self, client: redis.Redis, stream: str, subscribed: Open
    ) -> None:
        fill(client, stream, 10)
        subscription = subscribed(stream, "")
        found = take(subscription, 4)
        subscription.acknowledge(found[:3])
        assert subscription.backlog() == 7
        assert subscription.retention() is None

    def test_it_is_asked_once_a_second(self, client: redis.Redis, stream: str, subscribed: Open) -> None:
        subscription = subscribed(stream, "")
        assert subscription.backlog() == 0
        fill(client, stream, 1)
        assert subscription.backlog() == 0
        time.sleep(1.1)
        assert subscription.backlog() == 1


class TestErrors:
    @pytest.mark.parametrize(
        ("change", "match"),
        [
            (lambda url: url.replace("redis://", "redis://nobody:secret@"), "let the user in"),
            (lambda url: url.replace("/0?", "/99?"), "DB index is out of range"),
            (lambda url: f"{url}&start=zero", "Invalid stream ID"),
        ],
    )
    def test_what_does_not_change_by_itself_is_misconfigured(
        self, redis_url: str, stream: str, change: Callable[[str], str], match: str
    ) -> None:
        with pytest.raises(BrokerMisconfigured, match=match) as caught:
            subscribe(change(f"{redis_url}?stream={stream}"), "test")
        assert "secret" not in str(caught.value)

    def test_a_user_without_rights_is_misconfigured(
        self, start_service: StartService, subscribed: Open
    ) -> None:
        own = start_service(REDIS)
        with redis.Redis.from_url(own.url) as client:
            client.execute_command("ACL", "SETUSER", "reader", "on", ">word", "~*", "+@read", "+ping")
        with pytest.raises(BrokerMisconfigured, match="grant it the stream commands"):
            subscribed("orders", server=own.url.replace("redis://", "redis://reader:word@"))

    def test_a_server_that_is_a_replica_now_is_lost(
        self, start_service: StartService, subscribed: Open
    ) -> None:
        own = start_service(REDIS)
        subscription = subscribed("orders", server=own.url)
        out = publisher(f"{own.url}?stream=orders")
        with redis.Redis.from_url(own.url) as client:
            client.replicaof("127.0.0.1", 1)
            with pytest.raises(BrokerLost):
                subscription.receive(1, 0.1)
            with pytest.raises(BrokerLost):
                out.publish([Outgoing(b"x")])

    def test_a_server_that_falls_silent_is_lost(
        self, through_proxy: ThroughProxy, stream: str, subscribed: Open
    ) -> None:
        wire = through_proxy("redis")
        subscription = subscribed(stream, server=wire.url)
        wire.proxy.freeze()
        with pytest.raises(BrokerLost):
            subscription.receive(1, 1)
        began = time.monotonic()
        subscription.close()
        assert time.monotonic() - began < 2
        wire.proxy.thaw()

    @pytest.mark.parametrize(
        "rest",
        [
            "host", "host/0?stream=", "host/0?stream=a,,b", "host/0?stream=a,a", "host/x?stream=a",
            "host:port/0?stream=a", "/0?stream=a", "host/-1?stream=a", "host/0?stream=a&lease=0",
            "host/0?stream=a&lease=inf", "host/0?stream=a&group=", "host/0?stream=a&ca=f", "host/0?stream=a&x=1",
            "host/0?stream=a#part",
        ],
    )  # fmt: skip
    def test_urls_that_cannot_be_used_are_refused(self, rest: str) -> None:
        with pytest.raises(BadBrokerURL):
            subscribe(f"redis://{rest}", "test")


class TestEntries:
    ENTRY = b"1700000000123-4"

    def read(self, **fields: str | bytes) -> Delivery:
        raw = {
            name.replace("__", ":").encode(): value.encode() if isinstance(value, str) else value
            for name, value in fields.items()
        }
        return delivery("orders", self.ENTRY, raw, 1)

    def test_field_body_is_the_body_and_all_others_are_headers(self) -> None:
        found = self.read(body=b"\xff\x00", ce_id="7", Tenant="é🎉", data="x", raw=b"\xff")
        assert found.body == b"\xff\x00"
        assert found.headers == {"ce_id": "7", "tenant": "é🎉", "data": "x", "raw": "\\xff"}
        assert found.place == "orders@1700000000123-4"
        assert found.handle == ("orders", self.ENTRY)
        assert found.published_at == datetime.fromtimestamp(1_700_000_000, UTC) + timedelta(milliseconds=123)

    def test_field_data_is_the_body_of_an_event_in_binary_mode(self) -> None:
        found = self.read(ce_id="7", ce_source="/s", data='{"a": 1}')
        assert (found.body, found.headers) == (b'{"a": 1}', {"ce_id": "7", "ce_source": "/s"})
        assert self.read(cloudEvents__id="7").body == b""

    def test_attributes_without_a_prefix_get_one(self) -> None:
        found = self.read(
            specversion="1.0", id="7", datacontenttype="text/plain", data="hello", **{"x-y": "z"}
        )
        assert found.body == b"hello"
        assert found.headers == {
            "ce-specversion": "1.0", "ce-id": "7", "content-type": "text/plain", "x-y": "z"
        }  # fmt: skip
        assert self.read(specversion="1.0", id="7").headers["content-type"] == "application/json"

    def test_any_other_entry_is_a_json_object_of_its_fields(self) -> None:
        found = self.read(Name="é", amount="24.90", raw=b"\xff")
        assert json.loads(found.body) == {"Name": "é", "amount": "24.90", "raw": "\\xff"}
        assert found.headers == {"content-type": "application/json"}

    @pytest.mark.parametrize("entry", [b"1-0", b"18446744073709551615-0"])
    def test_an_id_that_is_no_time_tells_none(self, entry: bytes) -> None:
        assert delivery("s", entry, {b"body": b""}, None).published_at is None

    def test_an_outgoing_message_is_read_as_it_was(self) -> None:
        sent = Outgoing(b"\x00", {"content-type": "a/b", "ce-id": "7"}, "k")
        fields = {
            name.encode(): value if isinstance(value, bytes) else value.encode()
            for name, value in fields_of(sent).items()
        }
        found = delivery("s", b"1-0", fields, 1)
        assert (found.body, found.headers, found.key) == (sent.body, sent.headers, sent.key)

    @pytest.mark.parametrize("name", ["body", "Body", "onefold-key"])
    def test_headers_with_the_names_of_our_fields_are_refused(self, name: str) -> None:
        with pytest.raises(BrokerMisconfigured, match="rename the header"):
            fields_of(Outgoing(b"", {name: "x"}))


class TestPublishing:
    def test_what_is_published_keeps_its_order(
        self, redis_url: str, client: redis.Redis, stream: str
    ) -> None:
        out = publisher(f"{redis_url}?stream={stream}&group=g&lease=5&start=0")
        out.publish([Outgoing(str(number).encode()) for number in range(1200)])
        out.publish([])
        out.close()
        out.close()
        assert [fields[b"body"] for _, fields in client.xrange(stream)] == [
            str(number).encode() for number in range(1200)
        ]
        with pytest.raises(BrokerLost, match="closed"):
            out.publish([Outgoing(b"x")])

    def test_replicas_that_are_missing_are_an_error(
        self, redis_url: str, stream: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("onefold.infrastructure.brokers.redis_streams._LONGEST_BLOCK", 0.1)
        out = publisher(f"{redis_url}?stream={stream}&wait=1")
        with pytest.raises(BrokerLost, match="expected 1 replicas"):
            out.publish([Outgoing(b"x")])
        out.close()

    def test_what_is_no_stream_is_misconfigured(
        self, redis_url: str, client: redis.Redis, stream: str
    ) -> None:
        client.set(stream, "text")
        out = publisher(f"{redis_url}?stream={stream}")
        with pytest.raises(BrokerMisconfigured, match=stream):
            out.publish([Outgoing(b"x")])
        out.close()

    def test_a_connection_that_ended_meanwhile_is_made_again(
        self, through_proxy: ThroughProxy, client: redis.Redis, stream: str
    ) -> None:
        wire = through_proxy("redis")
        out = publisher(f"{wire.url}?stream={stream}")
        wire.proxy.cut()
        with pytest.raises(BrokerLost):
            out.publish([Outgoing(b"1")])
        wire.proxy.mend()
        out.publish([Outgoing(b"2")])
        out.close()
        assert client.xlen(stream) == 1

    @pytest.mark.parametrize("query", ["", "stream=", "stream=a,b", "stream=a&wait=1.5", "stream=a&x=1"])
    def test_urls_that_cannot_be_used_are_refused(self, query: str) -> None:
        with pytest.raises(BadBrokerURL):
            publisher(f"redis://host/0?{query}")

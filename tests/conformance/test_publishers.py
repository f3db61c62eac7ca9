"""What the publisher of every adapter promises: the same cases for all."""

from __future__ import annotations

from onefold.infrastructure.brokers import Outgoing

from .benches import Bench, drain, events, numbers, that

SOON = 20.0


@that("refuses")
def test_what_is_refused_for_good_is_told_and_stops_its_key_alone(bench: Bench) -> None:
    first, second = events(6)[:2], events(6)[2:]
    bad = Outgoing(bytes(bench.refused), {"content-type": "application/octet-stream"}, "key-0")
    others = [
        Outgoing(each.body, each.headers, key)
        for each, key in zip(second, ("a", "key-0", "b", None), strict=True)
    ]
    out = bench.publisher()
    refused = out.publish([first[0], others[0], bad, others[1], others[2], first[1], others[3]])
    assert list(refused) == [2]
    assert refused[2].startswith("expected ")
    subscription = bench.subscribe()
    found = drain(subscription, 4, SOON)
    assert set(numbers(found)) == {1, 3, 5, 6}
    subscription.acknowledge(found)
    subscription.close()
    # Whoever decides what becomes of it goes on with what follows.
    assert not out.publish([others[1], first[1]])
    out.close()
    found = drain(bench.subscribe(), 2 if bench.remembers else 6, SOON)
    assert set(numbers(found)) - {1, 3, 5, 6} == {4, 2}
    if bench.ordered:
        assert list(dict.fromkeys(numbers(found)))[-2:] == [4, 2]


@that("refuses")
def test_a_call_of_refused_messages_alone_publishes_nothing(bench: Bench) -> None:
    bad = Outgoing(bytes(bench.refused), {"content-type": "application/octet-stream"})
    out = bench.publisher()
    assert sorted(out.publish([bad, bad])) == [0, 1]
    assert not out.publish(events(1))
    out.close()
    assert numbers(drain(bench.subscribe(), 1, SOON, quiet=0.5)) == [1]


@that()
def test_nothing_to_publish_is_published_at_once(bench: Bench) -> None:
    out = bench.publisher()
    assert not out.publish([])
    out.close()

"""A segment works as long as it has its lease, and one whose token was taken can note nothing any more."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from onefold.infrastructure.relaying.dead_letters import list_held, retry
from onefold.infrastructure.relaying.segment import Claim, Segment
from onefold.infrastructure.relaying.source import OutboxSource
from onefold.infrastructure.wakeup import Wakeup

from .outgoing import CHANNEL, Broker, Connection, count, post, posting, published, relay, running, until


@pytest.fixture
def begun(database_url: str, connection: Connection) -> Connection:
    """A relay of one segment that has published nothing yet."""
    published(database_url, Broker(), segments=1)
    return connection


def take(connection: Connection, owner: str = "me") -> Claim:
    """Take the segment over."""
    row = connection.execute(
        "UPDATE onefold.relays SET owner = %s, token = token + 1, expires_at = clock_timestamp() + interval '1 min' "
        "RETURNING segment, segments, position, token",
        (owner,),
    ).fetchone()
    assert row is not None
    return Claim(CHANNEL, *row)


def segment(url: str, claim: Claim, broker: Broker, wakeup: Wakeup, lease: float = 60.0) -> Segment:
    return Segment(
        url,
        claim,
        lambda connection, claim: OutboxSource(connection, CHANNEL, claim.segment, claim.segments),
        broker,
        wakeup,
        batch=10,
        lease=lease,
        since=time.monotonic(),
    )


@pytest.fixture
def working(database_url: str, begun: Connection) -> Callable[..., Segment]:
    """Starts a segment."""

    def start(claim: Claim, broker: Broker, lease: float = 60.0) -> Segment:
        made = segment(database_url, claim, broker, Wakeup(database_url, "onefold_outbox"), lease)
        made.start()
        return made

    return start


def state(connection: Connection) -> tuple[int, int, str | None]:
    row = connection.execute("SELECT position, published, owner FROM onefold.relays").fetchone()
    assert row is not None
    return row[0], row[1], row[2]


def test_one_whose_segment_was_taken_over_moves_nothing(
    begun: Connection, working: Callable[..., Segment]
) -> None:
    broker = Broker()
    broker.hold.clear()
    post(begun, posting("a"))
    stale = working(take(begun), broker)
    assert broker.asked.wait(10)
    take(begun, "another")
    broker.hold.set()
    assert stale.join(10)
    assert state(begun) == (0, 0, "another")
    assert (stale.published, stale.error, stale.complete) == (0, None, False)
    assert broker.ids == ["a"]


def test_one_whose_segment_was_taken_over_holds_nothing_back(
    begun: Connection, working: Callable[..., Segment]
) -> None:
    broker = Broker()
    broker.hold.clear()
    broker.refused = {"a"}
    post(begun, posting("a"))
    stale = working(take(begun), broker)
    assert broker.asked.wait(10)
    take(begun, "another")
    broker.hold.set()
    assert stale.join(10)
    assert count(begun, "held_messages") == 0


def test_one_whose_segment_was_taken_over_resolves_nothing(
    database_url: str, begun: Connection, working: Callable[..., Segment]
) -> None:
    broker = Broker()
    broker.refused = {"a"}
    post(begun, posting("a"), posting("b"))
    published(database_url, broker)
    (letter,) = list_held(begun)
    retry(begun, letter.id)
    broker.refused.clear()
    broker.asked.clear()
    broker.hold.clear()
    stale = working(take(begun), broker)
    assert broker.asked.wait(10)
    take(begun, "another")
    broker.hold.set()
    assert stale.join(10)
    (found,) = list_held(begun)
    assert (found.resolution, found.behind, found.asked_at) == (None, 1, letter.asked_at or found.asked_at)
    begun.execute("UPDATE onefold.relays SET owner = NULL")
    # The other one publishes the same again.
    published(database_url, broker)
    assert broker.ids == ["a", "b", "a", "b"]
    assert list_held(begun) == []


def test_one_whose_lease_was_not_prolonged_publishes_nothing_more(
    begun: Connection, working: Callable[..., Segment]
) -> None:
    broker = Broker()
    old = working(take(begun), broker, lease=0.5)
    post(begun, posting("a"))
    until(lambda: state(begun)[0] == 1)
    # Moving has prolonged it; standing still does not.
    assert old.join(5)
    post(begun, posting("b"))
    time.sleep(0.2)
    assert broker.ids == ["a"]


def test_a_lease_that_ends_while_it_publishes_stops_it_before_the_next_page(
    begun: Connection, working: Callable[..., Segment]
) -> None:
    broker = Broker()
    broker.hold.clear()
    post(begun, *(posting(f"m{number}") for number in range(20)))
    old = working(take(begun), broker, lease=0.3)
    assert broker.asked.wait(10)
    time.sleep(0.4)
    take(begun, "another")
    broker.hold.set()
    assert old.join(10)
    assert broker.ids == [f"m{number}" for number in range(10)]
    assert state(begun)[0] == 0


def test_what_the_broker_took_of_a_stale_relay_comes_again_with_the_same_ids(
    database_url: str, begun: Connection
) -> None:
    broker, other = Broker(), Broker()
    broker.hold.clear()
    post(begun, posting("a"), posting("b"))
    with running(relay(database_url, broker)):
        assert broker.asked.wait(10)
        take(begun, "another")
        begun.execute("UPDATE onefold.relays SET owner = NULL, expires_at = NULL")
        published(database_url, other)
        broker.hold.set()
        until(lambda: len(broker.ids) == 2)
    assert [each.body for each in broker.taken] == [each.body for each in other.taken]
    assert state(begun)[:2] == (2, 2)


def test_a_move_whose_answer_was_lost_is_found_made(
    database_url: str, begun: Connection, working: Callable[..., Segment]
) -> None:
    broker = Broker()
    post(begun, posting("a"))
    claim = take(begun)
    # As if it had moved, and its connection had ended before it was told.
    begun.execute("UPDATE onefold.relays SET position = 1")
    mine = working(claim, broker)
    post(begun, posting("b"))
    until(lambda: state(begun)[0] == 2)
    mine.end()
    assert mine.join(10)
    assert broker.ids == ["b"]
    assert state(begun)[2] is None


@pytest.mark.parametrize("lost", [False, True], ids=["idle", "while its broker is lost"])
def test_one_that_is_told_of_its_loss_says_so(
    begun: Connection, working: Callable[..., Segment], caplog: pytest.LogCaptureFixture, lost: bool
) -> None:
    broker = Broker()
    mine = working(take(begun), broker)
    if lost:
        broker.hold.clear()
        broker.loses = 100
        post(begun, posting("a"))
        assert broker.asked.wait(10)
    else:
        post(begun, posting("a"))
        until(lambda: state(begun)[0] == 1)
    take(begun, "another")
    mine.lose()
    broker.hold.set()
    assert mine.join(10)
    assert "relay news: segment 0 is in the hands of another process" in caplog.text
    assert state(begun)[2] == "another"

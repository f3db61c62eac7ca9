"""The offset to commit: that of the first message which is not acknowledged, whatever order they are done in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from onefold.infrastructure.brokers import Delivery
from onefold.infrastructure.brokers.kafka_partition import Partition


def handed_out(*offsets: int) -> Partition:
    partition = Partition("t", 0)
    for offset in offsets:
        partition.hand_out(offset, Delivery(b"", {}, f"t[0]@{offset}"))
    return partition


def places(deliveries: list[Delivery]) -> list[int]:
    return [int(delivery.place.rpartition("@")[2]) for delivery in deliveries]


def test_nothing_is_committed_before_something_was_handed_out() -> None:
    assert handed_out().to_commit() is None


def test_a_message_that_is_not_done_is_not_passed() -> None:
    partition = handed_out(5, 6, 7)
    partition.acknowledge(6)
    partition.acknowledge(7)
    assert partition.to_commit() == 5
    partition.acknowledge(5)
    assert partition.to_commit() == 8


def test_what_was_committed_is_not_committed_again_until_it_failed() -> None:
    partition = handed_out(5)
    partition.acknowledge(5)
    assert partition.to_commit() == 6
    assert partition.to_commit() is None
    partition.not_committed(6)
    assert partition.to_commit() == 6
    partition.hand_out(6, Delivery(b"", {}, "t[0]@6"))
    partition.acknowledge(6)
    assert partition.to_commit() == 7
    partition.not_committed(6)
    assert partition.to_commit() is None


def test_gaps_between_offsets_do_not_hold_up() -> None:
    partition = handed_out(3, 9, 40)
    partition.acknowledge(3)
    assert partition.to_commit() == 9
    partition.acknowledge(9)
    partition.acknowledge(40)
    assert partition.to_commit() == 41


def test_offsets_that_went_back_are_committed_as_they_are_done() -> None:
    partition = handed_out(10, 11)
    partition.acknowledge(10)
    partition.acknowledge(11)
    assert partition.to_commit() == 12
    partition.hand_out(4, Delivery(b"", {}, "t[0]@4"))
    assert partition.to_commit() == 4
    partition.acknowledge(4)
    assert partition.to_commit() == 5


def test_what_was_given_back_is_handed_out_in_order_when_it_is_due() -> None:
    partition = handed_out(1, 2, 3)
    partition.give_back(3, 10.0)
    partition.give_back(1, 20.0)
    assert (partition.waiting, partition.due) == (2, 20.0)
    assert partition.take_again(15.0, 9) == []
    assert places(partition.take_again(20.0, 1)) == [1]
    assert places(partition.take_again(20.0, 9)) == [3]
    assert partition.take_again(99.0, 9) == []
    assert (partition.waiting, partition.due) == (0, None)
    assert partition.to_commit() == 1


def test_what_is_done_is_neither_given_back_nor_done_twice() -> None:
    partition = handed_out(1, 2)
    partition.acknowledge(1)
    partition.acknowledge(1)
    partition.give_back(1, 0.0)
    assert partition.waiting == 0
    partition.give_back(2, 0.0)
    partition.acknowledge(2)
    assert partition.take_again(1.0, 9) == []
    assert partition.to_commit() == 3


@given(st.data())
def test_no_message_is_passed_that_is_not_done(data: st.DataObject) -> None:
    offsets = sorted(data.draw(st.sets(st.integers(0, 60), min_size=1, max_size=20)))
    partition = handed_out(*offsets)
    left = set(offsets)
    committed = -1
    for _ in range(data.draw(st.integers(0, 40))):
        offset = data.draw(st.sampled_from(offsets))
        match data.draw(st.sampled_from(["done", "back", "again", "failed", "commit"])):
            case "done":
                partition.acknowledge(offset)
                left.discard(offset)
            case "back":
                partition.give_back(offset, 0.0)
            case "again":
                assert set(places(partition.take_again(1.0, 3))) <= left
            case "failed":
                partition.not_committed(committed)
            case _:
                found = partition.to_commit()
                committed = committed if found is None else found
                assert all(offset >= committed for offset in left)
    assert partition.unfinished == len(left)
    partition.not_committed(committed)
    assert partition.to_commit() == min(left, default=offsets[-1] + 1)

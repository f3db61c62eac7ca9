"""Combining: callers share the work, and each gets its own result or its own error."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from onefold.infrastructure.postgres.combiner import Combiner, Request

Batch = Sequence[Request[int, int]]


def refuse_alone(work: int) -> int:
    raise AssertionError(f"{work} was done alone")


def test_a_single_caller_is_served_at_once() -> None:
    def together(batch: Batch) -> None:
        for request in batch:
            request.result = request.work * 2

    combiner = Combiner(together, refuse_alone)
    assert [combiner.submit(number) for number in range(5)] == [0, 2, 4, 6, 8]


def test_who_comes_while_others_are_at_work_is_served_together() -> None:
    entered, go_on = threading.Event(), threading.Event()
    batches: list[list[int]] = []

    def together(batch: Batch) -> None:
        batches.append([request.work for request in batch])
        entered.set()
        assert go_on.wait(10)
        for request in batch:
            request.result = -request.work

    combiner = Combiner(together, refuse_alone)
    with ThreadPoolExecutor(6) as threads:
        first = threads.submit(combiner.submit, 1)
        assert entered.wait(10)
        rest = [threads.submit(combiner.submit, number) for number in (2, 3, 4, 5)]
        while len(combiner._waiting) < 4:
            threading.Event().wait(0.001)
        go_on.set()
        assert first.result(10) == -1
        assert sorted(future.result(10) for future in rest) == [-5, -4, -3, -2]
    assert batches[0] == [1]
    assert sorted(batches[1]) == [2, 3, 4, 5]
    assert len(batches) == 2


def test_no_more_than_the_most_are_served_together() -> None:
    sizes: list[int] = []

    def together(batch: Batch) -> None:
        sizes.append(len(batch))
        for request in batch:
            request.result = request.work

    combiner = Combiner(together, refuse_alone, at_once=2, most=3)
    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(combiner.submit, range(500))) == list(range(500))
    assert sum(sizes) == 500
    assert max(sizes) <= 3


def test_an_error_is_raised_only_where_its_caller_is() -> None:
    def together(batch: Batch) -> None:
        for request in batch:
            if request.work % 7 == 0:
                request.error = ValueError(str(request.work))
            else:
                request.result = request.work

    combiner = Combiner(together, refuse_alone, at_once=2)

    def call(number: int) -> int | str:
        try:
            return combiner.submit(number)
        except ValueError as error:
            return str(error)

    with ThreadPoolExecutor(12) as threads:
        found = list(threads.map(call, range(300)))
    assert found == [str(number) if number % 7 == 0 else number for number in range(300)]


def test_work_that_could_not_be_done_together_is_done_by_each_caller_alone() -> None:
    def together(batch: Batch) -> None:
        if len(batch) == 1:
            batch[0].result = batch[0].work

    combiner = Combiner(together, lambda work: work, at_once=3)
    with ThreadPoolExecutor(12) as threads:
        assert list(threads.map(combiner.submit, range(300))) == list(range(300))


def test_a_leader_that_fails_leaves_nobody_waiting() -> None:
    def together(batch: Batch) -> None:
        if any(request.work % 5 == 0 for request in batch):
            raise KeyError("gone")
        for request in batch:
            request.result = request.work

    combiner = Combiner(together, lambda work: work, at_once=1)

    def call(number: int) -> int | None:
        try:
            return combiner.submit(number)
        except KeyError:
            return None

    with ThreadPoolExecutor(12) as threads:
        found = list(threads.map(call, range(300), timeout=30))
    assert all(answer in (number, None) for number, answer in enumerate(found))
    assert combiner.submit(1) == 1
    with pytest.raises(KeyError):
        combiner.submit(5)

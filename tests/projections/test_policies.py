"""Policies: what a projection does after its n-th failure at one event."""

from __future__ import annotations

import pytest

from onefold.projections.policies import Policy, Retry, Stop


@pytest.mark.parametrize(
    ("policy", "attempt", "delay"),
    [
        (Stop(), 1, None),
        (Stop(), 100, None),
        (Retry(), 1, 0.1),
        (Retry(), 2, 0.2),
        (Retry(), 4, 0.8),
        (Retry(), 5, None),
        (Retry(attempts=1), 1, None),
        (Retry(attempts=3, first=2.0), 1, 2.0),
        (Retry(attempts=3, first=2.0), 2, 4.0),
        (Retry(attempts=3, first=2.0), 3, None),
        (Retry(attempts=3, first=2.0), 4, None),
        (Retry(attempts=100, first=1.0, longest=5.0), 3, 4.0),
        (Retry(attempts=100, first=1.0, longest=5.0), 4, 5.0),
        (Retry(attempts=10**6, first=1.0, longest=5.0), 99_999, 5.0),
    ],
)
def test_a_policy_says_how_long_to_wait_or_that_it_gives_up(
    policy: Policy, attempt: int, delay: float | None
) -> None:
    assert policy.delay(attempt) == delay

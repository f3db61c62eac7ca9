"""How long workers wait before they try again, and the identities that a retry finds again."""

from __future__ import annotations

import itertools
import time
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from onefold.infrastructure.backoff import Backoff
from onefold.infrastructure.identity import event_id_of, new_event_id


@given(first=st.floats(0.001, 10), longest=st.floats(0.001, 100))
def test_waits_double_up_to_a_limit_and_each_is_half_random(first: float, longest: float) -> None:
    backoff = Backoff(first, longest)
    for tries in range(60):
        full = min(first * 2.0**tries, longest)
        assert full / 2 <= backoff.next() <= full


def test_waits_stay_at_the_limit_however_long_an_outage_lasts() -> None:
    backoff = Backoff(0.05, 5.0)
    waits = [backoff.next() for _ in range(5000)]
    assert all(2.5 <= wait <= 5.0 for wait in waits[10:])
    assert len(set(waits[10:])) > 1000


def test_a_success_begins_the_waits_anew() -> None:
    backoff = Backoff(0.05, 5.0)
    for _ in range(20):
        backoff.next()
    backoff.reset()
    assert backoff.next() <= 0.05


def test_new_ids_are_of_version_7_all_different_and_rise_with_time() -> None:
    ids = []
    for _ in range(50):
        ids += [new_event_id() for _ in range(20)]
        time.sleep(0.001)
    assert len(set(ids)) == 1000
    assert all(each.version == 7 and each.int >> 62 & 0b11 == 0b10 for each in ids)
    milliseconds = [each.int >> 80 for each in ids]
    assert milliseconds == sorted(milliseconds)
    assert abs(milliseconds[-1] / 1000 - time.time()) < 60


def test_an_id_that_is_derived_from_a_key_is_the_same_at_every_call_and_in_every_version() -> None:
    assert event_id_of("olist", "order 1") == event_id_of("olist", "order 1")
    assert event_id_of("olist", "order 1") == UUID("54210d12-159f-5f35-be9e-9b97dbf7f9d6")
    pairs = [("a", "b"), ("ab", ""), ("", "ab"), ("a", "c"), ("b", "a"), ("ä", "b"), ("a\u0308", "b")]
    assert all(event_id_of(*one) != event_id_of(*other) for one, other in itertools.combinations(pairs, 2))

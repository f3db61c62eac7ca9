"""Instants: aware datetimes, and local times made instants by a stated rule."""

# ruff: noqa: DTZ001 - times without a zone are what is refused or converted here

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from onefold.domain.instant import (
    EPOCH,
    Instant,
    NaiveInstant,
    UnclearLocalTime,
    ensure_aware,
    from_local,
    instant,
    microseconds,
)

SAO_PAULO = "America/Sao_Paulo"
TWICE = datetime(2018, 2, 17, 23, 33, 56)  # clocks went back at midnight
NEVER = datetime(2017, 10, 15, 0, 30)  # clocks went forward at midnight


class NoOffset(tzinfo):
    def utcoffset(self, _: datetime | None) -> None:
        return None


def test_an_aware_datetime_passes_unchanged() -> None:
    aware = datetime(2020, 1, 1, tzinfo=timezone(timedelta(hours=-3)))
    assert ensure_aware("at", aware) is aware


@pytest.mark.parametrize("zone", [None, NoOffset()])
def test_a_naive_datetime_is_refused_with_its_name(zone: tzinfo | None) -> None:
    with pytest.raises(NaiveInstant, match=r"placed_at is 2020-01-01T00:00:00 without a zone"):
        ensure_aware("placed_at", datetime(2020, 1, 1, tzinfo=zone))


def test_a_local_time_becomes_the_instant_of_its_zone() -> None:
    assert from_local(datetime(2018, 6, 12, 20, 7, 44), SAO_PAULO) == datetime(
        2018, 6, 12, 23, 7, 44, tzinfo=UTC
    )
    assert from_local(datetime(2018, 1, 1), SAO_PAULO) == datetime(2018, 1, 1, 2, tzinfo=UTC)


def test_a_time_that_came_twice_needs_a_rule() -> None:
    with pytest.raises(
        UnclearLocalTime, match=r"happened twice in America/Sao_Paulo; say ambiguous='earlier'"
    ):
        from_local(TWICE, SAO_PAULO)
    assert from_local(TWICE, SAO_PAULO, ambiguous="earlier") == datetime(2018, 2, 18, 1, 33, 56, tzinfo=UTC)
    assert from_local(TWICE, SAO_PAULO, ambiguous="later") == datetime(2018, 2, 18, 2, 33, 56, tzinfo=UTC)


def test_a_time_that_was_skipped_needs_a_rule() -> None:
    with pytest.raises(UnclearLocalTime, match="never happened in America/Sao_Paulo"):
        from_local(NEVER, SAO_PAULO, ambiguous="earlier")
    forward = from_local(NEVER, SAO_PAULO, skipped="forward")
    assert forward == datetime(2017, 10, 15, 3, 30, tzinfo=UTC)
    assert forward.astimezone(ZoneInfo(SAO_PAULO)).replace(tzinfo=None) == datetime(2017, 10, 15, 1, 30)


def test_a_skipped_midnight_is_the_first_moment_of_its_day() -> None:
    first = from_local(datetime(2017, 10, 15), SAO_PAULO, skipped="forward")
    zone = ZoneInfo(SAO_PAULO)
    assert first.astimezone(zone).replace(tzinfo=None) == datetime(2017, 10, 15, 1)
    assert (first - timedelta(seconds=1)).astimezone(zone).replace(tzinfo=None) == datetime(
        2017, 10, 14, 23, 59, 59
    )


def test_an_aware_time_is_not_taken_for_a_local_one() -> None:
    with pytest.raises(UnclearLocalTime, match="already has a zone"):
        from_local(datetime(2020, 1, 1, tzinfo=UTC), SAO_PAULO)


def test_microseconds_count_from_the_epoch_of_the_database() -> None:
    assert microseconds(EPOCH) == 0
    assert microseconds(datetime(1999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)) == -1
    with pytest.raises(TypeError):
        microseconds(datetime(2020, 1, 1))


@settings(deadline=None)
@given(st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))])))
def test_microseconds_and_instant_are_inverse(value: datetime) -> None:
    try:
        count = microseconds(value)
        back = instant(count)
    except OverflowError:  # the very ends of the calendar, seen from another zone
        return
    assert back == value


@settings(deadline=None)
@given(
    st.datetimes(min_value=datetime(2000, 1, 1), max_value=datetime(2030, 1, 1)),
    st.sampled_from([SAO_PAULO, "Europe/Prague", "Asia/Kolkata", "UTC"]),
)
def test_an_instant_shows_the_local_time_that_it_was_made_of(local: datetime, zone: str) -> None:
    try:
        made = from_local(local, zone)
    except UnclearLocalTime:
        made = from_local(local, zone, ambiguous="earlier", skipped="forward")
        assert made <= from_local(local, zone, ambiguous="later", skipped="forward")
        return
    assert made.tzinfo is UTC
    assert made.astimezone(ZoneInfo(zone)).replace(tzinfo=None) == local


@pytest.mark.parametrize(
    "zone",
    [
        ZoneInfo("Europe/Prague"),
        timezone(timedelta(minutes=19, seconds=32)),
        timezone(timedelta(seconds=-30)),
        timezone(timedelta(microseconds=1)),
    ],
)
def test_an_offset_with_seconds_becomes_utc_because_json_leaves_them_out(zone: tzinfo) -> None:
    adapter = TypeAdapter(Instant)
    value = datetime(1880, 1, 1, 12, tzinfo=zone)
    made = adapter.validate_python(value)
    assert made == value
    assert made.tzinfo is UTC
    assert adapter.validate_json(adapter.dump_json(made)) == value


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=5, minutes=45)), ZoneInfo("Europe/Prague")])
def test_an_offset_of_whole_minutes_is_kept(zone: tzinfo) -> None:
    value = datetime(2026, 1, 1, 12, tzinfo=zone)
    assert TypeAdapter(Instant).validate_python(value) is value


def test_an_offset_with_seconds_that_leaves_the_calendar_is_refused() -> None:
    value = datetime.min.replace(tzinfo=timezone(timedelta(seconds=1)))
    with pytest.raises(ValidationError, match="lies outside the years 1 to 9999 in UTC"):
        TypeAdapter(Instant).validate_python(value)

"""Event times and durations as users have them: integers and datetimes of other libraries, slips of unit and type."""

from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pandas as pd
import pytest
from floodmark.schemas.errors import InvalidEventTimeError
from floodmark.schemas.timestamps import (
    EARLIEST,
    END_OF_TIME,
    are_seconds,
    event_time_of,
    event_times_of,
    from_datetime,
)
from hypothesis import given
from hypothesis import strategies as st

NOW = from_datetime(datetime(2026, 1, 1, tzinfo=UTC))
# The years that pandas' nanoseconds reach.
MOMENTS = st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1), timezones=st.timezones())  # noqa: DTZ001  # zones are drawn


@given(st.integers(EARLIEST, END_OF_TIME))
def test_integers_of_numpy_are_what_they_count(time):
    found = event_time_of(np.int64(time))
    assert (found, type(found)) == (time, int)


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.uint16, np.uint64])
def test_every_width_of_integer_is_taken(kind):
    assert event_time_of(kind(12)) == 12


@given(MOMENTS)
def test_a_timestamp_of_pandas_is_its_datetime(moment):
    assert event_time_of(pd.Timestamp(moment)) == event_time_of(moment)


@given(st.datetimes(timezones=st.timezones()))
def test_a_datetime_is_a_time_of_the_calendar_or_is_refused(moment):
    try:
        time = event_time_of(moment)
    except InvalidEventTimeError:
        assert moment.year in {1, 9999}
    else:
        assert EARLIEST <= time <= END_OF_TIME


def test_nanoseconds_are_rounded_down():
    assert event_time_of(pd.Timestamp("1970-01-01T00:00:00.012999999Z")) == 12
    assert event_time_of(pd.Timestamp("1969-12-31T23:59:59.999999999Z")) == -1
    assert event_time_of(np.datetime64("1970-01-01T00:00:00.012999999")) == 12
    assert event_time_of(np.datetime64("1969-12-31T23:59:59.999999999")) == -1


def test_a_missing_time_in_an_array_is_called_so():
    with pytest.raises(InvalidEventTimeError, match="event time 'NaT' cannot be used: it is a missing time"):
        event_times_of(np.array(["2026-01-01", "NaT"], "datetime64[s]"))


@given(st.integers(100_000_000_000, END_OF_TIME - 1), st.floats(0, 0.999))
def test_a_float_of_milliseconds_is_rounded_down(time, part):
    assert time <= event_time_of(time + part) <= time + 1
    assert event_time_of(np.float64(time)) == event_time_of(float(time)) == time


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (1.7e9, r"such as time\.time\(\) \* 1000"),
        (np.float64(1.7e9), "expected epoch milliseconds"),
        (float("nan"), "expected epoch milliseconds"),
        (float("inf"), "expected epoch milliseconds"),
        (1e18, "expected epoch milliseconds"),
        (np.bool_(True), "expected epoch milliseconds"),  # noqa: FBT003  # numpy's own
        (True, "expected epoch milliseconds"),
        ("2026-01-01", "expected epoch milliseconds"),
        (pd.Timestamp("2026-01-01"), "no time zone"),
        (pd.NaT, "missing time"),
        (np.int64(10**18), r"are these nanoseconds\? Pass milliseconds"),
        (1_763_712_000_000_000, r"are these microseconds\? Pass milliseconds"),
        (10**15 - 1, "outside the years 1 to 9999$"),
        pytest.param(10**5_000, "a number of 16610 bits.*outside the years 1 to 9999$", id="long"),
        (np.datetime64("NaT"), "missing time"),
        (datetime.min.replace(tzinfo=timezone(timedelta(minutes=1))), "outside the years 1 to 9999"),
        (datetime.max.replace(tzinfo=timezone(timedelta(minutes=-1))), "outside the years 1 to 9999"),
        (pd.Timestamp("9999-12-31T23:59:59-00:01"), "outside the years 1 to 9999"),
    ],
)
def test_what_is_no_time_is_refused_with_a_reason(value, said):
    with pytest.raises(InvalidEventTimeError, match=said):
        event_time_of(value)


@given(st.datetimes(datetime(2001, 9, 10), datetime(2035, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001  # UTC is drawn
def test_seconds_of_our_days_are_told_from_milliseconds(moment):
    assert are_seconds(int(moment.timestamp()), NOW)
    assert not are_seconds(from_datetime(moment), NOW)


@given(st.integers(EARLIEST, int(timedelta(days=11).total_seconds()) * 1000))
def test_times_made_up_for_a_test_are_no_seconds(time):
    assert not are_seconds(time, NOW)

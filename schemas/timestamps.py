"""Event times: their range, when one is late, and conversion.  Pure: reads no clock.

Internally, a time is an ``int``: milliseconds since 1970-01-01T00:00:00Z.  The API also takes aware ``datetime``.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from math import floor
from numbers import Integral
from typing import Any, Final

from floodmark.schemas.errors import InvalidEventTimeError, UsageError

EARLIEST: Final = -62_135_596_800_000  # 0001-01-01T00:00:00Z, the first time that Python, Avro and Spark all know

END_OF_TIME: Final = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z: the watermark of an input that has ended; releases everything."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS_IN_2001: Final = 1_000_000_000
_TEN_YEARS_IN_SECONDS: Final = 10 * 365 * 86_400
_LEAST_MILLISECONDS: Final = 100_000_000_000
"""A float from here on is taken for milliseconds (March 1973); as seconds it would be the year 5138."""
_LONG: Final = 1_000  # bits; Python refuses to print integers of more than 4,300 digits
_NOT_A_TIME: Final = -(1 << 63)  # NumPy's missing time, as an integer
_MISSING: Final = "it is a missing time; leave such a record out"
_OUR_DAYS: Final = range(1_000_000_000_000, 4_102_444_800_000)  # from September 2001 to 2099, milliseconds


def is_late(event_time: int, watermark: int | None) -> bool:
    """Tell whether a record is late: ``event_time < watermark``, strictly.  With a watermark of ``None``, no record is.

    All Python code compares here; columns in a Spark plan use the same rule.  Flink's watermark is ours minus 1 ms.

    >>> is_late(11, 12), is_late(12, 12), is_late(11, None)
    (True, False, False)
    """
    return watermark is not None and event_time < watermark


def from_datetime(moment: datetime) -> int:
    """Turn an aware datetime into epoch milliseconds, rounding down.

    Raises:
        InvalidEventTimeError: for a naive datetime, or one outside the years 1 to 9999 in UTC.

    >>> from_datetime(datetime(2013, 1, 1, tzinfo=UTC))
    1356998400000
    """
    if moment.tzinfo is None:
        raise InvalidEventTimeError(value=moment, reason="it has no time zone; use datetime(..., tzinfo=UTC)")
    time = (moment - _EPOCH) // timedelta(milliseconds=1)
    if not EARLIEST <= time <= END_OF_TIME:
        raise InvalidEventTimeError(value=moment, reason="in UTC it is outside the years 1 to 9999")
    return time


def to_datetime(time: int) -> datetime:
    """Turn epoch milliseconds into an aware UTC datetime.

    >>> to_datetime(1356998400000).isoformat()
    '2013-01-01T00:00:00+00:00'
    """
    return _EPOCH + timedelta(milliseconds=time)


def _without_datetime64(value: Any) -> Any:  # noqa: ANN401  # any value of a user
    """Return NumPy's ``datetime64``, or an array of them, in epoch milliseconds, and any other value unchanged."""
    if type(value).__module__ == "numpy" and value.dtype.kind == "M":
        return value.astype("datetime64[ms]").astype("int64")
    return value


def event_time_of(value: object) -> int:
    """Return an event time in epoch milliseconds.

    Args:
        value: epoch milliseconds as an ``int``, an aware ``datetime``, or the like of NumPy (``datetime64`` is in UTC)
            and pandas.  A ``float``, such as ``time.time() * 1000``, is rounded down; below 100,000,000,000 it is
            refused, because it is more likely seconds.

    Raises:
        InvalidEventTimeError: for any other value, and for a time outside the years 1 to 9999.

    >>> event_time_of(12), event_time_of(1_763_938_400_123.4567)
    (12, 1763938400123)
    """
    if type(value) is int and EARLIEST <= value <= END_OF_TIME:  # the most frequent, and the checks below take time
        return value
    if isinstance(value, datetime):
        if value != value:  # noqa: PLR0124  # pandas' NaT is a datetime, and equal to nothing
            raise InvalidEventTimeError(value=value, reason=_MISSING)
        return from_datetime(value)
    value = _without_datetime64(value)
    if isinstance(value, float) and _LEAST_MILLISECONDS <= value <= END_OF_TIME + 1:
        value = floor(value)
    if isinstance(value, bool) or not isinstance(value, Integral):
        reason = "expected epoch milliseconds, such as time.time() * 1000, or an aware datetime"
        raise InvalidEventTimeError(value=value, reason=reason)
    value = int(value)
    if value == _NOT_A_TIME:
        raise InvalidEventTimeError(value="NaT", reason=_MISSING)
    if not EARLIEST <= value <= END_OF_TIME:
        unit = fitting_unit(value, ("milliseconds", "microseconds", "nanoseconds"))
        hint = f"; are these {unit}? Pass milliseconds" if unit else ""
        told = value if value.bit_length() < _LONG else f"a number of {value.bit_length()} bits"
        raise InvalidEventTimeError(value=told, reason=f"it is outside the years 1 to 9999{hint}")
    return value


def fitting_unit(time: int, units: Iterable[str]) -> str | None:
    """Return the unit in which a time, in milliseconds if read in the first unit, is in the years 2001 to 2099.

    Each unit is 1,000 times finer than the one before.  ``None``: no unit fits.

    >>> fitting_unit(1_763_938_400_123_456, ["ms", "us"]), fitting_unit(1_763_938_400_123_456, ["s", "ms"])
    ('us', 'ms')
    """
    return next((unit for power, unit in enumerate(units) if time // 1_000**power in _OUR_DAYS), None)


def event_times_of(values: Iterable[Any]) -> list[int]:
    """Return the event times of a list or an array (NumPy, in UTC; pandas; Arrow), each as `event_time_of`.

    >>> event_times_of([12, 13.0 + 1_763_938_400_000])
    [12, 1763938400013]
    """
    values = _without_datetime64(values)
    listing = getattr(values, "tolist", getattr(values, "to_pylist", None))  # Arrow's chunks have only the second
    return [event_time_of(value) for value in (values if listing is None else listing())]


def are_seconds(time: int, now: int, per_millisecond: int = 1) -> bool:
    """Tell whether an event time in milliseconds is probably one in seconds, or in another unit that is too long.

    That is a number which, as seconds, is between September 2001 and ten years from now.  Such a time is legal (in
    January 1970), but a wrong unit is more likely.

    Args:
        time: epoch milliseconds.
        now: epoch milliseconds.
        per_millisecond: how many of the unit in which the time was read are a millisecond: 1,000,000 nanoseconds.

    >>> now = 1_763_938_400_000
    >>> are_seconds(now // 1_000, now), are_seconds(now // 10**6, now), are_seconds(now // 10**6, now, 10**6)
    (True, False, True)
    """
    latest = now // 1000 + _TEN_YEARS_IN_SECONDS
    while per_millisecond:
        if _SECONDS_IN_2001 <= time * per_millisecond <= latest:
            return True
        per_millisecond //= 1_000
    return False


def duration_of(value: object, what: str, least: int = 0) -> int:
    """Return a timedelta in whole milliseconds; `UsageError`, which names ``what``, if it is below ``least``.

    >>> duration_of(timedelta(seconds=5), "the bound")
    5000
    """
    if not isinstance(value, timedelta):
        raise UsageError(reason=f"{what} is {value!r}, expected a timedelta: write timedelta(seconds=...)")
    if milliseconds(value) < least:
        expected = f"{least / 1000:g} s" if least else "0"
        raise UsageError(reason=f"{what} is {value.total_seconds():.15g} s, expected {expected} or more")
    return milliseconds(value)


def milliseconds(duration: timedelta) -> int:
    """Return a duration in whole milliseconds, rounding down.

    >>> milliseconds(timedelta(seconds=1.5))
    1500
    """
    return duration // timedelta(milliseconds=1)


def promisable(time: int) -> int:
    """Return the nearest watermark that an ACTIVE source may have: in the years 1 to 9999, and below `END_OF_TIME`.

    >>> promisable(5), promisable(END_OF_TIME) == END_OF_TIME - 1
    (5, True)
    """
    return max(EARLIEST, min(time, END_OF_TIME - 1))

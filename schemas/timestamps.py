"""Event times: what one is, when it is late, how it crosses the API's edge.  Pure: reads no clock.

Inside, a time is an ``int``: milliseconds since 1970-01-01T00:00:00Z.  At the edge it is an aware UTC ``datetime``.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from floodmark.schemas.errors import InvalidEventTimeError

EARLIEST: Final = -62_135_596_800_000
"""0001-01-01T00:00:00Z, the first time that Python, Avro and Spark all know."""

END_OF_TIME: Final = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z: the watermark of an input that has ended; releases everything."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def is_late(event_time: int, watermark: int | None) -> bool:
    """Tell whether a record comes behind a watermark: strictly, ``event_time < watermark``.

    All Python code of Floodmark compares the two here; columns in a Spark plan are compared by the same rule.  ``None``
    (nothing promised yet) makes nothing late.
    The strict reading is that of "Streaming Systems" (Akidau et al., ch. 3), CockroachDB and TiCDC; Flink's watermark
    is ours minus one millisecond.

    >>> is_late(11, 12), is_late(12, 12), is_late(11, None)
    (True, False, False)
    """
    return watermark is not None and event_time < watermark


def from_datetime(moment: datetime) -> int:
    """Turn an aware datetime into epoch milliseconds, rounding down.

    Raises:
        InvalidEventTimeError: for a naive datetime, whose zone nobody can know.

    >>> from_datetime(datetime(2013, 1, 1, tzinfo=UTC))
    1356998400000
    """
    if moment.tzinfo is None:
        raise InvalidEventTimeError(value=moment, reason="it has no time zone; use datetime(..., tzinfo=UTC)")
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def to_datetime(time: int) -> datetime:
    """Turn epoch milliseconds into an aware UTC datetime.

    >>> to_datetime(1356998400000).isoformat()
    '2013-01-01T00:00:00+00:00'
    """
    return _EPOCH + timedelta(milliseconds=time)


def event_time_of(value: object) -> int:
    """Accept an event time as users have it (``int`` milliseconds or an aware datetime) or say why not.

    Raises:
        InvalidEventTimeError: for anything that is no time, or is outside the years 1 to 9999.

    >>> event_time_of(12)
    12
    """
    if isinstance(value, datetime):
        return from_datetime(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidEventTimeError(value=value, reason="expected epoch milliseconds (int) or an aware datetime")
    if not EARLIEST <= value <= END_OF_TIME:
        raise InvalidEventTimeError(value=value, reason="it is outside the years 1 to 9999; are these milliseconds?")
    return value


def milliseconds(duration: timedelta) -> int:
    """Return a duration in whole milliseconds, rounding down.

    >>> milliseconds(timedelta(seconds=1.5))
    1500
    """
    return duration // timedelta(milliseconds=1)


def promisable(time: int) -> int:
    """Return the nearest watermark that an ACTIVE source may promise: within the calendar, below its end.

    >>> promisable(5), promisable(END_OF_TIME) == END_OF_TIME - 1
    (5, True)
    """
    return max(EARLIEST, min(time, END_OF_TIME - 1))

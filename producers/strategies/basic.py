"""Strategies with one time as their state: ascending, bounded, explicit, ingress and punctuated.  Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from floodmark.producers.strategies.interface import Built, Generator, State, Strategy
from floodmark.schemas.errors import WatermarkRegressionError
from floodmark.schemas.timestamps import duration_of, event_time_of
from typing_extensions import override


@dataclass(slots=True)
class _Events(State):
    largest_event_time: int | None = None


@dataclass(slots=True)
class _Promise(State):
    watermark: int | None = None


@dataclass(slots=True)
class _Stamps(State):
    last_stamp: int | None = None


class _Bounded(Generator):
    """The largest event time so far, minus the bound.  Flink's value plus one, since late here means strictly below."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._state: _Events = _Events()

    @override
    def on_event(self, event_time: int, now: int | None = None, value: bytes | None = None) -> None:
        state = self._state
        if state.largest_event_time is None or event_time > state.largest_event_time:
            state.largest_event_time = event_time

    @override
    def watermark(self) -> int | None:
        largest = self._state.largest_event_time
        return None if largest is None else largest - self._bound


def ascending() -> Strategy:
    """The watermark is the largest event time: event times never decrease.

    Exact for a log that is ordered by time ("Streaming Systems", ch. 3, static sets of time-ordered logs).

    >>> generator = ascending().build()
    >>> generator.on_event(12)
    >>> generator.watermark()
    12
    """
    return Built(_Bounded, (0,))


def bounded_out_of_orderness(bound: timedelta) -> Strategy:
    """The watermark is the largest event time minus ``bound``; results are late by as much.

    Raises `UsageError` if the bound is negative, or no timedelta.

    >>> generator = bounded_out_of_orderness(timedelta(milliseconds=10)).build()
    >>> for event_time in (12345, 12300, 12340, 12280):
    ...     generator.on_event(event_time)
    >>> generator.watermark()
    12335
    """
    return Built(_Bounded, (duration_of(bound, "the bound of out-of-orderness"),))


class Explicit(Generator):
    """The watermark is what the caller passes to `advance`."""

    def __init__(self, source: str = "explicit") -> None:
        self._source = source
        self._state: _Promise = _Promise()

    @override
    def advance(self, watermark: int) -> None:
        last = self._state.watermark
        if last is not None and watermark < last:
            raise WatermarkRegressionError(source=self._source, last=last, received=watermark)
        self._state.watermark = watermark

    @override
    def watermark(self) -> int | None:
        return self._state.watermark


def explicit() -> Strategy:
    """The watermark is what the caller passes to ``WatermarkedProducer.advance``; until then it is unknown.

    >>> generator = explicit().build()
    >>> generator.advance(12)
    >>> generator.watermark()
    12
    """
    return Built(Explicit)


class Ingress(Generator):
    """The event time is the time of arrival, and the watermark the last of these times."""

    stamps = True

    def __init__(self) -> None:
        self._state: _Stamps = _Stamps()

    @override
    def stamp(self, wall: int) -> int:
        """Return the event time of an event that arrives now; it never decreases, even if the clock is set back."""
        last = self._state.last_stamp
        self._state.last_stamp = wall if last is None else max(last, wall)
        return self._state.last_stamp

    @override
    def on_tick(self, now: int, wall: int | None = None) -> None:
        self.stamp(now if wall is None else wall)

    @override
    def watermark(self) -> int | None:
        return self._state.last_stamp


def ingress() -> Strategy:
    """The event time is the time of arrival; call `WatermarkedProducer.produce` without an event time.

    The watermark is the wall clock, and exact ("Streaming Systems", ch. 3, ingress timestamping).

    >>> generator = ingress().build()
    >>> generator.stamp(100), generator.stamp(90)  # the clock was set back
    (100, 100)
    >>> generator.watermark()
    100
    """
    return Built(Ingress)


class _Punctuated(Generator):
    """The watermark is the largest that an event has carried."""

    punctual = True

    def __init__(self, read: Callable[[bytes | None], int | None]) -> None:
        self._read = read
        self._state: _Promise = _Promise()

    @override
    def on_event(self, event_time: int, now: int | None = None, value: bytes | None = None) -> None:
        found = self._read(value)
        if found is not None:
            watermark, last = event_time_of(found), self._state.watermark
            self._state.watermark = watermark if last is None else max(last, watermark)

    @override
    def watermark(self) -> int | None:
        return self._state.watermark


def punctuated(read: Callable[[bytes | None], int | None]) -> Strategy:
    """Some events carry the watermark; marks are sent as soon as the records below it are acknowledged.

    ``read`` returns the watermark in a value, epoch milliseconds, or ``None``.  Anything else makes ``produce`` fail
    with InvalidEventTimeError, and nothing is sent.

    >>> generator = punctuated(lambda value: 50 if value == b"all before 50" else None).build()
    >>> generator.on_event(42, value=b"payload")
    >>> generator.on_event(49, value=b"all before 50")
    >>> generator.watermark(), generator.punctual
    (50, True)
    """
    return Built(_Punctuated, (read,))

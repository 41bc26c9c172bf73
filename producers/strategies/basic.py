"""Strategies that need no memory but a time: ascending, bounded, explicit, ingress and punctuated.  Pure."""

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
    """Promise the largest event time so far, less the bound.  Flink's value plus one, since ours is strict."""

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
    """Promise the time of each event: event times never go back.

    Perfect for a log that is ordered by time ("Streaming Systems", ch. 3, static sets of time-ordered logs).

    >>> generator = ascending().build()
    >>> generator.on_event(12)
    >>> generator.watermark()
    12
    """
    return Built(_Bounded, (0,))


def bounded_out_of_orderness(bound: timedelta) -> Strategy:
    """Promise T - ``bound`` once an event with the time T was sent: no event below that follows any more.

    Args:
        bound: how far an event may be behind the largest event time before it.  Results wait for so long, too.

    Raises:
        UsageError: if the bound is negative, or no timedelta.

    >>> generator = bounded_out_of_orderness(timedelta(milliseconds=10)).build()
    >>> for event_time in (12345, 12300, 12340, 12280):
    ...     generator.on_event(event_time)
    >>> generator.watermark()
    12335
    """
    return Built(_Bounded, (duration_of(bound, "the bound of out-of-orderness"),))


class Explicit(Generator):
    """Promise what the caller passes to `advance`."""

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
    """Promise what the caller passes to ``WatermarkedProducer.advance``; until then nothing.

    >>> generator = explicit().build()
    >>> generator.advance(12)
    >>> generator.watermark()
    12
    """
    return Built(Explicit)


class Ingress(Generator):
    """Stamp events with the time of their arrival: perfect, since that time does not go back."""

    stamps = True

    def __init__(self) -> None:
        self._state: _Stamps = _Stamps()

    @override
    def stamp(self, wall: int) -> int:
        """Return the event time of an event that arrives now: not below any before, even if the clock is set back."""
        last = self._state.last_stamp
        self._state.last_stamp = wall if last is None else max(last, wall)
        return self._state.last_stamp

    @override
    def on_tick(self, now: int, wall: int | None = None) -> None:
        self.stamp(now if wall is None else wall)

    @override
    def watermark(self) -> int | None:
        """Return the latest stamp: no later event has one below."""
        return self._state.last_stamp


def ingress() -> Strategy:
    """Take the time of arrival for the event time; `WatermarkedProducer.produce` is called without one.

    Perfect by construction: the watermark is the wall clock ("Streaming Systems", ch. 3, ingress timestamping).

    >>> generator = ingress().build()
    >>> generator.stamp(100), generator.stamp(90)  # the clock was set back
    (100, 100)
    >>> generator.watermark()
    100
    """
    return Built(Ingress)


class _Punctuated(Generator):
    """Promise what the events themselves carry."""

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
    """Promise what some events carry; such a promise is sent as soon as the records below it are acknowledged.

    Args:
        read: from a value to the watermark that it carries, epoch milliseconds; ``None``: it carries none.  Another
            value is an InvalidEventTimeError of ``produce``, and nothing is sent.

    >>> generator = punctuated(lambda value: 50 if value == b"all before 50" else None).build()
    >>> generator.on_event(42, value=b"payload")
    >>> generator.on_event(49, value=b"all before 50")
    >>> generator.watermark(), generator.punctual
    (50, True)
    """
    return Built(_Punctuated, (read,))

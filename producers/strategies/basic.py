"""Strategies that need no memory but a time: ascending, bounded, explicit, ingress and punctuated.  Pure."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from floodmark.producers.strategies.generator import Built, Generator, Strategy
from floodmark.schemas.errors import WatermarkRegressionError
from floodmark.schemas.timestamps import duration_of, event_time_of
from typing_extensions import override


class _Bounded(Generator):
    """Promise the largest event time so far, less the bound.  Flink's value plus one, since ours is strict."""

    _state = ("_largest",)

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._largest: int | None = None

    @override
    def on_event(self, event_time: int, now: int | None = None, value: bytes | None = None) -> None:
        if self._largest is None or event_time > self._largest:
            self._largest = event_time

    @override
    def watermark(self) -> int | None:
        return None if self._largest is None else self._largest - self._bound


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
        UsageError: where the bound is negative, or no timedelta.

    >>> generator = bounded_out_of_orderness(timedelta(milliseconds=10)).build()
    >>> for event_time in (12345, 12300, 12340, 12280):
    ...     generator.on_event(event_time)
    >>> generator.watermark()
    12335
    """
    return Built(_Bounded, (duration_of(bound, "the bound of out-of-orderness"),))


class Explicit(Generator):
    """Promise what the caller passes to `advance`.

    Args:
        source: whose promise it is, for the error.
    """

    _state = ("_watermark",)

    def __init__(self, source: str = "explicit") -> None:
        self._source = source
        self._watermark: int | None = None

    @override
    def advance(self, watermark: int) -> None:
        if self._watermark is not None and watermark < self._watermark:
            raise WatermarkRegressionError(source=self._source, last=self._watermark, received=watermark)
        self._watermark = watermark

    @override
    def watermark(self) -> int | None:
        return self._watermark


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
    _state = ("_last",)

    def __init__(self) -> None:
        self._last: int | None = None

    @override
    def stamp(self, wall: int) -> int:
        """Return the event time of an event that arrives now: not below any before, even if the clock is set back."""
        self._last = wall if self._last is None else max(self._last, wall)
        return self._last

    @override
    def on_tick(self, now: int, wall: int | None = None) -> None:
        self.stamp(now if wall is None else wall)

    @override
    def watermark(self) -> int | None:
        """Return the latest stamp: no later event has one below."""
        return self._last


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
    _state = ("_watermark",)

    def __init__(self, read: Callable[[bytes | None], int | None]) -> None:
        self._read = read
        self._watermark: int | None = None

    @override
    def on_event(self, event_time: int, now: int | None = None, value: bytes | None = None) -> None:
        found = self._read(value)
        if found is not None:
            watermark = event_time_of(found)
            self._watermark = watermark if self._watermark is None else max(self._watermark, watermark)

    @override
    def watermark(self) -> int | None:
        return self._watermark

    @override
    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore({name: value for name, value in state.items() if name != "_due"})  # once a part of the state


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

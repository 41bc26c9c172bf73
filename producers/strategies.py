"""From events to a source's watermark: immutable strategies that build small mutable generators.  Pure.

A strategy is configuration; ``build()`` makes the generator with the state.  A generator is told of every event and,
now and then, of the time, and answers with what it can promise: no later event of mine is below this.  The split into
strategy and generator is that of Flink's ``org.apache.flink.api.common.eventtime``.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import timedelta

from floodmark.schemas.errors import UsageError, WatermarkRegressionError
from floodmark.schemas.timestamps import milliseconds


class Generator(ABC):
    """The mutable side of a strategy.  All times are epoch milliseconds."""

    def on_event(self, event_time: int) -> None:  # noqa: B027  # most generators look at events, not all must
        """Learn of an event that the source writes now."""

    @abstractmethod
    def watermark(self) -> int | None:
        """Return what the source promises now; ``None``: nothing yet.  Never goes back."""


class Strategy(ABC):
    """How a source knows its watermark.  Immutable; may be shared."""

    @abstractmethod
    def build(self) -> Generator:
        """Make a generator with fresh state."""


@dataclass(frozen=True, slots=True)
class _BoundedOutOfOrderness(Strategy):
    bound: int

    def build(self) -> Generator:
        return _Bounded(self.bound)


class _Bounded(Generator):
    """Promise the largest event time seen, less the bound.  Flink's value plus one, since ours is strict."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._largest: int | None = None

    def on_event(self, event_time: int) -> None:
        if self._largest is None or event_time > self._largest:
            self._largest = event_time

    def watermark(self) -> int | None:
        return None if self._largest is None else self._largest - self._bound


class Explicit(Generator):
    """Promise what the caller says."""

    def __init__(self, source: str = "explicit") -> None:
        """Begin with nothing promised."""
        self._source = source
        self._watermark: int | None = None

    def advance(self, watermark: int) -> None:
        """Take the caller's promise.

        Raises:
            WatermarkRegressionError: where it is below the last one; the last one stays.
        """
        if self._watermark is not None and watermark < self._watermark:
            raise WatermarkRegressionError(source=self._source, last=self._watermark, received=watermark)
        self._watermark = watermark

    def watermark(self) -> int | None:
        """Return the last promise."""
        return self._watermark


@dataclass(frozen=True, slots=True)
class _ExplicitStrategy(Strategy):
    def build(self) -> Generator:
        return Explicit()


def ascending() -> Strategy:
    """Event times never go back: each event promises its own time.

    Perfect for a log that is ordered by time ("Streaming Systems", ch. 3, static sets of time-ordered logs).

    >>> generator = ascending().build()
    >>> generator.on_event(12)
    >>> generator.watermark()
    12
    """
    return _BoundedOutOfOrderness(0)


def bounded_out_of_orderness(bound: timedelta) -> Strategy:
    """Events come at most ``bound`` behind the largest event time seen so far.

    Raises:
        UsageError: where the bound is negative.

    >>> generator = bounded_out_of_orderness(timedelta(milliseconds=10)).build()
    >>> for event_time in (12345, 12300, 12340, 12280):
    ...     generator.on_event(event_time)
    >>> generator.watermark()
    12335
    """
    if bound < timedelta(0):
        raise UsageError(reason=f"the bound of out-of-orderness is {bound}, expected 0 or more")
    return _BoundedOutOfOrderness(milliseconds(bound))


def explicit() -> Strategy:
    """The caller knows, and says so with ``WatermarkedProducer.advance``.

    >>> generator = explicit().build()
    >>> generator.advance(12)
    >>> generator.watermark()
    12
    """
    return _ExplicitStrategy()

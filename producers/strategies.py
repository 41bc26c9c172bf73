"""From events to a source's watermark: immutable strategies that build small mutable generators.  Pure.

A strategy is configuration; ``build()`` makes the generator with the state.  A generator is told of every event and,
now and then, of the time, and answers with what it can promise: no later event of mine is below this.  The split into
strategy and generator is that of Flink's ``org.apache.flink.api.common.eventtime``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from floodmark.schemas.errors import CorruptSnapshotError, UsageError, WatermarkRegressionError
from floodmark.schemas.timestamps import milliseconds
from typing_extensions import override


class Generator(ABC):
    """The mutable side of a strategy.  All times are epoch milliseconds."""

    looks_closer: ClassVar[bool] = False
    """Whether ``on_event`` needs the time or the value, or whether its watermark may be `due` at once."""

    def on_event(self, event_time: int, now: int | None = None, value: bytes | None = None) -> None:  # noqa: B027
        """Learn of an event that the source writes now.

        Args:
            event_time: of the event.
            now: wall clock, where `looks_closer` says so.
            value: the event as it is written, the same.
        """

    def on_tick(self, now: int) -> None:  # noqa: B027  # only few look at the clock
        """Learn that time passes; called before every mark."""

    @abstractmethod
    def watermark(self) -> int | None:
        """Return what the source promises now; ``None``: nothing yet.  Never goes back."""

    def percentiles(self) -> Mapping[int, int] | None:
        """Return earlier, speculative watermarks by percent of the events that keep them; ``None``: does not know."""
        return None

    @property
    def idle(self) -> bool:
        """Whether readers should not wait for this source for now."""
        return False

    @property
    def due(self) -> bool:
        """Whether the watermark should go out at once, not on the next interval."""
        return False

    def snapshot(self) -> dict[str, Any]:
        """Return the state as a value that JSON can carry."""
        return {name: value for name, value in vars(self).items() if name in self._state}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up the state that `snapshot` returned, of a generator of the same strategy.

        Raises:
            CorruptSnapshotError: where it is of another one.
        """
        if set(state) != set(self._state):
            reason = f"it has {sorted(state)}, expected {sorted(self._state)}"
            advice = "restore it into the strategy that it was taken from"
            raise CorruptSnapshotError(where=f"of a {type(self).__name__}", reason=reason, advice=advice)
        vars(self).update(state)

    _state: ClassVar[tuple[str, ...]] = ()
    """The attributes that are the state."""


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

    _state = ("_largest",)

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._largest: int | None = None

    @override
    def on_event(self, event_time: int, now: int | None = None, value: bytes | None = None) -> None:
        if self._largest is None or event_time > self._largest:
            self._largest = event_time

    def watermark(self) -> int | None:
        return None if self._largest is None else self._largest - self._bound


class Explicit(Generator):
    """Promise what the caller says."""

    _state = ("_watermark",)

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


class Ingress(Generator):
    """Stamp events with the time of their arrival: perfect, since time does not go back here."""

    looks_closer = True
    _state = ("_last",)

    def __init__(self) -> None:
        """Begin before all time."""
        self._last: int | None = None

    def stamp(self, now: int) -> int:
        """Return the event time of an event that arrives now: not below any before, even if the clock jumps back."""
        self._last = now if self._last is None else max(self._last, now)
        return self._last

    @override
    def on_tick(self, now: int) -> None:
        self.stamp(now)

    def watermark(self) -> int | None:
        """Return the latest stamp: no later event gets one below."""
        return self._last


class _Punctuated(Generator):
    """Promise what the events themselves say."""

    looks_closer = True
    _state = ("_watermark", "_due")

    def __init__(self, read: Callable[[bytes | None], int | None]) -> None:
        self._read = read
        self._watermark: int | None = None
        self._due = False

    @override
    def on_event(self, event_time: int, now: int | None = None, value: bytes | None = None) -> None:
        said = self._read(value)
        if said is not None and (self._watermark is None or said > self._watermark):
            self._watermark = said
            self._due = True

    @override
    def watermark(self) -> int | None:
        self._due = False
        return self._watermark

    @property
    @override
    def due(self) -> bool:
        return self._due


class _WithIdleness(Generator):
    """What another generator says, and that the source is idle when it has been silent for too long."""

    looks_closer = True

    def __init__(self, inner: Generator, timeout: int) -> None:
        self._inner = inner
        self._timeout = timeout
        self._heard: int | None = None
        self._idle = False

    @override
    def on_event(self, event_time: int, now: int | None = None, value: bytes | None = None) -> None:
        self._heard, self._idle = now, False
        self._inner.on_event(event_time, now, value)

    @override
    def on_tick(self, now: int) -> None:
        # The first look starts the clock: a source that has never been heard is given its time, too.
        self._heard = now if self._heard is None else self._heard
        self._idle = now - self._heard > self._timeout
        self._inner.on_tick(now)

    @override
    def watermark(self) -> int | None:
        return self._inner.watermark()

    @override
    def percentiles(self) -> Mapping[int, int] | None:
        return self._inner.percentiles()

    @property
    @override
    def idle(self) -> bool:
        return self._idle

    @property
    @override
    def due(self) -> bool:
        return self._inner.due

    @override
    def snapshot(self) -> dict[str, Any]:
        return {"heard": self._heard, "idle": self._idle, "inner": self._inner.snapshot()}

    @override
    def restore(self, state: Mapping[str, Any]) -> None:
        self._heard, self._idle = state["heard"], state["idle"]
        self._inner.restore(state["inner"])


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


@dataclass(frozen=True, slots=True)
class _IngressStrategy(Strategy):
    def build(self) -> Generator:
        return Ingress()


def ingress() -> Strategy:
    """Events get the time of their arrival as their event time; `WatermarkedProducer.produce` is given none.

    Perfect by construction: the watermark is the wall clock ("Streaming Systems", ch. 3, ingress timestamping).

    >>> generator = ingress().build()
    >>> generator.stamp(100), generator.stamp(90)  # the clock jumped back
    (100, 100)
    >>> generator.watermark()
    100
    """
    return _IngressStrategy()


@dataclass(frozen=True, slots=True)
class _PunctuatedStrategy(Strategy):
    read: Callable[[bytes | None], int | None]

    def build(self) -> Generator:
        return _Punctuated(self.read)


def punctuated(read: Callable[[bytes | None], int | None]) -> Strategy:
    """Some events say how far the source is; such a promise goes out at once.

    Args:
        read: from a value to the watermark that it carries, epoch milliseconds; ``None``: it carries none.

    >>> generator = punctuated(lambda value: 50 if value == b"all before 50" else None).build()
    >>> generator.on_event(42, value=b"payload")
    >>> generator.on_event(49, value=b"all before 50")
    >>> generator.due, generator.watermark(), generator.due
    (True, 50, False)
    """
    return _PunctuatedStrategy(read)


@dataclass(frozen=True, slots=True)
class _IdlenessStrategy(Strategy):
    inner: Strategy
    timeout: int

    def build(self) -> Generator:
        return _WithIdleness(self.inner.build(), self.timeout)


def with_idleness(strategy: Strategy, timeout: timedelta) -> Strategy:
    """Add idleness: after ``timeout`` without an event the source says that it is idle, with the next that it is back.

    Raises:
        UsageError: where the timeout is not more than 0.

    >>> generator = with_idleness(ascending(), timedelta(milliseconds=10)).build()
    >>> generator.on_tick(100), generator.idle
    (None, False)
    >>> generator.on_tick(111), generator.idle
    (None, True)
    >>> generator.on_event(5, now=112), generator.idle
    (None, False)
    """
    if timeout <= timedelta(0):
        raise UsageError(reason=f"the timeout of idleness is {timeout}, expected more than 0")
    return _IdlenessStrategy(strategy, milliseconds(timeout))

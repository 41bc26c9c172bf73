"""From events to a source's watermark: immutable strategies that build small mutable generators.  Pure.

A strategy is configuration; ``build()`` makes the generator with the state.  A generator learns of every event and,
before each round of marks, of the time, and answers what it can promise: no later event of mine is below this.  The
split into strategy and generator is that of Flink's ``org.apache.flink.api.common.eventtime``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from floodmark.schemas.errors import CorruptSnapshotError, UsageError, WatermarkRegressionError
from floodmark.schemas.timestamps import event_time_of, milliseconds
from typing_extensions import override


def duration_of(value: object, what: str, least: int = 0) -> int:
    """Return a duration in whole milliseconds.

    Args:
        value: the duration as the caller gave it.
        what: its name, for the error.
        least: the least that it may be, milliseconds.

    Raises:
        UsageError: where it is no timedelta, or less than ``least``.

    >>> duration_of(timedelta(seconds=5), "the bound")
    5000
    """
    if not isinstance(value, timedelta):
        raise UsageError(reason=f"{what} is {value!r}, expected a timedelta: write timedelta(seconds=...)")
    if milliseconds(value) < least:
        expected = "0 or more" if least == 0 else f"more than 0 (at least {least} ms)"
        raise UsageError(reason=f"{what} is {value}, expected {expected}")
    return milliseconds(value)


class Generator(ABC):
    """The mutable side of a strategy.  All times are epoch milliseconds, but for the clock that measures silence.

    The commands are `on_event`, `on_tick`, `advance` and `stamp`; everything else asks, and changes nothing.
    """

    def on_event(self, event_time: int, now: int | None = None, value: bytes | None = None) -> None:  # noqa: B027
        """Learn of an event; called by the emitter before the event is sent.

        Args:
            event_time: of the event.
            now: milliseconds of a clock that is never set (monotonic).
            value: the event as it is written.
        """

    def on_tick(self, now: int, wall: int | None = None) -> None:  # noqa: B027  # only few look at the clocks
        """Learn that time passes; called by the emitter before each round of marks.

        Args:
            now: milliseconds of a clock that is never set (monotonic).
            wall: wall clock, epoch milliseconds; default: ``now`` is that, too.
        """

    @abstractmethod
    def watermark(self) -> int | None:
        """Return what the source promises now; ``None``: nothing yet.  Not below what it was at the last `on_tick`."""

    def advance(self, watermark: int) -> None:
        """Take the caller's promise; only `explicit` knows what to do with it.

        Raises:
            UsageError: for every other strategy.
            WatermarkRegressionError: where it is below the last promise; the last one stays.
        """
        reason = f"advance({watermark}) needs the strategy explicit(), alone or inside with_idleness()"
        raise UsageError(reason=reason)

    @property
    def stamps(self) -> bool:
        """Whether event times come from `stamp`, not from the caller."""
        return False

    def stamp(self, wall: int) -> int:
        """Return the event time of an event that is written now; only `ingress` gives any.

        Args:
            wall: wall clock, epoch milliseconds.

        Raises:
            UsageError: for every other strategy.
        """
        raise UsageError(reason=f"stamp({wall}) needs the strategy ingress(), alone or inside with_idleness()")

    def percentiles(self) -> Mapping[int, int] | None:
        """Return earlier, speculative watermarks by percent of the events that keep them; ``None``: does not know."""
        return None

    @property
    def idle(self) -> bool:
        """Whether readers should not wait for this source for now."""
        return False

    @property
    def punctual(self) -> bool:
        """Whether its watermark should go out as soon as it may, not on the next interval."""
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


def strategy_of(value: object) -> Strategy:
    """Return a strategy as it is.

    Raises:
        UsageError: where it is something else, as a function that makes strategies and was not called.

    >>> strategy_of(ascending)
    Traceback (most recent call last):
      ...
    floodmark.schemas.errors.UsageError: the strategy is the function ascending, expected what it returns: ascending()
    """
    if isinstance(value, Strategy):
        return value
    if callable(value):
        name = getattr(value, "__name__", type(value).__name__)
        raise UsageError(reason=f"the strategy is the function {name}, expected what it returns: {name}()")
    if isinstance(value, Generator):
        raise UsageError(reason="the strategy is a generator, expected the strategy itself: leave out .build()")
    raise UsageError(reason=f"the strategy is {value!r}, expected one such as ascending()")


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

    @override
    def advance(self, watermark: int) -> None:
        if self._watermark is not None and watermark < self._watermark:
            raise WatermarkRegressionError(source=self._source, last=self._watermark, received=watermark)
        self._watermark = watermark

    def watermark(self) -> int | None:
        """Return the last promise."""
        return self._watermark


class Ingress(Generator):
    """Stamp events with the time of their arrival: perfect, since time does not go back here."""

    _state = ("_last",)

    def __init__(self) -> None:
        """Begin before all time."""
        self._last: int | None = None

    @property
    @override
    def stamps(self) -> bool:
        return True

    @override
    def stamp(self, wall: int) -> int:
        """Return the event time of an event that arrives now: not below any before, even if the clock is set back."""
        self._last = wall if self._last is None else max(self._last, wall)
        return self._last

    @override
    def on_tick(self, now: int, wall: int | None = None) -> None:
        self.stamp(now if wall is None else wall)

    def watermark(self) -> int | None:
        """Return the latest stamp: no later event gets one below."""
        return self._last


class _Punctuated(Generator):
    """Promise what the events themselves say."""

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

    @property
    @override
    def punctual(self) -> bool:
        return True

    @override
    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore({name: value for name, value in state.items() if name != "_due"})  # once a part of the state


class _WithIdleness(Generator):
    """What another generator says, and that the source is idle when it has been silent for too long."""

    def __init__(self, inner: Generator, timeout: int) -> None:
        self._inner = inner
        self._timeout = timeout
        self._heard: int | None = None
        self._silent = 0
        """How long it had been silent at the last look; the clock itself means nothing to the next process."""
        self._idle = False

    @override
    def on_event(self, event_time: int, now: int | None = None, value: bytes | None = None) -> None:
        self._inner.on_event(event_time, now, value)
        self._heard, self._silent, self._idle = now, 0, False

    @override
    def on_tick(self, now: int, wall: int | None = None) -> None:
        # The first look starts the clock: a source that has never been heard is given its time, too.
        self._heard = now - self._silent if self._heard is None else self._heard
        self._silent = now - self._heard
        self._idle = self._silent > self._timeout
        self._inner.on_tick(now, wall)

    @override
    def watermark(self) -> int | None:
        return self._inner.watermark()

    @override
    def advance(self, watermark: int) -> None:
        self._inner.advance(watermark)
        self._heard, self._silent, self._idle = None, 0, False  # who promises is not silent

    @property
    @override
    def stamps(self) -> bool:
        return self._inner.stamps

    @override
    def stamp(self, wall: int) -> int:
        return self._inner.stamp(wall)

    @override
    def percentiles(self) -> Mapping[int, int] | None:
        return self._inner.percentiles()

    @property
    @override
    def idle(self) -> bool:
        return self._idle

    @property
    @override
    def punctual(self) -> bool:
        return self._inner.punctual

    @override
    def snapshot(self) -> dict[str, Any]:
        return {"silent": self._silent, "idle": self._idle, "inner": self._inner.snapshot()}

    @override
    def restore(self, state: Mapping[str, Any]) -> None:
        try:
            silent, idle, inner = int(state.get("silent", 0)), bool(state["idle"]), state["inner"]
        except (KeyError, TypeError, ValueError) as error:
            reason, advice = f"{type(error).__name__}: {error}", "restore it into the strategy that it was taken from"
            raise CorruptSnapshotError(where="of idleness", reason=reason, advice=advice) from error
        self._inner.restore(inner)
        self._heard, self._silent, self._idle = None, silent, idle


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
    """Once an event with the time T was sent, no event below T - ``bound`` follows: that is the promise.

    Raises:
        UsageError: where the bound is negative, or no timedelta.

    >>> generator = bounded_out_of_orderness(timedelta(milliseconds=10)).build()
    >>> for event_time in (12345, 12300, 12340, 12280):
    ...     generator.on_event(event_time)
    >>> generator.watermark()
    12335
    """
    return _BoundedOutOfOrderness(duration_of(bound, "the bound of out-of-orderness"))


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
    """Some events say how far the source is; such a promise goes out as soon as the records below it are acknowledged.

    Args:
        read: from a value to the watermark that it carries, epoch milliseconds; ``None``: it carries none.  Another
            value is an InvalidEventTimeError of ``produce``, and nothing is sent.

    >>> generator = punctuated(lambda value: 50 if value == b"all before 50" else None).build()
    >>> generator.on_event(42, value=b"payload")
    >>> generator.on_event(49, value=b"all before 50")
    >>> generator.watermark(), generator.punctual
    (50, True)
    """
    return _PunctuatedStrategy(read)


@dataclass(frozen=True, slots=True)
class _IdlenessStrategy(Strategy):
    inner: Strategy
    timeout: int

    def build(self) -> Generator:
        return _WithIdleness(self.inner.build(), self.timeout)


def with_idleness(strategy: Strategy, timeout: timedelta) -> Strategy:
    """Add idleness to any strategy: after ``timeout`` without an event or a promise the source says that it is idle.

    It says so with its next marks, so at most ``timeout`` and one interval after the event, and that it is back before
    its next record.  Silence is measured by a clock that is never set.

    Raises:
        UsageError: where the timeout is not more than 0, or there is no strategy.

    >>> generator = with_idleness(ascending(), timedelta(milliseconds=10)).build()
    >>> generator.on_tick(100), generator.idle
    (None, False)
    >>> generator.on_tick(111), generator.idle
    (None, True)
    >>> generator.on_event(5, now=112), generator.idle
    (None, False)
    """
    return _IdlenessStrategy(strategy_of(strategy), duration_of(timeout, "the timeout of idleness", 1))

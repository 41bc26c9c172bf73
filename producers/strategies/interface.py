"""The interface of all strategies: an immutable `Strategy` builds a small mutable `Generator`.  Pure.

A strategy is configuration; ``build()`` makes the generator with the state.  The emitter hands it every event and,
before each round of marks, the time; it answers with a watermark: no later event of this source is below it.  The
split into strategy and generator is that of Flink's ``org.apache.flink.api.common.eventtime``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from floodmark.schemas.errors import CorruptSnapshotError, UsageError
from floodmark.schemas.stored_format import require_format, restoring
from typing_extensions import override

FORMAT: Final = 1
"""Of the snapshots of all generators."""


@dataclass(slots=True)
class State:
    """What a generator remembers, as fields that JSON can carry; this one remembers nothing."""


class Generator(ABC):
    """The mutable side of a strategy.  All times are epoch milliseconds, but for the clock that measures silence.

    The commands are `on_event`, `on_tick`, `advance`, `stamp` and `restore`.  Everything else is a query: it changes
    nothing, however often it is called.
    """

    def on_event(self, event_time: int, now: int | None = None, value: bytes | None = None) -> None:  # noqa: B027
        """Called by the emitter before each send; lets the generator examine the event and remember its time.

        Args:
            event_time: of the event.
            now: milliseconds of a clock that is never set (monotonic).
            value: the event as it is written.
        """

    def on_tick(self, now: int, wall: int | None = None) -> None:  # noqa: B027  # only few look at the clocks
        """Called by the emitter before each round of marks, whether there were events or not.

        Args:
            now: milliseconds of a clock that is never set (monotonic).
            wall: wall clock, epoch milliseconds; default: ``now`` is that, too.
        """

    @abstractmethod
    def watermark(self) -> int | None:
        """Return what the source promises now; ``None``: nothing yet.  Not below what it was at the last `on_tick`."""

    def advance(self, watermark: int) -> None:
        """Take the caller's promise; only `explicit` accepts one.

        Raises:
            UsageError: for every other strategy.
            WatermarkRegressionError: if it is below the last promise; the last one stays.
        """
        reason = f"advance({watermark}) needs the strategy explicit(), alone or inside with_idleness()"
        raise UsageError(reason=reason)

    @property
    def stamps(self) -> bool:
        """Whether event times come from `stamp`, not from the caller."""
        return False

    def stamp(self, wall: int) -> int:
        """Return the event time of an event that is written now; only `ingress` has one.

        Args:
            wall: wall clock, epoch milliseconds.

        Raises:
            UsageError: for every other strategy.
        """
        raise UsageError(reason=f"stamp({wall}) needs the strategy ingress(), alone or inside with_idleness()")

    def percentiles(self) -> Mapping[int, int] | None:
        """Return earlier, speculative watermarks by percent of the events that keep them; ``None``: not known."""
        return None

    @property
    def idle(self) -> bool:
        """Whether readers should not wait for this source for now."""
        return False

    @property
    def punctual(self) -> bool:
        """Whether its watermark should be sent as soon as it may, not on the next interval."""
        return False

    def snapshot(self) -> dict[str, Any]:
        """Return the state as a value that JSON can carry."""
        return {"format": FORMAT, **asdict(self._state)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up the state that `snapshot` returned, of a generator of the same strategy.

        Raises:
            CorruptSnapshotError: if it is of another one, or of another format.
        """
        where, advice = f"of a {type(self).__name__}", "restore it into the strategy that it was taken from"
        with restoring(where, advice):
            require_format(state, FORMAT)
            found = {name: value for name, value in state.items() if name != "format"}
            expected = sorted(field.name for field in fields(self._state))
            if sorted(found) != expected:
                raise CorruptSnapshotError(
                    where=where, reason=f"it has {sorted(found)}, expected {expected}", advice=advice
                )
            self._state = type(self._state)(**found)

    _state: Any = State()
    """What it remembers: a dataclass of its own."""


class Strategy(ABC):
    """How a source knows its watermark.  Immutable; may be shared between sources."""

    @abstractmethod
    def build(self) -> Generator:
        """Return a new generator, with fresh state."""


@dataclass(frozen=True, slots=True)
class Built(Strategy):
    """A strategy that builds one kind of generator, always with the same arguments."""

    kind: Callable[..., Generator]
    arguments: tuple[object, ...] = ()

    @override
    def build(self) -> Generator:
        return self.kind(*self.arguments)


def strategy_of(value: object) -> Strategy:
    """Return a strategy as it is.

    Raises:
        UsageError: if it is something else, as a function that makes strategies and was not called.

    >>> strategy_of(len)
    Traceback (most recent call last):
      ...
    floodmark.schemas.errors.UsageError: the strategy is the function len, expected what it returns: len()
    """
    if isinstance(value, Strategy):
        return value
    if callable(value):
        name = getattr(value, "__name__", type(value).__name__)
        raise UsageError(reason=f"the strategy is the function {name}, expected what it returns: {name}()")
    if isinstance(value, Generator):
        raise UsageError(reason="the strategy is a generator, expected the strategy itself: leave out .build()")
    raise UsageError(reason=f"the strategy is {value!r}, expected one such as ascending()")

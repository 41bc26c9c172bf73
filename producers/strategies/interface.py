"""The interface of all strategies: `Strategy` is immutable configuration, ``build()`` returns a `Generator` with state.

The split is that of Flink's ``org.apache.flink.api.common.eventtime``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from floodmark.schemas.errors import CorruptSnapshotError, UsageError
from floodmark.schemas.stored_format import require_format, restoring
from typing_extensions import override

FORMAT: Final = 1  # format number of the snapshots of all generators


@dataclass(slots=True)
class State:
    """The state of a generator, as fields that JSON can hold; this one is empty."""


class Generator(ABC):
    """The state of a strategy for one source.  Event times and watermarks are epoch milliseconds.

    `on_event`, `on_tick`, `advance`, `stamp` and `restore` change the state; all other methods only read it.  The
    steady clock is without the time in which alignment made the source wait.
    """

    stamps: bool = False
    """Whether event times come from `stamp`, not from the caller."""
    punctual: bool = False
    """Whether to send a new watermark at once, not on the next interval."""

    def on_event(self, event_time: int, now: int | None = None, value: bytes | None = None) -> None:  # noqa: B027
        """Take note of a record that the client has taken; ``now``: steady clock, milliseconds.

        If the generator is ``punctual``: of one that is about to be sent, which is not sent if this raises an error.
        """

    def on_tick(self, now: int, wall: int | None = None) -> None:  # noqa: B027  # only few look at the clocks
        """Take note of the steady clock and the wall clock (default: ``now``), milliseconds, before marks are sent."""

    @abstractmethod
    def watermark(self) -> int | None:
        """Return the watermark; ``None``: unknown.  It is never below its value at the last `on_tick`."""

    def advance(self, watermark: int) -> None:
        """Set the watermark; only `explicit` supports this.  `WatermarkRegressionError` if it is below the last one."""
        reason = f"advance({watermark}) needs the strategy explicit(), alone or inside with_idleness()"
        raise UsageError(reason=reason)

    def stamp(self, wall: int) -> int:
        """Return the event time of a record written at ``wall``, epoch milliseconds; only `ingress` supports this."""
        raise UsageError(reason=f"stamp({wall}) needs the strategy ingress(), alone or inside with_idleness()")

    def percentiles(self) -> Mapping[int, int] | None:
        """Return higher watermarks, each by the percentage of events that keep it; ``None``: none."""
        return None

    @property
    def idle(self) -> bool:
        """Whether readers should not wait for the source."""
        return False

    def snapshot(self) -> dict[str, Any]:
        """Return the state as a value that JSON can hold."""
        return {"format": FORMAT, **asdict(self._state)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set the state to a `snapshot` of a generator of the same strategy, or raise `CorruptSnapshotError`."""
        where, advice = f"of a {type(self).__name__}", "restore it into the strategy that it was taken from"
        with restoring(where, advice):
            require_format(state, FORMAT)
            found = {name: value for name, value in state.items() if name != "format"}
            expected = sorted(field.name for field in fields(self._state))
            if sorted(found) != expected:
                reason = f"it has {sorted(found)}, expected {expected}"
                raise CorruptSnapshotError(where=where, reason=reason, advice=advice)
            self._state = type(self._state)(**found)

    _state: Any = State()  # a dataclass


class Strategy(ABC):
    """How a source knows its watermark.  Immutable; several sources may share it."""

    @abstractmethod
    def build(self) -> Generator:
        """Return a generator with a new state."""


@dataclass(frozen=True, slots=True)
class Built(Strategy):
    """A strategy that calls a generator's class with fixed arguments."""

    kind: Callable[..., Generator]
    arguments: tuple[object, ...] = ()

    @override
    def build(self) -> Generator:
        return self.kind(*self.arguments)


def strategy_of(value: object) -> Strategy:
    """Return the value, if it is a strategy, or raise `UsageError`."""
    if isinstance(value, Strategy):
        return value
    if callable(value):
        name = getattr(value, "__name__", type(value).__name__)
        raise UsageError(reason=f"the strategy is the function {name}, expected what it returns: {name}()")
    if isinstance(value, Generator):
        raise UsageError(reason="the strategy is a generator, expected the strategy itself: leave out .build()")
    raise UsageError(reason=f"the strategy is {value!r}, expected one such as ascending()")

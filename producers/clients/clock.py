"""The two clocks of the machine, which tests can replace, and deadlines."""

import time
from collections.abc import Callable
from dataclasses import dataclass


def _wall() -> int:
    return time.time_ns() // 1_000_000


def _steady() -> int:
    return time.monotonic_ns() // 1_000_000


@dataclass(frozen=True)
class Clock:
    """A wall clock and a steady clock, in whole milliseconds."""

    wall: Callable[[], int] = _wall  # since 1970-01-01T00:00:00Z; people and NTP may set it, also back
    steady: Callable[[], int] = _steady  # since an arbitrary moment; never set.  Measures silence and intervals.


class Deadline:
    """A moment in ``seconds`` from now, always by the machine's steady clock: waiting for Kafka takes real time."""

    def __init__(self, seconds: float) -> None:
        self._at = _steady() + 1_000 * seconds

    @property
    def left(self) -> float:
        """Seconds left; 0 after the deadline."""
        return max(0.0, (self._at - _steady()) / 1_000)

    @property
    def passed(self) -> bool:
        """Whether no time is left."""
        return self.left <= 0

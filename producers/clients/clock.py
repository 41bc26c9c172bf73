"""The two clocks of the machine, as one value that a test can replace, and the deadlines of waits for Kafka."""

import time
from collections.abc import Callable
from dataclasses import dataclass


def _wall() -> int:
    return time.time_ns() // 1_000_000


def _steady() -> int:
    return time.monotonic_ns() // 1_000_000


@dataclass(frozen=True)
class Clock:
    """Where the time comes from; both answer in whole milliseconds."""

    wall: Callable[[], int] = _wall
    """Since 1970-01-01T00:00:00Z; people and NTP set it, also back."""
    steady: Callable[[], int] = _steady
    """Since some moment; nobody sets it.  Silence and intervals are measured by it."""


class Deadline:
    """A moment so many seconds from now, by the steady clock of this machine: a wait for Kafka takes real time."""

    def __init__(self, seconds: float) -> None:
        self._at = _steady() + 1_000 * seconds

    @property
    def left(self) -> float:
        """How many seconds are left; below 0: since when it has passed."""
        return (self._at - _steady()) / 1_000

    @property
    def passed(self) -> bool:
        """Whether no time is left."""
        return self.left <= 0

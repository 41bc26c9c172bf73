"""The two clocks of the machine, as one value that a test can replace."""

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

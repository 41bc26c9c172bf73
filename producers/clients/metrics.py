"""What is measured of time handling, as plain values.

The names and meanings follow Azure Stream Analytics' metrics (late, early and out-of-order input events, watermark
delay); the README says what each is likely to be caused by.
"""

from dataclasses import asdict, dataclass
from typing import Any, Final

MEANINGS: Final = {
    "records": "Records read.",
    "late_events": "Events behind their arrival by more than the late tolerance; adjusted or dropped.",
    "early_events": "Events ahead of their arrival by more than the early tolerance; dropped.",
    "out_of_order_events": "Events behind the watermark, within the late tolerance; adjusted or dropped.",
    "unreadable": "Records without a readable event time; passed on, or skipped by a job.",
    "dropped": "Events dropped for their time.",
    "failed": "Records that were not delivered, nor sent again since; the watermark is held below them.",
    "lost": "Rows that marks have counted and that are not there.",
    "surplus": "Rows that no mark has counted.",
    "fenced": "Marks of older epochs or memberships: zombies.",
    "watermark_delay_seconds": "Wall clock less the watermark; NaN: the watermark is unknown.",
    "processing_time_delay_seconds": "Age of the oldest record that is not yet acknowledged; 0: there is none.",
}


@dataclass(frozen=True, slots=True)
class Metrics:
    """The counters of a source, an injection or a job since it began, and its delays now.

    >>> Metrics("job", "clicks", late_events=2).as_dict()["late_events"]
    2
    """

    kind: str
    """``source``, ``injector`` or ``job``."""
    name: str
    records: int = 0
    late_events: int = 0
    early_events: int = 0
    out_of_order_events: int = 0
    unreadable: int = 0
    dropped: int = 0
    failed: int = 0
    lost: int = 0
    surplus: int = 0
    fenced: int = 0
    watermark_delay_seconds: float | None = None
    """``None``: the watermark is unknown."""
    processing_time_delay_seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return it as a plain value."""
        return asdict(self)


def delay(now: int, watermark: int | None) -> float | None:
    """Return how far a watermark is behind the clock, seconds, 0 where it is ahead; ``None``: it is unknown.

    Args:
        now: wall clock, epoch milliseconds.
        watermark: epoch milliseconds.

    >>> delay(5_000, 3_500), delay(5_000, None)
    (1.5, None)
    """
    return None if watermark is None else max(0.0, (now - watermark) / 1_000)

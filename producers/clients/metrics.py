"""The metrics of time handling, as plain values.

Names and meanings follow Azure Stream Analytics: late, early and out-of-order input events, watermark delay.  The page
METRICS.md has the likely causes of each.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, get_args

State = Literal["active", "idle", "ended", "unknown"]
"""Of an instance: its watermark counts, readers need not wait for it, it has finished, or it has no watermark."""

STATES: Final[tuple[State, ...]] = get_args(State)


@dataclass(frozen=True, slots=True)
class Metrics:
    """The counters of a source, an injector or a job since it started, and its current state.

    A counter is ``None`` if this kind of instance does not have it.

    >>> Metrics("job", "clicks", late_events=2).as_dict()["late_events"]
    2
    """

    kind: str
    """``source``, ``injector`` or ``job``."""
    name: str
    records: int = 0
    late_events: int | None = None
    early_events: int | None = None
    out_of_order_events: int | None = None
    unreadable: int | None = None
    dropped: int | None = None
    failed: int | None = None
    """Decreases when records are sent again."""
    lost: int | None = None
    surplus: int | None = None
    fenced: int | None = None
    watermark_delay_seconds: float | None = None
    """``None``: the watermark is unknown."""
    processing_time_delay_seconds: float | None = None
    """Age of the oldest unfinished work in all stages up to this one; 0: none; ``None``: unknown.

    Of a source: age of the oldest unacknowledged record.
    """
    missing_event_time: int | None = None
    out_of_range: int | None = None
    unreadable_marks: int | None = None
    topic: str | None = None
    """Output topic; ``None``: none."""
    watermark: int | None = None
    """Epoch milliseconds; ``None``: unknown."""
    state: State = "unknown"
    epoch: int = 0
    """Higher at each start of the instance."""
    before: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Counts of earlier starts, by the name of the counter."""

    def as_dict(self) -> dict[str, Any]:
        """Return the metrics as a dict."""
        return asdict(self)


def delay(now: int, watermark: int | None) -> float | None:
    """Return how far a watermark is behind the clock, seconds, at least 0; ``None``: unknown.

    Both arguments are epoch milliseconds.

    >>> delay(5_000, 3_500), delay(5_000, None)
    (1.5, None)
    """
    return None if watermark is None else max(0.0, (now - watermark) / 1_000)


def state_of(watermark: int | None, *, idle: bool = False, ended: bool = False) -> State:
    """Return the state of an instance.

    >>> state_of(None), state_of(5), state_of(None, idle=True), state_of(5, ended=True)
    ('unknown', 'active', 'idle', 'ended')
    """
    if ended:
        return "ended"
    if idle:
        return "idle"
    return "unknown" if watermark is None else "active"

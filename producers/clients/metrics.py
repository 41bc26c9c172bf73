"""What is measured of time handling, as plain values.

The names and meanings follow Azure Stream Analytics' metrics (late, early and out-of-order input events, watermark
delay); the page beside this package says what each is likely to be caused by.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, get_args

State = Literal["active", "idle", "ended", "unknown"]
"""What an instance does: its watermark counts, nobody need wait for it, nothing more comes, or nothing is promised."""

STATES: Final[tuple[State, ...]] = get_args(State)


@dataclass(frozen=True, slots=True)
class Metrics:
    """The counters of a source, an injection or a job since it began, and where it stands now.

    A counter is ``None`` where its kind does not count that.

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
    """Goes down where a record is sent again."""
    lost: int | None = None
    surplus: int | None = None
    fenced: int | None = None
    watermark_delay_seconds: float | None = None
    """``None``: the watermark is unknown."""
    processing_time_delay_seconds: float | None = None
    """Age of the oldest work that may not be done, over all stages up to here; 0: there is none; ``None``: unknown.

    Of a source: of the oldest record that is not acknowledged."""
    missing_event_time: int | None = None
    out_of_range: int | None = None
    unreadable_marks: int | None = None
    topic: str | None = None
    """Where it writes; ``None``: to no topic."""
    watermark: int | None = None
    """Epoch milliseconds; ``None``: unknown."""
    state: State = "unknown"
    epoch: int = 0
    """The generation of the instance: a higher one is a new start."""
    before: Mapping[str, int] = field(default_factory=dict, hash=False)
    """What of the counters, by their names, instances before this one have counted."""

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


def state_of(watermark: int | None, *, idle: bool = False, ended: bool = False) -> State:
    """Return what an instance does.

    >>> state_of(None), state_of(5), state_of(None, idle=True), state_of(5, ended=True)
    ('unknown', 'active', 'idle', 'ended')
    """
    if ended:
        return "ended"
    if idle:
        return "idle"
    return "unknown" if watermark is None else "active"

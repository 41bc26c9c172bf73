"""How long it takes until what stands in topics is read, at a pace, while more comes.  Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


def seconds_to_read(unread: int, read_rate: float, arrival_rate: float) -> float | None:
    """Return how long it takes until all is read, seconds; ``None``: never, as much comes as is read, or more.

    >>> seconds_to_read(900, 50, 5), seconds_to_read(900, 5, 5), seconds_to_read(0, 5, 9)
    (20.0, None, 0.0)
    """
    if not unread:
        return 0.0
    gain = read_rate - arrival_rate
    return unread / gain if gain > 0 else None


class JobMark(NamedTuple):
    """What a job has said of itself behind a batch: when, and up to when its input is worked off."""

    at: int
    processing_time: int


class TopicGap(NamedTuple):
    """What stands unread in one topic."""

    topic: str
    unread: tuple[int, ...]
    """Kafka offsets in each partition: data, marks and the ends of transactions."""
    arrival_rate: float
    """Offsets a second by which the topic grows."""

    @property
    def total(self) -> int:
        """In all partitions."""
        return sum(self.unread)


@dataclass(frozen=True, slots=True)
class Estimate:
    """How long a job will take to catch up.

    >>> estimate = Estimate(0, (TopicGap("clicks", (700, 200), 5.0),), read_rate=50.0)
    >>> estimate.unread, estimate.seconds, estimate.records, estimate.rate_for(90)
    (900, 20.0, 1000, 15.0)
    """

    now: int
    """When it was made, epoch milliseconds."""
    gaps: Sequence[TopicGap]
    read_rate: float | None = None
    """Records a second; ``None``: not known."""

    @property
    def unread(self) -> int:
        """Of all topics."""
        return sum(gap.total for gap in self.gaps)

    @property
    def arrival_rate(self) -> float:
        """Of all topics."""
        return sum(gap.arrival_rate for gap in self.gaps)

    @property
    def seconds(self) -> float | None:
        """How long it takes; ``None``: it never catches up, or the pace is not known."""
        if self.read_rate is None:
            return None if self.unread else 0.0
        return seconds_to_read(self.unread, self.read_rate, self.arrival_rate)

    @property
    def records(self) -> int | None:
        """What the job reads until then, with what comes meanwhile; ``None``: as `seconds`."""
        seconds = self.seconds
        return None if seconds is None else self.unread + round(self.arrival_rate * seconds)

    @property
    def largest_share(self) -> float:
        """The share of the partition that holds most; one core reads a partition, the others wait for it."""
        return max((most for gap in self.gaps for most in gap.unread), default=0) / max(1, self.unread)

    @property
    def exit_status(self) -> int:
        """What a command ends with: 0 it catches up, 1 it never does, 2 the pace is not known."""
        if self.seconds is not None:
            return 0
        return 2 if self.read_rate is None else 1

    def rate_for(self, seconds: float) -> float:
        """Return the pace at which it takes so many seconds, records a second."""
        return self.arrival_rate + self.unread / seconds

    def as_json(self) -> dict[str, Any]:
        """Return it as a value that JSON can carry."""
        topics = [
            {"topic": gap.topic, "unread": gap.total, "partitions": list(gap.unread), "arrival_rate": gap.arrival_rate}
            for gap in self.gaps
        ]
        body = {"unread": self.unread, "arrival_rate": self.arrival_rate, "read_rate": self.read_rate}
        return {"now": self.now, "topics": topics, **body, "seconds": self.seconds, "records": self.records}

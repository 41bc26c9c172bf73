"""How long a job takes to catch up, at a rate, while more records arrive.  Pure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from floodmark.schemas.classify import Offsets
from floodmark.schemas.records import Holder


def seconds_to_read(unread: int, read_rate: float, arrival_rate: float) -> float | None:
    """Return the seconds until all is read; ``None``: never, because records arrive as fast.

    >>> seconds_to_read(900, 50, 5), seconds_to_read(900, 5, 5), seconds_to_read(0, 5, 9)
    (20.0, None, 0.0)
    """
    if not unread:
        return 0.0
    gain = read_rate - arrival_rate
    return unread / gain if gain > 0 else None


class JobMark(NamedTuple):
    """A job's mark after a batch: its time and its processing-time watermark, epoch milliseconds."""

    at: int
    processing_time: int


class JobProgress(NamedTuple):
    """How far a job, or an injector, has read its input, by its last marks."""

    job: str
    marks: Sequence[JobMark]  # the last one last
    reads: Sequence[tuple[int, Offsets]]  # times, epoch milliseconds, and the offsets up to which it had read then
    ended: bool  # whether the end mark is in its output

    @property
    def read(self) -> Offsets:
        """The last offsets; empty: its marks do not tell."""
        return self.reads[-1][1] if self.reads else {}


def inputs_named(holder: Holder | None, read: bytes | None) -> set[str]:
    """Return the input topics that a mark of a job names: all with a `READ_HEADER`, else the one that holds it.

    >>> inputs_named(Holder("clicks"), b'{"input_offsets": {"clicks": {"0": 7}, "views": {"0": 9}}}') == {
    ...     "clicks", "views"}
    True
    >>> inputs_named(Holder("clicks"), None)
    {'clicks'}
    """
    held = set() if holder is None else {holder.topic}
    return held | {topic for topic, _ in offsets_read(read)}


def offsets_read(read: bytes | None) -> Offsets:
    """Return up to where a job had read its input, by the `READ_HEADER` of a mark.

    >>> offsets_read(b'{"input_offsets": {"clicks": {"0": 7}}}'), offsets_read(None)
    ({('clicks', 0): 7}, {})
    >>> offsets_read(b'{"input_offsets": {"clicks": {"0": 1e999}}}')
    {}
    """
    try:
        named = json.loads(read or b"")["input_offsets"]
        return {(topic, int(number)): int(at) for topic, places in named.items() for number, at in places.items()}
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError):
        return {}


def ids_read(read: bytes | None) -> dict[str, str]:
    """Return the ids of the input topics that a job has read, by the `READ_HEADER` of a mark.

    >>> ids_read(b'{"topic_ids": {"clicks": "Xq3", "views": ["Xq3"]}}'), ids_read(None)
    ({'clicks': 'Xq3'}, {})
    """
    try:
        ids = json.loads(read or b"")["topic_ids"]
        return {topic: id_ for topic, id_ in ids.items() if isinstance(id_, str)}
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return {}


class TopicGap(NamedTuple):
    """The unread records of one topic."""

    topic: str
    unread: tuple[int, ...]  # Kafka offsets in each partition: data, marks and the ends of transactions
    arrival_rate: float  # offsets per second
    deleted: int = 0  # offsets that the job has not read, and that Kafka has deleted
    assumed: int = 0  # partitions of which nothing says how far the job has read: they are unread from their beginning
    unsure: bool = False  # whether Kafka has deleted records of these, which the job may not have read
    hidden: str | None = None  # from where on an open transaction hides records, which are not counted

    @property
    def total(self) -> int:
        """Offsets in all partitions."""
        return sum(self.unread)


@dataclass(frozen=True, slots=True)
class Estimate:
    """How long a job takes to catch up.

    >>> estimate = Estimate(0, (TopicGap("clicks", (700, 200), 5.0),), read_rate=50.0)
    >>> estimate.unread, estimate.seconds, estimate.records, estimate.rate_for(90)
    (900, 20.0, 1000, 15.0)
    """

    now: int  # epoch milliseconds
    gaps: Sequence[TopicGap]
    read_rate: float | None = None  # records per second; ``None``: unknown
    ended: bool = False  # whether the job has ended: it reads nothing more

    @property
    def unread(self) -> int:
        """Offsets of all topics."""
        return sum(gap.total for gap in self.gaps)

    @property
    def arrival_rate(self) -> float:
        """Offsets per second of all topics."""
        return sum(gap.arrival_rate for gap in self.gaps)

    @property
    def deleted(self) -> int:
        """Offsets of all topics that Kafka has deleted before the job read them."""
        return sum(gap.deleted for gap in self.gaps)

    @property
    def seconds(self) -> float | None:
        """``None``: never, since the job has ended or is too slow, or records were deleted, or the rate is unknown."""
        if self.deleted or (self.ended and self.unread):
            return None
        if self.read_rate is None:
            return None if self.unread else 0.0
        return seconds_to_read(self.unread, self.read_rate, self.arrival_rate)

    @property
    def records(self) -> int | None:
        """Records that the job reads until then; ``None`` as `seconds`."""
        seconds = self.seconds
        return None if seconds is None else self.unread + round(self.arrival_rate * seconds)

    @property
    def exit_status(self) -> int:
        """0 it catches up, 1 never, 2 the rate is unknown, or what is hidden, or whether deleted records were read."""
        if self.seconds is not None:
            return 2 if any(gap.unsure or gap.hidden for gap in self.gaps) else 0
        if self.deleted or self.ended:
            return 1
        return 2 if self.read_rate is None else 1

    def rate_for(self, seconds: float) -> float:
        """Return the records per second with which it takes ``seconds``."""
        return self.arrival_rate + self.unread / seconds

    def as_json(self) -> dict[str, Any]:
        """Return a value for JSON."""
        topics = [
            {
                "topic": gap.topic,
                "unread": gap.total,
                "partitions": list(gap.unread),
                "assumed": gap.assumed,
                "hidden": gap.hidden,
                "deleted": gap.deleted,
                "unsure": gap.unsure,
                "arrival_rate": gap.arrival_rate,
            }
            for gap in self.gaps
        ]
        read = {"unread": self.unread, "arrival_rate": self.arrival_rate, "read_rate": self.read_rate}
        end = {"ended": self.ended, "seconds": self.seconds, "records": self.records}
        return {"now": self.now, "topics": topics, **read, **end}

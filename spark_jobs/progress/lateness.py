"""Which rows are late: each row is judged by what was promised before it in its own partition.  Pure.

So the log of a partition alone decides, not where batches cut it, and a replay decides the same.  One thing the log of
a partition cannot say: a partition that was idle or unknown, while the others moved the job's watermark on, may bring
rows behind that.  They are late, too, by the watermark that their batch ran with.
"""

import base64
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from floodmark.schemas.classify import AnyMark, Partition
from floodmark.schemas.mark_policy import apply_mark
from floodmark.schemas.tracker import Tracker

NOTHING: Final = -(1 << 62)
"""What stands for "nothing was promised" where a number is needed: no event time lies behind it."""


@dataclass(slots=True)
class _Partition:
    tracker: Tracker
    promised: int | None = None
    """The highest watermark that the partition ever had."""

    def renew(self, place: Partition) -> None:
        now = self.tracker.partition_watermark(*place)
        if now is not None and (self.promised is None or now > self.promised):
            self.promised = now


@dataclass(slots=True)
class Promises:
    """What was promised in each partition, by its own records alone.

    >>> from floodmark.schemas.classify import Mark
    >>> from floodmark.schemas.records import WatermarkRecord
    >>> promises = Promises()
    >>> record = WatermarkRecord(source="web", epoch=1, sequence=0, watermark=90, partitions=1, emitted_at=0)
    >>> promises.apply(Mark("clicks", 0, offset=7, log_time=0, record=record))
    >>> promises.promised(("clicks", 0)), promises.promised(("clicks", 1)) == NOTHING
    (90, True)
    """

    partitions: dict[Partition, _Partition] = field(default_factory=dict)

    @classmethod
    def of(cls, tracker: Tracker) -> "Promises":
        """Take up what a tracker knows, where nothing better was kept."""
        found = cls({place: _Partition(alone) for place, alone in tracker.by_partition()})
        for place, part in found.partitions.items():
            part.renew(place)
        return found

    def apply(self, mark: AnyMark, percentile: int | None = None, shift: int = 0) -> None:
        """Take in the next mark of its partition, see `driving` and `shifted`."""
        place = mark.topic, mark.partition
        part = self.partitions.get(place)
        if part is None:
            part = self.partitions[place] = _Partition(Tracker([mark.topic]))
        apply_mark(part.tracker, mark, percentile, shift)
        part.renew(place)

    def promised(self, place: Partition) -> int:
        """Return the highest watermark that a partition ever had, or `NOTHING`."""
        part = self.partitions.get(place)
        return NOTHING if part is None or part.promised is None else part.promised

    def snapshot(self, topics: Iterable[str] | None = None) -> list[list[Any]]:
        """Return it, or the part of it that speaks of some topics, as a value that JSON can carry."""
        chosen = None if topics is None else set(topics)
        return [
            [topic, number, part.promised, part.tracker.snapshot()]
            for (topic, number), part in sorted(self.partitions.items())
            if chosen is None or topic in chosen
        ]

    @classmethod
    def restore(cls, snapshot: Iterable[Iterable[Any]]) -> "Promises":
        """Build it from what `snapshot` returned."""
        return cls(
            {
                (topic, number): _Partition(Tracker.restore(tracker), promised)
                for topic, number, promised, tracker in snapshot
            }
        )


@dataclass(frozen=True, slots=True)
class LateThresholds:
    """What the tasks of a batch must know to judge its rows: the promises before it, and what it runs with."""

    promises: Promises
    watermark: int
    percentile: int | None = None
    shift: int = 0

    def apply(self, mark: AnyMark) -> None:
        """Take in the next mark of its partition: it speaks of the rows behind it."""
        self.promises.apply(mark, self.percentile, self.shift)

    def to_text(self, topics: Iterable[str]) -> str:
        """Write it, for some topics, as a short text."""
        parts = [self.promises.snapshot(topics), self.watermark, self.percentile, self.shift]
        return base64.b64encode(zlib.compress(json.dumps(parts).encode(), level=1)).decode()

    @classmethod
    def of(cls, text: str) -> "LateThresholds":
        """Read it."""
        promises, *rest = json.loads(zlib.decompress(base64.b64decode(text)))
        return cls(Promises.restore(promises), *rest)


@dataclass(frozen=True, slots=True)
class LateRow:
    """A late row as it stands in its topic, and why it is late."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    event_time: int
    watermark: int
    own: bool

    def record(self) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]:
        """Return its key, its value, and headers: where it stood, behind which watermark it is, and by how much.

        >>> row = LateRow("clicks", 0, 7, 0, None, b"", event_time=12, watermark=20, own=True)
        >>> dict(row.record()[2])["floodmark-late"].decode()
        '8 ms behind the watermark 20 of its partition'
        """
        whose = "of its partition" if self.own else "that its batch ran with"
        headers: Mapping[str, str] = {
            "floodmark-late": f"{self.watermark - self.event_time} ms behind the watermark {self.watermark} {whose}",
            "floodmark-late-by": str(self.watermark - self.event_time),
            "floodmark-late-watermark": str(self.watermark),
            "floodmark-late-reason": "partition" if self.own else "batch",
            "floodmark-late-from": f"{self.topic}/{self.partition}/{self.offset}",
        }
        key, value = (None if part is None else bytes(part) for part in (self.key, self.value))
        return key, value, [(name, text.encode()) for name, text in headers.items()]

"""Late rows: each row is judged by what was promised before it in its own partition.  Pure.

So the log of a partition alone decides, however batches cut it, and a replay decides the same.  The exception: a
partition that was idle or unknown, while other partitions advanced the job's watermark, may bring rows earlier than
that.  They are late, too, by the watermark of the records before their batch.
"""

import base64
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from floodmark.schemas.classify import AnyMark, Partition
from floodmark.schemas.errors.base import iso
from floodmark.schemas.timestamps import END_OF_TIME
from floodmark.schemas.tracker import Tracker, apply_mark

NOTHING: Final = -(1 << 62)  # the watermark where nothing was promised: no event time is earlier


def of_rows(watermark: int, derived: int) -> int:
    """Return the watermark of rows whose times `event_time` moves back by up to ``derived`` ms, before it does.

    >>> of_rows(90, derived=60), of_rows(END_OF_TIME, derived=60) == END_OF_TIME
    (150, True)
    """
    return min(watermark + derived, END_OF_TIME)


@dataclass(slots=True)
class _Partition:
    tracker: Tracker
    promised: int | None = None  # the highest watermark that the partition ever had

    def update(self, place: Partition) -> None:
        now = self.tracker.partition_watermark(*place)
        if now is not None and (self.promised is None or now > self.promised):
            self.promised = now


@dataclass(slots=True)
class Promises:
    """What was promised in each partition by its own marks."""

    partitions: dict[Partition, _Partition] = field(default_factory=dict)

    @classmethod
    def of(cls, tracker: Tracker) -> "Promises":
        """Return what a tracker of all partitions knows of each."""
        found = cls({place: _Partition(alone) for place, alone in tracker.by_partition()})
        for place, part in found.partitions.items():
            part.update(place)
        return found

    def apply(self, mark: AnyMark, percentile: int | None = None, shift: int = 0) -> None:
        """Apply the next mark of its partition, see `driving` and `shifted`."""
        place = mark.topic, mark.partition
        part = self.partitions.get(place)
        if part is None:
            part = self.partitions[place] = _Partition(Tracker([mark.topic]))
        apply_mark(part.tracker, mark, percentile, shift)
        part.update(place)

    def promised(self, place: Partition) -> int:
        """Return the highest watermark that a partition ever had, or `NOTHING`."""
        part = self.partitions.get(place)
        return NOTHING if part is None or part.promised is None else part.promised

    def snapshot(self, topics: Iterable[str] | None = None) -> list[list[Any]]:
        """Return the promises, of ``topics`` only if given, as a JSON value."""
        chosen = None if topics is None else set(topics)
        return [
            [topic, number, part.promised, part.tracker.snapshot()]
            for (topic, number), part in sorted(self.partitions.items())
            if chosen is None or topic in chosen
        ]

    @classmethod
    def restore(cls, snapshot: Iterable[Iterable[Any]]) -> "Promises":
        """Return the promises of a snapshot."""
        partitions = {
            (topic, number): _Partition(Tracker.restore(tracker), promised)
            for topic, number, promised, tracker in snapshot
        }
        return cls(partitions)


@dataclass(frozen=True, slots=True)
class LateThresholds:
    """What tasks need to judge the rows of a batch: the promises and the watermark before it."""

    promises: Promises
    watermark: int
    percentile: int | None = None
    shift: int = 0
    derived: int = 0

    def of_rows(self, promised: int) -> int:
        """Return the watermark by which a row is late, by what its partition has promised."""
        return of_rows(max(promised, self.watermark), self.derived)

    def apply(self, mark: AnyMark) -> None:
        """Apply the next mark of its partition, for the rows after it."""
        self.promises.apply(mark, self.percentile, self.shift)

    def to_text(self, topics: Iterable[str]) -> str:
        """Return the thresholds for some topics as a short text."""
        parts = [self.promises.snapshot(topics), self.watermark, self.percentile, self.shift, self.derived]
        return base64.b64encode(zlib.compress(json.dumps(parts).encode(), level=1)).decode()

    @classmethod
    def of(cls, text: str) -> "LateThresholds":
        """Return the thresholds of a text."""
        promises, *rest = json.loads(zlib.decompress(base64.b64decode(text)))
        return cls(Promises.restore(promises), *rest)


@dataclass(frozen=True, slots=True)
class LateRow:
    """A late row as in its topic, and the watermark that makes it late."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    event_time: int
    watermark: int
    of_partition: bool  # whether this is the watermark of its partition, or that of the records before its batch
    headers: Iterable[tuple[str, bytes | None]] | None = None

    def record(self) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]:
        """Return the key, the value, its headers, and those that name its offset, its watermark, and how late it is.

        >>> row = LateRow("clicks", 0, 7, None, b"", event_time=12, watermark=20, of_partition=True)
        >>> dict(row.record()[2])["floodmark-late"].decode()
        '8 ms behind the watermark 1970-01-01T00:00:00.020+00:00 of its partition'
        """
        whose = "of its partition" if self.of_partition else "of the records before its batch"
        late_by = self.watermark - self.event_time
        added: Mapping[str, str] = {
            "floodmark-late": f"{late_by} ms behind the watermark {iso(self.watermark)} {whose}",
            "floodmark-late-by": str(late_by),
            "floodmark-late-watermark": str(self.watermark),
            "floodmark-late-reason": "partition" if self.of_partition else "batch",
            "floodmark-late-from": f"{self.topic}/{self.partition}/{self.offset}",
        }
        key, value = (None if part is None else bytes(part) for part in (self.key, self.value))
        own = [(name, None if header is None else bytes(header)) for name, header in self.headers or ()]
        return key, value, [*own, *((name, text.encode()) for name, text in added.items())]

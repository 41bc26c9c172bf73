"""What a job's watermark becomes with the marks that lie ahead of what it has read.  Pure.

Spark judges late rows of batch n by the watermark of batch n - 1, and closes windows by that of batch n.  So a
watermark that rests on marks which batch n is going to read can be set before it: batch n then closes its own windows.
The invariant: *only a batch that reads all records before its positions runs with such a watermark*.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from floodmark.schemas.classify import AnyMark, Offsets, Partition
from floodmark.schemas.mark_policy import AS_WRITTEN, MarkPolicy, apply_mark
from floodmark.schemas.tracker import Tracker


@dataclass(frozen=True, slots=True)
class Ahead:
    """A watermark that holds once all records before some positions have been read."""

    watermark: int
    positions: Offsets
    """The offset behind the last mark that the watermark rests on, for each partition that has one."""

    def is_covered(self, end: Offsets) -> bool:
        """Tell whether a batch that ends at some offsets reads all that the watermark rests on.

        >>> ahead = Ahead(30, {("clicks", 0): 7})
        >>> ahead.is_covered({("clicks", 0): 7, ("clicks", 1): 0}), ahead.is_covered({("clicks", 0): 6})
        (True, False)
        """
        return all(end.get(place, 0) >= position for place, position in self.positions.items())

    def rests_on(self, mark: AnyMark) -> bool:
        """Tell whether a mark stands before the positions."""
        return mark.offset < self.positions.get((mark.topic, mark.partition), 0)


class Preview:
    """Marks ahead of what a job has read, and the watermark that they will give.

    >>> from floodmark.schemas.classify import Mark
    >>> from floodmark.schemas.records import WatermarkRecord
    >>> record = WatermarkRecord(source="web", epoch=1, sequence=0, watermark=90, partitions=1, emitted_at=0)
    >>> preview = Preview()
    >>> preview.begin(Tracker(["clicks"]), {("clicks", 0): 5})
    >>> preview.add(Mark("clicks", 0, offset=7, log_time=0, record=record))
    >>> preview.ahead()
    Ahead(watermark=90, positions={('clicks', 0): 8})
    >>> preview.records, preview.begin(Tracker(["clicks"]), {("clicks", 0): 8}), preview.records
    (3, None, 0)
    """

    def __init__(self, policies: Mapping[str, MarkPolicy] = MappingProxyType({})) -> None:
        self._policies = policies
        self._marks: list[AnyMark] = []
        self._seen: dict[Partition, int] = {}
        self._end: Offsets = {}
        self._known = Tracker(())
        self._tracker = Tracker(())
        self._moved = False

    def begin(self, known: Tracker, end: Offsets) -> None:
        """Look from a new place: what stands before it has been read."""
        self._known, self._end, self._moved = known, end, False
        self._tracker = known.copy()
        kept = [mark for mark in self._marks if mark.offset >= self._read((mark.topic, mark.partition))]
        self._marks = []
        for mark in kept:
            self.add(mark)

    def clear(self) -> None:
        """Forget what was seen: it will be read once more."""
        self._marks, self._seen = [], {}

    def _read(self, place: Partition) -> int:
        return self._end.get(place, 0)

    def see(self, place: Partition, offset: int) -> None:
        """Note that a record, of any kind, stands at an offset."""
        self._seen[place] = max(self._seen.get(place, 0), offset + 1)

    def add(self, mark: AnyMark) -> None:
        """Take in the next mark of its partition; one that the job has read already changes nothing."""
        place = mark.topic, mark.partition
        self.see(place, mark.offset)
        if mark.offset < self._read(place):
            return
        self._marks.append(mark)
        apply_mark(self._tracker, mark, *self._policies.get(mark.topic, AS_WRITTEN))
        self._moved = self._tracker.advance() is not None or self._moved

    @property
    def records(self) -> int:
        """At most so many records stand ahead, as far as they were seen."""
        return sum(max(0, seen - self._read(place)) for place, seen in self._seen.items())

    @property
    def watermark(self) -> int | None:
        """What the job's watermark becomes, epoch milliseconds; ``None``: it is not known."""
        return self._tracker.watermark

    def ahead(self) -> Ahead | None:
        """Return the watermark that all the marks give together; ``None``: none beyond what the job knows.

        Worked out in one step and in the order of the log, as the job will when it has read them.
        """
        if not self._moved:
            return None
        tracker, positions = self._known.copy(), dict[Partition, int]()
        for mark in sorted(self._marks, key=lambda mark: (mark.topic, mark.partition, mark.offset)):
            apply_mark(tracker, mark, *self._policies.get(mark.topic, AS_WRITTEN))
            positions[mark.topic, mark.partition] = mark.offset + 1
        watermark = tracker.advance()
        return None if watermark is None else Ahead(watermark, positions)

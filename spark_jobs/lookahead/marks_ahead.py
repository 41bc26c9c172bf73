"""The watermark that a job gets from marks after the records that it has read.  Pure.

Spark judges late rows of batch n by the watermark of batch n - 1, and closes windows by the watermark of batch n.  So a
job may set, before batch n, a watermark of marks that batch n is going to read: batch n then closes its own windows.
The invariant: *only a batch that reads all records before its positions runs with such a watermark*.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from floodmark.schemas.classify import AnyMark, Offsets, Partition
from floodmark.schemas.tracker import AS_WRITTEN, MarkPolicy, Tracker, apply_mark


@dataclass(frozen=True, slots=True)
class Ahead:
    """A watermark that holds once all records before some positions have been read."""

    watermark: int
    positions: Offsets  # the offset after the last mark that the watermark rests on, for each partition that has one

    def is_covered(self, end: Offsets) -> bool:
        """Tell whether a batch that ends at ``end`` reads all that the watermark rests on."""
        return all(end.get(place, 0) >= position for place, position in self.positions.items())

    def rests_on(self, mark: AnyMark) -> bool:
        """Tell whether a mark is before the positions."""
        return mark.offset < self.positions.get((mark.topic, mark.partition), 0)


class MarksAhead:
    """The marks after the last batch, and the watermark that they will give."""

    def __init__(self, policies: Mapping[str, MarkPolicy] = MappingProxyType({})) -> None:
        self._policies = policies
        self._marks: list[AnyMark] = []
        self._next_offsets: dict[Partition, int] = {}
        self._end: Offsets = {}
        self._known = Tracker(())
        self._tracker = Tracker(())
        self._moved = False
        self.all_have_ended = False
        """Whether all sources have ended, by the marks so far."""

    def start_from(self, known: Tracker, end: Offsets) -> None:
        """Note that a batch has read all records before ``end``, which give the tracker ``known``."""
        self._known, self._end, self._moved = known, end, False
        self._tracker = known.copy()
        marks, self._marks = self._marks, []
        for mark in marks:
            self.add_mark(mark)

    def clear(self) -> None:
        """Forget all marks: they will be read again."""
        self._marks, self._next_offsets = [], {}

    def note_offset(self, place: Partition, offset: int) -> None:
        """Note that a record of any kind has this offset."""
        self._next_offsets[place] = max(self._next_offsets.get(place, 0), offset + 1)

    def add_mark(self, mark: AnyMark) -> None:
        """Add the next mark of its partition; a mark that the job has read already changes nothing."""
        place = mark.topic, mark.partition
        self.note_offset(place, mark.offset)
        if mark.offset < self._end.get(place, 0):
            return
        self._marks.append(mark)
        apply_mark(self._tracker, mark, *self._policies.get(mark.topic, AS_WRITTEN))
        self.all_have_ended = False
        self._moved = self._tracker.advance(self._at_end) is not None or self._moved

    def _at_end(self) -> bool:
        """Note that all sources have ended; the batch may read more, of a new run, so it is not the end of time."""
        self.all_have_ended = True
        return False

    @property
    def records_ahead(self) -> int:
        """The number of offsets between the end of the last batch and the last record noted here."""
        return sum(max(0, following - self._end.get(place, 0)) for place, following in self._next_offsets.items())

    @property
    def watermark(self) -> int | None:
        """The watermark of the job with these marks, epoch milliseconds; ``None``: unknown."""
        return self._tracker.watermark

    def ahead(self) -> Ahead | None:
        """Return the watermark of all the marks; ``None``: the job's watermark does not change.

        It is computed in one step and in the order of the log, as in the batch that reads them.
        """
        if not self._moved:
            return None
        tracker, positions = self._known.copy(), dict[Partition, int]()
        for mark in sorted(self._marks, key=lambda mark: (mark.topic, mark.partition, mark.offset)):
            apply_mark(tracker, mark, *self._policies.get(mark.topic, AS_WRITTEN))
            positions[mark.topic, mark.partition] = mark.offset + 1
        watermark = tracker.advance(self._at_end)
        return None if watermark is None else Ahead(watermark, positions)

"""What one batch saw of its topics: the marks, and whether the rows that they count were all there.  Pure.

A batch says how many records it read of each partition, and where its marks stand, but not how many rows stand before
a mark: that would take a second read.  Offsets tell, where they have no holes.  Transactions leave holes, one a commit
and whatever was aborted; then the number of records bounds what the offsets alone leave open.
"""

import base64
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from floodmark.schemas.codec import decode_watermark
from floodmark.schemas.counts import Discrepancy, RecordCounts
from floodmark.schemas.errors import UnreadableMarkError
from floodmark.schemas.records import WatermarkRecord, source_of

Offsets = Mapping[str, Mapping[str, int] | None]
"""Topic to partition (as text) to offset, as Spark's Kafka source writes them."""


@dataclass(frozen=True, slots=True)
class SeenMark:
    """A record under a mark key.  One that cannot be read has no ``record``, but a ``reason`` and its ``source``."""

    topic: str
    partition: int
    offset: int
    log_time: int
    record: WatermarkRecord | None
    reason: str = ""
    source: str | None = None


@dataclass(slots=True)
class Sight:
    """The marks of one batch in the order of each partition, and how many records it read of each partition."""

    marks: list[SeenMark] = field(default_factory=list)
    records: Counter[tuple[str, int]] = field(default_factory=Counter)

    def add(self, marks: str, records: Mapping[tuple[str, int], int]) -> None:
        """Add what one reading observed.

        Args:
            marks: as JSON.
            records: per partition.
        """
        self.marks += seen_marks(marks)
        # The order within each partition is the log's; between partitions it does not matter.
        self.marks.sort(key=lambda mark: (mark.topic, mark.partition, mark.offset))
        self.records.update(records)

    def audit(
        self, ledger: RecordCounts, start: Offsets, end: Offsets, uncounted: Collection[str]
    ) -> Iterator[Discrepancy]:
        """Enter the batch into the ledger, and yield where rows and marks disagree.

        Args:
            ledger: of the job, as of the batch before.
            start: where the batch begins; partitions not named begin at 0.
            end: where it ends.
            uncounted: topics to leave out.
        """
        marked: Counter[tuple[str, int]] = Counter()
        for (topic, partition), group in groupby(self.marks, lambda mark: (mark.topic, mark.partition)):
            marks = list({mark.offset: mark for mark in group}.values())
            marked[topic, partition] = len(marks)
            if topic in uncounted:
                continue
            begin, stop = (int((ends.get(topic) or {}).get(str(partition), 0)) for ends in (start, end))
            span = Span(begin, stop, self.records[topic, partition])
            for mark, (least, most) in zip(marks, rows_before(span, [mark.offset for mark in marks]), strict=True):
                if mark.record is not None:
                    place = {"topic": topic, "partition": partition, "offset": mark.offset}
                    yield from ledger.on_mark(mark.record, **place, rows=least, most=most)
        for (topic, partition), count in self.records.items():
            if topic not in uncounted:
                ledger.on_rows(topic, partition, count - marked[topic, partition])


def seen_marks(marks: str) -> list[SeenMark]:
    """Read marks from JSON, as the metrics of a reading bring them."""
    return list(map(_seen, json.loads(marks)))


def _seen(mark: Mapping[str, Any]) -> SeenMark:
    place = (mark["topic"], mark["partition"], mark["offset"], mark["log_time"])
    key, value = base64.b64decode(mark["key"]), mark.get("value")
    try:
        record = decode_watermark(key, None if value is None else base64.b64decode(value))
    except UnreadableMarkError as error:
        return SeenMark(*place, None, str(error), source_of(key))
    return SeenMark(*place, record)


@dataclass(frozen=True, slots=True)
class Span:
    """What a batch read of one partition: offsets from ``start`` to before ``end``, and so many records there."""

    start: int
    end: int
    records: int


def rows_before(span: Span, marks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Give, for each mark, the least and the most data records of the batch that stand before it.

    Args:
        span: what was read.
        marks: the offsets of all marks there, ascending.

    >>> list(rows_before(Span(start=100, end=106, records=6), [102, 105]))  # no holes: exact
    [(2, 2), (4, 4)]
    >>> list(rows_before(Span(start=100, end=106, records=4), [102, 104]))  # two holes
    [(0, 2), (1, 2)]
    """
    rows = span.records - len(marks)
    for number, offset in enumerate(marks):
        marks_behind = len(marks) - number - 1
        behind = span.end - offset - 1 - marks_behind
        before = offset - span.start - number
        yield max(0, rows - behind), min(rows, before)

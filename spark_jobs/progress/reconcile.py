"""The marks of a batch, and whether all the rows that they count were read.  Pure.

A batch tells how many records it has read of each partition, and the offsets of its marks, but not the number of rows
before a mark: that would take a second read.  Offsets tell it if no offset is missing.  But each commit of a
transaction, and all aborted records, leave offsets without a record; then the number of records gives bounds.
"""

import base64
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from floodmark.schemas.classify import AnyMark, Data, Mark, Offsets, classify
from floodmark.schemas.counts import Discrepancy, RecordCounts


def parse_marks(marks: str) -> list[AnyMark]:
    """Read the marks in the metrics of a source, which are JSON.

    >>> key = base64.b64encode(b"__floodmark__/web").decode()
    >>> place = {"topic": "clicks", "partition": 0, "offset": 7, "log_time": 5}
    >>> [str(mark.place) for mark in parse_marks(json.dumps([{**place, "key": key, "value": "AA=="}]))]
    ['clicks/0@7']
    """
    found = [classify(**{**mark, **_bytes(mark)}) for mark in json.loads(marks)]
    return [record for record in found if not isinstance(record, Data)]


def _bytes(mark: Mapping[str, str | None]) -> dict[str, bytes | None]:
    """Decode the key and the value of a mark; JSON lacks a value that is null."""
    parts = {name: mark.get(name) for name in ("key", "value")}
    return {name: None if text is None else base64.b64decode(text) for name, text in parts.items()}


@dataclass(frozen=True, slots=True)
class BatchMarks:
    """The marks of one batch in the order of each partition, and the number of records in each partition."""

    marks: Sequence[AnyMark]
    records: Mapping[tuple[str, int], int]

    @classmethod
    def of(cls, observed: Iterable[tuple[str, Mapping[tuple[str, int], int]]]) -> "BatchMarks":
        """Merge the observations of a job's sources: marks as JSON, and the number of records per partition.

        >>> BatchMarks.of([("[]", {("clicks", 0): 2}), ("[]", {("views", 0): 1})]).records
        {('clicks', 0): 2, ('views', 0): 1}
        """
        marks, records = list[AnyMark](), Counter[tuple[str, int]]()
        for text, read in observed:
            marks += parse_marks(text)
            records.update(read)
        # In the order of each log; the order of the partitions does not matter.
        marks.sort(key=lambda mark: (mark.topic, mark.partition, mark.offset))
        return cls(marks, dict(records))


def reconcile(
    counts: RecordCounts, batch: BatchMarks, start: Offsets, end: Offsets, uncounted: Collection[str] = ()
) -> list[Discrepancy]:
    """Add a batch to the counts of records, and return where rows and marks disagree.

    >>> from floodmark.schemas.records import WatermarkRecord
    >>> mark = WatermarkRecord(source="web", epoch=1, sequence=0, watermark=9, partitions=1, emitted_at=0, records=3)
    >>> batch = BatchMarks([Mark("clicks", 0, offset=2, log_time=0, record=mark)], {("clicks", 0): 3})
    >>> [str(found) for found in reconcile(RecordCounts(), batch, {}, {("clicks", 0): 3})]
    ['lost rows: clicks/0 between the beginning and offset 2: 1 rows, by the marks of source web']
    """
    found, marked = list[Discrepancy](), Counter[tuple[str, int]]()
    for (topic, partition), group in groupby(batch.marks, lambda mark: (mark.topic, mark.partition)):
        marks = list({mark.offset: mark for mark in group}.values())
        marked[topic, partition] = len(marks)
        if topic in uncounted:
            continue
        span = Span(*(numbers.get((topic, partition), 0) for numbers in (start, end, batch.records)))
        for mark, (least, most) in zip(marks, rows_before(span, [mark.offset for mark in marks]), strict=True):
            if isinstance(mark, Mark):
                place = {"topic": topic, "partition": partition, "offset": mark.offset}
                found += counts.on_mark(mark.record, **place, rows=least, most=most)
    for (topic, partition), count in batch.records.items():
        if topic not in uncounted:
            counts.on_rows(topic, partition, count - marked[topic, partition])
    return found


@dataclass(frozen=True, slots=True)
class Span:
    """What a batch has read of one partition: offsets from ``start`` to before ``end``, with this number of records."""

    start: int
    end: int
    records: int


def rows_before(span: Span, marks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield, for each mark, the least and the most data records of the batch that are before it.

    >>> list(rows_before(Span(start=100, end=106, records=6), [102, 105]))  # no offset is missing: exact
    [(2, 2), (4, 4)]
    >>> list(rows_before(Span(start=100, end=106, records=4), [102, 104]))  # two are missing
    [(0, 2), (1, 2)]
    """
    rows = span.records - len(marks)
    for number, offset in enumerate(marks):
        later_marks = len(marks) - number - 1
        most_after = span.end - offset - 1 - later_marks
        most_before = offset - span.start - number
        yield max(0, rows - most_after), min(rows, most_before)

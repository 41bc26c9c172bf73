"""What one batch read of its topics: the marks, and whether the rows that they count were all there.  Pure.

A batch says how many records it read of each partition, and where its marks stand, but not how many rows stand before
a mark: that would take a second read.  Offsets show it, where they have no holes.  Transactions leave holes, one a
commit and whatever was aborted; then the number of records bounds what the offsets alone leave open.
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
    """Read marks from JSON, as the metrics of a source bring them.

    >>> key = base64.b64encode(b"__floodmark__/web").decode()
    >>> place = {"topic": "clicks", "partition": 0, "offset": 7, "log_time": 5}
    >>> [str(mark.place) for mark in parse_marks(json.dumps([{**place, "key": key, "value": "AA=="}]))]
    ['clicks/0@7']
    """
    found = [classify(**{**mark, **_bytes(mark)}) for mark in json.loads(marks)]
    return [record for record in found if not isinstance(record, Data)]


def _bytes(mark: Mapping[str, str | None]) -> dict[str, bytes | None]:
    """Decode the key and the value of a mark; JSON leaves out a value that is null."""
    parts = {name: mark.get(name) for name in ("key", "value")}
    return {name: None if text is None else base64.b64decode(text) for name, text in parts.items()}


@dataclass(frozen=True, slots=True)
class BatchMarks:
    """The marks of one batch in the order of each partition, and how many records it read of each partition."""

    marks: Sequence[AnyMark]
    records: Mapping[tuple[str, int], int]

    @classmethod
    def of(cls, observed: Iterable[tuple[str, Mapping[tuple[str, int], int]]]) -> "BatchMarks":
        """Bring together what the sources of a job observed: marks as JSON, and records per partition.

        >>> BatchMarks.of([("[]", {("clicks", 0): 2}), ("[]", {("views", 0): 1})]).records
        {('clicks', 0): 2, ('views', 0): 1}
        """
        marks, records = list[AnyMark](), Counter[tuple[str, int]]()
        for text, read in observed:
            marks += parse_marks(text)
            records.update(read)
        # The order within each partition is the log's; between partitions it does not matter.
        marks.sort(key=lambda mark: (mark.topic, mark.partition, mark.offset))
        return cls(marks, dict(records))


def reconcile(
    counts: RecordCounts, batch: BatchMarks, start: Offsets, end: Offsets, uncounted: Collection[str] = ()
) -> list[Discrepancy]:
    """Take a batch into the counts of records, and return where rows and marks disagree.

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
    """What a batch read of one partition: offsets from ``start`` to before ``end``, and so many records there."""

    start: int
    end: int
    records: int


def rows_before(span: Span, marks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Give, for each mark, the least and the most data records of the batch that stand before it.

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

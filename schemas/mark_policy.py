"""How one reader counts the marks of a topic: by which percentile, and with which shift of event times.  Pure."""

from dataclasses import replace
from typing import Any, Final, NamedTuple

from floodmark.schemas.classify import AnyMark, Unreadable
from floodmark.schemas.records import Verdict, WatermarkRecord
from floodmark.schemas.timestamps import EARLIEST
from floodmark.schemas.tracker import Tracker


def shifted(record: WatermarkRecord, shift: int) -> WatermarkRecord:
    """Return a record for event times that a query has moved back by up to ``shift`` milliseconds.

    >>> record = WatermarkRecord(source="web", epoch=1, sequence=0, watermark=90, partitions=1, emitted_at=0)
    >>> shifted(record, 60).watermark, shifted(record, 0) is record
    (30, True)
    """
    if not shift:
        return record
    watermark = None if record.watermark is None else max(EARLIEST, record.watermark - shift)
    percentiles = {percent: max(EARLIEST, time - shift) for percent, time in (record.percentiles or {}).items()}
    return replace(record, watermark=watermark, percentiles=percentiles or None)


def driving(record: WatermarkRecord, percentile: int | None) -> WatermarkRecord:
    """Return a record whose watermark is that of the lowest percent that is ``percentile`` or higher, if it has one.

    >>> record = WatermarkRecord(
    ...     source="web", epoch=1, sequence=0, watermark=90, partitions=1, emitted_at=0, percentiles={50: 120, 99: 100}
    ... )
    >>> [driving(record, percentile).watermark for percentile in (None, 50, 95, 100)]
    [90, 120, 100, 90]
    """
    if percentile is None or record.percentiles is None:
        return record
    enough = {percent: time for percent, time in record.percentiles.items() if percent >= percentile}
    return replace(record, watermark=enough[min(enough)] if enough else record.watermark)


class MarkPolicy(NamedTuple):
    """How a reader counts the marks of a topic: see `driving` and `shifted`."""

    percentile: int | None = None
    shift: int = 0


AS_WRITTEN: Final = MarkPolicy()


def apply_mark(tracker: Tracker, mark: AnyMark, percentile: int | None = None, shift: int = 0) -> Verdict | None:
    """Apply a mark to a tracker, see `driving` and `shifted`; ``None``: the mark is unreadable."""
    place: Any = {"topic": mark.topic, "partition": mark.partition, "log_time": mark.log_time}
    if isinstance(mark, Unreadable):
        tracker.apply_unreadable(mark.source, offset=mark.offset, **place)
        return None
    return tracker.apply(driving(shifted(mark.record, shift), percentile), **place)

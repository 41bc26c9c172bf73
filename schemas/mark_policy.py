"""How the marks of a topic count for one reader: which percentile, and for how much earlier event times.  Pure."""

from dataclasses import replace
from typing import Any, Final, NamedTuple

from floodmark.schemas.classify import AnyMark, Unreadable
from floodmark.schemas.records import Verdict, WatermarkRecord
from floodmark.schemas.timestamps import EARLIEST
from floodmark.schemas.tracker import Tracker


def shifted(record: WatermarkRecord, shift: int) -> WatermarkRecord:
    """Return what a record promises of event times that lie up to ``shift`` milliseconds before those it speaks of.

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
    """Return a record with the watermark that drives the job: that of the lowest percentile that is enough.

    Args:
        record: the record; where it has no such percentile, its own watermark drives.
        percentile: 1 to 100; ``None``: all events count.

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
    """How the marks of a topic count: see `driving` and `shifted`."""

    percentile: int | None = None
    shift: int = 0


AS_WRITTEN: Final = MarkPolicy()
"""All events count, and at their own time."""


def apply_mark(tracker: Tracker, mark: AnyMark, percentile: int | None = None, shift: int = 0) -> Verdict | None:
    """Let a tracker take in the next mark of its partition, see `driving` and `shifted`; ``None``: it is unreadable."""
    place: Any = {"topic": mark.topic, "partition": mark.partition, "log_time": mark.log_time}
    if isinstance(mark, Unreadable):
        tracker.apply_unreadable(mark.source, offset=mark.offset, **place)
        return None
    return tracker.apply(driving(shifted(mark.record, shift), percentile), **place)

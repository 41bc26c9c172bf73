"""The report of each batch with its counts, and a log line if the watermark stops."""

import json
import logging
from collections.abc import Collection
from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from typing import Final

from floodmark.schemas.counts import Discrepancy
from floodmark.schemas.errors.base import iso
from floodmark.schemas.tracker import UNMARKED
from floodmark.spark_jobs.progress.progress import Progress
from floodmark.spark_jobs.progress.unusable import UNUSABLE

_log = logging.getLogger(__name__)
_BATCHES: Final = 10
_SHOWN: Final = 3
COUNTED: Final = ("records", "marks", "late", *UNUSABLE, "unreadable_marks", "tombstones", "lost", "surplus")
"""The counts of each batch; a job has their totals."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The report of one batch; its counts are of this batch alone, see ``spark_jobs/LATE.md``.

    Watermarks are epoch milliseconds; ``None``: unknown.
    """

    job: str
    """Name of the job."""
    batch_id: int
    """Spark's number of the batch."""
    watermark: int | None
    """The input watermark after the batch."""
    promised: int | None
    """The watermark without ``percentile``, for all events; lower than ``watermark`` if the job uses a percentile."""
    output: int | None
    """The output watermark after the batch."""
    ended: bool
    """Whether all input has ended and every result is written."""
    records: int
    """Kafka records in the batch, including marks."""
    marks: int
    """Watermark records in the batch."""
    late: int
    """Rows with an event time before their watermark."""
    unreadable: int
    """Skipped records: the value could not be decoded."""
    missing_event_time: int
    """Skipped rows without an event time."""
    out_of_range: int
    """Skipped rows with an event time that Spark's watermark cannot judge."""
    unreadable_marks: int
    """Records with the key of a mark, but without a readable mark."""
    tombstones: int
    """Skipped records without a value."""
    lost: int
    """Rows that the marks counted, but the partitions lack."""
    surplus: int
    """Rows in the partitions that the marks did not count."""
    rows: int
    """Result rows that the batch wrote."""
    duration: timedelta
    """Time of the batch, from its start in Spark until its results and marks are written."""
    discrepancies: tuple[Discrepancy, ...] = ()
    """Where rows were lost or surplus, and which marks are missing."""
    batch_watermark: int | None = None
    """The watermark in Spark's operators during the batch: that of the batch before, or higher after a look ahead."""
    processing_time_watermark: int | None = None
    """All records that reached the sources before this time are processed, or wait in state for their event time."""

    def __repr__(self) -> str:
        """Show times in ISO format, and the counts that are not 0."""
        times = {"watermark", "promised", "output", "batch_watermark", "processing_time_watermark"}
        shown = []
        for name, value in ((part.name, getattr(self, part.name)) for part in fields(self)):
            if name in times:
                shown.append(f"{name}={iso(value)}")
            elif name == "duration":
                shown.append(f"duration={value}")
            elif value or name in {"batch_id", "records", "rows"}:
                shown.append(f"{name}={value!r}")
        return f"Batch({', '.join(shown)})"

    def to_json(self) -> str:
        """Return it as one line of JSON; the duration is in seconds."""
        return json.dumps({**asdict(self), "duration": self.duration.total_seconds()})


class Standstill:
    """Counts the batches in a row that have not advanced the watermark of a job, and finds topics without marks."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._batches = 0
        self._unmarked = set[str]()

    def note(self, progress: Progress, *, moved: bool, read: Collection[str] = ()) -> None:
        """Count a batch that has ``read`` records of these topics; log each topic without marks once.

        At the tenth batch that has not advanced the watermark, log which sources hold it.
        """
        for hold in progress.holders() if progress.watermark is None and not self._unmarked.issuperset(read) else []:
            topic = hold.holder.topic
            if hold.reason == UNMARKED and topic in read and topic not in self._unmarked:
                _log.warning("job %s has read rows, but has no watermark. Topic %s", self._job, hold)
        self._unmarked.update(read)
        self._batches = 0 if moved or progress.ended else self._batches + 1
        if self._batches == _BATCHES:
            holders = "; ".join(hold.sentence for hold in progress.holders()[:_SHOWN])
            at = iso(progress.watermark)
            _log.warning("job %s: %d batches have not moved the watermark (%s): %s", self._job, _BATCHES, at, holders)

"""What a job says of itself: the report of each batch with its counts, and a log line when nothing moves any more."""

import json
import logging
from dataclasses import asdict, dataclass, fields
from typing import Final

from floodmark.schemas.counts import Discrepancy
from floodmark.schemas.errors.base import iso
from floodmark.spark_jobs.progress.progress import Progress
from floodmark.spark_jobs.progress.unusable import UNUSABLE

_log = logging.getLogger(__name__)
_BATCHES: Final = 10
_SHOWN: Final = 3
COUNTED: Final = ("records", "marks", "late", *UNUSABLE, "unreadable_marks", "tombstones", "lost", "surplus")
"""What each batch counts; a job has the totals."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one batch did; the counts are of this batch alone.

    ``watermark`` is the input watermark after it, ``output`` the one handed on, ``batch_watermark`` the one that it ran
    with: that of the batch before, or more where the job has looked ahead.
    ``promised`` what all events together allow: less, where a percentile drives the job.  ``late``: rows
    behind their watermark, see ``spark_jobs/LATE.md``.  ``unreadable``: values that could not be decoded;
    ``missing_event_time``: rows without event time; ``out_of_range``: rows whose event time Spark's watermark cannot
    judge; all were skipped.  ``unreadable_marks``: mark keys without a readable watermark record.
    ``lost``, ``surplus``: rows by which the partitions fall short of, or exceed, what the marks have counted;
    ``discrepancies`` says where, and which marks are missing.  ``processing_time_watermark``: all that came to the
    sources before this time of the clock is worked off, or held in state for its event time; ``None``: not known.
    """

    job: str
    batch_id: int
    watermark: int | None
    promised: int | None
    output: int | None
    ended: bool
    records: int
    marks: int
    late: int
    unreadable: int
    missing_event_time: int
    out_of_range: int
    unreadable_marks: int
    tombstones: int
    lost: int
    surplus: int
    rows: int
    seconds: float
    discrepancies: tuple[Discrepancy, ...] = ()
    batch_watermark: int | None = None
    processing_time_watermark: int | None = None

    def __repr__(self) -> str:
        """Show the times as people read them, and of the counts those that are not 0."""
        times = {"watermark", "promised", "output", "batch_watermark", "processing_time_watermark"}
        shown = []
        for name, value in ((part.name, getattr(self, part.name)) for part in fields(self)):
            if name in times:
                shown.append(f"{name}={iso(value)}")
            elif value or name in {"batch_id", "records", "rows"}:
                shown.append(f"{name}={value!r}")
        return f"Batch({', '.join(shown)})"

    def to_json(self) -> str:
        """Return it as one line of JSON."""
        return json.dumps(asdict(self))


class Standstill:
    """Counts how many batches in a row have not moved the watermark of a job."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._batches = 0

    def note(self, progress: Progress, *, moved: bool) -> None:
        """Note a batch; log who holds the watermark at the tenth that has not moved it."""
        self._batches = 0 if moved or progress.ended else self._batches + 1
        if self._batches == _BATCHES:
            holders = "; ".join(hold.sentence for hold in progress.holders()[:_SHOWN])
            at = iso(progress.watermark)
            _log.warning("job %s: %d batches have not moved the watermark (%s): %s", self._job, _BATCHES, at, holders)

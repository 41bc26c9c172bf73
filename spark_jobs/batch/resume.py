"""The progress of a job at its start: from the snapshot of its last committed batch, or rebuilt from the topics."""

import logging
import time
from collections.abc import Sequence
from itertools import islice
from typing import Final

from floodmark.producers.clients.admin import begin_offsets, offset_bounds
from floodmark.producers.readers.replay import read_until_end
from floodmark.schemas.classify import Data, Offsets
from floodmark.schemas.counts import RecordCounts
from floodmark.schemas.errors import SnapshotError, UnreadInputError
from floodmark.schemas.timestamps import milliseconds
from floodmark.schemas.tracker import Tracker
from floodmark.spark_jobs.batch.handler_settings import Settings
from floodmark.spark_jobs.batch.rebuild import rebuild
from floodmark.spark_jobs.batch.snapshots import Snapshots
from floodmark.spark_jobs.internals.checkpoint import Committed
from floodmark.spark_jobs.progress.progress import Progress
from floodmark.spark_jobs.progress.spark_watermark import from_spark_watermark
from floodmark.spark_jobs.reading.source_spec import SourceSpec

_log = logging.getLogger(__name__)
_MOST: Final = 100_000
"""How many unread records are read to count them for an error."""


def resume(
    job: str, specs: Sequence[SourceSpec], snapshots: Snapshots, settings: Settings, last: Committed | None
) -> Progress:
    """Return the progress after the last batch that Spark has committed, in a new epoch.

    Raises:
        SnapshotError: if the progress is lost.
        UnreadInputError: if the job has ended, and there are new rows.
    """
    if last is None:
        topics = [topic for spec in specs for topic in spec.topics]
        progress = Progress(Tracker(topics), record_counts=RecordCounts(_partly_read(specs)))
    else:
        try:
            progress = snapshots.load(last.batch_id)
        except SnapshotError as error:
            if not settings.rebuild:
                raise
            _log.warning("job %s: %s", job, error)
            progress = _rebuilt(specs, snapshots, settings, last)
    progress.resume(
        now=time.time_ns() // 1_000_000,
        percentile=any(spec.percentile is not None for spec in specs),
        judged=any(spec.late is not None for spec in specs),
    )
    if progress.ended and last is not None:
        _refuse_unread(job, specs, last.offsets)
    return progress


def _rebuilt(specs: Sequence[SourceSpec], snapshots: Snapshots, settings: Settings, last: Committed) -> Progress:
    progress = rebuild(specs, last.offsets)
    progress.set_rebuilt_output(
        from_spark_watermark(last.watermark, settings.windows_close),
        stateful=snapshots.checkpoint.is_stateful,
        hold=milliseconds(settings.hold),
    )
    return progress


def _partly_read(specs: Sequence[SourceSpec]) -> set[tuple[str, int]]:
    """Return the partitions whose first records this job does not read."""
    return {
        (topic, number)
        for spec in specs
        for (topic, number), low in begin_offsets(spec.connection.config(), spec.topics).items()
        if low > 0 or not spec.connection.from_earliest
    }


def _refuse_unread(job: str, specs: Sequence[SourceSpec], offsets: Offsets) -> None:
    """Refuse a start if there are data records that an ended job would not read; new marks change nothing.

    Raises:
        UnreadInputError: names the partitions and offsets.
        BrokerUnavailableError: if the topics cannot be read.
    """
    count, looked, places = 0, 0, []
    for topic, config in ((topic, spec.connection.config()) for spec in specs for topic in spec.topics):
        bounds = offset_bounds(config, topic)
        starts = {place: max(offsets.get(place, 0), begin) for place, (begin, _) in bounds.items()}
        ends = {place: end for place, (_, end) in bounds.items()}
        first: dict[int, int] = {}
        for record in islice(read_until_end(config, starts, ends), _MOST - looked):
            looked += 1
            if isinstance(record, Data):
                count += 1
                first.setdefault(record.partition, record.offset)
        places += [f"{topic}/{number} from offset {offset} on" for number, offset in sorted(first.items())]
    if count:
        records = f"at least {count}" if looked >= _MOST else str(count)
        raise UnreadInputError(job=job, records=records, places=", ".join(places))

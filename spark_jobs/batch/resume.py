"""The progress of a job at its start: from the snapshot of its last committed batch, or rebuilt from the topics.

Marks that Kafka has deleted are missing in a rebuilt progress, which only holds the watermark back until their sources
emit new ones.  The counts of earlier batches are lost.
"""

import logging
import time
from collections.abc import Sequence
from itertools import islice
from typing import Final

from confluent_kafka import OFFSET_BEGINNING
from floodmark.producers.clients.admin import begin_offsets, offset_bounds
from floodmark.producers.readers.replay import read_until_end
from floodmark.schemas.classify import Data, Offsets, Unreadable
from floodmark.schemas.counts import RecordCounts
from floodmark.schemas.errors import SnapshotError, UnreadInputError
from floodmark.schemas.errors.base import iso
from floodmark.schemas.timestamps import END_OF_TIME
from floodmark.schemas.tracker import Tracker, apply_mark
from floodmark.spark_jobs.batch.handler_settings import Settings
from floodmark.spark_jobs.batch.observed_batch import is_to_end
from floodmark.spark_jobs.batch.snapshots import Snapshots
from floodmark.spark_jobs.internals.checkpoint import Committed
from floodmark.spark_jobs.progress.progress import Progress
from floodmark.spark_jobs.progress.watermarks import from_spark_watermark
from floodmark.spark_jobs.reading.source_spec import SourceSpec

_log = logging.getLogger(__name__)
_MOST: Final = 100_000  # how many unread records are read to count them for an error


def resume(
    job: str, specs: Sequence[SourceSpec], snapshots: Snapshots, settings: Settings, last: Committed | None
) -> Progress:
    """Return the progress after the last batch that Spark has committed, still in its epoch."""
    if last is None:
        topics = [topic for spec in specs for topic in spec.topics]
        progress = Progress(Tracker(topics), record_counts=RecordCounts(_partly_read(specs)))
    else:
        try:
            progress = snapshots.load(last.batch_id)
        except SnapshotError:
            if not settings.rebuild:
                raise
            progress = rebuild(specs, last.offsets, snapshots.checkpoint.next_watermark(last.batch_id))
            _log.warning(
                "job %s: the lost snapshot of batch %d is rebuilt from the topics, with watermark %s",
                *(job, last.batch_id, iso(progress.watermark)),
            )
            ran = from_spark_watermark(last.watermark, settings.windows_close)
            complete = progress.complete_after_rebuild(ran, stateful=snapshots.checkpoint.is_stateful)
            progress.finish_batch(settings.output(complete))
    if progress.watermark == END_OF_TIME and last is not None:
        refuse_unread(job, specs, progress, last.offsets)
    return progress


def begin_epoch(progress: Progress, specs: Sequence[SourceSpec], last: int) -> None:
    """Begin an epoch above the ``last`` one in the output, to be read when no older instance can write any more."""
    progress.resume(
        now=max(time.time_ns() // 1_000_000, last + 1),
        percentile=any(spec.percentile is not None for spec in specs),
        judged=any(spec.late is not None for spec in specs),
    )


def rebuild(specs: Sequence[SourceSpec], offsets: Offsets, next_watermark: int) -> Progress:
    """Return the progress that the records before ``offsets`` give, read from the topics.

    ``next_watermark``: the watermark that Spark has for the next batch.  If it is the end of time, these records were
    the last ones.
    """
    read, used = set[tuple[str, int]](), set[str]()
    topics = [topic for spec in specs for topic in spec.topics]
    tracker, full = Tracker(topics), Tracker(topics)
    for spec in specs:
        ends = {place: end for place, end in offsets.items() if place[0] in spec.topics and end > 0}
        for record in read_until_end(spec.connection.config(), dict.fromkeys(ends, OFFSET_BEGINNING), ends):
            if isinstance(record, Data):
                used.add(record.topic)  # unknown whether any record was usable: count one that was
                continue
            if isinstance(record, Unreadable):
                _log.warning("%s: %s", record.place, record.reason)
            apply_mark(tracker, record, *spec.mark_policy)
            apply_mark(full, record, shift=spec.shift)
        read.update(ends)
    for read_by in (tracker, full):
        read_by.advance(lambda: next_watermark == END_OF_TIME or is_to_end(specs, offsets))
    progress = Progress(
        tracker,
        next_watermark=tracker.watermark,
        record_counts=RecordCounts(read),
        full_tracker=full if any(spec.percentile is not None for spec in specs) else None,
    )
    for topic in used:
        progress.tally(topic, 1, {}, END_OF_TIME)
    return progress


def _partly_read(specs: Sequence[SourceSpec]) -> set[tuple[str, int]]:
    """Return the partitions whose first records this job does not read."""
    return {
        (topic, number)
        for spec in specs
        for (topic, number), low in begin_offsets(spec.connection.config(), spec.topics).items()
        if low > 0 or spec.connection.moved_start is not None
    }


def refuse_unread(job: str, specs: Sequence[SourceSpec], progress: Progress, offsets: Offsets) -> None:
    """Refuse data records that came since all input had ended at ``offsets``; new marks change nothing.

    They would be read at the end of time: their windows would close at once, and later rows would be late.
    """
    count, places = 0, []
    for topic, config in ((topic, spec.connection.config()) for spec in specs for topic in spec.topics):
        bounds = offset_bounds(config, topic)
        starts = {place: max(offsets.get(place, 0), begin) for place, (begin, _) in bounds.items()}
        ends = {place: end for place, (_, end) in bounds.items()}
        first: dict[int, int] = {}
        unread = (record for record in read_until_end(config, starts, ends) if isinstance(record, Data))
        for record in islice(unread, _MOST - count):
            count += 1
            first.setdefault(record.partition, record.offset)
        places += [f"{topic}/{number} from offset {offset} on" for number, offset in sorted(first.items())]
    if count:
        records = f"at least {count}" if count == _MOST else str(count)
        advice = "use a new checkpoint_location and a new output (topic, table or store)"
        if not progress.ended:
            more = "To write its last results, and read on, use a new checkpoint_location"
            advice = f"{advice}. {more} with WriteOptions(start=Start(published='continue'))"
        raise UnreadInputError(reader=f"job {job!r}", records=records, places=", ".join(places), advice=advice)

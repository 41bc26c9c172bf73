"""Where a job stands when it starts: the progress of its last committed batch, or that worked out again."""

import logging
import time
from collections.abc import Sequence

from floodmark.producers.clients.admin import begin_offsets
from floodmark.schemas.counts import RecordCounts
from floodmark.schemas.errors import SnapshotError
from floodmark.schemas.timestamps import milliseconds
from floodmark.schemas.tracker import Tracker
from floodmark.spark_jobs.batch.handler_settings import Settings
from floodmark.spark_jobs.batch.rebuild import rebuild
from floodmark.spark_jobs.batch.snapshots import Snapshots
from floodmark.spark_jobs.batch.unread import refuse_unread
from floodmark.spark_jobs.internals.checkpoint import Checkpoint, Committed
from floodmark.spark_jobs.progress.lateness import Way
from floodmark.spark_jobs.progress.progress import Progress
from floodmark.spark_jobs.progress.spark_watermark import WindowsClose, from_spark_watermark, spark_watermark
from floodmark.spark_jobs.reading.source_spec import SourceSpec

_log = logging.getLogger(__name__)


def resume(
    job: str, specs: Sequence[SourceSpec], snapshots: Snapshots, settings: Settings, last: Committed | None
) -> Progress:
    """Take up the progress of the last committed batch, in a new epoch.

    Args:
        job: the job.
        specs: what it reads.
        snapshots: of its checkpoint.
        settings: whether a lost snapshot may be rebuilt, and how.
        last: the last batch that Spark has committed; ``None``: none.

    Raises:
        SnapshotError: where the progress is not known any more.
        UnreadInputError: where the job has ended, and rows have come since.
    """
    if last is None:
        topics = [topic for spec in specs for topic in spec.topics]
        progress = Progress(Tracker(topics), record_counts=RecordCounts(_partial(specs)))
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
        refuse_unread(job, _configs(specs), last.offsets)
    return progress


def settle(specs: Sequence[SourceSpec], snapshots: Snapshots, settings: Settings) -> None:
    """Lower Spark's watermark to what the records up to the end of the next batch give, before the query starts.

    A look ahead may have raised it further.  That stays only where the next batch is planned and reads all that the
    watermark rests on: the batch may have been written.  Where it is not planned, it may read no record at all.

    Args:
        specs: what the job reads.
        snapshots: of its checkpoint.
        settings: of the job.
    """
    checkpoint = snapshots.checkpoint
    last = checkpoint.last_committed
    if last is None:
        return
    try:
        progress = snapshots.load(last)
    except SnapshotError:
        if settings.rebuild:
            _settle_unknown(specs, checkpoint, settings, last)
        return  # else `resume` says it
    if progress.ahead is not None and progress.settle(checkpoint.planned_end(last + 1)):
        withdraw(snapshots, last, progress, settings.windows_close)


def _settle_unknown(specs: Sequence[SourceSpec], checkpoint: Checkpoint, settings: Settings, last: int) -> None:
    """Lower it where the snapshot is lost: what it rests on is lost, too, so the topics tell what it may be.

    It stays at what the last batch ran with where Kafka has deleted marks and the rest give less: that batch had read
    all that its watermark rested on.
    """
    end = checkpoint.planned_end(last + 1) or checkpoint.planned_end(last) or {}
    read = rebuild(_configs(specs), end, _ways(specs)).watermark
    allowed = 0 if read is None else spark_watermark(read, settings.windows_close)
    checkpoint.lower_watermark(last, max(allowed, checkpoint.planned_watermark(last)))


def retract(snapshots: Snapshots, last: int, windows_close: WindowsClose) -> None:
    """Take the watermark of a batch out of Spark's log, so that the next start runs it with what was read before.

    Args:
        snapshots: of the job's checkpoint.
        last: the last batch that Spark has committed, before that one.
        windows_close: as the job has it.
    """
    progress = snapshots.load(last)
    if progress.settle(None):
        withdraw(snapshots, last, progress, windows_close)


def withdraw(snapshots: Snapshots, last: int, progress: Progress, windows_close: WindowsClose) -> None:
    """Lower the watermark of the next batch in Spark's log to that of a progress, and store that progress.

    Args:
        snapshots: of the job's checkpoint.
        last: the last batch that Spark has committed, or commits before it plans the next.
        progress: of the job, as of that batch.
        windows_close: as the job has it.
    """
    allowed = 0 if progress.watermark is None else spark_watermark(progress.watermark, windows_close)
    snapshots.checkpoint.lower_watermark(last, allowed)
    snapshots.store(last, progress.snapshot())


def _rebuilt(specs: Sequence[SourceSpec], snapshots: Snapshots, settings: Settings, last: Committed) -> Progress:
    progress = rebuild(_configs(specs), last.offsets, _ways(specs))
    progress.rebuilt(
        from_spark_watermark(last.watermark, settings.windows_close),
        stateful=snapshots.checkpoint.is_stateful,
        hold=milliseconds(settings.hold),
    )
    return progress


def _configs(specs: Sequence[SourceSpec]) -> dict[str, dict[str, object]]:
    """Return each topic that is read, and the confluent-kafka settings to read it with."""
    return {topic: config for spec in specs for config in [spec.connection.config()] for topic in spec.topics}


def _ways(specs: Sequence[SourceSpec]) -> dict[str, Way]:
    """Return how the marks of each topic count."""
    return {topic: spec.way for spec in specs for topic in spec.topics}


def _partial(specs: Sequence[SourceSpec]) -> set[tuple[str, int]]:
    """Name the partitions whose first records this job does not read."""
    return {
        (topic, number)
        for spec in specs
        for (topic, number), low in begin_offsets(spec.connection.config(), spec.topics).items()
        if low > 0 or not spec.connection.from_earliest
    }

"""Move a new checkpoint to the start point of its job, before the job's own query starts.

Spark plans the first batch of the query, so that its files have the form of this Spark version.  This batch does not
run.  Instead the start offsets in these files are replaced.  If the output topic already has results, the query then
reads the input of its state again, without writing a row: this module plans each batch, and one start of the query
runs it.  These batches have no watermark, so they close nothing.  One more batch, without rows, has the watermark of
the last published batch, and closes what that batch had closed.  The next batch is the first unpublished one.

After a crash ``start.json`` does not have the first batch with results, and the next start resumes with the missing
steps.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from floodmark.producers.clients.clock import Clock
from floodmark.schemas.errors import UsageError
from floodmark.schemas.errors.base import iso
from floodmark.schemas.timestamps import END_OF_TIME, is_late
from floodmark.spark_jobs.batch.late_rows import pass_thresholds
from floodmark.spark_jobs.batch.snapshots import Snapshots
from floodmark.spark_jobs.batch.stopping import Stopping
from floodmark.spark_jobs.internals.checkpoint import Checkpoint
from floodmark.spark_jobs.internals.engine import start_query
from floodmark.spark_jobs.progress.progress import Progress
from floodmark.spark_jobs.progress.watermarks import WindowsClose, spark_watermark
from floodmark.spark_jobs.reading.source_spec import SourceSpec
from floodmark.spark_jobs.start.progress_from_topics import ProgressFromTopics
from floodmark.spark_jobs.start.start_point import StartPoint, store
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

_log = logging.getLogger(__name__)
_POLL: Final = 0.1  # seconds between two checks whether a query has failed

Query = Callable[[Callable[[DataFrame, int], None]], DataStreamWriter]
"""Returns the query of a job that calls a function with each batch."""


def prepare_checkpoint(
    start_point: StartPoint,
    spark: SparkSession,
    specs: Sequence[SourceSpec],
    snapshots: Snapshots,
    query: Query,
    *,
    job: str,
    windows_close: WindowsClose,
) -> None:
    """Move a checkpoint to ``start_point``, and store that in it; does nothing if this has been done."""
    if start_point.first is not None:
        return
    checkpoint = snapshots.checkpoint
    topics = ProgressFromTopics(spark, job, specs, start_point)
    topics.read_to(start_point.begins)
    _require_below(start_point, topics.progress.watermark)
    if start_point.output_at is not None and start_point.output_at > Clock().wall():
        about = "output_at is in the future, and it writes no result before"
        _log.warning("job %s: %s: %s", job, about, iso(start_point.output_at))
    store(checkpoint.files, start_point)
    steps = list(start_point.steps()) if topics.has_records else []
    committed = checkpoint.last_committed
    if steps and committed is None:
        if not checkpoint.is_planned:
            _plan_first(query)
        checkpoint.begin_at(start_point.begins)
    for number, (end, watermark) in enumerate(steps):
        if committed is None or committed < number:
            if start_point.records:
                done = f"batch {number + 1} of {len(steps)}"
                _log.warning("job %s reads %d records again to restore its state: %s", job, start_point.records, done)
            checkpoint.plan(number, end, watermark)
            _run(query, number, specs, topics.progress, checkpoint)
        topics.read_to(end, advance=number == len(steps) - 1)
    if steps:
        last, known = len(steps) - 1, topics.progress.watermark
        if known is not None:
            checkpoint.raise_watermark(last, spark_watermark(known, windows_close))
        snapshots.store(last, topics.progress.snapshot())
    store(checkpoint.files, replace(start_point, first=len(steps)))


def _require_below(start_point: StartPoint, watermark: int | None) -> None:
    """Refuse an ``output_at`` that the watermark of the input has passed at the start: its results would be missing."""
    output_at = start_point.output_at
    if output_at is None or start_point.continues or watermark == END_OF_TIME:
        return
    if is_late(output_at, watermark):
        reason = (
            f"output_at is {iso(output_at)}, but where the job would start, the watermark of its input is already "
            f"{iso(watermark)}, so it would drop rows of these results. If an event in the future moved it there, give "
            "an output_at after the restart of its source. If event times are ahead of Kafka's timestamps, give a "
            "larger early="
        )
        raise UsageError(reason=reason)


def _plan_first(query: Query) -> None:
    """Let Spark plan the first batch, and stop the query before this batch runs."""
    planned, release, stopping = threading.Event(), threading.Event(), Stopping(lambda: started)

    def hold(_frame: DataFrame, batch_id: int) -> None:
        planned.set()
        release.wait()
        with stopping.batch(batch_id):
            raise AssertionError  # a stop was requested, so no batch runs

    started = start_query(query(hold))
    while not planned.wait(_POLL) and started.isActive:
        pass
    failure = started.exception()
    if failure is not None:
        raise failure
    stopping.request_stop()
    release.set()
    started.stop()


def _run(query: Query, number: int, specs: Sequence[SourceSpec], progress: Progress, checkpoint: Checkpoint) -> None:
    """Run the planned batch, and no other, without writing its rows."""

    def consume(frame: DataFrame, _batch_id: int) -> None:
        pass_thresholds(frame.sparkSession, specs, progress)
        frame.write.format("noop").mode("append").save()

    try:
        start_query(query(consume).trigger(once=True)).awaitTermination()
    except StreamingQueryException:
        # Spark 4.1's connector may fail after the commit of a batch that was planned before.
        if checkpoint.last_committed != number:
            raise

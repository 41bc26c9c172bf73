"""Bring a new checkpoint to where its job begins, before the job's own query starts.

Theory of operation
-------------------
Spark plans the first batch of the query itself, so that its files have the form of this Spark; that batch is not run.
Then the offsets in these files are moved: the query begins elsewhere.  Where results are in the output topic already,
the query is run over the input of their state without writing a row, batch by batch, each planned here and run by one
start of the query.  These batches run without a watermark, so nothing closes; one more, without rows, runs with the
watermark of the last batch that was published, and closes what that had closed.  The next batch is the first that was
never published.

A crash at any point leaves a checkpoint whose ``start.json`` is not done: the next start goes on with what is missing.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from floodmark.spark_jobs.batch.late_rows import pass_thresholds
from floodmark.spark_jobs.batch.snapshots import Snapshots
from floodmark.spark_jobs.batch.stopping import Stopping
from floodmark.spark_jobs.beginning.beginning import Beginning, store
from floodmark.spark_jobs.beginning.history import History
from floodmark.spark_jobs.internals import plain
from floodmark.spark_jobs.internals.checkpoint import Checkpoint
from floodmark.spark_jobs.progress.progress import Progress
from floodmark.spark_jobs.progress.spark_watermark import WindowsClose, spark_watermark
from floodmark.spark_jobs.reading.source_spec import SourceSpec
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

_log = logging.getLogger(__name__)
_POLL: Final = 0.1
"""Seconds between two looks at whether a query has failed."""

Query = Callable[[Callable[[DataFrame, int], None]], DataStreamWriter]
"""Gives the query of a job, with a function that is called with each batch."""


def bring_to(
    beginning: Beginning,
    spark: SparkSession,
    specs: Sequence[SourceSpec],
    snapshots: Snapshots,
    query: Query,
    *,
    job: str,
    windows_close: WindowsClose,
) -> None:
    """Bring a checkpoint to where its job begins; where that is done, nothing happens.

    Args:
        beginning: where that is; it is kept in the checkpoint from here on.
        spark: the session.
        specs: what the job reads.
        snapshots: of the checkpoint.
        query: the job's query.
        job: for log lines.
        windows_close: as the job has it.
    """
    if beginning.done:
        return
    checkpoint = snapshots.checkpoint
    store(checkpoint.files, beginning)
    history = History(spark, specs, beginning)
    history.read_to(beginning.begins)
    steps = list(beginning.steps()) if history.is_there else []
    committed = checkpoint.last_committed
    if steps and committed is None:
        if not checkpoint.is_planned:
            _plan_first(query)
        checkpoint.begin_at(beginning.begins)
    for number, (end, watermark) in enumerate(steps):
        if committed is None or committed < number:
            done = f"batch {number + 1} of {len(steps)}"
            _log.warning("job %s reads %d records of its state again: %s", job, beginning.records, done)
            checkpoint.plan(number, end, watermark)
            _run(query, number, specs, history.progress, checkpoint)
        history.read_to(end)
    if steps:
        last, known = len(steps) - 1, history.progress.watermark
        if known is not None:
            checkpoint.raise_watermark(last, spark_watermark(known, windows_close))
        snapshots.store(last, history.progress.snapshot())
    store(checkpoint.files, replace(beginning, done=True))


def _plan_first(query: Query) -> None:
    """Let Spark plan the first batch, and stop it before that runs."""
    planned, release, stopping = threading.Event(), threading.Event(), Stopping(lambda: started)

    def hold(_frame: DataFrame, batch_id: int) -> None:
        planned.set()
        release.wait()
        with stopping.batch(batch_id):
            raise AssertionError  # a stop was requested, so none runs

    started = plain.start(query(hold))
    while not planned.wait(_POLL) and started.isActive:
        pass
    failure = started.exception()
    if failure is not None:
        raise failure
    stopping.request_stop()
    release.set()
    started.stop()


def _run(query: Query, number: int, specs: Sequence[SourceSpec], progress: Progress, checkpoint: Checkpoint) -> None:
    """Run the planned batch, and no other; its rows go nowhere."""

    def consume(frame: DataFrame, _batch_id: int) -> None:
        pass_thresholds(frame.sparkSession, specs, progress)
        frame.write.format("noop").mode("append").save()

    try:
        plain.start(query(consume).trigger(once=True)).awaitTermination()
    except StreamingQueryException:
        # Spark 4.1's connector may fail behind the commit of a batch that was planned before.
        if checkpoint.last_committed != number:
            raise

"""The handler of a batch: what happens around each micro-batch so that in-band watermarks move Spark's own operators.

Theory of operation
-------------------
Spark calls the handler with each batch, on the query's own thread.  Then, in this order and no other:

1. the batch runs (``sink.consume``), with the watermark that the batch before has set;
2. the watermark records that this very batch read are taken from its observation and applied to the tracker;
3. the snapshot of batch n is stored;
4. the rows are made durable, and behind them the output's watermark records (``sink.commit``);
5. Spark's watermark is set for the next batch; Spark then commits batch n.

A crash between any two steps runs batch n again from the snapshot of batch n - 1, with the same offsets and the same
watermark: the records are the same, the snapshot is replaced by its equal, and the sink sees that the batch is there
already (exactly once) or writes it again (at least once).
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from traceback import clear_frames
from typing import Final

from floodmark.producers.clients.admin import compacted_topics
from floodmark.schemas.timestamps import milliseconds
from floodmark.spark_jobs.batch import late
from floodmark.spark_jobs.batch.intake import Observed, require_usable, take_in
from floodmark.spark_jobs.batch.output_marks import OutputMarks
from floodmark.spark_jobs.batch.report import Batch
from floodmark.spark_jobs.batch.resume import resume
from floodmark.spark_jobs.batch.settings import Settings
from floodmark.spark_jobs.batch.sinks import Sink
from floodmark.spark_jobs.batch.snapshots import JobIdentity, Snapshots
from floodmark.spark_jobs.batch.standstill import Standstill
from floodmark.spark_jobs.batch.stopping import Stopping
from floodmark.spark_jobs.internals.checkpoint import committed
from floodmark.spark_jobs.internals.engine import Engine
from floodmark.spark_jobs.progress.progress import Progress
from floodmark.spark_jobs.reading.event_time import require_shift
from floodmark.spark_jobs.reading.source import SourceSpec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery


class BatchHandler:
    """The function that Spark calls with each batch of one job.

    Args:
        identity: the job.
        specs: what it reads.
        sink: where its rows go.
        snapshots: where its progress is kept.
        settings: how it hands its progress on.
        recent: how many of the last batches it keeps the reports of.
        on_batch: is called with the report of each batch.
    """

    def __init__(
        self,
        identity: JobIdentity,
        specs: Sequence[SourceSpec],
        sink: Sink,
        snapshots: Snapshots,
        settings: Settings,
        *,
        recent: int,
        on_batch: Callable[[Batch], None] | None = None,
    ) -> None:
        self.identity = identity
        self.failure: BaseException | None = None
        """What failed the job, as it was raised."""
        self.stopping: Final = Stopping()
        self.progress: Progress
        """What the job knows; there once `attach` has returned."""
        self.recent: Final = deque[Batch](maxlen=recent)
        """The reports of the last batches."""
        self._specs = specs
        self._sink = sink
        self._snapshots = snapshots
        self._settings = settings
        self._on_batch = on_batch
        self._attached = threading.Event()
        self._running: Callable[[], StreamingQuery | None]
        self._marks: OutputMarks
        self._uncounted: set[str] = set()
        """Topics in which rows may vanish by design, so that counts prove nothing."""
        self._standstill = Standstill(identity.job)

    def attach(self, query: StreamingQuery, spark: SparkSession) -> None:
        """Learn which query calls it, and where that stands; the first batch waits for this.

        The query is asked for by its id in each batch, not kept: Spark holds this handler for as long as it holds the
        query, so that neither would ever be released.

        Args:
            query: the query.
            spark: the session that runs it.

        Raises:
            SnapshotError: where that is not known any more; the query fails with it, too.
            UnreadInputError: where the job has ended and would not read what has come since.
        """
        self._running = partial(spark.streams.get, query.id)
        job = self.identity.job
        try:
            progress = resume(job, self._specs, self._snapshots, self._settings, committed(query))
            self._uncounted = {
                t for spec in self._specs for t in compacted_topics(spec.connection.config(), spec.topics)
            }
            self._sink.open()
            self._marks = OutputMarks(job, progress.epoch, self._settings.membership, self._sink)
            self.progress = progress
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self._attached.set()

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Run one batch; any error fails the query, and is kept for `Job` to raise as it is."""
        with self.stopping.batch(batch_id):
            try:
                batch = self._run(frame, batch_id)
            except BaseException as error:
                self.failure = error
                clear_frames(error.__traceback__)  # their variables would hold the query
                raise
            finally:
                self._sink.release()
        self.recent.append(batch)
        if self._on_batch is not None:
            self._on_batch(batch)

    def _run(self, frame: DataFrame, batch_id: int) -> Batch:
        began = time.monotonic()
        self._attached.wait()  # write() attaches right after it starts the query
        query = self._running()
        if self.failure is not None or query is None:
            raise self.failure or AssertionError
        job, spark, progress = self.identity.job, frame.sparkSession, self.progress
        engine = Engine(query, self._settings.windows_close)
        batch_watermark = progress.next_watermark

        # 1. The batch runs.
        late.brief_tasks(spark, self._specs, progress)
        self._sink.consume(frame, batch_id)

        # 2. What it read is applied; nothing of it is durable yet.
        observed = Observed.of(spark, engine, self._specs)
        counts, discrepancies = take_in(job, progress, observed, self._uncounted)
        progress.advance()
        results = engine.results(batch_watermark, progress.next_watermark)
        late_watermark = batch_watermark if results.passes_late else engine.late_watermark
        counts["late"] = late.count_and_route(job, spark, observed, late_watermark, self._sink)
        self._check(batch_id, observed, passes_late=results.passes_late, batch_watermark=batch_watermark)
        hold = milliseconds(self._settings.hold)
        output = progress.finish_batch(complete=results.complete, hold=hold, counts=counts)
        require_usable(job, progress, self._specs)

        # 3. Its snapshot is stored.
        self._snapshots.store(batch_id, progress.snapshot())

        # 4. Its rows are made durable, and its marks behind them.
        self._sink.commit(batch_id, self._marks.behind(batch_id, progress))

        # 5. The watermark of the next batch is set.
        engine.set_watermark(progress.next_watermark)
        self._standstill.note(progress, moved=progress.next_watermark != batch_watermark)
        return Batch(
            job=job,
            batch_id=batch_id,
            watermark=progress.next_watermark,
            promised=progress.promised,
            output=output,
            ended=progress.ended,
            rows=observed.output.rows,
            seconds=round(time.monotonic() - began, 3),
            discrepancies=discrepancies,
            **counts,
        )

    def _check(self, batch_id: int, observed: Observed, *, passes_late: bool, batch_watermark: int | None) -> None:
        """Refuse rows that would break what was promised, before anything of the batch is durable.

        Late input that operators let pass is excused: that promise was broken before it came here, and is counted.
        Where rows are judged one by one, late ones do not pass.
        """
        passed = any(spec.late is None and found.is_late(batch_watermark) for spec, found in observed.inputs)
        if not passed:
            require_shift(self.identity.job, self._settings.derived, observed.metrics, batch_watermark)
        observed.output.check(self.identity, batch_id, None if passes_late and passed else self.progress.output)

    def close(self) -> None:
        """Let go of the sink's clients."""
        self._sink.close()

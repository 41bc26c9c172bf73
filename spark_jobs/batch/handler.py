"""The handler of a batch: what happens around each micro-batch so that in-band watermarks move Spark's own operators.

Theory of operation
-------------------
Spark calls the handler with each batch, on the query's own thread.  Then, in this order and no other:

1. the batch runs (``sink.consume``), with the watermark that the batch before has set;
2. the watermark records that this very batch read are taken from its observation and applied to the tracker;
3. the snapshot of batch n is stored;
4. the rows are made durable, and behind them the output's watermark records (``sink.commit``);
5. Spark's watermark is set for the next batch;
6. a look ahead may find a higher one, which rests on what the next batch will read: it is stored with the snapshot and
   set, too.  Spark then commits batch n.

A crash between any two steps runs batch n again from the snapshot of batch n - 1, with the same offsets and the same
watermark: the records are the same, the snapshot is replaced by its equal, and the sink sees that the batch is there
already (exactly once) or writes it again (at least once).

The watermarks of batch n, epoch milliseconds; ``None`` where there is none yet:

===============================  =======================================================================================
``progress.watermark``           of the input: what all marks that were read so far promise
``progress.promised``            the same where all events count; less, where a percentile drives the job
``progress.next_watermark``      what batch n + 1 will run with: ``progress.watermark``, or more after a look ahead
``progress.batch_watermark``     what the last batch ran with
``engine.ran``                   what batch n runs with as Spark counts it, see `spark_watermark`; 0: none
``results.complete``             no result of a later batch is earlier
``progress.output``              handed on: the highest ``results.complete`` so far, less ``settings.hold``
===============================  =======================================================================================

Between the end of step 6 and Spark's plan of batch n + 1, a burst of records may reach the topics.  The limit of a
batch then cuts batch n + 1 before the records that its watermark rests on.  Its handler finds that before step 1.  It
lowers the watermark in Spark's log, and a thread of its own restarts the query: the same batch runs again, with the
watermark of what was read before it.  So no batch restarts the query twice.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from traceback import clear_frames
from typing import Final

from floodmark.producers.clients.admin import compacted_topics
from floodmark.producers.clients.topic_watch import TopicWatch
from floodmark.schemas.classify import Offsets
from floodmark.schemas.errors import LookaheadError
from floodmark.schemas.timestamps import milliseconds
from floodmark.spark_jobs.batch.handler_settings import Settings
from floodmark.spark_jobs.batch.intake import Observed, require_usable, take_in
from floodmark.spark_jobs.batch.late_rows import count_late_rows, pass_thresholds
from floodmark.spark_jobs.batch.lookahead import Lookahead, withdraw, withdraw_stored
from floodmark.spark_jobs.batch.report import Batch, Standstill
from floodmark.spark_jobs.batch.resume import resume
from floodmark.spark_jobs.batch.sinks import Sink
from floodmark.spark_jobs.batch.snapshots import JobIdentity, Snapshots
from floodmark.spark_jobs.batch.stopping import Stopping
from floodmark.spark_jobs.internals.checkpoint import committed
from floodmark.spark_jobs.internals.engine import Engine
from floodmark.spark_jobs.progress.progress import Progress
from floodmark.spark_jobs.progress.published import Published
from floodmark.spark_jobs.reading.event_time import require_shift
from floodmark.spark_jobs.reading.source_spec import SourceSpec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)


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
        self.stopping: Final = Stopping(self._running)
        self.progress: Progress
        """What the job knows; there once `attach` has returned."""
        self.changing: Final = threading.Lock()
        """Held while a batch changes that: other threads ask in between."""
        self.counted_before: dict[str, int] = {}
        """What was counted before this start."""
        self.lookahead: Final = Lookahead(identity.job, specs, settings, self.stopping)
        self.processing_time_watermark: int | None = None
        """Up to when all that came to the sources is durable with the last batch, epoch milliseconds."""
        self.recent: Final = deque[Batch](maxlen=recent)
        """The reports of the last batches."""
        self._specs = specs
        self._sink = sink
        self._snapshots = snapshots
        self._settings = settings
        self._on_batch = on_batch
        self.get_restart_callback: Callable[[], Callable[[StreamingQuery], None] | None] = lambda: None
        """Returns what is called with the query after a restart; a weak reference, for the receiver holds the query."""
        self._attached = threading.Event()
        self._spark: SparkSession | None = None
        self._query_id = self._run_id = ""
        self._start: Callable[[], StreamingQuery]
        self._uncounted: set[str] = set()
        """Topics in which rows may vanish by design, so that counts prove nothing."""
        self._standstill = Standstill(identity.job)
        self._watches: list[TopicWatch] = []

    def attach(self, query: StreamingQuery, spark: SparkSession, start: Callable[[], StreamingQuery]) -> None:
        """Learn which query calls it, and where that stands; the first batch waits for this.

        Args:
            query: the query.
            spark: the session that runs it.
            start: starts it again.

        Raises:
            SnapshotError: where that is not known any more; the query fails with it, too.
            RecreatedTopicError: where a topic was deleted and created again since it was read.
            UnreadInputError: where the job has ended and would not read what has come since.
        """
        self._spark, self._start = spark, start
        self._query_id, self._run_id = query.id, query.runId
        job = self.identity.job
        try:
            progress = resume(job, self._specs, self._snapshots, self._settings, committed(query))
            self._uncounted = {
                t for spec in self._specs for t in compacted_topics(spec.connection.config(), spec.topics)
            }
            self._watches = [
                TopicWatch(spec.connection.config(), spec.topics, progress.topic_ids, f"job {job!r}")
                for spec in self._specs
            ]
            self._sink.open()
            self.counted_before, self.processing_time_watermark = progress.counts, progress.processing_time
            self.progress = progress
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self._attached.set()

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Run one batch; any error fails the query, and is kept for `Job` to raise as it is."""
        self._attached.wait()  # write() attaches right after it starts the query
        try:
            is_cut = self._is_cut()
            if is_cut:
                self._restart_without_lookahead(batch_id)
        except BaseException as error:
            self._fail(error)
            raise
        if is_cut:
            self.stopping.interrupt()
        with self.stopping.batch(batch_id):
            try:
                batch, end = self._run(frame, batch_id)
            except BaseException as error:
                self._fail(error)
                raise
            finally:
                frame.unpersist()  # a sink may have it cached
        self.recent.append(batch)
        self.processing_time_watermark = batch.processing_time_watermark
        try:
            if self._on_batch is not None:
                self._on_batch(batch)
            self._look_ahead(batch, end)
        except BaseException as error:
            self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        self.failure = error
        self.lookahead.close()
        clear_frames(error.__traceback__)  # their variables would hold the query

    def _is_cut(self) -> bool:
        """Tell whether the batch ends before the records that its watermark rests on."""
        if self.failure is not None or self.stopping.is_requested:
            return False
        ahead = self.progress.ahead
        return ahead is not None and not ahead.is_covered(self._engine().offsets()[1])

    def _restart_without_lookahead(self, batch_id: int) -> None:
        """Restart the query, so that the batch runs with the watermark of what was read before it."""
        job, last = self.identity.job, batch_id - 1
        _log.warning(
            "job %s: a burst of records came in, so batch %d ends before the marks that its watermark rests on; "
            "nothing of it was written: the query restarts, and the batch runs with the watermark before",
            *(job, batch_id),
        )
        self.progress.withdraw_ahead()
        withdraw(self._snapshots, last, self.progress, self._settings.windows_close)
        for watch in self._watches:
            watch.check()
        self.stopping.restarted.clear()
        threading.Thread(target=self._restart, name=f"floodmark-restart-{job}", daemon=True).start()

    def _restart(self) -> None:
        try:
            self.stopping.restart(self._start_again)
        except BaseException as error:  # noqa: BLE001  # it fails the job
            self._fail(error)
        finally:
            self.stopping.restarted.set()

    def _start_again(self) -> None:
        query = self._start()
        self._run_id = query.runId
        notify = self.get_restart_callback()
        if notify is not None:
            notify(query)

    def _running(self) -> StreamingQuery | None:
        """Return its query while that is active.

        It is asked for by its id, not kept: Spark holds this handler for as long as it holds the query, so that neither
        would ever be released.
        """
        query = None if self._spark is None else self._spark.streams.get(self._query_id)
        return query if query is not None and query.runId == self._run_id else None

    def _engine(self) -> Engine:
        query = self._running()
        if self.failure is not None or query is None:
            raise self.failure or AssertionError
        rules = self._settings.rules
        return Engine(query, self._settings.windows_close, rules.ends if rules.only_windows else None)

    def _run(self, frame: DataFrame, batch_id: int) -> tuple[Batch, Offsets]:
        began = time.monotonic()
        engine = self._engine()
        if self.stopping.is_first:
            engine.ask_latest_offsets()
        job, spark, progress = self.identity.job, frame.sparkSession, self.progress
        input_watermark, batch_watermark, ahead = progress.watermark, progress.next_watermark, progress.ahead
        last_batch_watermark = progress.batch_watermark

        # 1. The batch runs.
        pass_thresholds(spark, self._specs, progress)
        self._sink.consume(frame)

        # 2. What it read is applied; nothing of it is durable yet.
        observed = Observed.of(spark, engine, self._specs)
        with self.changing:
            counts, discrepancies = take_in(job, progress, observed, self._uncounted)
        if ahead is not None and not progress.is_at_least(ahead.watermark):
            withdraw_stored(self._snapshots, batch_id - 1, self._settings.windows_close)
            raise LookaheadError(job=job, watermark=ahead.watermark, found=progress.watermark)
        results = engine.results(batch_watermark, progress.next_watermark)
        # Spark may know less than was promised where windows are all that it keeps: between two ends, it is not told.
        judged_by_spark = not (results.passes_late or self._settings.rules.only_windows)
        late_watermark = engine.late_watermark(last_batch_watermark) if judged_by_spark else input_watermark
        counts["late"], late_rows = count_late_rows(job, spark, observed, late_watermark)
        self._check(batch_id, observed, passes_late=results.passes_late, input_watermark=input_watermark)
        hold = milliseconds(self._settings.hold)
        with self.changing:
            output = progress.finish_batch(complete=results.complete, hold=hold, counts=counts)
        require_usable(job, progress, self._specs)

        # 3. Its snapshot is stored: all that it read was of the topics that the batches before have read.
        for watch in self._watches:
            watch.check()
        self._snapshots.store(batch_id, progress.snapshot())

        # 4. Its rows are made durable, and the marks behind them.
        published = Published(observed.end, engine.ran, progress.topic_ids)
        self._sink.commit(frame, batch_id, progress, published, late_rows)

        # 5. The watermark of the next batch is set.
        engine.set_watermark(progress.next_watermark)
        self._standstill.note(progress, moved=progress.watermark != input_watermark)
        batch = Batch(
            job=job,
            batch_id=batch_id,
            watermark=progress.watermark,
            batch_watermark=batch_watermark,
            processing_time_watermark=progress.processing_time,
            promised=progress.promised,
            output=output,
            ended=progress.ended,
            rows=observed.output.rows,
            seconds=round(time.monotonic() - began, 3),
            discrepancies=discrepancies,
            **counts,
        )
        return batch, observed.end

    def _look_ahead(self, batch: Batch, end: Offsets) -> None:
        """Let the next batch run with a higher watermark, where that rests on what it is going to read."""
        ahead = self.lookahead.look(self.progress, end, batch.records)
        if ahead is None or self._running() is None:  # it was stopped meanwhile
            return
        self.progress.look_ahead(ahead)
        self._snapshots.store(batch.batch_id, self.progress.snapshot())  # before Spark knows it
        self._engine().set_watermark(ahead.watermark)

    def _check(self, batch_id: int, observed: Observed, *, passes_late: bool, input_watermark: int | None) -> None:
        """Refuse rows that would break what was promised, before anything of the batch is durable.

        Late input that operators let pass is excused: that promise was broken before it came here, and is counted.
        Where rows are judged one by one, late ones do not pass.

        Args:
            batch_id: of the batch.
            observed: in it.
            passes_late: whether late input can reach the output.
            input_watermark: the watermark that the batches before have read: no row of this one should be behind it.
        """
        passed = any(spec.late is None and found.is_late(input_watermark) for spec, found in observed.inputs)
        if not passed:
            require_shift(self.identity.job, self._settings.derived, observed.metrics, input_watermark)
        observed.output.check(self.identity, batch_id, None if passes_late and passed else self.progress.output)

    @property
    def is_running(self) -> bool:
        """Whether its query is active, or restarts."""
        with suppress(Exception):  # the session may be gone
            return not self.stopping.restarted.is_set() or self._running() is not None
        return False

    def stop(self, patience: float = -1) -> None:
        """Stop its query behind the batch in work, where it runs; ``patience``: seconds for that batch, -1: any."""
        self.stopping.stop(patience=patience)
        self.close()

    def close(self) -> None:
        """Let go of all clients."""
        self.lookahead.close()
        self._watches.clear()

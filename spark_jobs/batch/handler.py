"""The handler of a batch: what happens around each micro-batch so that in-band watermarks drive Spark's operators.

Spark calls the handler with each batch, on the query's own thread.  The handler then does, in this order:

1. run the batch (``sink.consume``) with the watermark that the batch before has set;
2. apply the watermark records that this batch has read, from its observation, to the tracker;
3. store the snapshot of batch n;
4. make the rows durable, and after them the marks of the job (``sink.commit``);
5. set Spark's watermark and limit for the next batch;
6. look ahead: if marks that the next batch will read give a higher watermark, store it in the snapshot and set it.
   Spark then commits batch n.

After a crash between two steps Spark runs batch n again from the snapshot of batch n - 1, with the same offsets and the
same watermark.  It reads the same records and stores an equal snapshot.  The sink finds that the batch has been written
(exactly once), or writes it again (at least once).

The watermarks of batch n, epoch milliseconds; ``None``: none yet:

===============================  =======================================================================================
``progress.watermark``           of the input: what all marks that were read so far promise
``progress.promised``            the same for all events; lower than ``watermark`` if a percentile drives the job
``progress.next_watermark``      what batch n + 1 will run with: ``progress.watermark``, or more after a look ahead
``progress.batch_watermark``     what the last batch ran with
``engine.ran``                   what batch n runs with as Spark counts it, see `spark_watermark`; 0: none
``results.complete``             a lower bound of the event times in later batches' results
``progress.output``              in the output topic: the highest so far of ``settings.output(results.complete)``
===============================  =======================================================================================

If a burst of records arrives between step 6 and Spark's plan of batch n + 1, the limit of a batch may end batch n + 1
before the marks that its watermark rests on.  The handler checks this before step 1.  It then lowers the watermark in
Spark's log, and another thread restarts the query.  The same batch runs again with the watermark of the records before
it, so one batch restarts the query at most once.
"""

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from traceback import clear_frames, format_exception
from typing import Final
from weakref import WeakValueDictionary, ref

from floodmark.producers.clients.admin import Config, TopicWatch, warn_of_compaction
from floodmark.schemas.classify import Offsets
from floodmark.schemas.completeness.position import TopicUser
from floodmark.schemas.errors import (
    FloodmarkError,
    JobFailedError,
    LookaheadError,
    RecreatedTopicError,
    UnknownTopicError,
)
from floodmark.schemas.timestamps import END_OF_TIME, is_late
from floodmark.spark_jobs.batch.handler_settings import Settings
from floodmark.spark_jobs.batch.late_rows import count_late_rows, pass_thresholds
from floodmark.spark_jobs.batch.lookahead import Lookahead, withdraw, withdraw_stored
from floodmark.spark_jobs.batch.observed_batch import ObservedBatch, require_usable, update_progress
from floodmark.spark_jobs.batch.report import Batch, Standstill
from floodmark.spark_jobs.batch.resume import begin_epoch, refuse_unread, resume
from floodmark.spark_jobs.batch.sinks import Sink
from floodmark.spark_jobs.batch.snapshots import JobIdentity, Snapshots
from floodmark.spark_jobs.batch.stopping import Stopping
from floodmark.spark_jobs.internals.checkpoint import committed
from floodmark.spark_jobs.internals.engine import Engine, InterruptedBatchError
from floodmark.spark_jobs.internals.texts import reason_of, was_cancelled, was_interrupted
from floodmark.spark_jobs.progress.progress import Progress
from floodmark.spark_jobs.progress.published import Published
from floodmark.spark_jobs.reading.event_time import require_shift
from floodmark.spark_jobs.reading.source_spec import SourceSpec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)
_PATIENCE: Final = 10.0  # seconds to wait for the current batch at the end of the program
_IDLE: Final = 10.0  # seconds between two checks of the topics while no batch runs
_ANSWER: Final = 5.0  # seconds to wait for Kafka when a query has failed
_LONGEST: Final = 1_000  # characters of an error that Spark gets
_handlers: Final = WeakValueDictionary[str, "BatchHandler"]()
"""The jobs of this process, by the id of the checkpoint; Spark keeps a handler in memory while its query runs."""
os.register_at_fork(after_in_child=_handlers.clear)  # the end of a forked process stops no job


class BatchHandler:
    """The function that Spark calls with each batch of one job; keeps the last ``recent`` reports of batches."""

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
        self.failure: BaseException | None = None  # the exception that failed the job
        self.stopping: Final = Stopping(self._active_query)
        self.progress: Progress  # set by `attach`
        self.progress_lock: Final = threading.Lock()
        """Held while a batch changes the progress, since other threads read it."""
        self.ended = False
        """Whether all input has ended and every result is written; the progress knows of the end before."""
        self.counts_at_start: dict[str, int] = {}
        self.lookahead: Final = Lookahead(identity.job, specs, settings, self.stopping)
        self.processing_time_watermark: int | None = None  # see `Batch`; of the last batch
        self.recent: Final = deque[Batch](maxlen=recent)
        self._read = 0  # records, since this start
        self.get_restart_callback: Callable[[], Callable[[StreamingQuery], None] | None] = lambda: None
        """Returns a function to call with the new query after a restart: a weak method, because its owner holds it."""
        self.specs: Final = specs
        self.sink: Final = sink
        self._snapshots = snapshots
        self._settings = settings
        self._on_batch = on_batch
        self._attached = threading.Event()
        self._spark: SparkSession | None = None
        self._query_id = self._run_id = ""
        self._start: Callable[[], StreamingQuery]
        self._compacted: set[str] = set()
        """Input topics with log compaction, which deletes rows, so their counts prove nothing."""
        self._standstill = Standstill(identity.job)
        self._limits: Iterator[Mapping[str, int]] = iter(())
        self._watches: list[TopicWatch] = []
        self._watching = threading.Lock()
        self._closed = threading.Event()
        self._ran_at = time.monotonic()  # when the last batch has checked the topics

    def attach(self, query: StreamingQuery, spark: SparkSession, start: Callable[[], StreamingQuery]) -> None:
        """Load the progress for a query that has started, whose first batch waits for this; ``start`` restarts it."""
        self._spark, self._start = spark, start
        self._query_id, self._run_id = query.id, query.runId
        job = self.identity.job
        try:
            last = committed(query)
            progress = resume(job, self.specs, self._snapshots, self._settings, last)
            self._compacted = {
                topic for spec in self.specs for topic in warn_of_compaction(spec.connection.config(), spec.topics)
            }
            self._watches = [
                TopicWatch(config, topics, progress.topic_ids, TopicUser.job(job)) for config, topics in self._topics()
            ]
            if self._settings.rebuild and last is not None:  # the next start may come before the next batch
                self._snapshots.store(last.batch_id, progress.snapshot())
            self.sink.open()
            begin_epoch(progress, self.specs, self._settings.epoch())  # an older instance could write until now
            self.counts_at_start, self.processing_time_watermark = progress.counts, progress.processing_time
            self.progress, self.ended = progress, progress.ended
            threading.Thread(target=_check_while_idle, args=(ref(self), self._closed), daemon=True).start()
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self._attached.set()

    def _topics(self) -> list[tuple[Config, list[str]]]:
        """Return the input topics and the output topic, together if their settings are equal: one request for each."""
        found: list[tuple[Config, list[str]]] = []
        used: list[tuple[Config, str]] = [
            (spec.connection.config(), topic) for spec in self.specs for topic in spec.topics
        ]
        target = self.sink.target
        if target is not None and target[1] not in {topic for _, topic in used}:  # their ids have no cluster
            used.append(target)
        for config, topic in used:
            same = next((topics for known, topics in found if known == config), None)
            if same is None:
                found.append((config, [topic]))
            else:
                same.append(topic)
        return found

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Run one batch; an error fails the query, and is kept for `Job` to raise."""
        try:
            self._call(frame, batch_id)
        except Exception as error:
            if len("".join(format_exception(error))) <= _LONGEST:
                raise
            # If the query is stopped now, Spark looks for an interrupt in the text, and its stack overflows.
            if was_interrupted(error):
                raise InterruptedBatchError from None
            reason = f"{type(error).__name__}: {reason_of(error)}"
            raise JobFailedError(job=self.identity.job, reason=reason) from None

    def _call(self, frame: DataFrame, batch_id: int) -> None:
        self._attached.wait()  # write() attaches right after it starts the query
        with self._failing():
            lacks_marks = self._lacks_marks()
            if lacks_marks:
                self._restart_without_lookahead(batch_id)
        if lacks_marks:
            self.stopping.interrupt()
        with self.stopping.batch(batch_id):
            try:
                with self._failing():
                    batch, end = self._run(frame, batch_id)
            finally:
                frame.unpersist()  # a sink may have cached it
            with self.progress_lock:
                self.recent.append(batch)
                self._read += batch.records
            self.processing_time_watermark = batch.processing_time_watermark
            with self._failing():
                if self._on_batch is not None:
                    self._on_batch(batch)
                self._look_ahead(batch, end)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if not was_cancelled(error):
                self._fail(error)
            elif not self.stopping.is_requested:
                job, reason = self.identity.job, "its batch was cancelled"
                self.failure = self.failure or JobFailedError(job=job, reason=reason)
                _log.warning("job %s is stopped: %s. Start it again to continue", job, reason)
            if isinstance(error, Exception):
                raise
            # Such as SystemExit of a writer: Py4J would not answer, and the query would wait for ever.
            raise JobFailedError(job=self.identity.job, reason=f"{type(error).__name__}: {error}") from None

    def _fail(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self.lookahead.close()
        self.sink.close()
        clear_frames(error.__traceback__)  # their variables would hold the query

    def lost_topic(self) -> FloodmarkError | None:
        """Return the error of a topic that was deleted, or created again; ``None``: neither, or not known."""
        try:
            for watch in self._watches:
                if not watch.check(_ANSWER):
                    watch.check(_ANSWER)  # it ignores the first time that a topic is missing
        except (RecreatedTopicError, UnknownTopicError) as error:
            return error
        return None

    def _check_topics(self) -> None:
        with self._watching:
            for watch in self._watches:
                watch.check()
            self._ran_at = time.monotonic()

    def check_while_idle(self) -> None:
        """Fail the job if work between batches has failed, or a topic was created again.

        Spark runs no batch as long as the new topic ends where the job has read the old one to.
        """
        is_idle = time.monotonic() - self._ran_at >= _IDLE and not self.progress.ended
        if not is_idle or self.failure is not None or self.stopping.is_requested:
            return
        try:
            self.sink.check()
            self._check_topics()
        except FloodmarkError as error:
            self.failure = self.failure or error
            self.stopping.stop()  # it may look ahead: close its clients when it has stopped
            self._fail(error)

    def _lacks_marks(self) -> bool:
        """Tell whether the batch ends before the marks that its watermark rests on."""
        if self.failure is not None or self.stopping.is_requested:
            return False
        ahead = self.progress.ahead
        return ahead is not None and not ahead.is_covered(self._engine().offsets()[1])

    def _restart_without_lookahead(self, batch_id: int) -> None:
        """Restart the query, so that the batch runs with the watermark of the records before it."""
        job, last = self.identity.job, batch_id - 1
        _log.warning(
            "job %s: after a burst of records, batch %d ends before the marks that its watermark rests on. The query "
            "restarts, and the batch runs with the watermark of the batch before. Nothing of it was written.",
            *(job, batch_id),
        )
        self.progress.withdraw_ahead()
        withdraw(self._snapshots, last, self.progress, self._settings.windows_close)
        self._check_topics()
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

    def _active_query(self) -> StreamingQuery | None:
        """Return the query while it is active; by its id, since a reference back to it would keep it in memory."""
        query = None if self._spark is None else self._spark.streams.get(self._query_id)
        return query if query is not None and query.runId == self._run_id else None

    def _engine(self) -> Engine:
        query = self._active_query()
        if self.failure is not None or query is None:
            raise self.failure or AssertionError
        rules = self._settings.rules
        return Engine(query, self._settings.windows_close, rules.ends if rules.only_windows else None)

    def _run(self, frame: DataFrame, batch_id: int) -> tuple[Batch, Offsets]:
        began = time.monotonic()
        engine = self._engine()
        if self.stopping.is_first:
            engine.ask_latest_offsets()
            self._limits = iter(self._settings.limits)
        job, spark, progress = self.identity.job, frame.sparkSession, self.progress
        watermark_before, batch_watermark, ahead = progress.watermark, progress.next_watermark, progress.ahead
        last_batch_watermark = progress.batch_watermark
        if watermark_before == END_OF_TIME:
            refuse_unread(job, self.specs, progress, engine.offsets()[0])

        # 1. The batch runs.
        pass_thresholds(spark, self.specs, progress)
        self.sink.consume(frame)

        # 2. Its marks are applied.  Nothing is durable yet.
        observed = ObservedBatch.of(spark, engine, self.specs)
        with self.progress_lock:  # until all is counted, or a reader would see a part
            counts, discrepancies = update_progress(job, progress, observed, self._compacted)
            if ahead is not None and not progress.is_at_least(ahead.watermark):
                withdraw_stored(self._snapshots, batch_id - 1, self._settings.windows_close)
                raise LookaheadError(job=job, watermark=ahead.watermark, found=progress.watermark)
            results = engine.results(batch_watermark, progress.next_watermark)
            # If windows are the only state, Spark's own watermark stays at the last window end, below the marks.
            judged_by_spark = not (results.passes_late or self._settings.rules.only_windows)
            late_watermark = engine.late_watermark(last_batch_watermark) if judged_by_spark else watermark_before
            counts["late"], late_rows = count_late_rows(
                job, spark, observed, self._settings.derived.of_rows(late_watermark)
            )
            self._check(batch_id, observed, passes_late=results.passes_late, watermark=watermark_before)
            # Results that no row can have contributed to are not complete: a corrected job may give others.
            usable = require_usable(job, progress, self.specs)
            output = progress.finish_batch(self._settings.output(results.complete) if usable else None, counts)

        # 3. Its snapshot is stored, if no topic was created again since the batches before have read it.
        self._check_topics()
        self._snapshots.store(batch_id, progress.snapshot())

        # 4. Its rows are made durable, and after them the marks of the job.
        published = Published(observed.end, engine.ran, progress.topic_ids)
        self.sink.commit(frame, batch_id, progress, published, late_rows, observed.output.rows)
        self.ended = progress.ended

        # 5. The watermark of the next batch is set, and its limit.
        engine.set_watermark(progress.next_watermark)
        engine.set_limits(spark, next(self._limits, {}))
        self._standstill.note(progress, moved=progress.watermark != watermark_before, read=observed.topics)
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
            duration=timedelta(seconds=round(time.monotonic() - began, 3)),
            discrepancies=discrepancies,
            **counts,
        )
        return batch, observed.end

    def read_until(self, batch_id: int) -> int:
        """Return how many records the job has read since its start, up to one of its recent batches."""
        with self.progress_lock:
            return self._read - sum(batch.records for batch in self.recent if batch.batch_id > batch_id)

    def _look_ahead(self, batch: Batch, end: Offsets) -> None:
        """Let the next batch run with a higher watermark, if marks that it is going to read give one."""
        ahead = self.lookahead.look(self.progress, end, batch.records)
        if ahead is None or self._active_query() is None:  # the job was stopped meanwhile
            return
        self.progress.look_ahead(ahead)
        self._snapshots.store(batch.batch_id, self.progress.snapshot())  # before Spark gets it
        self._engine().set_watermark(ahead.watermark)

    def _check(self, batch_id: int, observed: ObservedBatch, *, passes_late: bool, watermark: int | None) -> None:
        """Refuse rows that would break the job's own marks, before anything of the batch is durable.

        If late input (behind ``watermark``, that of the input before this batch) passes the operators, late results are
        allowed: the late rows are counted.  With ``late=``, no late input passes.
        """
        derived = self._settings.derived
        late = [
            time
            for spec, found in observed.inputs
            if spec.late is None and (time := found.earliest) is not None and is_late(time, derived.of_rows(watermark))
        ]
        require_shift(self.identity.job, derived, observed.metrics, watermark, late)
        observed.output.check(self.identity, batch_id, None if passes_late and late else self.progress.output)

    @property
    def is_running(self) -> bool:
        """Whether its query is active, or restarts."""
        with suppress(Exception):  # the session may be gone
            return not self.stopping.restarted.is_set() or self._active_query() is not None
        return False

    def stop(self, patience: float = -1) -> None:
        """Stop the query after the current batch; ``patience``: seconds to wait for this batch, -1: without limit.

        In a batch, this only requests the stop, since Spark commits the batch after it.
        """
        if self.stopping.is_in_batch:
            self.stopping.request_stop()
            threading.Thread(target=self.stop, daemon=True).start()
            return
        self.stopping.stop(patience=patience)
        self.close()

    def close(self) -> None:
        """Close all clients; the job fails if its last work does."""
        self._closed.set()
        self.lookahead.close()
        self.sink.close()
        self.failure = self.failure or self.sink.failure
        self._watches.clear()


def _check_while_idle(handler: "ref[BatchHandler]", closed: threading.Event) -> None:
    while not closed.wait(_IDLE):
        found = handler()
        if found is None:
            return
        if not found.is_running:
            found.close()  # Spark may fail between two batches
            return
        found.check_while_idle()
        del found  # while this thread waits, it keeps no job in memory


def register_running(handler: BatchHandler) -> None:
    """Register a started job."""
    _handlers[handler.identity.checkpoint_id] = handler


def stop_running(checkpoint_id: str) -> bool:
    """Stop the job that runs from a checkpoint, after its current batch; return whether there was one."""
    handler = _handlers.pop(checkpoint_id, None)
    if handler is None:
        return False
    if not handler.is_running:
        handler.close()  # it has failed, and was not stopped
        return False
    job = handler.identity.job
    _log.warning("job %s already runs from this checkpoint_location: the new start stops and replaces it", job)
    handler.stop()
    return True


@atexit.register
def _stop_all() -> None:
    for handler in list(_handlers.values()):
        with suppress(Exception):  # the session may be gone
            if handler.is_running:
                if handler.failure is None and not (handler.ended or handler.stopping.is_requested):
                    lacks = "its input has not ended"
                    if handler.progress.watermark == END_OF_TIME:
                        lacks = "its last results are not written yet"
                    advice = "Start it again to continue; awaitTermination() without a timeout waits for the end"
                    job = handler.identity.job
                    _log.warning("job %s is stopped, because the program ends: %s. %s", job, lacks, advice)
                handler.stop(_PATIENCE)
            else:
                handler.close()

"""A running job: its state, and how to wait for it and stop it."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from types import NoneType
from typing import Any, Final
from weakref import WeakMethod

from floodmark.producers.metrics import Metrics, age, delay, state_of
from floodmark.producers.readers.chain import root_holders
from floodmark.schemas.errors import DeadlineError, FencedError, FloodmarkError, JobFailedError, UsageError
from floodmark.schemas.errors.base import iso
from floodmark.schemas.timestamps import END_OF_TIME
from floodmark.schemas.tracker import UNMARKED, Hold, sentences
from floodmark.spark_jobs.batch.handler import BatchHandler
from floodmark.spark_jobs.batch.report import COUNTED, Batch
from floodmark.spark_jobs.internals.engine import last_report, reports
from floodmark.spark_jobs.internals.texts import has_a_twin, lacks_records, lacks_topic, reason_of, was_interrupted
from floodmark.spark_jobs.progress.backlog import Backlog, backlog_of, ends_of
from floodmark.spark_jobs.progress.progress import Progress
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)
_POLL: Final = 0.05
_DELETED: Final = (
    "Kafka has deleted records that it had not read. Use a longer retention.ms, a new checkpoint_location and a new "
    "output. Spark says"
)
_RESTART: Final = 10.0  # seconds to wait for a restart, which may itself wait for a query listener that calls the job


def _measured(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the counters of `Metrics`."""
    same = ("records", "unreadable", "missing_event_time", "out_of_range", "unreadable_marks", "lost", "surplus")
    fenced = counts.get("fenced", 0) + counts.get("retired", 0)
    return {name: counts.get(name, 0) for name in same} | {"late_events": counts.get("late", 0), "fenced": fenced}


class _Arrived:
    """The records that are in the topics of a job now, and whether it has processed them, though more arrive."""

    def __init__(self) -> None:
        self._since = datetime.now(UTC)
        self._ends: dict[tuple[int, str, str], int] = {}
        self._read_by: int | None = None

    def processed_by(self, batch: Mapping[str, Any] | None) -> bool:
        """Note the last batch; true from the one after that which has read them, which writes what they complete."""
        if batch is None:
            return False
        if datetime.fromisoformat(batch["timestamp"]) < self._since:
            return False
        self._ends = self._ends or ends_of(batch, "latestOffset")
        read = ends_of(batch, "endOffset")
        if self._read_by is None and self._ends and all(read.get(place, 0) >= end for place, end in self._ends.items()):
            self._read_by = batch["batchId"]
        return self._read_by is not None and batch["batchId"] > self._read_by


class Job:
    """A running job, with the methods of PySpark's ``StreamingQuery``; Spark's own query is `query`.

    Some differ from Spark's: `awaitTermination` raises an error at its timeout, which names the sources that hold the
    watermark; `processAllAvailable` waits only for the records that are in the topics at the call; progress is a
    `Batch`.
    """

    def __init__(self, query: StreamingQuery, handler: BatchHandler, *, available_now: bool = False) -> None:
        self._query = query
        self._handler = handler
        self._available_now = available_now
        handler.get_restart_callback = WeakMethod(self._restarted)

    def _restarted(self, query: StreamingQuery) -> None:
        self._query = query

    @property
    def query(self) -> StreamingQuery:
        """Spark's own query; a new one after a restart, see "One batch a window" in ``TUNING.md``."""
        self._handler.stopping.restarted.wait(_RESTART)
        return self._query

    @property
    def _progress(self) -> Progress:
        return self._handler.progress

    def __repr__(self) -> str:
        """Show the state, the last batch and the watermark."""
        state = "ended" if self.ended else "stopped"
        with suppress(Exception):  # the session may be gone
            if self.isActive:
                state = "running"
            elif self.exception() is not None:
                state = "failed"
        last = self._handler.stopping.last_batch
        batch = "no batch yet" if last is None else f"batch {last}"
        return f"<Job {self.name!r}: {state}, {batch}, watermark {iso(self.watermark)}>"

    @property
    def id(self) -> str:
        """The id of the query, which restarts keep."""
        return self._query.id

    @property
    def runId(self) -> str:
        """The id of this start of `query`."""
        return self.query.runId

    @property
    def name(self) -> str:
        """The job's name, which is its source id in the output topic."""
        return self._handler.identity.job

    @property
    def isActive(self) -> bool:
        """Whether the query runs: it has not stopped or failed."""
        while True:
            query = self._query
            if query.isActive or (self._handler.failure is None and not self._handler.stopping.restarted.is_set()):
                return True
            if self._query is query:  # else it was restarted in between
                return False

    @property
    def status(self) -> dict[str, Any]:
        """Spark's status of the query."""
        return self.query.status

    @property
    def lastProgress(self) -> Batch | None:
        """The last batch of this start; ``None``: none yet."""
        return self.recentProgress[-1] if self._handler.recent else None

    @property
    def recentProgress(self) -> list[Batch]:
        """The last batches of this start: ``spark.sql.streaming.numRecentProgressUpdates``, by default 100."""
        return list(self._handler.recent)

    @property
    def watermark(self) -> int | None:
        """The input watermark, epoch milliseconds; ``None``: unknown."""
        return self._progress.watermark

    @property
    def ended(self) -> bool:
        """Whether all input has ended and every result is written."""
        return self._handler.ended

    @property
    def counts(self) -> Counter[str]:
        """Totals since the checkpoint was created: records, marks, late, unreadable, replayed, fenced, ...

        Other names have the total 0.
        """
        with self._handler.progress_lock:
            return Counter(dict.fromkeys(COUNTED, 0) | self._progress.counts)

    def metrics(self) -> Metrics:
        """Return the metrics of this job since its checkpoint was created."""
        now, watermark, output = time.time_ns() // 1_000_000, self.watermark, self._progress.output
        has_no_source = self.ended or self._progress.idle
        return Metrics(
            "job",
            self.name,
            **_measured(self.counts),
            watermark_delay_seconds=delay(now, watermark),
            local_lag_seconds=None if watermark is None or watermark == END_OF_TIME else delay(watermark, output),
            processing_time_delay_seconds=0.0 if has_no_source else age(now, self._handler.processing_time_watermark),
            waiting_shards=self._handler.sink.waiting_shards,
            topic=self._handler.identity.output,
            watermark=watermark,
            state=state_of(watermark, idle=self._progress.idle, ended=self.ended),
            epoch=self._progress.epoch,
            before=_measured(self._handler.counts_at_start),
        )

    def backlog(self) -> Backlog | None:
        """Return the number of unread records, and the time to read them; ``None``: no batch has reported it.

        ``print`` shows it as a bar.
        """
        batches = reports(self.query)
        return backlog_of(batches, self._handler.read_until(batches[-1]["batchId"])) if batches else None

    def holders(self, *, root: bool = False) -> list[Hold]:
        """Return the sources that hold the watermark, and since when.

        Args:
            root: if a job upstream holds it, return the source that this job waits for, and so on to the first topics
                of the chain.  This reads the ends of these topics from Kafka, which takes some seconds.

        Raises:
            BrokerUnavailableError: with ``root``, if no broker answers.
        """
        with self._handler.progress_lock:
            found = [self._explained(hold) for hold in self._progress.holders()]
        if not root:
            return found
        held = {hold.holder.topic for hold in found}
        parts = [(spec.connection.config(), held.intersection(spec.topics)) for spec in self._handler.specs]
        return [hold for config, topics in parts if topics for hold in root_holders(config, topics)]

    def _explained(self, hold: Hold) -> Hold:
        """Say of a topic without marks that it may have older ones, or that the job has read nothing."""
        if hold.reason != UNMARKED:
            return hold
        if self._has_read_nothing():
            return replace(hold, reason="not read yet: the job has not finished its first batch")
        spec = next(spec for spec in self._handler.specs if hold.holder.topic in spec.topics)
        option = spec.connection.moved_start
        if option is None:
            return hold
        advice = f"if the topic has older marks, omit the source option {option}, with a new checkpoint_location"
        return replace(hold, reason=f"{hold.reason}; {advice}")

    def exception(self) -> FloodmarkError | None:
        """Return the error of Floodmark that failed the job, or a `JobFailedError`; ``None``: it has not failed."""
        error: BaseException | None = self._handler.failure or self.query.exception()
        failure = self._handler.failure  # it may have failed only now; Spark has its error later
        error = failure or error
        if error is None or (self._is_being_stopped() and was_interrupted(error)):
            return None
        if isinstance(error, FloodmarkError):
            return error
        kind = "" if failure is None else f"{type(failure).__name__}: "
        reason = kind + reason_of(error)
        failed = self._handler.lost_topic() if lacks_topic(f"{error} {reason}") else None
        if has_a_twin(reason):
            why = "another instance has used its checkpoint_location"
            place = self._handler.identity.output or ", ".join(self._handler.identity.topics)
            advice = "if it still runs, stop it; else start again"
            failed = FencedError(writer=f"job {self.name!r}", topic=place, reason=why, advice=advice)
        if lacks_records(reason):
            reason = f"{_DELETED}: {reason}"
        if failed is None:
            failed = JobFailedError(job=self.name, reason=reason)
            failed.__cause__ = error  # Spark's text has the whole plan
        return failed

    def _is_being_stopped(self) -> bool:
        """Tell whether the query was stopped while it ran; if Spark has stopped it, it has no exception."""
        return self._handler.stopping.is_of_active_query or (not self.isActive and self.query.exception() is None)

    def awaitTermination(self, timeout: float | None = None) -> bool:
        """Wait until all sources have ended and every result is written, then stop the job; return ``True``.

        It returns earlier if the job is stopped, and with the trigger ``availableNow`` when the job has processed all
        records that existed at its start; see `ended`.  ``timeout``: seconds; ``None``: without limit.

        Raises:
            DeadlineError: at the timeout; names the sources that hold the watermark.  The job continues.
            JobFailedError, or the error of Floodmark that failed the job.
        """
        self._await(lambda: self.ended or not self.isActive, timeout, "finish")
        if not self.ended:
            why = "has processed all records that existed at its start" if self._available_now else "was stopped"
            told = "" if self.watermark == END_OF_TIME else "its input has not ended: "
            _log.warning("job %s %s; %s%s", self.name, why, told, self._held())
        self.stop()
        self._raise_failure()
        return True

    def processAllAvailable(self, timeout: float | None = None) -> None:
        """Wait until the job has processed all records that are in the topics now, or is stopped.

        Spark's method of this name waits until no new record arrives, so for ever where sources mark all the time.
        ``timeout`` (seconds; ``None``: without limit) and errors are as in `awaitTermination`.
        """
        self._raise_failure()
        arrived, waiting = _Arrived(), threading.Thread(target=self._await_idle, daemon=True)
        waiting.start()
        with self._handler.lookahead.without_waiting():
            self._await(
                lambda: not waiting.is_alive() or arrived.processed_by(last_report(self.query)),
                timeout,
                "process the records",
            )

    def _await_idle(self) -> None:
        try:
            query = None
            while query is not self.query:  # a restart ends the wait early
                query = self.query
                query.processAllAvailable()
        except PySparkException as error:  # `exception` returns the real error
            _log.debug("job %s: %s", self.name, error)

    def _await(self, condition: Callable[[], bool], timeout: float | None, what: str) -> None:
        UsageError.unless_type("timeout", timeout, (int, float, NoneType), "a number of seconds, as in Spark")
        deadline = None if timeout is None else time.monotonic() + timeout
        while not condition():
            self._raise_failure()
            if deadline is not None and time.monotonic() > deadline:
                raise DeadlineError(what=f"job {self.name!r} did not {what}", seconds=timeout, last_seen=self._held())
            time.sleep(_POLL)
        self._raise_failure()

    def _raise_failure(self) -> None:
        error = self.exception()
        if error is not None:
            raise error

    def _has_read_nothing(self) -> bool:
        return self._handler.stopping.last_batch is None and not self._progress.counts.get("records")

    def _held(self) -> str:
        if self._has_read_nothing():
            return "no batch yet"
        if self.watermark == END_OF_TIME:
            return "all input has ended, and the last results are not written yet"
        return sentences(self.holders()) or f"watermark {iso(self.watermark)}, held by no source"

    def stop(self) -> None:
        """Stop the job after the current batch; a later start continues after it.

        Called in ``on_batch`` or by the writer, it returns before the job stops.
        """
        self._handler.stop()
